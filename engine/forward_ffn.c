/* SPDX-License-Identifier: Apache-2.0 */
/* The feed-forward half of a layer, and per-layer embeddings. */
#include "engine/forward_int.h"

#include <math.h>

static int gated(struct eng_forward *f, const struct eng_ffn *x, struct k_act *in, const struct k_weight *gate,
                 const float *gate_b, const struct k_weight *up, const float *up_b, uint32_t n_ff) {
        struct k_linear_args l = { .x = in, .n_rows = f->bt->n, .n_d = f->bt->n_d };
        struct k_glu_args g = {
                .gate_stride = n_ff, .up_stride = n_ff, .act = x->act, .alpha = x->alpha, .limit = x->limit,
                .sparse_std = x->sparse_std, .out = fwd_use(&f->b, n_ff), .n = f->bt->n,
        };
        size_t at = 0;
        float *p;

        if (k_weight_present(gate)) {
                g.gate = p = fwd_part(f, &at, n_ff);
                fwd_add_out(&l, gate, gate_b, p);
        }
        p = fwd_part(f, &at, up->rows);
        fwd_add_out(&l, up, up_b, p);
        g.up = p;
        if (up->rows == 2 * n_ff) {
                g.gate = p;
                g.up = p + n_ff;
                g.gate_stride = g.up_stride = (size_t)2 * n_ff;
        }
        TRY(f->ops->linear(f->dev, f->bt, &l));
        return f->ops->glu(f->dev, f->bt, &g);
}

static int dense(struct eng_forward *f, const struct eng_ffn *x, struct k_act *in) {
        TRY(gated(f, x, in, &x->gate, x->gate_b, &x->up, x->up_b, x->n_ff));
        if (x->sub_norm)
                TRY(fwd_norm_self(f, &f->b, x->sub_norm));
        TRY(fwd_linear(f, &f->b, &x->down, x->down_b, f->y.f));
        return x->dense_out_norm ? fwd_norm_self(f, &f->y, x->dense_out_norm) : 0;
}

/* in: the normed input of the branch; gemma4's router and experts read norms of the residual of their own. */
static int experts(struct eng_forward *f, const struct eng_ffn *x, struct k_act *in, struct k_act *out) {
        struct k_norm_args n = { .x = &f->x, .kind = f->d->norm, .eps = f->d->norm_eps, .out = &f->h2 };
        struct k_act *rin = in;

        if (x->router_norm) {
                n.w = x->router_norm;
                n.out_scale = 1.0f / sqrtf((float)f->d->n_embd);
                f->h2.q_kind = 0;
                TRY(f->ops->norm(f->dev, f->bt, &n));
                rin = &f->h2;
        }
        TRY(fwd_linear(f, rin, &x->router, x->router_b, f->route));
        if (x->exp_in_norm) {
                n.w = x->exp_in_norm;
                n.out_scale = 1;
                f->h2.q_kind = 0;
                TRY(f->ops->norm(f->dev, f->bt, &n));
                in = &f->h2;
        }
        TRY(f->ops->moe(f->dev, f->bt, &(struct k_moe_args){
                .x = in, .router = f->route, .router_stride = x->n_expert, .select_bias = x->select_bias, .n_expert = x->n_expert,
                .n_used = x->n_used, .n_group = x->n_group, .n_group_used = x->n_group_used, .gating = x->gating,
                .norm_weights = x->norm_weights, .weight_scale = x->weight_scale,
                .gate = k_weight_present(&x->exp_gate) ? &x->exp_gate : NULL, .up = &x->exp_up, .down = &x->exp_down,
                .gate_b = x->exp_gate_b, .up_b = x->exp_up_b, .down_b = x->exp_down_b, .act = x->act, .alpha = x->alpha,
                .limit = x->limit, .scratch = f->moe, .scratch_bytes = f->moe_bytes, .y = out->f, .y_stride = f->d->n_embd,
                .n = f->bt->n, .n_d = f->bt->n_d }));
        return x->exp_out_norm ? fwd_norm_self(f, out, x->exp_out_norm) : 0;
}

