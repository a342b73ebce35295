/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers of the forward pass: cut from the caller's workspace once; the same
 * function without a base address measures it. Acts change their width from use
 * to use, never beyond what was reserved for the widest layer.
 */
#include "engine/forward_int.h"

#include "base/alloc.h"

struct extent { /* the widest of everything, in columns */
        uint32_t a, b, n_expert, heads;
        size_t wide, moe;
};

static void max_u32(uint32_t *v, uint32_t n) {
        if (n > *v)
                *v = n;
}

static size_t attn_wide(const struct eng_layer *l) {
        const struct eng_attn *a = &l->attn;

        if (l->mixer == ENG_MIX_MLA)
                return (size_t)a->n_head * (a->d_nope + a->d_rope) + (size_t)a->n_head * a->dk + a->dk;
        return (size_t)a->n_head * a->dk * (a->gated ? 2 : 1) + (size_t)a->n_head_kv * (a->dk + a->dv);
}

static void measure_layer(const struct eng_desc *d, const struct k_ops *ops, uint32_t n, const struct eng_layer *l,
                          struct extent *e) {
        const struct eng_ffn *f = &l->ffn;
        size_t wide = 0, ffw;

        switch (l->mixer) {
        case ENG_MIX_MLA:
                max_u32(&e->b, MAX(l->attn.q_rank, l->attn.n_head * l->attn.d_v));
                /* fall through */
        case ENG_MIX_ATTENTION:
                max_u32(&e->a, l->attn.n_head * l->attn.dv);
                max_u32(&e->heads, l->attn.n_head);
                wide = attn_wide(l);
                break;
        case ENG_MIX_DELTA:
                max_u32(&e->a, l->delta.n_v * l->delta.s_v);
                max_u32(&e->heads, l->delta.n_v);
                wide = (size_t)2 * l->delta.n_k * l->delta.s_k + (size_t)2 * l->delta.n_v * l->delta.s_v + 2u * l->delta.n_v;
                break;
        case ENG_MIX_SHORTCONV:
                max_u32(&e->a, l->sconv.d);
                wide = (size_t)3 * l->sconv.d;
                break;
        }
        ffw = (size_t)2 * MAX(f->n_ff, f->n_ff_shexp);
        max_u32(&e->b, MAX(f->n_ff, f->n_ff_shexp));
        if (f->n_expert) {
                max_u32(&e->n_expert, f->n_expert);
                e->moe = MAX(e->moe, ops->moe_scratch(n, f->n_used, d->n_embd, f->n_ff_exp, f->n_expert));
        }
        if (d->n_ple) {
                max_u32(&e->b, d->n_ple);
                ffw = MAX(ffw, (size_t)d->n_ple);
        }
        if (d->n_altup)
                max_u32(&e->b, l->altup.laurel_l.rows);
        e->wide = MAX(e->wide, MAX(wide, ffw) + 64); /* room to align the parts */
}

static struct extent measure(const struct eng_desc *d, const struct k_ops *ops, uint32_t n) {
        struct extent e = { .a = 1, .b = 1, .n_expert = 1, .heads = 1,
                            .wide = MAX((size_t)d->n_ple * d->n_layer, (size_t)d->dense[0].rows) };

        for (uint32_t i = 0; i < d->n_layer + d->n_mtp; i++)
                measure_layer(d, ops, n, &d->layer[i], &e);
        return e;
}

struct cutter {
        uint8_t *base;
        size_t at;
        bool ok;
};

static void *take(struct cutter *c, size_t n, size_t size) {
        size_t bytes, at = c->at;

        c->ok = c->ok && size_mul(n, size, &bytes) && size_align(bytes, 256, &bytes) && size_add(c->at, bytes, &c->at);
        return c->base && c->ok ? c->base + at : NULL;
}

static void take_act(struct cutter *c, const struct k_ops *ops, struct k_act *a, uint32_t n, uint32_t cols) {
        size_t q = ops->act_q_bytes(n, cols);

        a->f = take(c, (size_t)n * cols, sizeof(float));
        a->q = q ? take(c, q, 1) : NULL;
        a->cols = cols;
        a->q_kind = 0;
}

