/* SPDX-License-Identifier: Apache-2.0 */
/* The mixing half of a layer: what lets tokens see each other. */
#include "engine/forward_int.h"

static int attend(struct eng_forward *f, const struct eng_attn *a, const struct k_qkv_args *q, const float *gate) {
        struct k_attention_args t = {
                .q = q->q, .q_stride = q->q_stride, .q_head = q->q_head, .n_head = a->n_head, .kv = q->kv, .scale = a->scale,
                .softcap = a->softcap, .window = a->window, .causal = !f->d->encoder, .sinks = a->sinks,
                .out = fwd_use(&f->a, a->n_head * a->dv),
        };

        if (gate) {
                t.gate = gate;
                t.gate_stride = q->q_stride;
                t.gate_head = q->q_head;
        }
        TRY(f->ops->qkv(f->dev, f->bt, q));
        return f->ops->attention(f->dev, f->bt, &t);
}

static int attention(struct eng_forward *f, const struct eng_attn *a, struct k_act *in) {
        struct k_linear_args l = { .x = in, .n_rows = f->bt->n, .n_d = f->bt->n_d };
        uint32_t qd = a->n_head * a->dk * (a->gated ? 2 : 1), kd = a->n_head_kv * a->dk, vd = a->n_head_kv * a->dv;
        struct k_qkv_args q = {
                .q_head = a->dk * (a->gated ? 2 : 1), .k_head = a->dk, .v_head = a->dv, .n_head = a->n_head,
                .n_head_kv = a->n_head_kv, .dk = a->dk, .dv = a->dv, .q_norm = a->q_norm, .k_norm = a->k_norm,
                .v_norm = a->v_norm, .norm_full = a->norm_full, .norm_eps = f->d->norm_eps, .q_temp = f->d->temp_scale,
                .q_temp_len = f->d->temp_len, .rope = a->rope >= 0 ? &f->rope[a->rope] : NULL, .kv = &f->io->kv[a->kv],
        };
        size_t at = 0;

        if (k_weight_present(&a->wqkv)) {
                q.q = fwd_part(f, &at, a->wqkv.rows);
                q.k = q.q + qd;
                q.v = q.k + kd;
                q.q_stride = q.k_stride = q.v_stride = a->wqkv.rows;
                fwd_add_out(&l, &a->wqkv, a->bqkv, q.q);
        } else {
                q.q = fwd_part(f, &at, qd);
                q.q_stride = qd;
                fwd_add_out(&l, &a->wq, a->bq, q.q);
                if (!a->kv_shared) {
                        float *v;

                        q.k = fwd_part(f, &at, kd);
                        q.k_stride = kd;
                        fwd_add_out(&l, &a->wk, a->bk, q.k);
                        if (a->v_from_k) {
                                q.v = q.k;
                                q.v_stride = kd;
                        } else {
                                q.v = v = fwd_part(f, &at, vd);
                                q.v_stride = vd;
                                fwd_add_out(&l, &a->wv, a->bv, v);
                        }
                }
        }
        TRY(f->ops->linear(f->dev, f->bt, &l));
        TRY(attend(f, a, &q, a->gated ? q.q + a->dk : NULL));
        if (a->sub_norm)
                TRY(fwd_norm_self(f, &f->a, a->sub_norm));
        return fwd_linear(f, &f->a, &a->wo, a->bo, f->y.f);
}

