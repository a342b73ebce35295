/* SPDX-License-Identifier: Apache-2.0 */
/* Products of every type, shape and width; the same bits at every width, in any company and at any chunking. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const uint32_t shapes[][2] = { { 64, 256 }, { 33, 512 }, { 1000, 1024 }, { 17, 4352 }, { 5, 32 }, { 48, 96 }, { 130, 2880 } };

static const enum k_type lattice[] = { K_IQ2_XXS, K_IQ2_XS, K_IQ2_S, K_IQ3_XXS, K_IQ3_S, K_IQ1_S, K_IQ1_M };

/*
 * int8 activations. Of a lattice format's only block in a row, most of whose weights are small beside a few, less averages their
 * rounding: IQ2_S, one row of 256 columns, 1.59e-2.
 */
static double int8_limit(enum k_type t, uint32_t cols) {
        for (size_t i = 0; i < ELEMENTSOF(lattice); i++)
                if (lattice[i] == t && cols <= 256)
                        return 2e-2;
        return 1.5e-2;
}
/* f32 products: what rounding leaves of a sum grows with the root of its length. */
static double float_limit(uint32_t cols) { return 2e-6 * fmax(1, sqrt(cols / 4352.0)); }

/*
 * Role D. f16 and bf16 products have activations in two pieces, 22 and 16 bits: on an H200 at most 1.27e-6 and 2.43e-6 up to 4,352
 * columns, 2.39e-6 and 3.54e-6 with 14,336.
 */
static double d_limit(const struct rig *r, enum k_type t, uint32_t cols) {
        if (r->exact || t == K_F32)
                return float_limit(cols);
        return t == K_F16 ? 1.25 * float_limit(cols) : t == K_BF16 ? 2.5 * float_limit(cols) : int8_limit(t, cols);
}

static void linear_once(struct rig *r, const struct matrix *m, struct acts *x, struct pair y, uint32_t row0, uint32_t n, uint32_t n_d,
                        const uint32_t *gather, struct pair bias, bool gpu_only, size_t y_off) {
        struct k_batch b = { .n = n, .n_d = n_d };
        struct k_linear_args a = { .x = &x->c, .n_out = 1, .row0 = row0, .n_rows = n, .n_d = n_d, .gather = gather };
        struct k_linear_args g = a;

        a.out[0].w = &m->c;
        a.out[0].bias = bias.c;
        a.out[0].y = (float *)y.c + y_off;
        a.out[0].y_stride = m->c.rows;
        g.x = &x->g;
        g.out[0] = a.out[0];
        g.out[0].w = &m->g;
        g.out[0].bias = bias.g;
        g.out[0].y = (float *)y.g + y_off;
        if (!gpu_only && r->cpu->ops->linear(r->cpu, &b, &a) < 0)
                expect(r, false, "cpu linear refuses");
        if (r->gpu->ops->linear(r->gpu, &b, &g) < 0)
                expect(r, false, "linear: %s", r->gpu->ops->last_error(r->gpu));
}

