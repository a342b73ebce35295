/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models with several residual streams (gemma3n: AltUp, arXiv:2301.13310). A
 * layer computes on one stream only; before it every stream is predicted from
 * all of them, after it all are corrected by how far the active one's result is
 * from its prediction. Coefficients are products of a small router's tanh.
 *
 * Stream 0 begins as the embedding, the others as projections of it with the
 * same magnitude; at the end their projections' mean goes into the output norm.
 * x is the active stream while a layer computes.
 */
#include "engine/forward_int.h"

#include <math.h>

#define MATCH_EPS 1e-5f

static struct k_act stream(struct eng_forward *f, uint32_t s) {
        return (struct k_act){ .f = f->alt + s * alt_stride(f->d, f->bt->n), .cols = f->d->n_embd };
}

static int altup(struct eng_forward *f, enum k_altup op, uint32_t active, const float *c, size_t c_stride, float *x) {
        return f->ops->altup(f->dev, f->bt, &(struct k_altup_args){
                .op = op, .h = f->alt, .stream_stride = alt_stride(f->d, f->bt->n), .n_stream = f->d->n_altup, .active = active,
                .cols = f->d->n_embd, .c = c, .c_stride = c_stride, .x = x, .eps = MATCH_EPS, .n = f->bt->n });
}

static int axpy(struct eng_forward *f, float *y, float a, const float *x, float b) {
        uint32_t E = f->d->n_embd;

        return f->ops->elem(f->dev, f->bt, &(struct k_elem_args){ .op = K_ELEM_AXPY, .y = y, .y_stride = E, .cols = E, .x = x,
                                                                 .x_stride = E, .a = a, .b = b, .n = f->bt->n });
}

static int copy(struct eng_forward *f, float *y, const float *x) {
        uint32_t E = f->d->n_embd;

        return f->ops->elem(f->dev, f->bt, &(struct k_elem_args){ .op = K_ELEM_COPY, .y = y, .y_stride = E, .cols = E, .x = x,
                                                                 .x_stride = E, .n = f->bt->n });
}

/* modes = tanh(router(norm(x) / n_embd)) */
static int modes(struct eng_forward *f, const struct eng_altup *u, struct k_act *x) {
        uint32_t A = f->d->n_altup;

        TRY(f->ops->norm(f->dev, f->bt, &(struct k_norm_args){
                .x = x, .kind = f->d->norm, .w = u->router_norm, .eps = f->d->norm_eps, .out_scale = 1.0f / (float)f->d->n_embd,
                .out = fwd_use(&f->h2, f->d->n_embd) }));
        TRY(fwd_linear(f, &f->h2, &u->router, NULL, fwd_use(&f->modes, A)->f));
        return f->ops->elem(f->dev, f->bt, &(struct k_elem_args){ .op = K_ELEM_SOFTCAP, .y = f->modes.f, .y_stride = A, .cols = A,
                                                                 .a = 1, .b = 1, .n = f->bt->n });
}

int fwd_altup_begin(struct eng_forward *f) {
        TRY(copy(f, f->alt, f->x.f));
        for (uint32_t s = 1; s < f->d->n_altup; s++) {
                struct k_act a = stream(f, s);

                TRY(fwd_linear(f, &f->x, &f->d->altup_in[s - 1], NULL, a.f));
                TRY(altup(f, K_ALTUP_MATCH, 0, NULL, 0, a.f));
        }
        return 0;
}

/* The low-rank branch on the mixer's normed input, which is still in h: y2 = h + norm(r(l(h))). */
static int laurel(struct eng_forward *f, const struct eng_altup *u) {
        struct k_act *low = fwd_use(&f->b, u->laurel_l.rows);

        TRY(fwd_linear(f, &f->h, &u->laurel_l, NULL, low->f));
        TRY(fwd_linear(f, low, &u->laurel_r, NULL, f->y2.f));
        TRY(fwd_norm_self(f, &f->y2, u->laurel_norm));
        return axpy(f, f->y2.f, 1, f->h.f, 1);
}

/* The layer's embedding goes to every stream but the first. */
static int spread(struct eng_forward *f, const struct eng_layer *l, uint32_t i) {
        struct k_act first = stream(f, f->d->altup_active);
        uint32_t P = f->d->n_ple, E = f->d->n_embd;

        TRY(copy(f, fwd_use(&f->h, E)->f, first.f));
        TRY(f->ops->elem(f->dev, f->bt, &(struct k_elem_args){ .op = K_ELEM_MUL_VEC, .y = f->h.f, .y_stride = E, .cols = E,
                                                              .x = l->altup.out_scale, .n = f->bt->n }));
        TRY(fwd_linear(f, &f->h, &l->ple_gate, NULL, f->wide));
        TRY(f->ops->glu(f->dev, f->bt, &(struct k_glu_args){
                .gate = f->wide, .gate_stride = P, .up = f->ple.f + (size_t)i * P, .up_stride = (size_t)P * f->d->n_layer,
                .act = K_GLU_GELU_TANH, .out = fwd_use(&f->b, P), .n = f->bt->n }));
        TRY(fwd_linear(f, &f->b, &l->ple_proj, NULL, f->y.f));
        TRY(fwd_norm_self(f, &f->y, l->ple_norm));
        for (uint32_t s = 1; s < f->d->n_altup; s++)
                TRY(axpy(f, stream(f, s).f, 1, f->y.f, 1));
        return 0;
}

int fwd_altup_layer(struct eng_forward *f, const struct eng_layer *l, uint32_t i) {
        const struct eng_desc *d = f->d;
        const struct eng_altup *u = &l->altup;
        uint32_t A = d->n_altup;
        struct k_act act = stream(f, d->altup_active);

        TRY(modes(f, u, &act));
        TRY(fwd_linear(f, &f->modes, &u->predict, NULL, f->coef));
        TRY(altup(f, K_ALTUP_PREDICT, d->altup_active, f->coef, (size_t)A * A, NULL));
        TRY(copy(f, fwd_use(&f->x, d->n_embd)->f, act.f));

        TRY(fwd_mixer(f, l));
        TRY(laurel(f, u));
        TRY(fwd_flush(f));
        TRY(axpy(f, fwd_use(&f->x, d->n_embd)->f, (float)M_SQRT1_2, f->y2.f, (float)M_SQRT1_2));
        TRY(fwd_feed_forward(f, l));
        TRY(fwd_flush(f));

        TRY(modes(f, u, &f->x));
        TRY(fwd_linear(f, &f->modes, &u->correct, NULL, f->coef));
        TRY(altup(f, K_ALTUP_CORRECT, d->altup_active, f->coef, A, f->x.f));
        return spread(f, l, i);
}

int fwd_altup_end(struct eng_forward *f) {
        uint32_t A = f->d->n_altup;
        float part = 1.0f / (float)A;

        TRY(copy(f, fwd_use(&f->x, f->d->n_embd)->f, f->alt));
        for (uint32_t s = 1; s < A; s++) {
                struct k_act a = stream(f, s);

                TRY(fwd_linear(f, &a, &f->d->altup_out[s - 1], NULL, f->y.f));
                TRY(altup(f, K_ALTUP_MATCH, 0, NULL, 0, f->y.f));
                TRY(axpy(f, f->x.f, s == 1 ? part : 1, f->y.f, part));
        }
        return 0;
}
