/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request while the worker has it: start, credits, news, end, and what
 * happens when the worker dies. Frames for the client come from a process that
 * has parsed model files: they are decoded and must be what this request may
 * get, before they are passed on.
 */
#include "daemon/broker/request.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "daemon/broker/identity.h"
#include "daemon/broker/model.h"
#include "daemon/broker/request_log.h"
#include "daemon/broker/suspect.h"
#include "daemon/broker/worker.h"

/* Tokens that may have been sent in all, as things are. */
static uint64_t allowed(const struct request *rq) {
        uint64_t n = request_n_generated(rq);

        /* Another one is to be alone. */
        if (rq->server->n_suspects && !rq->suspect)
                return n;
        /* Nobody listens: it runs on only until the worker has noticed its end. */
        if (rq->session && !session_drained(rq->session))
                return n;
        n += REQUEST_WINDOW;
        return rq->endless_credit ? n : MIN(n, rq->client_credit);
}

/*
 * Whoever goes on with an answer should be who began it. Another build or
 * profile may write another text: it is said, once, and what was sent stays. Of
 * another model's content the ids mean nothing.
 */
static int check_identity(struct request *rq, char now[IDENTITY_MAX], struct h_error *err) {
        _cleanup_(buf_free) struct buf b = {};
        char what[96], reason[192];
        struct wire_paused msg;

        identity_of(rq->model, now);
        switch (identity_compare(rq->identity ? rq->identity : now, now, what)) {
        case IDENTITY_SAME:
                if (rq->identity)
                        return 0;
                break;
        case IDENTITY_OTHER_MODEL:
                if (!rq->ids.len)
                        break; /* nothing was received: it begins */
                return h_error_set(err, HEARTH_E_model_changed, "%s holds another model now than when this answer began; the %llu tokens "
                                   "received can't be continued with it. Ask anew", rq->model->label,
                                   (unsigned long long)request_n_generated(rq));
        case IDENTITY_CHANGED:
                snprintf(reason, sizeof(reason), "the answer is continued by another %s than began it", what);
                request_log(rq, LOG_LEVEL_INFO, "%s", reason);
                rq->changed = true;
                wire_init_paused(&msg);
                msg.reason = reason;
                msg.changed = true;
                if (wire_encode_paused(&b, rq->client_id, &msg, NULL) == 0)
                        request_send(rq, &b);
                break;
        }
        free(rq->identity);
        rq->identity = h_strdup(now);
        return rq->identity ? 0 : -ENOMEM;
}

int request_run(struct request *rq, uint32_t slot, struct h_error *err) {
        char identity[IDENTITY_MAX];
        _cleanup_(buf_free) struct buf b = {};
        struct server *s = rq->server;
        struct model *m = rq->model;
        struct wk_start msg;
        uint64_t n = request_n_generated(rq);
        int r;

        wk_init_start(&msg);
        if (rq->type == WIRE_generate) {
                r = check_identity(rq, identity, err);
                if (r < 0)
                        return r;
                msg.identity = identity;
        }
        msg.model = m->key;
        msg.uid = rq->user->uid;
        msg.slot = slot;
        msg.name = request_model_name(rq);
        msg.seed = rq->seed;
        rq->granted = allowed(rq);
        msg.credits = (uint32_t)(rq->granted - MIN(n, rq->granted));
        msg.waited_us = (server_now(s) - rq->arrived_ms) * 1000;
        msg.request = rq->raw;
        msg.n_request = rq->n_raw;
        msg.payload = rq->payload >= 0;
        msg.client_id = rq->client_id;
        msg.resumed = rq->resumed;
        msg.changed = rq->changed;
        if (rq->ids.len) {
                msg.resume = rq->ids.data;
                msg.n_resume = rq->ids.len;
        }
        if (rq->roles.len) {
                msg.roles = rq->roles.data;
                msg.n_roles = rq->roles.len;
        }
        r = wk_encode_start(&b, rq->id, &msg, err);
        if (r == 0)
                r = worker_send(s, &b, &rq->payload, rq->payload >= 0);
        if (r < 0)
                return r;
        if (!rq->started)
                rq->started_ms = server_now(s);
        rq->started = true;
        rq->state = REQUEST_RUNNING;
        rq->slot = slot;
        return 0;
}

