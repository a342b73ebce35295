/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A tile of K_LAYOUT_CUDA times int8 activations on the tensor cores, for the
 * products of matrices (matvec.cuh) and of experts (moe_product.cuh).
 *
 * An MMA has eight columns of activations. Where there are only one or two of
 * them, their blocks of 32 are spread over the columns, with zeros elsewhere:
 * after a tile's MMAs the accumulators hold the sums of all its blocks, and no
 * lane scales what another one does or what nobody wants. Either way a row has
 * four sums a tile goes into, of the pairs of blocks (2q, 2q + 1), and a lane of
 * number t in its four has sum t of its rows.
 */

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/types.cuh"

template <int TYPE> struct tile_stage {
        static constexpr tile_bytes TB = tile_bytes_of<TYPE>();
        static constexpr int BYTES = TB.code + TB.high + TB.scale + TB.super;
};

/* c = start + a b */
static __device__ __forceinline__ void mma_s8_k32(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, int start) {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
            : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(start));
}
/* c += a b; U: the codes are unsigned */
template <bool U> static __device__ __forceinline__ void mma_k32_add(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
        if (U)
                asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                    : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
        else
                asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                    : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <bool U> static __device__ __forceinline__ void mma_k16(int c[4], uint32_t a0, uint32_t a1, uint32_t b0, int start) {
        if (U)
                asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
                    : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
                    : "r"(a0), "r"(a1), "r"(b0), "r"(start));
        else
                asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
                    : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
                    : "r"(a0), "r"(a1), "r"(b0), "r"(start));
}
/* c += a b */
template <bool U> static __device__ __forceinline__ void mma_k16_add(int c[4], uint32_t a0, uint32_t a1, uint32_t b0) {
        if (U)
                asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                    : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                    : "r"(a0), "r"(a1), "r"(b0));
        else
                asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                    : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                    : "r"(a0), "r"(a1), "r"(b0));
}

/* An int accumulator that starts here reads as a float 2^23 * 1.5 + sum: exact for |sum| < 2^22 (at most 32 * 127 * 128). */
#define INT_BIAS 0x4b400000
/* The sum over 'field', a power of four that divides it. */
static __device__ __forceinline__ float int_sum(int c, float field) {
        return __fmaf_rn(__int_as_float(c), 1.0f / field, -12582912.0f / field);
}

template <class Q> static __device__ __forceinline__ void tile_codes(const Q &w, int kb, uint32_t a[4]) {
        if constexpr (Q::FIELDS)
                w.fields(kb, a);
        else
                w.codes(kb, a);
}
/* What int_sum() divides by: block kb, half h. */
template <class Q> static __device__ __forceinline__ constexpr float tile_field(int kb, int h) {
        return Q::FIELDS ? (float)(1 << (4 * (kb & 1) + 2 * h)) : 1.0f;
}

/* A plane's part of a tile, 16 bytes a lane; to, from: this lane's, to a shared address. */
template <int AT, int BYTES> static __device__ __forceinline__ void copy_plane(uint32_t to, const uint8_t *from, uint32_t lane) {
        if constexpr (BYTES >= 512)
                copy16_once<AT>(to, from);
        if constexpr (BYTES >= 1024)
                copy16_once<AT + 512>(to, from + 512);
        if constexpr (BYTES >= 1536)
                copy16_once<AT + 1024>(to, from + 1024);
        if constexpr (BYTES >= 2048)
                copy16_once<AT + 1536>(to, from + 1536);
        if constexpr (BYTES > 2048)
                copy_plane<AT + 2048, BYTES - 2048>(to, from + 2048, lane);
        else if constexpr (BYTES % 512)
                if (lane < BYTES % 512 / 16)
                        copy16_once<AT + BYTES / 512 * 512>(to, from + BYTES / 512 * 512);
}

/* one_tile()'s codes of block kb, and how many times they are too large. */
template <class Q> static __device__ __forceinline__ void one_codes(const Q &w, int kb, uint32_t a[4]) {
        if constexpr (Q::LEFT != 0)
                w.left(kb, a);
        else
                tile_codes(w, kb, a);
}
template <class Q> static __device__ __forceinline__ constexpr float one_field(int kb, int h) {
        return Q::LEFT != 0 ? Q::LEFT : tile_field<Q>(kb, h);
}
/* Four signed bytes, each times -1. */
static __device__ __forceinline__ uint32_t bytes_less(uint32_t v) { return (0x80808080 - (v & 0x7f7f7f7f)) ^ (~v & 0x80808080); }

/*
 * One tile, one activation: column n of an MMA has the n-th of the activation's eight blocks of 32; with scales every 16
 * columns, half n & 1 of block n & ~1 or of n | 1. So what the MMA with that block of weights has in column n is a sum that is
 * wanted, and what else it has there is not. Four MMAs at a time add up in two pairs, each with what zeros in four of the
 * columns leave of both, so that a lane finds the sums of its blocks, 2t + x, in one of the two: fewer zeros to be put into
 * operands, and shorter chains, than if all were in one. Codes that are to be taken away (SPLIT) meet the activation times -1. acc[r] +=
 * this lane's part of row g + 8 r.
 */
