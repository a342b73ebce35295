/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After a lost connection: another one, and the open calls again.
 *
 * A call keeps its message as it was sent (struct kept_call). A generation that
 * was accepted is not asked anew but resumed: the message again, with the seed,
 * the ids that arrived, and what `accepted` said of who computes it; the daemon
 * takes the ids as generated and goes on behind them. The daemon need not be the
 * same process: it keeps nothing for who hung up.
 *
 * Invariants: while re.down there is no descriptor and nothing in the queue. A
 * call stays in the client's list until it ends, whatever callbacks do meanwhile;
 * what is to happen to it is noted in it. A call that was cancelled ends at the
 * loss: hanging up has ended it on the other side.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/alloc.h"
#include "client/client.h"

enum { WAIT_MIN_US = 20000, WAIT_MAX_US = 1000000, GIVE_UP_US = 30000000, MAX_TRIES = 5 };

void hearth_reconnect_init(struct hearth_reconnect *r, size_t size) {
        struct hearth_reconnect d = { .size = size };
        memset(r, 0, size);
        memcpy(r, &d, MIN(size, sizeof(d)));
}

int hearth_client_set_reconnect(hearth_client *c, const struct hearth_reconnect *user) {
        struct hearth_reconnect r;
        char *path;

        if (!user) {
                c->re.on = false;
                return 0;
        }
        hearth_reconnect_init(&r, sizeof(r));
        memcpy(&r, user, MIN(user->size, sizeof(r)));
        if (!r.path && !c->path)
                return -EINVAL;
        if (r.path) {
                path = h_strdup(r.path);
                if (!path)
                        return -ENOMEM;
                free(c->path);
                c->path = path;
        }
        c->re.on = true;
        c->re.give_up_us = r.give_up_usec ? r.give_up_usec : GIVE_UP_US;
        c->re.changed = r.changed;
        c->re.ud = r.ud;
        return 0;
}

/* ---- what is kept ---- */

struct kept_call *kept_free(struct kept_call *k) {
        if (!k)
                return NULL;
        for (uint32_t i = 0; i < k->n_fds; i++)
                fd_close(k->fds[i]);
        free(k->fds);
        buf_free(&k->frame);
        buf_free(&k->ids);
        buf_free(&k->roles);
        free(k->model);
        free(k->identity);
        free(k);
        return NULL;
}

int reconnect_keep(hearth_call *call, const struct buf *frame, const int *fds, uint32_t n_fds) {
        struct kept_call *k;
        int r;

        /* Made again they would mean something else, or nothing. */
        if (call->request == WIRE_hello || call->request == WIRE_credit || call->request == WIRE_unload)
                return 0;
        k = h_new0(struct kept_call, 1);
        if (!k)
                return -ENOMEM;
        r = buf_append(&k->frame, frame->data, frame->len);
        if (r == 0 && n_fds)
                r = frame_dup_fds(fds, n_fds, &k->fds, &k->n_fds);
        k->began_us = client_now_us();
        if (r < 0)
                kept_free(k);
        else
                call->kept = k;
        return r;
}

static int replace(char **to, const char *s) {
        char *copy = s ? h_strdup(s) : NULL;

        if (s && !copy)
                return -ENOMEM;
        free(*to);
        *to = copy;
        return 0;
}

bool reconnect_note(hearth_call *call, const struct schema_msg *m) {
        struct kept_call *k = call->kept;
        bool known = false;
        int r = 0;

        if (m->type == WIRE_accepted) {
                const struct wire_accepted *a = m->body;

                known = k->accepted;
                k->accepted = true;
                k->request = a->request;
                k->seed = a->seed;
                r = replace(&k->model, a->model);
                if (r == 0)
                        r = replace(&k->identity, a->identity);
                if (r == 0 && !known)
                        r = buf_append(&k->roles, a->roles, a->n_roles);
        } else if (m->type == WIRE_tokens) {
                const struct wire_tokens *t = m->body;

                k->broken |= !k->accepted; /* against the protocol: the seed is not known */
                r = buf_append(&k->ids, t->ids, t->n_ids / sizeof(uint32_t) * sizeof(uint32_t));
                k->tries = 0;
        }
        k->broken |= r < 0;
        return !known;
}

