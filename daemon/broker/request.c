/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/request.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "daemon/broker/model.h"
#include "daemon/broker/request_log.h"
#include "daemon/broker/resolve.h"
#include "daemon/broker/suspect.h"
#include "daemon/broker/worker.h"
#include "ipc/payload.h"

/* ---- looking up ---- */

/* Requests in being are few (limits per uid); a list is enough. */
struct request *request_by_id(struct server *s, uint32_t id) {
        list_foreach(rq, &s->requests, struct request, link)
                if (rq->id == id && !rq->dead)
                        return rq;
        return NULL;
}

struct request *request_of_client(struct session *se, uint32_t client_id) {
        list_foreach(rq, &se->requests, struct request, session_link)
                if (rq->client_id == client_id)
                        return rq;
        return NULL;
}

bool request_needs_slot(const struct request *rq) {
        return rq->type == WIRE_generate || rq->type == WIRE_embed;
}

uint64_t request_n_generated(const struct request *rq) {
        return rq->ids.len / 4;
}

bool request_stalled(const struct request *rq) {
        return (rq->state == REQUEST_RUNNING || rq->state == REQUEST_PARKED) && rq->session &&
               (!session_drained(rq->session) || (!rq->endless_credit && request_n_generated(rq) >= rq->client_credit));
}

/* ---- the end ---- */

static void on_timer_closed(uv_handle_t *h) {
        struct request *rq = h->data;
        free(rq);
}

/* Takes it out of everything. The struct lives until the loop lets go of its timer. */
const char *request_model_name(const struct request *rq) {
        return rq->name ? rq->name : rq->model ? model_name_for(rq->model, rq->user->uid) : NULL;
}

static void request_free(struct request *rq) {
        struct model *m = rq->model;

        if (rq->dead)
                return;
        rq->dead = true;
        suspect_clear(rq);
        list_remove_walked(&rq->link);
        list_remove(&rq->session_link);
        rq->server->n_requests--;
        if (rq->resolve)
                resolve_forget(rq->resolve);
        rq->resolve = NULL;
        rq->user->n_requests--;
        rq->user->bytes -= rq->charged;
        user_return_files(rq->user, rq->n_files);
        if (m)
                model_detach(m, rq);
        user_unref(rq->user);
        free(rq->raw);
        rq->payload = fd_close(rq->payload);
        free(rq->supersedes);
        free(rq->name);
        free(rq->identity);
        buf_free(&rq->ids);
        buf_free(&rq->roles);
        rq->raw = NULL;
        rq->supersedes = NULL;
        rq->name = NULL;
        rq->identity = NULL;
        uv_close((uv_handle_t *)&rq->deadline, on_timer_closed);
        /* Last: it gives the slot to others, and may end the model. */
        if (m)
                model_left(m);
}

void request_send(struct request *rq, struct buf *b) {
        if (rq->session)
                session_send(rq->session, b);
        else
                buf_clear(b);
}

void request_end(struct request *rq, struct buf *b) {
        struct session *se = rq->session;

        request_log_end(rq);
        metrics_count_end(&rq->server->metrics, rq, server_now(rq->server));
        rq->session = NULL;
        request_free(rq);
        if (se && b->len)
                session_send(se, b);
        else if (se)
                session_close(se); /* no memory to say how it ended: then the connection ends */
}

void request_end_error(struct request *rq, const struct h_error *err) {
        _cleanup_(buf_free) struct buf b = {};
        struct server *s = rq->server;

        s->count.requests_failed++;
        rq->fault = err;
        if (wire_encode_failure(&b, rq->client_id, err) < 0)
                buf_clear(&b);
        request_end(rq, &b);
}

int request_broken(const struct request *rq, struct h_error *err) {
        return h_error_counts(err, HEARTH_E_no_memory, 0, 0, "no memory to pass on the answer after %llu tokens",
                              (unsigned long long)request_n_generated(rq));
}

