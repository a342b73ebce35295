/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step: checks every item, then takes pages, builds the batch (rows of
 * generated and draft tokens first, then prompts), runs the forward pass and
 * hands out results. Nothing is changed until all checks passed; nothing is
 * allocated.
 */
#include <string.h>

#include "engine/context.h"
#include "engine/sample.h"

static bool is_d(const struct eng_item *it) {
        return it->role != ENG_ROLE_PROMPT;
}

/* Rows of logits an item needs. */
static uint32_t outputs_of(const struct eng_item *it) {
        if (it->want & ENG_WANT_LOGITS_ALL)
                return it->n;
        return it->want & (ENG_WANT_SAMPLE | ENG_WANT_LOGITS_LAST) ? 1 : 0;
}

/* ---- checks ---------------------------------------------------------------- */

#define refuse(err, e, code, needed, available, ...) \
        (h_error_counts(err, HEARTH_E_##code, needed, available, __VA_ARGS__), (e))

static int check_wants(const struct eng_context *c, const struct eng_item *it, size_t i, const struct sequence *q,
                       struct h_error *err) {
        const struct eng_desc *d = c->m->desc;
        const struct eng_sampling *s = it->sampling;

        if (outputs_of(it) && c->n_out == 0)
                return refuse(err, -EINVAL, unsupported, 0, 0, "item %zu: this model gives no logits", i);
        if (it->want & ENG_WANT_SAMPLE) {
                if (!s)
                        return refuse(err, -EINVAL, bad_request, 0, 0, "item %zu: no sampling parameters", i);
                if (s->n_top > ELEMENTSOF(((struct eng_result *)0)->top))
                        return refuse(err, -EINVAL, bad_request, s->n_top, ELEMENTSOF(((struct eng_result *)0)->top),
                                      "item %zu: %u top tokens asked for, at most 20 are given", i, s->n_top);
                for (size_t b = 0; b < s->n_bias; b++)
                        if (s->bias[b].token >= d->n_vocab)
                                return refuse(err, -EINVAL, bad_request, s->bias[b].token, d->n_vocab,
                                              "item %zu: bias for token %u, the vocabulary has %u", i,
                                              s->bias[b].token, d->n_vocab);
        }
        if (it->want & ENG_WANT_EMBEDDING) {
                if (!c->pooled || d->pooling == ENG_POOL_NONE)
                        return refuse(err, -EINVAL, unsupported, 0, 0, "item %zu: this model gives no embeddings", i);
                if (d->pooling == ENG_POOL_MEAN && q->pool_len != q->len)
                        return refuse(err, -EINVAL, bad_request, q->pool_len, q->len,
                                      "item %zu: a mean needs a sequence fed from its start", i);
                if (d->pooling == ENG_POOL_CLS && q->len > 0)
                        return refuse(err, -EINVAL, bad_request, q->len, 0,
                                      "item %zu: this model's embedding is its first token's, fed in the same step", i);
        }
        return 0;
}

static int check_item(struct eng_context *c, const struct eng_item *it, size_t i, struct h_error *err) {
        const struct eng_desc *d = c->m->desc;
        struct sequence *q = context_seq(c, it->seq);

        if (!q)
                return refuse(err, -EINVAL, bad_request, 0, 0, "item %zu: stale sequence handle", i);
        if (q->stamp == c->stamp)
                return refuse(err, -EINVAL, bad_request, 0, 0, "item %zu: a sequence is in the step twice", i);
        q->stamp = c->stamp;
        if (it->n == 0 || it->n > c->l.n_rows)
                return refuse(err, it->n ? -E2BIG : -EINVAL, bad_request, it->n, c->l.n_rows,
                              "item %zu: %u tokens in one step, 1..%u are possible", i, it->n, c->l.n_rows);
        if (it->n > c->l.n_ctx - q->len)
                return refuse(err, -E2BIG, prompt_too_long, (uint64_t)q->len + it->n, c->l.n_ctx,
                              "item %zu: %u tokens after %u pass the context of %u", i, it->n, q->len, c->l.n_ctx);
        for (uint32_t k = 0; k < it->n; k++)
                if (it->tokens[k] >= d->n_vocab)
                        return refuse(err, -EINVAL, bad_request, it->tokens[k], d->n_vocab,
                                      "item %zu: token %u at place %u, the vocabulary has %u", i, it->tokens[k], k,
                                      d->n_vocab);
        if (it->role == ENG_ROLE_DRAFT && it->n > c->l.n_draft + 1)
                return refuse(err, -EINVAL, bad_request, it->n, c->l.n_draft + 1,
                              "item %zu: a draft step of %u rows, %u are reserved", i, it->n, c->l.n_draft + 1);
        if (d->encoder && q->len > 0)
                return refuse(err, -EINVAL, bad_request, 0, 0, "item %zu: an encoder takes a text in one step", i);
        return check_wants(c, it, i, q, err);
}

static int check_items(struct eng_context *c, const struct eng_item *items, size_t n, uint32_t *ret_rows,
                       struct h_error *err) {
        uint64_t rows = 0, outs = 0;

        if (n == 0 || n > c->l.n_places)
                return refuse(err, n ? -E2BIG : -EINVAL, bad_request, n, c->l.n_places,
                              "%zu sequences in one step, 1..%u are possible", n, c->l.n_places);
        c->stamp++;
        for (size_t i = 0; i < n; i++) {
                int r = check_item(c, &items[i], i, err);
                if (r < 0)
                        return r;
                rows += items[i].n;
                outs += outputs_of(&items[i]);
        }
        if (rows > c->l.n_rows)
                return refuse(err, -E2BIG, bad_request, rows, c->l.n_rows, "%llu rows in one step, at most %u are possible",
                              (unsigned long long)rows, c->l.n_rows);
        if (outs > c->n_out)
                return refuse(err, -E2BIG, bad_request, outs, c->n_out,
                              "%llu rows of logits in one step, at most %u are possible", (unsigned long long)outs,
                              c->n_out);
        for (uint32_t g = 0; g < c->kv.n_group; g++) {
                uint64_t need = 0;
                for (size_t i = 0; i < n; i++)
                        need += kv_need(&c->kv, g, items[i].seq.index, c->seq[items[i].seq.index].len, items[i].n);
                if (need > c->kv.group[g].n_free)
                        return ENG_NO_PAGES;
        }
        *ret_rows = (uint32_t)rows;
        return 0;
}

/* ---- the batch --------------------------------------------------------------- */

struct step {
        struct k_batch b;
        struct eng_forward_io io;
};

/* Rows of one item, from row0 on. */
static int add_rows(struct eng_context *c, struct step *st, const struct eng_item *it, uint32_t i) {
        struct sequence *q = &c->seq[it->seq.index];
        uint32_t row0 = st->b.n, n_out = outputs_of(it);
        int r;

        r = kv_extend(&c->kv, it->seq.index, q->len, it->n);
        if (r < 0)
                return r;
        for (uint32_t g = 0; g < c->kv.n_group; g++)
                kv_step_row(&c->kv, g, i, it->seq.index, q->len + it->n);
        for (uint32_t k = 0; k < it->n; k++) {
                c->a.token[row0 + k] = it->tokens[k];
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

static void finish_item(struct eng_context *c, const struct eng_item *it, uint32_t i, struct eng_result *ret) {
        const struct eng_desc *d = c->m->desc;
        struct sequence *q = &c->seq[it->seq.index];
        uint32_t n_out = outputs_of(it);
        const float *logits = c->logits_host + (size_t)c->a.out0[i] * d->n_vocab;

        seq_state_commit(c, it->seq.index, it->n, it->role);
        if (q->pool && q->pool_len == q->len)
                mean_rows(q, c->hidden_host + (size_t)c->a.row0[i] * d->n_embd, it->n, d->n_embd);
        memcpy(q->tokens + q->len, it->tokens, it->n * sizeof(*q->tokens));
        q->len += it->n;
        kv_release_behind(&c->kv, it->seq.index, q->len);

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

int eng_step(struct eng_context *c, const struct eng_item *items, size_t n, struct eng_result *ret,
             struct h_error *err) {
        struct step st;
        uint32_t rows;
        int r;

        if (c->lost)
                return refuse(err, -EIO, device_lost, 0, 0, "the device failed earlier");
        r = check_items(c, items, n, &rows, err);
        if (r != 0)
                return r;
        r = build(c, &st, items, n);
        if (r < 0)
                return lost(c, r, err);
        if (c->hidden && c->m->desc->pooling != ENG_POOL_NONE)
                st.io.hidden = c->hidden;
        r = c->dev->ops->batch_begin(c->dev, &st.b);
        if (r >= 0)
                r = eng_forward_run(c->forward, &st.io);
        if (r >= 0)
                r = c->dev->ops->batch_end(c->dev, &st.b);
        if (r >= 0)
                r = fetch(c, &st);
        if (r < 0)
                return lost(c, r, err);
        for (size_t i = 0; i < n; i++)
                finish_item(c, &items[i], (uint32_t)i, &ret[i]);
        return 0;
}
