/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/report.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/alloc.h"
#include "daemon/broker/model.h"
#include "daemon/broker/quarantine.h"
#include "daemon/broker/request.h"
#include "daemon/broker/version.h"

/* ---- status ---- */

static void count_requests(const struct server *s, uint32_t *ret_running, uint32_t *ret_waiting) {
        *ret_running = *ret_waiting = 0;
        list_foreach(rq, &s->requests, struct request, link)
                if (rq->state == REQUEST_RUNNING)
                        (*ret_running)++;
                else
                        (*ret_waiting)++;
}

int report_status(struct session *se, struct schema_msg *m, struct frame *f, struct h_error *err) {
        struct server *s = se->server;
        _cleanup_(buf_free) struct buf out = {};
        struct wire_status_reply r;
        struct wire_status_metric metrics[32];
        size_t n = 0;
        int q;

        const struct { const char *name; uint64_t value; } counters[] = {
                { "connections", s->count.connections },
                { "connections_refused", s->count.connections_refused },
                { "requests", s->count.requests },
                { "requests_failed", s->count.requests_failed },
                { "requests_cancelled", s->count.requests_cancelled },
                { "tokens_generated", s->count.tokens_generated },
                { "tokens_prompt", s->count.tokens_prompt },
                { "tokens_cached", s->count.tokens_cached },
                { "loads", s->count.loads },
                { "fills", s->count.fills },
                { "cache_hits", s->count.cache_hits },
                { "bytes_read", s->count.bytes_read },
                { "worker_restarts", s->count.worker_restarts },
                { "oom_kills", s->count.oom_kills },
                { "replays", s->count.replays },
                { "quarantined", s->count.quarantined },
                { "steps", s->worker.steps },
                { "rows", s->worker.rows },
        };

        wire_init_status_reply(&r);
        r.daemon = DAEMON_VERSION;
        r.protocol = WIRE_VERSION;
        r.pid = (uint32_t)getpid();
        r.uptime_ms = server_now(s) - s->started_ms;
        r.socket = s->listener.path;
        r.worker = worker_state_name(s);
        r.worker_pid = s->worker.pid;
        r.worker_restarts = (uint32_t)s->count.worker_restarts;
        if (s->worker.end[0])
                r.worker_end = s->worker.end;
        r.device = s->worker.device;
        r.clients = s->n_sessions;
        count_requests(s, &r.running, &r.waiting);
        list_foreach(mo, &s->models, struct model, link)
                if (mo->state == MODEL_READY) {
                        r.models_resident++;
                        r.device_bytes += mo->device_bytes;
                }
        r.host_bytes = s->ledger.used;
        r.host_budget = s->ledger.budget;
        r.device_budget = s->device.budget;
        for (size_t i = 0; i < ELEMENTSOF(counters); i++) {
                wire_init_status_metric(&metrics[n]);
                metrics[n].name = counters[i].name;
                metrics[n++].value = (double)counters[i].value;
        }
        r.metrics = metrics;
        r.n_metrics = n;
        q = wire_encode_status_reply(&out, m->id, &r, err);
        if (q == 0)
                session_send(se, &out);
        return q;
}

/* ---- ps ---- */

static const char *phase_of(const struct request *rq) {
        if (rq->state == REQUEST_RESOLVING)
                return "loading";
        if (rq->state == REQUEST_PARKED)
                return "paused";
        if (rq->state == REQUEST_WAITING)
                return rq->model && rq->model->state != MODEL_READY ? (rq->started ? "paused" : "loading") : "queued";
        if (request_stalled(rq))
                return "paused";
        return request_n_generated(rq) ? "decode" : "prefill";
}

static double rate_of(const struct request *rq, uint64_t now) {
        uint64_t n = request_n_generated(rq);

        n -= MIN(n, rq->n_brought);
        if (n > 1 && rq->last_ms > rq->first_ms)
                return (double)(n - 1) * 1000 / (double)(rq->last_ms - rq->first_ms);
        if (n == 0 && rq->n_done > rq->n_cached && now > rq->started_ms)
                return (double)(rq->n_done - rq->n_cached) * 1000 / (double)(now - rq->started_ms);
        return 0;
}

/*
 * How long until it gets a slot: the tokens before it, at the pace of what runs.
 * 0: no idea yet.
 */
static uint64_t wait_of(const struct request *rq, uint32_t position, uint64_t now) {
        const struct model *m = rq->model;
        double rate = 0, left = 0;

        list_foreach(o, &m->running, struct request, model_link) {
                uint64_t n = request_n_generated(o);
                rate += rate_of(o, now);
                left += o->cost > n ? (double)(o->cost - n) : 0;
        }
        if (rate <= 0 || !m->n_running)
                return 0;
        return (uint64_t)(left / m->n_running * (position / m->profile.slots + 1) / (rate / m->n_running) * 1000);
}

