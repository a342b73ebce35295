/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The norm of a whole row, and one order for its sum of squares, whoever has the
 * values: 16 columns from a multiple of 16 on are a group, added by pairs (columns
 * xor 1, 2, 4, 8); lane l of a warp adds the groups l, l + 32, ... in order; then
 * lanes are added by pairs (xor 1, 2, 4, 8, 16).
 *
 * With one row no kernel of its own is needed: the product that adds to the
 * residual leaves its groups' sums, and the warps of the product behind the norm
 * each make the columns that they multiply, with no barrier among them. The kernel
 * in rows.cu, for all others, has the same bits.
 */

#include "kernels/cuda/cuda.cuh"

enum : uint32_t { NORM_GROUP = 16, NORM_COLS = 16384 /* most columns of a row in this order */ };

static inline __host__ __device__ uint32_t norm_groups(uint32_t cols) { return DIV_ROUND_UP(cols, NORM_GROUP); }

/* The rows that have this order: whole, four columns at a time. */
static inline bool norm_whole(const struct cmd_norm *c) {
        return !c->group && c->x.cols % 4 == 0 && c->x.cols <= NORM_COLS && (!c->has_out || (c->out.cols % 4 == 0 && c->out_col % 4 == 0));
}

/* Both in memory: [a, a + n) and [b, b + m). */
static inline bool norm_apart(const float *a, size_t n, const float *b, size_t m) {
        return (uintptr_t)(a + n) <= (uintptr_t)b || (uintptr_t)(b + m) <= (uintptr_t)a;
}
/* One row of role D, whole and with its image, whose factor is all that it takes; it is not written over its x. */
static inline bool norm_joins(const struct cmd_norm *n) {
        return n->n == 1 && n->n_d == 1 && !n->gather && n->kind != K_NORM_LAYER && !n->b && n->has_out && n->write_image && !n->out_col &&
               n->out.cols == n->x.cols && norm_whole(n) && norm_apart(n->out.f, n->x.cols, n->x.f, n->x.cols);
}
/* x's squares are in d->squares. */
static inline struct norm_in norm_of(const struct cuda_dev *d, const struct cmd_norm *n) {
        struct norm_in r = {n->x.f, d->squares, n->w, n->out.f, n->out.q, n->x.cols, n->kind, n->eps, n->out_scale};
        return r;
}

#ifdef __CUDACC__
/* Squares of a group of which every lane has one column; all lanes get the sum of their 16. */
static __device__ __forceinline__ float norm_group1(float v) {
        float s = __fmul_rn(v, v);
#pragma unroll
        for (int o = 1; o < 16; o *= 2)
                s = __fadd_rn(s, __shfl_xor_sync(~0u, s, o));
        return s;
}
/* The same of four columns a lane. */
static __device__ __forceinline__ float norm_group4(float4 t) {
        float s = __fadd_rn(__fadd_rn(__fmul_rn(t.x, t.x), __fmul_rn(t.y, t.y)), __fadd_rn(__fmul_rn(t.z, t.z), __fmul_rn(t.w, t.w)));
        s = __fadd_rn(s, __shfl_xor_sync(~0u, s, 1));
        return __fadd_rn(s, __shfl_xor_sync(~0u, s, 2));
}
/* s: this lane's groups; all lanes get the row's sum. */
static __device__ __forceinline__ float norm_lanes(float s) {
#pragma unroll
        for (int o = 1; o < 32; o *= 2)
                s = __fadd_rn(s, __shfl_xor_sync(~0u, s, o));
        return s;
}
static __device__ __forceinline__ float norm_factor(uint32_t kind, float sum, uint32_t n, float eps) {
        return kind == K_NORM_L2 ? rsqrtf(__fadd_rn(sum, eps)) : rsqrtf(__fadd_rn(__fdiv_rn(sum, (float)n), eps));
}
/* Contractions spelt out: more than one kernel has these bits. */
static __device__ __forceinline__ float norm_value(float x, float mean, float f, float w, float b, float scale) {
        return __fmul_rn(__fmaf_rn(__fmul_rn(__fsub_rn(x, mean), f), w, b), scale);
}
static __device__ __forceinline__ float4 norm_value4(float4 x, float mean, float f, float4 w, float4 b, float scale) {
        return make_float4(norm_value(x.x, mean, f, w.x, b.x, scale), norm_value(x.y, mean, f, w.y, b.y, scale),
                           norm_value(x.z, mean, f, w.z, b.z, scale), norm_value(x.w, mean, f, w.w, b.w, scale));
}
/* Where mean and b are 0: no bit differs. */
static __device__ __forceinline__ float norm_value(float x, float f, float w, float scale) {
        return __fmul_rn(__fmaf_rn(__fmul_rn(x, f), w, 0), scale);
}
static __device__ __forceinline__ float4 norm_value4(float4 x, float f, float4 w, float scale) {
        return make_float4(norm_value(x.x, f, w.x, scale), norm_value(x.y, f, w.y, scale), norm_value(x.z, f, w.z, scale), norm_value(x.w, f, w.w, scale));
}

