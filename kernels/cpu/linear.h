/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What linear.c shares with its variants per instruction set.
 *
 * The arithmetic, the same in every variant, to the bit (so variants, widths,
 * layouts, chunks and thread counts agree, and tests compare with ==):
 *   kind 1   activations in blocks of 32: x ~ d * q, q in -127..127
 *            per 32 columns (NVFP4: 16), in order:
 *              acc = fma((float)isum * dx, dw, acc)       isum = sum q_w q_x, exact
 *              acc = fma(m, sx, acc)                      types with a minimum; sx = dx * sum q_x
 *   kind 2   activations in blocks of 256, weights with integer scales:
 *              acc = fma((float)isum * dx, d, acc)        isum = sum sc_g sum q_w q_x, exact
 *              acc = fma((float)imin * dx, m, acc)        imin = sum mn_g sum q_x
 *   kind 0   float weights, or exact mode: acc = fma(w, x, acc), columns in order
 * then y = acc, y *= scale, y += bias (the last two where present).
 *
 * An image row (k_cpu_image_stride() bytes) holds q, and sums of q that let the
 * kernels work on unsigned codes: for each 16 and each 32 columns the sums of
 * the columns 0, 1 and of the columns 2, 3 (mod 4).
 */

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/layout.h"

/* Scratch of one worker: a panel of codes or floats, and accumulators; AMX also copies activations there. */
#define K_LINEAR_SCRATCH (160u * 1024)
#define K_LINEAR_SCRATCH_AMX (K_LINEAR_SCRATCH + 1024u * 1024)

struct k_image {
        const int8_t *q;       /* [cols] */
        const int16_t *pair16; /* [cols / 16][2] */
        const int16_t *pair32; /* [cols / 32][2] */
        const float *d;        /* [cols / 32] or [cols / 256] */
        const float *sx;       /* kind 1: [cols / 32] */
        const int16_t *sum16;  /* kind 2: [cols / 16] */
        const int16_t *sum32;  /* kind 2: [cols / 32] */
};

static inline size_t k_image_off_pair16(uint32_t cols) {
        return ((size_t)cols + 63) & ~(size_t)63;
}

static inline struct k_image k_image_at(uint32_t kind, const void *row, uint32_t cols) {
        const uint8_t *p = row;
        struct k_image im = { .q = row };
        p += k_image_off_pair16(cols);
        im.pair16 = (const int16_t *)(const void *)p;
        p += cols / 16 * 4;
        im.pair32 = (const int16_t *)(const void *)p;
        p += cols / 32 * 4;
        im.d = (const float *)(const void *)p;
        if (kind == 1) {
                im.sx = im.d + cols / 32;
        } else {
                im.sum16 = (const int16_t *)(const void *)(im.d + cols / 256);
                im.sum32 = im.sum16 + cols / 16;
        }
        return im;
}

struct k_cpu_linear_isa {
        const char *name;
        size_t scratch; /* bytes that rows() wants, aligned to 64 */
        void (*quantize)(uint32_t kind, const float *x, uint32_t cols, void *image_row);
        /* Rows [row0, row1) of a job; kind 0: float arithmetic whatever the type. row0: a multiple of K_PANEL. */
        void (*rows)(const struct k_cpu_gemm *job, uint32_t kind, uint8_t *scratch, uint32_t row0, uint32_t row1);
};

extern const struct k_cpu_linear_isa k_cpu_linear_scalar;
extern const struct k_cpu_linear_isa k_cpu_linear_avx2;
extern const struct k_cpu_linear_isa k_cpu_linear_avx512;
extern const struct k_cpu_linear_isa k_cpu_linear_amx; /* rows(): of K_LAYOUT_CUDA too, where k_cpu_amx_planes() */

/* True where AMX is of use to a job with the card's layout. */
bool k_cpu_amx_planes(const struct k_cpu_gemm *job, uint32_t kind);

static inline const uint8_t *k_gemm_weights(const struct k_cpu_gemm *job) {
        return (const uint8_t *)job->w->data + (size_t)job->expert * job->w->expert_stride;
}

static inline const float *k_gemm_x(const struct k_cpu_gemm *job, uint32_t i) {
        return job->xf + (size_t)(job->x_row ? job->x_row[i] : i) * job->xf_stride;
}

static inline const void *k_gemm_xq(const struct k_cpu_gemm *job, size_t stride, uint32_t i) {
        return (const uint8_t *)job->xq + (size_t)(job->x_row ? job->x_row[i] : i) * stride;
}

static inline float *k_gemm_y(const struct k_cpu_gemm *job, uint32_t i) {
        return job->y + (size_t)(job->y_row ? job->y_row[i] : i) * job->y_stride;
}

/* The weight's own factor, or 1 (multiplying by 1 changes nothing). */
static inline float k_gemm_scale(const struct k_cpu_gemm *job) {
        return job->w->scale ? job->w->scale[job->w->n_expert > 1 ? job->expert : 0] : 1.0f;
}

/* Stores n outputs of token i from row0 on. */
static inline void k_gemm_store(const struct k_cpu_gemm *job, uint32_t i, uint32_t row0, uint32_t n, const float *acc) {
        float *y = k_gemm_y(job, i) + row0, scale = k_gemm_scale(job);
        for (uint32_t r = 0; r < n; r++) {
                float v = acc[r] * scale;
                y[r] = job->bias ? v + job->bias[row0 + r] : v;
        }
}