/* A message holds so many values (a map's keys and values, a list's entries); some are the frame's and the reply's own. */
#define ROOM (WIRE_MAX_VALUES - 256)
#define PS_VALUES 31     /* of a ps_entry */
#define MODEL_VALUES 43  /* of a model_info */
#define ON_DISK_VALUES 13 /* of one that is not resident: name, where, bytes, n_parts, note, and one to spare */

int report_ps(struct session *se, struct schema_msg *m, struct frame *f, struct h_error *err) {
        struct server *s = se->server;
        uint64_t now = server_now(s);
        uint32_t max = MIN(s->n_requests, (uint32_t)(ROOM / PS_VALUES)), n = 0, more = 0;
        _cleanup_(freep) struct wire_ps_entry *e = h_new0(struct wire_ps_entry, max);
        _cleanup_(buf_free) struct buf out = {};
        struct wire_ps_reply r;
        int q;

        if (!e)
                return -ENOMEM;
        list_foreach(rq, &s->requests, struct request, link) {
                bool own = rq->user == se->user || (se->rights & (1u << ACCESS_SEE));
                struct wire_ps_entry *p = &e[n];

                if (!own)
                        continue;
                if (n == max) {
                        more++;
                        continue;
                }
                n++;
                wire_init_ps_entry(p);
                p->request = rq->id;
                p->uid = rq->user->uid;
                p->has_uid = true;
                if (rq->session) {
                        p->client = rq->session->client;
                        p->pid = rq->session->pid;
                }
                if (rq->user == se->user)
                        p->model = request_model_name(rq);
                else if (rq->model) /* the name he gave may be a path of his */
                        p->model = model_name_for(rq->model, se->user->uid);
                p->phase = phase_of(rq);
                if (rq->in_slot) {
                        p->slot = rq->slot;
                        p->has_slot = true;
                }
                if (rq->queued.client) {
                        p->position = (uint32_t)fairq_position(&rq->model->queue, &rq->queued) + 1;
                        p->wait_ms = wait_of(rq, p->position, now);
                }
                p->n_prompt = rq->n_prompt;
                p->n_cached = rq->n_cached;
                p->n_generated = (uint32_t)request_n_generated(rq);
                p->tokens_per_s = rate_of(rq, now);
                p->age_ms = now - rq->arrived_ms;
        }
        wire_init_ps_reply(&r);
        r.requests = e;
        r.n_requests = n;
        r.more = more;
        q = wire_encode_ps_reply(&out, m->id, &r, err);
        if (q == 0)
                session_send(se, &out);
        return q;
}

/* ---- models ---- */

/* The directories are read on the thread pool; the reply is made when that is done. */
struct scan {
        uv_work_t work;
        struct server *server;
        struct model_dirs *dirs;
        uint64_t session;
        uint32_t id;
        struct registry_list list;
};

static void scan_work(uv_work_t *w) {
        struct scan *sc = w->data;
        (void)registry_scan((const char *const *)sc->dirs->v, sc->dirs->n, &sc->list);
}

static struct session *session_by_id(struct server *s, uint64_t id) {
        list_foreach(se, &s->sessions, struct session, link)
                if (se->id == id && !se->closing)
                        return se;
        return NULL;
}

static void fill_resident(struct wire_model_info *p, const struct model *mo, uint64_t now, char hex[65]) {
        static const char *const where[] = { [MODEL_FILLING] = "loading", [MODEL_OPENING] = "loading", [MODEL_READY] = "memory",
                                             [MODEL_CLOSING] = "memory" };

        p->where = where[mo->state];
        p->in_use = mo->n_leases;
        p->pinned = mo->profile.pinned;
        p->slots = mo->profile.slots;
        p->is_default = mo->server->default_model && strcmp(mo->server->default_model, p->name) == 0;
        if (mo->n_leases == 0)
                p->idle_ms = now - mo->last_used_ms;
        p->n_ctx = mo->n_ctx;
        if (mo->note[0])
                p->note = mo->note;
        if (mo->placement[0])
                p->placement = mo->placement;
        p->device_bytes = mo->device_bytes;
        if (mo->state == MODEL_READY && mo->device_bytes)
                p->where = "vram";
        if (!mo->content)
                return;
        p->bytes = mo->content->bytes;
        p->type = mo->content->type;
        p->arch = mo->content->arch;
        p->n_params = mo->content->n_params;
        p->n_ctx_train = mo->content->n_ctx_train;
        p->can_embed = mo->content->can_embed;
        p->can_chat = mo->content->can_chat;
        for (size_t i = 0; i < 32; i++)
                snprintf(hex + 2 * i, 3, "%02x", mo->content->hash[i]);
        p->hash = hex;
}

/*
 * A model of the directories whose file there is not the one that was read: until a request or a load looks at it,
 * what is in memory answers, and who put a new file there should know. One passed by a client has no file here.
 */
