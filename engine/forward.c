/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk over a description. One residual stream x [n, n_embd]; each branch
 * reads a norm of it (or itself), leaves its result in y, and the addition
 * waits in 'pending' until the next norm can carry it in the same pass.
 *
 * Buffers are cut from the caller's workspace once (cut()); the same function
 * without a base address measures it. Acts change their width from use to use,
 * never beyond what cut() reserved for the widest layer.
 *
 * After the mixer of the last layer only the rows whose logits are wanted
 * continue: nothing reads the others any more (unless 'hidden' is asked for).
 */
#include "engine/forward.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

struct pending {
        bool set;
        const float *norm, *norm_b; /* of the branch, or NULL */
};

struct eng_forward {
        const struct eng_desc *d;
        struct k_dev *dev;
        const struct k_ops *ops;
        struct eng_forward_limits lim;
        struct k_rope_params *rope; /* the description's, LongRoPE factors chosen */

        /* acts: with room for a quantized image */
        struct k_act x, x2;         /* the residual stream, and where its surviving rows go */
        struct k_act h, h2;         /* normed inputs of branches */
        struct k_act a, b;          /* results of attention, delta net, GLU; inputs of second products */
        struct k_act cat;           /* MTP: [n, 2 n_embd] */
        struct k_act ple;           /* [n, n_ple * n_layer] */
        /* branch results */
        struct k_act y, y2;
        float *wide;                /* projections of one layer */
        float *route, *gate1;       /* [n, n_expert], [n] */
        void *moe;
        size_t moe_bytes;

        /* one run */
        const struct eng_forward_io *io;
        struct k_batch *bt;         /* the rows in flight */
        struct k_batch sub;
        struct pending pend;
};

/* ---- buffers ------------------------------------------------------------- */

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
        e->wide = MAX(e->wide, MAX(wide, ffw) + 64); /* room to align the parts */
}

