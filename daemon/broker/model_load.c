/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a model becomes resident and leaves: fill, reserve, open, close. Memory
 * is made by ending idle models, least recently used first, and only if that
 * will be enough; who waits for it is tried again whenever some was freed.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "daemon/broker/model.h"
#include "daemon/broker/model_internal.h"
#include "daemon/broker/quarantine.h"
#include "daemon/broker/request.h"
#include "daemon/broker/resolve.h"
#include "daemon/broker/store.h"
#include "daemon/broker/suspect.h"
#include "daemon/broker/user.h"
#include "daemon/broker/worker.h"

#define PROGRESS_MS 40u

static void open_next(struct server *s);

/* ---- the end ---- */

static struct request *any_request(struct model *m) {
        struct fairq_item *it;

        if (!list_empty(&m->pending))
                return list_first(&m->pending, struct request, model_link);
        it = fairq_any(&m->queue);
        if (it)
                return CONTAINER_OF(it, struct request, queued);
        if (!list_empty(&m->running))
                return list_first(&m->running, struct request, model_link);
        if (!list_empty(&m->parked))
                return list_first(&m->parked, struct request, model_link);
        return NULL;
}

/* It has no requests any more and the worker does not map it. */
static void model_free(struct model *m) {
        struct server *s = m->server;
        uint64_t bytes = (m->content ? m->content->bytes : 0) + m->context.bytes;

        list_remove_walked(&m->link);
        m->dead = true;
        m->state = MODEL_CLOSING;
        model_drop_names(m);
        model_unpin(m);
        ledger_release(&m->context);
        ledger_release(&m->device);
        ledger_release(&m->filling);
        m->content = m->keep ? cache_keep(&s->cache, m->content, server_now(s)) : content_unref(&s->cache, m->content);
        source_free(m->source);
        while (!list_empty(&m->unloads)) {
                struct request *rq = list_first(&m->unloads, struct request, model_link);
                _cleanup_(buf_free) struct buf b = {};
                struct wire_unload_reply msg;

                wire_init_unload_reply(&msg);
                msg.bytes = bytes;
                if (wire_encode_unload_reply(&b, rq->client_id, &msg, NULL) < 0)
                        buf_clear(&b);
                request_end(rq, &b);
        }
        if (bytes)
                model_log(m, LOG_LEVEL_INFO, NULL, " left memory (%llu bytes)", (unsigned long long)bytes);
        /* The struct stays until models_turn(): somebody up the stack may stand on it. */
        list_append(&s->dead_models, &m->dead_link);
        s->room_changed = true;
}

void model_fail(struct model *m, const struct h_error *err) {
        struct request *rq;

        m->state = MODEL_CLOSING; /* nobody joins, nothing is dispatched */
        model_drop_names(m);
        model_log(m, LOG_LEVEL_WARNING, hearth_code_name(err->code), ": %s: %s", hearth_code_name(err->code), err->message);
        while ((rq = any_request(m)))
                request_end_error(rq, err);
        model_free(m);
}

void model_close(struct model *m) {
        _cleanup_(buf_free) struct buf b = {};
        struct server *s = m->server;
        enum model_state was = m->state;
        struct h_error err = {};
        struct wk_close msg;

        if (was == MODEL_CLOSING)
                return;
        m->state = MODEL_CLOSING;
        model_drop_names(m);
        if (m->fill) {
                h_error_set(&err, HEARTH_E_cancelled, "%s was unloaded while it was loading", m->label);
                fill_abort(m->fill, &err); /* on_fill_done() frees it */
                return;
        }
        if (m->tried) /* it is being closed already */
                return;
        if ((was == MODEL_READY || m->open_sent) && worker_ready(s)) {
                wk_init_close(&msg);
                msg.model = m->key;
                msg.keep = m->keep;
                if (wk_encode_close(&b, WORKER_MODEL_BIT | m->key, &msg, NULL) == 0 && worker_send(s, &b, NULL, 0) == 0)
                        return; /* model_on_closed() */
        }
        model_free(m);
}

