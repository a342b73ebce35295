/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference products: linear.h's arithmetic as it is written there, one
 * row after another. Tests hold every other variant against this one.
 */
#include "kernels/cpu/linear.h"

#include <math.h>
#include <string.h>

/* Tokens that share one decoding of a weight row. */
#define TOKENS 64u

static void pair_sums(const int8_t *q, uint32_t n, int16_t *ret) {
        int a = 0, b = 0;
        for (uint32_t i = 0; i < n; i += 4) {
                a += q[i] + q[i + 1];
                b += q[i + 2] + q[i + 3];
        }
        ret[0] = (int16_t)a;
        ret[1] = (int16_t)b;
}

/*
 * d = max / 127 and q = x * (127 / max) to the nearest, ties to even. A NaN or
 * an infinity in a block makes d NaN, and with it every product of that block.
 */
static float quantize_block(const float *x, uint32_t n, int8_t *q) {
        float max = 0, poison = 0, inv;
        for (uint32_t i = 0; i < n; i++) {
                max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
                poison += x[i] * 0.0f;
        }
        inv = max > 0 ? 127.0f / max : 0.0f;
        if (!(inv < INFINITY)) /* max so small that 127 / max overflows: below 2^-121, taken as zero */
                inv = max = 0;
        if (poison != 0) { /* NaN */
                memset(q, 0, n);
                return poison;
        }
        for (uint32_t i = 0; i < n; i++)
                q[i] = (int8_t)(int)rintf(x[i] * inv);
        return max / 127.0f;
}

static void quantize(uint32_t kind, const float *x, uint32_t cols, void *image_row) {
        uint8_t *row = image_row;
        struct k_image im = k_image_at(kind, row, cols);
        int8_t *q = image_row;
        int16_t *pair16 = (int16_t *)im.pair16, *pair32 = (int16_t *)im.pair32;
        float *d = (float *)im.d;
        uint32_t block = kind == 1 ? 32 : 256;

        for (uint32_t i = 0; i < cols; i += block)
                d[i / block] = quantize_block(x + i, block, q + i);
        for (uint32_t g = 0; g < cols / 16; g++)
                pair_sums(q + 16 * g, 16, pair16 + 2 * g);
        for (uint32_t g = 0; g < cols / 32; g++)
                pair_sums(q + 32 * g, 32, pair32 + 2 * g);
        if (kind == 1) {
                for (uint32_t g = 0; g < cols / 32; g++)
                        ((float *)im.sx)[g] = d[g] * (float)(pair32[2 * g] + pair32[2 * g + 1]);
        } else {
                for (uint32_t g = 0; g < cols / 16; g++)
                        ((int16_t *)im.sum16)[g] = (int16_t)(pair16[2 * g] + pair16[2 * g + 1]);
                for (uint32_t g = 0; g < cols / 32; g++)
                        ((int16_t *)im.sum32)[g] = (int16_t)(pair32[2 * g] + pair32[2 * g + 1]);
        }
}

static void unit_codes(const struct k_cpu_gemm *job, uint32_t row, uint32_t unit, struct k_codes *c) {
        const struct k_weight *w = job->w;
        size_t bytes = k_type_bytes(w->type);

        if (w->layout == K_LAYOUT_CPU) {
                k_layout_codes(w->type, k_gemm_weights(job), w->cols, row, unit, c);
                return;
        }
        k_codes_get(w->type, k_gemm_weights(job) + ((size_t)row * (w->cols / k_type_block(w->type)) + unit) * bytes, c);
}

static int dot(const int8_t *a, const int8_t *b, uint32_t n) {
        int s = 0;
        for (uint32_t i = 0; i < n; i++)
                s += a[i] * b[i];
        return s;
}

/* One unit of kind 1: blocks of 32 (or halves of them where scales are per 16). */
static float unit_float(const struct k_codes *c, const struct k_codes_traits *tr, const struct k_image *im, uint32_t col,
                        uint32_t n, float acc) {
        for (uint32_t i = 0; i < n; i += tr->group) {
                uint32_t b = (col + i) / 32;
                acc = fmaf((float)dot(c->q + i, im->q + col + i, tr->group) * im->d[b], c->d[i / 16], acc);
                if (tr->min)
                        acc = fmaf(c->m, im->sx[b], acc);
        }
        return acc;
}

