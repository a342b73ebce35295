/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Residual streams side by side (struct k_altup_args) and gates of which only what stands out is kept (struct k_glu_args,
 * sparse_std): what gemma3n has beyond other models. Sums go by the row's length alone, so a row's bits depend on no other row.
 */
#include <errno.h>

#include "kernels/cuda/cuda.cuh"

CUDA_FAMILY(altup)

enum { THREADS = 256 };

struct altup_args {
        float *h;
        size_t stream_stride;
        uint32_t n_stream, active, cols;
        const float *c;
        size_t c_stride;
        float *x;
        float eps;
};

/* PREDICT and CORRECT: a thread has a column of all streams, whose old values it keeps. */
__global__ void __launch_bounds__(THREADS) altup_columns_kernel(const altup_args a, bool predict) {
        pdl_next();
        pdl_wait();
        const uint32_t col = blockIdx.x * THREADS + threadIdx.x, row = blockIdx.y;
        const float *c = a.c + row * a.c_stride;
        const size_t at = (size_t)row * a.cols + col;
        float old[K_ALTUP_MAX];

        if (col >= a.cols)
                return;
#pragma unroll
        for (uint32_t i = 0; i < K_ALTUP_MAX; i++)
                old[i] = i < a.n_stream ? a.h[i * a.stream_stride + at] : 0;
        const float news = predict ? 0 : a.x[at] - a.h[a.active * a.stream_stride + at];
#pragma unroll
        for (uint32_t j = 0; j < K_ALTUP_MAX; j++) {
                if (j >= a.n_stream)
                        break;
                float v = predict ? old[j] : __fmaf_rn(1 + c[j], news, old[j]);
#pragma unroll
                for (uint32_t i = 0; i < K_ALTUP_MAX; i++)
                        if (predict && i < a.n_stream)
                                v = __fmaf_rn(c[j * a.n_stream + i], old[i], v);
                a.h[j * a.stream_stride + at] = v;
        }
}

__global__ void __launch_bounds__(THREADS) altup_match_kernel(const altup_args a) {
        __shared__ float red[33];
        pdl_next();
        pdl_wait();
        const size_t at = (size_t)blockIdx.x * a.cols;
        const float *h = a.h + a.active * a.stream_stride + at, n = (float)a.cols;
        float *x = a.x + at, want = 0, have = 0;

        for (uint32_t c = threadIdx.x; c < a.cols; c += THREADS) {
                want = __fmaf_rn(h[c], h[c], want);
                have = __fmaf_rn(x[c], x[c], have);
        }
        want = block_sum(want, red) / n;
        have = block_sum(have, red) / n;
        const float f = sqrtf(want) / sqrtf(have > a.eps ? have : a.eps);
        for (uint32_t c = threadIdx.x; c < a.cols; c += THREADS)
                x[c] *= f;
}

int cuda_run_altup(struct cuda_dev *d, const struct k_altup_args *c) {
        const altup_args a = {c->h, c->stream_stride, c->n_stream, c->active, c->cols, c->c, c->c_stride, c->x, c->eps};
        const dim3 columns(DIV_ROUND_UP(c->cols, (uint32_t)THREADS), c->n);

        switch (c->op) {
        case K_ALTUP_PREDICT:
        case K_ALTUP_CORRECT: return launch(d, "altup (columns)", altup_columns_kernel, columns, THREADS, 0, a, c->op == K_ALTUP_PREDICT);
        case K_ALTUP_MATCH: return launch(d, "altup (match)", altup_match_kernel, c->n, THREADS, 0, a);
        }
        return -EINVAL;
}

/* ---- sparse gates -------------------------------------------------------------------------- */

/* What of a row exceeds its mean by so many of its standard deviations, else 0. */
__global__ void __launch_bounds__(THREADS) sparse_gate_kernel(const float *gate, size_t stride, float *out, uint32_t cols, float n_std) {
        __shared__ float red[33];
        pdl_next();
        pdl_wait();
        const float *g = gate + blockIdx.x * stride;
        float sum = 0, squares = 0;

        for (uint32_t c = threadIdx.x; c < cols; c += THREADS)
                sum += g[c];
        const float mean = block_sum(sum, red) / (float)cols;
        for (uint32_t c = threadIdx.x; c < cols; c += THREADS) {
                const float v = g[c] - mean;
                squares = __fmaf_rn(v, v, squares);
        }
        const float cut = __fmaf_rn(n_std, sqrtf(block_sum(squares, red) / (float)cols), mean);
        for (uint32_t c = threadIdx.x; c < cols; c += THREADS) {
                const float v = g[c];
                out[(size_t)blockIdx.x * cols + c] = v > cut ? v - cut : 0;
        }
}

int cuda_sparse_gate(struct cuda_dev *d, const float *gate, size_t stride, float *out, uint32_t cols, float n_std, uint32_t n) {
        return launch(d, "sparse gate", sparse_gate_kernel, n, THREADS, 0, gate, stride, out, cols, n_std);
}
