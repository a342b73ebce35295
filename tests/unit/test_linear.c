/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products: every type, layout and variant this processor has, bit for bit
 * against the scalar reference, at any width, chunking and thread count; the
 * reference itself against double arithmetic on decoded weights.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/layout.h"
#include "kernels/quant/grids.h"

/* Memory whose end is the end of readable memory, so that a wide load past it is a fault. */
static void *guarded(size_t n) {
        size_t size = (n + 4095) / 4096 * 4096;
        uint8_t *p = mmap(NULL, size + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(p != MAP_FAILED);
        assert_int_equal(mprotect(p + size, 4096, PROT_NONE), 0);
        return p + size - n;
}

static void guarded_free(void *p, size_t n) {
        if (p)
                munmap((void *)((uintptr_t)p & ~(uintptr_t)4095), (n + 4095) / 4096 * 4096 + 4096);
}

enum fill { FILL_RANDOM, FILL_ZERO, FILL_EXTREME, _FILL_MAX };

static uint32_t rnd(uint32_t *seed) {
        *seed = *seed * 1664525 + 1013904223;
        return *seed >> 8;
}

/* Random blocks whose scales are finite: a block that decodes to anything large or not a number is drawn again. */
static void fill_weights(enum k_type t, enum fill fill, size_t n_blocks, uint8_t *dst, uint32_t seed) {
        uint32_t bytes = k_type_bytes(t), block = k_type_block(t);
        float v[256];

        for (size_t b = 0; b < n_blocks; b++, dst += bytes) {
                bool ok = false;
                while (!ok) {
                        for (uint32_t i = 0; i < bytes; i++)
                                dst[i] = fill == FILL_ZERO ? 0 : (uint8_t)rnd(&seed);
                        if (fill == FILL_EXTREME && block == 256)
                                memset(dst, rnd(&seed) % 2 ? 0xff : 0x00, bytes);
                        if (fill == FILL_EXTREME && block == 256) { /* largest codes and scales; d put where the type has it */
                                static const uint8_t at[_K_TYPE_MAX] = {
                                        [K_Q2_K] = 80, [K_Q3_K] = 108, [K_Q6_K] = 208, [K_TQ1_0] = 52, [K_TQ2_0] = 64 };
                                uint16_t d = 0x2e66, top = 0x2fff;
                                memcpy(dst + at[t], &d, 2);
                                if (t == K_Q2_K || t == K_Q4_K || t == K_Q5_K)
                                        memcpy(dst + at[t] + 2, &d, 2);
                                for (unsigned i = 0; i < 4 && t == K_IQ1_M; i++)
                                        memcpy(dst + 48 + 2 * i, &top, 2);
                        }
                        k_decode(t, dst, v, block);
                        ok = true;
                        for (uint32_t i = 0; i < block; i++)
                                ok = ok && fabsf(v[i]) < 1e5f;
                }
        }
}

static void fill_x(enum fill fill, size_t n, float *x, uint32_t seed) {
        for (size_t i = 0; i < n; i++) {
                float u = ldexpf((float)(int32_t)(rnd(&seed) << 8), -31);
                x[i] = fill == FILL_ZERO ? 0 : fill == FILL_EXTREME ? (u < 0 ? -3.0f : 3.0f) : u * (i % 97 == 5 ? 20.0f : 1.0f);
        }
}

struct setup {
        enum k_type type;
        enum k_layout layout;
        uint32_t rows, cols, n;
        struct k_weight w;
        void *data;
        size_t data_bytes;
        uint8_t *file; /* the weights in FILE order */
        float *x, *bias;
        float scale;
};

static void setup_free(struct setup *s) {
        guarded_free(s->data, s->data_bytes);
        free(s->file);
        guarded_free(s->x, (size_t)s->n * s->cols * sizeof(float));
        free(s->bias);
}

static bool setup_make(struct setup *s, enum k_type t, enum k_layout layout, uint32_t rows, uint32_t cols, uint32_t n,
                       enum fill fill) {
        size_t row, bytes;

        *s = (struct setup){ .type = t, .layout = layout, .rows = rows, .cols = cols, .n = n, .scale = 0.5f };
        bytes = k_cpu_ops()->layout_bytes(t, layout, rows, cols);
        if (!bytes || !k_type_row_bytes(t, cols, &row))
                return false;
        s->file = h_malloc(row * rows);
        s->data = guarded(bytes);
        s->data_bytes = bytes;
        s->x = guarded((size_t)n * cols * sizeof(float));
        s->bias = h_malloc(rows * sizeof(float));
        assert_true(s->file && s->data && s->x && s->bias);
        if (t == K_F32)
                fill_x(fill, (size_t)rows * cols, (float *)(void *)s->file, 3);
        else
                fill_weights(t, fill, (size_t)rows * cols / k_type_block(t), s->file, 5 + t);
        memset(s->data, 0xa5, bytes);
        assert_int_equal(k_cpu_ops()->repack(t, layout, rows, cols, s->file, s->data), 0);
        fill_x(fill, (size_t)n * cols, s->x, 11);
        fill_x(FILL_RANDOM, rows, s->bias, 13);
        s->w = (struct k_weight){ .type = t, .layout = layout, .rows = rows, .cols = cols, .data = s->data, .scale = &s->scale };
        return true;
}

/* y [n, rows] of rows [row0, row0 + n) of x. */
static void product(struct k_dev *dev, struct setup *s, uint32_t row0, uint32_t n, float *y) {
        struct k_act x = { .f = s->x + (size_t)row0 * s->cols, .cols = s->cols };
        struct k_linear_args a = { .x = &x, .n_out = 1, .n_rows = n, .n_d = n };

        x.q = guarded(k_cpu_ops()->act_q_bytes(n, s->cols));
        a.out[0].w = &s->w;
        a.out[0].bias = s->bias;
        a.out[0].y = y;
        a.out[0].y_stride = s->rows;
        for (size_t i = 0; i < (size_t)n * s->rows; i++)
                y[i] = NAN; /* poison: every output must be written */
        assert_int_equal(dev->ops->linear(dev, NULL, &a), 0);
        guarded_free(x.q, k_cpu_ops()->act_q_bytes(n, s->cols));
}

static struct k_dev *open_dev(enum k_isa isa, uint32_t threads, bool exact) {
        struct k_dev *dev = NULL;
        struct k_cpu_options o = { .isa = isa, .threads = threads, .exact = exact };
        return k_cpu_open(&o, &dev) == 0 ? dev : NULL;
}

static void assert_same(const struct setup *s, const char *what, const float *got, const float *want, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (memcmp(got + i, want + i, 4) != 0)
                        fail_msg("%s, layout %u, %ux%u, %s: row %zu output %zu is %.9g (%a), expected %.9g (%a)",
                                 k_type_name(s->type), s->layout, s->rows, s->cols, what, i / s->rows, i % s->rows,
                                 (double)got[i], (double)got[i], (double)want[i], (double)want[i]);
}

/* The reference against doubles: exact mode closely; rounded activations within their rounding. */
static void test_reference(void **state) {
        struct k_dev *exact = open_dev(K_ISA_SCALAR, 1, true), *fast = open_dev(K_ISA_SCALAR, 1, false);
        struct setup s;
        float y[3 * 33], z[3 * 33], *v = h_malloc(512 * sizeof(float));

        (void)state;
        assert_true(exact && fast && v);
        for (unsigned t = 0; t < _K_TYPE_MAX; t++) {
                if (t == K_I32 || !setup_make(&s, (enum k_type)t, K_LAYOUT_FILE, 33, 512, 3, FILL_RANDOM))
                        continue;
                product(exact, &s, 0, 3, y);
                product(fast, &s, 0, 3, z);
                for (uint32_t r = 0; r < s.rows; r++)
                        for (uint32_t i = 0; i < 3; i++) {
                                double sum = 0, mag = 0, round = 0;
                                k_cpu_weight_row(&s.w, 0, r, v);
                                for (uint32_t c = 0; c < s.cols; c++) {
                                        double p = (double)v[c] * (double)s.x[i * s.cols + c];
                                        sum += p;
                                        mag += fabs(p);
                                        round += fabs((double)v[c]) * 20 / 254;
                                }
                                double want = sum * 0.5 + (double)s.bias[r];
                                if (fabs((double)y[i * s.rows + r] - want) > 1e-4 * mag + 1e-6)
                                        fail_msg("%s exact: %g, expected %g", k_type_name(s.type), (double)y[i * s.rows + r], want);
                                if (fabs((double)z[i * s.rows + r] - want) > 0.5 * round + 1e-4 * mag + 1e-6)
                                        fail_msg("%s: %g, expected %g", k_type_name(s.type), (double)z[i * s.rows + r], want);
                        }
                setup_free(&s);
        }
        free(v);
        exact->ops->close(exact);
        fast->ops->close(fast);
}

/* A repacked matrix decodes to the same values, in whole and at its last, partly filled panel. */
static void test_layout(void **state) {
        (void)state;
        for (unsigned t = 0; t < _K_TYPE_MAX; t++) {
                struct setup s;
                float a[512], b[512];
                size_t row;
                struct k_weight file;

                if (!setup_make(&s, (enum k_type)t, K_LAYOUT_CPU, 35, 512, 1, FILL_RANDOM))
                        continue;
                assert_true(k_type_row_bytes((enum k_type)t, s.cols, &row));
                file = s.w;
                file.layout = K_LAYOUT_FILE;
                file.data = s.file;
                for (uint32_t r = 0; r < s.rows; r++) {
                        k_cpu_weight_row(&s.w, 0, r, a);
                        k_cpu_weight_row(&file, 0, r, b);
                        assert_same(&s, "decoded row", a, b, s.cols);
                }
                setup_free(&s);
        }
}

#ifdef CPU_MODEL /* cpu_model.h; this processor itself may not have AVX-512 */
#include "tests/unit/cpu_model_detect.h"
static const enum k_isa isas[] = { K_ISA_SCALAR, K_ISA_AVX2, K_ISA_AMX };
#else
static const enum k_isa isas[] = { K_ISA_SCALAR, K_ISA_AVX2, K_ISA_AVX512, K_ISA_AMX };
#endif

/* One shape on every variant, layout and fill. */
static void check_shape(uint32_t rows, uint32_t cols, uint32_t n, bool exact) {
        for (unsigned t = 0; t < _K_TYPE_MAX; t++) {
                if (cols % k_type_block((enum k_type)t) || t == K_I32)
                        continue;
                for (unsigned fill = 0; fill < _FILL_MAX; fill++) {
                        float *want = h_malloc((size_t)n * rows * 4), *got = h_malloc((size_t)n * rows * 4);
                        struct setup s;

                        assert_true(want && got);
                        for (unsigned layout = K_LAYOUT_FILE; layout <= K_LAYOUT_CPU; layout++) {
                                if (!setup_make(&s, (enum k_type)t, (enum k_layout)layout, rows, cols, n, (enum fill)fill))
                                        continue;
                                for (unsigned i = 0; i < ELEMENTSOF(isas); i++) {
                                        struct k_dev *dev = open_dev(isas[i], 2, exact);
                                        bool first = i == 0 && layout == K_LAYOUT_FILE;
                                        char what[64];
                                        if (!dev)
                                                continue;
                                        product(dev, &s, 0, n, first ? want : got);
                                        snprintf(what, sizeof(what), "fill %u, %s", fill, dev->ops->describe(dev));
                                        if (!first)
                                                assert_same(&s, what, got, want, (size_t)n * rows);
                                        dev->ops->close(dev);
                                }
                                setup_free(&s);
                        }
                        free(want);
                        free(got);
                }
        }
}

static void test_variants(void **state) {
        (void)state;
        check_shape(16, 256, 1, false);
        check_shape(35, 512, 5, false);
        check_shape(1, 256, 3, false);
        check_shape(50, 1792, 2, false); /* columns past one block of the kernels, and no multiple of it */
        check_shape(17, 96, 3, false);
        check_shape(19, 64, 2, false);
        check_shape(16, 32, 1, false);
        check_shape(18, 544, 16, false); /* the fewest tokens of AMX, and a piece of few columns */
        check_shape(20, 288, 19, false);
        check_shape(33, 512, 41, false); /* tiles of tokens: two, one, and the rest of one */
}

static void test_variants_exact(void **state) {
        (void)state;
        check_shape(35, 512, 3, true);
        check_shape(17, 96, 7, true);
}

/* F types have no blocks: any number of columns. */
static void test_odd_columns(void **state) {
        static const uint32_t cols[] = { 1, 3, 7, 33, 255, 257, 700 };
        (void)state;
        for (unsigned i = 0; i < ELEMENTSOF(cols); i++) {
                check_shape(21, cols[i], 9, false);
                check_shape(70, cols[i], 1 + i % 6, false); /* few tokens: no panel, several of them side by side */
        }
}

/* The guarantee: a row's bits are those it has alone, at every width, chunking and thread count. */
static void test_widths(void **state) {
        static const uint32_t widths[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 64, 300, 512 };
        const uint32_t rows = 40, cols = 768, most = 512;
        float *alone = h_malloc(most * rows * 4), *got = h_malloc(most * rows * 4);

        (void)state;
        assert_true(alone && got);
        for (unsigned i = 1; i < ELEMENTSOF(isas); i++)
                for (unsigned t = 0; t < _K_TYPE_MAX; t++) {
                        struct k_dev *one = open_dev(isas[i], 1, false), *three = open_dev(isas[i], 3, false);
                        struct setup s;
                        char what[32];

                        if (!one)
                                break;
                        if (t == K_I32 || !setup_make(&s, (enum k_type)t,
                                                      k_cpu_ops()->layout_pick((enum k_type)t, rows, cols, false), rows,
                                                      cols, most, FILL_RANDOM)) {
                                one->ops->close(one);
                                three->ops->close(three);
                                continue;
                        }
                        for (uint32_t r = 0; r < most; r++)
                                product(one, &s, r, 1, alone + (size_t)r * rows);
                        for (unsigned k = 0; k < ELEMENTSOF(widths); k++) {
                                uint32_t w = widths[k], first = most - w;
                                snprintf(what, sizeof(what), "width %u", w);
                                product(k % 2 ? one : three, &s, first, w, got);
                                assert_same(&s, what, got, alone + (size_t)first * rows, (size_t)w * rows);
                        }
                        one->ops->close(one);
                        three->ops->close(three);
                        setup_free(&s);
                }
        free(alone);
        free(got);
}

/* Images so long that a block holds 32 of them: AMX's last one has fewer tokens than a tile. */
static void test_last_block(void **state) {
        static const enum k_type types[] = { K_Q4_1, K_Q8_0, K_NVFP4, K_Q2_K, K_Q4_K, K_Q6_K };
        static const uint32_t widths[] = { 16, 32, 33, 40, 47 };
        enum { ROWS = 18, COLS = 16384, MOST = 47 };
        float *alone = h_malloc(MOST * ROWS * 4), *got = h_malloc(MOST * ROWS * 4);

        (void)state;
        assert_true(alone && got);
        for (unsigned i = 1; i < ELEMENTSOF(isas); i++)
                for (unsigned t = 0; t < ELEMENTSOF(types); t++) {
                        struct k_dev *dev = open_dev(isas[i], 2, false);
                        struct setup s;

                        if (!dev)
                                break;
                        assert_true(setup_make(&s, types[t], K_LAYOUT_CPU, ROWS, COLS, MOST, FILL_RANDOM));
                        for (uint32_t r = 0; r < MOST; r++)
                                product(dev, &s, r, 1, alone + (size_t)r * ROWS);
                        for (unsigned k = 0; k < ELEMENTSOF(widths); k++) {
                                product(dev, &s, 0, widths[k], got);
                                assert_same(&s, "last block", got, alone, (size_t)widths[k] * ROWS);
                        }
                        dev->ops->close(dev);
                        setup_free(&s);
                }
        free(alone);
        free(got);
}

/* The lattice tables' entries as bytes are those that are packed. */
static void test_grid_bytes(void **state) {
        static const struct { const uint16_t *packed; const uint64_t *bytes; uint32_t n; bool magnitudes; } eights[] = {
                { k_grid_iq2_xxs, k_bytes_iq2_xxs, 256, true }, { k_grid_iq2_xs, k_bytes_iq2_xs, 512, true },
                { k_grid_iq2_s, k_bytes_iq2_s, 1024, true }, { k_grid_iq1_s, k_bytes_iq1_s, 2048, false } };
        static const uint8_t magnitude[4] = { 8, 25, 43, 0 }, magnitude_xxs[8] = { 4, 12, 20, 28, 36, 44, 52, 62 };

        (void)state;
        for (unsigned k = 0; k < ELEMENTSOF(eights); k++)
                for (uint32_t i = 0; i < eights[k].n; i++)
                        for (unsigned j = 0; j < 8; j++) {
                                unsigned field = eights[k].packed[i] >> 2 * j & 3;
                                assert_true(field < 3);
                                assert_int_equal(eights[k].bytes[i] >> 8 * j & 255, eights[k].magnitudes ? magnitude[field] : 8 * field);
                        }
        for (uint32_t i = 0; i < 512; i++)
                for (unsigned j = 0; j < 4; j++) {
                        assert_int_equal(k_bytes_iq3_s[i] >> 8 * j & 255, 2 * (k_grid_iq3_s[i] >> 3 * j & 7) + 1);
                        if (i < 256)
                                assert_int_equal(k_bytes_iq3_xxs[i] >> 8 * j & 255, magnitude_xxs[k_grid_iq3_xxs[i] >> 3 * j & 7]);
                }
}

static const enum k_type lattice[] = { K_IQ1_S, K_IQ1_M, K_IQ2_XXS, K_IQ2_XS, K_IQ2_S, K_IQ3_XXS, K_IQ3_S };

/* The lattice types have ways of their own for few tokens and for rows that fill no panel: all widths, and nothing written beside the rows. */
static void test_lattice(void **state) {
        static const uint32_t rows[] = { 1, 7, 8, 9, 15, 16, 31, 50 }, cols[] = { 256, 768, 1280 };
        enum { MOST = 64, STRIDE = 50 + 3 };
        float *want = h_malloc(MOST * STRIDE * 4), *got = h_malloc(MOST * STRIDE * 4);

        (void)state;
        assert_true(want && got);
        for (unsigned k = 0; k < ELEMENTSOF(lattice) * ELEMENTSOF(rows); k++) {
                const enum k_type t = lattice[k / ELEMENTSOF(rows)];
                const uint32_t n = rows[k % ELEMENTSOF(rows)];
                struct k_dev *ref = open_dev(K_ISA_SCALAR, 1, false);
                struct setup s;

                assert_non_null(ref);
                assert_true(setup_make(&s, t, K_LAYOUT_FILE, n, cols[k % 3], MOST, k % 2 ? FILL_EXTREME : FILL_RANDOM));
                product(ref, &s, 0, MOST, want);
                ref->ops->close(ref);
                for (unsigned i = 1; i < ELEMENTSOF(isas); i++) {
                        struct k_dev *dev = open_dev(isas[i], k % 2 + 1, false);
                        struct k_act x = { .f = s.x, .cols = s.cols };
                        struct k_linear_args a = { .x = &x, .n_out = 1 };

                        if (!dev)
                                continue;
                        assert_int_equal(dev->ops->reserve(dev, MOST, s.cols, 1, 16), 0);
                        a.out[0].w = &s.w;
                        a.out[0].bias = s.bias;
                        a.out[0].y_stride = STRIDE;
                        a.out[0].y = got;
                        for (a.n_rows = 1; a.n_rows <= MOST; a.n_rows++) {
                                memset(got, 0xff, MOST * STRIDE * 4);
                                assert_int_equal(dev->ops->linear(dev, NULL, &a), 0);
                                for (uint32_t r = 0; r < MOST; r++)
                                        for (uint32_t c = r < a.n_rows ? n : 0; c < STRIDE; c++)
                                                assert_true(isnan(got[r * STRIDE + c]));
                                for (uint32_t r = 0; r < a.n_rows; r++)
                                        assert_same(&s, "lattice", got + r * STRIDE, want + r * n, n);
                        }
                        dev->ops->close(dev);
                }
                setup_free(&s);
        }
        free(want);
        free(got);
}

/* Rows that lie anywhere, each with the bits it has alone. */
static void test_gather(void **state) {
        static const enum k_type types[] = { K_Q4_0, K_Q5_1, K_Q4_K, K_Q6_K, K_IQ2_XXS, K_IQ1_M };
        enum { ROWS = 35, COLS = 768, MOST = 64, N = 45 };
        float *alone = h_malloc(MOST * ROWS * 4), *got = h_malloc(N * ROWS * 4);
        uint32_t gather[N];

        (void)state;
        assert_true(alone && got);
        for (uint32_t i = 0; i < N; i++)
                gather[i] = i * 29 % MOST;
        for (unsigned i = 0; i < ELEMENTSOF(isas); i++)
                for (unsigned t = 0; t < ELEMENTSOF(types); t++) {
                        struct k_dev *dev = open_dev(isas[i], 2, false);
                        struct k_linear_args a = { .n_out = 1, .gather = gather };
                        struct setup s;

                        if (!dev)
                                break;
                        assert_true(setup_make(&s, types[t], k_cpu_ops()->layout_pick(types[t], ROWS, COLS, false), ROWS, COLS, MOST, FILL_RANDOM));
                        for (uint32_t r = 0; r < MOST; r++)
                                product(dev, &s, r, 1, alone + (size_t)r * ROWS);
                        struct k_act x = { .f = s.x, .cols = COLS, .q = guarded(k_cpu_ops()->act_q_bytes(MOST, COLS)) };
                        a.x = &x;
                        a.out[0].w = &s.w;
                        a.out[0].bias = s.bias;
                        a.out[0].y = got;
                        a.out[0].y_stride = ROWS;
                        for (a.n_rows = 7; a.n_rows <= N; a.n_rows += 19) {
                                assert_int_equal(dev->ops->linear(dev, NULL, &a), 0);
                                for (uint32_t r = 0; r < a.n_rows; r++)
                                        assert_same(&s, "gather", got + r * ROWS, alone + gather[r] * ROWS, ROWS);
                        }
                        guarded_free(x.q, k_cpu_ops()->act_q_bytes(MOST, COLS));
                        dev->ops->close(dev);
                        setup_free(&s);
                }
        free(alone);
        free(got);
}

/* Several weights of different kinds share an x; gathers, row ranges and the image's reuse. */
static void test_op(void **state) {
        struct k_dev *dev = open_dev(K_ISA_AUTO, 2, false);
        struct setup a, b, c;
        float y[3][6 * 40], want[3][6 * 40];
        static const uint32_t gather[3] = { 5, 0, 3 };

        (void)state;
        assert_non_null(dev);
        assert_true(setup_make(&a, K_Q4_0, K_LAYOUT_CPU, 40, 256, 6, FILL_RANDOM));
        assert_true(setup_make(&b, K_Q6_K, K_LAYOUT_CPU, 24, 256, 6, FILL_RANDOM));
        assert_true(setup_make(&c, K_F16, K_LAYOUT_CPU, 17, 256, 6, FILL_RANDOM));
        b.scale = c.scale = 2;
        struct setup *s[3] = { &a, &b, &c };
        for (unsigned i = 0; i < 3; i++)
                product(dev, s[i], 0, 6, want[i]);

        struct k_act x = { .f = a.x, .cols = 256 };
        x.q = h_aligned_alloc(64, k_cpu_ops()->act_q_bytes(6, 256));
        for (unsigned pass = 0; pass < 4; pass++) {
                struct k_linear_args args = { .x = &x, .n_out = 3, .n_rows = 6, .n_d = 2 };
                uint32_t row0 = 0, n = 6;
                if (pass == 1) /* rows 0..3, then 4..5 need more of the image */
                        x.q_kind = 0, args.n_rows = n = 4;
                if (pass == 2)
                        args.row0 = row0 = 4, args.n_rows = n = 2;
                if (pass == 3)
                        args.gather = gather, args.n_rows = n = 3;
                for (unsigned i = 0; i < 3; i++) {
                        args.out[i].w = &s[i]->w;
                        args.out[i].bias = s[i]->bias;
                        args.out[i].y = y[i];
                        args.out[i].y_stride = s[i]->rows;
                        if (pass != 2)
                                memset(y[i], 0xff, sizeof(y[i]));
                }
                assert_int_equal(dev->ops->linear(dev, NULL, &args), 0);
                for (unsigned i = 0; i < 3; i++)
                        for (uint32_t r = 0; r < n; r++) {
                                uint32_t from = args.gather ? gather[r] : row0 + r;
                                assert_same(s[i], "op", y[i] + (row0 + r) * s[i]->rows, want[i] + from * s[i]->rows, s[i]->rows);
                        }
        }
        free(x.q);

        /* Without an image of its own, the device's scratch is used: none before reserve(). */
        x.q = NULL;
        struct k_linear_args args = { .x = &x, .n_out = 1, .n_rows = 6 };
        args.out[0].w = &a.w;
        args.out[0].bias = a.bias;
        args.out[0].y = y[0];
        args.out[0].y_stride = a.rows;
        assert_int_equal(dev->ops->linear(dev, NULL, &args), -ENOBUFS);
        assert_non_null(strstr(dev->ops->last_error(dev), "6 rows"));
        assert_int_equal(dev->ops->reserve(dev, 6, 256, 1, 16), 0);
        assert_int_equal(dev->ops->linear(dev, NULL, &args), 0);
        assert_same(&a, "scratch image", y[0], want[0], 6 * a.rows);

        setup_free(&a);
        setup_free(&b);
        setup_free(&c);
        dev->ops->close(dev);
}

/* Experts through the internal interface, with gather and scatter, more jobs than one run takes. */
static void test_gemm_jobs(void **state) {
        struct k_dev *dev = open_dev(K_ISA_AUTO, 2, false);
        struct k_cpu *cpu = k_cpu(dev);
        static struct k_cpu_gemm jobs[300];
        static float y[300 * 32], want[300 * 32];
        static uint32_t from[300];
        struct setup s;

        (void)state;
        assert_non_null(dev);
        assert_true(setup_make(&s, K_Q4_K, K_LAYOUT_CPU, 96, 256, 4, FILL_RANDOM));
        float scales[3] = { 1, 2, 4 };
        /* the 96 rows are three experts of 32 */
        struct k_weight w = s.w;
        w.rows = 32;
        w.n_expert = 3;
        w.expert_stride = k_cpu_ops()->layout_bytes(K_Q4_K, K_LAYOUT_CPU, 32, 256);
        w.scale = scales;
        uint32_t kind = k_cpu_image_kind(cpu, K_Q4_K);
        uint8_t *image = h_aligned_alloc(64, k_cpu_image_bytes(4, 256));
        k_cpu_quantize(cpu, kind, s.x, 256, 4, 256, image);

        s.scale = 1;
        s.w.scale = NULL;
        memset(s.bias, 0, 96 * 4);
        float full[4 * 96];
        product(dev, &s, 0, 4, full);
        for (uint32_t i = 0; i < 300; i++) {
                uint32_t e = i % 3;
                from[i] = i % 4;
                jobs[i] = (struct k_cpu_gemm){ .w = &w, .expert = e, .xf = s.x, .xf_stride = 256, .xq = image,
                                               .x_row = &from[i], .n = 1, .y = y + i * 32, .y_stride = 32 };
                for (uint32_t r = 0; r < 32; r++)
                        want[i * 32 + r] = full[from[i] * 96 + e * 32 + r] * scales[e];
        }
        memset(y, 0xff, sizeof(y));
        k_cpu_gemm(cpu, jobs, 300);
        assert_same(&s, "jobs", y, want, 300 * 32);
        free(image);
        setup_free(&s);
        dev->ops->close(dev);
}

/* What isn't a number stays visible. */
static void test_nan(void **state) {
        (void)state;
        for (unsigned i = 0; i < ELEMENTSOF(isas); i++) {
                struct k_dev *dev = open_dev(isas[i], 1, false);
                static const enum k_type types[] = { K_Q4_0, K_Q4_K, K_F16 };
                if (!dev)
                        continue;
                for (unsigned t = 0; t < ELEMENTSOF(types); t++) {
                        struct setup s;
                        float y[2 * 16];
                        assert_true(setup_make(&s, types[t], K_LAYOUT_CPU, 16, 256, 2, FILL_RANDOM));
                        s.x[77] = t % 2 ? INFINITY : NAN;
                        product(dev, &s, 0, 2, y);
                        for (unsigned r = 0; r < 16; r++) {
                                assert_false(isfinite(y[r]));
                                assert_true(isfinite(y[16 + r]));
                        }
                        setup_free(&s);
                }
                dev->ops->close(dev);
        }
}

static void assert_auto_is(const char *name) {
        struct k_dev *dev = open_dev(K_ISA_AUTO, 1, false);
        char want[64];

        assert_non_null(dev);
        snprintf(want, sizeof(want), "cpu, %s, 1 thread", name);
        assert_string_equal(dev->ops->describe(dev), want);
        dev->ops->close(dev);
}

/* AUTO is the best that can be opened by its name, and says which that is. */
static void test_auto(void **state) {
        static const struct { enum k_isa isa; const char *name; } by_name[] = {
                { K_ISA_AMX, "amx" }, { K_ISA_AVX512, "avx512-vnni" }, { K_ISA_AVX2, "avx2" }, { K_ISA_SCALAR, "scalar" } };
        struct k_dev *dev = NULL;
        unsigned i = 0;

        (void)state;
        while (!(dev = open_dev(by_name[i].isa, 1, false)))
                assert_true(++i < ELEMENTSOF(by_name));
        dev->ops->close(dev);
        assert_auto_is(by_name[i].name);
#ifdef CPU_MODEL
        if (by_name[i].isa != K_ISA_AMX)
                return;
        cpu_model_refuses_amx = true;
        assert_null(open_dev(K_ISA_AMX, 1, false)); /* by its name it is nothing else */
        assert_auto_is("avx512-vnni");
        cpu_model_refuses_amx = false;
        assert_auto_is("amx");
#endif
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_reference), cmocka_unit_test(test_layout),      cmocka_unit_test(test_variants),
                cmocka_unit_test(test_variants_exact), cmocka_unit_test(test_odd_columns), cmocka_unit_test(test_widths),
                cmocka_unit_test(test_gather), cmocka_unit_test(test_op),        cmocka_unit_test(test_gemm_jobs),   cmocka_unit_test(test_nan),
                cmocka_unit_test(test_last_block), cmocka_unit_test(test_grid_bytes), cmocka_unit_test(test_lattice), cmocka_unit_test(test_auto),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
