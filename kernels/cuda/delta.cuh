/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Recurrent layers: what the general kernels (delta.cu) and those for heads of 128 columns (delta_128.cu) share. */

#include "kernels/cuda/image.cuh"

enum { CONV_MAX = CUDA_TAPS };

struct conv_args {
        const float *x;  /* [n] rows of x_stride: channel c at x[c], times x[c + gate_off] if gate_off */
        size_t x_stride;
        uint32_t gate_off;
        uint32_t channels, taps;
        const float *w;
        float *state;    /* [slots][taps - 1][channels] */
        float *out;      /* [n, channels] */
        const float *mul; /* short convolution: out = mul * conv, rows of x_stride */
        uint32_t silu;
        struct dbatch b;
};

/*
 * A slot of the gated delta net: the state [n_v][s_k][s_v]; with heads of 128 then what is pending of the block of rows that the
 * sequence is in (delta_chunk.cuh): keys [n_k][rows][128], values [n_v][rows][128], gates [n_v][CUDA_DELTA_BLOCK] pairs, of
 * which the last has the number of rows. A block's last row is never pending, it closes the block.
 */
enum { CUDA_DELTA_BLOCK = 16, CUDA_DELTA_PENDING = CUDA_DELTA_BLOCK - 1 };

struct delta_args {
        struct k_delta_args a;
        size_t slot; /* floats */
        float *x; /* [n, channels] after convolution and SiLU: q, k, v */
        uint32_t channels;
        float *out;
        uint32_t image;
        struct image img;
        uint32_t *mail_to; /* one D row: its image also goes to this box (mail.cuh), or NULL */
        struct dbatch b;
};

/* Heads of 128 key and 128 value columns: convolution, norms, recurrence, gated norm, images. */
int cuda_delta_128(struct cuda_dev *, const delta_args &g, const conv_args &a);
