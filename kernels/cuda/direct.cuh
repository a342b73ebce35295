/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Tiles of K_LAYOUT_CUDA to f16, for products that decode what they multiply (matmul_direct.cu). The results are the
 * bits of tile_value() rounded to f16 (the sign of a zero apart, which no sum sees), by fewer instructions: where a weight
 * is an f16 scale times a small integer, one f16 multiplication rounds once, as f32 followed by a conversion does.
 *
 * A step is 64 columns, blocks of 32 number 2 q and 2 q + 1; a warp decodes both (I = 2), or each lane the one with kbl(0).
 * Lanes of odd g take the two in the other order, so that the rows of a half warp's stores meet in no bank: kbl(i) = i ^ odd. plain(): nothing of this lane's step can leave f16's
 * range; otherwise the warp does the step by tile_value(). load(): the codes of step q, and with an even q what q + 1
 * shares with it; code and high point to this lane's first 16 bytes of the tile. put(i, r, h, a, b) gets the columns 16 h + 4 t .. + 3 of the
 * block kbl(i) of row g + 8 r.
 */

#include "kernels/cuda/types.cuh"

#ifdef __CUDACC__
static __device__ __forceinline__ uint32_t mul_h2(uint32_t a, uint32_t b) {
        uint32_t r;
        asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
        return r;
}
static __device__ __forceinline__ uint32_t add_h2(uint32_t a, uint32_t b) {
        uint32_t r;
        asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
        return r;
}
static __device__ __forceinline__ uint32_t fma_h2(uint32_t a, uint32_t b, uint32_t c) {
        uint32_t r;
        asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
        return r;
}
static __device__ __forceinline__ uint32_t pack_h2(float a, float b) {
        const __half2 h = __floats2half2_rn(a, b);
        return *(const uint32_t *)&h;
}
/* A signed byte whose sign bit was turned. */
static __device__ __forceinline__ float turned_at(uint32_t w, uint32_t i) {
        return __uint_as_float(__byte_perm(w, 0x4b000000, 0x7540 | i)) - 8388736.0f;
}
static __device__ __forceinline__ uint32_t pick(bool second, uint32_t a, uint32_t b) { return second ? b : a; }

/* What a lane is, and where its warp's scales of the tile lie in shared memory. */
struct direct_lane {
        const uint8_t *scale, *super;
        uint32_t g, odd;
};

template <int T> struct direct;

/* Types of 4-bit codes: words of P4. */
struct direct_p4 {
        static constexpr int STEPS = 4; /* whose codes it holds */
        uint4 v[4];
        template <int I> __device__ void load(const uint8_t *code, const uint8_t *, uint32_t, int q) { v[q] = ldg16(code + q * 512); }
        __device__ uint32_t word(const direct_lane &l, int q, int i, int r) const {
                const uint32_t even = r ? v[q].y : v[q].x, odd = r ? v[q].w : v[q].z;
                return pick(l.odd, i ? odd : even, i ? even : odd);
        }
};

/* f16 scales [g][row][8]: those of a step's two blocks, and whether both are below 2. */
static __device__ __forceinline__ uint32_t direct_halves(const direct_lane &l, int q, int r) {
        return *(const uint32_t *)(l.scale + l.g * 32 + r * 16 + q * 4);
}
static __device__ __forceinline__ bool direct_halves_plain(const direct_lane &l, int q) {
        return !((direct_halves(l, q, 0) | direct_halves(l, q, 1)) & 0x40004000);
}
static __device__ __forceinline__ uint32_t direct_half(const direct_lane &l, uint32_t two, int i) {
        return __byte_perm(two, 0, (i ^ l.odd) ? 0x3232 : 0x1010);
}

template <> struct direct<K_Q4_0> : direct_p4 {
        static __device__ bool plain(const direct_lane &l, int q) { return direct_halves_plain(l, q); }
        template <int I, class F> __device__ void decode(const direct_lane &l, int q, F put) const {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                        const uint32_t two = direct_halves(l, q, r);
#pragma unroll
                        for (int i = 0; i < I; i++) {
                                /* codes of two columns as 1024 + u and 1024 + 16 u, u = code + 8 */
                                const uint32_t d = direct_half(l, two, i), a = __byte_perm(word(l, q, i, r), 0, 0x3120), b = a >> 8;
                                put(i, r, 0, mul_h2(add_h2((a & 0x000f000f) ^ 0x64086408, 0xe408e408), d),
                                    mul_h2(add_h2((b & 0x000f000f) ^ 0x64086408, 0xe408e408), d));
                                put(i, r, 1, mul_h2(fma_h2((a & 0x00f000f0) ^ 0x64806480, 0x2c002c00, 0xd480d480), d),
                                    mul_h2(fma_h2((b & 0x00f000f0) ^ 0x64806480, 0x2c002c00, 0xd480d480), d));
                        }
                }
        }
};

