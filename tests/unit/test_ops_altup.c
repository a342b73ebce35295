/* SPDX-License-Identifier: Apache-2.0 */
/* Ops of models with several residual streams, against double references: altup, and glu with sparse gates. */
#include "ops_test.h"

static const uint32_t widths[] = { 1, 16, 37, 64, 130, 576 };

struct streams {
        float *h, *before, *c, *x, *x_before;
        size_t stride;
        uint32_t n, cols, A;
};

static struct streams streams_new(uint32_t n, uint32_t cols, uint32_t A) {
        struct streams s = { .n = n, .cols = cols, .A = A, .stride = (size_t)n * cols + 16 };

        s.h = randoms(s.stride * A, 2);
        s.before = copy_of(s.h, s.stride * A);
        s.c = randoms((size_t)n * A * A, 1);
        s.x = randoms((size_t)n * cols, 3);
        s.x_before = copy_of(s.x, (size_t)n * cols);
        return s;
}

static void streams_done(struct streams *s) {
        done(s->h, s->stride * s->A);
        done(s->before, s->stride * s->A);
        done(s->c, (size_t)s->n * s->A * s->A);
        done(s->x, (size_t)s->n * s->cols);
        done(s->x_before, (size_t)s->n * s->cols);
}

static struct k_altup_args args_of(const struct streams *s, enum k_altup op, uint32_t active) {
        return (struct k_altup_args){ .op = op, .h = s->h, .stream_stride = s->stride, .n_stream = s->A, .active = active,
                                      .cols = s->cols, .c = s->c, .c_stride = op == K_ALTUP_PREDICT ? (size_t)s->A * s->A : s->A,
                                      .x = s->x, .eps = 1e-5f, .n = s->n };
}

static double was(const struct streams *s, uint32_t stream, uint32_t row, uint32_t col) {
        return (double)s->before[stream * s->stride + (size_t)row * s->cols + col];
}

static void check_predict(struct k_dev *dev, struct seqs *b, struct streams *s) {
        struct k_altup_args a = args_of(s, K_ALTUP_PREDICT, 0);

        assert_int_equal(dev->ops->altup(dev, &b->b, &a), 0);
        for (uint32_t r = 0; r < s->n; r++)
                for (uint32_t j = 0; j < s->A; j++)
                        for (uint32_t k = 0; k < s->cols; k++) {
                                double want = was(s, j, r, k);

                                for (uint32_t i = 0; i < s->A; i++)
                                        want += (double)s->c[r * a.c_stride + j * s->A + i] * was(s, i, r, k);
                                near("predicted", k, (double)s->h[j * s->stride + (size_t)r * s->cols + k], want, 3e-6);
                        }
}

static void check_correct(struct k_dev *dev, struct seqs *b, struct streams *s, uint32_t active) {
        struct k_altup_args a = args_of(s, K_ALTUP_CORRECT, active);

        assert_int_equal(dev->ops->altup(dev, &b->b, &a), 0);
        for (uint32_t r = 0; r < s->n; r++)
                for (uint32_t j = 0; j < s->A; j++)
                        for (uint32_t k = 0; k < s->cols; k++) {
                                double news = (double)s->x[(size_t)r * s->cols + k] - was(s, active, r, k);

                                near("corrected", k, (double)s->h[j * s->stride + (size_t)r * s->cols + k],
                                     was(s, j, r, k) + (1 + (double)s->c[r * a.c_stride + j]) * news, 3e-6);
                        }
        assert_memory_equal(s->x, s->x_before, (size_t)s->n * s->cols * sizeof(float));
}

