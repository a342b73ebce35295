/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step in two halves. begin: checks every item (step_check.c), then takes
 * pages, builds the batch (rows of generated and draft tokens first, then
 * prompts) and runs the forward pass, on a device that works beside the host only
 * as far as queueing it; sequences are then as after the step. finish: waits, and
 * hands out results. Nothing is changed until all checks passed; nothing is
 * allocated.
 *
 * A step whose logits or hidden states the host reads has its own copy of them
 * only until the next one: it is exclusive, and has run when begin returns.
 *
 * What a step in flight still writes is safe from whatever is trimmed, freed or
 * begun meanwhile: the device does everything in the order of the calls.
 */
#include <string.h>

#include "engine/context.h"
#include "engine/sample.h"

static bool is_d(const struct eng_item *it) {
        return it->role != ENG_ROLE_PROMPT;
}

#define refuse(err, e, code, needed, available, ...) \
        (h_error_counts(err, HEARTH_E_##code, needed, available, __VA_ARGS__), (e))

/* ---- the batch --------------------------------------------------------------- */

static struct flight *flight_at(struct eng_context *c, uint32_t i) {
        return &c->flight[(c->first_flight + i) % MAX_FLIGHT];
}

/* What the step before sampled for a sequence. A token that can't be fed makes a result that means nothing. */
static uint32_t sampled_token(struct eng_context *c, eng_seq s) {
        struct flight_item *from = step_source(c, s);
        struct flight *f = flight_at(c, c->n_flight - 1);
        uint32_t token;

        if (c->async)
                return K_TOKEN_SAMPLED;
        token = f->result[from - f->item].token;
        return token < c->m->desc->n_vocab ? token : 0;
}

/* Rows of one item, from row0 on. */
static int add_rows(struct eng_context *c, struct step *st, const struct eng_item *it, uint32_t i) {
        struct sequence *q = &c->seq[it->seq.index];
        uint32_t row0 = st->b.n, n_out = step_outputs(it);
        int r;

        r = kv_extend(&c->kv, it->seq.index, q->len, it->n);
        if (r < 0)
                return r;
        for (uint32_t g = 0; g < c->kv.n_group; g++)
                kv_step_row(&c->kv, g, i, it->seq.index, q->len + it->n);
        for (uint32_t k = 0; k < it->n; k++) {
                c->a.token[row0 + k] = it->tokens ? it->tokens[k] : sampled_token(c, it->seq);
                c->a.pos[row0 + k] = (int32_t)(q->len + k);
                c->a.seq[row0 + k] = i;
        }
        if (c->async)
                c->beside.place[i] = it->seq.index;
        seq_state_begin(c, it->seq.index, i, row0, it->n, it->role);
        c->a.row0[i] = row0;
        c->a.out0[i] = st->io.n_out;
        for (uint32_t k = it->n - n_out; k < it->n; k++)
                c->a.out_rows[st->io.n_out++] = row0 + k;
        st->b.n += it->n;
        if (is_d(it)) {
                st->b.n_d += it->n;
                st->io.n_out_d += n_out;
        }
        return 0;
}

void step_empty(struct eng_context *c, struct step *st, uint32_t n_seq) {
        *st = (struct step){ 0 };
        st->b = (struct k_batch){
                .n_seq = n_seq, .token = c->a.token, .pos = c->a.pos, .seq = c->a.seq,
                .state_in = c->a.state_in, .state_out = c->a.state_out, .state_zero = c->a.state_zero,
                .n_group = c->kv.n_group, .table = c->a.table, .table_stride = c->a.table_stride,
        };
        if (c->async) {
                st->b.place = c->beside.place;
                st->b.sampled = c->beside.sampled;
                st->b.history = c->beside.history;
                st->b.history_stride = c->l.n_ctx;
        }
        st->io = (struct eng_forward_io){
                .batch = &st->b, .kv = c->kv.layer, .state = c->state, .out_rows = c->a.out_rows, .logits = c->logits,
        };
        if (c->hidden && c->m->desc->pooling != ENG_POOL_NONE)
                st->io.hidden = c->hidden;
}

static int build(struct eng_context *c, struct step *st, const struct eng_item *items, size_t n) {
        step_empty(c, st, (uint32_t)n);
        for (int d = 1; d >= 0; d--)
                for (size_t i = 0; i < n; i++)
                        if (is_d(&items[i]) == (bool)d) {
                                int r = add_rows(c, st, &items[i], (uint32_t)i);
                                if (r < 0)
                                        return r;
                        }
        return 0;
}

/* ---- results ----------------------------------------------------------------- */

static void mean_rows(struct sequence *q, const float *rows, uint32_t n, uint32_t n_embd) {
        for (uint32_t k = 0; k < n; k++)
                for (uint32_t j = 0; j < n_embd; j++)
                        q->pool[j] += (double)rows[(size_t)k * n_embd + j];
        q->pool_len += n;
}

/* The pooled vector after the item's rows; for CLS the item is the sequence's start (checked). */
static const float *pool(struct eng_context *c, const struct flight_item *it, uint32_t i) {
        const struct eng_desc *d = c->m->desc;
        struct sequence *q = &c->seq[it->seq.index];
        const float *rows = c->hidden_host + (size_t)it->row0 * d->n_embd;
        float *out = c->pooled + (size_t)i * d->n_embd;

        switch (d->pooling) {
        case ENG_POOL_MEAN:
                for (uint32_t j = 0; j < d->n_embd; j++)
                        out[j] = (float)(q->pool[j] / q->pool_len);
                return out;
        case ENG_POOL_CLS:
                memcpy(out, rows, d->n_embd * sizeof(float));
                return out;
        case ENG_POOL_LAST:
                memcpy(out, rows + (size_t)(it->n - 1) * d->n_embd, d->n_embd * sizeof(float));
                return out;
        case ENG_POOL_NONE:
                break;
        }
        return NULL;
}

/* The sequence is as after the step, though its rows may still be on their way. */
static void commit_item(struct eng_context *c, const struct eng_item *it, struct flight_item *fi) {
        struct sequence *q = &c->seq[it->seq.index];
        struct flight_item *from = it->tokens ? NULL : step_source(c, it->seq);

        seq_state_commit(c, it->seq.index, it->n, it->role);
        if (from) {
                from->fed = true;
                q->pending = true;
                q->tokens[q->len] = c->a.token[fi->row0];
        } else {
                memcpy(q->tokens + q->len, it->tokens, it->n * sizeof(*q->tokens));
        }
        q->len += it->n;
        kv_release_behind(&c->kv, it->seq.index, q->len);
        fi->len = q->len;
}

static void fill_result(struct eng_context *c, struct flight *f, uint32_t i) {
        const struct flight_item *it = &f->item[i];
        struct eng_result *ret = &f->result[i];
        uint32_t n_vocab = c->m->desc->n_vocab;
        const float *logits = c->logits_host + (size_t)it->out0 * n_vocab;
        const struct sequence *q = &c->seq[it->seq.index];

        ret->token = ENG_NO_TOKEN;
        ret->logprob = 0;
        ret->n_top = 0;
        ret->logits = NULL;
        ret->n_logits = 0;
        ret->embedding = NULL;
        if (it->want & (ENG_WANT_LOGITS_ALL | ENG_WANT_LOGITS_LAST)) {
                ret->logits = logits;
                ret->n_logits = it->n_out;
        }
        if (it->on_device)
                sample_result(c, &f->out[it->out], ret);
        else if (it->want & ENG_WANT_SAMPLE)
                sample_with(c->sampler, logits + (size_t)(it->n_out - 1) * n_vocab, n_vocab, &it->sampling, q->tokens, it->len,
                            it->len, ret);
        if (it->want & ENG_WANT_EMBEDDING)
                ret->embedding = pool(c, it, i);
}

/* Copies what the host reads of an exclusive step, and waits for it. */
static int fetch(struct eng_context *c, const struct step *st, const struct flight *f) {
        const struct k_ops *ops = c->dev->ops;
        size_t n_vocab = c->m->desc->n_vocab, row = c->m->desc->n_embd * sizeof(float);
        int r = 0;

        for (uint32_t i = 0; r >= 0 && c->logits_host != c->logits && i < f->n; i++) {
                const struct flight_item *it = &f->item[i];
                if (it->n_out && (!it->on_device || it->want & (ENG_WANT_LOGITS_ALL | ENG_WANT_LOGITS_LAST)))
                        r = ops->download(c->dev, c->logits_host + it->out0 * n_vocab, c->logits + it->out0 * n_vocab,
                                          it->n_out * n_vocab * sizeof(float));
        }
        if (r >= 0 && st->io.hidden && c->hidden_host != c->hidden)
                r = ops->download(c->dev, c->hidden_host, c->hidden, st->b.n * row);
        return r < 0 ? r : ops->sync(c->dev);
}

static int lost(struct eng_context *c, int r, struct h_error *err) {
        const char *why = c->dev->ops->last_error ? c->dev->ops->last_error(c->dev) : NULL;

        c->lost = true;
        h_error_set(err, HEARTH_E_device_lost, "the device failed (%s)%s%s", strerror(-r), why && *why ? ": " : "",
                    why ? why : "");
        return -EIO;
}

/* What finish needs to know of each item. */
static void note(struct eng_context *c, struct step *st, struct flight *f, const struct eng_item *items, size_t n) {
        f->n = (uint32_t)n;
        f->done = false;
        f->exclusive = st->io.hidden != NULL;
        f->stamp = c->stamp;
        for (size_t i = 0; i < n; i++) {
                const struct eng_item *it = &items[i];
                struct flight_item *fi = &f->item[i];
                bool sample = it->want & ENG_WANT_SAMPLE;

                *fi = (struct flight_item){ .seq = it->seq, .n = it->n, .role = it->role, .want = it->want, .row0 = c->a.row0[i],
                                            .out0 = c->a.out0[i], .n_out = step_outputs(it),
                                            .len = c->seq[it->seq.index].len + it->n };
                if (sample) {
                        fi->sampling = *it->sampling;
                        fi->on_device = sample_on_device(c, it->sampling);
                }
                if (fi->on_device) {
                        fi->out = st->n_sample++;
                        sample_row(c, it->sampling, it->seq.index, fi->out0 + fi->n_out - 1, fi->len, f->stamp, &f->out[fi->out],
                                   &c->beside.rows[fi->out]);
                }
                f->exclusive |= (it->want & (ENG_WANT_LOGITS_ALL | ENG_WANT_LOGITS_LAST | ENG_WANT_EMBEDDING)) ||
                                (c->async && sample && !fi->on_device);
        }
}

/* The graph that does all of a step, if it is a plain one: each sequence one generated token, sampled on the device. */
static void *graph_for(const struct eng_context *c, const struct step *st, const struct flight *f) {
        int32_t last = 0;

        if (f->exclusive || st->b.n_d != st->b.n || st->b.n != f->n || st->n_sample != f->n)
                return NULL;
        for (uint32_t i = 0; i < st->b.n; i++)
                last = MAX(last, c->a.pos[i]);
        return beside_graph(c, st->b.n, (uint32_t)last);
}

static int run_ops(struct eng_context *c, struct step *st, struct flight *f) {
        const struct k_ops *ops = c->dev->ops;
        void *graph = c->async ? graph_for(c, st, f) : NULL;
        int r;

        f->n_sample = st->n_sample;
        f->prompt = st->b.n_d < st->b.n;
        if (c->async)
                f->begun_ns = beside_now();
        if (graph) {
                r = ops->graph_run(c->dev, graph, &st->b, c->beside.rows);
        } else {
                r = ops->batch_begin(c->dev, &st->b);
                if (r >= 0)
                        r = eng_forward_run(c->forward, &st->io);
                if (r >= 0 && st->n_sample)
                        r = ops->sample(c->dev, &st->b, &(struct k_sample_args){
                                .logits = c->logits, .n_vocab = c->m->desc->n_vocab, .rows = c->beside.rows, .n = st->n_sample,
                                .scratch = c->beside.scratch });
                if (r >= 0)
                        r = ops->batch_end(c->dev, &st->b);
        }
        if (r >= 0 && (f->exclusive || !c->async))
                return fetch(c, st, f);
        return r < 0 || (f->n_sample && !f->prompt) ? r : ops->event_record(c->dev, f->event);
}

static int run(struct eng_context *c, struct step *st, struct flight *f) {
        int r;

        __atomic_fetch_add(&c->dev->stepping, 1, __ATOMIC_RELAXED);
        r = run_ops(c, st, f);
        __atomic_fetch_sub(&c->dev->stepping, 1, __ATOMIC_RELAXED);
        return r;
}

/* The sequences are as after the step from here on. */
static void commit(struct eng_context *c, struct flight *f, const struct eng_item *items) {
        uint32_t n_embd = c->m->desc->n_embd;

        for (uint32_t i = 0; i < f->n; i++) {
                struct sequence *q = &c->seq[items[i].seq.index];
                if (q->pool && q->pool_len == q->len)
                        mean_rows(q, c->hidden_host + (size_t)f->item[i].row0 * n_embd, items[i].n, n_embd);
                commit_item(c, &items[i], &f->item[i]);
        }
        if (f->exclusive || !c->async) {
                for (uint32_t i = 0; i < f->n; i++)
                        fill_result(c, f, i);
                f->done = true;
        }
        c->n_flight++;
}

int eng_step_begin(struct eng_context *c, const struct eng_item *items, size_t n, struct h_error *err) {
        struct flight *f = flight_at(c, c->n_flight);
        struct step st;
        uint32_t rows;
        int r;

        if (c->lost)
                return refuse(err, -EIO, device_lost, 0, 0, "the device failed earlier");
        if (c->n_flight == MAX_FLIGHT || (c->n_flight && flight_at(c, c->n_flight - 1)->exclusive))
                return ENG_WAIT;
        r = step_check(c, items, n, &rows, err);
        if (r != 0)
                return r;
        r = build(c, &st, items, n);
        if (r >= 0) {
                note(c, &st, f, items, n);
                r = run(c, &st, f);
        }
        if (r < 0)
                return lost(c, r, err);
        commit(c, f, items);
        return 0;
}

int eng_step_finish(struct eng_context *c, struct eng_result *ret, size_t *ret_n, struct h_error *err) {
        struct flight *f = flight_at(c, 0);
        int r;

        if (c->lost)
                return refuse(err, -EIO, device_lost, 0, 0, "the device failed earlier");
        if (c->n_flight == 0)
                return refuse(err, -EINVAL, bad_request, 0, 0, "no step is in flight");
        if (!f->done) {
                r = beside_wait(c, f);
                if (r < 0)
                        return lost(c, r, err);
                for (uint32_t i = 0; i < f->n; i++)
                        fill_result(c, f, i);
        }
        for (uint32_t i = 0; i < f->n; i++) {
                struct sequence *q = context_seq(c, f->item[i].seq);

                ret[i] = f->result[i];
                /* The next step was fed this token; its sequence may have been taken back or freed since. */
                if (f->item[i].fed && q && q->pending && q->len == f->item[i].len + 1) {
                        q->tokens[q->len - 1] = ret[i].token;
                        q->pending = false;
                }
        }
        if (ret_n)
                *ret_n = f->n;
        c->first_flight = (c->first_flight + 1) % MAX_FLIGHT;
        c->n_flight--;
        return 0;
}

int eng_step(struct eng_context *c, const struct eng_item *items, size_t n, struct eng_result *ret,
             struct h_error *err) {
        int r;

        if (c->n_flight)
                return refuse(err, -EBUSY, busy, c->n_flight, 0, "%u steps are in flight: they must be finished first",
                              c->n_flight);
        r = eng_step_begin(c, items, n, err);
        return r ? r : eng_step_finish(c, ret, NULL, err);
}

bool eng_context_ahead(const struct eng_context *c) {
        return c->async && c->l.ahead;
}
