/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What happens to one head between the QKV product and attention: norm, rope,
 * attention temperature, K and V into their pages. A warp has one head, in shared
 * memory. The kernel of its own (qkv.cu) and attention, where it does this itself
 * (attention_d.cuh), must come to the same bits: whatever a compiler may or may
 * not fuse is spelled out.
 */

#include "kernels/cuda/kv.cuh"

struct head_rules {
        const double *freq; /* angle per position */
        float mscale, norm_eps, q_temp;
        uint32_t q_temp_len, rope_kind, n_dims, rope_off;
};

static inline struct head_rules head_rules_of(const struct cmd_qkv *c) {
        struct head_rules r;
        r.freq = c->freq;
        r.mscale = c->mscale;
        r.norm_eps = c->a.norm_eps;
        r.q_temp = c->a.q_temp;
        r.q_temp_len = c->a.q_temp_len;
        r.rope_kind = c->rope_kind;
        r.n_dims = c->rope_kind == K_ROPE_NONE ? 0 : c->n_dims;
        r.rope_off = c->a.rope_off;
        return r;
}

#ifdef __CUDACC__
/* Cosine and sine of pair i at a position, scaled. In double and reduced: angles stay exact at long contexts. */
static __device__ __forceinline__ float2 head_angle(const head_rules &h, int32_t pos, uint32_t i) {
        double turn = __dmul_rn((double)pos, h.freq[i]);
        float sn, cs;
        turn = __fma_rn(-6.283185307179586476925, rint(__dmul_rn(turn, 0.15915494309189533577)), turn);
        sincosf((float)turn, &sn, &cs);
        return make_float2(__fmul_rn(cs, h.mscale), __fmul_rn(sn, h.mscale));
}

/* 1 / rms of a head's columns. */
static __device__ __forceinline__ float head_rms(const float *x, uint32_t cols, float eps) {
        float s = 0;
        for (uint32_t c = threadIdx.x & 31; c < cols; c += 32)
                s = __fmaf_rn(x[c], x[c], s);
        return rsqrtf(__fadd_rn(__fdiv_rn(warp_sum(s), (float)cols), eps));
}

static __device__ __forceinline__ float head_q_scale(const head_rules &h, int32_t pos) {
        return h.q_temp == 0 ? 1 : __fmaf_rn(h.q_temp, logf(1 + floorf(__fdiv_rn((float)pos, (float)h.q_temp_len))), 1);
}

/* buf: cols floats in shared memory. norm: NULL, or weights of the first norm_cols; full: their factor, if it is known. */
static __device__ __forceinline__ void head_turn(const head_rules &h, float *buf, uint32_t cols, const float *norm, uint32_t norm_cols,
                                                 const float *full, const float2 *turns, float scale) {
        const uint32_t lane = threadIdx.x & 31;
        if (norm) {
                const float f = full ? *full : head_rms(buf, norm_cols, h.norm_eps);
                for (uint32_t c = lane; c < norm_cols; c += 32)
                        buf[c] = __fmul_rn(__fmul_rn(buf[c], f), norm[c]);
                __syncwarp();
        }
        const bool halves = h.rope_kind == K_ROPE_HALVES;
        float *r = buf + h.rope_off;
        for (uint32_t i = lane; i < h.n_dims / 2; i += 32) {
                const uint32_t i0 = halves ? i : 2 * i, i1 = halves ? i + h.n_dims / 2 : 2 * i + 1;
                const float2 u = turns[i];
                const float x = r[i0], y = r[i1];
                r[i0] = __fmaf_rn(x, u.x, -__fmul_rn(y, u.y));
                r[i1] = __fmaf_rn(x, u.y, __fmul_rn(y, u.x));
        }
        __syncwarp();
        if (scale != 1)
                for (uint32_t c = lane; c < cols; c += 32)
                        buf[c] = __fmul_rn(buf[c], scale);
        __syncwarp();
}

/* A head, times f, to columns c0 .. of a row of a KV type. */
static __device__ __forceinline__ void head_put(enum k_type type, uint8_t *row, uint32_t c0, const float *x, uint32_t cols, float f) {
        for (uint32_t c = threadIdx.x & 31, in = 0; in < cols; in += 32, c += 32)
                kv_put(type, row, c0 + c, c < cols ? __fmul_rn(x[c], f) : 0, c < cols);
}
#endif
