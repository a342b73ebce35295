/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processor on the card's layout: rows come back as the file has them, and
 * products have the bits of products of the file's rows, for every type and
 * variant, where rows and columns fill no tile, at every width, with experts,
 * scales and biases.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "kernels/cpu/linear.h"
#include "kernels/cuda/layout_file.h"
#include "kernels/kernels.h"
#include "kernels/mixed.h"

#define N_MAX 35u

static uint32_t rnd(uint32_t *seed) {
        *seed = *seed * 1664525 + 1013904223;
        return *seed >> 8;
}

static float rnd_float(uint32_t *seed) {
        return (float)rnd(seed) / 8388608.0f - 1.0f;
}

/* Random blocks whose values are finite and moderate. */
static uint8_t *random_rows(enum k_type t, uint32_t rows, uint32_t cols, uint32_t seed, size_t *ret_row) {
        uint32_t block = k_type_block(t), bytes = k_type_bytes(t);
        uint8_t *p, *at;
        float v[256];

        assert_true(k_type_row_bytes(t, cols, ret_row));
        at = p = h_malloc(*ret_row * rows);
        assert_non_null(p);
        for (size_t i = 0; i < (size_t)rows * cols; i += block, at += bytes)
                for (float top = 0; !(top > 1e-3f && top < 64);) {
                        for (uint32_t b = 0; b < bytes; b++)
                                at[b] = (uint8_t)(rnd(&seed) >> 7);
                        k_decode(t, at, v, block);
                        top = 0;
                        for (uint32_t k = 0; k < block; k++)
                                top = isfinite(v[k]) ? fmaxf(top, fabsf(v[k])) : 1e9f;
                }
        return p;
}

static const enum k_type types[] = {
        K_Q4_0, K_Q4_1, K_Q5_0, K_Q5_1, K_Q8_0, K_Q2_K, K_Q3_K, K_Q4_K, K_Q5_K, K_Q6_K, K_IQ4_NL, K_IQ4_XS, K_TQ1_0, K_TQ2_0, K_MXFP4,
        K_NVFP4,
};

struct shape {
        uint32_t rows, cols, n_expert;
};

/* Columns in blocks of the type. */
static struct shape shapes(enum k_type t, unsigned i) {
        static const struct shape s[] = { { 16, 256, 1 }, { 37, 288, 1 }, { 50, 1056, 1 }, { 33, 512, 3 } };
        struct shape r = s[i];
        uint32_t b = k_type_block(t);

        r.cols = DIV_ROUND_UP(r.cols, b) * b;
        return r;
}

struct fixture {
        struct k_weight file, planes;
        uint8_t *file_data, *plane_data;
        float *scale;
};

static struct fixture make(enum k_type t, struct shape s, uint32_t seed) {
        struct fixture f = { 0 };
        size_t row, one = cuda_layout_bytes(t, K_LAYOUT_CUDA, s.rows, s.cols), stride = one + 256;
        uint8_t *data = h_aligned_alloc(256, (stride * s.n_expert + 511) & ~(size_t)255);

        assert_non_null(data);
        f.file_data = random_rows(t, s.rows * s.n_expert, s.cols, seed, &row);
        f.plane_data = data;
        stride &= ~(size_t)255;
        for (uint32_t e = 0; e < s.n_expert; e++)
                assert_int_equal(cuda_layout_repack(t, K_LAYOUT_CUDA, s.rows, s.cols, f.file_data + e * row * s.rows, data + e * stride), 0);
        f.scale = h_new0(float, s.n_expert);
        for (uint32_t e = 0; e < s.n_expert; e++)
                f.scale[e] = 0.5f + (float)e;
        f.file = (struct k_weight){ .type = t, .layout = K_LAYOUT_FILE, .rows = s.rows, .cols = s.cols, .n_expert = s.n_expert > 1 ? s.n_expert : 0,
                                    .expert_stride = row * s.rows, .data = f.file_data, .scale = f.scale };
        f.planes = f.file;
        f.planes.layout = K_LAYOUT_CUDA;
        f.planes.expert_stride = stride;
        f.planes.data = f.plane_data;
        return f;
}

static void done(struct fixture *f) {
        free(f->file_data);
        free(f->plane_data);
        free(f->scale);
}

