/* SPDX-License-Identifier: Apache-2.0 */
/* Ops that treat rows by themselves, against double references: embed, norm, glu, elem. */
#include "ops_test.h"

static const uint32_t widths[] = { 1, 3, 8, 16, 31, 64, 100, 257, 576 };

/* ---- embed ------------------------------------------------------------------ */

static void test_embed(void **state) {
        enum { ROWS = 20, COLS = 37, N = 9 };
        struct seqs s;

        FOR_EACH_DEVICE(dev) {
                float *table = randoms(ROWS * COLS, 1), *out = floats(N * COLS);
                struct k_weight w = { .type = K_F32, .layout = K_LAYOUT_FILE, .rows = ROWS, .cols = COLS, .data = table };
                struct k_act act = { .f = out, .cols = COLS, .q_kind = 1 };
                struct k_embed_args a = { .w = &w, .index = K_EMBED_TOKEN, .scale = 1.5f, .out = &act };

                seqs_init(&s, 16);
                seqs_add(&s, 0, 4, N);
                for (uint32_t i = 0; i < N; i++)
                        s.token[i] = (i * 7 + 3) % ROWS;
                assert_int_equal(dev->ops->batch_begin(dev, &s.b), 0);
                assert_int_equal(dev->ops->embed(dev, &s.b, &a), 0);
                assert_int_equal(act.q_kind, 0);
                for (uint32_t i = 0; i < N * COLS; i++)
                        near("token", i, (double)out[i], 1.5 * (double)table[s.token[i / COLS] * COLS + i % COLS], 1e-6);
                a.index = K_EMBED_POS;
                a.add = true;
                a.scale = 1;
                assert_int_equal(dev->ops->embed(dev, &s.b, &a), 0);
                a.index = K_EMBED_ZERO;
                assert_int_equal(dev->ops->embed(dev, &s.b, &a), 0);
                for (uint32_t i = 0; i < N * COLS; i++) {
                        uint32_t r = i / COLS, c = i % COLS;
                        near("sum", i, (double)out[i],
                             1.5 * (double)table[s.token[r] * COLS + c] + (double)table[(4 + r) * COLS + c] + (double)table[c], 1e-6);
                }
                a.index = K_EMBED_POS;
                s.pos[2] = ROWS; /* past a position table */
                assert_int_equal(dev->ops->embed(dev, &s.b, &a), -EINVAL);
                a.index = K_EMBED_TOKEN;
                s.token[0] = ROWS;
                assert_int_equal(dev->ops->embed(dev, &s.b, &a), -EINVAL);
                done(out, N * COLS);
                done(table, ROWS * COLS);
        }
}

/* ---- norm ------------------------------------------------------------------- */

static void ref_norm(double *y, const double *x, uint32_t n, enum k_norm kind, const float *w, const float *b, double eps,
                     double scale) {
        double mean = 0, ss = 0, f;

        if (kind == K_NORM_LAYER)
                for (uint32_t i = 0; i < n; i++)
                        mean += x[i] / n;
        for (uint32_t i = 0; i < n; i++)
                ss += (x[i] - mean) * (x[i] - mean);
        f = 1 / sqrt(kind == K_NORM_L2 ? ss + eps : ss / n + eps);
        for (uint32_t i = 0; i < n; i++)
                y[i] = ((x[i] - mean) * f * (w ? (double)w[i] : 1) + (b ? (double)b[i] : 0)) * scale;
}