/* ---- down ---- */

bool reconnect_mends(const hearth_client *c, const struct h_error *why) {
        switch (why->code) {
        case HEARTH_E_disconnected:
        case HEARTH_E_shutting_down:
                return c->re.on;
        case HEARTH_E_no_daemon:  /* it did not answer the greeting in time */
        case HEARTH_E_busy:       /* too many connections now */
        case HEARTH_E_quota:
        case HEARTH_E_no_memory:
                return c->re.on && c->re.lost_us;
        default:
                return false;
        }
}

static void schedule(hearth_client *c) {
        uint64_t now = client_now_us();

        c->re.wait_us = c->re.wait_us ? MIN(c->re.wait_us * 2, (uint64_t)WAIT_MAX_US) : WAIT_MIN_US;
        /* Clients that lost the same daemon should not all come back in the same instant. */
        c->re.retry_us = now + c->re.wait_us / 2 + now % (c->re.wait_us / 2);
}

/* The oldest call that 'which' picks: its place in the list; NULL: none. */
static hearth_call **find_place(hearth_client *c, bool (*which)(const hearth_call *call)) {
        hearth_call **found = NULL;

        for (hearth_call **p = &c->calls; *p; p = &(*p)->next)
                if (which(*p))
                        found = p;
        return found;
}

static hearth_call *find_call(hearth_client *c, bool (*which)(const hearth_call *call)) {
        hearth_call **p = find_place(c, which);
        return p ? *p : NULL;
}

/* The same, out of the list. */
static hearth_call *take_call(hearth_client *c, bool (*which)(const hearth_call *call)) {
        hearth_call **p = find_place(c, which), *call;

        if (!p)
                return NULL;
        call = *p;
        *p = call->next;
        return call;
}

static bool is_cancelled(const hearth_call *call) {
        return call->cancelled;
}

static bool is_unmendable(const hearth_call *call) {
        return !call->kept || call->kept->broken || call->kept->tries >= MAX_TRIES;
}

static void end_cancelled(hearth_client *c) {
        hearth_call *call;

        while (!c->gone && (call = take_call(c, is_cancelled))) {
                call_deliver_cancelled(call);
                client_free_call(call);
        }
}

static void fail_call(hearth_call *call, const struct h_error *e) {
        struct kept_error kept;

        kept_error_set(&kept, e);
        call_deliver_error(call, &kept.pub);
        client_free_call(call);
}

static bool is_to_tell(const hearth_call *call) {
        return call->kept && call->kept->tell;
}

static bool is_to_resend(const hearth_call *call) {
        return call->kept && call->kept->resend;
}

void reconnect_lost(hearth_client *c, const struct h_error *why) {
        bool first = !c->re.lost_us;
        hearth_call *call;

        c->fd = fd_close(c->fd);
        c->greeted = false;
        frame_reader_done(&c->in);
        frame_queue_done(&c->out);
        c->re.down = true;
        c->re.why = *why;
        if (first)
                c->re.lost_us = client_now_us();
        schedule(c);
        for (call = c->calls; call; call = call->next)
                if (call->kept) {
                        call->kept->resend = true;
                        call->kept->tell = first && call->kept->accepted;
                }
        if (c->re.changed)
                c->re.changed(c->re.ud, c, -1);
        end_cancelled(c);
        while (!c->gone && (call = take_call(c, is_unmendable))) {
                struct h_error e = *why;

                if (call->request == WIRE_hello) {
                        client_free_call(call);
                        continue;
                }
                if (call->kept && call->kept->tries >= MAX_TRIES)
                        h_error_prefix(&e, "%u connections broke while this was asked for", call->kept->tries);
                fail_call(call, &e);
        }
        while (!c->gone && (call = find_call(c, is_to_tell))) {
                call->kept->tell = false;
                if (call->events.paused)
                        call->events.paused(call->ud, call, "the connection to the daemon is lost; the answer goes on when it is back", false);
        }
}