static void check_product(struct rig *r, enum k_type t, uint32_t rows, uint32_t cols, uint32_t n) {
        struct matrix m;
        char what[160];

        if (matrix_new(r, t, rows, cols, 1, false, rows * 31 + cols + t, &m) < 0)
                return;
        float *hx = random_floats((size_t)n * cols, n + cols), *hb = random_floats(rows, rows);
        struct pair bias = both(r, hb, rows * sizeof(float)), y = both_poison(r, (size_t)n * rows), y2 = both_poison(r, (size_t)n * rows);
        struct acts x = acts_new(r, hx, n, cols);
        bool f32 = r->exact || t == K_F32;
        const uint32_t split = n > 3 ? n - 3 : n;

        /* all D */
        linear_once(r, &m, &x, y, 0, n, n, NULL, bias, false, 0);
        snprintf(what, sizeof(what), "linear %s [%u, %u] n %u, role D", k_type_name(t), rows, cols, n);
        compare(r, what, y, n, rows, rows, d_limit(r, t, cols));
        float *all = fetch(r, y.g, (size_t)n * rows);
        /* each alone, and beside P rows */
        x.g.q_kind = 0;
        for (uint32_t i = 0; i < n; i += n > 4 ? 3 : 1)
                linear_once(r, &m, &x, y2, i, 1, 1, NULL, bias, true, (size_t)i * rows);
        float *alone = fetch(r, y2.g, (size_t)n * rows);
        bool same = true;
        for (uint32_t i = 0; i < n; i += n > 4 ? 3 : 1)
                same = same && memcmp(all + (size_t)i * rows, alone + (size_t)i * rows, rows * sizeof(float)) == 0;
        expect(r, same, "%s: alone = in company", what);
        free(alone);
        x.g.q_kind = 0;
        linear_once(r, &m, &x, y2, 0, n, split, NULL, bias, true, 0);
        float *mixed = fetch(r, y2.g, (size_t)n * rows);
        expect(r, memcmp(all, mixed, (size_t)split * rows * sizeof(float)) == 0, "%s: beside P rows", what);
        free(all);

        /* all P, then in chunks of 1, 2, 3, ...; the mixed run's P rows too */
        x.g.q_kind = 0;
        linear_once(r, &m, &x, y, 0, n, 0, NULL, bias, true, 0);
        snprintf(what, sizeof(what), "linear %s [%u, %u] n %u, role P", k_type_name(t), rows, cols, n);
        compare(r, what, y, n, rows, rows, f32 ? float_limit(cols) : 1e-3);
        float *whole = fetch(r, y.g, (size_t)n * rows);
        for (uint32_t i = 0, c = 1; i < n; i += c, c++)
                linear_once(r, &m, &x, y2, i, c < n - i ? c : n - i, 0, NULL, bias, true, (size_t)i * rows);
        float *chunks = fetch(r, y2.g, (size_t)n * rows);
        expect(r, memcmp(whole, chunks, (size_t)n * rows * sizeof(float)) == 0, "%s: in chunks", what);
        expect(r, memcmp(whole + (size_t)split * rows, mixed + (size_t)split * rows, (size_t)(n - split) * rows * sizeof(float)) == 0,
               "%s: beside D rows", what);
        free(whole);
        free(chunks);
        free(mixed);

        /* chosen rows, backwards */
        uint32_t *pick = malloc(n * sizeof(*pick));
        for (uint32_t i = 0; i < n; i++)
                pick[i] = n - 1 - i;
        x.c.q_kind = x.g.q_kind = 0;
        linear_once(r, &m, &x, y, 0, n, n / 2, pick, bias, false, 0);
        snprintf(what, sizeof(what), "linear %s [%u, %u] n %u, gathered", k_type_name(t), rows, cols, n);
        compare(r, what, y, n, rows, rows, f32 ? float_limit(cols) : int8_limit(t, cols)); /* P rows among them */
        free(pick);

        acts_free(r, &x);
        both_free(r, &y);
        both_free(r, &y2);
        both_free(r, &bias);
        matrix_free(r, &m);
        free(hx);
        free(hb);
}

static void check_shape(struct rig *r, enum k_type t, uint32_t rows, uint32_t cols, uint32_t n) {
        if (!r->tiny || (size_t)rows * cols * n <= 300000)
                check_product(r, t, rows, cols, n);
}

static void check_embed(struct rig *r, enum k_type t) {
        enum { ROWS = 50, COLS = 768, N = 9 };
        struct matrix m;
        uint32_t token[N], seq[N] = { 0 };
        int32_t pos[N];
        struct k_batch b = { .n = N, .n_d = N, .n_seq = 1, .token = token, .pos = pos, .seq = seq };
        struct k_batch g = b;
        char what[80];

        if (matrix_new(r, t, ROWS, COLS, 1, true, 77 + t, &m) < 0)
                return;
        for (uint32_t i = 0; i < N; i++) {
                token[i] = (i * 17 + 3) % ROWS;
                pos[i] = (int32_t)i;
        }
        struct acts o = acts_new(r, NULL, N, COLS);
        r->gpu->ops->batch_begin(r->gpu, &g);
        RUN(r, embed, &b, &g, (&(struct k_embed_args){ .w = &m.c, .scale = 1, .out = &o.c }),
            (&(struct k_embed_args){ .w = &m.g, .scale = 1, .out = &o.g }), "embed");
        RUN(r, embed, &b, &g, (&(struct k_embed_args){ .w = &m.c, .index = K_EMBED_POS, .scale = 0.5f, .add = true, .out = &o.c }),
            (&(struct k_embed_args){ .w = &m.g, .index = K_EMBED_POS, .scale = 0.5f, .add = true, .out = &o.g }), "embed");
        r->gpu->ops->batch_end(r->gpu, &g);
        snprintf(what, sizeof(what), "embed %s", k_type_name(t));
        compare(r, what, o.f, N, COLS, COLS, 1e-7);
        acts_free(r, &o);
        matrix_free(r, &m);
}