bool fwd_cut(struct eng_forward *f, uint8_t *base, size_t *ret) {
        const struct eng_desc *d = f->d;
        uint32_t n = f->lim.n_rows, E = d->n_embd;
        struct extent e = measure(d, f->ops, n);
        struct cutter c = { .base = base, .ok = true };

        take_act(&c, f->ops, &f->x, n, E);
        take_act(&c, f->ops, &f->x2, n, E);
        take_act(&c, f->ops, &f->h, n, E);
        take_act(&c, f->ops, &f->h2, n, E);
        take_act(&c, f->ops, &f->a, n, e.a);
        take_act(&c, f->ops, &f->b, n, e.b);
        if (d->n_mtp)
                take_act(&c, f->ops, &f->cat, n, 2 * E);
        if (d->n_ple)
                take_act(&c, f->ops, &f->ple, n, d->n_ple * d->n_layer);
        if (d->n_altup) {
                f->alt = take(&c, alt_stride(d, n) * d->n_altup, sizeof(float));
                f->modes = (struct k_act){ .f = take(&c, (size_t)n * d->n_altup, sizeof(float)), .cols = d->n_altup };
                f->coef = take(&c, (size_t)n * d->n_altup * d->n_altup, sizeof(float));
        }
        f->y = (struct k_act){ .f = take(&c, (size_t)n * E, sizeof(float)), .cols = E };
        f->y2 = (struct k_act){ .f = take(&c, (size_t)n * E, sizeof(float)), .cols = E };
        f->wide = take(&c, e.wide * n, sizeof(float));
        f->route = take(&c, (size_t)e.n_expert * n, sizeof(float));
        f->gate1 = take(&c, n, sizeof(float));
        f->moe = take(&c, e.moe, 1);
        f->moe_bytes = e.moe;
        if (c.ok)
                *ret = c.at;
        return c.ok;
}

bool eng_forward_bytes(const struct eng_desc *d, const struct k_ops *ops, const struct eng_forward_limits *l, size_t *ret) {
        struct eng_forward f = { .d = d, .ops = ops, .lim = *l };

        return fwd_cut(&f, NULL, ret);
}

void eng_forward_extent(const struct eng_desc *d, uint32_t *ret_max_cols, uint32_t *ret_max_heads) {
        uint32_t cols = d->n_embd, heads = 1;

        for (uint32_t i = 0; i < d->n_layer + d->n_mtp; i++) {
                const struct eng_layer *l = &d->layer[i];
                const struct eng_ffn *f = &l->ffn;

                max_u32(&cols, MAX(MAX(f->n_ff, f->n_ff_exp), f->n_ff_shexp));
                switch (l->mixer) {
                case ENG_MIX_ATTENTION:
                case ENG_MIX_MLA:
                        max_u32(&cols, l->attn.n_head * MAX(l->attn.dk, l->attn.dv));
                        max_u32(&cols, l->attn.n_head * (l->attn.d_nope + l->attn.d_rope));
                        max_u32(&heads, l->attn.n_head);
                        break;
                case ENG_MIX_DELTA:
                        max_u32(&cols, 2 * l->delta.n_k * l->delta.s_k + l->delta.n_v * l->delta.s_v);
                        max_u32(&heads, l->delta.n_v);
                        break;
                case ENG_MIX_SHORTCONV:
                        max_u32(&cols, 3 * l->sconv.d);
                        break;
                }
        }
        if (d->n_mtp)
                max_u32(&cols, 2 * d->n_embd);
        max_u32(&cols, MAX(d->n_ple * d->n_layer, d->dense[0].rows));
        *ret_max_cols = cols;
        *ret_max_heads = heads;
}

int eng_forward_new(const struct eng_desc *d, struct k_dev *dev, const struct eng_forward_limits *l, void *workspace,
                    struct eng_forward **ret) {
        struct eng_forward *f = h_new0(struct eng_forward, 1);
        size_t bytes;

        if (!f)
                return -ENOMEM;
        f->d = d;
        f->dev = dev;
        f->ops = dev->ops;
        f->lim = *l;
        f->rope = h_new0(struct k_rope_params, MAX(d->n_rope, 1u));
        f->sub_seq = h_new0(uint32_t, MAX(l->n_rows, 1u));
        f->sub_pos = h_new0(int32_t, MAX(l->n_rows, 1u));
        if (!f->rope || !f->sub_seq || !f->sub_pos || !fwd_cut(f, workspace, &bytes)) {
                eng_forward_free(f);
                return -ENOMEM;
        }
        memcpy(f->rope, d->rope, d->n_rope * sizeof(*d->rope));
        if (d->rope_long && d->n_rope && l->n_ctx > d->rope[0].n_ctx_orig)
                f->rope[0].factors = d->rope_long;
        *ret = f;
        return 0;
}

struct eng_forward *eng_forward_free(struct eng_forward *f) {
        if (f) {
                free(f->rope);
                free(f->sub_seq);
                free(f->sub_pos);
                free(f);
        }
        return NULL;
}
