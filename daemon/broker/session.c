/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames are decoded here, once, and dispatched by methods.c. A message that is
 * wrong in itself is answered and the connection goes on; one that breaks the
 * framing or is no message ends it, since nothing after it can be trusted.
 */
#include "daemon/broker/session.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "daemon/broker/methods.h"
#include "daemon/broker/request.h"

static struct session *of(struct channel *c) {
        return CONTAINER_OF(c, struct session, channel);
}

/* Charges what the connection's buffers hold now to its user. */
static int recharge(struct session *se, struct h_error *err) {
        size_t held = frame_reader_bytes(&se->channel.in) + session_unsent(se);
        int r = 0;

        if (held > se->charged)
                r = user_charge_bytes(&se->server->users, se->user, held - se->charged, err);
        else
                se->user->bytes -= se->charged - held;
        if (r == 0)
                se->charged = held;
        return r;
}

/* The same for descriptors: received is held, whether a request will take them or not. */
static int recharge_files(struct session *se, struct h_error *err) {
        uint32_t held = frame_reader_files(&se->channel.in);
        int r = 0;

        if (held > se->n_files)
                r = user_charge_files(&se->server->users, se->user, held - se->n_files, err);
        else
                user_return_files(se->user, se->n_files - held);
        if (r == 0)
                se->n_files = held;
        return r;
}

void session_hand_files(struct session *se, struct request *rq, uint32_t n) {
        se->n_files -= n;
        rq->n_files += n;
}

void session_fail(struct session *se, uint32_t id, const struct h_error *err) {
        _cleanup_(buf_free) struct buf b = {};

        if (wire_encode_failure(&b, id, err) == 0)
                session_send(se, &b);
        else
                session_close(se); /* a request must not stay without an answer */
}

/* A connection that is cut off, and why. */
static void session_log(const struct session *se, enum log_level level, const struct h_error *err, const char *what) {
        char text[3][64];
        const char *fields[] = { text[0], text[1], text[2] };

        snprintf(text[0], sizeof(text[0]), "HEARTH_CLIENT=%llu", (unsigned long long)se->id);
        snprintf(text[1], sizeof(text[1]), "HEARTH_UID=%u", se->user->uid);
        snprintf(text[2], sizeof(text[2]), "HEARTH_CODE=%s", hearth_code_name(err->code));
        log_event(&se->server->log, level, fields, ELEMENTSOF(fields), "client %llu (uid %u, pid %u): %s%s", (unsigned long long)se->id,
                  se->user->uid, se->pid, err->message, what);
}

void session_close(struct session *se) {
        if (se->closing)
                return;
        se->closing = true;
        requests_of_session_gone(se);
        channel_close(&se->channel);
}

/* The last word to a client that is cut off. */
void session_refuse(struct session *se, const struct h_error *err) {
        session_log(se, LOG_LEVEL_DEBUG, err, "");
        if (!se->closing)
                session_fail(se, 0, err);
        session_close(se);
}

void session_send(struct session *se, struct buf *b) {
        struct h_error err = {};

        if (se->closing) {
                buf_clear(b);
                return;
        }
        if (channel_send(&se->channel, b, NULL, 0) < 0)
                h_error_set(&err, HEARTH_E_no_memory, "no memory for a reply");
        else
                (void)recharge(se, &err);
        if (err.code != HEARTH_OK) {
                /* Can't be told: there is no room to tell it in. */
                session_log(se, LOG_LEVEL_WARNING, &err, "; disconnected");
                session_close(se);
                return;
        }
        if (session_unsent(se) >= SESSION_DEAF_WATER)
                channel_pause(&se->channel, true);
}