void model_unload(struct model *m) {
        struct server *s = m->server;
        bool more = true;

        model_drop_names(m);
        while (more) {
                more = false;
                list_foreach(rq, &s->requests, struct request, link)
                        if (rq->model == m && rq->type != WIRE_unload && !rq->cancel) {
                                request_cancel(rq, "cancelled");
                                more = true;
                                break; /* it may have ended others with it */
                        }
        }
        if (m->n_leases == 0)
                model_close(m);
}

static void try_fill(struct model *m) {
        struct h_error err = {};
        char holder[64];

        /* Copies that nobody uses go first. */
        if (ledger_available(&m->server->ledger) < m->needs)
                cache_drop_restored(&m->server->cache);
        if (ledger_reserve(&m->server->ledger, &m->filling, m->needs, model_holder(m, holder), &err) == 0) {
                m->needs = 0;
                fill_go(m->fill);
        } else if (!model_make_room(m->server, m, m->needs)) {
                m->needs = 0;
                fill_abort(m->fill, &err);
        }
}

/* ---- the turn of the loop ---- */

void models_turn(struct server *s) {
        if (!s->room_changed)
                return;
        s->room_changed = false;
        while (!list_empty(&s->dead_models)) {
                struct model *m = list_first(&s->dead_models, struct model, dead_link);
                list_remove(&m->dead_link);
                free(m->slots);
                free(m);
        }
        list_foreach(m, &s->models, struct model, link) {
                if (m->dead)
                        continue;
                if (m->state == MODEL_FILLING && m->needs)
                        try_fill(m);
                m->open_waits = false;
        }
        open_next(s);
        list_foreach(m, &s->models, struct model, link)
                if (!m->dead)
                        model_dispatch(m);
        if (!s->n_suspects)
                list_foreach(rq, &s->requests, struct request, link)
                        request_grant(rq); /* who was held while somebody ran alone */
}

/* ---- fill ---- */

static void on_need(void *ud, uint64_t bytes) {
        struct model *m = ud;

        struct h_error err = {};

        m->total = bytes;
        if (model_pin_recount(m, &err) < 0) {
                fill_abort(m->fill, &err);
                return;
        }
        m->needs = bytes;
        try_fill(m);
}

static void on_progress(void *ud, uint64_t done, uint64_t total) {
        struct model *m = ud;
        uint64_t now = server_now(m->server);

        m->done = done;
        m->total = total;
        if (now - m->last_progress_ms < PROGRESS_MS && done != total)
                return;
        m->last_progress_ms = now;
        list_foreach(rq, &m->server->requests, struct request, link)
                if (rq->model == m)
                        request_progress(rq, rq->name ? rq->name : m->label, done, total);
}

/* Into the device's memory: the worker's second half of a load. */
void model_on_open_progress(struct model *m, uint64_t done, uint64_t total) {
        if (m->state == MODEL_OPENING && m->open_sent)
                on_progress(m, done, total);
}

static bool profile_equal(const struct model_profile *a, const struct model_profile *b) {
        return a->n_ctx == b->n_ctx && a->slots == b->slots && strcmp(a->kv, b->kv) == 0 && a->gpu_layers == b->gpu_layers &&
               a->vram_budget == b->vram_budget && a->rest == b->rest;
}

/* A copy of a file whose model is resident turned out to be the same: its requests go there. */
static bool merge(struct model *m) {
        struct model *to = NULL;
        struct h_error err = {};
        struct request *rq;

        list_foreach(o, &m->server->models, struct model, link)
                if (o != m && o->content == m->content && o->state != MODEL_CLOSING && o->state != MODEL_FILLING &&
                    (m->any_profile || profile_equal(&o->profile, &m->profile)))
                        to = o;
        if (!to)
                return false;
        list_foreach(n, &m->names, struct model_name, link)
                if (model_add_name(to, n->text, n->everybody, n->uid) < 0)
                        return false;
        if (to->state == MODEL_READY)
                model_claim_names(to);
        m->state = MODEL_CLOSING;
        while ((rq = any_request(m))) {
                model_detach(m, rq);
                if (model_attach(to, rq, &err) < 0) {
                        h_error_set(&err, HEARTH_E_no_memory, "no memory to join the model");
                        request_end_error(rq, &err);
                }
        }
        model_free(m);
        return true;
}

