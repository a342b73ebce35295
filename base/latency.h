/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Asks the kernel to run the calling thread soon after it wakes: a short slice
 * (0.1 ms) lets it preempt the threads that compute, which keep every core busy
 * while tokens are made (EEVDF, Linux 6.12 and later; see sched(7), sched_setattr(2)).
 * Needs no privilege; threads and processes made later start with the usual
 * slice. Where the kernel can't, nothing changes.
 */
void thread_wake_soon(void);
