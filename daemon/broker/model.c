/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names, requests and slots of a model. How it becomes resident and leaves is
 * in model_load.c.
 */
#include "daemon/broker/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "daemon/broker/model_internal.h"
#include "daemon/broker/request.h"
#include "daemon/broker/suspect.h"
#include "daemon/broker/worker.h"

/* More waiting than this are not told their place each time it changes. */
#define TELL_POSITIONS 64u

/* ---- names ---- */

struct model *model_by_key(struct server *s, uint32_t key) {
        list_foreach(m, &s->models, struct model, link)
                if (m->key == key)
                        return m;
        return NULL;
}

static struct model_name *find_name(const struct model *m, const char *text, bool everybody, uint32_t uid) {
        list_foreach(n, &m->names, struct model_name, link)
                if (strcmp(n->text, text) == 0 && n->everybody == everybody && (everybody || n->uid == uid))
                        return n;
        return NULL;
}

/*
 * A user's own name for a file he passed goes before everybody's; of two models
 * with the name (one is about to replace the other) the one that can serve.
 */
struct model *model_by_name(struct server *s, const char *name, uint32_t uid) {
        struct model *found = NULL;
        int best = 0;

        list_foreach(m, &s->models, struct model, link) {
                int rank = find_name(m, name, false, uid) ? 4 : find_name(m, name, true, 0) ? 2 : 0;

                if (rank && m->state == MODEL_READY)
                        rank++;
                if (rank > best) {
                        best = rank;
                        found = m;
                }
        }
        return found;
}

bool model_is_of_file(const struct model *m, const char *name, uint32_t uid) {
        return m->state == MODEL_READY && !m->dead && find_name(m, name, true, 0) && !find_name(m, name, false, uid);
}

const char *model_name_for(const struct model *m, uint32_t uid) {
        const char *own = NULL;

        list_foreach(n, &m->names, struct model_name, link) {
                if (n->everybody)
                        return n->text;
                if (n->uid == uid)
                        own = n->text;
        }
        return own;
}

bool model_is_only(const struct model *m, uint32_t uid) {
        bool any = false;

        list_foreach(n, &m->names, struct model_name, link) {
                if (n->everybody || n->uid != uid)
                        return false;
                any = true;
        }
        return any;
}

void model_drop_names(struct model *m) {
        list_foreach(n, &m->names, struct model_name, link) {
                list_remove(&n->link);
                free(n);
        }
}

static const struct model_name *shared_name(const struct model *m) {
        list_foreach(n, &m->names, struct model_name, link)
                if (n->everybody)
                        return n;
        return NULL;
}

void model_log(const struct model *m, enum log_level level, const char *code, const char *fmt, ...) {
        char text[900], fields[2][300];
        const char *list[] = { fields[0], fields[1] };
        va_list ap;

        va_start(ap, fmt);
        vsnprintf(text, sizeof(text), fmt, ap);
        va_end(ap);
        snprintf(fields[0], sizeof(fields[0]), "HEARTH_MODEL=%s", m->label);
        snprintf(fields[1], sizeof(fields[1]), "HEARTH_CODE=%s", code ? code : "");
        log_event(&m->server->log, level, list, code ? 2 : 1, "model %s%s", m->label, text);
}

bool model_may_join(const struct model *m, bool everybody, uint32_t uid) {
        return shared_name(m) || (!everybody && model_is_only(m, uid));
}

const char *model_holder(const struct model *m, char buf[64]) {
        const struct model_name *n = shared_name(m);

        if (n)
                return n->text;
        n = list_empty(&m->names) ? NULL : list_first(&m->names, struct model_name, link);
        if (n && model_is_only(m, n->uid))
                snprintf(buf, 64, "a file of uid %u", n->uid);
        else
                snprintf(buf, 64, "a file of several users");
        return buf;
}

/* Messages to all of its users carry the label: a path that one of them gave is his alone. */
static void relabel(struct model *m) {
        const struct model_name *n = shared_name(m), *first = list_first(&m->names, struct model_name, link);

        if (n)
                snprintf(m->label, sizeof(m->label), "%s", n->text);
        else if (!model_is_only(m, first->uid))
                snprintf(m->label, sizeof(m->label), "a file of several users");
}

