/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The multi-token-prediction layer over a whole text: the trunk's hidden states
 * shifted by one position are its second input (zeros at position 0), its keys
 * and values live in pages of its own.
 */
#include <string.h>

#include "engine/context.h"

struct run {
        struct eng_context *c;
        eng_seq seq;
        float *out;
};

/* h_prev: row 0 is what the last chunk left in h_prev's first row, the others are this chunk's hidden states. */
static int shift(struct eng_context *c, uint32_t n) {
        size_t row = (size_t)c->m->desc->n_embd * sizeof(float);
        return n > 1 ? c->dev->ops->copy(c->dev, c->h_prev + c->m->desc->n_embd, c->hidden, (n - 1) * row) : 0;
}

static int chunk(struct run *x, const uint32_t *tokens, uint32_t pos, uint32_t n) {
        struct eng_context *c = x->c;
        const struct eng_desc *d = c->m->desc;
        const struct k_ops *ops = c->dev->ops;
        struct k_batch b = {
                .n = n, .n_seq = 1, .token = c->a.token, .pos = c->a.pos, .seq = c->a.seq, .state_in = c->a.state_in,
                .state_out = c->a.state_out, .state_zero = c->a.state_zero, .n_group = c->kv.n_group,
                .table = c->a.table, .table_stride = c->a.table_stride,
        };
        struct eng_forward_io io = {
                .batch = &b, .kv = c->kv.layer, .state = c->state, .logits = c->logits, .hidden = c->hidden,
                .out_rows = c->a.out_rows,
        };
        uint32_t s = x->seq.index;
        size_t row = (size_t)d->n_embd * sizeof(float);
        int r;

        for (uint32_t g = 0; g < c->kv.n_group; g++)
                if (kv_need(&c->kv, g, s, pos, n) > c->kv.group[g].n_free)
                        return -ENOBUFS;
        r = kv_extend(&c->kv, s, pos, n);
        if (r < 0)
                return r;
        for (uint32_t g = 0; g < c->kv.n_group; g++)
                kv_step_row(&c->kv, g, 0, s, pos + n);
        for (uint32_t i = 0; i < n; i++) {
                c->a.token[i] = tokens[i];
                c->a.pos[i] = (int32_t)(pos + i);
                c->a.seq[i] = 0;
                c->a.out_rows[i] = i;
        }
        seq_state_begin(c, s, 0, 0, n, ENG_ROLE_PROMPT);
        if ((r = ops->batch_begin(c->dev, &b)) < 0 || (r = eng_forward_run(c->forward, &io)) < 0)
                return r;
        if (pos == 0)
                r = ops->zero(c->dev, c->h_prev, row);
        if (r < 0 || (r = shift(c, n)) < 0)
                return r;
        /* The trunk's last hidden state begins the next chunk; the MTP pass may overwrite 'hidden' only after that. */
        io.h_prev = c->h_prev;
        io.hidden = NULL;
        io.n_out = n;
        if ((r = eng_forward_mtp(c->forward, 0, &io)) < 0 || (r = ops->batch_end(c->dev, &b)) < 0 ||
            (r = ops->copy(c->dev, c->h_prev, c->hidden + (size_t)(n - 1) * d->n_embd, row)) < 0 ||
            (r = ops->download(c->dev, x->out + (size_t)pos * d->n_vocab, c->logits,
                               (size_t)n * d->n_vocab * sizeof(float))) < 0)
                return r;
        seq_state_commit(c, s, n, ENG_ROLE_PROMPT);
        c->seq[s].len += n;
        kv_release_behind(&c->kv, s, pos + n);
        return 0;
}

int eng_mtp_logits(struct eng_context *c, const uint32_t *tokens, uint32_t n, float *out, struct h_error *err) {
        const struct eng_desc *d = c->m->desc;
        struct run x = { .c = c, .out = out };
        int r;

        if (d->n_mtp == 0)
                return h_error_set(err, HEARTH_E_unsupported, "model %s has no multi-token-prediction layer", d->arch);
        if (c->l.n_draft == 0)
                return h_error_set(err, HEARTH_E_unsupported, "the context reserved no draft layer (draft depth 0)");
        if (c->n_flight)
                return h_error_set(err, HEARTH_E_busy, "a step is in flight");
        if (n == 0 || n > c->l.n_ctx)
                return h_error_counts(err, HEARTH_E_prompt_too_long, n, c->l.n_ctx, "%u tokens, 1..%u are possible", n,
                                      c->l.n_ctx);
        for (uint32_t i = 0; i < n; i++)
                if (tokens[i] >= d->n_vocab)
                        return h_error_set(err, HEARTH_E_bad_request, "token %u at place %u, the vocabulary has %u",
                                           tokens[i], i, d->n_vocab);
        r = eng_seq_new(c, &x.seq);
        if (r < 0)
                return h_error_set(err, HEARTH_E_busy, "no place is free");
        for (uint32_t pos = 0; pos < n && r >= 0; pos += c->n_out)
                r = chunk(&x, tokens + pos, pos, MIN(c->n_out, n - pos));
        eng_seq_free(c, x.seq);
        if (r == -ENOBUFS)
                return h_error_set(err, HEARTH_E_busy, "no KV pages are free");
        if (r < 0) {
                c->lost = true;
                return h_error_set(err, HEARTH_E_device_lost, "the device failed (%s)", strerror(-r));
        }
        return 0;
}