void request_grant(struct request *rq) {
        _cleanup_(buf_free) struct buf b = {};
        uint64_t n = request_n_generated(rq), want = allowed(rq);
        struct wk_credit msg;

        if (rq->state == REQUEST_PARKED)
                request_unpark(rq);
        if (rq->state != REQUEST_RUNNING || rq->parking || rq->type != WIRE_generate || rq->cancel || want <= rq->granted)
                return;
        /* Not a message for every token: when half of the window is used up, or when it stands still. */
        if (rq->granted > n && rq->granted - n > REQUEST_WINDOW / 2)
                return;
        wk_init_credit(&msg);
        msg.n = (uint32_t)MIN(want - rq->granted, (uint64_t)UINT32_MAX);
        if (wk_encode_credit(&b, rq->id, &msg, NULL) == 0 && worker_send(rq->server, &b, NULL, 0) == 0)
                rq->granted += msg.n;
}

int request_add_credit(struct request *rq, uint32_t n, struct h_error *err) {
        if (rq->type != WIRE_generate || rq->endless_credit)
                return h_error_set(err, HEARTH_E_bad_request, "request %u was not started with credits", rq->client_id);
        if (__builtin_add_overflow(rq->client_credit, (uint64_t)n, &rq->client_credit))
                rq->client_credit = UINT64_MAX;
        request_grant(rq);
        return 0;
}

void requests_of_session_drained(struct session *se) {
        list_foreach(rq, &se->requests, struct request, session_link)
                request_grant(rq);
}

void requests_tick(struct server *s) {
        uint64_t now = server_now(s);

        requests_park_stalled(s);
        suspects_tick(s);
        list_foreach(rq, &s->requests, struct request, link) {
                if (rq->dead || !request_stalled(rq))
                        rq->stalled_ms = 0;
                else if (rq->stalled_ms == 0)
                        rq->stalled_ms = now;
                else if (s->config.stall_timeout && now - rq->stalled_ms >= s->config.stall_timeout)
                        request_cancel(rq, "deadline"); /* to its client, time is up */
        }
}

void request_progress(struct request *rq, const char *model, uint64_t done, uint64_t total) {
        _cleanup_(buf_free) struct buf b = {};
        struct wire_progress msg;

        /* Only who is told of it in PROTOCOL.md; and who does not read needs no news. */
        if (!rq->session || (rq->type != WIRE_generate && rq->type != WIRE_load) || !session_drained(rq->session))
                return;
        wire_init_progress(&msg);
        msg.stage = "load";
        msg.model = model;
        msg.done = done;
        msg.total = total;
        if (wire_encode_progress(&b, rq->client_id, &msg, NULL) == 0)
                request_send(rq, &b);
}

void request_tell_position(struct request *rq, uint32_t position) {
        _cleanup_(buf_free) struct buf b = {};
        struct wire_queued msg;

        if (rq->position == position || rq->type != WIRE_generate || !rq->session || !session_drained(rq->session))
                return;
        rq->position = position;
        wire_init_queued(&msg);
        msg.position = position;
        if (wire_encode_queued(&b, rq->client_id, &msg, NULL) == 0)
                request_send(rq, &b);
}

/* ---- from the worker ---- */

/*
 * Appends the frame to *b if it is a message that this request may get. It
 * must carry the client's id, so that no other request can be answered with it.
 */
static int check_frame(struct request *rq, const void *p, size_t n, bool final, struct buf *b, int *ret_type,
                       struct h_error *err) {
        static const struct { int request, reply; } replies[] = {
                { WIRE_generate, WIRE_generate_reply }, { WIRE_tokenize, WIRE_tokenize_reply },
                { WIRE_detokenize, WIRE_detokenize_reply }, { WIRE_embed, WIRE_embed_reply },
        };
        struct schema_msg m = {};
        uint8_t length[4] = { (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24) };
        bool ok = false;
        int r = schema_decode(&wire_schema, p, n, &m, NULL, err);

        if (r < 0)
                return r;
        if (final)
                for (size_t i = 0; i < ELEMENTSOF(replies); i++)
                        ok |= replies[i].request == rq->type && (rq->resumed ? WIRE_resume_reply : replies[i].reply) == m.type;
        else
                ok = rq->type == WIRE_generate && (m.type == WIRE_tokens || m.type == WIRE_accepted);
        ok = ok && m.id == rq->client_id;
        if (ok && m.type == WIRE_resume_reply)
                snprintf(rq->outcome, sizeof(rq->outcome), "%s", ((const struct wire_resume_reply *)m.body)->finish);
        if (ok && m.type == WIRE_generate_reply)
                snprintf(rq->outcome, sizeof(rq->outcome), "%s", ((const struct wire_generate_reply *)m.body)->finish);
        *ret_type = m.type;
        schema_msg_free(&m);
        if (!ok)
                return h_error_set(err, HEARTH_E_internal, "the worker sent a message that this request can't get");
        r = buf_append(b, length, sizeof(length));
        return r < 0 ? r : buf_append(b, p, n);
}

