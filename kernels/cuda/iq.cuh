/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The lattice formats, from blocks in FILE layout (kernels/quant/codes_iq.c is the
 * reference and documents the bits): what a lane takes at once are the eight
 * weights of one entry, as bytes. A word of the table has an entry's eight
 * numbers of magnitudes, four bits each, or the four magnitudes themselves
 * (IQ3); signs come from a second table, by the format's 7 or 8 bits of them. A
 * number of four bits chooses among eight bytes, PRMT's operands: so a sign is
 * put to it by turning its third bit, and both steps are one instruction for four
 * weights. The tables are copied to the device at open.
 */

#include <cuda_fp16.h>

#include "kernels/cuda/cuda.cuh"
#include "kernels/quant/grids.h"

/* Bytes for numbers 0 to 3: magnitudes 8, 25, 43; of IQ1 -1, 0 and 1 times eight, plus one. MINUS, for 4 to 7: the same times -1; minus one. */
enum : uint32_t { IQ2_PLUS = 0x002b1908, IQ2_MINUS = 0x00d5e7f8, IQ1_PLUS = 0x000901f9, IQ1_MINUS = 0x0007fff7 };

struct iq_tables {
        uint32_t iq2_xxs[256], iq2_xs[512], iq2_s[1024], iq1[2048]; /* eight numbers of four bits */
        uint32_t iq3_xxs[256], iq3_s[512];                          /* four magnitudes */
        uint32_t turn7[128], turn8[256];                            /* bit 4 i + 2: weight i is negative; 7: the eighth makes it an even number of them */
        uint32_t less7[128], less8[256];                            /* the same at bit 8 i + 7, of weight 4 + i at bit 8 i + 3 */
        uint32_t plus2, plus1;                                      /* iq_global's, for whoever wants it in a register: an instruction has one constant */
};
static __device__ struct iq_tables iq; /* this file's own; iq_upload() at open */

static void iq_make(struct iq_tables *t) {
        memset(t, 0, sizeof(*t));
        t->plus2 = IQ2_PLUS;
        t->plus1 = IQ1_PLUS;
        for (uint32_t i = 0; i < 2048; i++)
                for (uint32_t j = 0; j < 8; j++) {
                        const uint32_t to = 4 * j, from = 2 * j;
                        t->iq1[i] |= (uint32_t)(k_grid_iq1_s[i] >> from & 3) << to;
                        if (i < 1024)
                                t->iq2_s[i] |= (uint32_t)(k_grid_iq2_s[i] >> from & 3) << to;
                        if (i < 512)
                                t->iq2_xs[i] |= (uint32_t)(k_grid_iq2_xs[i] >> from & 3) << to;
                        if (i < 256)
                                t->iq2_xxs[i] |= (uint32_t)(k_grid_iq2_xxs[i] >> from & 3) << to;
                }
        for (uint32_t i = 0; i < 512; i++)
                for (uint32_t j = 0; j < 4; j++) {
                        t->iq3_s[i] |= (uint32_t)(2 * (k_grid_iq3_s[i] >> 3 * j & 7) + 1) << 8 * j;
                        if (i < 256) {
                                const uint32_t m = k_grid_iq3_xxs[i] >> 3 * j & 7;
                                t->iq3_xxs[i] |= (m == 7 ? 62 : 4 + 8 * m) << 8 * j;
                        }
                }
        for (uint32_t s = 0; s < 256; s++) {
                const uint32_t even = (s & 127) | (uint32_t)__builtin_parity(s & 127) << 7;
                for (uint32_t j = 0; j < 8; j++) {
                        const uint32_t turn = 4 * j + 2, less = j < 4 ? 8 * j + 7 : 8 * (j - 4) + 3;
                        t->turn8[s] |= (s >> j & 1) << turn;
                        t->less8[s] |= (s >> j & 1) << less;
                        if (s < 128) {
                                t->turn7[s] |= (even >> j & 1) << turn;
                                t->less7[s] |= (even >> j & 1) << less;
                        }
                }
        }
}

static int iq_upload(struct cuda_dev *d) {
        struct iq_tables t;
        iq_make(&t);
        CUDA_TRY(d, cudaMemcpyToSymbol(iq, &t, sizeof(t)), "tables");
        return 0;
}

#define IQ_FOR_TYPES(X) X(K_IQ2_XXS) X(K_IQ2_XS) X(K_IQ2_S) X(K_IQ3_XXS) X(K_IQ3_S) X(K_IQ1_S) X(K_IQ1_M)