static struct extent measure(const struct eng_desc *d, const struct k_ops *ops, uint32_t n) {
        struct extent e = { .a = 1, .b = 1, .n_expert = 1, .heads = 1, .wide = (size_t)d->n_ple * d->n_layer };

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

static bool cut(struct eng_forward *f, uint8_t *base, size_t *ret) {
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

        return cut(&f, NULL, ret);
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
        max_u32(&cols, d->n_ple * d->n_layer);
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
        if (!f->rope || !cut(f, workspace, &bytes)) {
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
                free(f);
        }
        return NULL;
}

/* ---- small steps ----------------------------------------------------------- */

#define TRY(call)               \
        do {                    \
                int _r = (call); \
                if (_r)         \
                        return _r; \
        } while (0)

static struct k_act *use(struct k_act *a, uint32_t cols) {
        a->cols = cols;
        a->q_kind = 0;
        return a;
}

/* A part of f->wide: [n, cols], the next one behind it. */
static float *part(struct eng_forward *f, size_t *at, size_t cols) {
        float *p = f->wide + *at;

        *at += (cols * f->bt->n + 15) & ~(size_t)15;
        return p;
}

/* out = norm(x) after the pending addition; out NULL: only the addition. */
static int norm_x(struct eng_forward *f, const float *w, const float *b, struct k_act *out, uint32_t out_col) {
        struct k_norm_args n = {
                .x = &f->x, .kind = f->d->norm, .w = w, .b = b, .eps = f->d->norm_eps, .out_scale = 1, .out = out,
                .out_col = out_col,
        };

        if (f->pend.set) {
                n.add = &f->y;
                n.add_norm_w = f->pend.norm;
                n.add_norm_b = f->pend.norm_b;
                n.add_scale = f->d->residual_scale;
                f->x.q_kind = 0;
        }
        f->pend = (struct pending){ 0 };
        if (!n.add && !out)
                return 0;
        if (out)
                out->q_kind = 0;
        return f->ops->norm(f->dev, f->bt, &n);
}

static int flush(struct eng_forward *f) {
        return norm_x(f, NULL, NULL, NULL, 0);
}

/* RMS norm in place over [n, cols] outside the residual stream. */
static int norm_self(struct eng_forward *f, struct k_act *a, const float *w) {
        a->q_kind = 0;
        return f->ops->norm(f->dev, f->bt, &(struct k_norm_args){ .x = a, .kind = f->d->norm, .w = w, .eps = f->d->norm_eps,
                                                                 .out_scale = 1, .out = a });
}

static int linear1(struct eng_forward *f, struct k_act *x, const struct k_weight *w, const float *bias, float *y) {
        struct k_linear_args l = { .x = x, .n_out = 1, .n_rows = f->bt->n, .n_d = f->bt->n_d };

        l.out[0].w = w;
        l.out[0].bias = bias;
        l.out[0].y = y;
        l.out[0].y_stride = w->rows;
        return f->ops->linear(f->dev, f->bt, &l);
}

static void add_out(struct k_linear_args *l, const struct k_weight *w, const float *bias, float *y) {
        l->out[l->n_out].w = w;
        l->out[l->n_out].bias = bias;
        l->out[l->n_out].y = y;
        l->out[l->n_out++].y_stride = w->rows;
}

static int axpy(struct eng_forward *f, float *y, const float *x, float b, uint32_t cols) {
        return f->ops->elem(f->dev, f->bt, &(struct k_elem_args){ .op = K_ELEM_AXPY, .y = y, .y_stride = cols, .cols = cols, .x = x,
                                                                 .x_stride = cols, .a = 1, .b = b, .n = f->bt->n });
}

/* The input of a branch. */
static int branch_in(struct eng_forward *f, const struct eng_branch *b, struct k_act **ret) {
        if (b->pre) {
                TRY(norm_x(f, b->pre, b->pre_b, &f->h, 0));
                *ret = &f->h;
        } else {
                TRY(flush(f));
                *ret = &f->x;
        }
        return 0;
}

/* y holds the branch's result. */
static int branch_out(struct eng_forward *f, const struct eng_branch *b) {
        f->pend = (struct pending){ .set = true, .norm = b->out, .norm_b = b->out_b };
        if (b->res)
                return norm_x(f, b->res, b->res_b, &f->x, 0);
        return 0;
}

/* ---- mixers ------------------------------------------------------------------ */

static int attend(struct eng_forward *f, const struct eng_attn *a, const struct k_qkv_args *q, const float *gate) {
        struct k_attention_args t = {
                .q = q->q, .q_stride = q->q_stride, .q_head = q->q_head, .n_head = a->n_head, .kv = q->kv, .scale = a->scale,
                .softcap = a->softcap, .window = a->window, .causal = !f->d->encoder, .sinks = a->sinks,
                .out = use(&f->a, a->n_head * a->dv),
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
                q.q = part(f, &at, a->wqkv.rows);
                q.k = q.q + qd;
                q.v = q.k + kd;
                q.q_stride = q.k_stride = q.v_stride = a->wqkv.rows;
                add_out(&l, &a->wqkv, a->bqkv, q.q);
        } else {
                q.q = part(f, &at, qd);
                q.q_stride = qd;
                add_out(&l, &a->wq, a->bq, q.q);
                if (!a->kv_shared) {
                        float *v;

                        q.k = part(f, &at, kd);
                        q.k_stride = kd;
                        add_out(&l, &a->wk, a->bk, q.k);
                        if (a->v_from_k) {
                                q.v = q.k;
                                q.v_stride = kd;
                        } else {
                                q.v = v = part(f, &at, vd);
                                q.v_stride = vd;
                                add_out(&l, &a->wv, a->bv, v);
                        }
                }
        }
        TRY(f->ops->linear(f->dev, f->bt, &l));
        TRY(attend(f, a, &q, a->gated ? q.q + a->dk : NULL));
        if (a->sub_norm)
                TRY(norm_self(f, &f->a, a->sub_norm));
        return linear1(f, &f->a, &a->wo, a->bo, f->y.f);
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
        float *qb = part(f, &at, (size_t)H * d_q);

        q.q = part(f, &at, (size_t)H * a->dk);
        q.k = part(f, &at, a->dk);
        add_out(&l, &a->wkv_a, NULL, q.k);
        if (k_weight_present(&a->wq_a)) {
                struct k_act *qa = use(&f->b, a->q_rank);

                add_out(&l, &a->wq_a, NULL, qa->f);
                TRY(f->ops->linear(f->dev, f->bt, &l));
                TRY(norm_self(f, qa, a->q_a_norm));
                TRY(linear1(f, qa, &a->wq_b, NULL, qb));
        } else {
                add_out(&l, &a->wq_b, NULL, qb);
                TRY(f->ops->linear(f->dev, f->bt, &l));
        }
        TRY(f->ops->head_linear(f->dev, f->bt, &(struct k_head_linear_args){
                .x = qb, .x_stride = (size_t)H * d_q, .x_head = d_q, .w = &a->wk_b, .tail = a->d_rope,
                .y = q.q, .y_stride = q.q_stride, .y_head = a->dk, .n = f->bt->n, .n_d = f->bt->n_d }));
        TRY(attend(f, a, &q, NULL));
        use(&f->b, H * a->d_v);
        TRY(f->ops->head_linear(f->dev, f->bt, &(struct k_head_linear_args){
                .x = f->a.f, .x_stride = (size_t)H * a->dv, .x_head = a->dv, .w = &a->wv_b,
                .y = f->b.f, .y_stride = (size_t)H * a->d_v, .y_head = a->d_v, .n = f->bt->n, .n_d = f->bt->n_d }));
        return linear1(f, &f->b, &a->wo, a->bo, f->y.f);
}

static int delta(struct eng_forward *f, const struct eng_delta *x, struct k_act *in) {
        struct k_linear_args l = { .x = in, .n_rows = f->bt->n, .n_d = f->bt->n_d };
        struct k_delta_args t = {
                .n_k = x->n_k, .n_v = x->n_v, .s_k = x->s_k, .s_v = x->s_v, .k_head_blocked = x->k_head_blocked,
                .ba_run = x->ba_run, .conv = x->conv, .conv_w = x->conv_w, .a = x->a, .dt_bias = x->dt_bias, .norm_w = x->norm,
                .eps = f->d->norm_eps, .conv_state = f->io->state[x->state].conv, .state = f->io->state[x->state].state,
                .out = use(&f->a, x->n_v * x->s_v), .qkv_stride = x->wqkv.rows, .z_stride = x->wz.rows,
        };
        size_t at = 0;
        float *z, *ba;

        t.qkv = part(f, &at, x->wqkv.rows);
        t.z = z = part(f, &at, x->wz.rows);
        add_out(&l, &x->wqkv, NULL, t.qkv);
        add_out(&l, &x->wz, NULL, z);
        if (k_weight_present(&x->wba)) {
                t.beta = ba = part(f, &at, x->wba.rows);
                t.alpha = t.beta + x->ba_run;
                t.ba_stride = x->wba.rows;
                add_out(&l, &x->wba, NULL, ba);
        } else {
                t.beta = ba = part(f, &at, x->n_v);
                add_out(&l, &x->wbeta, NULL, ba);
                t.alpha = ba = part(f, &at, x->n_v);
                add_out(&l, &x->walpha, NULL, ba);
                t.ba_stride = x->n_v;
        }
        TRY(f->ops->linear(f->dev, f->bt, &l));
        TRY(f->ops->delta(f->dev, f->bt, &t));
        return linear1(f, &f->a, &x->wout, NULL, f->y.f);
}

static int shortconv(struct eng_forward *f, const struct eng_shortconv *x, struct k_act *in) {
        TRY(linear1(f, in, &x->win, NULL, f->wide));
        TRY(f->ops->shortconv(f->dev, f->bt, &(struct k_shortconv_args){
                .bcx = f->wide, .stride = (size_t)3 * x->d, .d = x->d, .conv = x->conv, .conv_w = x->conv_w,
                .conv_state = f->io->state[x->state].conv, .out = use(&f->a, x->d) }));
        return linear1(f, &f->a, &x->wout, NULL, f->y.f);
}

static int mixer(struct eng_forward *f, const struct eng_layer *l) {
        struct k_act *in;

        TRY(branch_in(f, &l->mix_norm, &in));
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
        return branch_out(f, &l->mix_norm);
}

/* ---- feed-forward --------------------------------------------------------------- */

static int gated(struct eng_forward *f, const struct eng_ffn *x, struct k_act *in, const struct k_weight *gate,
                 const float *gate_b, const struct k_weight *up, const float *up_b, uint32_t n_ff) {
        struct k_linear_args l = { .x = in, .n_rows = f->bt->n, .n_d = f->bt->n_d };
        struct k_glu_args g = {
                .gate_stride = n_ff, .up_stride = n_ff, .act = x->act, .alpha = x->alpha, .limit = x->limit,
                .out = use(&f->b, n_ff), .n = f->bt->n,
        };
        size_t at = 0;
        float *p;

        if (k_weight_present(gate)) {
                g.gate = p = part(f, &at, n_ff);
                add_out(&l, gate, gate_b, p);
        }
        p = part(f, &at, up->rows);
        add_out(&l, up, up_b, p);
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
                TRY(norm_self(f, &f->b, x->sub_norm));
        TRY(linear1(f, &f->b, &x->down, x->down_b, f->y.f));
        return x->dense_out_norm ? norm_self(f, &f->y, x->dense_out_norm) : 0;
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
        TRY(linear1(f, rin, &x->router, x->router_b, f->route));
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
        return x->exp_out_norm ? norm_self(f, out, x->exp_out_norm) : 0;
}

static int shared_expert(struct eng_forward *f, const struct eng_ffn *x, struct k_act *in) {
        uint32_t E = f->d->n_embd;

        TRY(gated(f, x, in, &x->sh_gate, NULL, &x->sh_up, NULL, x->n_ff_shexp));
        TRY(linear1(f, &f->b, &x->sh_down, NULL, f->y2.f));
        if (k_weight_present(&x->sh_router)) {
                TRY(linear1(f, in, &x->sh_router, NULL, f->gate1));
                TRY(f->ops->elem(f->dev, f->bt, &(struct k_elem_args){
                        .op = K_ELEM_MUL_SIGMOID_ROW, .y = f->y2.f, .y_stride = E, .cols = E, .x = f->gate1, .x_stride = 1,
                        .n = f->bt->n }));
        }
        return axpy(f, f->y.f, f->y2.f, 1, E);
}

static int feed_forward(struct eng_forward *f, const struct eng_layer *l) {
        const struct eng_ffn *x = &l->ffn;
        struct k_act *in;

        TRY(branch_in(f, &l->ffn_norm, &in));
        if (x->n_ff)
                TRY(dense(f, x, in));
        if (x->n_expert) {
                TRY(experts(f, x, in, x->n_ff ? &f->y2 : &f->y));
                if (x->n_ff)
                        TRY(axpy(f, f->y.f, f->y2.f, 1, f->d->n_embd));
        }
        if (x->n_ff_shexp)
                TRY(shared_expert(f, x, in));
        return branch_out(f, &l->ffn_norm);
}

/* ---- per-layer embeddings (gemma4) ------------------------------------------------ */

/* ple = (norm(proj(x) / sqrt(n_embd)) + embedding * sqrt(n_ple)) / sqrt(2); the norm makes the first factor matter by eps only. */
static int ple_prepare(struct eng_forward *f) {
        const struct eng_desc *d = f->d;
        uint32_t cols = d->n_ple * d->n_layer;
        struct k_act t = { .f = f->wide, .cols = cols };

        TRY(linear1(f, &f->x, &d->ple_proj, NULL, f->wide));
        TRY(f->ops->elem(f->dev, f->bt, &(struct k_elem_args){ .op = K_ELEM_SCALE, .y = f->wide, .y_stride = cols, .cols = cols,
                                                              .a = 1.0f / sqrtf((float)d->n_embd), .n = f->bt->n }));
        TRY(f->ops->norm(f->dev, f->bt, &(struct k_norm_args){ .x = &t, .kind = d->norm, .group = d->n_ple, .w = d->ple_norm,
                                                              .eps = d->norm_eps, .out_scale = 1, .out = &t }));
        TRY(f->ops->embed(f->dev, f->bt, &(struct k_embed_args){ .w = &d->ple_embed, .index = K_EMBED_TOKEN,
                                                                .scale = sqrtf((float)d->n_ple), .out = use(&f->ple, cols) }));
        return f->ops->elem(f->dev, f->bt, &(struct k_elem_args){
                .op = K_ELEM_AXPY, .y = f->ple.f, .y_stride = cols, .cols = cols, .x = f->wide, .x_stride = cols,
                .a = (float)M_SQRT1_2, .b = (float)M_SQRT1_2, .n = f->bt->n });
}

static int ple_apply(struct eng_forward *f, const struct eng_layer *l, uint32_t i) {
        uint32_t P = f->d->n_ple;

        TRY(flush(f));
        TRY(linear1(f, &f->x, &l->ple_gate, NULL, f->wide));
        TRY(f->ops->glu(f->dev, f->bt, &(struct k_glu_args){
                .gate = f->wide, .gate_stride = P, .up = f->ple.f + (size_t)i * P, .up_stride = (size_t)P * f->d->n_layer,
                .act = K_GLU_GELU_TANH, .out = use(&f->b, P), .n = f->bt->n }));
        TRY(linear1(f, &f->b, &l->ple_proj, NULL, f->y.f));
        f->pend = (struct pending){ .set = true, .norm = l->ple_norm };
        return 0;
}

/* ---- runs -------------------------------------------------------------------------- */

/* From here on only the wanted rows. */
static int keep_rows(struct eng_forward *f) {
        const struct eng_forward_io *io = f->io;
        uint32_t E = f->d->n_embd;
        struct k_act t;

        TRY(flush(f));
        TRY(f->ops->elem(f->dev, f->bt, &(struct k_elem_args){ .op = K_ELEM_COPY, .y = f->x2.f, .y_stride = E, .cols = E, .x = f->x.f,
                                                              .x_stride = E, .gather = io->out_rows, .n = io->n_out }));
        t = f->x;
        f->x = f->x2;
        f->x2 = t;
        f->x.q_kind = 0;
        f->sub = *f->bt;
        f->sub.n = io->n_out;
        f->sub.n_d = io->n_out_d;
        f->bt = &f->sub;
        return 0;
}

static int layer(struct eng_forward *f, uint32_t i, bool last) {
        const struct eng_layer *l = &f->d->layer[i];
        uint32_t E = f->d->n_embd;

        TRY(mixer(f, l));
        if (last && !f->io->hidden && f->io->n_out < f->bt->n && !f->d->n_ple)
                TRY(keep_rows(f));
        if (f->bt->n == 0)
                return 0;
        TRY(feed_forward(f, l));
        if (f->d->n_ple && k_weight_present(&l->ple_gate))
                TRY(ple_apply(f, l, i));
        if (l->out_scale != 1) {
                TRY(flush(f));
                f->x.q_kind = 0;
                TRY(f->ops->elem(f->dev, f->bt, &(struct k_elem_args){ .op = K_ELEM_SCALE, .y = f->x.f, .y_stride = E, .cols = E,
                                                                      .a = l->out_scale, .n = f->bt->n }));
        }
        return 0;
}

static int logits(struct eng_forward *f, const struct k_weight *head, const float *w, const float *b) {
        const struct eng_desc *d = f->d;
        const struct eng_forward_io *io = f->io;
        uint32_t n = io->n_out, V = head->rows;
        struct k_linear_args l = { .x = &f->h, .n_rows = n, .n_d = io->n_out_d };

        if (n == 0 || !k_weight_present(head))
                return 0;
        if (n == f->bt->n) {
                TRY(norm_x(f, w, b, use(&f->h, d->n_embd), 0));
        } else {
                TRY(flush(f));
                TRY(f->ops->norm(f->dev, f->bt, &(struct k_norm_args){
                        .x = &f->x, .kind = d->norm, .w = w, .b = b, .eps = d->norm_eps, .out_scale = 1, .gather = io->out_rows,
                        .n_rows = n, .out = use(&f->h, d->n_embd) }));
        }
        add_out(&l, head, d->output_b, io->logits);
        TRY(f->ops->linear(f->dev, f->bt, &l));
        if (d->logit_softcap != 0)
                return f->ops->elem(f->dev, f->bt, &(struct k_elem_args){ .op = K_ELEM_SOFTCAP, .y = io->logits, .y_stride = V,
                                                                         .cols = V, .a = d->logit_scale, .b = d->logit_softcap,
                                                                         .n = n });
        if (d->logit_scale != 1)
                return f->ops->elem(f->dev, f->bt, &(struct k_elem_args){ .op = K_ELEM_SCALE, .y = io->logits, .y_stride = V,
                                                                         .cols = V, .a = d->logit_scale, .n = n });
        return 0;
}

/* The output norm of every row, for whoever asked; absent: the residual itself. */
static int hidden(struct eng_forward *f, const float *w, const float *b) {
        struct k_act out = { .f = f->io->hidden, .cols = f->d->n_embd };
        uint32_t E = f->d->n_embd;

        if (!out.f)
                return 0;
        if (w)
                return norm_x(f, w, b, &out, 0);
        TRY(flush(f));
        return f->ops->elem(f->dev, f->bt, &(struct k_elem_args){ .op = K_ELEM_COPY, .y = out.f, .y_stride = E, .cols = E,
                                                                 .x = f->x.f, .x_stride = E, .n = f->bt->n });
}

static void begin(struct eng_forward *f, const struct eng_forward_io *io) {
        f->io = io;
        f->bt = io->batch;
        f->pend = (struct pending){ 0 };
        use(&f->x, f->d->n_embd);
        use(&f->h, f->d->n_embd);
        use(&f->h2, f->d->n_embd);
}

static int embed(struct eng_forward *f) {
        const struct eng_desc *d = f->d;
        struct k_embed_args e = { .w = &d->embed, .index = K_EMBED_TOKEN, .scale = d->embed_scale, .out = &f->x };

        TRY(f->ops->embed(f->dev, f->bt, &e));
        e.add = true;
        e.scale = 1;
        if (k_weight_present(&d->embed_type)) {
                e.w = &d->embed_type;
                e.index = K_EMBED_ZERO;
                TRY(f->ops->embed(f->dev, f->bt, &e));
        }
        if (k_weight_present(&d->embed_pos)) {
                e.w = &d->embed_pos;
                e.index = K_EMBED_POS;
                TRY(f->ops->embed(f->dev, f->bt, &e));
        }
        return d->embed_norm ? norm_x(f, d->embed_norm, d->embed_norm_b, &f->x, 0) : 0;
}

int eng_forward_run(struct eng_forward *f, const struct eng_forward_io *io) {
        const struct eng_desc *d = f->d;

        if (io->batch->n == 0 || io->batch->n > f->lim.n_rows || io->n_out > io->batch->n)
                return -EINVAL;
        begin(f, io);
        TRY(embed(f));
        if (d->n_ple)
                TRY(ple_prepare(f));
        for (uint32_t i = 0; i < d->n_layer; i++)
                TRY(layer(f, i, i + 1 == d->n_layer));
        TRY(hidden(f, d->out_norm, d->out_norm_b));
        return logits(f, &d->output, d->out_norm, d->out_norm_b);
}

int eng_forward_mtp(struct eng_forward *f, uint32_t k, const struct eng_forward_io *io) {
        const struct eng_desc *d = f->d;
        const struct eng_mtp *m;
        struct k_act h = { .f = (float *)io->h_prev, .cols = d->n_embd };

        if (k >= d->n_mtp || io->batch->n == 0 || io->batch->n > f->lim.n_rows || io->n_out > io->batch->n || !io->h_prev)
                return -EINVAL;
        m = &d->mtp[k];
        begin(f, io);
        TRY(f->ops->embed(f->dev, f->bt, &(struct k_embed_args){ .w = &m->embed, .index = K_EMBED_TOKEN, .scale = d->embed_scale,
                                                                .out = &f->x }));
        TRY(norm_x(f, m->enorm, NULL, use(&f->cat, 2 * d->n_embd), 0));
        TRY(f->ops->norm(f->dev, f->bt, &(struct k_norm_args){ .x = &h, .kind = d->norm, .w = m->hnorm, .eps = d->norm_eps,
                                                              .out_scale = 1, .out = &f->cat, .out_col = d->n_embd }));
        TRY(linear1(f, &f->cat, &m->eh_proj, NULL, use(&f->x, d->n_embd)->f));
        TRY(layer(f, m->layer, true));
        TRY(hidden(f, m->head_norm, NULL));
        return logits(f, &m->head, m->head_norm, NULL);
}