/* The final message of a generation that is ended before the worker has it. */
static void end_finished(struct request *rq, const char *reason) {
        _cleanup_(buf_free) struct buf b = {};
        struct wire_generate_reply msg;
        struct wire_resume_reply resumed;
        struct h_error err = {};

        if (rq->broken) {
                (void)request_broken(rq, &err);
                request_end_error(rq, &err);
                return;
        }
        if (rq->type != WIRE_generate) {
                h_error_set(&err, hearth_code_parse(reason), "the request was ended: %s", reason);
                request_end_error(rq, &err);
                return;
        }
        snprintf(rq->outcome, sizeof(rq->outcome), "%s", reason);
        if (rq->resumed) {
                wire_init_resume_reply(&resumed);
                resumed.finish = reason;
                resumed.n_generated = (uint32_t)request_n_generated(rq);
                resumed.seed = rq->seed;
                resumed.changed = rq->changed;
                if (wire_encode_resume_reply(&b, rq->client_id, &resumed, NULL) < 0)
                        buf_clear(&b);
                request_end(rq, &b);
                return;
        }
        wire_init_generate_reply(&msg);
        msg.finish = reason;
        msg.n_prompt = rq->n_prompt;
        msg.n_cached = rq->n_cached;
        msg.n_generated = (uint32_t)request_n_generated(rq);
        msg.queue_us = (server_now(rq->server) - rq->arrived_ms) * 1000;
        msg.seed = rq->seed;
        msg.changed = rq->changed;
        if (wire_encode_generate_reply(&b, rq->client_id, &msg, NULL) < 0)
                buf_clear(&b);
        request_end(rq, &b);
}

void request_cancel(struct request *rq, const char *reason) {
        _cleanup_(buf_free) struct buf b = {};
        struct wk_cancel msg;

        if (rq->cancel)
                return;
        rq->cancel = reason;
        rq->server->count.requests_cancelled++;
        if (rq->state == REQUEST_RUNNING && worker_ready(rq->server)) {
                wk_init_cancel(&msg);
                msg.reason = reason;
                if (wk_encode_cancel(&b, rq->id, &msg, NULL) == 0 && worker_send(rq->server, &b, NULL, 0) == 0)
                        return; /* its reply ends it */
        }
        end_finished(rq, reason);
}

void requests_of_session_gone(struct session *se) {
        /* Ending one may, through the slot it frees, run others; none of them is of this list. */
        while (!list_empty(&se->requests)) {
                struct request *rq = list_first(&se->requests, struct request, session_link);
                list_remove(&rq->session_link);
                rq->session = NULL;
                request_cancel(rq, "cancelled");
        }
}

static void on_deadline(uv_timer_t *t) {
        request_cancel(t->data, "deadline");
}

/* ---- the beginning ---- */

struct fields {
        const char *model;
        uint32_t n_fds;
        bool payload; /* and one more descriptor */
};

static struct fields fields_of(const struct schema_msg *m) {
        switch (m->type) {
#define CASE(ident)                                                             \
        case WIRE_##ident: {                                                    \
                const struct wire_##ident *b = m->body;                         \
                return (struct fields){ b->model ? b->model : "", b->n_fds, false }; \
        }
        case WIRE_generate: {
                const struct wire_generate *b = m->body;
                return (struct fields){ b->model ? b->model : "", b->n_fds, b->payload != NULL };
        }
                CASE(tokenize)
                CASE(detokenize)
                CASE(embed)
                CASE(load)
#undef CASE
        case WIRE_unload: {
                const struct wire_unload *b = m->body;
                return (struct fields){ b->model, 0, false };
        }
        default:
                return (struct fields){ "", 0, false };
        }
}

/* Work in tokens, before anybody has tokenized: bytes / 4, and what may be generated. */
static uint32_t estimate(const struct schema_msg *m, size_t n_raw) {
        uint64_t n = n_raw / 4 + 1;

        if (m->type == WIRE_generate) {
                const struct wire_generate *g = m->body;
                n += g->prewarm ? 0 : g->max_tokens ? MIN(g->max_tokens, 4096u) : 512u;
        }
        return (uint32_t)MIN(n, (uint64_t)1 << 24);
}