template <> struct direct<K_Q8_0> {
        static constexpr int STEPS = 2;
        uint4 v[4]; /* [2 (q & 1) + i] */
        template <int I> __device__ void load(const uint8_t *code, const uint8_t *, uint32_t odd, int q) {
#pragma unroll
                for (int i = 0; i < I; i++)
                        v[2 * (q & 1) + i] = ldg16(code + (2 * q + (i ^ odd)) * 512);
        }
        static __device__ bool plain(const direct_lane &l, int q) { return direct_halves_plain(l, q); }
        template <int I, class F> __device__ void decode(const direct_lane &l, int q, F put) const {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                        const uint32_t two = direct_halves(l, q, r);
#pragma unroll
                        for (int i = 0; i < I; i++) {
                                const uint32_t d = direct_half(l, two, i);
#pragma unroll
                                for (int h = 0; h < 2; h++) {
                                        const uint32_t u = word4(v[2 * (q & 1) + i], 2 * h + r) ^ 0x80808080; /* 1024 + 128 + code */
                                        put(i, r, h, mul_h2(add_h2(__byte_perm(u, 0x64646464, 0x4140), 0xe480e480), d),
                                            mul_h2(add_h2(__byte_perm(u, 0x64646464, 0x4342), 0xe480e480), d));
                                }
                        }
                }
        }
};

/* E2M1 in the upper byte of an f16 is 2^-14 of its value; the scale has the 2^14, and is 0 where all products round to 0. */
template <> struct direct<K_MXFP4> : direct_p4 {
        static __device__ uint32_t exponents(const direct_lane &l, int q, int r) {
                return *(const uint16_t *)(l.scale + l.g * 16 + r * 8 + q * 2);
        }
        static __device__ bool plain(const direct_lane &l, int q) { return !((exponents(l, q, 0) | exponents(l, q, 1)) & 0x8080); }
        template <int I, class F> __device__ void decode(const direct_lane &l, int q, F put) const {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                        const uint32_t two = exponents(l, q, r);
#pragma unroll
                        for (int i = 0; i < I; i++) {
                                const int e = (int)__byte_perm(two, 0, (i ^ l.odd) ? 0x4441 : 0x4440);
                                const uint32_t d = (uint32_t)max(e - 98, 0) * 0x04000400u, w = word(l, q, i, r); /* 2^(e - 127 + 14) */
                                const uint32_t lo = ((w << 4) & 0x80808080) | ((w << 1) & 0x0e0e0e0e);
                                const uint32_t hi = (w & 0x80808080) | ((w >> 3) & 0x0e0e0e0e);
                                put(i, r, 0, mul_h2(__byte_perm(lo, 0, 0x1404), d), mul_h2(__byte_perm(lo, 0, 0x3424), d));
                                put(i, r, 1, mul_h2(__byte_perm(hi, 0, 0x1404), d), mul_h2(__byte_perm(hi, 0, 0x3424), d));
                        }
                }
        }
};

/* Scale times code is exact in f32; its difference from the min is rounded twice there, so it is here. */
template <> struct direct<K_Q4_K> : direct_p4 {
        static __device__ const uint8_t *head(const direct_lane &l, int r) { return l.scale + l.g * 32 + r * 16; }
        static __device__ bool plain(const direct_lane &l, int) {
                return !((*(const uint32_t *)head(l, 0) | *(const uint32_t *)head(l, 1)) & 0x40004000);
        }
        template <int I, class F> __device__ void decode(const direct_lane &l, int q, F put) const {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                        float sc[2], mn[2];
                        khead::pair<true>(head(l, r), (uint32_t)q, sc, mn);
#pragma unroll
                        for (int i = 0; i < I; i++) {
                                const float d = (i ^ l.odd) ? sc[1] : sc[0], m = (i ^ l.odd) ? mn[1] : mn[0], bias = -8388608.0f * d;
                                const uint32_t w = word(l, q, i, r);
#pragma unroll
                                for (int h = 0; h < 2; h++) {
                                        const uint32_t c = (h ? w >> 4 : w) & M4;
                                        float f[4];
#pragma unroll
                                        for (int j = 0; j < 4; j++)
                                                f[j] = __fsub_rn(ubyte_times(c, j, d, bias), m);
                                        put(i, r, h, pack_h2(f[0], f[1]), pack_h2(f[2], f[3]));
                                }
                        }
                }
        }
};

