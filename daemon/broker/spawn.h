/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Starts hearth-worker in one of its modes, connected to us through its fd 3. */

#include <uv.h>

#include "base/error.h"

struct server;

/*
 * On success the process runs and *ret_fd is our end; exit_cb must uv_close()
 * the handle. io: names the program; -EAGAIN with that error: for want of descriptors, processes or memory, which may
 * be there again soon. *p is zero before; if p->loop is set after
 * a failure, the loop knows the handle and it must be closed, not just freed.
 */
int spawn_worker(struct server *s, const char *mode, uv_process_t *p, uv_exit_cb exit_cb, int *ret_fd, struct h_error *err);
/* "exited with status 3", "was ended by signal 9 (Killed)". */
const char *format_exit(int64_t status, int sig, char buf[96]);
