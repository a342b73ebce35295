/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection: greeting, calls, dispatch.
 *
 * Invariants: a call is in c->calls from its request until its final answer; it
 * leaves the list before 'done' runs and is freed after. No callback runs outside
 * dispatch, and none after the user's last reference is gone: dispatch keeps the
 * memory alive (in_dispatch) and stops when it sees 'gone'.
 */
#include "client/client.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <fcntl.h>
#include <time.h>

#include "base/alloc.h"
#include "ipc/sockpath.h"

enum { GREETING_TIMEOUT_US = 10000000, FRAMES_PER_DISPATCH = 256 };

uint64_t client_now_us(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

void kept_error_set(struct kept_error *k, const struct h_error *e) {
        k->e = *e;
        k->pub = (struct hearth_error){ .code = hearth_code_name(e->code), .message = k->e.message, .needed = e->needed,
                                        .available = e->available, .exit_status = hearth_code_exit(e->code) };
}

int hearth_socket_path(const char *hearth_socket, const char *xdg_runtime_dir, char **ret_path) {
        struct h_error err = {};
        char *path;
        int r;

        if (hearth_socket && *hearth_socket)
                path = h_strdup(hearth_socket);
        else {
                r = sockpath_user(xdg_runtime_dir, SOCKPATH_LOOK, &path, &err);
                if (r < 0)
                        return r == -EHEARTH ? -EPERM : r;
                if (access(path, F_OK) < 0 && access(SOCKPATH_SYSTEM, F_OK) == 0) {
                        free(path);
                        path = h_strdup(SOCKPATH_SYSTEM);
                }
        }
        if (!path)
                return -ENOMEM;
        *ret_path = path;
        return 0;
}

static void client_free(hearth_client *c) {
        while (c->calls) {
                hearth_call *call = c->calls;
                c->calls = call->next;
                client_free_call(call);
        }
        fd_close(c->fd);
        frame_reader_done(&c->in);
        frame_queue_done(&c->out);
        free(c->daemon_version);
        free(c->path);
        free(c->name);
        free(c);
}

int client_greet(hearth_client *c, int fd) {
        struct wire_hello hello;

        c->fd = fd;
        c->greeted = false;
        c->greeting_due = client_now_us() + GREETING_TIMEOUT_US;
        frame_reader_done(&c->in);
        frame_queue_done(&c->out);
        frame_reader_init(&c->in, WIRE_MAX_FRAME, WIRE_MAX_FDS);
        wire_init_hello(&hello);
        hello.version = WIRE_VERSION;
        hello.client = c->name;
        return client_request(c, WIRE_hello, &hello, NULL, 0, NULL, NULL, NULL);
}

int hearth_connect_fd(int fd, const char *name, hearth_client **ret) {
        hearth_client *c;
        int r, flags;

        flags = fcntl(fd, F_GETFL);
        if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
                return -errno;
        c = h_calloc(1, sizeof(*c));
        if (!c)
                return -ENOMEM;
        c->refs = 1;
        c->next_id = 1;
        r = name && !(c->name = h_strdup(name)) ? -ENOMEM : client_greet(c, fd);
        if (r < 0) {
                c->fd = -1; /* not taken over */
                client_free(c);
                return r;
        }
        *ret = c;
        return 0;
}

int client_dial(const char *path, int *ret_fd) {
        struct sockaddr_un sa = { .sun_family = AF_UNIX };
        _cleanup_(fd_closep) int fd = -1;

        if (strlen(path) >= sizeof(sa.sun_path))
                return -ENAMETOOLONG;
        memcpy(sa.sun_path, path, strlen(path));
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0)
                return -errno;
        *ret_fd = fd_steal(&fd);
        return 0;
}

int hearth_connect(const char *path, const char *name, hearth_client **ret) {
        _cleanup_(freep) char *copy = NULL;
        _cleanup_(fd_closep) int fd = -1;
        int r;

        if (!path)
                return -EINVAL;
        copy = h_strdup(path);
        if (!copy)
                return -ENOMEM;
        r = client_dial(path, &fd);
        if (r == 0)
                r = hearth_connect_fd(fd, name, ret);
        if (r < 0)
                return r;
        fd_steal(&fd);
        (*ret)->path = ptr_steal(&copy);
        return 0;
}