static void start_fill(struct model *m);

/* The process that reads it was killed: once that is nobody's fault, and who waits goes on waiting. */
static void fill_once_more(struct model *m, const struct h_error *why) {
        model_log(m, LOG_LEVEL_WARNING, hearth_code_name(why->code), ": %s; its files are read again", why->message);
        m->refilled = true;
        m->needs = 0;
        ledger_release(&m->filling);
        start_fill(m);
}

static void on_fill_done(void *ud, enum fill_end end, struct fill_result *r, uint64_t bytes_read, const struct h_error *err) {
        struct model *m = ud;
        struct server *s = m->server;
        struct h_error e = {};
        bool known;

        m->fill = NULL;
        s->count.bytes_read += bytes_read;
        if (m->state == MODEL_CLOSING) {
                if (r)
                        fd_close(r->memfd);
                model_free(m);
                return;
        }
        if (end == FILL_KILLED && !m->refilled && m->source) {
                fill_once_more(m, err);
                return;
        }
        if (end != FILL_DONE) {
                model_fail(m, err);
                return;
        }
        s->count.fills++;
        list_foreach(rq, &s->requests, struct request, link)
                if (rq->model == m)
                        rq->model_read = true;
        m->content = cache_add(&s->cache, m->source, r, &m->filling, &known);
        m->source = source_free(m->source);
        if (!m->content) {
                h_error_set(&e, HEARTH_E_no_memory, "no memory to note the model");
                model_fail(m, &e);
                return;
        }
        if (quarantine_check(s, m->content->hash, m->label, m->insist, &e) < 0) {
                model_fail(m, &e);
                return;
        }
        if (known) {
                s->count.cache_hits++;
                store_describe(s); /* another file is known to be it */
        } else
                store_put(s, m->content);
        m->state = MODEL_OPENING;
        if (known && merge(m))
                return;
        open_next(s);
}

static const struct fill_ops fill_ops = { .on_need = on_need, .on_progress = on_progress, .on_done = on_fill_done };

/* For who waits already: a failure is told to them. */
static void start_fill(struct model *m) {
        struct h_error err = {};
        int r = fill_start(m->server, m->label, m->source, &fill_ops, m, &m->fill, &err);

        if (r < 0) {
                h_error_from_errno(&err, r, m->label);
                model_fail(m, &err);
        }
}

static bool same_source(const struct source *a, const struct source *b) {
        return a->n == b->n && memcmp(a->keys, b->keys, a->n * sizeof(a->keys[0])) == 0;
}

/* It was pinned when the last daemon ended: it still is, at the same user's expense, if his limit allows. */
static void repin(struct model *m, const struct content_use *use) {
        struct h_error err = {};
        struct user *u;

        if (use->pinned_by == UINT32_MAX)
                return; /* the configuration said so; it may say otherwise now */
        u = user_get(&m->server->users, use->pinned_by);
        if (u && model_pin(m, u, &err) < 0)
                model_log(m, LOG_LEVEL_WARNING, hearth_code_name(err.code), " is no longer pinned: %s", err.message);
        user_unref(u);
}

/* What another daemon should know to open it the same way. */
void model_note_use(struct model *m) {
        const char *name = model_name_for(m, UINT32_MAX);
        struct content_use *u = &m->content->use;

        *u = (struct content_use){ .known = true, .gpu_layers = m->profile.gpu_layers, .vram_budget = m->profile.vram_budget, .n_ctx = m->profile.n_ctx, .slots = m->profile.slots, .pinned = m->profile.pinned,
                                   .pinned_by = m->pinned_by ? m->pinned_by->uid : UINT32_MAX };
        memcpy(u->kv, m->profile.kv, sizeof(u->kv));
        if (name && !strchr(name, '\n'))
                snprintf(u->name, sizeof(u->name), "%s", name);
        store_describe(m->server);
}