/*
 * Of four values that each lane has, number lane & 3 over the four lanes that differ
 * in their lowest two bits, in three exchanges instead of eight.
 */
template <class T, class F> static __device__ __forceinline__ T norm_quad(uint32_t lane, const T (&v)[4], F f) {
        T a[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
                const T other = __shfl_xor_sync(~0u, lane & 1 ? v[2 * i] : v[2 * i + 1], 1);
                a[i] = f(lane & 1 ? v[2 * i + 1] : v[2 * i], other);
        }
        const T other = __shfl_xor_sync(~0u, lane & 2 ? a[0] : a[1], 2);
        return f(lane & 2 ? a[1] : a[0], other);
}
/* Bytes of four integers, not below -127. */
static __device__ __forceinline__ uint32_t norm_bytes(const int (&q)[4]) {
        uint32_t high, all;
        asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(high) : "r"(max(-127, q[3])), "r"(max(-127, q[2])));
        asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(all) : "r"(max(-127, q[1])), "r"(max(-127, q[0])), "r"(high));
        return all;
}

/*
 * A warp's share of the D image of a normed row: 'tiles' tiles of 256 columns from c0 on, made by the warp itself in
 * shared memory, two tiles at a time: lane l has columns 128 i + 4 l .. + 3 for i = 0 .. 3, so eight lanes have a block of
 * each i, and it is lane l that finishes what belongs to i = l & 3. The arithmetic is quantize4()'s (cuda.cuh). Parameters
 * are asked for before the predecessor's results are waited for. SUMS: the product wants the sums of codes.
 */