static void test_rows_come_back(void **state) {
        uint8_t row[8192];

        (void)state;
        for (size_t i = 0; i < ELEMENTSOF(types); i++)
                for (unsigned k = 0; k < 3; k++) {
                        struct shape s = shapes(types[i], k);
                        struct fixture f = make(types[i], s, (uint32_t)(i * 7 + k));
                        size_t bytes;

                        assert_true(k_type_row_bytes(types[i], s.cols, &bytes));
                        for (uint32_t r = 0; r < s.rows; r++) {
                                assert_true(cuda_layout_to_file(types[i], s.rows, s.cols, f.plane_data, r, row));
                                if (types[i] == K_TQ1_0) { /* several bytes have the same digits */
                                        float a[2048], b[2048];
                                        k_decode(types[i], f.file_data + r * bytes, a, s.cols);
                                        k_decode(types[i], row, b, s.cols);
                                        assert_memory_equal(a, b, s.cols * sizeof(float));
                                } else {
                                        assert_memory_equal(row, f.file_data + r * bytes, bytes);
                                }
                        }
                        assert_false(cuda_layout_to_file(types[i], s.rows, s.cols, f.plane_data, s.rows, row));
                        done(&f);
                }
}

static void product(struct k_dev *d, const struct k_weight *w, const float *x, uint32_t n, const float *bias, float *y) {
        struct k_act a = { .f = (float *)x, .cols = w->cols };
        struct k_linear_args l = { .x = &a, .n_out = 1, .n_rows = n, .n_d = n };

        l.out[0].w = w;
        l.out[0].bias = bias;
        l.out[0].y = y;
        l.out[0].y_stride = w->rows;
        assert_int_equal(d->ops->linear(d, NULL, &l), 0);
}

static void one_shape(struct k_dev *d, enum k_type t, struct shape s, uint32_t seed) {
        static const uint32_t widths[] = { 1, 3, 7, 15, 16, 31, N_MAX }; /* AMX: from 16 on */
        struct fixture f = make(t, s, seed);
        float *x = h_new0(float, (size_t)N_MAX * s.cols), *bias = h_new0(float, s.rows);
        float *want = h_new0(float, (size_t)N_MAX * s.rows), *got = h_new0(float, (size_t)N_MAX * s.rows);

        for (uint32_t i = 0; i < N_MAX * s.cols; i++)
                x[i] = rnd_float(&seed);
        for (uint32_t i = 0; i < s.rows; i++)
                bias[i] = rnd_float(&seed);
        for (unsigned k = 0; k < ELEMENTSOF(widths); k++) {
                uint32_t n = widths[k];

                memset(got, 0xff, N_MAX * s.rows * sizeof(float));
                product(d, &f.file, x, n, n > 1 ? bias : NULL, want);
                product(d, &f.planes, x, n, n > 1 ? bias : NULL, got);
                for (uint32_t i = 0; i < n * s.rows; i++)
                        if (memcmp(&want[i], &got[i], sizeof(float)) != 0)
                                fail_msg("%s, %s, %u x %u, width %u: output %u is %a, expected %a", d->ops->describe(d), k_type_name(t), s.rows,
                                         s.cols, n, i, (double)got[i], (double)want[i]);
        }
        free(x);
        free(bias);
        free(want);
        free(got);
        done(&f);
}

static void test_products(void **state) {
#ifdef CPU_MODEL /* cpu_model.h */
        static const enum k_isa isas[] = { K_ISA_SCALAR, K_ISA_AVX2, K_ISA_AMX };
#else
        static const enum k_isa isas[] = { K_ISA_SCALAR, K_ISA_AVX2, K_ISA_AVX512, K_ISA_AMX };
#endif

        (void)state;
        for (size_t i = 0; i < 2 * ELEMENTSOF(isas); i++) {
                struct k_cpu_options o = { .threads = 2, .isa = isas[i / 2], .exact = i % 2 };
                struct k_dev *d;

                if (k_cpu_open(&o, &d) < 0)
                        continue; /* not this processor's */
                assert_int_equal(d->ops->reserve(d, N_MAX, 2048, 4, 64), 0);
                for (size_t t = 0; t < ELEMENTSOF(types); t++)
                        for (unsigned k = 0; k < 3; k++)
                                one_shape(d, types[t], shapes(types[t], k), (uint32_t)(t * 31 + k));
                d->ops->close(d);
        }
}

#ifdef CPU_MODEL
/* Where AMX begins changes no bit, so it is asked. */
static void test_fewest(void **state) {
        struct k_weight w = { .type = K_Q4_K, .layout = K_LAYOUT_CUDA, .rows = 16, .cols = 256 };
        struct k_cpu_gemm job = { .w = &w, .n = 15 };

        (void)state;
        assert_false(k_cpu_amx_planes(&job, 2));
        job.n = 16;
        assert_true(k_cpu_amx_planes(&job, 2));
        assert_false(k_cpu_amx_planes(&job, 0));
        w.type = K_TQ1_0; /* not a type of the card's planes */
        assert_false(k_cpu_amx_planes(&job, 2));
}
#endif