int model_get(struct server *s, struct source *src, const char *name, bool everybody, uint32_t uid, bool may_load, bool insist,
              const struct model_profile *p, bool any_profile, struct model **ret, struct h_error *err) {
        struct content *content = cache_find(&s->cache, src);
        struct model_profile profile = *p;
        struct content_use use = {};
        struct model *m = NULL;
        uint8_t hash[32];
        int r;

        list_foreach(o, &s->models, struct model, link)
                if (o->state != MODEL_CLOSING && (any_profile || profile_equal(&o->profile, p)) &&
                    (content ? o->content == content : o->source && same_source(o->source, src) && model_may_join(o, everybody, uid)))
                        m = o;
        if (m) {
                content_unref(&s->cache, content);
                source_free(src);
                if (m->content)
                        s->count.cache_hits++;
                m->profile.pinned |= p->pinned;
                *ret = m;
                r = model_add_name(m, name, everybody, uid);
                if (r == 0 && m->state == MODEL_READY)
                        model_claim_names(m);
                return r;
        }
        r = may_load ? 0 : -EPERM;
        if (r == 0 && cache_find_hash(&s->cache, src, hash))
                r = quarantine_check(s, hash, name, insist, err);
        if (r == 0 && !content)
                r = model_make_file_room(s, src, name, err);
        if (r < 0) {
                content_unref(&s->cache, content);
                source_free(src);
                return r;
        }
        /* As it was open under the daemon before this one: an answer that is resumed finds the same profile. */
        if (content && content->use.known && any_profile) {
                use = content->use;
                profile.n_ctx = use.n_ctx;
                profile.slots = use.slots;
                profile.gpu_layers = use.gpu_layers;
                profile.vram_budget = use.vram_budget;
                memcpy(profile.kv, use.kv, sizeof(profile.kv));
                content->use.known = false;
        }
        m = h_new0(struct model, 1);
        if (m)
                m->slots = h_new0(uint8_t, profile.slots);
        if (!m || !m->slots) {
                free(m);
                content_unref(&s->cache, content);
                source_free(src);
                return -ENOMEM;
        }
        m->server = s;
        do
                m->key = (s->last_model = (s->last_model + 1) & ~WORKER_MODEL_BIT);
        while (m->key == 0 || model_by_key(s, m->key));
        snprintf(m->label, sizeof(m->label), "%s", name);
        m->profile = profile;
        m->any_profile = any_profile;
        m->insist = insist;
        m->loading_since_ms = m->last_used_ms = server_now(s);
        fairq_init(&m->queue);
        list_init(&m->names);
        list_init(&m->pending);
        list_init(&m->running);
        list_init(&m->parked);
        list_init(&m->unloads);
        list_append(&s->models, &m->link);
        m->content = content;
        m->state = content ? MODEL_OPENING : MODEL_FILLING;
        m->source = src; /* in case that the copy can't be used */
        if (content)
                s->count.cache_hits++;
        else if (everybody && cache_drop_outdated(&s->cache, name))
                log_warning(&s->log, "model %s: its file is not the one of which there is a copy in memory; it is read anew", name);
        r = model_add_name(m, name, everybody, uid);
        if (r == 0 && use.pinned)
                repin(m, &use);
        if (r == 0 && !content)
                r = fill_start(s, name, m->source, &fill_ops, m, &m->fill, err);
        if (r < 0) {
                m->state = MODEL_CLOSING;
                model_free(m);
                return r;
        }
        worker_need(s); /* starts while the files are read */
        if (!m->dead)
                open_next(s);
        if (m->dead) { /* it can't be started, or not be told: the model has failed already */
                *err = s->worker.fault;
                return h_error_set(err, HEARTH_E_worker_lost, "%s can't be opened in the worker", name);
        }
        *ret = m;
        return 0;
}