template <class Q>
static __device__ __forceinline__ void one_tile(const Q &w, const float (&sc)[2][4], const float (&mn)[2][4], const uint8_t *codes,
                                                const uint8_t *dx, const uint8_t *sx, uint32_t g, uint32_t t, float acc[2]) {
        constexpr bool U = Q::FIELDS || Q::LEFT != 0;
        constexpr int H = Q::N16 ? 2 : 1;
        const bool low = g < 4, second = g & 1, odd = t & 1;
        uint2 b[2][2], less[2]; /* [x][p]: of MMAs with the blocks 4 p + 2 j + x; [p]: the same times -1 */
        if (Q::N16) {
                const uint8_t *at = codes + (g >> 1) * 64 + t * 16 + (g & 1) * 4;
#pragma unroll
                for (int x = 0; x < 2; x++) {
                        const uint32_t v = *(const uint32_t *)(at + 8 * x);
                        b[x][0] = make_uint2(low && !second ? v : 0, low && second ? v : 0);
                        b[x][1] = make_uint2(low || second ? 0 : v, low || !second ? 0 : v);
                }
        } else {
                uint2 v = *(const uint2 *)(codes + (g >> 1) * 64 + t * 16 + (g & 1) * 8);
                if (Q::SPLIT)
                        v = make_uint2(__byte_perm(v.x, v.y, 0x5140), __byte_perm(v.x, v.y, 0x7362));
                b[0][0] = b[1][0] = make_uint2(low ? v.x : 0, low ? v.y : 0);
                b[0][1] = b[1][1] = make_uint2(low ? 0 : v.x, low ? 0 : v.y);
                if (Q::SPLIT) {
                        v = make_uint2(bytes_less(v.x), bytes_less(v.y));
                        less[0] = make_uint2(low ? v.x : 0, low ? v.y : 0);
                        less[1] = make_uint2(low ? 0 : v.x, low ? 0 : v.y);
                }
        }
        const float2 d = *(const float2 *)(dx + t * 8);
        const float4 s = Q::HAS_MIN ? *(const float4 *)(sx + t * 16) : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int x = 0; x < 2; x++) { /* blocks 2t + x of all lanes */
                int c[2][4];
#pragma unroll
                for (int j = 0; j < 2; j++)
#pragma unroll
                        for (int i = 0; i < 4; i++)
                                c[j][i] = INT_BIAS;
#pragma unroll
                for (int p = 0; p < 2; p++)
#pragma unroll
                        for (int j = 0; j < 2; j++) {
                                uint32_t a[4], down[4];
                                const int kb = p * 4 + j * 2 + x;
                                if constexpr (Q::SPLIT) {
                                        w.split(kb, a, down);
                                        mma_k32_add<true>(c[j], a, b[x][p].x, b[x][p].y);
                                        mma_k32_add<true>(c[j], down, less[p].x, less[p].y);
                                } else {
                                        one_codes(w, kb, a);
                                        mma_k32_add<U>(c[j], a, b[x][p].x, b[x][p].y);
                                }
                        }
                const float dv = x ? d.y : d.x;
#pragma unroll
                for (int r = 0; r < 2; r++) {
#pragma unroll
                        for (int h = 0; h < H; h++) {
                                const int at = 2 * r + (Q::N16 ? h : x);
                                const float sum = int_sum(odd ? c[1][at] : c[0][at], one_field<Q>(x, h));
                                acc[r] = __fmaf_rn(sc[r][H * x + h], __fmul_rn(sum, dv), acc[r]);
                                if (Q::HAS_MIN && Q::N16)
                                        acc[r] = __fmaf_rn(-mn[r][2 * x + h], x ? (h ? s.w : s.z) : (h ? s.y : s.x), acc[r]);
                                else if (Q::HAS_MIN)
                                        acc[r] = __fmaf_rn(-mn[r][x], x ? __fadd_rn(s.z, s.w) : __fadd_rn(s.x, s.y), acc[r]);
                        }
                }
        }
}

/* The four lanes' sums of four values, added as (0 + 1) + (2 + 3): value t for lane t. */
static __device__ __forceinline__ float four_sums(const float v[4], uint32_t t) {
        const bool odd = t & 1, high = t & 2;
        const float a = __fadd_rn(odd ? v[1] : v[0], __shfl_xor_sync(~0u, odd ? v[0] : v[1], 1));
        const float b = __fadd_rn(odd ? v[3] : v[2], __shfl_xor_sync(~0u, odd ? v[2] : v[3], 1));
        return __fadd_rn(high ? b : a, __shfl_xor_sync(~0u, high ? a : b, 2));
}
