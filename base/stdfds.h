/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * First in main(): standard input, output and error that are closed become
 * /dev/null, open for reading alone. Otherwise the next file or socket would
 * have that number, and what is written to standard error would go into it. A
 * reader meets the end, a writer EBADF.
 */
void standard_fds_open(void);