/* ---- open ---- */

static void send_open(struct model *m) {
        _cleanup_(buf_free) struct buf b = {};
        struct server *s = m->server;
        struct h_error err = {};
        struct wk_open msg;
        int r;

        wk_init_open(&msg);
        msg.model = m->key;
        msg.name = m->label;
        msg.n_ctx = m->profile.n_ctx;
        msg.slots = m->profile.slots;
        msg.kv = m->profile.kv;
        msg.gpu_layers = m->profile.gpu_layers;
        msg.whole = s->config.cuda && m->profile.gpu_layers == UINT32_MAX && !m->divided;
        msg.vram_budget = m->profile.vram_budget;
        msg.rest = config_rests[m->profile.rest];
        /* A GPU's memory is the worker's to know; the ledger is the host's. */
        msg.available = s->config.cuda ? 0 : MAX(ledger_available(&s->ledger), UINT64_C(1));
        r = wk_encode_open(&b, WORKER_MODEL_BIT | m->key, &msg, &err);
        if (r == 0) {
                m->open_sent = true;
                worker_touch(s);
                r = worker_send(s, &b, &m->content->memfd, 1);
                if (r == -EPIPE)
                        return; /* its end is being noticed; then everything is opened anew */
        }
        if (r < 0) {
                m->open_sent = false;
                h_error_from_errno(&err, r, m->label);
                model_fail(m, &err);
        }
}

/*
 * One after the other, so that each is told what memory is really left. One that
 * may have ended the worker goes before all: nothing else is lost then if it does
 * so again.
 */
static void open_next(struct server *s) {
        struct model *next = quarantine_doubtful(s);

        list_foreach(m, &s->models, struct model, link) {
                if (m->state != MODEL_OPENING)
                        continue;
                if (m->open_sent)
                        return;
                if (suspect_excludes(s, m))
                        continue;
                if (!next && !m->open_waits)
                        next = m;
        }
        if (!next)
                return;
        worker_need(s);
        if (worker_ready(s))
                send_open(next);
}

/* Which part is where, what computes and what to expect of it: one line for people. */
static void note_placement(struct model *m, const struct wk_open_reply *b) {
        char a[32], c[32], speed[48] = "";

        m->n_layers = b->n_layer;
        m->gpu_layers = b->gpu_layers;
        m->host_weights = b->host_bytes;
        m->host_computes = b->host_computes;
        if (b->tokens_per_s > 0)
                snprintf(speed, sizeof(speed), "; about %.3g tokens/s", b->tokens_per_s);
        if (b->host_bytes)
                snprintf(m->placement, sizeof(m->placement), "%u of %u layers in device memory (%s); %s in host memory, %s%s", b->gpu_layers,
                         b->n_layer, format_bytes(b->device_bytes, a), format_bytes(b->host_bytes, c),
                         b->host_computes ? "computed by the processor" : "read by the device over the bus", speed);
        else
                snprintf(m->placement, sizeof(m->placement), "all %u layers in device memory (%s)%s", b->n_layer,
                         format_bytes(b->device_bytes, a), speed);
}

static bool others_wait(const struct model *m) {
        list_foreach(o, &m->server->models, struct model, link)
                if (o != m && o->state == MODEL_OPENING)
                        return true;
        return false;
}

/* It was opened alone and nothing happened. False: it stays open. */
static bool close_tried(struct model *m) {
        _cleanup_(buf_free) struct buf b = {};
        struct wk_close msg;

        wk_init_close(&msg);
        msg.model = m->key;
        msg.keep = m->server->config.cuda;
        if (wk_encode_close(&b, WORKER_MODEL_BIT | m->key, &msg, NULL) < 0)
                return false;
        model_log(m, LOG_LEVEL_INFO, NULL, " was opened alone and nothing happened; the others come first");
        m->doubtful = false;
        m->tried = true;
        (void)worker_send(m->server, &b, NULL, 0); /* else its end is being noticed */
        return true;
}

