/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/alloc.h"
#include "daemon/worker/reply.h"
#include "daemon/worker/worker.h"
#include "ipc/worker.h"

#define MODEL_BIT 0x80000000u
#define DEFAULT_CTX 4096u
#define PROGRESS_US 40000u

/* Releases what was built so far of the device's, in the order of dependence. */
static void leave_device(struct wmodel *m) {
        free(m->results);
        for (size_t i = 0; i < ELEMENTSOF(m->begun); i++) {
                free(m->begun[i].items);
                free(m->begun[i].in_step);
                m->begun[i] = (struct begun){};
        }
        m->vocab = grammar_vocab_free(m->vocab);
        if (m->context || m->model)
                device_take(m->worker, true);
        m->context = eng_context_free(m->context);
        if (m->model) {
                m->model = eng_model_close(m->model);
                device_give(m->worker);
        }
        m->fd = fd_close(m->fd);
        m->results = NULL;
}

/* True: nothing is left of it here. */
static bool park(struct wmodel *m) {
        if (m->image && atomic_load(&m->keep))
                park_keep(m->worker, ptr_steal(&m->image));
        return !m->image;
}

static void teardown(struct wmodel *m) {
        leave_device(m);
        if (!park(m))
                m->image = eng_image_close(m->image);
}

/* More places than slots: ended requests leave their prefixes, and a slot is never without a place. */
static uint32_t n_kept(uint32_t slots) {
        return MAX(2u, slots / 2);
}

static int limits(const struct wmodel *m, struct eng_limits *l, struct h_error *err) {
        *l = (struct eng_limits){ .n_places = m->slots, .n_prefix = n_kept(m->slots), .n_ctx = m->want_ctx, .kv = m->kv, .ahead = true };
        if (!l->n_ctx)
                l->n_ctx = m->info.n_ctx_train ? MIN(m->info.n_ctx_train, DEFAULT_CTX) : DEFAULT_CTX;
        if (m->info.n_ctx_train && l->n_ctx > m->info.n_ctx_train)
                return h_error_counts(err, HEARTH_E_bad_request, l->n_ctx, m->info.n_ctx_train,
                                      "a context of %u positions was asked for, the model allows %u", l->n_ctx,
                                      m->info.n_ctx_train);
        return 0;
}

/* Steps that cost more of the processor than they might: once for each reason. */
static void say_launches(struct wmodel *m) {
        struct worker *w = m->worker;
        const char *why;

        (void)eng_device_launches(w->device, &why);
        if (*why && strcmp(why, w->launches_why) != 0) {
                snprintf(w->launches_why, sizeof(w->launches_why), "%s", why);
                log_info(&w->log, "each step is launched by the host: %s", why);
        }
}

static int open_context(struct wmodel *m, uint64_t *ret_bytes, struct h_error *err) {
        struct eng_limits l;
        struct eng_memory mem;
        int r = limits(m, &l, err);

        if (r < 0)
                return r;
        r = eng_plan(m->model, &l, m->available, &mem, err);
        if (r < 0)
                return r;
        device_take(m->worker, true); /* its scratch may be exchanged for a larger one */
        r = eng_context_new(m->model, &l, &m->context, err);
        device_give(m->worker);
        /* One at a time, and not urgently: other models' steps go on between them. */
        while (r >= 0) {
                device_take(m->worker, false);
                r = eng_context_warm(m->context, err);
                device_give(m->worker);
                atomic_fetch_add(&m->worker->steps, 1); /* a load that gets on */
                if (r == 0)
                        break;
                atomic_fetch_add(&m->worker->steps, 1);
                nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL); /* else the engine's thread would never get it */
        }
        if (r < 0)
                return r;
        m->n_ctx = eng_context_limits(m->context)->n_ctx;
        m->n_rows = eng_context_limits(m->context)->n_rows;
        m->max_kept = n_kept(m->slots);
        eng_context_memory(m->context, &mem);
        *ret_bytes = mem.total - mem.weights;
        m->results = h_new0(struct eng_result, m->slots);
        for (size_t i = 0; i < ELEMENTSOF(m->begun); i++) {
                m->begun[i].items = h_new0(struct eng_item, m->slots);
                m->begun[i].in_step = h_new0(struct task *, m->slots);
                if (!m->results || !m->begun[i].items || !m->begun[i].in_step)
                        return -ENOMEM;
        }
        return 0;
}

/* On its way to the device. */
static void on_upload(void *ud, uint64_t done, uint64_t total) {
        struct wmodel *m = ud;
        _cleanup_(buf_free) struct buf b = {};
        struct wk_open_progress msg;
        uint64_t now = now_us();

        atomic_fetch_add(&m->worker->steps, 1); /* a stuck load must be told from a long one */
        if (done < total && now - m->progress_us < PROGRESS_US)
                return;
        m->progress_us = now;
        wk_init_open_progress(&msg);
        msg.model = m->key;
        msg.done = done;
        msg.total = total;
        if (wk_encode_open_progress(&b, 0, &msg, NULL) == 0)
                outbox_push(&m->worker->out, &b);
}