/* 53 bits, so that a seed that was shown as a JSON number comes back as the same one. */
static int choose_seed(uint64_t *ret) {
        do {
                if (getrandom(ret, sizeof(*ret), 0) != sizeof(*ret))
                        return -EIO;
                *ret >>= 11;
        } while (*ret == 0);
        return 0;
}

static int setup_generate(struct request *rq, const struct wire_generate *g, struct h_error *err) {
        rq->seed = g->seed;
        if (rq->seed == 0 && choose_seed(&rq->seed) < 0)
                return h_error_set(err, HEARTH_E_internal, "the system gives no random numbers");
        rq->endless_credit = g->credits == 0;
        rq->client_credit = g->credits;
        rq->deadline_ms = g->deadline_ms;
        if (g->supersedes && g->supersedes[0]) {
                rq->supersedes = h_strdup(g->supersedes);
                if (!rq->supersedes)
                        return -ENOMEM;
        }
        return 0;
}

/* Takes the frame's descriptors, exactly as many as said. */
static int take_fds(const struct session *se, struct frame *f, uint32_t n, bool payload, int *fds,
                    struct h_error *err) {
        if (f->fds_lost && se->files_refused) {
                *err = *se->files_refused;
                return -EHEARTH;
        }
        if (f->fds_lost)
                return h_error_counts(err, HEARTH_E_too_large, f->n_fds, WIRE_MAX_FDS,
                                      "open files passed with the message were lost on the way: too many at once, or the "
                                      "daemon's limit of open files is reached");
        if (f->n_fds != n && payload)
                return h_error_counts(err, HEARTH_E_bad_request, n, f->n_fds, "payload names a text that is in a memfd: it and the %u of n_fds "
                                      "are %u open files, but %u open files came with the message", n - 1, n, f->n_fds);
        if (f->n_fds != n)
                return h_error_counts(err, HEARTH_E_bad_request, n, f->n_fds, "n_fds says %u, but %u open files came with the message",
                                      n, f->n_fds);
        for (uint32_t i = 0; i < n; i++)
                fds[i] = frame_take_fd(f, i);
        return 0;
}

/* A text of it in a memfd: it is what it will be, and its memory is the user's to answer for. Nothing is read here. */
static int take_payload(struct request *rq, int fd, struct h_error *err) {
        uint64_t n;
        int r;

        rq->payload = fd;
        r = payload_check(fd, &n, err);
        if (r == 0)
                r = user_charge_bytes(&rq->server->users, rq->user, n, err);
        if (r < 0)
                return r;
        rq->charged += n;
        rq->cost = (uint32_t)MIN(rq->cost + n / 4, (uint64_t)1 << 24);
        return 0;
}

/* What needs a right of its own; making a model resident is looked at when it is known that one must be. */
static int check_rights(struct session *se, const struct schema_msg *m, const struct model *model, const char *name, struct h_error *err) {
        const struct access_rule *rules = se->server->config.access;

        if (m->type == WIRE_unload && !model_is_only(model, se->user->uid))
                return access_check(rules, se->rights, ACCESS_UNLOAD, se->user->uid, name, err);
        if (m->type == WIRE_load && ((const struct wire_load *)m->body)->pin)
                return access_check(rules, se->rights, ACCESS_PIN, se->user->uid, name, err);
        return 0;
}

/* What a resuming client brings, besides the generation itself. */
static int setup_resume(struct request *rq, const struct wire_resume *w) {
        int r = buf_append(&rq->ids, w->ids, w->n_ids);

        if (r == 0)
                r = buf_append(&rq->roles, w->roles, w->n_roles);
        if (r == 0 && w->n_identity && !(rq->identity = h_strdup(w->identity)))
                r = -ENOMEM;
        if (w->seed)
                rq->seed = w->seed;
        if (w->deadline_ms)
                rq->deadline_ms = w->deadline_ms;
        rq->resumed = true;
        rq->n_brought = w->n_ids / 4;
        rq->client_credit = w->n_ids / 4 + (uint64_t)w->credits;
        return r;
}