void model_on_opened(struct model *m, const struct wk_open_reply *b) {
        struct server *s = m->server;
        uint32_t n_ctx = b->n_ctx;
        uint64_t context_bytes = b->context_bytes;
        const char *note = b->note;
        struct h_error err = {};
        const char *shared = model_name_for(m, UINT32_MAX);
        char holder[64];
        int r = 0;

        if (m->state != MODEL_OPENING || !m->open_sent || m->tried)
                return;
        if (m->doubtful && others_wait(m) && close_tried(m))
                return;
        quarantine_opened(m);
        m->open_sent = false;
        m->device_bytes = s->config.cuda ? context_bytes + b->device_bytes : 0;
        if (s->config.cuda) {
                struct h_error ignored = {}; /* an account, no limit */
                uint64_t budget = s->device.budget;

                s->device.budget = 0;
                (void)ledger_reserve(&s->device, &m->device, m->device_bytes, model_holder(m, holder), &ignored);
                s->device.budget = budget;
                note_placement(m, b);
        } else {
                if (b->tokens_per_s > 0) /* the processor has a profile */
                        snprintf(m->placement, sizeof(m->placement), "in host memory; about %.3g tokens/s", b->tokens_per_s);
                r = ledger_reserve(&s->ledger, &m->context, context_bytes, model_holder(m, holder), &err);
        }
        if (r == 0)
                r = model_pin_recount(m, &err);
        if (r < 0) {
                /* Another load took the memory meanwhile, or it is more than its user may keep. The worker has the model: it is closed, not just forgotten. */
                m->open_sent = true;
                for (struct request *rq; (rq = any_request(m));)
                        request_end_error(rq, &err);
                model_close(m);
                return;
        }
        m->source = source_free(m->source);
        m->n_ctx = n_ctx;
        snprintf(m->note, sizeof(m->note), "%s", note ? note : "");
        m->state = MODEL_READY;
        m->last_used_ms = server_now(s);
        s->count.loads++;
        if (shared && (!s->default_model || strcmp(s->default_model, shared) != 0)) {
                char *copy = h_strdup(shared);
                if (copy) {
                        free(s->default_model);
                        s->default_model = copy;
                }
        }
        model_log(m, LOG_LEVEL_INFO, NULL, " is resident: %llu bytes of weights, %llu of context (%u positions, %u slots), after %llu ms",
                  (unsigned long long)m->content->bytes, (unsigned long long)context_bytes, n_ctx, m->profile.slots,
                  (unsigned long long)(server_now(s) - m->loading_since_ms));
        model_claim_names(m);
        model_note_use(m);
        model_dispatch(m);
        open_next(s);
}

/* Faults that a copy may have and its files not: of another layout or backend, of a build that knew more, damaged. */
static bool fault_of_copy(enum hearth_code code) {
        return code == HEARTH_E_model_invalid || code == HEARTH_E_model_truncated || code == HEARTH_E_version || code == HEARTH_E_unsupported ||
               code == HEARTH_E_unknown_arch || code == HEARTH_E_unknown_type || code == HEARTH_E_unknown_tokenizer;
}

/* A copy of an earlier daemon: its files are read again, and it is said. */
static void fill_again(struct model *m, const struct h_error *why) {
        struct server *s = m->server;

        model_log(m, LOG_LEVEL_WARNING, hearth_code_name(why->code), ": its copy in memory can't be used (%s); its files are read again", why->message);
        m->content = content_unref(&s->cache, m->content);
        m->state = MODEL_FILLING;
        start_fill(m);
}