/* ---- composed ------------------------------------------------------------------- */

static struct k_dev *open_cpu(void) {
        struct k_cpu_options o = { .threads = 2, .isa = K_ISA_AUTO };
        struct k_dev *d;

        assert_int_equal(k_cpu_open(&o, &d), 0);
        assert_int_equal(d->ops->reserve(d, 64, 2048, 4, 64), 0);
        return d;
}

/*
 * Two matrices in one op, one of them the host's, D rows before P rows, more
 * than are staged at once: with the same arithmetic on both sides nothing but
 * the way differs, so every bit must be the plain device's.
 */
static void test_mixed_linear(void **state) {
        struct k_dev *plain = open_cpu(), *mixed = open_cpu();
        struct k_mixed_shape shape = { .n_rows = 48, .max_cols = 512, .max_out = 256, .n_head = 4, .n_ctx = 64 };
        struct shape s = { 37, 512, 1 };
        struct fixture a = make(K_Q4_K, s, 1), b = make(K_Q8_0, s, 2);
        enum { N = 48, ROWS = 37, STRIDE = 80 };
        float *x = h_new0(float, N * 512), *y[2], bias[ROWS];
        uint32_t seed = 9;

        (void)state;
        assert_int_equal(k_mixed_attach(mixed, open_cpu()), 0);
        assert_int_equal(k_mixed_attach(mixed, open_cpu()), -EALREADY);
        assert_int_equal(k_mixed_reserve(mixed, &shape), 0);
        assert_true(k_mixed_bytes(mixed, &shape) > 0);
        assert_string_equal(k_mixed_host(mixed), plain->ops->describe(plain));
        for (uint32_t i = 0; i < N * 512; i++)
                x[i] = rnd_float(&seed);
        for (uint32_t i = 0; i < ROWS; i++)
                bias[i] = rnd_float(&seed);
        for (uint32_t n_d = 0; n_d <= N; n_d += 8)
                for (int run = 0; run < 2; run++) {
                        struct k_act act = { .f = x, .cols = 512 };
                        struct k_linear_args l = { .x = &act, .n_out = 2, .n_rows = N, .n_d = n_d };
                        struct k_dev *d = run ? mixed : plain;

                        a.planes.place = run ? K_PLACE_HOST : K_PLACE_DEVICE;
                        y[run] = h_new0(float, N * STRIDE);
                        l.out[0].w = &a.planes;
                        l.out[0].bias = bias;
                        l.out[0].y = y[run];
                        l.out[1].w = &b.planes;
                        l.out[1].y = y[run] + 40;
                        l.out[0].y_stride = l.out[1].y_stride = STRIDE;
                        if (run && n_d) /* an address that nobody said anything about */
                                assert_int_equal(d->ops->linear(d, NULL, &l), -EFAULT);
                        if (run) {
                                assert_int_equal(k_mixed_map(d, a.planes.data, a.planes.data, cuda_layout_bytes(K_Q4_K, K_LAYOUT_CUDA, 37, 512)), 0);
                                assert_int_equal(k_mixed_map(d, a.scale, a.scale, sizeof(float)), 0);
                                assert_int_equal(k_mixed_map(d, bias, bias, sizeof(bias)), 0);
                        }
                        assert_int_equal(d->ops->linear(d, NULL, &l), 0);
                        if (run) {
                                k_mixed_unmap(d, a.planes.data);
                                k_mixed_unmap(d, a.scale);
                                k_mixed_unmap(d, bias);
                                assert_memory_equal(y[0], y[1], N * STRIDE * sizeof(float));
                                free(y[0]);
                                free(y[1]);
                        }
                }
        free(x);
        done(&a);
        done(&b);
        plain->ops->close(plain);
        mixed->ops->close(mixed);
}

