/* SPDX-License-Identifier: Apache-2.0 */
/* Norms, GLU and elementwise ops; and the images that norm and GLU leave for the product behind them. */
#include "check.h"

#include <stdio.h>
#include <string.h>

static void norm_case(struct rig *r, uint32_t n, uint32_t cols, enum k_norm kind, uint32_t group, bool add, bool add_norm, bool bias,
                      bool gather, bool in_place) {
        float *hx = random_floats((size_t)n * cols, cols + n), *ha = random_floats((size_t)n * cols, 7), *hw = random_floats(cols, 8);
        struct acts x = acts_new(r, hx, n, cols), y = acts_new(r, ha, n, cols), o = acts_new(r, NULL, n, cols);
        struct pair w = both(r, hw, cols * sizeof(float));
        uint32_t pick[64], m = gather ? (n + 1) / 2 : n;
        struct k_batch b = { .n = n, .n_d = n / 2 };
        struct k_norm_args c = { .kind = kind, .group = group, .eps = 1e-5f, .out_scale = 0.75f, .add_scale = 0.5f,
                                 .gather = gather ? pick : NULL, .n_rows = m }, g = c;
        char what[120];

        for (uint32_t i = 0; i < m; i++)
                pick[i] = 2 * i;
        c.x = &x.c;
        g.x = &x.g;
        c.out = in_place ? &x.c : &o.c;
        g.out = in_place ? &x.g : &o.g;
        if (add) {
                c.add = &y.c;
                g.add = &y.g;
        }
        if (add_norm) {
                c.add_norm_w = w.c;
                g.add_norm_w = w.g;
        }
        c.w = w.c;
        g.w = w.g;
        if (bias) {
                c.b = w.c;
                g.b = w.g;
        }
        RUN(r, norm, &b, &b, &c, &g, "norm");
        snprintf(what, sizeof(what), "norm kind %d, %u x %u, group %u%s%s%s%s%s", (int)kind, n, cols, group, add ? ", add" : "",
                 add_norm ? ", branch norm" : "", bias ? ", bias" : "", gather ? ", gather" : "", in_place ? ", in place" : "");
        compare(r, what, in_place ? x.f : o.f, m, cols, cols, 2e-6);
        if (!in_place)
                compare(r, "residual after norm", x.f, n, cols, cols, 1e-6);
        acts_free(r, &x);
        acts_free(r, &y);
        acts_free(r, &o);
        both_free(r, &w);
        free(hx);
        free(ha);
        free(hw);
}

/* sparse: of the gates only what exceeds their row's mean by so many deviations; 0: all. */
static void glu_case(struct rig *r, uint32_t n, uint32_t cols, enum k_glu act, bool gated, float sparse) {
        float *hg = random_floats((size_t)n * 2 * cols, cols + n);
        struct pair in = both(r, hg, (size_t)n * 2 * cols * sizeof(float));
        struct acts o = acts_new(r, NULL, n, cols);
        struct k_batch b = { .n = n, .n_d = n / 2 };
        struct k_glu_args c = { .gate_stride = 2 * cols, .up_stride = 2 * cols, .act = act, .alpha = 1.702f, .limit = 1.5f,
                                .sparse_std = sparse, .n = n }, g = c;
        char what[80];

        c.gate = gated ? in.c : NULL;
        g.gate = gated ? in.g : NULL;
        c.up = (float *)in.c + cols;
        g.up = (float *)in.g + cols;
        c.out = &o.c;
        g.out = &o.g;
        RUN(r, glu, &b, &b, &c, &g, "glu");
        snprintf(what, sizeof(what), "glu %d, %u x %u%s%s", (int)act, n, cols, gated ? "" : ", no gate", sparse != 0 ? ", sparse" : "");
        compare(r, what, o.f, n, cols, cols, sparse != 0 ? 2e-5 : 2e-6); /* a small difference of the gate and its row's limit */
        /* a product that finds the image which the GLU made: the same bits as one that makes its own */
        struct matrix m;
        if (cols % 32 == 0 && matrix_new(r, K_Q8_0, 40, cols, 1, false, 3, &m) == 0) {
                struct pair y = both_poison(r, (size_t)n * 40), y2 = both_poison(r, (size_t)n * 40);
                struct k_linear_args l = { .x = &o.g, .n_out = 1, .n_rows = n, .n_d = n / 2 };
                l.out[0].w = &m.g;
                l.out[0].y = y.g;
                l.out[0].y_stride = 40;
                if (r->gpu->ops->linear(r->gpu, &b, &l) < 0)
                        expect(r, false, "linear after glu");
                o.g.q_kind = 0;
                l.out[0].y = y2.g;
                if (r->gpu->ops->linear(r->gpu, &b, &l) < 0)
                        expect(r, false, "linear after glu");
                float *p = fetch(r, y.g, (size_t)n * 40), *q = fetch(r, y2.g, (size_t)n * 40);
                expect(r, memcmp(p, q, (size_t)n * 40 * sizeof(float)) == 0, "%s: the image it leaves", what);
                free(p);
                free(q);
                both_free(r, &y);
                both_free(r, &y2);
                matrix_free(r, &m);
        }
        acts_free(r, &o);
        both_free(r, &in);
        free(hg);
}