hearth_client *hearth_client_ref(hearth_client *c) {
        c->refs++;
        return c;
}

hearth_client *hearth_client_unref(hearth_client *c) {
        if (!c || --c->refs > 0)
                return NULL;
        c->gone = true;
        c->fd = fd_close(c->fd);
        if (c->in_dispatch == 0)
                client_free(c);
        return NULL;
}

int hearth_client_get_fd(const hearth_client *c) {
        return c->fd;
}

int hearth_client_get_events(const hearth_client *c) {
        return POLLIN | (c->out.first ? POLLOUT : 0);
}

int hearth_client_get_timeout(const hearth_client *c, uint64_t *ret_usec) {
        uint64_t now = client_now_us();

        if (c->re.down)
                *ret_usec = reconnect_timeout(c);
        else if (c->fd >= 0 && frame_reader_ready(&c->in))
                *ret_usec = 0; /* dispatch stopped at its limit: the socket may be silent, yet there is work */
        else if (c->greeted || c->fd < 0)
                *ret_usec = UINT64_MAX;
        else
                *ret_usec = c->greeting_due > now ? c->greeting_due - now : 0;
        return 0;
}

const struct hearth_error *hearth_client_get_error(const hearth_client *c) {
        return c->has_over ? &c->over.pub : NULL;
}

const struct hearth_error *hearth_client_get_refusal(const hearth_client *c) {
        return c->has_refusal ? &c->refusal.pub : NULL;
}

const char *hearth_client_get_daemon_version(const hearth_client *c) {
        return c->daemon_version;
}

hearth_client *hearth_call_get_client(hearth_call *call) {
        return call->client;
}

int client_refuse(hearth_client *c, const struct h_error *e) {
        kept_error_set(&c->refusal, e);
        c->has_refusal = true;
        return -EINVAL;
}

/* ---- sending ---- */

static int encode(hearth_client *c, int type, uint32_t id, const void *body, struct buf *b) {
        struct h_error err = {};
        int r;

        c->has_refusal = false;
        if (c->fd < 0 && !c->re.down)
                return -ENOTCONN;
        r = schema_encode(&wire_schema, type, id, body, b, &err);
        if (r == -EHEARTH)
                return err.code == HEARTH_E_no_memory ? -ENOMEM : client_refuse(c, &err);
        return r;
}

int client_push(hearth_client *c, struct buf *b, const int *fds, uint32_t n_fds) {
        int r = frame_queue_push(&c->out, b, fds, n_fds);

        /* What the socket takes now need not wait for the loop. A dead connection shows in dispatch. */
        if (r == 0)
                (void)frame_queue_flush(&c->out, c->fd);
        return r;
}

int client_send(hearth_client *c, int type, uint32_t id, const void *body) {
        _cleanup_(buf_free) struct buf b = {};
        int r = encode(c, type, id, body, &b);

        return r < 0 || c->re.lost_us ? r : client_push(c, &b, NULL, 0);
}

static hearth_call **find_call(hearth_client *c, uint32_t id) {
        hearth_call **p = &c->calls;
        while (*p && (*p)->id != id)
                p = &(*p)->next;
        return p;
}

hearth_call *client_new_call(hearth_client *c, int type, const struct hearth_events *ev, void *ud) {
        hearth_call *call = h_calloc(1, sizeof(*call));

        if (!call)
                return NULL;
        while (c->next_id == 0 || *find_call(c, c->next_id)) /* after 2^32 requests */
                c->next_id++;
        call->id = c->next_id++;
        call->client = c;
        call->request = type;
        call->reply = reply_of(type);
        call->ud = ud;
        if (ev)
                memcpy(&call->events, ev, MIN(ev->size, sizeof(call->events)));
        return call;
}

void client_add_call(hearth_client *c, hearth_call *call) {
        call->next = c->calls;
        c->calls = call;
}

void client_free_call(hearth_call *call) {
        kept_free(call->kept);
        free(call);
}