static int mla(struct eng_forward *f, const struct eng_attn *a, struct k_act *in) {
        struct k_linear_args l = { .x = in, .n_rows = f->bt->n, .n_d = f->bt->n_d };
        uint32_t H = a->n_head, d_q = a->d_nope + a->d_rope;
        struct k_qkv_args q = {
                .q_head = a->dk, .q_stride = (size_t)H * a->dk, .k_head = a->dk, .k_stride = a->dk, .n_head = H, .n_head_kv = 1,
                .dk = a->dk, .dv = a->dv, .rope_off = a->kv_rank, .k_norm = a->kv_a_norm, .k_norm_cols = a->kv_rank,
                .norm_eps = f->d->norm_eps, .q_temp = f->d->temp_scale, .q_temp_len = f->d->temp_len,
                .rope = a->rope >= 0 ? &f->rope[a->rope] : NULL, .kv = &f->io->kv[a->kv],
        };
        size_t at = 0;
        float *qb = fwd_part(f, &at, (size_t)H * d_q);

        q.q = fwd_part(f, &at, (size_t)H * a->dk);
        q.k = fwd_part(f, &at, a->dk);
        fwd_add_out(&l, &a->wkv_a, NULL, q.k);
        if (k_weight_present(&a->wq_a)) {
                struct k_act *qa = fwd_use(&f->b, a->q_rank);

                fwd_add_out(&l, &a->wq_a, NULL, qa->f);
                TRY(f->ops->linear(f->dev, f->bt, &l));
                TRY(fwd_norm_self(f, qa, a->q_a_norm));
                TRY(fwd_linear(f, qa, &a->wq_b, NULL, qb));
        } else {
                fwd_add_out(&l, &a->wq_b, NULL, qb);
                TRY(f->ops->linear(f->dev, f->bt, &l));
        }
        TRY(f->ops->head_linear(f->dev, f->bt, &(struct k_head_linear_args){
                .x = qb, .x_stride = (size_t)H * d_q, .x_head = d_q, .w = &a->wk_b, .tail = a->d_rope,
                .y = q.q, .y_stride = q.q_stride, .y_head = a->dk, .n = f->bt->n, .n_d = f->bt->n_d }));
        TRY(attend(f, a, &q, NULL));
        fwd_use(&f->b, H * a->d_v);
        TRY(f->ops->head_linear(f->dev, f->bt, &(struct k_head_linear_args){
                .x = f->a.f, .x_stride = (size_t)H * a->dv, .x_head = a->dv, .w = &a->wv_b,
                .y = f->b.f, .y_stride = (size_t)H * a->d_v, .y_head = a->d_v, .n = f->bt->n, .n_d = f->bt->n_d }));
        return fwd_linear(f, &f->b, &a->wo, a->bo, f->y.f);
}

static int delta(struct eng_forward *f, const struct eng_delta *x, struct k_act *in) {
        struct k_linear_args l = { .x = in, .n_rows = f->bt->n, .n_d = f->bt->n_d };
        struct k_delta_args t = {
                .n_k = x->n_k, .n_v = x->n_v, .s_k = x->s_k, .s_v = x->s_v, .k_head_blocked = x->k_head_blocked,
                .ba_run = x->ba_run, .conv = x->conv, .conv_w = x->conv_w, .a = x->a, .dt_bias = x->dt_bias, .norm_w = x->norm,
                .eps = f->d->norm_eps, .conv_state = f->io->state[x->state].conv, .state = f->io->state[x->state].state,
                .out = fwd_use(&f->a, x->n_v * x->s_v), .qkv_stride = x->wqkv.rows, .z_stride = x->wz.rows,
        };
        size_t at = 0;
        float *z, *ba;

        t.qkv = fwd_part(f, &at, x->wqkv.rows);
        t.z = z = fwd_part(f, &at, x->wz.rows);
        fwd_add_out(&l, &x->wqkv, NULL, t.qkv);
        fwd_add_out(&l, &x->wz, NULL, z);
        if (k_weight_present(&x->wba)) {
                t.beta = ba = fwd_part(f, &at, x->wba.rows);
                t.alpha = t.beta + x->ba_run;
                t.ba_stride = x->wba.rows;
                fwd_add_out(&l, &x->wba, NULL, ba);
        } else {
                t.beta = ba = fwd_part(f, &at, x->n_v);
                fwd_add_out(&l, &x->wbeta, NULL, ba);
                t.alpha = ba = fwd_part(f, &at, x->n_v);
                fwd_add_out(&l, &x->walpha, NULL, ba);
                t.ba_stride = x->n_v;
        }
        TRY(f->ops->linear(f->dev, f->bt, &l));
        TRY(f->ops->delta(f->dev, f->bt, &t));
        return fwd_linear(f, &f->a, &x->wout, NULL, f->y.f);
}

static int shortconv(struct eng_forward *f, const struct eng_shortconv *x, struct k_act *in) {
        TRY(fwd_linear(f, in, &x->win, NULL, f->wide));
        TRY(f->ops->shortconv(f->dev, f->bt, &(struct k_shortconv_args){
                .bcx = f->wide, .stride = (size_t)3 * x->d, .d = x->d, .conv = x->conv, .conv_w = x->conv_w,
                .conv_state = f->io->state[x->state].conv, .out = fwd_use(&f->a, x->d) }));
        return fwd_linear(f, &f->a, &x->wout, NULL, f->y.f);
}

int fwd_mixer(struct eng_forward *f, const struct eng_layer *l) {
        struct k_act *in;

        TRY(fwd_branch_in(f, &l->mix_norm, &in));
        switch (l->mixer) {
        case ENG_MIX_ATTENTION:
                TRY(attention(f, &l->attn, in));
                break;
        case ENG_MIX_MLA:
                TRY(mla(f, &l->attn, in));
                break;
        case ENG_MIX_DELTA:
                TRY(delta(f, &l->delta, in));
                break;
        case ENG_MIX_SHORTCONV:
                TRY(shortconv(f, &l->sconv, in));
                break;
        }
        return fwd_branch_out(f, &l->mix_norm);
}
