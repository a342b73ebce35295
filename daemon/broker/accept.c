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

void accept_tick(struct server *s) {
        struct h_error err = {};
        int r;

        if (s->accept_stuck_ms)
                return; /* later, when there are descriptors */
        if (listener_is_there(&s->listener)) {
                s->socket_lost = false;
                return;
        }
        on_accept(&s->accept_poll, 0, UV_READABLE); /* who came by the old name */
        uv_poll_stop(&s->accept_poll); /* libuv knows it by its number, which stays */
        r = listener_restore(&s->listener, &err);
        if (!s->accept_stuck_ms)
                uv_poll_start(&s->accept_poll, UV_READABLE, on_accept);
        if (r > 0) {
                s->socket_lost = false;
                log_warning(&s->log, "the socket %s was deleted by somebody; it is made again", s->listener.path);
        } else if (r < 0 && !s->socket_lost) {
                s->socket_lost = true;
                h_error_from_errno(&err, r, "making the socket again");
                log_error(&s->log, "the socket %s is gone, no client finds this daemon: %s", s->listener.path, err.message);
        }
}

void accept_stop(struct server *s) {
        uv_close((uv_handle_t *)&s->accept_poll, NULL);
        uv_close((uv_handle_t *)&s->accept_again, NULL);
}