int client_request(hearth_client *c, int type, const void *body, const int *fds, uint32_t n_fds,
                   const struct hearth_events *ev, void *ud, hearth_call **ret_call) {
        _cleanup_(buf_free) struct buf b = {};
        hearth_call *call = client_new_call(c, type, ev, ud);
        int r;

        if (!call)
                return -ENOMEM;
        r = encode(c, type, call->id, body, &b);
        if (r == 0 && c->re.on)
                r = reconnect_keep(call, &b, fds, n_fds);
        if (r == 0 && (!c->re.lost_us || type == WIRE_hello))
                r = client_push(c, &b, fds, n_fds);
        else if (r == 0 && call->kept)
                call->kept->resend = true; /* once there is a daemon again */
        else if (r == 0)
                r = -ENOTCONN;
        if (r < 0) {
                client_free_call(call);
                return r;
        }
        client_add_call(c, call);
        if (ret_call)
                *ret_call = call;
        return 0;
}

int hearth_call_cancel(hearth_call *call) {
        struct wire_cancel cancel;
        int r;

        if (call->cancelled)
                return 0;
        wire_init_cancel(&cancel);
        r = client_send(call->client, WIRE_cancel, call->id, &cancel);
        if (r == 0)
                call->cancelled = true;
        return r;
}

/* ---- receiving ---- */

void client_end(hearth_client *c, const struct h_error *e) {
        if (!c->has_over) {
                kept_error_set(&c->over, e);
                c->has_over = true;
        }
        c->fd = fd_close(c->fd);
        c->re.down = false;
        while (c->calls && !c->gone) {
                hearth_call **last = &c->calls, *call;
                while ((*last)->next)
                        last = &(*last)->next;
                call = *last;
                *last = NULL;
                if (call->request != WIRE_hello)
                        call_deliver_error(call, &c->over.pub);
                client_free_call(call);
        }
}

static int take_greeting(hearth_client *c, const struct schema_msg *m, struct h_error *err) {
        const struct wire_hello_reply *reply = m->body;

        if (m->kind == KIND_ERROR) {
                wire_failure_to_error(m->body, err);
                return -EHEARTH;
        }
        if (wire_check_version(reply->version, "the daemon", err) < 0)
                return -EHEARTH;
        c->greeted = true;
        free(c->daemon_version);
        c->daemon_version = h_strdup(reply->daemon);
        if (!c->daemon_version)
                return -ENOMEM;
        c->re.can_resume = false;
        for (size_t i = 0; i < reply->n_features; i++)
                c->re.can_resume |= strcmp(reply->features[i], "resume") == 0;
        if (c->re.lost_us)
                reconnect_resend(c);
        return 0;
}

/* The daemon ends and says so: with reconnecting on, that is no answer yet. */
static bool ends_with_daemon(const hearth_call *call, const struct schema_msg *m, struct h_error *err) {
        if (m->kind != KIND_ERROR || !call->kept)
                return false;
        wire_failure_to_error(m->body, err);
        if (err->code == HEARTH_E_shutting_down)
                return true;
        *err = (struct h_error){};
        return false;
}

/* 0, or -EHEARTH: the connection can't go on. */
static int take_message(hearth_client *c, const struct schema_msg *m, struct h_error *err) {
        hearth_call **p, *call;

        if (m->kind == KIND_ERROR && m->id == 0) {
                wire_failure_to_error(m->body, err);
                return -EHEARTH;
        }
        p = find_call(c, m->id);
        call = *p;
        if (!call) /* for instance events behind a final answer */
                return h_error_set(err, HEARTH_E_protocol, "the daemon answered request %u, which is not open", m->id);
        if (m->kind == KIND_EVENT) {
                if (!call->kept || reconnect_note(call, m))
                        call_deliver_event(call, m);
                return 0;
        }
        if (ends_with_daemon(call, m, err))
                return -EHEARTH;
        if (m->kind != KIND_ERROR && (m->kind != KIND_REPLY || m->type != call->reply))
                return h_error_set(err, HEARTH_E_protocol, "the daemon answered request %u of '%s' with a %s '%s'", m->id,
                                   wire_schema.descs[call->request].name, schema_kind_name(m->kind),
                                   wire_schema.descs[m->type].name);
        *p = call->next;
        if (call->request == WIRE_hello) {
                client_free_call(call);
                return take_greeting(c, m, err);
        }
        call_deliver_final(call, m);
        client_free_call(call);
        return 0;
}

