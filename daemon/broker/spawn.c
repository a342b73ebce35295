/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/spawn.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "daemon/broker/server.h"

/* For want of something that is given back again and again. */
static bool may_pass(int r) {
        return r == -EMFILE || r == -ENFILE || r == -EAGAIN || r == -ENOMEM || r == -ENOBUFS;
}

int spawn_worker(struct server *s, const char *mode, uv_process_t *p, uv_exit_cb exit_cb, int *ret_fd, struct h_error *err) {
        int pair[2] = { -1, -1 }, r;
        uv_stdio_container_t stdio[4] = {
                { .flags = UV_IGNORE }, { .flags = UV_IGNORE },
                { .flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO },
                { .flags = UV_INHERIT_FD },
        };
        char *args[] = { s->config.worker, (char *)mode, (char *)sandbox_wish_name(s->config.sandbox), NULL };
        uv_process_options_t o = {
                .exit_cb = exit_cb, .file = s->config.worker, .args = args, .stdio = stdio, .stdio_count = 4,
        };

        r = fault_hit(FAULT_SOCKETPAIR) ? -ENFILE : socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0 ? -errno : 0;
        if (r < 0) {
                h_error_set(err, HEARTH_E_io, "a socket pair for the worker can't be made: %s", strerror(-r));
                return may_pass(r) ? -EAGAIN : -EHEARTH;
        }
        stdio[3].data.fd = pair[1];
        /* Only our end: the worker's control thread may choose for itself. */
        r = fcntl(pair[0], F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
        if (r == 0)
                r = fault_hit(FAULT_FORK) ? -EAGAIN : uv_spawn(&s->loop, p, &o);
        close(pair[1]);
        if (r < 0) {
                close(pair[0]);
                h_error_set(err, HEARTH_E_io, "%s can't be started: %s; set [daemon] worker in hearth.conf", s->config.worker, uv_strerror(r));
                return may_pass(r) ? -EAGAIN : -EHEARTH;
        }
        *ret_fd = pair[0];
        return 0;
}

const char *format_exit(int64_t status, int sig, char buf[96]) {
        if (sig)
                snprintf(buf, 96, "was ended by signal %d (%s)", sig, strsignal(sig));
        else
                snprintf(buf, 96, "exited with status %lld", (long long)status);
        return buf;
}