template <bool SUMS> struct norm_share {
        float4 w[4];

        /* p: of this lane's first four columns; room: columns from there to the end. What is behind it is 'else_'. */
        static __device__ __forceinline__ void columns(const float *p, int room, float else_, bool fixed, float4 (&v)[4]) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                        v[i] = make_float4(else_, else_, else_, else_);
                        if (room > 128 * i)
                                v[i] = fixed ? __ldg((const float4 *)(p + 128 * i)) : __ldcg((const float4 *)(p + 128 * i));
                }
        }
        static __device__ __forceinline__ int room_of(const norm_in &n, uint32_t c0, uint32_t tiles, uint32_t lane) {
                return (int)min(tiles * 256, n.cols - c0) - (int)lane * 4;
        }
        __device__ __forceinline__ void start(const norm_in &n, uint32_t c0, uint32_t tiles, uint32_t lane) {
                columns(n.w + c0 + lane * 4, n.w ? room_of(n, c0, tiles, lane) : 0, 1, true, w);
                for (uint32_t at = 512 + lane * 32; n.w && at < tiles * 256 && c0 + at < n.cols; at += 1024)
                        asm volatile("prefetch.global.L2 [%0];" ::"l"(n.w + c0 + at)); /* the rest of them: at least near */
        }
        /* A lane's next eight groups of the 'left' ones, zeros behind the end. */
        static __device__ __forceinline__ void eight(const float *from, uint32_t left, uint32_t lane, float (&p)[8]) {
                if (left >= 256) {
#pragma unroll
                        for (int i = 0; i < 8; i++)
                                p[i] = __ldcg(from + 32 * i);
                        return;
                }
                const int room = (int)left - (int)lane;
#pragma unroll
                for (int i = 0; i < 8; i++)
                        p[i] = room > 32 * i ? __ldcg(from + 32 * i) : 0;
        }
        /* The row's factor, from the groups' sums; those of 8,192 columns are on their way at once. */
        static __device__ __forceinline__ float factor(const norm_in &n, uint32_t lane) {
                const float *from = n.squares + lane;
                float s = 0;
#pragma unroll 1
                for (uint32_t left = norm_groups(n.cols);; left -= 512, from += 512) {
                        float p[8], q[8];
                        eight(from, left, lane, p);
                        if (left > 256)
                                eight(from + 256, left - 256, lane, q);
#pragma unroll
                        for (int i = 0; i < 8; i++)
                                s = __fadd_rn(s, p[i]);
                        if (left <= 256)
                                break;
#pragma unroll
                        for (int i = 0; i < 8; i++)
                                s = __fadd_rn(s, q[i]);
                        if (left <= 512)
                                break;
                }
                return norm_factor(n.kind, norm_lanes(s), n.cols, n.eps);
        }
        /* x, xd, xs: codes, scales and sums of the share. keeps: also to memory, for whoever reads the row later. */
        __device__ __forceinline__ void make(const norm_in &n, uint32_t c0, uint32_t tiles, uint32_t lane, bool keeps, uint8_t *x, uint8_t *xd,
                                             uint8_t *xs) {
                const uint32_t mine = lane & 3, kpad = kpad_of(n.cols), code = image_code_at(lane * 4);
                int room = room_of(n, c0, tiles, lane);
                float4 v[4];

                columns(n.x + c0 + lane * 4, room, 0, false, v);
                const float f = factor(n, lane);
#pragma unroll 1
                for (uint32_t from = 0;;) {
                        const bool second = from + 256 < tiles * 256; /* of the two tiles */
                        float most[4];
                        uint32_t bytes[4];
                        int sum[4];
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                                const float fi = room > 128 * i ? f : 0; /* what is behind the end stays 0, whatever f is */
                                v[i] = norm_value4(v[i], fi, w[i], n.scale);
                                most[i] = fmaxf(fmaxf(fabsf(v[i].x), fabsf(v[i].y)), fmaxf(fabsf(v[i].z), fabsf(v[i].w)));
                        }
                        float m = norm_quad(lane, most, [](float a, float b) { return fmaxf(a, b); });
                        m = fmaxf(m, __shfl_xor_sync(~0u, m, 4));
                        const float d = m / 127.0f, id = m > 0 ? 127.0f / m : 0.0f;
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                                const float k = __shfl_sync(~0u, id, (lane & ~3u) + i);
                                const int q[4] = {__float2int_rn(__fmul_rn(v[i].x, k)), __float2int_rn(__fmul_rn(v[i].y, k)),
                                                  __float2int_rn(__fmul_rn(v[i].z, k)), __float2int_rn(__fmul_rn(v[i].w, k))};
                                bytes[i] = norm_bytes(q);
                                sum[i] = __dp4a((int)bytes[i], 0x01010101, 0);
                                if (i < 2 || second)
                                        *(uint32_t *)(x + from + 128 * i + code) = bytes[i];
                        }
                        const uint32_t at = from + 128 * mine + lane / 4 * 16; /* of this lane's 16 columns */
                        const bool there = mine < 2 || second;
                        float s = 0;
                        if (SUMS || keeps)
                                s = d * (float)norm_quad(lane, sum, [](int a, int b) { return a + b; });
                        if (there && (lane & 4) == 0)
                                *(float *)(xd + at / 8) = d;
                        if (SUMS && there)
                                *(float *)(xs + at / 4) = s;
                        if (keeps) {
#pragma unroll
                                for (int i = 0; i < 4; i++) {
                                        if (room > 128 * i)
                                                *(float4 *)(n.out + c0 + from + 128 * i + lane * 4) = v[i];
                                        if (i < 2 || second)
                                                *(uint32_t *)(n.image + c0 + from + 128 * i + code) = bytes[i];
                                }
                                if (there && (lane & 4) == 0)
                                        image_d(n.image, kpad)[(c0 + at) / 32] = d;
                                if (there)
                                        image_s(n.image, kpad)[(c0 + at) / 16] = s;
                        }
                        from += 512;
                        if (from >= tiles * 256)
                                break;
                        room -= 512;
                        columns(n.w + c0 + from + lane * 4, n.w ? room : 0, 1, true, w);
                        columns(n.x + c0 + from + lane * 4, room, 0, false, v);
                }
                __syncwarp();
        }
};
#endif