static void note_replaced(struct wire_model_info *p, const struct model *mo, const struct registry_list *l, char note[640]) {
        uint8_t hash[32];

        if (!mo->content || !model_is_of_file(mo, p->name, UINT32_MAX))
                return;
        for (size_t i = 0; i < l->n; i++) {
                const struct registry_entry *en = &l->v[i];

                if (en->odd || strcmp(en->name, p->name) != 0)
                        continue;
                if (cache_find_hash_first(&mo->server->cache, &en->key, en->n_parts, hash) && memcmp(hash, mo->content->hash, 32) == 0)
                        return;
                snprintf(note, 640, "its file has changed since it was loaded; a load takes the new one%s%s", p->note ? "; " : "",
                         p->note ? p->note : "");
                p->note = note;
                return;
        }
}

static int by_name(const void *a, const void *b) {
        return strcmp(((const struct wire_model_info *)a)->name, ((const struct wire_model_info *)b)->name);
}

static int send_models(struct session *se, uint32_t id, const struct registry_list *l, struct h_error *err) {
        struct server *s = se->server;
        uint32_t uid = se->user->uid;
        size_t n_models = 0, max, n = 0, left = ROOM, more = l->more;
        _cleanup_(freep) struct wire_model_info *v = NULL;
        _cleanup_(freep) struct texts { char hex[65], note[640]; } *texts = NULL;
        _cleanup_(buf_free) struct buf out = {};
        struct wire_models_reply r;
        int q;

        list_foreach(mo, &s->models, struct model, link)
                n_models++;
        max = MIN(n_models + l->n, (size_t)4096);
        v = h_new0(struct wire_model_info, max);
        texts = h_calloc(n_models, sizeof(*texts));
        if (!v || !texts)
                return -ENOMEM;
        n_models = 0;
        list_foreach(mo, &s->models, struct model, link) {
                const char *name = model_name_for(mo, uid);
                if (!name)
                        continue;
                if (n == max || left < MODEL_VALUES) {
                        more++;
                        continue;
                }
                left -= MODEL_VALUES;
                wire_init_model_info(&v[n]);
                v[n].name = name;
                fill_resident(&v[n], mo, server_now(s), texts[n_models].hex);
                note_replaced(&v[n++], mo, l, texts[n_models++].note);
        }
        for (size_t i = 0; i < l->n; i++) {
                const struct model *mo = model_by_name(s, l->v[i].name, uid);
                const char *shown = mo ? model_name_for(mo, uid) : NULL;

                if (shown && strcmp(shown, l->v[i].name) == 0)
                        continue;
                if (n == max || left < ON_DISK_VALUES) {
                        more++;
                        continue;
                }
                left -= ON_DISK_VALUES;
                wire_init_model_info(&v[n]);
                v[n].name = l->v[i].name;
                v[n].n_parts = MIN(MAX(l->v[i].n_parts, 1u), 128u);
                v[n].where = "disk";
                v[n].bytes = l->v[i].bytes;
                v[n].note = quarantine_of(s, l->v[i].name);
                if (!v[n].note && l->v[i].fault[0])
                        v[n].note = l->v[i].fault;
                if (v[n].note)
                        v[n].where = "failed";
                if (mo) /* a second name of a resident one */
                        v[n].where = "memory";
                n++;
        }
        if (n)
                qsort(v, n, sizeof(*v), by_name);
        wire_init_models_reply(&r);
        r.models = v;
        r.n_models = n;
        r.dirs = (const char **)s->config.dirs->v;
        r.n_dirs = s->config.dirs->n;
        r.more = (uint32_t)more;
        q = wire_encode_models_reply(&out, id, &r, err);
        if (q == 0)
                session_send(se, &out);
        return q;
}

static void scan_after(uv_work_t *w, int status) {
        struct scan *sc = w->data;
        struct session *se = session_by_id(sc->server, sc->session);
        struct h_error err = {};
        int r;

        if (se) {
                r = send_models(se, sc->id, &sc->list, &err);
                if (r < 0) {
                        h_error_from_errno(&err, r, "listing the models");
                        session_fail(se, sc->id, &err);
                }
        }
        registry_list_free(&sc->list);
        model_dirs_unref(sc->dirs);
        free(sc);
}

int report_models(struct session *se, struct schema_msg *m, struct frame *f, struct h_error *err) {
        struct scan *sc = h_new0(struct scan, 1);
        int r;

        if (!sc)
                return -ENOMEM;
        sc->work.data = sc;
        sc->server = se->server;
        sc->dirs = se->server->config.dirs;
        sc->dirs->refs++;
        sc->session = se->id;
        sc->id = m->id;
        r = uv_queue_work(&se->server->loop, &sc->work, scan_work, scan_after);
        if (r < 0) {
                model_dirs_unref(sc->dirs);
                free(sc);
                return h_error_set(err, HEARTH_E_internal, "no thread for a look-up: %s", uv_strerror(r));
        }
        return 0;
}