/* A file is looked at this often at most by requests; a load always looks. */
#define LOOK_MS 1000

/* Might the file of this resident model be another one by now? Not for what goes on: it needs the content it began with. */
static bool must_look(struct model *model, const struct schema_msg *m, const char *name, uint32_t uid, bool resumes) {
        uint64_t now = server_now(model->server);

        if (resumes || m->type == WIRE_unload || !model_is_of_file(model, name, uid) ||
            (m->type != WIRE_load && now - model->looked_ms < LOOK_MS))
                return false;
        model->looked_ms = now;
        return true;
}

/*
 * The rest of request_new(): m is the request itself, 'resume' what it came in
 * (NULL: by itself), raw its own bytes.
 */
static int create(struct session *se, const struct schema_msg *m, const struct wire_resume *resume, const void *raw, size_t n_raw,
                  struct frame *f, struct h_error *err) {
        struct fields fields = fields_of(m);
        const char *name = fields.model;
        struct server *s = se->server;
        struct request *rq, *older = NULL;
        int fds[MODEL_MAX_PARTS + 1], r;
        struct model *model = NULL;
        bool look = false;

        if (s->stopping)
                return h_error_set(err, HEARTH_E_shutting_down, "the daemon is stopping; try again when it is back");
        if (fields.n_fds > MODEL_MAX_PARTS)
                return h_error_counts(err, HEARTH_E_too_large, fields.n_fds, MODEL_MAX_PARTS, "n_fds is %u, at most %d", fields.n_fds, MODEL_MAX_PARTS);
        if (!name[0] && !fields.n_fds && resume && resume->n_model)
                name = resume->model;
        if (!name[0] && !fields.n_fds) {
                if (!s->default_model)
                        return h_error_set(err, HEARTH_E_unknown_model,
                                           "no model is named, and none was loaded that could be meant; name one (see: hearth models)");
                name = s->default_model;
        }
        if (!fields.n_fds) {
                model = model_by_name(s, name, se->user->uid);
                if (!model) {
                        if (m->type == WIRE_unload) /* what a path was the name of may be unloaded by it */
                                r = h_error_set(err, HEARTH_E_unknown_model, "no model named \"%s\" is resident; see: hearth models", name);
                        else
                                r = registry_check_name(name, err);
                        if (r < 0)
                                return r;
                }
        }
        if (m->type == WIRE_unload && model->n_leases && !((const struct wire_unload *)m->body)->force)
                return h_error_counts(err, HEARTH_E_busy, 0, model->n_leases,
                                      "%s is in use by %u requests; wait for them to end, or end them: hearth unload --force %s",
                                      name, model->n_leases, name);
        r = check_rights(se, m, model, name, err);
        if (r == 0)
                r = user_charge_request(&s->users, se->user, f->n, err);
        if (r < 0)
                return r;

        rq = h_new0(struct request, 1);
        if (!rq) {
                se->user->n_requests--;
                se->user->bytes -= f->n;
                return -ENOMEM;
        }
        rq->server = s;
        rq->user = se->user;
        rq->user->refs++;
        rq->charged = f->n;
        rq->payload = -1;
        rq->session_id = se->id;
        rq->rights = se->rights;
        rq->pin = m->type == WIRE_load && ((const struct wire_load *)m->body)->pin;
        rq->client_id = m->id;
        rq->type = m->type;
        rq->arrived_ms = server_now(s);
        rq->cost = estimate(m, n_raw);
        do
                rq->id = (s->last_request = (s->last_request + 1) & ~WORKER_MODEL_BIT);
        while (rq->id == 0 || request_by_id(s, rq->id));
        list_init(&rq->session_link);
        list_init(&rq->model_link);
        uv_timer_init(&s->loop, &rq->deadline);
        rq->deadline.data = rq;
        list_append(&s->requests, &rq->link);
        s->n_requests++;
        s->count.requests++;

        /* From here on request_free() undoes everything. */
        rq->session = se;
        list_append(&se->requests, &rq->session_link);
        rq->raw = h_memdup(raw, n_raw);
        rq->n_raw = n_raw;
        if (name[0])
                rq->name = h_strdup(name);
        r = rq->raw && (rq->name || !name[0]) ? 0 : -ENOMEM;
        if (r == 0 && m->type == WIRE_generate)
                r = setup_generate(rq, m->body, err);
        if (r == 0 && resume)
                r = setup_resume(rq, resume);
        if (r == 0 && fields.payload)
                r = payload_field(&wire_schema, m, ((const struct wire_generate *)m->body)->payload, NULL, err);
        if (r == 0 && (fields.n_fds || fields.payload))
                r = take_fds(se, f, fields.n_fds + fields.payload, fields.payload, fds, err);
        if (r == 0) /* charged to the connection when they came */
                session_hand_files(se, rq, fields.n_fds + fields.payload);
        if (r == 0 && fields.payload) {
                r = take_payload(rq, fds[fields.n_fds], err);
                for (uint32_t i = 0; i < fields.n_fds && r < 0; i++)
                        fd_close(fds[i]);
        }
        if (r == 0 && model)
                look = must_look(model, m, name, se->user->uid, resume);
        if (r == 0 && model && !look && (m->type != WIRE_load || resolve_profile_matches(model, m->body)))
                r = model_attach(model, rq, err);
        else if (r == 0) {
                r = resolve_start(rq, name, fds, fields.n_fds, m->type == WIRE_load ? m->body : NULL, err);
                if (r == 0 && look && (m->type != WIRE_load || resolve_profile_matches(model, m->body)))
                        resolve_resident(rq->resolve);
        }
        if (r < 0) {
                rq->session = NULL; /* the caller answers */
                request_free(rq);
                return r;
        }
        if (rq->dead)
                return 0; /* answered already */
        if (rq->deadline_ms)
                uv_timer_start(&rq->deadline, on_deadline, rq->deadline_ms, 0);
        if (rq->supersedes)
                list_foreach(o, &se->requests, struct request, session_link)
                        if (o != rq && o->supersedes && strcmp(o->supersedes, rq->supersedes) == 0)
                                older = o;
        if (older)
                request_cancel(older, "superseded");
        return 0;
}