static float unit_int(const struct k_codes *c, const struct k_codes_traits *tr, const struct k_image *im, uint32_t col,
                      float acc) {
        int isum = 0, imin = 0;
        for (uint32_t g = 0; g < 16; g++) {
                isum += c->sc[g] * dot(c->q + 16 * g, im->q + col + 16 * g, 16);
                if (tr->min)
                        imin += c->mn[g] * im->sum16[col / 16 + g];
        }
        acc = fmaf((float)isum * im->d[col / 256], c->d[0], acc);
        if (tr->min)
                acc = fmaf((float)imin * im->d[col / 256], c->m, acc);
        return acc;
}

static void rows_codes(const struct k_cpu_gemm *job, uint32_t kind, uint32_t row0, uint32_t row1) {
        const struct k_weight *w = job->w;
        const struct k_codes_traits *tr = k_codes_traits(w->type);
        size_t stride = k_cpu_image_stride(kind, w->cols);
        uint32_t unit = k_type_block(w->type);
        float acc[TOKENS];
        struct k_codes c;

        for (uint32_t r = row0; r < row1; r++)
                for (uint32_t t0 = 0; t0 < job->n; t0 += TOKENS) {
                        uint32_t n = MIN(job->n - t0, TOKENS);
                        memset(acc, 0, sizeof(acc));
                        for (uint32_t u = 0; u < w->cols / unit; u++) {
                                unit_codes(job, r, u, &c);
                                for (uint32_t t = 0; t < n; t++) {
                                        struct k_image im = k_image_at(kind, k_gemm_xq(job, stride, t0 + t), w->cols);
                                        if (kind == 1)
                                                acc[t] = unit_float(&c, tr, &im, u * unit, unit, acc[t]);
                                        else
                                                acc[t] = unit_int(&c, tr, &im, u * unit, acc[t]);
                                }
                        }
                        for (uint32_t t = 0; t < n; t++)
                                k_gemm_store(job, t0 + t, r, 1, acc + t);
                }
}

/* Values of one unit (a block; one column of a float type) of a row. */
static void unit_values(const struct k_cpu_gemm *job, uint32_t row, uint32_t unit, float *dst) {
        const struct k_weight *w = job->w;
        uint32_t bytes = k_type_bytes(w->type);
        struct k_codes c;

        if (k_codes_traits(w->type)->kind != K_CODES_NONE) {
                unit_codes(job, row, unit, &c);
                k_codes_values(w->type, &c, dst);
        } else if (w->layout == K_LAYOUT_CPU) {
                k_decode(w->type, k_gemm_weights(job) + row / K_PANEL * k_layout_panel_bytes(w->type, w->cols) +
                                  ((size_t)unit * K_PANEL + row % K_PANEL) * bytes, dst, 1);
        } else {
                k_decode(w->type, k_gemm_weights(job) + ((size_t)row * w->cols + unit) * bytes, dst, 1);
        }
}

static void rows_floats(const struct k_cpu_gemm *job, uint32_t row0, uint32_t row1) {
        const struct k_weight *w = job->w;
        uint32_t unit = k_type_block(w->type);
        float acc[TOKENS], v[256];

        for (uint32_t r = row0; r < row1; r++)
                for (uint32_t t0 = 0; t0 < job->n; t0 += TOKENS) {
                        uint32_t n = MIN(job->n - t0, TOKENS);
                        memset(acc, 0, sizeof(acc));
                        for (uint32_t u = 0; u < w->cols / unit; u++) {
                                unit_values(job, r, u, v);
                                for (uint32_t t = 0; t < n; t++) {
                                        const float *x = k_gemm_x(job, t0 + t) + (size_t)u * unit;
                                        for (uint32_t i = 0; i < unit; i++)
                                                acc[t] = fmaf(v[i], x[i], acc[t]);
                                }
                        }
                        for (uint32_t t = 0; t < n; t++)
                                k_gemm_store(job, t0 + t, r, 1, acc + t);
                }
}

static void rows(const struct k_cpu_gemm *job, uint32_t kind, uint8_t *scratch, uint32_t row0, uint32_t row1) {
        (void)scratch;
        if (kind)
                rows_codes(job, kind, row0, row1);
        else
                rows_floats(job, row0, row1);
}

const struct k_cpu_linear_isa k_cpu_linear_scalar = { "scalar", K_LINEAR_SCRATCH, quantize, rows };
