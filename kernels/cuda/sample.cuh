/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The sampler's parts that concern one value, and what its kernels share. */

#include "kernels/cuda/cuda.cuh"

enum : uint32_t {
        CHUNK = 4096,       /* values of a block of scan and mass */
        SCAN_THREADS = 256,
        PICK_THREADS = 1024,
        PICK_WARPS = PICK_THREADS / 32,
        BINS = 1024,        /* of 1/32 each; the last one holds all that is further away */
        MAX_CHUNKS = 512,   /* SAMPLE_MAX_VOCAB of engine/sample.h */
};

struct part { /* of a chunk */
        float max_raw, max;
        uint64_t mass_raw, mass;
        uint32_t first, pad; /* lowest id with x == max of the row */
};

struct sample_args {
        const float *logits;
        uint32_t n_vocab, n_chunk;
        const struct k_sample_row *rows;
        uint32_t *sampled;
        const uint32_t *history;
        size_t history_stride;
        float *work;        /* [n][n_vocab] changed logits */
        uint32_t *cand;     /* [n][n_vocab] candidates, a run of each warp */
        struct part *part;  /* [n][n_chunk] */
        uint64_t *bin_mass; /* [n][BINS] */
        uint32_t *bin_n, *bin_raw; /* [n][BINS] */
        uint64_t *count, *done; /* of a graph: how many steps (cuda_post); NULL: not one */
};

/* ---- one value ---------------------------------------------------------------- */

/* vec_weight() of engine/sample_vec.c. */
static __device__ __forceinline__ uint64_t weight_of(float x) {
        if (!(x > -87.0f))
                return 0;
        float n = __fsub_rn(__fadd_rn(__fmul_rn(x, 1.44269504088896340736f), 12582912.0f), 12582912.0f);
        float r = __fsub_rn(__fsub_rn(x, __fmul_rn(n, 0.693145751953125f)), __fmul_rn(n, 1.42860677e-6f));
        float p = __fadd_rn(1.0f / 720, __fmul_rn(r, 1.0f / 5040));
        p = __fadd_rn(1.0f / 120, __fmul_rn(r, p));
        p = __fadd_rn(1.0f / 24, __fmul_rn(r, p));
        p = __fadd_rn(1.0f / 6, __fmul_rn(r, p));
        p = __fadd_rn(0.5f, __fmul_rn(r, p));
        p = __fadd_rn(1.0f, __fmul_rn(r, p));
        p = __fadd_rn(1.0f, __fmul_rn(r, p));
        p = __fmul_rn(p, __int_as_float(((int)n + 127) << 23));
        return __float2ull_rn(__fmul_rn(p, 4398046511104.0f)); /* 2^42 */
}
static __device__ __forceinline__ uint64_t weight_at(float x, float max, float scale) {
        return weight_of(__fmul_rn(__fsub_rn(x, max), scale));
}
/* Ascending with x, then with falling id; never equal. -0 counts as 0. */
static __device__ __forceinline__ uint64_t key_of(float x, uint32_t id) {
        uint32_t b = __float_as_uint(__fadd_rn(x, 0.0f));
        b ^= b >> 31 ? UINT32_MAX : 0x80000000u;
        return (uint64_t)b << 32 | (UINT32_MAX - id);
}
static __device__ __forceinline__ uint32_t bin_of(float x, float max) {
        return min(__float2uint_rz(__fmul_rn(__fsub_rn(max, x), 32.0f)), BINS - 1u);
}

static __device__ __forceinline__ uint64_t warp_sum64(uint64_t v) {
#pragma unroll
        for (int o = 16; o; o >>= 1)
                v += __shfl_xor_sync(~0u, v, o);
        return v;
}
static __device__ __forceinline__ uint64_t warp_scan64(uint64_t v) { /* inclusive */
#pragma unroll
        for (int o = 1; o < 32; o *= 2) {
                uint64_t u = __shfl_up_sync(~0u, v, o);
                if ((threadIdx.x & 31) >= (uint32_t)o)
                        v += u;
        }
        return v;
}

static __device__ __forceinline__ bool changes(const struct k_sample_row &r) { return r.n_penalty || r.n_bias || r.mask; }
static __device__ __forceinline__ const float *raw_of(const sample_args &a, const struct k_sample_row &r) {
        return a.logits + (size_t)r.row * a.n_vocab;
}
static __device__ __forceinline__ const float *changed_of(const sample_args &a, const struct k_sample_row &r, uint32_t i) {
        return changes(r) ? a.work + (size_t)i * a.n_vocab : raw_of(a, r);
}
/* Whether the draw is within a cut, which a histogram finds. */
static __device__ __forceinline__ bool cuts(const struct k_sample_row &r) { return r.scale > 0 && (r.top_k || r.top_p < 1); }