static int shared_expert(struct eng_forward *f, const struct eng_ffn *x, struct k_act *in) {
        uint32_t E = f->d->n_embd;

        TRY(gated(f, x, in, &x->sh_gate, NULL, &x->sh_up, NULL, x->n_ff_shexp));
        TRY(fwd_linear(f, &f->b, &x->sh_down, NULL, f->y2.f));
        if (k_weight_present(&x->sh_router)) {
                TRY(fwd_linear(f, in, &x->sh_router, NULL, f->gate1));
                TRY(f->ops->elem(f->dev, f->bt, &(struct k_elem_args){
                        .op = K_ELEM_MUL_SIGMOID_ROW, .y = f->y2.f, .y_stride = E, .cols = E, .x = f->gate1, .x_stride = 1,
                        .n = f->bt->n }));
        }
        return fwd_axpy(f, f->y.f, f->y2.f, 1, E);
}

int fwd_feed_forward(struct eng_forward *f, const struct eng_layer *l) {
        const struct eng_ffn *x = &l->ffn;
        struct k_act *in;

        if (l->parallel) { /* the mixer's input is still there */
                TRY(fwd_flush(f));
                in = &f->h;
        } else {
                TRY(fwd_branch_in(f, &l->ffn_norm, &in));
        }
        if (x->n_ff)
                TRY(dense(f, x, in));
        if (x->n_expert) {
                TRY(experts(f, x, in, x->n_ff ? &f->y2 : &f->y));
                if (x->n_ff)
                        TRY(fwd_axpy(f, f->y.f, f->y2.f, 1, f->d->n_embd));
        }
        if (x->n_ff_shexp)
                TRY(shared_expert(f, x, in));
        return fwd_branch_out(f, &l->ffn_norm);
}

/* ---- per-layer embeddings (gemma4) ------------------------------------------------ */

/* ple = (norm(proj(x) / sqrt(n_embd)) + embedding * sqrt(n_ple)) / sqrt(2); the norm makes the first factor matter by eps only. */
int fwd_ple_prepare(struct eng_forward *f) {
        const struct eng_desc *d = f->d;
        uint32_t cols = d->n_ple * d->n_layer;
        struct k_act t = { .f = f->wide, .cols = cols };

        TRY(fwd_linear(f, &f->x, &d->ple_proj, NULL, f->wide));
        TRY(f->ops->elem(f->dev, f->bt, &(struct k_elem_args){ .op = K_ELEM_SCALE, .y = f->wide, .y_stride = cols, .cols = cols,
                                                              .a = 1.0f / sqrtf((float)d->n_embd), .n = f->bt->n }));
        TRY(f->ops->norm(f->dev, f->bt, &(struct k_norm_args){ .x = &t, .kind = d->norm, .group = d->n_ple, .w = d->ple_norm,
                                                              .eps = d->norm_eps, .out_scale = 1, .out = &t }));
        TRY(f->ops->embed(f->dev, f->bt, &(struct k_embed_args){ .w = &d->ple_embed, .index = K_EMBED_TOKEN,
                                                                .scale = sqrtf((float)d->n_ple), .out = fwd_use(&f->ple, cols) }));
        return f->ops->elem(f->dev, f->bt, &(struct k_elem_args){
                .op = K_ELEM_AXPY, .y = f->ple.f, .y_stride = cols, .cols = cols, .x = f->wide, .x_stride = cols,
                .a = (float)M_SQRT1_2, .b = (float)M_SQRT1_2, .n = f->bt->n });
}

int fwd_ple_apply(struct eng_forward *f, const struct eng_layer *l, uint32_t i) {
        uint32_t P = f->d->n_ple;

        TRY(fwd_flush(f));
        TRY(fwd_linear(f, &f->x, &l->ple_gate, NULL, f->wide));
        TRY(f->ops->glu(f->dev, f->bt, &(struct k_glu_args){
                .gate = f->wide, .gate_stride = P, .up = f->ple.f + (size_t)i * P, .up_stride = (size_t)P * f->d->n_layer,
                .act = K_GLU_GELU_TANH, .out = fwd_use(&f->b, P), .n = f->bt->n }));
        TRY(fwd_linear(f, &f->b, &l->ple_proj, NULL, f->y.f));
        f->pend = (struct pending){ .set = true, .norm = l->ple_norm };
        return 0;
}