/* Gate and up from one product with the GLU of them, which must not be joined with it: n_d rows of generated tokens, the others of prompts. */
static void sparse_case(struct rig *r, enum k_type t, uint32_t n, uint32_t n_d, uint32_t ff, uint32_t cols) {
        float *hx = random_floats((size_t)n * cols, cols + n);
        struct acts x = acts_new(r, hx, n, cols), o = acts_new(r, NULL, n, ff);
        struct pair y = both_poison(r, (size_t)n * 2 * ff);
        struct matrix m[2];
        char what[80];

        for (uint32_t i = 0; i < 2; i++)
                if (matrix_new(r, t, ff, cols, 1, false, 17 + i, &m[i]) < 0)
                        expect(r, false, "a matrix of %s", k_type_name(t));
        for (int gpu = 0; gpu < 2; gpu++) {
                struct k_dev *d = gpu ? r->gpu : r->cpu;
                struct k_batch b = { .n = n, .n_d = n_d, .n_seq = 1 };
                struct k_linear_args l = { .x = gpu ? &x.g : &x.c, .n_out = 2, .n_rows = n, .n_d = n_d };
                for (uint32_t i = 0; i < 2; i++) {
                        l.out[i].w = gpu ? &m[i].g : &m[i].c;
                        l.out[i].y = (float *)(gpu ? y.g : y.c) + (size_t)i * n * ff;
                        l.out[i].y_stride = ff;
                }
                struct k_glu_args g = { .gate = l.out[0].y, .up = l.out[1].y, .gate_stride = ff, .up_stride = ff, .act = K_GLU_GELU_TANH, .sparse_std = 0.25f,
                                        .out = gpu ? &o.g : &o.c, .n = n };
                if (d->ops->batch_begin(d, &b) < 0 || d->ops->linear(d, &b, &l) < 0 || d->ops->glu(d, &b, &g) < 0 || d->ops->batch_end(d, &b) < 0)
                        expect(r, false, "a sparse GLU behind its product: %s", d->ops->last_error(d));
        }
        snprintf(what, sizeof(what), "sparse glu of products of %s, %u and %u rows", k_type_name(t), n_d, n - n_d);
        compare(r, what, o.f, n, ff, ff, 3e-2);
        for (uint32_t i = 0; i < 2; i++)
                matrix_free(r, &m[i]);
        both_free(r, &y);
        acts_free(r, &x);
        acts_free(r, &o);
        free(hx);
}

static void elem_case(struct rig *r, enum k_elem op, uint32_t n, uint32_t cols) {
        float *hx = random_floats((size_t)n * cols, 3), *hy = random_floats((size_t)n * cols, 4);
        struct pair x = both(r, hx, (size_t)n * cols * sizeof(float)), y = both(r, hy, (size_t)n * cols * sizeof(float));
        uint32_t pick[64];
        struct k_batch b = { .n = n, .n_d = n };
        struct k_elem_args c = { .op = op, .y_stride = cols, .x_stride = cols, .cols = cols, .a = 0.5f, .b = 2, .n = n,
                                 .gather = op == K_ELEM_COPY ? pick : NULL }, g;
        char what[40];

        for (uint32_t i = 0; i < n; i++)
                pick[i] = n - 1 - i;
        g = c;
        c.x = x.c;
        g.x = x.g;
        c.y = y.c;
        g.y = y.g;
        RUN(r, elem, &b, &b, &c, &g, "elem");
        snprintf(what, sizeof(what), "elem %d, %u x %u", (int)op, n, cols);
        compare(r, what, y, n, cols, cols, 2e-6);
        both_free(r, &x);
        both_free(r, &y);
        free(hx);
        free(hy);
}