template <> struct direct<K_Q6_K> : direct_p4 {
        uint4 b[2]; /* of two steps each */
        template <int I> __device__ void load(const uint8_t *code, const uint8_t *high, uint32_t odd, int q) {
                direct_p4::load<I>(code, high, odd, q);
                if (!(q & 1))
                        b[q >> 1] = ldg16(high + (q >> 1) * 512);
        }
        static __device__ bool plain(const direct_lane &l, int) { return !(*(const uint32_t *)(l.super + l.g * 4) & 0x40004000); }
        template <int I, class F> __device__ void decode(const direct_lane &l, int q, F put) const {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                        const uint32_t four = direct_halves(l, q, r) ^ 0x80808080; /* signed bytes */
                        const float d = half_from(l.super + l.g * 4 + r * 2) * 0.25f;
                        const uint32_t x2 = word4(b[q >> 1], (q & 1) * 2 + r);
#pragma unroll
                        for (int i = 0; i < I; i++) {
                                const uint32_t kbl = i ^ l.odd, w = word(l, q, i, r), x = x2 >> (4 * kbl);
#pragma unroll
                                for (int h = 0; h < 2; h++) {
                                        /* four times the code, its sign bit turned */
                                        const uint32_t c = (h ? ((w >> 2) & 0x3c3c3c3c) | ((x << 4) & 0xc0c0c0c0)
                                                              : ((w << 2) & 0x3c3c3c3c) | ((x << 6) & 0xc0c0c0c0)) ^ 0x80808080;
                                        const float s = __fmul_rn(turned_at(four, 2 * kbl + h), d);
                                        float f[4];
#pragma unroll
                                        for (int j = 0; j < 4; j++)
                                                f[j] = __fmul_rn(s, turned_at(c, j));
                                        put(i, r, h, pack_h2(f[0], f[1]), pack_h2(f[2], f[3]));
                                }
                        }
                }
        }
};

/* weight = d (code - 1) */
template <> struct direct<K_TQ2_0> {
        static constexpr int STEPS = 4;
        uint4 v[2]; /* of two steps each */
        template <int I> __device__ void load(const uint8_t *code, const uint8_t *, uint32_t, int q) {
                if (!(q & 1))
                        v[q >> 1] = ldg16(code + (q >> 1) * 512);
        }
        static __device__ uint32_t halves(const direct_lane &l) { return *(const uint32_t *)(l.super + l.g * 4); }
        static __device__ bool plain(const direct_lane &l, int) { return !(halves(l) & 0x40004000); }
        template <int I, class F> __device__ void decode(const direct_lane &l, int q, F put) const {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                        const uint32_t d = __byte_perm(halves(l), 0, r ? 0x3232 : 0x1010);
                        const uint32_t w = __byte_perm(word4(v[q >> 1], (q & 1) * 2 + r), 0, 0x3120);
#pragma unroll
                        for (int i = 0; i < I; i++) {
                                const uint32_t a = w >> (4 * (i ^ l.odd)), b = a >> 8; /* 1024 + code and 1024 + 4 codes */
                                put(i, r, 0, mul_h2(add_h2((a & 0x00030003) | 0x64006400, 0xe401e401), d),
                                    mul_h2(add_h2((b & 0x00030003) | 0x64006400, 0xe401e401), d));
                                put(i, r, 1, mul_h2(fma_h2((a & 0x000c000c) | 0x64006400, 0x34003400, 0xdc04dc04), d),
                                    mul_h2(fma_h2((b & 0x000c000c) | 0x64006400, 0x34003400, 0xdc04dc04), d));
                        }
                }
        }
};
template <> struct direct<K_TQ1_0> : direct<K_TQ2_0> {};

#define CUDA_FOR_DIRECT_TYPES(X) X(K_Q4_0) X(K_Q8_0) X(K_MXFP4) X(K_Q4_K) X(K_Q6_K) X(K_TQ1_0) X(K_TQ2_0)
#endif