static void one_norm(struct k_dev *dev, uint32_t n, uint32_t cols, enum k_norm kind, bool add, bool add_norm, bool bias) {
        struct seqs s;
        float *x = randoms((size_t)n * cols, 3), *y = randoms((size_t)n * cols, 2), *w = randoms(cols, 1), *b = randoms(cols, 1),
              *aw = randoms(cols, 1), *out = floats((size_t)n * (cols + 5)), *x0 = copy_of(x, (size_t)n * cols),
              *y0 = copy_of(y, (size_t)n * cols);
        struct k_act ax = { .f = x, .cols = cols }, ay = { .f = y, .cols = cols }, ao = { .f = out, .cols = cols + 5, .q_kind = 2 };
        struct k_norm_args a = {
                .x = &ax, .add = add ? &ay : NULL, .add_norm_w = add_norm ? aw : NULL, .add_scale = 0.5f, .kind = kind, .w = w,
                .b = bias ? b : NULL, .eps = 1e-5f, .out_scale = 1.25f, .out = &ao, .out_col = 5,
        };
        double *r = calloc(2 * cols, sizeof(double)), *t = r + cols;

        seqs_init(&s, 1);
        seqs_add(&s, 0, 0, n);
        assert_int_equal(dev->ops->norm(dev, &s.b, &a), 0);
        assert_int_equal(ao.q_kind, 0);
        for (uint32_t i = 0; i < n; i++) {
                for (uint32_t c = 0; c < cols; c++)
                        t[c] = (double)y0[(size_t)i * cols + c];
                if (add && add_norm)
                        ref_norm(t, t, cols, kind, aw, NULL, 1e-5, 1);
                for (uint32_t c = 0; c < cols; c++)
                        r[c] = (double)x0[(size_t)i * cols + c] + (add ? 0.5 * t[c] : 0);
                all_near("x", x + (size_t)i * cols, r, cols, 2e-6);
                ref_norm(r, r, cols, kind, w, bias ? b : NULL, 1e-5, 1.25);
                for (uint32_t c = 0; c < 5; c++)
                        assert_true(isnan(out[(size_t)i * (cols + 5) + c]));
                all_near("norm", out + (size_t)i * (cols + 5) + 5, r, cols, 5e-6);
        }
        free(r);
        done(x, (size_t)n * cols);
        done(y, (size_t)n * cols);
        done(x0, (size_t)n * cols);
        done(y0, (size_t)n * cols);
        done(w, cols);
        done(b, cols);
        done(aw, cols);
        done(out, (size_t)n * (cols + 5));
}

static void test_norm(void **state) {
        FOR_EACH_DEVICE(dev)
                for (size_t c = 0; c < ELEMENTSOF(widths); c++)
                        for (int k = K_NORM_RMS; k <= K_NORM_L2; k++)
                                for (unsigned m = 0; m < 8; m++)
                                        one_norm(dev, c % 2 ? 33 : 1, widths[c], (enum k_norm)k, m & 1, m & 2, m & 4);
}

static void test_norm_groups_and_rows(void **state) {
        enum { N = 6, COLS = 60, GROUP = 20 };
        static const uint32_t rows[] = { 1, 2, 5 };
        struct seqs s;

        FOR_EACH_DEVICE(dev) {
                float *x = randoms(N * COLS, 2), *w = randoms(GROUP, 1), *out = floats(N * COLS);
                struct k_act ax = { .f = x, .cols = COLS }, ao = { .f = out, .cols = COLS };
                struct k_norm_args a = { .x = &ax, .kind = K_NORM_RMS, .group = GROUP, .w = w, .eps = 1e-6f, .out_scale = 1, .out = &ao,
                                         .gather = rows, .n_rows = 3 };
                double r[GROUP];

                seqs_init(&s, 1);
                seqs_add(&s, 0, 0, N);
                assert_int_equal(dev->ops->norm(dev, &s.b, &a), 0);
                for (uint32_t i = 0; i < 3; i++)
                        for (uint32_t g = 0; g < COLS; g += GROUP) {
                                for (uint32_t c = 0; c < GROUP; c++)
                                        r[c] = (double)x[rows[i] * COLS + g + c];
                                ref_norm(r, r, GROUP, K_NORM_RMS, w, NULL, 1e-6, 1);
                                all_near("group", out + i * COLS + g, r, GROUP, 5e-6);
                        }
                assert_true(isnan(out[3 * COLS]));
                a.group = 7; /* does not divide */
                assert_int_equal(dev->ops->norm(dev, &s.b, &a), -EINVAL);
                a.group = 0;
                ao.cols = COLS - 1;
                assert_int_equal(dev->ops->norm(dev, &s.b, &a), -EINVAL);
                done(x, N * COLS);
                done(w, GROUP);
                done(out, N * COLS);
        }
}

/* ---- glu --------------------------------------------------------------------- */

static double ref_act(enum k_glu act, double g, double alpha, double limit) {
        switch (act) {
        case K_GLU_SILU:
                return g * sigmoid(g);
        case K_GLU_GELU_TANH:
                return 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
        case K_GLU_GELU_ERF:
                return 0.5 * g * (1 + erf(g * M_SQRT1_2));
        case K_GLU_RELU2:
                return g > 0 ? g * g : 0;
        case K_GLU_SWIGLU_OAI:
                return fmin(g, limit) * sigmoid(alpha * fmin(g, limit));
        case K_GLU_NONE:
                break;
        }
        return g;
}