/* Streams lie further apart than they are long: what is between them must stay. x is made smaller by a factor. */
static void altup_case(struct rig *r, enum k_altup op, uint32_t n_stream, uint32_t n, uint32_t cols, uint32_t active, float factor) {
        const size_t stride = (size_t)n * cols + 32;
        float *hh = random_floats(n_stream * stride, cols + n_stream), *hc = random_floats((size_t)n * n_stream * n_stream, 5),
              *hx = random_floats((size_t)n * cols, 6);
        for (uint32_t i = 0; i < n * cols; i++)
                hx[i] *= factor;
        struct pair h = both(r, hh, n_stream * stride * sizeof(float)), k = both(r, hc, (size_t)n * n_stream * n_stream * sizeof(float)),
                    x = both(r, hx, (size_t)n * cols * sizeof(float));
        struct k_batch b = { .n = n, .n_d = n / 2 };
        struct k_altup_args c = { .op = op, .h = h.c, .stream_stride = stride, .n_stream = n_stream, .active = active, .cols = cols, .c = k.c,
                                  .c_stride = op == K_ALTUP_PREDICT ? (size_t)n_stream * n_stream : n_stream, .x = x.c, .eps = 1e-5f, .n = n }, g = c;
        char what[80];

        g.h = h.g;
        g.c = k.g;
        g.x = x.g;
        RUN(r, altup, &b, &b, &c, &g, "altup");
        snprintf(what, sizeof(what), "altup %d, %u streams, %u x %u, active %u", (int)op, n_stream, n, cols, active);
        compare(r, what, h, n_stream, (uint32_t)stride, stride, 2e-6);
        compare(r, what, x, n, cols, cols, 2e-6);
        both_free(r, &h);
        both_free(r, &k);
        both_free(r, &x);
        free(hh);
        free(hc);
        free(hx);
}

static void check_alone(struct rig *r) {
        for (int kind = 0; kind < 3; kind++)
                for (int i = 0; i < 6; i++) {
                        norm_case(r, 1 + (uint32_t)i * 2, 96 + 1000 * (uint32_t)i, (enum k_norm)kind, 0, i & 1, i == 3, i == 4, false, false);
                        norm_case(r, 7, 512, (enum k_norm)kind, 0, i & 1, i == 1, false, i > 2, i == 2);
                }
        norm_case(r, 6, 384, K_NORM_RMS, 128, false, false, false, false, true);
        norm_case(r, 3, 14336, K_NORM_RMS, 0, true, false, false, false, false);
        norm_case(r, 5, 1003, K_NORM_RMS, 0, true, true, false, false, false);
        for (int a = 0; a <= K_GLU_NONE; a++) {
                glu_case(r, 5, 320, (enum k_glu)a, true, 0);
                glu_case(r, 70, 1000, (enum k_glu)a, a != K_GLU_SWIGLU_OAI ? false : true, 0);
        }
        glu_case(r, 1, 14336, K_GLU_SILU, true, 0);
        glu_case(r, 5, 320, K_GLU_GELU_TANH, true, 1.6448f);
        glu_case(r, 9, 1001, K_GLU_GELU_TANH, true, 0.5f);
        glu_case(r, 1, 16384, K_GLU_GELU_TANH, true, 1.6448f);
        glu_case(r, 3, 96, K_GLU_SILU, true, -0.25f);
        for (uint32_t n_d = 0; n_d < 3; n_d++) {
                sparse_case(r, K_Q8_0, 1 + n_d, n_d, 320, 512);
                sparse_case(r, K_Q4_0, 6, 3 * n_d, 256, 512);
        }
        for (uint32_t n_stream = 1; n_stream <= K_ALTUP_MAX; n_stream += n_stream < 4 ? 1 : 4)
                for (int op = K_ALTUP_PREDICT; op <= K_ALTUP_MATCH; op++) {
                        altup_case(r, (enum k_altup)op, n_stream, 5, 333, 0, 1);
                        altup_case(r, (enum k_altup)op, n_stream, 1, 2048, n_stream - 1, 1);
                        altup_case(r, (enum k_altup)op, n_stream, 3, 64, 0, 1e-3f); /* MATCH: less than eps */
                }
        for (int op = 0; op <= K_ELEM_MUL_VEC; op++)
                elem_case(r, (enum k_elem)op, 9, 333);
}

void check_rows(struct rig *r) {
        if (mine(r, K_F32)) /* where no mail is */
                check_alone(r);
        check_between(r);
        check_mail(r);
}