/* A product of role P has the bits of the same weights in f16, whatever decodes them, where, for however many rows. */
static void check_twins(struct rig *r, enum k_type t, uint32_t rows, uint32_t cols, uint32_t n, bool wild) {
        struct matrix m, twin;

        if (matrix_twins(r, t, rows, cols, 1, wild, rows + cols + n, &m, &twin) < 0)
                return;
        float *hx = random_floats((size_t)n * cols, n + cols), *hb = random_floats(rows, rows);
        struct pair bias = both(r, hb, rows * sizeof(float)), y = both_poison(r, (size_t)n * rows), y2 = both_poison(r, (size_t)n * rows);
        struct acts x = acts_new(r, hx, n, cols);
        linear_once(r, &m, &x, y, 0, n, 0, NULL, bias, true, 0);
        linear_once(r, &twin, &x, y2, 0, n, 0, NULL, bias, true, 0);
        float *a = fetch(r, y.g, (size_t)n * rows), *b = fetch(r, y2.g, (size_t)n * rows);
        size_t at = 0;
        while (at < (size_t)n * rows && memcmp(a + at, b + at, sizeof(float)) == 0)
                at++;
        expect(r, at == (size_t)n * rows, "linear %s [%u, %u] n %u, role P%s: as f16 weights (%zu: %.9g, %.9g)", k_type_name(t), rows, cols, n,
               wild ? ", any scale" : "", at, at < (size_t)n * rows ? (double)a[at] : 0, at < (size_t)n * rows ? (double)b[at] : 0);
        free(a);
        free(b);
        acts_free(r, &x);
        both_free(r, &y);
        both_free(r, &y2);
        both_free(r, &bias);
        matrix_free(r, &m);
        matrix_free(r, &twin);
        free(hx);
        free(hb);
}

/* What is no number in one row of the weights or of x reaches no other row, whatever is multiplied beside it. */
static void check_apart(struct rig *r, enum k_type t, uint32_t rows, uint32_t cols, uint32_t n) {
        size_t row = 0;
        k_type_row_bytes(t, cols, &row);
        float *hw = random_floats((size_t)rows * cols, rows + cols), *hx = random_floats((size_t)n * cols, n + cols), *y[2];
        uint8_t *file = calloc(rows, row);
        const uint32_t bad_w = rows / 2, bad_x = n > 1 ? n / 2 : n; /* with one row of x: of the weights only */

        for (int wild = 0; wild < 2; wild++) {
                for (uint32_t c = 0; c < cols && wild; c++) {
                        hw[(size_t)bad_w * cols + c] = c % 2 ? NAN : INFINITY;
                        if (bad_x < n)
                                hx[(size_t)bad_x * cols + c] = c % 3 ? NAN : -INFINITY;
                }
                for (uint32_t i = 0; i < rows; i++)
                        k_encode(t, hw + (size_t)i * cols, file + i * row, cols);
                struct matrix m;
                matrix_of(r, t, rows, cols, 1, false, file, &m);
                struct pair none = { 0 }, to = both_poison(r, (size_t)n * rows);
                struct acts x = acts_new(r, hx, n, cols);
                linear_once(r, &m, &x, to, 0, n, n, NULL, none, true, 0);
                y[wild] = fetch(r, to.g, (size_t)n * rows);
                acts_free(r, &x);
                both_free(r, &to);
                matrix_free(r, &m);
        }
        bool same = true, told = true;
        for (uint32_t i = 0; i < n; i++)
                for (uint32_t k = 0; k < rows; k++) {
                        const float *a = y[0] + (size_t)i * rows + k, *b = y[1] + (size_t)i * rows + k;
                        if (i == bad_x || k == bad_w)
                                told = told && isnan(*b);
                        else
                                same = same && memcmp(a, b, sizeof(*a)) == 0;
                }
        expect(r, same && told, "linear %s [%u, %u] n %u: what is no number stays in its row%s", k_type_name(t), rows, cols, n, told ? "" : ", but was lost");
        free(y[0]);
        free(y[1]);
        free(hw);
        free(hx);
        free(file);
}

