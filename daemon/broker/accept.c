/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/accept.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/broker/server.h"
#include "daemon/broker/session.h"

#define ACCEPT_AGAIN_MS 250u

static void on_accept(uv_poll_t *h, int status, int events);

static void on_again(uv_timer_t *t) {
        struct server *s = t->data;

        uv_poll_start(&s->accept_poll, UV_READABLE, on_accept);
}

static void stuck(struct server *s, int e) {
        uv_poll_stop(&s->accept_poll);
        uv_timer_start(&s->accept_again, on_again, ACCEPT_AGAIN_MS, 0);
        if (s->accept_stuck_ms)
                return;
        s->accept_stuck_ms = server_now(s);
        log_warning(&s->log, "new connections wait: %s (%u are open, %u open files are held for clients)", strerror(e), s->n_sessions,
                    s->users.n_files);
}

static void on_accept(uv_poll_t *h, int status, int events) {
        struct server *s = h->data;

        /* A few at a time: clients that are there already come in between. */
        for (int i = 0; i < 16; i++) {
                int fd = accept4(s->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

                if (fd < 0) {
                        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
                                stuck(s, errno);
                        return;
                }
                if (s->accept_stuck_ms) {
                        log_info(&s->log, "new connections are taken again, after %llu ms",
                                 (unsigned long long)(server_now(s) - s->accept_stuck_ms));
                        s->accept_stuck_ms = 0;
                }
                session_accept(s, fd);
        }
}

void accept_start(struct server *s) {
        uv_poll_init(&s->loop, &s->accept_poll, s->listener.fd);
        s->accept_poll.data = s;
        uv_poll_start(&s->accept_poll, UV_READABLE, on_accept);
        uv_timer_init(&s->loop, &s->accept_again);
        s->accept_again.data = s;
}

void accept_stop(struct server *s) {
        uv_close((uv_handle_t *)&s->accept_poll, NULL);
        uv_close((uv_handle_t *)&s->accept_again, NULL);
}