static void note(struct request *rq, bool has_prompt, uint32_t n_prompt, bool has_cached, uint32_t n_cached) {
        if (has_prompt)
                rq->n_prompt = n_prompt;
        if (has_cached)
                rq->n_cached = n_cached;
}

void request_on_out(struct request *rq, const struct wk_out *m) {
        _cleanup_(buf_free) struct buf b = {};
        struct h_error err = {};
        int type = -1, r = 0;

        if (rq->parking) /* what its client does not have yet is made again */
                return;
        note(rq, m->has_n_prompt, m->n_prompt, m->has_n_cached && !rq->accepted, m->n_cached);
        if (m->has_n_done)
                rq->n_done = m->n_done;
        rq->last_ms = server_now(rq->server);
        if (m->n_ids % 4)
                r = h_error_set(&err, HEARTH_E_internal, "the worker sent half a token id");
        if (r == 0 && m->n_frame)
                r = check_frame(rq, m->frame, m->n_frame, false, &b, &type, &err);
        if (r == 0 && m->n_ids) {
                if (!rq->first_ms)
                        rq->first_ms = rq->last_ms;
                r = buf_append(&rq->ids, m->ids, m->n_ids);
                suspect_progress(rq);
                rq->server->count.tokens_generated += m->n_ids / 4;
        }
        if (r == 0 && m->n_roles && !rq->roles.len)
                r = buf_append(&rq->roles, m->roles, m->n_roles);
        if (r < 0) {
                h_error_from_errno(&err, r, "passing on tokens");
                request_log(rq, LOG_LEVEL_WARNING, "%s", err.message);
                rq->broken = true;
                request_cancel(rq, "cancelled"); /* the worker's part; to its client it is an error */
                return;
        }
        if (type == WIRE_accepted) {
                if (rq->accepted)
                        buf_clear(&b); /* a replay: the client knows */
                rq->accepted = true;
        }
        if (b.len && !rq->broken) /* also when it is to end: its reply counts these tokens */
                request_send(rq, &b);
        request_grant(rq);
        suspects_go_on(rq->server);
}

void request_on_reply(struct request *rq, const struct wk_start_reply *m) {
        _cleanup_(buf_free) struct buf b = {};
        struct server *s = rq->server;
        struct h_error err = {};
        int type, r;

        if (rq->parking) {
                request_on_parked(rq);
                return;
        }
        note(rq, m->has_n_prompt, m->n_prompt, m->has_n_cached, m->n_cached);
        r = rq->broken ? request_broken(rq, &err) : check_frame(rq, m->frame, m->n_frame, true, &b, &type, &err);
        if (r < 0) {
                h_error_from_errno(&err, r, "the end of a request");
                request_end_error(rq, &err);
                return;
        }
        s->count.tokens_prompt += rq->n_prompt;
        s->count.tokens_cached += rq->n_cached;
        request_end(rq, &b);
}

void request_on_error(struct request *rq, const struct h_error *err) {
        request_end_error(rq, err);
}

void request_on_worker_lost(struct request *rq, const char *how, bool blamed, uint32_t opening) {
        _cleanup_(buf_free) struct buf b = {};
        struct server *s = rq->server;
        struct h_error err = {};
        struct wire_paused msg;
        const char *reason = rq->cancel;

        rq->parking = false;
        if (reason) { /* it was to end anyway */
                rq->cancel = NULL;
                rq->state = REQUEST_WAITING;
                request_cancel(rq, reason);
                return;
        }
        rq->crashes += blamed;
        if (blamed && opening) {
                rq->crashes_beside = rq->beside == opening ? rq->crashes_beside + 1 : 1;
                rq->beside = opening;
        }
        if (blamed && rq->crashes >= GUILTY_CRASHES) {
                h_error_counts(&err, HEARTH_E_worker_lost, rq->crashes, 0,
                               "the worker %s, and so did %u others before it, while it had this request%s; it is not tried again. "
                               "%llu tokens were generated", how, rq->crashes - 1, rq->suspect ? ", the last time this one alone" : "",
                               (unsigned long long)request_n_generated(rq));
                request_end_error(rq, &err);
                return;
        }
        if (blamed && rq->crashes >= SUSPECT_CRASHES)
                suspect_note(rq);
        if (model_requeue(rq->model, rq) < 0) {
                h_error_set(&err, HEARTH_E_no_memory, "no memory to replay the request");
                request_end_error(rq, &err);
                return;
        }
        s->count.replays++;
        if (rq->session && rq->type == WIRE_generate) {
                wire_init_paused(&msg);
                msg.reason = "the worker restarts; the stream continues with the same tokens";
                if (wire_encode_paused(&b, rq->client_id, &msg, NULL) == 0)
                        request_send(rq, &b);
        }
}