uint64_t reconnect_timeout(const hearth_client *c) {
        uint64_t now = client_now_us(), due = c->re.retry_us;

        for (const hearth_call *call = c->calls; call; call = call->next)
                if (call->cancelled)
                        return 0;
        if (c->re.give_up_us != UINT64_MAX)
                due = MIN(due, c->re.lost_us + c->re.give_up_us);
        return due > now ? due - now : 0;
}

int reconnect_dispatch(hearth_client *c, struct h_error *err) {
        uint64_t now = client_now_us();
        int fd = -1, r;

        end_cancelled(c);
        if (c->gone)
                return 1;
        if (c->re.give_up_us != UINT64_MAX && now - c->re.lost_us >= c->re.give_up_us)
                return h_error_set(err, HEARTH_E_disconnected, "%s; it did not come back within %llu s", c->re.why.message,
                                   (unsigned long long)(c->re.give_up_us / 1000000));
        if (now < c->re.retry_us)
                return 0;
        r = client_dial(c->path, &fd);
        if (r == 0) {
                c->re.down = false;
                r = client_greet(c, fd);
                if (r == 0 && c->re.changed)
                        c->re.changed(c->re.ud, c, fd);
                if (r == 0)
                        return 1;
                c->fd = fd_close(c->fd);
                c->re.down = true;
        }
        schedule(c);
        return 0;
}

/* ---- up again ---- */

int reconnect_send_resume(hearth_call *call, struct h_error *err) {
        struct kept_call *k = call->kept;
        uint64_t spent = (client_now_us() - k->began_us) / 1000;
        _cleanup_(buf_free) struct buf b = {};
        struct wire_resume w;
        int r;

        wire_init_resume(&w);
        w.request = k->request;
        w.seed = k->seed;
        w.ids = k->ids.data;
        w.n_ids = k->ids.len;
        w.generate = k->frame.data + sizeof(uint32_t);
        w.n_generate = k->frame.len - sizeof(uint32_t);
        w.model = k->model;
        w.identity = k->identity;
        w.roles = k->roles.data;
        w.n_roles = k->roles.len;
        if (k->has_credits) {
                w.credits = (uint32_t)MIN(k->credits - MIN(k->credits, k->ids.len / sizeof(uint32_t)), (uint64_t)UINT32_MAX);
                w.has_credits = true;
        }
        if (k->deadline_ms) /* all of it would be too much, 0 would mean that */
                w.deadline_ms = spent < k->deadline_ms ? (uint32_t)(k->deadline_ms - spent) : 1;
        r = wire_encode_resume(&b, call->id, &w, err);
        if (r == 0)
                r = client_push(call->client, &b, k->fds, k->n_fds);
        if (r == 0)
                call->reply = WIRE_resume_reply;
        return r;
}

static int send_again(hearth_call *call, struct h_error *err) {
        struct kept_call *k = call->kept;
        _cleanup_(buf_free) struct buf b = {};
        int r;

        k->tries++;
        if (call->request == WIRE_generate || call->request == WIRE_resume) {
                if (call->client->re.can_resume)
                        return reconnect_send_resume(call, err);
                if (k->accepted)
                        return h_error_set(err, HEARTH_E_unsupported, "the daemon that came back can't resume an answer; ask again");
        }
        r = buf_append(&b, k->frame.data, k->frame.len);
        return r < 0 ? r : client_push(call->client, &b, k->fds, k->n_fds);
}

void reconnect_resend(hearth_client *c) {
        hearth_call *call;

        c->re.lost_us = 0;
        c->re.wait_us = 0;
        end_cancelled(c);
        while (!c->gone && !c->re.lost_us && (call = find_call(c, is_to_resend))) {
                struct h_error err = {};
                int r;

                call->kept->resend = false;
                r = send_again(call, &err);
                if (r == 0)
                        continue;
                h_error_from_errno(&err, r, "asking again");
                call->kept->resend = true; /* it is found once more */
                (void)take_call(c, is_to_resend);
                fail_call(call, &err);
        }
}
