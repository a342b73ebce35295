/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step in two halves. begin: checks every item (step_check.c), then takes
 * pages, builds the batch (rows of generated and draft tokens first, then
 * prompts) and runs the forward pass; sequences are then as after the step.
 * finish: hands out results. Nothing is changed until all checks passed; nothing
 * is allocated.
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

struct step {
        struct k_batch b;
        struct eng_forward_io io;
};

/* What the step before sampled for a sequence; it has run. A token that can't be fed makes a result that means nothing. */
static uint32_t sampled_token(struct eng_context *c, eng_seq s) {
        struct flight_item *from = step_source(c, s);
        struct flight *f = &c->flight[(c->first_flight + c->n_flight - 1) % MAX_FLIGHT];
        uint32_t token = f->result[from - f->item].token;

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

static int build(struct eng_context *c, struct step *st, const struct eng_item *items, size_t n) {
        st->b = (struct k_batch){
                .n_seq = (uint32_t)n, .token = c->a.token, .pos = c->a.pos, .seq = c->a.seq,
                .state_in = c->a.state_in, .state_out = c->a.state_out, .state_zero = c->a.state_zero,
                .n_group = c->kv.n_group, .table = c->a.table, .table_stride = c->a.table_stride,
        };
        st->io = (struct eng_forward_io){
                .batch = &st->b, .kv = c->kv.layer, .state = c->state, .out_rows = c->a.out_rows, .logits = c->logits,
        };
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
static const float *pool(struct eng_context *c, const struct eng_item *it, uint32_t i) {
        const struct eng_desc *d = c->m->desc;
        struct sequence *q = &c->seq[it->seq.index];
        const float *rows = c->hidden_host + (size_t)c->a.row0[i] * d->n_embd;
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

static void fill_result(struct eng_context *c, const struct eng_item *it, uint32_t i, const struct flight_item *fi,
                        struct eng_result *ret) {
        const struct eng_desc *d = c->m->desc;
        struct sequence *q = &c->seq[it->seq.index];
        uint32_t n_out = step_outputs(it);
        const float *logits = c->logits_host + (size_t)fi->out0 * d->n_vocab;

        ret->token = ENG_NO_TOKEN;
        ret->logprob = 0;
        ret->n_top = 0;
        ret->logits = NULL;
        ret->n_logits = 0;
        ret->embedding = NULL;
        if (it->want & (ENG_WANT_LOGITS_ALL | ENG_WANT_LOGITS_LAST)) {
                ret->logits = logits;
                ret->n_logits = n_out;
        }
        if (it->want & ENG_WANT_SAMPLE)
                sample_with(c->sampler, logits + (size_t)(n_out - 1) * d->n_vocab, d->n_vocab, it->sampling, q->tokens,
                            q->len, q->len, ret);
        if (it->want & ENG_WANT_EMBEDDING)
                ret->embedding = pool(c, it, i);
}

static int fetch(struct eng_context *c, const struct step *st) {
        const struct k_ops *ops = c->dev->ops;
        const struct eng_desc *d = c->m->desc;
        int r = 0;

        if (c->logits_host != c->logits && st->io.n_out)
                r = ops->download(c->dev, c->logits_host, c->logits, (size_t)st->io.n_out * d->n_vocab * sizeof(float));
        if (r >= 0 && st->io.hidden && c->hidden_host != c->hidden)
                r = ops->download(c->dev, c->hidden_host, c->hidden, (size_t)st->b.n * d->n_embd * sizeof(float));
        return r;
}

static int lost(struct eng_context *c, int r, struct h_error *err) {
        const char *why = c->dev->ops->last_error ? c->dev->ops->last_error(c->dev) : NULL;

        c->lost = true;
        h_error_set(err, HEARTH_E_device_lost, "the device failed (%s)%s%s", strerror(-r), why && *why ? ": " : "",
                    why ? why : "");
        return -EIO;
}

static int run(struct eng_context *c, struct step *st) {
        int r;

        if (c->hidden && c->m->desc->pooling != ENG_POOL_NONE)
                st->io.hidden = c->hidden;
        r = c->dev->ops->batch_begin(c->dev, &st->b);
        if (r >= 0)
                r = eng_forward_run(c->forward, &st->io);
        if (r >= 0)
                r = c->dev->ops->batch_end(c->dev, &st->b);
        return r < 0 ? r : fetch(c, st);
}

/* What finish needs to know, and the sequences moved on. */
static void take_off(struct eng_context *c, const struct eng_item *items, size_t n) {
        struct flight *f = &c->flight[(c->first_flight + c->n_flight) % MAX_FLIGHT];

        f->n = (uint32_t)n;
        f->exclusive = c->m->desc->pooling != ENG_POOL_NONE;
        for (size_t i = 0; i < n; i++) {
                const struct eng_item *it = &items[i];
                struct flight_item *fi = &f->item[i];
                struct sequence *q = &c->seq[it->seq.index];

                *fi = (struct flight_item){ .seq = it->seq, .n = it->n, .role = it->role, .want = it->want,
                                            .row0 = c->a.row0[i], .out0 = c->a.out0[i] };
                if (it->sampling)
                        fi->sampling = *it->sampling;
                f->exclusive |= (it->want & (ENG_WANT_LOGITS_ALL | ENG_WANT_LOGITS_LAST | ENG_WANT_EMBEDDING)) != 0;
                if (q->pool && q->pool_len == q->len)
                        mean_rows(q, c->hidden_host + (size_t)fi->row0 * c->m->desc->n_embd, it->n, c->m->desc->n_embd);
                commit_item(c, it, fi);
                fill_result(c, it, (uint32_t)i, fi, &f->result[i]);
        }
        c->n_flight++;
}

int eng_step_begin(struct eng_context *c, const struct eng_item *items, size_t n, struct h_error *err) {
        struct step st;
        uint32_t rows;
        int r;

        if (c->lost)
                return refuse(err, -EIO, device_lost, 0, 0, "the device failed earlier");
        if (c->n_flight == MAX_FLIGHT)
                return ENG_WAIT;
        if (c->n_flight && c->flight[(c->first_flight + c->n_flight - 1) % MAX_FLIGHT].exclusive)
                return ENG_WAIT;
        r = step_check(c, items, n, &rows, err);
        if (r != 0)
                return r;
        r = build(c, &st, items, n);
        if (r >= 0)
                r = run(c, &st);
        if (r < 0)
                return lost(c, r, err);
        take_off(c, items, n);
        return 0;
}

int eng_step_finish(struct eng_context *c, struct eng_result *ret, size_t *ret_n, struct h_error *err) {
        struct flight *f = &c->flight[c->first_flight];

        if (c->lost)
                return refuse(err, -EIO, device_lost, 0, 0, "the device failed earlier");
        if (c->n_flight == 0)
                return refuse(err, -EINVAL, bad_request, 0, 0, "no step is in flight");
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
        (void)c;
        return false; /* a CPU's steps have run when begin returns */
}
