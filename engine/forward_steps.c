/* SPDX-License-Identifier: Apache-2.0 */
/* Single ops of the forward pass: see forward_int.h. */
#include "engine/forward_int.h"

struct k_act *fwd_use(struct k_act *a, uint32_t cols) {
        a->cols = cols;
        a->q_kind = 0;
        return a;
}

/* A part of f->wide: [n, cols], the next one behind it. */
float *fwd_part(struct eng_forward *f, size_t *at, size_t cols) {
        float *p = f->wide + *at;

        *at += (cols * f->bt->n + 15) & ~(size_t)15;
        return p;
}

/* out = norm(x) after the pending addition; out NULL: only the addition. */
int fwd_norm(struct eng_forward *f, const float *w, const float *b, struct k_act *out, uint32_t out_col) {
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

int fwd_flush(struct eng_forward *f) {
        return fwd_norm(f, NULL, NULL, NULL, 0);
}

/* RMS norm in place over [n, cols] outside the residual stream. */
int fwd_norm_self(struct eng_forward *f, struct k_act *a, const float *w) {
        a->q_kind = 0;
        return f->ops->norm(f->dev, f->bt, &(struct k_norm_args){ .x = a, .kind = f->d->norm, .w = w, .eps = f->d->norm_eps,
                                                                 .out_scale = 1, .out = a });
}

int fwd_linear(struct eng_forward *f, struct k_act *x, const struct k_weight *w, const float *bias, float *y) {
        struct k_linear_args l = { .x = x, .n_out = 1, .n_rows = f->bt->n, .n_d = f->bt->n_d };

        l.out[0].w = w;
        l.out[0].bias = bias;
        l.out[0].y = y;
        l.out[0].y_stride = w->rows;
        return f->ops->linear(f->dev, f->bt, &l);
}

void fwd_add_out(struct k_linear_args *l, const struct k_weight *w, const float *bias, float *y) {
        l->out[l->n_out].w = w;
        l->out[l->n_out].bias = bias;
        l->out[l->n_out].y = y;
        l->out[l->n_out++].y_stride = w->rows;
}

int fwd_axpy(struct eng_forward *f, float *y, const float *x, float b, uint32_t cols) {
        return f->ops->elem(f->dev, f->bt, &(struct k_elem_args){ .op = K_ELEM_AXPY, .y = y, .y_stride = cols, .cols = cols, .x = x,
                                                                 .x_stride = cols, .a = 1, .b = b, .n = f->bt->n });
}

/* The input of a branch. */
int fwd_branch_in(struct eng_forward *f, const struct eng_branch *b, struct k_act **ret) {
        if (b->pre) {
                TRY(fwd_norm(f, b->pre, b->pre_b, &f->h, 0));
                *ret = &f->h;
        } else {
                TRY(fwd_flush(f));
                *ret = &f->x;
        }
        return 0;
}

/* y holds the branch's result. */
int fwd_branch_out(struct eng_forward *f, const struct eng_branch *b) {
        f->pend = (struct pending){ .set = true, .norm = b->out, .norm_b = b->out_b };
        if (b->res)
                return fwd_norm(f, b->res, b->res_b, &f->x, 0);
        return 0;
}