/* Each kernel of the float types (matvec_float.cu, matvec_half.cu), at every width, from rows that begin at 16 bytes and from others. */
static void check_floats(struct rig *r, enum k_type t) {
        static const uint32_t widths[] = { 1, 2, 4, 5, 8, 9, 16, 17, 33, 64 };
        const uint32_t few = 8, many = 64;

        for (size_t i = 0; i < ELEMENTSOF(widths); i++) {
                check_shape(r, t, 70, t == K_F32 ? 388 : 776, widths[i]); /* the last step of 32 lanes has some of them */
                check_shape(r, t, 37, 203, widths[i]);
        }
        check_product(r, t, 1600, 8, many); /* as many blocks as 16 columns are worth it with */
        check_product(r, t, 3200, 8, few);
        check_product(r, t, 3200, 8, 3);
        if (t != K_F32) /* as many rows as units of 32 are worth it with, the last of which has some, in eight slices */
                for (size_t i = 0; i < ELEMENTSOF(widths); i++)
                        if (widths[i] == 5 || (widths[i] == 9 && !r->tiny) || widths[i] == 17 || (!r->tiny && widths[i] >= 33))
                                check_product(r, t, 3210, r->tiny ? 512 : 1000, widths[i]);
        check_apart(r, t, 70, 776, 1);
        check_apart(r, t, 37, 203, 6);
        check_apart(r, t, 37, 40, 9);
        check_apart(r, t, 1600, 264, many);
        if (t != K_F32) {
                check_apart(r, t, 3210, 512, 8);
                check_apart(r, t, 3210, 520, 20); /* five slices */
        }
        if (r->tiny)
                return;
        static const uint32_t large[] = { 1, 3, 8, 32, 200 };
        for (size_t i = 0; i < ELEMENTSOF(large); i++)
                check_product(r, t, 130, 14336, large[i]);
        check_product(r, t, 2200, 1032, 40);
}

/* Three weights of one input in one call, neighbours in a launch where their type is the same; the second reader finds the image made. */
static void check_several(struct rig *r, const enum k_type t[3]) {
        enum { N = 11, COLS = 512 };
        struct matrix m[3];
        static const uint32_t rows[3] = { 100, 40, 64 };
        float *hx = random_floats(N * COLS, 5);
        struct acts x = acts_new(r, hx, N, COLS);
        struct pair y[3];
        struct k_linear_args c = { .x = &x.c, .n_out = 3, .n_rows = N, .n_d = 6 }, g = { .x = &x.g, .n_out = 3, .n_rows = N, .n_d = 6 };
        struct k_batch b = { .n = N, .n_d = 6 };

        for (int i = 0; i < 3; i++) {
                matrix_new(r, t[i], rows[i], COLS, 1, false, 9u + (uint32_t)i, &m[i]);
                y[i] = both_poison(r, (size_t)N * rows[i]);
                c.out[i].w = &m[i].c;
                c.out[i].y = y[i].c;
                c.out[i].y_stride = rows[i];
                g.out[i].w = &m[i].g;
                g.out[i].y = y[i].g;
                g.out[i].y_stride = rows[i];
        }
        for (int i = 0; i < 2; i++)
                RUN(r, linear, &b, &b, &c, &g, "several outputs");
        for (int i = 0; i < 3; i++) {
                compare(r, "several outputs", y[i], N, rows[i], rows[i], 1.5e-2);
                both_free(r, &y[i]);
                matrix_free(r, &m[i]);
        }
        acts_free(r, &x);
        free(hx);
}