void model_on_open_failed(struct model *m, const struct h_error *err) {
        struct server *s = m->server;

        if (m->state == MODEL_CLOSING) {
                model_on_closed(m);
                return;
        }
        if (m->state != MODEL_OPENING || !m->open_sent)
                return;
        m->open_sent = false;
        if (err->code == HEARTH_E_model_no_memory &&
            (s->config.cuda ? model_make_device_room(s, m, err->needed > err->available ? err->needed - err->available : 0)
                            : model_make_room(s, m, err->needed))) {
                m->open_waits = true;
                return;
        }
        if (err->code == HEARTH_E_model_no_memory && s->config.cuda && m->profile.gpu_layers == UINT32_MAX && !m->divided) {
                m->divided = true; /* not whole, even if every idle model left: then in two memories */
                open_next(s);
                return;
        }
        if (m->source && fault_of_copy(err->code)) {
                fill_again(m, err);
                return;
        }
        if (err->code == HEARTH_E_model_no_memory) {
                /* The worker knows what is missing, only we know who has it. */
                char held[200];
                struct h_error e = {};

                if (s->config.cuda) {
                        model_say_device_holders(s, m, err, &e);
                        model_fail(m, &e);
                        return;
                }
                if (ledger_holders(&s->ledger, &m->content->held, held, sizeof(held))) {
                        h_error_counts(&e, err->code, err->needed, err->available, "%s; held: %s", err->message, held);
                        model_fail(m, &e);
                        return;
                }
        }
        model_fail(m, err);
}

void model_on_closed(struct model *m) {
        if (m->state == MODEL_CLOSING && !m->fill)
                model_free(m);
        else if (m->tried) {
                m->tried = m->open_sent = false;
                open_next(m->server);
        }
}

/* ---- the worker's comings and goings ---- */

void models_worker_ready(struct server *s) {
        open_next(s);
}

void models_worker_lost(struct server *s, const char *how) {
        struct request *alone = suspect_first(s);
        struct model *opening;

        if (alone && alone->state != REQUEST_RUNNING)
                alone = NULL;
        opening = quarantine_note(s, alone ? alone->model : NULL);
        /* Nothing is dispatched from here on. */
        list_foreach(m, &s->models, struct model, link)
                if (m->state == MODEL_READY) {
                        m->state = MODEL_OPENING;
                        m->loading_since_ms = server_now(s);
                }
        /* Newest first, each to the front: the oldest ends up first. Ending one may end others: begin anew each time. */
        for (struct list *l = s->requests.prev; l != &s->requests;) {
                struct request *rq = CONTAINER_OF(l, struct request, link);
                if (rq->state == REQUEST_RUNNING && !rq->dead) {
                        request_on_worker_lost(rq, how, (!alone || rq == alone) && !quarantine_excuses(opening, rq), opening ? opening->key : 0);
                        l = s->requests.prev;
                } else
                        l = l->prev;
        }
        list_foreach(m, &s->models, struct model, link) {
                ledger_release(&m->context);
                ledger_release(&m->device);
                m->open_sent = m->open_waits = m->tried = false;
                if (m->dead)
                        continue;
                if (m->state == MODEL_CLOSING && !m->fill) {
                        model_free(m);
                        continue;
                }
        }
        quarantine_worker_lost(s, how);
}

void models_worker_hopeless(struct server *s, const struct h_error *err) {
        list_foreach(m, &s->models, struct model, link)
                if (m->state == MODEL_OPENING && !m->dead)
                        model_fail(m, err);
}

void models_tick(struct server *s) {
        uint64_t now = server_now(s);

        list_foreach(m, &s->models, struct model, link)
                if (m->fill)
                        fill_check(m->fill);
                else if (model_idle(m) && m->profile.idle_timeout && now - m->last_used_ms >= m->profile.idle_timeout) {
                        model_log(m, LOG_LEVEL_INFO, NULL, " was idle for %llu ms", (unsigned long long)(now - m->last_used_ms));
                        model_close(m);
                }
}

void models_done(struct server *s) {
        struct h_error err = {};

        h_error_set(&err, HEARTH_E_shutting_down, "the daemon is stopping");
        list_foreach(m, &s->models, struct model, link) {
                struct request *rq;

                if (m->dead)
                        continue;
                m->state = MODEL_CLOSING;
                while ((rq = any_request(m)))
                        request_end_error(rq, &err);
                if (m->fill)
                        fill_abort(m->fill, &err);
                else
                        model_free(m);
        }
}