static void test_glu(void **state) {
        struct seqs s;

        seqs_init(&s, 1);
        FOR_EACH_DEVICE(dev)
                for (size_t k = 0; k < ELEMENTSOF(widths); k++)
                        for (int act = K_GLU_SILU; act <= K_GLU_NONE; act++)
                                for (int gated = 0; gated < 2; gated++) {
                                        uint32_t n = k % 2 ? 1 : 40, cols = widths[k];
                                        size_t stride = (size_t)cols + 3;
                                        float *g = randoms(n * stride, act == K_GLU_SWIGLU_OAI ? 20 : 12), *u = randoms(n * stride, 10),
                                              *out = floats((size_t)n * cols);
                                        struct k_act ao = { .f = out, .cols = cols };
                                        struct k_glu_args a = { .gate = gated ? g : NULL, .up = u, .gate_stride = stride,
                                                                .up_stride = stride, .act = (enum k_glu)act, .alpha = 1.702f,
                                                                .limit = 7, .out = &ao, .n = n };

                                        g[0] = -200;
                                        u[0] = gated ? 1 : -100;
                                        assert_int_equal(dev->ops->glu(dev, &s.b, &a), 0);
                                        for (uint32_t i = 0; i < n; i++)
                                                for (uint32_t c = 0; c < cols; c++) {
                                                        double G = (double)g[i * stride + c], U = (double)u[i * stride + c], r;

                                                        r = ref_act(a.act, gated ? G : U, (double)1.702f, 7);
                                                        if (gated)
                                                                r *= act == K_GLU_SWIGLU_OAI ? fmax(fmin(U, 7), -7) + 1 : U;
                                                        near("glu", i * cols + c, (double)out[(size_t)i * cols + c], r, 4e-6);
                                                }
                                        done(g, n * stride);
                                        done(u, n * stride);
                                        done(out, (size_t)n * cols);
                                }
}

/* ---- elem ---------------------------------------------------------------------- */

static double ref_elem(enum k_elem op, double y, double x, double xrow, double a, double b) {
        switch (op) {
        case K_ELEM_AXPY:
                return a * y + b * x;
        case K_ELEM_COPY:
                return x;
        case K_ELEM_SCALE:
                return a * y;
        case K_ELEM_SOFTCAP:
                return b * tanh(a * y / b);
        case K_ELEM_MUL:
                return y * x;
        case K_ELEM_MUL_SIGMOID:
                return y * sigmoid(x);
        case K_ELEM_MUL_SILU:
                return y * x * sigmoid(x);
        case K_ELEM_MUL_SIGMOID_ROW:
                return y * sigmoid(xrow);
        case K_ELEM_MUL_VEC:
                return y * x;
        }
        return 0;
}

static void test_elem(void **state) {
        static const uint32_t gather[] = { 3, 0, 4, 4, 1 };
        struct seqs s;

        seqs_init(&s, 1);
        FOR_EACH_DEVICE(dev)
                for (size_t k = 0; k < ELEMENTSOF(widths); k++)
                        for (int op = K_ELEM_AXPY; op <= K_ELEM_MUL_VEC; op++) {
                                uint32_t cols = widths[k], n = 5;
                                size_t ys = (size_t)cols + 2, xs = (size_t)cols + 7;
                                float *y = randoms(n * ys, 9), *x = randoms(n * xs, 5), *y0 = copy_of(y, n * ys);
                                struct k_elem_args a = { .op = (enum k_elem)op, .y = y, .y_stride = ys, .cols = cols, .x = x,
                                                         .x_stride = op == K_ELEM_MUL_VEC ? 0 : xs, .a = 0.75f, .b = 3, .n = n,
                                                         .gather = op == K_ELEM_COPY ? gather : NULL };

                                assert_int_equal(dev->ops->elem(dev, &s.b, &a), 0);
                                for (uint32_t i = 0; i < n; i++)
                                        for (uint32_t c = 0; c < cols; c++) {
                                                size_t row = op == K_ELEM_COPY ? gather[i] : op == K_ELEM_MUL_VEC ? 0 : i;

                                                near("elem", i * cols + c, (double)y[i * ys + c],
                                                     ref_elem(a.op, (double)y0[i * ys + c], (double)x[row * xs + c], (double)x[row * xs],
                                                              0.75, 3), 3e-6);
                                        }
                                for (uint32_t i = 0; i < n; i++) /* between rows nothing changed */
                                        assert_memory_equal(y + i * ys + cols, y0 + i * ys + cols, 2 * sizeof(float));
                                done(y, n * ys);
                                done(y0, n * ys);
                                done(x, n * xs);
                        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_embed),
                cmocka_unit_test(test_norm),
                cmocka_unit_test(test_norm_groups_and_rows),
                cmocka_unit_test(test_glu),
                cmocka_unit_test(test_elem),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