/* Frames that are already here. > 0: how many; -EHEARTH. */
static int take_frames(hearth_client *c, struct h_error *err) {
        struct frame f;
        int n = 0, r = 0;

        while (!c->gone && c->fd >= 0 && n < FRAMES_PER_DISPATCH && (r = frame_reader_next(&c->in, &f, err)) == 1) {
                struct schema_msg m = {};
                struct schema_head head;

                n++;
                r = schema_decode(&wire_schema, f.p, f.n, &m, &head, err);
                if (r < 0 && err->code == HEARTH_E_unknown_method && head.kind == KIND_EVENT) {
                        *err = (struct h_error){}; /* an event of a newer daemon; who insists uses 'must' and features */
                        r = 0;
                        continue;
                }
                if (r == 0)
                        r = take_message(c, &m, err);
                schema_msg_free(&m);
                if (r < 0)
                        return h_error_from_errno(err, r, "receiving");
        }
        return r < 0 ? r : n;
}

static int dispatch(hearth_client *c) {
        struct h_error err = {};
        int r, n = 0;

        if (c->re.down) {
                r = reconnect_dispatch(c, &err);
                if (r < 0)
                        goto over;
                if (c->gone || c->fd < 0)
                        return r;
        }
        if (c->fd < 0)
                return -ENOTCONN;
        r = frame_queue_flush(&c->out, c->fd);
        /* A send that fails is no reason to drop what the daemon still had to say. */
        for (;;) {
                ssize_t got;
                r = take_frames(c, &err);
                if (r < 0)
                        goto over;
                n += r;
                if (c->gone || c->fd < 0)
                        return n > 0 ? n : 1;
                if (n >= FRAMES_PER_DISPATCH)
                        return n; /* let the caller's other work have a turn: see get_timeout */
                got = frame_reader_fill(&c->in, c->fd);
                if (got == -EAGAIN)
                        break;
                if (got == 0) {
                        r = h_error_set(&err, HEARTH_E_disconnected, "%s", frame_reader_in_frame(&c->in) ?
                                        "the daemon went away in the middle of a message" : "the daemon closed the connection");
                        goto over;
                }
                if (got == -ENOMEM) {
                        r = h_error_from_errno(&err, -ENOMEM, "receiving");
                        goto over;
                }
                if (got < 0) {
                        r = h_error_set(&err, HEARTH_E_disconnected, "the connection to the daemon broke: %s", strerror((int)-got));
                        goto over;
                }
        }
        if (!c->greeted && client_now_us() >= c->greeting_due) {
                r = h_error_set(&err, HEARTH_E_no_daemon, "the daemon did not answer the greeting within %d s",
                                GREETING_TIMEOUT_US / 1000000);
                goto over;
        }
        return n;
over:
        if (c->gone)
                return 1;
        if (r == -EHEARTH && !c->re.down && reconnect_mends(c, &err)) {
                reconnect_lost(c, &err);
                return n > 0 ? n : 1;
        }
        client_end(c, &err);
        return -ECONNRESET;
}

int hearth_client_dispatch(hearth_client *c) {
        int r;

        c->in_dispatch++;
        r = dispatch(c);
        if (--c->in_dispatch == 0 && c->gone)
                client_free(c);
        return r;
}

int hearth_client_wait(hearth_client *c, uint64_t usec) {
        uint64_t own, start = client_now_us();
        struct pollfd p;
        struct timespec t;
        int r;

        if (c->fd < 0 && !c->re.down)
                return -ENOTCONN;
        for (;;) {
                uint64_t spent = client_now_us() - start, left = spent < usec ? usec - spent : 0;
                if (usec == UINT64_MAX)
                        left = UINT64_MAX;
                hearth_client_get_timeout(c, &own);
                own = MIN(own, left);
                t = (struct timespec){ .tv_sec = (time_t)(own / 1000000), .tv_nsec = (long)(own % 1000000 * 1000) };
                p = (struct pollfd){ .fd = c->fd, .events = (short)hearth_client_get_events(c) };
                r = ppoll(&p, 1, own == UINT64_MAX ? NULL : &t, NULL);
                if (r < 0)
                        return errno == EINTR ? 0 : -errno;
                r = hearth_client_dispatch(c); /* c may be gone afterwards */
                if (r != 0 || left == 0)
                        return r;
        }
}