/* Bytes of a block, entries of the table, signs (0: none), scales of 16 weights. */
struct iq_shape { uint32_t bytes, entries, signs, halves; };
template <int T> static __device__ __forceinline__ constexpr iq_shape iq_shape_of() {
        return T == K_IQ2_XXS   ? iq_shape{66, 256, 128, 0}
               : T == K_IQ2_XS  ? iq_shape{74, 512, 128, 1}
               : T == K_IQ2_S   ? iq_shape{82, 1024, 256, 1}
               : T == K_IQ3_XXS ? iq_shape{98, 256, 128, 0}
               : T == K_IQ3_S   ? iq_shape{110, 512, 256, 0}
               : T == K_IQ1_S   ? iq_shape{50, 2048, 0, 0}
                                : iq_shape{56, 2048, 0, 1};
}
template <int T> static __device__ __forceinline__ const uint32_t *iq_table() {
        return T == K_IQ2_XXS ? iq.iq2_xxs : T == K_IQ2_XS ? iq.iq2_xs : T == K_IQ2_S ? iq.iq2_s : T == K_IQ3_XXS ? iq.iq3_xxs : T == K_IQ3_S ? iq.iq3_s : iq.iq1;
}
template <int T> static __device__ __forceinline__ const uint32_t *iq_signs() {
        return T == K_IQ3_XXS ? iq.less7 : T == K_IQ3_S ? iq.less8 : T == K_IQ2_S ? iq.turn8 : iq.turn7;
}

/* Blocks lie at even addresses. */
static __device__ __forceinline__ uint32_t iq_u16(const uint8_t *p) { return *(const uint16_t *)p; }
static __device__ __forceinline__ uint32_t iq_u32(const uint8_t *p) { return iq_u16(p) | iq_u16(p + 2) << 16; }
static __device__ __forceinline__ float iq_f16(uint32_t v) { return __half2float(__ushort_as_half((unsigned short)v)); }

/* Byte i of the result: that of {b, a} which number i of 'which' says; 8 and up: its top bit, eight times. */
static __device__ __forceinline__ uint32_t iq_pick(uint32_t a, uint32_t b, uint32_t which) {
        uint32_t r;
        asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(which));
        return r;
}
/* Four positive bytes, those with all bits of 'less' times -1. */
static __device__ __forceinline__ uint32_t iq_less(uint32_t v, uint32_t less) { return (v ^ less) + (less & 0x01010101u); }

/* Where entries and signs are looked up: this file's tables. */
template <int T> struct iq_global {
        __device__ __forceinline__ uint32_t entry(uint32_t i) const { return iq_table<T>()[i]; }
        __device__ __forceinline__ uint32_t sign(uint32_t i) const { return iq_signs<T>()[i]; }
        static constexpr bool ONE = T == K_IQ1_S || T == K_IQ1_M;
        static constexpr uint32_t plus = ONE ? IQ1_PLUS : IQ2_PLUS, minus = ONE ? IQ1_MINUS : IQ2_MINUS;
};

/* Entry t of block kb of 32 weights: weights 8 t .. + 3 and 8 t + 4 .. + 7 of them as signed bytes. p: the block of 256. */
template <int T, class F>
static __device__ __forceinline__ uint2 iq_entry(const uint8_t *p, uint32_t kb, uint32_t t, const F &f) {
        if constexpr (T == K_IQ3_XXS || T == K_IQ3_S) {
                const uint32_t q = iq_u16(p + 2 + 8 * kb + 2 * t);
                uint32_t e0 = q & 255, e1 = q >> 8, s;
                if constexpr (T == K_IQ3_XXS) {
                        s = iq_u32(p + 66 + 4 * kb) >> 7 * t & 127;
                } else {
                        const uint32_t hi = p[66 + kb] >> 2 * t;
                        e0 |= (hi & 1) << 8;
                        e1 |= (hi & 2) << 7;
                        s = p[74 + 4 * kb + t];
                }
                const uint32_t less = f.sign(s);
                return make_uint2(iq_less(f.entry(e0), iq_pick(less, 0, 0xba98)), iq_less(f.entry(e1), iq_pick(less << 4, 0, 0xba98)));
        } else {
                uint32_t e, turn;
                if constexpr (T == K_IQ2_XXS) {
                        e = p[2 + 8 * kb + t];
                        turn = f.sign(iq_u32(p + 6 + 8 * kb) >> 7 * t & 127);
                } else if constexpr (T == K_IQ2_XS) {
                        const uint32_t v = iq_u16(p + 2 + 8 * kb + 2 * t);
                        e = v & 511;
                        turn = f.sign(v >> 9);
                } else if constexpr (T == K_IQ2_S) {
                        e = p[2 + 4 * kb + t] | ((uint32_t)p[66 + kb] >> 2 * t & 3) << 8;
                        turn = f.sign(p[34 + 4 * kb + t]);
                } else if constexpr (T == K_IQ1_S) {
                        const uint32_t h = iq_u16(p + 34 + 2 * kb);
                        e = p[2 + 4 * kb + t] | (h >> 3 * t & 7) << 8;
                        turn = h & 0x8000 ? 0x44444444 : 0;
                } else {
                        const uint32_t h = p[32 + 2 * kb + (t >> 1)] >> 4 * (t & 1);
                        e = p[4 * kb + t] | (h & 7) << 8;
                        turn = h & 8 ? 0x44444444 : 0;
                }
                const uint32_t which = f.entry(e) ^ turn;
                return make_uint2(iq_pick(f.plus, f.minus, which), iq_pick(f.plus, f.minus, which >> 16));
        }
}

