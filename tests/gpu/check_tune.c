/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every way to launch a product of role D (kernels/tune.h) against the plain one,
 * bit for bit: all types and widths, alone and with what runs in the same kernel
 * (GLU and the image it makes, the addition to a residual, several matrices), with
 * inputs that are no numbers too; and what the device refuses to be told.
 */
#include "check.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/types.h"

static int tell(struct rig *r, enum k_type t, uint32_t rows, uint32_t cols, uint32_t n, uint32_t variant) {
        const struct k_tune_choice c = { { K_TUNE_LINEAR, t, rows, cols, k_tune_bucket(n) }, variant };
        return r->gpu->ops->tune(r->gpu, &c, 1);
}

static uint32_t ways(struct rig *r, enum k_type t, uint32_t rows, uint32_t cols, uint32_t n, const char *const **names) {
        const struct k_tune_key key = { K_TUNE_LINEAR, t, rows, cols, k_tune_bucket(n) };
        return r->gpu->ops->variants(r->gpu, &key, names);
}

/* What a row of bad values must not do to the others, each way must not do in the same manner. */
static void spoil(float *x, uint32_t n, uint32_t cols) {
        static const float bad[] = { NAN, INFINITY, -INFINITY, 3e38f, 1e-40f, -0.0f };

        for (uint32_t i = 0; i < n; i += 3)
                for (uint32_t k = 0; k < 4; k++)
                        x[(size_t)i * cols + (i * 131 + k * 37) % cols] = bad[(i + k) % 6];
}

struct job { /* buffers of the GPU alone */
        uint32_t rows, cols, n;
        const struct matrix *m; /* two */
        struct acts x, out, res; /* out: of GLU; res: a residual of as many columns as the product has rows */
        struct pair bias, y, y2;
        size_t q_bytes;
};
enum form { ALONE, SEVERAL, GLU, ADDED, _FORMS };
static const char *const form_names[_FORMS] = { "alone", "two matrices", "with GLU", "added" };

/* All that the step wrote, behind one another; malloc. */
static float *run(struct rig *r, struct job *j, enum form f, size_t *ret_floats) {
        const struct k_ops *ops = r->gpu->ops;
        struct k_batch b = { .n = j->n, .n_d = j->n, .n_seq = 1 };
        struct k_linear_args a = { .x = &j->x.g, .n_out = f == SEVERAL || f == GLU ? 2 : 1, .n_rows = j->n, .n_d = j->n };
        struct k_glu_args g = { .gate = j->y.g, .up = j->y2.g, .gate_stride = j->rows, .up_stride = j->rows, .act = K_GLU_SILU, .out = &j->out.g, .n = j->n };
        struct k_act y = { .f = j->y.g, .cols = j->rows };
        struct k_norm_args norm = { .x = &j->res.g, .add = &y, .add_scale = 0.5f, .kind = K_NORM_RMS, .eps = 1e-5f, .out_scale = 1 };
        const size_t n = (size_t)j->n * j->rows, q = j->q_bytes / sizeof(float);
        int e = 0;

        for (uint32_t i = 0; i < a.n_out; i++) {
                a.out[i].w = &j->m[i].g;
                a.out[i].bias = f == ADDED ? NULL : j->bias.g;
                a.out[i].y = i ? j->y2.g : j->y.g;
                a.out[i].y_stride = j->rows;
        }
        j->x.g.q_kind = j->out.g.q_kind = j->res.g.q_kind = 0;
        /* zeros: nobody's result; what GLU leaves out of y stays so */
        if (ops->zero(r->gpu, j->y.g, n * 4) < 0 || ops->zero(r->gpu, j->y2.g, n * 4) < 0 || ops->zero(r->gpu, j->out.f.g, n * 4) < 0 ||
            ops->zero(r->gpu, j->out.q.g, j->q_bytes) < 0 || ops->zero(r->gpu, j->res.f.g, n * 4) < 0)
                e = -EIO;
        e = e ? e : ops->batch_begin(r->gpu, &b);
        e = e ? e : ops->linear(r->gpu, &b, &a);
        if (e == 0 && f == GLU)
                e = ops->glu(r->gpu, &b, &g);
        if (e == 0 && f == ADDED)
                e = ops->norm(r->gpu, &b, &norm);
        e = e ? e : ops->batch_end(r->gpu, &b);
        if (e < 0)
                expect(r, false, "a tuned product: %s", ops->last_error(r->gpu));
        float *all = malloc((4 * n + q) * sizeof(float)), *parts[] = { fetch(r, j->y.g, n), fetch(r, j->y2.g, n), fetch(r, j->out.f.g, n), fetch(r, j->res.f.g, n) };
        float *image = fetch(r, j->out.q.g, q);

        if (!all)
                exit(70);
        for (int i = 0; i < 4; i++) {
                memcpy(all + (size_t)i * n, parts[i], n * sizeof(float));
                free(parts[i]);
        }
        memcpy(all + 4 * n, image, q * sizeof(float));
        free(image);
        *ret_floats = 4 * n + q;
        return all;
}