static int open_all(struct wmodel *m, uint64_t *ret_bytes, struct h_error *err) {
        struct eng_limits l;
        struct eng_load load = { .limits = &l, .gpu_layers = m->gpu_layers > INT32_MAX ? -1 : (int32_t)m->gpu_layers,
                                 .vram_budget = m->vram_budget, .rest = m->rest, .progress = on_upload, .ud = m };
        const char *src;
        size_t n;
        int r = 0;

        m->image = park_take(m->worker, m->fd);
        if (!m->image)
                r = eng_image_open(m->fd, true, &m->image, err);
        m->fd = fd_close(m->fd); /* the mapping keeps it */
        if (r < 0)
                return r;
        eng_image_info(m->image, &m->info);
        r = limits(m, &l, err);
        if (r >= 0)
                r = eng_model_load(m->worker->device, m->image, m->worker->on_gpu ? &load : NULL, &m->model, err);
        if (r < 0)
                return r;
        m->info = *eng_model_info(m->model);
        m->tok = eng_model_tokenizer(m->model);
        m->tmpl = eng_model_template(m->model, &m->tmpl_err);
        src = eng_model_template_source(m->model, &n);
        if (src)
                m->style = toolcall_detect(src, n);
        return open_context(m, ret_bytes, err);
}

static void say_placement(const struct wmodel *m, struct wk_open_reply *msg) {
        struct eng_placement p;

        eng_model_placement(m->model, &p);
        msg->device_bytes = p.device_bytes + p.ring_bytes;
        msg->host_bytes = p.host_bytes;
        msg->n_layer = p.n_layer;
        msg->gpu_layers = p.n_device;
        msg->host_computes = p.host_computes;
        msg->tokens_per_s = p.decode_tok_s;
}

void wmodel_open(struct job *j) {
        struct wmodel *m = CONTAINER_OF(j, struct wmodel, job);
        struct worker *w = m->worker;
        _cleanup_(buf_free) struct buf b = {};
        struct wk_open_reply msg;
        struct h_error err = {};
        uint64_t bytes = 0;
        int r;

        atomic_fetch_add(&w->opening, 1);
        r = open_all(m, &bytes, &err);
        if (r < 0)
                device_check(w);
        atomic_fetch_sub(&w->opening, 1);
        atomic_fetch_add(&w->steps, 1); /* a model opened is progress */
        if (r == 0) {
                wk_init_open_reply(&msg);
                msg.n_ctx = m->n_ctx;
                msg.context_bytes = bytes;
                say_placement(m, &msg);
                if (msg.host_computes)
                        log_info(&w->log, "what lies in host memory is computed by: %s", eng_device_host(w->device));
                say_launches(m);
                msg.can_chat = m->tmpl != NULL;
                msg.can_embed = m->info.can_embed;
                if (!m->tmpl && m->tmpl_err.code != HEARTH_E_template_missing)
                        msg.note = m->tmpl_err.message;
                r = wk_encode_open_reply(&b, MODEL_BIT | m->key, &msg, &err);
        }
        if (r < 0) {
                h_error_from_errno(&err, r, "opening it");
                if (strncmp(err.message, m->name, strlen(m->name)) != 0 || err.message[strlen(m->name)] != ':')
                        h_error_prefix(&err, "%s", m->name);
                if (w->on_gpu && err.code == HEARTH_E_model_no_memory)
                        atomic_store(&m->keep, true); /* it is asked for again when others have left: pinned pages stay so */
                teardown(m);
                reply_model_error(w, m->key, &err);
                m->failed = true;
                atomic_store(&m->closing, true);
                engine_add_model(w, m);
                return;
        }
        engine_add_model(w, m);
        outbox_push(&w->out, &b);
}

static void say_closed(struct wmodel *m) {
        _cleanup_(buf_free) struct buf b = {};
        struct wk_close_reply msg;

        wk_init_close_reply(&msg);
        if (wk_encode_close_reply(&b, MODEL_BIT | m->key, &msg, NULL) == 0)
                outbox_push(&m->worker->out, &b);
        else
                outbox_fail(&m->worker->out);
}

static void close_image(struct job *j) {
        struct wmodel *m = CONTAINER_OF(j, struct wmodel, job);

        m->image = eng_image_close(m->image);
        say_closed(m);
        wmodel_unref(m);
}

/* Unpinning takes a while, with which other models' steps have nothing to do; and who pins and unpins is one thread. */
void wmodel_close(struct wmodel *m) {
        leave_device(m);
        if (park(m)) {
                if (!m->failed)
                        say_closed(m);
                return;
        }
        atomic_fetch_add(&m->refs, 1);
        m->job.run = close_image;
        list_init(&m->job.link);
        jobs_push(&m->worker->loader, &m->job);
}

struct wmodel *wmodel_unref(struct wmodel *m) {
        if (m && atomic_fetch_sub(&m->refs, 1) == 1) {
                teardown(m);
                if (m->asked)
                        atomic_fetch_sub(&m->worker->leaving, 1);
                pthread_mutex_destroy(&m->text_lock);
                free(m->name);
                free(m);
        }
        return NULL;
}

int wmodel_vocab(struct wmodel *m, const struct grammar_vocab **ret, struct h_error *err) {
        int r = 0;

        pthread_mutex_lock(&m->text_lock);
        if (!m->vocab)
                r = grammar_vocab_new(m->tok, &m->vocab, err);
        *ret = m->vocab;
        pthread_mutex_unlock(&m->text_lock);
        return r;
}