int request_new(struct session *se, struct schema_msg *m, struct frame *f, struct h_error *err) {
        return create(se, m, NULL, f->p, f->n, f, err);
}

int request_resume(struct session *se, struct schema_msg *m, struct frame *f, struct h_error *err) {
        const struct wire_resume *w = m->body;
        struct schema_msg inner = {};
        int r;

        if (!w->n_generate)
                return h_error_set(err, HEARTH_E_bad_request, "resume.generate is missing: the daemon keeps nothing of a request whose "
                                   "connection is gone, so the `generate` message comes again with the ids received");
        if (w->n_ids % 4 || w->n_roles % 4)
                return h_error_set(err, HEARTH_E_bad_request, "resume.%s has %zu bytes, not a multiple of 4", w->n_ids % 4 ? "ids" : "roles",
                                   w->n_ids % 4 ? w->n_ids : w->n_roles);
        if (w->n_ids && !w->seed)
                return h_error_set(err, HEARTH_E_bad_request, "resume.seed is 0: tokens were received, so `accepted` told the seed");
        r = schema_decode(&wire_schema, w->generate, w->n_generate, &inner, NULL, err);
        if (r == -EHEARTH) {
                if (err->code == HEARTH_E_protocol)
                        err->code = HEARTH_E_bad_request; /* the frame around it was whole */
                h_error_prefix(err, "resume.generate");
        } else if (r == 0 && inner.type != WIRE_generate)
                r = h_error_set(err, HEARTH_E_bad_request, "resume.generate holds a %s message", wire_schema.descs[inner.type].name);
        if (r == 0) {
                inner.id = m->id;
                r = create(se, &inner, w, w->generate, w->n_generate, f, err);
        }
        schema_msg_free(&inner);
        return r;
}