static void on_frame(struct channel *c, struct frame *f) {
        struct session *se = of(c);
        struct schema_head head = {};
        struct schema_msg m = {};
        struct h_error err = {};
        int r = schema_decode(&wire_schema, f->p, f->n, &m, &head, &err);

        if (r == -ENOMEM)
                h_error_set(&err, HEARTH_E_no_memory, "no memory to decode a message of %u bytes", f->n);
        if (r < 0) {
                /* Before hello nothing is excused: it is some other protocol. */
                if (err.code == HEARTH_E_protocol || !head.valid || !se->hello)
                        session_refuse(se, &err);
                else if (head.kind != KIND_CANCEL)
                        session_fail(se, head.id, &err);
                return;
        }
        r = methods_dispatch(se, &m, f, &err);
        if (r == -ENOMEM)
                h_error_set(&err, HEARTH_E_no_memory, "no memory for this request");
        else if (r < 0 && r != -EHEARTH)
                h_error_from_errno(&err, r, "serving a request");
        if (r < 0 && !se->closing) {
                if (!se->hello || err.code == HEARTH_E_protocol)
                        session_refuse(se, &err);
                else
                        session_fail(se, m.id, &err);
        }
        schema_msg_free(&m);
        /* What this frame brought and nobody took goes now, not when the next one comes. */
        for (uint32_t i = 0; i < f->n_fds && !se->closing; i++)
                fd_close(frame_take_fd(f, i));
        if (!se->closing)
                (void)recharge_files(se, &err); /* less than before: can't fail */
        if (f->fds_lost) {
                free(se->files_refused);
                se->files_refused = NULL;
        }
}

static int on_read(struct channel *c) {
        struct session *se = of(c);
        struct h_error err = {};

        /* The message is refused when it is whole (take_fds() in request.c); its descriptors don't stay open until then. */
        if (recharge_files(se, &err) < 0) {
                frame_reader_drop_files(&se->channel.in);
                free(se->files_refused);
                se->files_refused = h_memdup(&err, sizeof(err));
                err = (struct h_error){};
                if (!se->files_refused || recharge_files(se, &err) < 0) {
                        session_refuse(se, &err);
                        return -1;
                }
        }
        if (recharge(se, &err) < 0) {
                session_refuse(se, &err);
                return -1;
        }
        return 0;
}

static void on_gone(struct channel *c, const struct h_error *err) {
        struct session *se = of(c);

        if (err->code != HEARTH_OK)
                session_refuse(se, err);
        else
                session_close(se);
}

static void on_drained(struct channel *c) {
        struct session *se = of(c);
        struct h_error err = {};

        (void)recharge(se, &err); /* less than before: can't fail */
        if (!session_drained(se))
                return;
        requests_of_session_drained(se);
        if (!se->closing)
                channel_pause(c, false);
}

void sessions_tick(struct server *s) {
        uint64_t now = server_now(s), begun;
        struct h_error err = {};

        list_foreach(se, &s->sessions, struct session, link) {
                if (se->closing)
                        continue;
                if (!se->hello && s->config.hello_timeout && now - se->since_ms >= s->config.hello_timeout) {
                        session_close(se);
                        continue;
                }
                /* While we don't read from it, it is not its fault. */
                begun = se->channel.paused ? 0 : frame_reader_begun(&se->channel.in);
                if (begun != se->begun_at) {
                        se->begun_at = begun;
                        se->begun_ms = now;
                } else if (begun && s->config.frame_timeout && now - se->begun_ms >= s->config.frame_timeout) {
                        h_error_set(&err, HEARTH_E_protocol, "a message that began is not whole after %llu ms, the limit (frame_timeout in "
                                    "hearth.conf): %zu bytes of it came", (unsigned long long)s->config.frame_timeout,
                                    se->channel.in.in.len - se->channel.in.head);
                        session_refuse(se, &err);
                }
        }
}

static void on_released(struct channel *c) {
        struct session *se = of(c);

        list_remove(&se->link);
        se->server->n_sessions--;
        se->user->bytes -= se->charged;
        user_return_files(se->user, se->n_files);
        free(se->files_refused);
        se->user->n_connections--;
        user_unref(se->user);
        free(se);
}