static void check_match(struct k_dev *dev, struct seqs *b, struct streams *s, uint32_t active) {
        struct k_altup_args a = args_of(s, K_ALTUP_MATCH, active);

        for (uint32_t k = 0; k < s->cols; k++) /* a row below eps is scaled by it */
                s->x[k] = s->x_before[k] = 1e-4f;
        assert_int_equal(dev->ops->altup(dev, &b->b, &a), 0);
        for (uint32_t r = 0; r < s->n; r++) {
                double want = 0, have = 0;

                for (uint32_t k = 0; k < s->cols; k++) {
                        double x = (double)s->x_before[(size_t)r * s->cols + k];

                        want += was(s, active, r, k) * was(s, active, r, k) / s->cols;
                        have += x * x / s->cols;
                }
                for (uint32_t k = 0; k < s->cols; k++)
                        near("matched", k, (double)s->x[(size_t)r * s->cols + k],
                             (double)s->x_before[(size_t)r * s->cols + k] * sqrt(want) / sqrt(fmax(have, 1e-5)), 3e-6);
        }
        assert_memory_equal(s->h, s->before, s->stride * s->A * sizeof(float));
}

static void test_streams(void **state) {
        struct seqs b;

        seqs_init(&b, 1);
        FOR_EACH_DEVICE(dev)
                for (size_t k = 0; k < ELEMENTSOF(widths); k++)
                        for (uint32_t A = 2; A <= K_ALTUP_MAX; A += 2)
                                for (int op = K_ALTUP_PREDICT; op <= K_ALTUP_MATCH; op++) {
                                        struct streams s = streams_new(k % 2 ? 1 : 33, widths[k], A);

                                        if (op == K_ALTUP_PREDICT)
                                                check_predict(dev, &b, &s);
                                        else if (op == K_ALTUP_CORRECT)
                                                check_correct(dev, &b, &s, A - 1);
                                        else
                                                check_match(dev, &b, &s, 1);
                                        streams_done(&s);
                                }
}

static void test_refused(void **state) {
        struct seqs b;

        seqs_init(&b, 1);
        FOR_EACH_DEVICE(dev) {
                struct streams s = streams_new(1, 16, 2);
                struct k_altup_args a = args_of(&s, K_ALTUP_MATCH, 2);

                assert_int_equal(dev->ops->altup(dev, &b.b, &a), -EINVAL);
                a.active = 0;
                a.n_stream = K_ALTUP_MAX + 1;
                assert_int_equal(dev->ops->altup(dev, &b.b, &a), -EINVAL);
                streams_done(&s);
        }
}

/* Gates below mean + 1.2 deviations are 0, the others lose that much. */
static void test_sparse_gate(void **state) {
        enum { N = 9 };
        struct seqs b;

        seqs_init(&b, 1);
        FOR_EACH_DEVICE(dev)
                for (size_t k = 0; k < ELEMENTSOF(widths); k++) {
                        uint32_t cols = widths[k];
                        size_t stride = (size_t)cols + 5;
                        float *g = randoms(N * stride, 4), *kept = copy_of(g, N * stride), *u = randoms(N * stride, 4),
                              *out = floats((size_t)N * cols);
                        struct k_act ao = { .f = out, .cols = cols };
                        struct k_glu_args a = { .gate = g, .up = u, .gate_stride = stride, .up_stride = stride,
                                                .act = K_GLU_RELU2, .sparse_std = 1.2f, .out = &ao, .n = N };

                        assert_int_equal(dev->ops->glu(dev, &b.b, &a), 0);
                        assert_memory_equal(g, kept, N * stride * sizeof(float));
                        for (uint32_t r = 0; r < N; r++) {
                                double mean = 0, var = 0, x;

                                for (uint32_t c = 0; c < cols; c++)
                                        mean += (double)g[r * stride + c] / cols;
                                for (uint32_t c = 0; c < cols; c++) {
                                        x = (double)g[r * stride + c] - mean;
                                        var += x * x / cols;
                                }
                                for (uint32_t c = 0; c < cols; c++) {
                                        x = fmax((double)g[r * stride + c] - (mean + 1.2 * sqrt(var)), 0);
                                        near("gated", c, (double)out[(size_t)r * cols + c], x * x * (double)u[r * stride + c], 2e-5);
                                }
                        }
                        done(g, N * stride);
                        done(kept, N * stride);
                        done(u, N * stride);
                        done(out, (size_t)N * cols);
                }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_streams),
                cmocka_unit_test(test_refused),
                cmocka_unit_test(test_sparse_gate),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