/* m: two matrices of that shape. */
static void check_ways(struct rig *r, const struct matrix m[2], uint32_t n, bool bad) {
        const enum k_type t = m[0].g.type;
        const uint32_t rows = m[0].g.rows, cols = m[0].g.cols;
        struct job j = { .rows = rows, .cols = cols, .n = n, .m = m };
        const char *const *names;
        float *hx = random_floats((size_t)n * cols, n + cols), *hb = random_floats(rows, rows);

        if (bad)
                spoil(hx, n, cols);
        j.x = acts_new(r, hx, n, cols);
        j.out = acts_new(r, NULL, n, rows);
        j.res = acts_new(r, NULL, n, rows);
        j.q_bytes = r->gpu->ops->act_q_bytes(n, rows);
        j.bias = both(r, hb, rows * sizeof(float));
        j.y = both_poison(r, (size_t)n * rows);
        j.y2 = both_poison(r, (size_t)n * rows);
        for (enum form f = 0; f < _FORMS; f++) {
                const uint32_t all = f == SEVERAL || f == GLU ? 2 * rows : rows, n_way = ways(r, t, all, cols, n, &names);
                size_t floats = 0;

                if (f == GLU && rows % 32)
                        continue;
                expect(r, tell(r, t, all, cols, n, 0) == 0, "plain launches are taken");
                float *want = run(r, &j, f, &floats);
                for (uint32_t v = 1; v < n_way; v++) {
                        expect(r, tell(r, t, all, cols, n, v) == 0, "launch \"%s\" is taken", names[v]);
                        float *is = run(r, &j, f, &floats);
                        expect(r, memcmp(is, want, floats * sizeof(float)) == 0, "%s [%u, %u] n %u, %s%s: \"%s\" has the plain one's bits", k_type_name(t), rows,
                               cols, n, form_names[f], bad ? ", no numbers" : "", names[v]);
                        free(is);
                }
                free(want);
        }
        acts_free(r, &j.x);
        acts_free(r, &j.out);
        acts_free(r, &j.res);
        both_free(r, &j.bias);
        both_free(r, &j.y);
        both_free(r, &j.y2);
        free(hx);
        free(hb);
}

static void check_shape(struct rig *r, enum k_type t, uint32_t rows, uint32_t cols, const uint32_t *widths, size_t n_width) {
        const char *const *names;
        struct matrix m[2];

        if (ways(r, t, rows, cols, 1, &names) < 2 || matrix_new(r, t, rows, cols, 1, false, rows + cols + t, &m[0]) < 0)
                return;
        matrix_new(r, t, rows, cols, 1, false, rows + cols + t + 1, &m[1]);
        for (size_t w = 0; w < n_width; w++)
                check_ways(r, m, widths[w], (rows + w + t) % 3 == 0);
        matrix_free(r, &m[0]);
        matrix_free(r, &m[1]);
}

static void check_refusals(struct rig *r) {
        const struct k_tune_key key = { K_TUNE_LINEAR, K_Q4_0, 256, 256, 1 };
        const struct k_tune_choice twice[2] = { { key, 1 }, { key, 2 } }, unknown = { key, K_TUNE_VARIANTS - 1 },
                                   odd = { { K_TUNE_LINEAR, K_Q4_0, 256, 256, 3 }, 1 }, f32 = { { K_TUNE_LINEAR, K_F32, 256, 256, 1 }, 1 };
        const char *const *names;

        expect(r, r->gpu->ops->tune(r->gpu, twice, 2) == -EINVAL, "a product chosen twice is refused");
        expect(r, r->gpu->ops->tune(r->gpu, &unknown, 1) == -EINVAL, "a launch that isn't there is refused");
        expect(r, r->gpu->ops->tune(r->gpu, &odd, 1) == -EINVAL, "a batch that is no bucket is refused");
        expect(r, r->gpu->ops->tune(r->gpu, &f32, 1) == -EINVAL, "of float weights there is one launch");
        expect(r, ways(r, K_F32, 256, 256, 1, &names) == 1 && strcmp(names[0], "plain") == 0, "and it is the plain one");
        expect(r, ways(r, K_Q4_0, 256, 256, 1, &names) == (r->exact ? 1 : 7), "of one column there are seven");
}

void check_tune(struct rig *r) {
        static const uint32_t shapes[][2] = { { 33, 512 }, { 256, 1024 }, { 96, 4096 }, { 160, 2880 } }, widths[] = { 1, 3, 8, 13, 2, 4, 16, 29, 40 };
        static const uint32_t few[] = { 1, 2, 4, 7, 16, 32 };
        static const enum k_type rings[] = { K_Q4_0, K_Q8_0, K_Q2_K, K_Q3_K, K_Q4_K, K_Q6_K, K_MXFP4 }; /* of all depths */

        for (enum k_type t = 0; t < _K_TYPE_MAX; t++)
                for (size_t s = 0; t != K_I32 && mine(r, t) && s < (r->tiny ? 1 : ELEMENTSOF(shapes)); s++)
                        check_shape(r, t, shapes[s][0], shapes[s][1], widths, r->tiny ? 4 : ELEMENTSOF(widths));
        /* more units than blocks are resident: several rounds, the last one cut */
        for (size_t i = 0; !r->tiny && i < ELEMENTSOF(rings); i++)
                if (mine(r, rings[i]))
                        check_shape(r, rings[i], 4384, 2048, few, ELEMENTSOF(few));
        /* one block a multiprocessor by rule (one_block() of matvec_one.cuh) */
        if (!r->tiny && mine(r, K_Q4_0))
                check_shape(r, K_Q4_0, 4096, 4096, few, 1);
        check_refusals(r);
        r->gpu->ops->tune(r->gpu, NULL, 0);
}
