/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/resolve.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "daemon/broker/registry.h"
#include "daemon/broker/request.h"

struct resolve {
        uv_work_t work;
        struct server *server;
        struct request *request; /* NULL: nobody waits */
        struct model_dirs *dirs;
        char *name;
        int fds[MODEL_MAX_PARTS];
        size_t n_fds;
        bool by_fd, any_profile, resident;
        struct user *payer;      /* of fds, until the source has them; NULL: not charged */
        uint32_t n_paid;
        struct model_profile profile;

        /* by the thread pool */
        int r;
        struct source *source;
        struct names nearest;
        struct h_error err;
};

static void resolve_free(struct resolve *rs) {
        if (rs->payer) {
                user_return_files(rs->payer, rs->n_paid);
                user_unref(rs->payer);
        }
        for (size_t i = 0; i < rs->n_fds; i++)
                fd_close(rs->fds[i]);
        source_free(rs->source);
        names_free(&rs->nearest);
        model_dirs_unref(rs->dirs);
        free(rs->name);
        free(rs);
}

void resolve_forget(struct resolve *r) {
        r->request = NULL;
}

void resolve_resident(struct resolve *r) {
        r->resident = true;
}

/* On the thread pool: nothing here but the job. */
static void work(uv_work_t *w) {
        struct resolve *rs = w->data;
        size_t n = rs->n_fds;

        if (n) {
                rs->n_fds = 0;
                rs->r = source_from_fds(rs->fds, n, rs->name, &rs->source, &rs->err);
        } else
                rs->r = registry_open((const char *const *)rs->dirs->v, rs->dirs->n, rs->name, &rs->source, &rs->nearest, &rs->err);
}

/* unknown_model, with the names as a list besides the sentence. */
static void end_unknown(struct request *rq, const struct resolve *rs) {
        _cleanup_(buf_free) struct buf b = {};
        struct wire_error msg;

        wire_init_error(&msg);
        msg.code = hearth_code_name(rs->err.code);
        msg.message = rs->err.message;
        msg.nearest = (const char **)rs->nearest.v;
        msg.n_nearest = rs->nearest.n;
        if (wire_encode_error(&b, rq->client_id, &msg, NULL) < 0) {
                request_end_error(rq, &rs->err);
                return;
        }
        rq->server->count.requests_failed++;
        rq->fault = &rs->err;
        request_end(rq, &b);
}

static void after(uv_work_t *w, int status) {
        struct resolve *rs = w->data;
        struct request *rq = rs->request;
        struct server *s = rs->server;
        struct h_error err = {};
        struct model *m, *old;
        uint8_t hash[32];
        int r;

        if (!rq) {
                resolve_free(rs);
                return;
        }
        rq->resolve = NULL;
        old = rs->resident ? model_by_name(s, rs->name, rq->user->uid) : NULL;
        /* Its file is the one that was read, or is gone, or not to be read: what is in memory is good. */
        if (old && (rs->r < 0 || (old->content && cache_find_hash(&s->cache, rs->source, hash) && memcmp(hash, old->content->hash, 32) == 0))) {
                r = model_attach(old, rq, &err);
                if (r < 0) {
                        h_error_from_errno(&err, r, rs->name);
                        request_end_error(rq, &err);
                }
                resolve_free(rs);
                return;
        }
        if (rs->r < 0) {
                h_error_from_errno(&rs->err, rs->r, rs->name);
                if (rs->nearest.n)
                        end_unknown(rq, rs);
                else
                        request_end_error(rq, &rs->err);
                resolve_free(rs);
                return;
        }
        if (rs->payer) {
                rs->source->n_paid = rs->n_paid;
                rs->source->payer = ptr_steal(&rs->payer);
        }
        r = model_get(s, ptr_steal(&rs->source), rs->name, !rs->by_fd, rq->user->uid, rq->rights & (1u << ACCESS_LOAD), rq->type == WIRE_load,
                      &rs->profile, rs->any_profile, &m, &err);
        if (r == 0 && old && m != old && (!m->content || m->content != old->content))
                model_log(m, LOG_LEVEL_INFO, NULL, ": its file has changed since it was loaded; it is read again, and what is in memory "
                          "stays until its requests end");
        if (r == -EPERM && old && rq->type != WIRE_load) {
                m = old; /* who may not load uses what others loaded */
                r = 0;
        }
        if (r == -EPERM)
                r = access_check(s->config.access, rq->rights, ACCESS_LOAD, rq->user->uid, rs->name, &err);
        if (r == 0)
                r = model_attach(m, rq, &err);
        if (r < 0) {
                h_error_from_errno(&err, r, rs->name);
                request_end_error(rq, &err);
        }
        resolve_free(rs);
}

