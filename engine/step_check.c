/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step refuses: everything is looked at here, before anything is touched,
 * so that a refused step leaves no trace.
 */
#include "engine/context.h"

uint32_t step_outputs(const struct eng_item *it) {
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

        if (step_outputs(it) && c->n_out == 0)
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
        if (!it->tokens && (it->n != 1 || it->role != ENG_ROLE_GENERATED || !step_source(c, it->seq)))
                return refuse(err, -EINVAL, bad_request, 0, 0, "item %zu: no step in flight samples a token for it", i);
        if (it->tokens && q->pending)
                return ENG_WAIT;
        /* The host samples with the whole history. */
        if (!it->tokens && it->want & ENG_WANT_SAMPLE && c->async && it->sampling && !sample_on_device(c, it->sampling))
                return ENG_WAIT;
        if (it->n == 0 || it->n > c->l.n_rows)
                return refuse(err, it->n ? -E2BIG : -EINVAL, bad_request, it->n, c->l.n_rows,
                              "item %zu: %u tokens in one step, 1..%u are possible", i, it->n, c->l.n_rows);
        if (it->n > c->l.n_ctx - q->len)
                return refuse(err, -E2BIG, prompt_too_long, (uint64_t)q->len + it->n, c->l.n_ctx,
                              "item %zu: %u tokens after %u pass the context of %u", i, it->n, q->len, c->l.n_ctx);
        for (uint32_t k = 0; it->tokens && k < it->n; k++)
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

struct flight_item *step_source(struct eng_context *c, eng_seq s) {
        struct flight *f = &c->flight[(c->first_flight + c->n_flight + MAX_FLIGHT - 1) % MAX_FLIGHT];

        for (uint32_t i = 0; c->n_flight && i < f->n; i++)
                if (f->item[i].seq.index == s.index && f->item[i].seq.gen == s.gen)
                        return f->item[i].want & ENG_WANT_SAMPLE && !f->item[i].fed &&
                               c->seq[s.index].len == f->item[i].len ? &f->item[i] : NULL;
        return NULL;
}

int step_check(struct eng_context *c, const struct eng_item *items, size_t n, uint32_t *ret_rows,
                       struct h_error *err) {
        uint64_t rows = 0, outs = 0;

        if (n == 0 || n > c->l.n_places)
                return refuse(err, n ? -E2BIG : -EINVAL, bad_request, n, c->l.n_places,
                              "%zu sequences in one step, 1..%u are possible", n, c->l.n_places);
        c->stamp++;
        for (size_t i = 0; i < n; i++) {
                int r = check_item(c, &items[i], i, err);
                if (r != 0)
                        return r;
                rows += items[i].n;
                outs += step_outputs(&items[i]);
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
