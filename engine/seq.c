/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences: handles with a generation, the rules of their recurrent states,
 * taking back, and sharing a prefix.
 *
 * A sequence can go on from length n if its pages still reach back a window from
 * n, and its recurrent state at n was kept: at its end, at the end of its last
 * prompt chunk, or after a row of its last draft step.
 */
#include <string.h>

#include "engine/context.h"

struct sequence *context_seq(const struct eng_context *c, eng_seq s) {
        if (s.index >= c->n_seq || !c->seq[s.index].used || c->seq[s.index].gen != s.gen)
                return NULL;
        return &c->seq[s.index];
}

/* The sum for mean pooling can't be taken back: a mean needs a sequence fed from its start. */
static void forget_pool(struct eng_context *c, struct sequence *q) {
        q->pool_len = 0;
        if (q->pool)
                memset(q->pool, 0, sizeof(double) * c->m->desc->n_embd);
}

int eng_seq_new(struct eng_context *c, eng_seq *ret) {
        for (uint32_t i = 0; i < c->n_seq; i++) {
                struct sequence *q = &c->seq[i];
                if (q->used)
                        continue;
                q->used = true;
                q->len = 0;
                q->pending = false;
                q->state = (struct seq_state){ 0 };
                forget_pool(c, q);
                *ret = (eng_seq){ .index = i, .gen = ++q->gen };
                return 0;
        }
        return -EBUSY;
}

int eng_seq_free(struct eng_context *c, eng_seq s) {
        struct sequence *q = context_seq(c, s);
        if (!q)
                return -ESTALE;
        kv_trim(&c->kv, s.index, 0);
        q->used = false;
        q->gen++;
        q->len = 0;
        return 0;
}

uint32_t eng_seq_len(const struct eng_context *c, eng_seq s) {
        const struct sequence *q = context_seq(c, s);
        return q ? q->len : 0;
}

const uint32_t *eng_seq_tokens(const struct eng_context *c, eng_seq s) {
        const struct sequence *q = context_seq(c, s);
        return q ? q->tokens : NULL;
}

/* ---- recurrent states ---------------------------------------------------- */

static bool slot_busy(const struct seq_state *st, uint32_t len, uint32_t k) {
        if (len == 0)
                return false;
        return k == st->cur || (st->mark_len && k == st->mark);
}

void seq_state_begin(struct eng_context *c, uint32_t s, uint32_t item, uint32_t row0, uint32_t n, enum eng_role role) {
        struct sequence *q = &c->seq[s];
        struct seq_state *st = &q->state;
        uint32_t k = 0;

        if (c->slots == 0) {
                for (uint32_t i = 0; i < n; i++)
                        c->a.state_out[row0 + i] = KV_NONE;
                return;
        }
        c->a.state_zero[item] = q->len == 0;
        c->a.state_in[item] = context_slot(c, s, q->len ? st->cur : 0);
        for (uint32_t i = 0; i < n; i++)
                c->a.state_out[row0 + i] = KV_NONE;
        st->n_draft = 0;
        st->prev_len = 0;
        switch (role) {
        case ENG_ROLE_PROMPT: /* in place: the checkpoint moves along */
                c->a.state_out[row0 + n - 1] = context_slot(c, s, q->len ? st->cur : 0);
                break;
        case ENG_ROLE_GENERATED: /* in place, unless that is the checkpoint or there is a slot for going back */
                k = q->len ? st->cur : 0;
                if (q->len && (c->slots > 2 || (st->mark_len && k == st->mark)))
                        for (k = 0; slot_busy(st, q->len, k); k++)
                                ;
                c->a.state_out[row0 + n - 1] = context_slot(c, s, k);
                st->draft[0].slot = k;
                break;
        case ENG_ROLE_DRAFT: /* a slot for every row; eng_step() checked that there are enough */
                for (uint32_t i = 0; i < n; i++, k++) {
                        while (slot_busy(st, q->len, k))
                                k++;
                        c->a.state_out[row0 + i] = context_slot(c, s, k);
                        st->draft[i].slot = k;
                        st->draft[i].len = q->len + i + 1;
                }
                break;
        }
}

/* Called before q->len grows by n. */
void seq_state_commit(struct eng_context *c, uint32_t s, uint32_t n, enum eng_role role) {
        struct sequence *q = &c->seq[s];
        struct seq_state *st = &q->state;

        if (c->slots == 0)
                return;
        switch (role) {
        case ENG_ROLE_PROMPT:
                if (q->len == 0)
                        st->cur = 0;
                /* The old checkpoint, if elsewhere, is given up for the new one. */
                st->mark = st->cur;
                st->mark_len = q->len + n;
                break;
        case ENG_ROLE_GENERATED:
                if (q->len && st->draft[0].slot != st->cur) {
                        st->prev = st->cur;
                        st->prev_len = q->len;
                }
                st->cur = st->draft[0].slot;
                break;
        case ENG_ROLE_DRAFT:
                st->cur = st->draft[n - 1].slot;
                st->n_draft = n;
                break;
        }
}