/* The scale of half h (0, but for types that have scales of halves) of block kb: 2 s + 1. */
template <int T> static __device__ __forceinline__ float iq_scale(const uint8_t *p, uint32_t kb, uint32_t h) {
        uint32_t s;
        if constexpr (T == K_IQ2_XXS)
                s = iq_u16(p + 8 + 8 * kb) >> 12;
        else if constexpr (T == K_IQ2_XS)
                s = p[66 + kb] >> 4 * h & 15;
        else if constexpr (T == K_IQ2_S)
                s = p[74 + kb] >> 4 * h & 15;
        else if constexpr (T == K_IQ3_XXS)
                s = iq_u16(p + 68 + 4 * kb) >> 12;
        else if constexpr (T == K_IQ3_S)
                s = p[106 + (kb >> 1)] >> 4 * (kb & 1) & 15;
        else if constexpr (T == K_IQ1_S)
                s = iq_u16(p + 34 + 2 * kb) >> 12 & 7;
        else
                s = iq_u16(p + 48 + 2 * (kb >> 1)) >> (6 * (kb & 1) + 3 * h) & 7;
        return __fsub_rn(__uint_as_float(0x4b000001u + 2 * s), 8388608.0f); /* in the last bits of 2^23 */
}

/* The factor of a block of 256. */
template <int T> static __device__ __forceinline__ float iq_factor(const uint8_t *p) {
        uint32_t v;
        if constexpr (T == K_IQ1_M)
                v = iq_u16(p + 48) >> 12 | (iq_u16(p + 50) >> 8 & 0xf0) | (iq_u16(p + 52) >> 4 & 0xf00) | (iq_u16(p + 54) & 0xf000);
        else
                v = iq_u16(p);
        return __fmul_rn(iq_f16(v), T == K_IQ3_S ? 1.0f : T == K_IQ3_XXS ? 0.25f : 0.125f);
}

/* The eight weights of an entry, with k_decode()'s bits. */
template <int T> static __device__ __forceinline__ void iq_values(const uint8_t *p, uint32_t kb, uint32_t t, float v[8]) {
        const uint2 q = iq_entry<T>(p, kb, t, iq_global<T>());
        const float f = __fmul_rn(iq_factor<T>(p), iq_scale<T>(p, kb, iq_shape_of<T>().halves ? t >> 1 : 0));
        const uint32_t lo = q.x ^ 0x80808080u, hi = q.y ^ 0x80808080u;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) /* a code plus 128 in the last bits of 2^23 */
                v[i] = __fmul_rn(f, __fsub_rn(__uint_as_float(iq_pick(i < 4 ? lo : hi, 0x4b000000u, 0x7540 | (i & 3))), 8388736.0f));
}

/* Weight c of a row in FILE layout. */
static __device__ __forceinline__ float file_value(enum k_type type, const uint8_t *row, uint32_t c) {
        float v[8] = {};

        switch (type) {
        case K_F32: return ((const float *)row)[c];
        case K_F16: return __half2float(((const __half *)row)[c]);
        case K_BF16: return __uint_as_float((uint32_t)((const uint16_t *)row)[c] << 16);
        case K_I32: return (float)((const int32_t *)row)[c];
#define X(T) case T: iq_values<T>(row + (size_t)(c >> 8) * iq_shape_of<T>().bytes, c >> 5 & 7, c >> 3 & 3, v); break;
                IQ_FOR_TYPES(X)
#undef X
        default: break;
        }
        float r = 0;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
                r = i == (c & 7) ? v[i] : r;
        return r;
}