bool resolve_profile_matches(const struct model *m, const struct wire_load *load) {
        return (!load->n_ctx || load->n_ctx == m->profile.n_ctx || load->n_ctx == m->n_ctx) &&
               (!load->slots || load->slots == m->profile.slots) &&
               (!load->n_kv || strcmp(load->kv, m->profile.kv[0] ? m->profile.kv : "f16") == 0) &&
               (load->gpu_layers == UINT32_MAX || load->gpu_layers == m->profile.gpu_layers) &&
               (!load->vram_budget || load->vram_budget == m->profile.vram_budget);
}

int resolve_start(struct request *rq, const char *name, const int *fds, size_t n_fds, const struct wire_load *load,
                  struct h_error *err) {
        struct resolve *rs;
        const struct config_model *cm;
        int r;

        if (load && !rq->server->config.cuda && (load->gpu_layers != UINT32_MAX || load->vram_budget)) {
                for (size_t i = 0; i < n_fds; i++)
                        fd_close(fds[i]);
                return h_error_set(err, HEARTH_E_bad_request, "%s says what goes into device memory, but this daemon computes on the CPU; leave it out, "
                                   "or set backend = cuda in hearth.conf", load->vram_budget ? "vram_budget" : "gpu_layers");
        }
        rs = h_new0(struct resolve, 1);
        if (rs)
                rs->name = h_strdup(name[0] ? name : "(open file)");
        if (!rs || !rs->name) {
                for (size_t i = 0; i < n_fds; i++)
                        fd_close(fds[i]);
                free(rs);
                return -ENOMEM;
        }
        rs->server = rq->server;
        rs->request = rq;
        rs->dirs = rq->server->config.dirs;
        rs->dirs->refs++;
        rs->work.data = rs;
        rs->by_fd = n_fds > 0;
        memcpy(rs->fds, fds, n_fds * sizeof(*fds));
        rs->n_fds = n_fds;
        cm = config_model_of(&rq->server->config, name);
        rs->profile = (struct model_profile){ .n_ctx = cm->context, .slots = cm->slots, .pinned = cm->pinned,
                                              .idle_timeout = cm->idle_timeout, .gpu_layers = cm->gpu_layers, .rest = cm->rest };
        rs->any_profile = !load || !(load->n_ctx || load->slots || load->n_kv || load->gpu_layers != UINT32_MAX || load->vram_budget);
        if (load) {
                if (load->n_ctx)
                        rs->profile.n_ctx = load->n_ctx;
                if (load->slots)
                        rs->profile.slots = load->slots;
                if (load->n_kv)
                        snprintf(rs->profile.kv, sizeof(rs->profile.kv), "%s", load->kv);
                if (load->gpu_layers != UINT32_MAX)
                        rs->profile.gpu_layers = load->gpu_layers;
                if (load->vram_budget)
                        rs->profile.vram_budget = load->vram_budget;
        }
        if (n_fds) {
                rs->payer = rq->user;
                rs->payer->refs++;
                rs->n_paid = (uint32_t)n_fds;
                rq->n_files -= rs->n_paid;
        }
        rq->resolve = rs;
        rq->state = REQUEST_RESOLVING;
        r = uv_queue_work(&rq->server->loop, &rs->work, work, after);
        if (r < 0) {
                rq->resolve = NULL;
                resolve_free(rs);
                return h_error_set(err, HEARTH_E_internal, "no thread for a look-up: %s", uv_strerror(r));
        }
        return 0;
}