int model_add_name(struct model *m, const char *text, bool everybody, uint32_t uid) {
        struct model_name *n;
        size_t len = strlen(text);

        if (find_name(m, text, everybody, uid))
                return 0;
        n = h_malloc(sizeof(*n) + len + 1);
        if (!n)
                return -ENOMEM;
        n->everybody = everybody;
        n->uid = uid;
        memcpy(n->text, text, len + 1);
        list_append(&m->names, &n->link);
        relabel(m);
        return 0;
}

/*
 * A name means one model. It moves only now, when the new one can serve: a load
 * that fails takes nothing away. The old one ends when nobody uses it any more.
 */
void model_claim_names(struct model *m) {
        list_foreach(o, &m->server->models, struct model, link) {
                bool lost = false;

                if (o == m || o->dead)
                        continue;
                list_foreach(n, &m->names, struct model_name, link) {
                        struct model_name *old = find_name(o, n->text, n->everybody, n->uid);
                        if (old) {
                                list_remove(&old->link);
                                free(old);
                                lost = true;
                        }
                }
                if (lost && list_empty(&o->names) && o->n_leases == 0)
                        model_close(o);
        }
}

/* ---- requests ---- */

static void end_load(struct model *m, struct request *rq) {
        _cleanup_(buf_free) struct buf b = {};
        struct wire_load_reply msg;
        const char *name = request_model_name(rq);

        wire_init_load_reply(&msg);
        msg.model = name ? name : m->label;
        msg.n_ctx = m->n_ctx;
        msg.slots = m->profile.slots;
        msg.bytes = m->content->bytes;
        msg.load_us = rq->load_waited ? (server_now(m->server) - rq->arrived_ms) * 1000 : 0;
        msg.cached = !rq->model_read;
        msg.placement = m->placement[0] ? m->placement : NULL;
        msg.n_layers = m->n_layers;
        msg.gpu_layers = m->gpu_layers;
        msg.device_bytes = m->device_bytes;
        msg.host_weights = m->host_weights;
        if (wire_encode_load_reply(&b, rq->client_id, &msg, NULL) < 0)
                buf_clear(&b);
        request_end(rq, &b);
}

/* False: the worker is gone; the request waits for the next one. */
static bool run(struct model *m, struct request *rq, uint32_t slot) {
        struct h_error err = {};
        int r;

        list_append(&m->running, &rq->model_link);
        if (request_needs_slot(rq)) {
                m->slots[slot] = 1;
                m->n_running++;
                rq->user->n_slots++;
                rq->in_slot = true;
                rq->slot = slot;
                list_foreach(o, &m->running, struct request, model_link)
                        o->company = MAX(o->company, m->n_running - 1);
        }
        if (m->n_running == 1)
                worker_touch(m->server);
        r = request_run(rq, slot, &err);
        if (r == -EPIPE && model_requeue(m, rq) == 0)
                return false;
        if (r < 0) {
                h_error_from_errno(&err, r, "starting a request");
                request_end_error(rq, &err);
        }
        return true;
}

static bool may(void *ud, uint64_t uid) {
        struct model *m = ud;

        list_foreach(u, &m->server->users.all, struct user, link)
                if (u->uid == uid)
                        return user_may_take_slot(&m->server->users, u);
        return true;
}

static bool free_slot(const struct model *m, uint32_t *ret) {
        for (uint32_t i = 0; i < m->profile.slots; i++)
                if (!m->slots[i]) {
                        *ret = i;
                        return true;
                }
        return false;
}

static void tell_positions(struct model *m) {
        if (m->queue.n == 0 || m->queue.n > TELL_POSITIONS)
                return;
        list_foreach(rq, &m->server->requests, struct request, link)
                if (rq->model == m && rq->queued.client)
                        request_tell_position(rq, (uint32_t)fairq_position(&m->queue, &rq->queued) + 1);
}

/*
 * While somebody is suspected of having ended the worker nothing else is given
 * to it, and to him only when it has nothing. True: no such case.
 */