void check_linear(struct rig *r) {
        static const uint32_t widths[] = { 1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 32, 33, 64 };

        for (enum k_type t = 0; t < _K_TYPE_MAX; t++) {
                if (t == K_I32 || !mine(r, t))
                        continue;
                for (size_t s = 0; s < sizeof(shapes) / sizeof(*shapes); s++)
                        if (shapes[s][1] % k_type_block(t) == 0)
                                check_shape(r, t, shapes[s][0], shapes[s][1], s % 2 ? 1 + (uint32_t)s : 13);
                check_embed(r, t);
        }
        for (size_t i = 0; i < sizeof(widths) / sizeof(*widths); i++) {
                static const struct { enum k_type t; uint32_t rows, cols; } of[] = { { K_Q4_0, 65, 1024 }, { K_Q4_K, 65, 1024 }, { K_Q6_K, 31, 512 }, { K_F16, 31, 200 } };
                for (size_t k = 0; k < ELEMENTSOF(of); k++) {
                        if (!mine(r, of[k].t))
                                continue;
                        if (r->tiny && widths[i] > 8 && k % 2 == 0) /* each kernel of many columns once */
                                check_shape(r, of[k].t, 16, 256, widths[i]);
                        check_shape(r, of[k].t, of[k].rows, of[k].cols, widths[i]);
                }
        }
        static const enum k_type floats[] = { K_F32, K_F16, K_BF16 };
        for (size_t i = 0; i < ELEMENTSOF(floats); i++)
                if (mine(r, floats[i]))
                        check_floats(r, floats[i]);
        if (mine(r, K_Q8_0))
                check_shape(r, K_Q8_0, 300, 512, 200);
        static const enum k_type packed[] = { K_Q4_0, K_Q8_0, K_MXFP4, K_Q4_K, K_Q6_K, K_TQ1_0, K_TQ2_0 };
        for (size_t i = 0; i < ELEMENTSOF(packed) && !r->exact; i++) {
                if (!mine(r, packed[i]))
                        continue;
                check_twins(r, packed[i], 48, 256, 5, true);
                if (r->tiny)
                        continue;
                check_twins(r, packed[i], 130, 1024, 64, false);
                check_twins(r, packed[i], 250, 2304, 129, true);
                check_twins(r, packed[i], 384, 512, 300, false);
                check_twins(r, packed[i], 6000, 512, 300, true); /* as many blocks as make the larger tiles worth it */
                if (k_type_block(packed[i]) == 32)
                        check_twins(r, packed[i], 129, 2880, 70, false);
        }
        static const enum k_type several[][3] = { { K_Q4_K, K_Q6_K, K_Q4_K }, { K_F16, K_F16, K_F16 }, { K_BF16, K_F16, K_BF16 } };
        for (size_t i = 0; i < ELEMENTSOF(several); i++)
                if (mine(r, several[i][0]))
                        check_several(r, several[i]);
        /* The lattice formats: rows begin anywhere even, warps that share a row have one block of 256, several, or some fewer than others. */
        for (size_t i = 0; i < ELEMENTSOF(lattice); i++) {
                if (!mine(r, lattice[i]))
                        continue;
                for (size_t k = 0; k < ELEMENTSOF(widths); k++)
                        if (!r->tiny || widths[k] == 1 || widths[k] == 9)
                                check_shape(r, lattice[i], k % 2 ? 31 : 65, k % 3 == 0 ? 256 : k % 3 == 1 ? 1280 : 2304, widths[k]);
                check_shape(r, lattice[i], 129, 4096 + 256, 1);
                if (r->exact)
                        continue;
                check_twins(r, lattice[i], 48, 256, 5, true);
                if (!r->tiny) {
                        check_twins(r, lattice[i], 130, 1024, 64, false);
                        check_twins(r, lattice[i], 250, 2304, 129, true);
                }
        }
}
