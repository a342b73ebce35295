/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * F_ADD_SEALS on a memfd that nobody maps writable any more. The kernel refuses F_SEAL_WRITE with EBUSY while one of the
 * file's pages is held by anybody, also by what moves or scans memory for a moment (compaction, DAMON), and looks five times in
 * 0.15 s before it does; asked again it looks again. Returns 0 or -errno; -EBUSY after at most a second.
 */
int memfd_seal(int fd, int seals);