static bool dispatch_suspect(struct model *m) {
        struct request *rq = m->server->n_suspects ? suspect_first(m->server) : NULL;

        if (!rq)
                return true;
        m->again = false;
        if (rq->model != m || rq->state != REQUEST_WAITING)
                return false;
        if (!suspect_alone(rq))
                return false;
        fairq_remove(&m->queue, &rq->queued);
        list_remove(&rq->model_link);
        (void)run(m, rq, 0);
        return false;
}

void model_dispatch(struct model *m) {
        /* Running one may end it, which comes back here: one loop, not a recursion. */
        m->again = true;
        if (m->dispatching)
                return;
        m->dispatching = true;
        while (m->again && m->state == MODEL_READY && worker_ready(m->server) && dispatch_suspect(m)) {
                struct fairq_item *it;
                uint32_t slot;

                m->again = false;
                while (m->state == MODEL_READY && !list_empty(&m->pending)) {
                        struct request *rq = list_first(&m->pending, struct request, model_link);
                        list_remove(&rq->model_link);
                        if (rq->type == WIRE_load)
                                end_load(m, rq);
                        else if (!run(m, rq, 0))
                                goto out;
                }
                while (m->state == MODEL_READY && free_slot(m, &slot) && (it = fairq_pop(&m->queue, may, m)))
                        if (!run(m, CONTAINER_OF(it, struct request, queued), slot))
                                goto out;
                tell_positions(m);
        }
out:
        m->dispatching = false;
}

int model_attach(struct model *m, struct request *rq, struct h_error *err) {
        int r = rq->pin ? model_pin(m, rq->user, err) : 0;

        if (r < 0)
                return r;
        if (rq->type == WIRE_unload) {
                rq->model = m;
                rq->state = REQUEST_WAITING;
                list_append(&m->unloads, &rq->model_link);
                model_unload(m);
                return 0;
        }
        if (request_needs_slot(rq)) {
                if (fairq_push(&m->queue, rq->user->uid, rq->session_id, &rq->queued, rq->cost, false) < 0)
                        return -ENOMEM;
        } else
                list_append(&m->pending, &rq->model_link);
        rq->model = m;
        rq->state = REQUEST_WAITING;
        m->n_leases++;
        m->last_used_ms = server_now(m->server);
        rq->load_waited |= m->state != MODEL_READY;
        if (rq->load_waited && m->fill)
                request_progress(rq, rq->name ? rq->name : m->label, m->done, m->total);
        model_dispatch(m);
        return 0;
}

static void leave_slot(struct model *m, struct request *rq) {
        if (!rq->in_slot)
                return;
        m->slots[rq->slot] = 0;
        m->n_running--;
        rq->user->n_slots--;
        rq->in_slot = false;
}

void model_detach(struct model *m, struct request *rq) {
        fairq_remove(&m->queue, &rq->queued);
        list_remove(&rq->model_link);
        leave_slot(m, rq);
        rq->model = NULL;
        if (rq->type != WIRE_unload)
                m->n_leases--;
        m->last_used_ms = server_now(m->server);
}

void model_left(struct model *m) {
        if (m->state == MODEL_CLOSING)
                return;
        if (m->n_leases == 0 && list_empty(&m->names))
                model_close(m);
        else
                model_dispatch(m);
        /* A user's slots may be limited over all models. */
        if (m->server->config.max_slots_per_uid)
                list_foreach(o, &m->server->models, struct model, link)
                        if (o != m)
                                model_dispatch(o);
}

void model_park(struct model *m, struct request *rq) {
        list_remove(&rq->model_link);
        leave_slot(m, rq);
        list_append(&m->parked, &rq->model_link);
}

int model_unpark(struct model *m, struct request *rq) {
        list_remove(&rq->model_link);
        rq->state = REQUEST_WAITING;
        return fairq_push(&m->queue, rq->user->uid, rq->session_id, &rq->queued, rq->cost, false);
}

int model_requeue(struct model *m, struct request *rq) {
        list_remove(&rq->model_link);
        leave_slot(m, rq);
        rq->state = REQUEST_WAITING;
        if (!request_needs_slot(rq)) {
                list_prepend(&m->pending, &rq->model_link);
                return 0;
        }
        return fairq_push(&m->queue, rq->user->uid, rq->session_id, &rq->queued, rq->cost, true);
}