/* Finds the longest state at or before n; *ret_slot is meaningless for 0. */
static uint32_t state_at(const struct eng_context *c, const struct sequence *q, uint32_t n, uint32_t *ret_slot) {
        const struct seq_state *st = &q->state;
        uint32_t best = 0;

        if (n >= q->len) {
                *ret_slot = st->cur;
                return q->len;
        }
        if (st->mark_len && st->mark_len <= n) {
                best = st->mark_len;
                *ret_slot = st->mark;
        }
        if (st->prev_len && st->prev_len <= n && st->prev_len > best) {
                best = st->prev_len;
                *ret_slot = st->prev;
        }
        for (uint32_t i = 0; i < st->n_draft; i++)
                if (st->draft[i].len <= n && st->draft[i].len > best) {
                        best = st->draft[i].len;
                        *ret_slot = st->draft[i].slot;
                }
        return best;
}

uint32_t seq_usable(const struct eng_context *c, const struct sequence *q, uint32_t n) {
        uint32_t slot;

        n = MIN(n, q->len);
        if (c->slots)
                n = state_at(c, q, n, &slot);
        /* Windows only get less complete further back. */
        return kv_usable(&c->kv, (uint32_t)(q - c->seq), n) ? n : 0;
}

/* ---- taking back and sharing ---------------------------------------------- */

int eng_seq_trim(struct eng_context *c, eng_seq s, uint32_t n, uint32_t *ret_n) {
        struct sequence *q = context_seq(c, s);

        if (!q)
                return -ESTALE;
        n = seq_usable(c, q, n);
        if (n < q->len) {
                struct seq_state *st = &q->state;
                uint32_t slot = 0;

                if (c->slots && n > 0)
                        (void)state_at(c, q, n, &slot);
                st->cur = slot;
                if (st->mark_len > n)
                        st->mark_len = 0;
                st->prev_len = 0; /* taken, or behind n and soon overwritten */
                /* Draft states up to n stay valid until the next step of this sequence. */
                while (st->n_draft > 0 && st->draft[st->n_draft - 1].len > n)
                        st->n_draft--;
                kv_trim(&c->kv, s.index, n);
                q->len = n;
                q->pending = false;
                forget_pool(c, q);
        }
        *ret_n = n;
        return 0;
}

static int copy_state(struct eng_context *c, uint32_t from, uint32_t to) {
        const struct eng_desc *d = c->m->desc;
        const struct k_ops *ops = c->dev->ops;

        for (uint32_t i = 0; i < d->n_state; i++) {
                size_t conv = d->state[i].conv_floats, state = context_state_floats(ops, &d->state[i]);
                int r = ops->copy(c->dev, c->state[i].conv + to * conv, c->state[i].conv + from * conv,
                                  conv * sizeof(float));
                if (r >= 0 && state)
                        r = ops->copy(c->dev, c->state[i].state + to * state, c->state[i].state + from * state,
                                      state * sizeof(float));
                if (r < 0)
                        return r;
        }
        return 0;
}

int eng_seq_fork(struct eng_context *c, eng_seq s, uint32_t n, eng_seq *ret, uint32_t *ret_n) {
        struct sequence *q = context_seq(c, s), *f;
        eng_seq fork;
        uint32_t slot = 0;
        int r;

        if (!q)
                return -ESTALE;
        n = seq_usable(c, q, MIN(n, seq_known(q)));
        r = eng_seq_new(c, &fork);
        if (r < 0)
                return r;
        f = &c->seq[fork.index];
        if (n > 0) {
                kv_share(&c->kv, s.index, fork.index, n);
                if (c->async) {
                        r = c->dev->ops->copy(c->dev, c->beside.history + (size_t)fork.index * c->l.n_ctx,
                                              c->beside.history + (size_t)s.index * c->l.n_ctx, n * sizeof(uint32_t));
                        if (r < 0) {
                                eng_seq_free(c, fork);
                                return r;
                        }
                }
                memcpy(f->tokens, q->tokens, n * sizeof(*f->tokens));
                f->len = n;
                if (c->slots) {
                        (void)state_at(c, q, n, &slot);
                        r = copy_state(c, context_slot(c, s.index, slot), context_slot(c, fork.index, 0));
                        if (r < 0) {
                                eng_seq_free(c, fork);
                                return r;
                        }
                        f->state.mark = 0;
                        f->state.mark_len = n;
                }
        }
        *ret = fork;
        *ret_n = n;
        return 0;
}