static const struct channel_ops ops = {
        .on_frame = on_frame, .on_gone = on_gone, .on_drained = on_drained, .on_read = on_read, .on_released = on_released,
};

void session_find_rights(struct session *se) {
        se->rights = access_of_socket(se->server->config.access, se->channel.fd, se->user->uid, se->gid);
}

/* A refusal before there is a session: best effort, the socket's buffer is empty. */
static void refuse_fd(struct server *s, int fd, const struct h_error *err) {
        _cleanup_(buf_free) struct buf b = {};

        s->count.connections_refused++;
        log_debug(&s->log, "connection refused: %s", err->message); /* counted; a flood must not fill the log */
        if (wire_encode_failure(&b, 0, err) == 0)
                (void)!send(fd, b.data, b.len, MSG_NOSIGNAL | MSG_DONTWAIT);
        /* Closed at once, the client's hello would fail before it has read why. The last few stay open for a moment. */
        shutdown(fd, SHUT_WR);
        fd_close(s->refused[s->n_refused % SERVER_REFUSED]);
        s->refused[s->n_refused++ % SERVER_REFUSED] = fd;
}

void session_close_refused(struct server *s) {
        for (size_t i = 0; i < SERVER_REFUSED; i++)
                s->refused[i] = fd_close(s->refused[i]);
}

void session_accept(struct server *s, int fd) {
        struct ucred cred = { .uid = (uid_t)-1 };
        socklen_t len = sizeof(cred);
        struct h_error err = {};
        struct session *se;
        uint32_t rights;
        struct user *u;

        s->count.connections++;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0) {
                h_error_set(&err, HEARTH_E_permission, "the socket's peer can't be identified: %s", strerror(errno));
                refuse_fd(s, fd, &err);
                return;
        }
        rights = access_of_socket(s->config.access, fd, cred.uid, cred.gid);
        if (access_check(s->config.access, rights, ACCESS_USE, cred.uid, NULL, &err) < 0) {
                refuse_fd(s, fd, &err);
                return;
        }
        if (s->n_sessions >= s->users.max_connections) {
                h_error_counts(&err, HEARTH_E_busy, (uint64_t)s->n_sessions + 1, s->users.max_connections,
                               "the daemon has %u connections open, as many as its limit of open files leaves room for "
                               "(LimitNOFILE= in its unit); try again later", s->n_sessions);
                refuse_fd(s, fd, &err);
                return;
        }
        if (s->n_sessions >= s->config.max_connections) {
                h_error_counts(&err, HEARTH_E_busy, (uint64_t)s->n_sessions + 1, s->config.max_connections,
                               "the daemon has %u connections open, its limit (connections in hearth.conf); try again later",
                               s->n_sessions);
                refuse_fd(s, fd, &err);
                return;
        }
        u = user_get(&s->users, cred.uid);
        if (!u || user_charge_connection(&s->users, u, &err) < 0) {
                if (!u)
                        h_error_set(&err, HEARTH_E_no_memory, "no memory for a connection");
                refuse_fd(s, fd, &err);
                user_unref(u);
                return;
        }
        se = h_new0(struct session, 1);
        if (se) {
                se->server = s;
                se->user = u;
                se->id = ++s->last_session;
                se->pid = (uint32_t)cred.pid;
                se->gid = cred.gid;
                se->rights = rights;
                se->since_ms = server_now(s);
                list_init(&se->requests);
                if (channel_open(&se->channel, &s->loop, fd, wire_schema.max_frame, WIRE_MAX_FDS, &ops) == 0) {
                        list_append(&s->sessions, &se->link);
                        s->n_sessions++;
                        return;
                }
                fd = -1;
        }
        free(se);
        u->n_connections--;
        user_unref(u);
        h_error_set(&err, HEARTH_E_no_memory, "no memory for a connection");
        if (fd >= 0)
                refuse_fd(s, fd, &err);
        else
                s->count.connections_refused++;
}