static void test_mixed_moe(void **state) {
        enum { N = 37, X = 8, USED = 3, D = 256, FF = 256 };
        struct k_dev *plain = open_cpu(), *mixed = open_cpu();
        struct k_mixed_shape shape = { .n_rows = N, .max_cols = 512, .max_out = 512, .n_head = 4, .n_ctx = 64, .n_used = USED, .n_expert = X, .d = D, .ff = FF };
        struct fixture w[3] = { make(K_Q4_K, (struct shape){ FF, D, X }, 1), make(K_Q4_K, (struct shape){ FF, D, X }, 2), make(K_Q6_K, (struct shape){ D, FF, X }, 3) };
        float *x = h_new0(float, N * D), *router = h_new0(float, N * X), *y[2] = { h_new0(float, N * D), h_new0(float, N * D) }, bias[X * FF];
        size_t scratch = plain->ops->moe_scratch(N, USED, D, FF, X);
        void *mem = h_aligned_alloc(64, (scratch + 63) & ~(size_t)63);
        uint32_t seed = 5;

        (void)state;
        assert_int_equal(k_mixed_attach(mixed, open_cpu()), 0);
        assert_int_equal(k_mixed_reserve(mixed, &shape), 0);
        for (uint32_t i = 0; i < N * D; i++)
                x[i] = rnd_float(&seed);
        for (uint32_t i = 0; i < N * X; i++)
                router[i] = rnd_float(&seed);
        for (uint32_t i = 0; i < X * FF; i++)
                bias[i] = rnd_float(&seed);
        for (int i = 0; i < 3; i++) {
                assert_int_equal(k_mixed_map(mixed, w[i].planes.data, w[i].planes.data, w[i].planes.expert_stride * X), 0);
                assert_int_equal(k_mixed_map(mixed, w[i].scale, w[i].scale, X * sizeof(float)), 0);
        }
        assert_int_equal(k_mixed_map(mixed, bias, bias, sizeof(bias)), 0);
        for (uint32_t n_d = 0; n_d <= N; n_d += 12) {
                for (int run = 0; run < 2; run++) {
                        struct k_act act = { .f = x, .cols = D };
                        struct k_moe_args a = { .x = &act, .router = router, .router_stride = X, .n_expert = X, .n_used = USED, .gating = K_GATE_SOFTMAX,
                                                .norm_weights = true, .weight_scale = 1, .gate = &w[0].planes, .up = &w[1].planes, .down = &w[2].planes,
                                                .up_b = bias, .act = K_GLU_SILU, .scratch = mem, .scratch_bytes = scratch, .y = y[run], .y_stride = D,
                                                .n = N, .n_d = n_d };
                        struct k_dev *d = run ? mixed : plain;

                        for (int i = 0; i < 3; i++)
                                w[i].planes.place = run ? K_PLACE_HOST : K_PLACE_DEVICE;
                        assert_int_equal(d->ops->moe(d, NULL, &a), 0);
                }
                assert_memory_equal(y[0], y[1], N * D * sizeof(float));
        }
        for (int i = 0; i < 3; i++)
                done(&w[i]);
        free(mem);
        free(x);
        free(router);
        free(y[0]);
        free(y[1]);
        plain->ops->close(plain);
        mixed->ops->close(mixed);
}

static const struct k_ops *uncounted;
static uint32_t allocated, freed;

static void *count_alloc(struct k_dev *d, size_t bytes) {
        allocated++;
        return uncounted->host_alloc(d, bytes);
}

static void count_free(struct k_dev *d, void *p) {
        freed++;
        uncounted->host_free(d, p);
}

/* A second, larger model: graphs of the first one's steps copy to and from the staging area that was there then. */
static void test_mixed_outgrown(void **state) {
        struct k_mixed_shape shape = { .n_rows = 8, .max_cols = 512, .max_out = 256, .n_head = 4, .n_ctx = 64 };
        struct k_dev *mixed = open_cpu();
        struct k_ops counted = *mixed->ops;

        (void)state;
        uncounted = mixed->ops;
        counted.host_alloc = count_alloc;
        counted.host_free = count_free;
        mixed->ops = &counted;
        assert_int_equal(k_mixed_attach(mixed, open_cpu()), 0);
        for (uint32_t i = 0; i < 3; i++) {
                shape.max_cols *= 2;
                assert_int_equal(k_mixed_reserve(mixed, &shape), 0);
                assert_int_equal(k_mixed_reserve(mixed, &shape), 0);
                assert_int_equal(allocated, i + 1);
                assert_int_equal(freed, 0);
        }
        mixed->ops->close(mixed);
        assert_int_equal(freed, 3);
}

int main(void) {
        const struct CMUnitTest tests[] = {
#ifdef CPU_MODEL
                cmocka_unit_test(test_fewest),
#endif
                cmocka_unit_test(test_rows_come_back), cmocka_unit_test(test_products), cmocka_unit_test(test_mixed_linear),
                cmocka_unit_test(test_mixed_moe), cmocka_unit_test(test_mixed_outgrown),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
