/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Reading K_LAYOUT_CUDA tiles: one struct per type, used by the int8 products
 * (matvec.cu) and by the decoder (dequant.cu), so that both see the same codes.
 *
 * A lane 4 g + t of a warp holds rows g and g + 8. codes() gives the A operand
 * of mma.m16n8k32 for columns 32 kb .. 32 kb + 31: signed bytes that are MUL
 * times the code. weight = super * scale * code - super_min * min, where code is
 * byte / MUL; a type without SUPER has 1 for both supers, one without HAS_MIN no
 * second term. N16: scales (and mins) are per 16 columns, else per 32.
 */

#include <cuda_fp16.h>

#include "kernels/cuda/layout.h"

struct tile_src {
        const uint8_t *code, *high, *scale, *super;
};

static __device__ __forceinline__ uint4 ldg16(const void *p) {
        uint4 r;
        asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p));
        return r;
}
/* From shared memory (S) or from the matrix itself. */
template <bool S> static __device__ __forceinline__ uint4 ld16(const void *p) {
        return S ? *(const uint4 *)p : ldg16(p);
}
static __device__ __forceinline__ float half_lo(uint32_t v) { return __half2float(__ushort_as_half((unsigned short)(v & 0xffff))); }
static __device__ __forceinline__ float half_hi(uint32_t v) { return __half2float(__ushort_as_half((unsigned short)(v >> 16))); }
/* Word i of a uint4 whose index is a constant after unrolling. */
static __device__ __forceinline__ uint32_t word4(const uint4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
static __device__ __forceinline__ float half_at(const uint4 &v, int i) {
        uint32_t w = word4(v, i >> 1);
        return i & 1 ? half_hi(w) : half_lo(w);
}
/* Bytes to floats without the slow conversion unit: 2^23 + b has b in its low bits. */
static __device__ __forceinline__ float ubyte_at(uint32_t w, int i) {
        return __uint_as_float(__byte_perm(w, 0x4b000000, 0x7540 | i)) - 8388608.0f;
}
static __device__ __forceinline__ float sbyte_at(uint32_t w, int i) {
        return __uint_as_float(__byte_perm(w ^ 0x80808080, 0x4b000000, 0x7540 | i)) - 8388736.0f;
}

/*
 * v in a register, since the assembler can't tell its value: of a permute's two constants only one may be part of the instruction,
 * and the other one would be moved to a register each time. at: in shared memory, whose addresses are far below 2^31.
 */
static __device__ __forceinline__ uint32_t kept(uint32_t v, const void *at) { return v + ((uint32_t)__cvta_generic_to_shared(at) >> 31); }

/* Four 4-bit indices in the low nibbles of a 16-bit field to bytes of a 16-entry table. */
struct lut16 { uint32_t t0, t1, t2, t3; };
static __device__ __forceinline__ uint32_t lut4(const lut16 &l, uint32_t idx) {
        uint32_t sel = idx & 0x7777, pick = 0x3210 | ((idx & 0x8888) >> 1);
        return __byte_perm(__byte_perm(l.t0, l.t1, sel), __byte_perm(l.t2, l.t3, sel), pick);
}
/* A P4 word (byte j: column j low, column 16 + j high) to the two byte words. */
static __device__ __forceinline__ void lut8(const lut16 &l, uint32_t w, uint32_t &lo, uint32_t &hi) {
        uint32_t a = lut4(l, w & 0xffff), b = lut4(l, w >> 16);
        lo = __byte_perm(a, b, 0x6420);
        hi = __byte_perm(a, b, 0x7531);
}

/* P4 words of kb: rows g and g + 8. */
struct p4 { uint4 v[4]; };
template <bool S> static __device__ __forceinline__ void p4_load(p4 &p, const uint8_t *code, uint32_t lane, int q) {
#pragma unroll
        for (int i = 0; i < 4; i++)
                if (q < 0 || i == q)
                        p.v[i] = ld16<S>(code + (i * 32 + lane) * 16);
}
static __device__ __forceinline__ uint32_t p4_word(const p4 &p, int kb, int r) { return word4(p.v[kb >> 1], (kb & 1) * 2 + r); }
struct p2 { uint4 v[2]; };
template <bool S> static __device__ __forceinline__ void p2_load(p2 &p, const uint8_t *code, uint32_t lane, int q) {
#pragma unroll
        for (int i = 0; i < 2; i++)
                if (q < 0 || i * 2 == q)
                        p.v[i] = ld16<S>(code + (i * 32 + lane) * 16);
}
/* Two fields of 2 bits per byte, at bits 0 and 2 after the shift. */
static __device__ __forceinline__ uint32_t p2_word(const p2 &p, int kb, int r) {
        return word4(p.v[kb >> 2], ((kb >> 1) & 1) * 2 + r) >> (4 * (kb & 1));
}
static __device__ __forceinline__ uint32_t p1_word(const uint4 &v, int kb, int r) {
        return word4(v, (kb >> 2) * 2 + r) >> (2 * (kb & 3));
}

#define M4 0x0f0f0f0fu
#define MH 0xf0f0f0f0u

/* Codes in the upper halves of bytes: shifts to the left run beside the logic operations, those to the right do not. */
static __device__ __forceinline__ void p4_left(const p4 &p, int kb, uint32_t a[4]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
                uint32_t w = p4_word(p, kb, r);
                a[r] = (w << 4) & MH;
                a[2 + r] = w & MH;
        }
}

template <int T> struct qtype;

/* ---- 32-wide blocks: f16 scales [g][row][8] ------------------------------------------ */
struct scale16 { uint4 d[2]; };
template <bool S> static __device__ __forceinline__ void scale16_load(scale16 &s, const uint8_t *p, uint32_t lane) {
        s.d[0] = ld16<S>(p + (lane >> 2) * 32);
        s.d[1] = ld16<S>(p + (lane >> 2) * 32 + 16);
}
struct scale32 { uint4 d[2], m[2]; };
template <bool S> static __device__ __forceinline__ void scale32_load(scale32 &s, const uint8_t *p, uint32_t lane) {
        p += (lane >> 2) * 64;
        s.d[0] = ld16<S>(p);
        s.m[0] = ld16<S>(p + 16);
        s.d[1] = ld16<S>(p + 32);
        s.m[1] = ld16<S>(p + 48);
}

/*
 * load_codes(): all of a tile, or (q_ = 0 .. 3, in order) what codes() of blocks
 * 2 q_ and 2 q_ + 1 reads that has not been loaded for smaller q_.
 */
struct q_base {
        static constexpr bool SUPER = false, HAS_MIN = false, N16 = false;
        static constexpr bool FIELDS = false; /* has fields(): codes in place within unsigned bytes, 4^(2 (kb & 1) + half) times too large */
        static constexpr float MUL = 1;
        static constexpr float LEFT = 0;     /* has left(): what one_tile() takes instead of codes(), unsigned bytes of LEFT times the code */
        static constexpr bool SPLIT = false; /* has split(): so many codes less as many others, each half zeros; columns 2 j, 16 + 2 j, 2 j + 1, 17 + 2 j in a word */
};

/*
 * What a lane scales: of a tile in shared memory and row g + 8 r, the scales and mins of the
 * blocks of 32 2 p and 2 p + 1, or of their four halves; times super (and 1 / MUL), if the type
 * has it. MANY: the same values for several activations, where registers are scarcer than the
 * instructions that decoding takes once for all of them.
 */
#define LANE_PAIR template <bool MANY = false> static __device__ __forceinline__ void pair(const tile_src &t, uint32_t g, uint32_t p, int r, float *sc, float *mn)
static __device__ __forceinline__ void pair_half(const uint8_t *at, uint32_t p, float *sc) {
        uint32_t v = *(const uint32_t *)(at + p * 4);
        sc[0] = half_lo(v);
        sc[1] = half_hi(v);
}
static __device__ __forceinline__ void pair_half_min(const uint8_t *at, uint32_t p, float *sc, float *mn) {
        pair_half(at, p, sc);
        pair_half(at + 16, p, mn);
        mn[0] = -mn[0];
        mn[1] = -mn[1];
}
static __device__ __forceinline__ float half_from(const uint8_t *at) { return __half2float(*(const __half *)at); }
/* d times byte i, rounded once: the 2^23 of ubyte_at() leaves within the multiply-add. bias: -2^23 d, which is exact. */
static __device__ __forceinline__ float ubyte_times(uint32_t w, int i, float d, float bias, uint32_t plus = 0x4b000000) {
        return __fmaf_rn(__uint_as_float(__byte_perm(w, plus, 0x7540 | i)), d, bias);
}
/*
 * d (11 bits at most, times a power of two) times signed bytes. One activation: v ^ 128 in the second byte of 2^15, a float, times d,
 * less (2^15 + 128) d, a bias of nine bits more than d. Both products and the bias are exact, so the multiply-add rounds nothing away.
 */
template <bool MANY, int N> static __device__ __forceinline__ void pair_signed(uint32_t v, float d, const void *at, float *sc) {
        if (MANY) {
#pragma unroll
                for (int i = 0; i < N; i++)
                        sc[i] = __fmul_rn(sbyte_at(v, i), d);
                return;
        }
        const uint32_t plus = N > 2 ? kept(0x47000000, at) : 0x47000000; /* two: not worth a register */
        const float bias = -32896.0f * d;
        v ^= 0x80808080;
#pragma unroll
        for (int i = 0; i < N; i++)
                sc[i] = __fmaf_rn(__uint_as_float(__byte_perm(v, plus, 0x7404 | (i << 4))), d, bias);
}
/* d times unsigned bytes, from number 'first' on. */
template <bool MANY, int N> static __device__ __forceinline__ void pair_unsigned(uint32_t v, int first, float d, const void *at, float *sc) {
        const uint32_t plus = MANY ? 0x4b000000 : kept(0x4b000000, at); /* 2^23 */
        const float bias = -8388608.0f * d;
#pragma unroll
        for (int i = 0; i < N; i++)
                sc[i] = ubyte_times(v, first + i, d, bias, plus);
}

template <> struct qtype<K_Q4_0> : q_base {
        static constexpr float MUL = 16;
        p4 q; scale16 s;
        template <bool S> __device__ void load_codes(const tile_src &t, uint32_t lane, int q_ = -1) { p4_load<S>(q, t.code, lane, q_); }
        template <bool S> __device__ void load_scales(const tile_src &t, uint32_t lane) { scale16_load<S>(s, t.scale, lane); }
        LANE_PAIR { pair_half(t.scale + g * 32 + r * 16, p, sc); }
        __device__ void codes(int kb, uint32_t a[4]) const { p4_left(q, kb, a); }
        __device__ float scale(int kb, int, int r) const { return half_at(s.d[r], kb); }
        __device__ float min(int, int, int) const { return 0; }
        __device__ void super(float *, float *) const {}
};

template <> struct qtype<K_Q4_1> : q_base {
        static constexpr bool HAS_MIN = true;
        static constexpr float LEFT = 16;
        p4 q; scale32 s;
        template <bool S> __device__ void load_codes(const tile_src &t, uint32_t lane, int q_ = -1) { p4_load<S>(q, t.code, lane, q_); }
        template <bool S> __device__ void load_scales(const tile_src &t, uint32_t lane) { scale32_load<S>(s, t.scale, lane); }
        LANE_PAIR { pair_half_min(t.scale + g * 64 + r * 32, p, sc, mn); }
        __device__ void left(int kb, uint32_t a[4]) const { p4_left(q, kb, a); }
        __device__ void codes(int kb, uint32_t a[4]) const {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                        uint32_t w = p4_word(q, kb, r);
                        a[r] = w & M4;
                        a[2 + r] = (w >> 4) & M4;
                }
        }
        __device__ float scale(int kb, int, int r) const { return half_at(s.d[r], kb); }
        __device__ float min(int kb, int, int r) const { return -half_at(s.m[r], kb); }
        __device__ void super(float *, float *) const {}
};

template <> struct qtype<K_Q5_0> : q_base {
        static constexpr float MUL = 8;
        p4 q; uint4 h; scale16 s;
        template <bool S> __device__ void load_codes(const tile_src &t, uint32_t lane, int q_ = -1) {
                p4_load<S>(q, t.code, lane, q_);
                if (q_ <= 0)
                        h = ld16<S>(t.high + lane * 16);
        }
        template <bool S> __device__ void load_scales(const tile_src &t, uint32_t lane) { scale16_load<S>(s, t.scale, lane); }
        LANE_PAIR { pair_half(t.scale + g * 32 + r * 16, p, sc); }
        __device__ void codes(int kb, uint32_t a[4]) const {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                        uint32_t w = p4_word(q, kb, r), b = p1_word(h, kb, r);
                        a[r] = ((w << 3) & 0x78787878) | ((b << 7) & 0x80808080);
                        a[2 + r] = ((w >> 1) & 0x78787878) | ((b << 6) & 0x80808080);
                }
        }
        __device__ float scale(int kb, int, int r) const { return half_at(s.d[r], kb); }
        __device__ float min(int, int, int) const { return 0; }
        __device__ void super(float *, float *) const {}
};

template <> struct qtype<K_Q5_1> : q_base {
        static constexpr bool HAS_MIN = true;
        p4 q; uint4 h; scale32 s;
        template <bool S> __device__ void load_codes(const tile_src &t, uint32_t lane, int q_ = -1) {
                p4_load<S>(q, t.code, lane, q_);
                if (q_ <= 0)
                        h = ld16<S>(t.high + lane * 16);
        }
        template <bool S> __device__ void load_scales(const tile_src &t, uint32_t lane) { scale32_load<S>(s, t.scale, lane); }
        LANE_PAIR { pair_half_min(t.scale + g * 64 + r * 32, p, sc, mn); }
        __device__ void codes(int kb, uint32_t a[4]) const {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                        uint32_t w = p4_word(q, kb, r), b = p1_word(h, kb, r);
                        a[r] = (w & M4) | ((b << 4) & 0x10101010);
                        a[2 + r] = ((w >> 4) & M4) | ((b << 3) & 0x10101010);
                }
        }
        __device__ float scale(int kb, int, int r) const { return half_at(s.d[r], kb); }
        __device__ float min(int kb, int, int r) const { return -half_at(s.m[r], kb); }
        __device__ void super(float *, float *) const {}
};

template <> struct qtype<K_Q8_0> : q_base {
        uint4 q[8]; scale16 s;
        template <bool S> __device__ void load_codes(const tile_src &t, uint32_t lane, int q_ = -1) {
#pragma unroll
                for (int i = 0; i < 8; i++)
                        if (q_ < 0 || i >> 1 == q_)
                                q[i] = ld16<S>(t.code + (i * 32 + lane) * 16);
        }
        template <bool S> __device__ void load_scales(const tile_src &t, uint32_t lane) { scale16_load<S>(s, t.scale, lane); }
        LANE_PAIR { pair_half(t.scale + g * 32 + r * 16, p, sc); }
        __device__ void codes(int kb, uint32_t a[4]) const {
                a[0] = q[kb].x;
                a[1] = q[kb].y;
                a[2] = q[kb].z;
                a[3] = q[kb].w;
        }
        __device__ float scale(int kb, int, int r) const { return half_at(s.d[r], kb); }
        __device__ float min(int, int, int) const { return 0; }
        __device__ void super(float *, float *) const {}
};

/* ---- 4-bit tables ----------------------------------------------------------------------- */
#define LUT_IQ4 {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u} /* -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113 */
#define LUT_FP4 {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu} /* twice 0 .5 1 1.5 2 3 4 6 and their negatives */

/*
 * A table as the upper or the lower eight of its entries, less the others: a permute has room for eight, and where the bit of a
 * selector is set that would say which, it gives the entry's sign bit instead, eight times; so where no entry is negative, zeros.
 */
struct lut8x2 { uint32_t up0, up1, down0, down1, flip; }; /* flip: for 'up' */
#define LUT_IQ4_SPLIT {0x26190d01u, 0x71594535u, 0x4153687fu, 0x0a162331u, 0x88888888u}
#define LUT_FP4_SPLIT {0x03020100u, 0x0c080604u, 0x03020100u, 0x0c080604u, 0}
static __device__ __forceinline__ uint32_t entry_or_sign(uint32_t t0, uint32_t t1, uint32_t sel) { /* __byte_perm() has no sign bits */
        uint32_t r;
        asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(t0), "r"(t1), "r"(sel));
        return r;
}
static __device__ __forceinline__ void split8(const lut8x2 &l, const p4 &q, int kb, uint32_t up[4], uint32_t down[4]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
                const uint32_t u = p4_word(q, kb, r) ^ l.flip, d = p4_word(q, kb, r) ^ ~l.flip & 0x88888888u;
                up[r] = entry_or_sign(l.up0, l.up1, u);
                up[2 + r] = entry_or_sign(l.up0, l.up1, u >> 16);
                down[r] = entry_or_sign(l.down0, l.down1, d);
                down[2 + r] = entry_or_sign(l.down0, l.down1, d >> 16);
        }
}

template <> struct qtype<K_IQ4_NL> : q_base {
        static constexpr bool SPLIT = true;
        p4 q; scale16 s;
        template <bool S> __device__ void load_codes(const tile_src &t, uint32_t lane, int q_ = -1) { p4_load<S>(q, t.code, lane, q_); }
        template <bool S> __device__ void load_scales(const tile_src &t, uint32_t lane) { scale16_load<S>(s, t.scale, lane); }
        LANE_PAIR { pair_half(t.scale + g * 32 + r * 16, p, sc); }
        __device__ void split(int kb, uint32_t up[4], uint32_t down[4]) const {
                const lut8x2 l = LUT_IQ4_SPLIT;
                split8(l, q, kb, up, down);
        }
        __device__ void codes(int kb, uint32_t a[4]) const {
                const lut16 l = LUT_IQ4;
                lut8(l, p4_word(q, kb, 0), a[0], a[2]);
                lut8(l, p4_word(q, kb, 1), a[1], a[3]);
        }
        __device__ float scale(int kb, int, int r) const { return half_at(s.d[r], kb); }
        __device__ float min(int, int, int) const { return 0; }
        __device__ void super(float *, float *) const {}
};

template <> struct qtype<K_MXFP4> : q_base {
        static constexpr bool SPLIT = true;
        p4 q; uint4 e; /* exponents of rows g (x, y) and g + 8 (z, w) */
        template <bool S> __device__ void load_codes(const tile_src &t, uint32_t lane, int q_ = -1) { p4_load<S>(q, t.code, lane, q_); }
        template <bool S> __device__ void load_scales(const tile_src &t, uint32_t lane) { e = ld16<S>(t.scale + (lane >> 2) * 16); }
        LANE_PAIR {
                const uint8_t *at = t.scale + g * 16 + r * 8 + p * 2;
                const uint32_t v = MANY ? *(const uint16_t *)at : 0;
                sc[0] = MANY ? value(v & 255) : value_alone(at[0]);
                sc[1] = MANY ? value(v >> 8) : value_alone(at[1]);
        }
        __device__ void split(int kb, uint32_t up[4], uint32_t down[4]) const {
                const lut8x2 l = LUT_FP4_SPLIT;
                split8(l, q, kb, up, down);
        }
        __device__ void codes(int kb, uint32_t a[4]) const {
                const lut16 l = LUT_FP4;
                lut8(l, p4_word(q, kb, 0), a[0], a[2]);
                lut8(l, p4_word(q, kb, 1), a[1], a[3]);
        }
        /* Half of 2^(e - 127), since the table holds doubled values (OCP MX 1.0, 5.3). */
        static __device__ float value(uint32_t x) { return __uint_as_float(x < 2 ? 0x00200000u << x : (x - 1) << 23); }
        static __device__ float value_alone(uint32_t x) { return __uint_as_float((uint32_t)__viaddmax_s32((int)x, 1, (int)x * 4 - 4) << 21); }
        __device__ float scale(int kb, int, int r) const { return value((word4(e, r * 2 + (kb >> 2)) >> (8 * (kb & 3))) & 255); }
        __device__ float min(int, int, int) const { return 0; }
        __device__ void super(float *, float *) const {}
};

template <> struct qtype<K_NVFP4> : q_base {
        static constexpr bool N16 = true;
        p4 q; uint4 e[2];
        template <bool S> __device__ void load_codes(const tile_src &t, uint32_t lane, int q_ = -1) { p4_load<S>(q, t.code, lane, q_); }
        template <bool S> __device__ void load_scales(const tile_src &t, uint32_t lane) {
                e[0] = ld16<S>(t.scale + (lane >> 2) * 32);
                e[1] = ld16<S>(t.scale + (lane >> 2) * 32 + 16);
        }
        LANE_PAIR {
                uint32_t v = *(const uint32_t *)(t.scale + g * 32 + r * 16 + p * 4);
#pragma unroll
                for (int i = 0; i < 4; i++)
                        sc[i] = value((v >> (8 * i)) & 255);
        }
        __device__ void codes(int kb, uint32_t a[4]) const {
                const lut16 l = LUT_FP4;
                lut8(l, p4_word(q, kb, 0), a[0], a[2]);
                lut8(l, p4_word(q, kb, 1), a[1], a[3]);
        }
        /* Half of an unsigned E4M3: 4 exponent bits (bias 7), 3 of mantissa; 0 and 0x7f are zero. */
        static __device__ float value(uint32_t x) {
                uint32_t ex = (x >> 3) & 15, m = x & 7;
                if (x == 0 || x == 0x7f)
                        return 0;
                return 0.5f * (ex ? __uint_as_float((ex + 120) << 23 | m << 20) : (float)m * 0.001953125f);
        }
        __device__ float scale(int kb, int h, int r) const { return value((word4(e[r], kb >> 1) >> (8 * ((kb & 1) * 2 + h))) & 255); }
        __device__ float min(int, int, int) const { return 0; }
        __device__ void super(float *, float *) const {}
};

template <> struct qtype<K_IQ4_XS> : q_base {
        static constexpr bool SUPER = true;
        static constexpr bool SPLIT = true;
        p4 q; uint4 s; uint32_t d;
        template <bool S> __device__ void load_codes(const tile_src &t, uint32_t lane, int q_ = -1) { p4_load<S>(q, t.code, lane, q_); }
        template <bool S> __device__ void load_scales(const tile_src &t, uint32_t lane) {
                s = ld16<S>(t.scale + (lane >> 2) * 16);
                d = *(const uint32_t *)(t.super + (lane >> 2) * 4);
        }
        LANE_PAIR {
                uint32_t v = *(const uint16_t *)(t.scale + g * 16 + r * 8 + p * 2);
                pair_signed<MANY, 2>(v, half_from(t.super + g * 4 + r * 2), t.code, sc);
        }
        __device__ void split(int kb, uint32_t up[4], uint32_t down[4]) const {
                const lut8x2 l = LUT_IQ4_SPLIT;
                split8(l, q, kb, up, down);
        }
        __device__ void codes(int kb, uint32_t a[4]) const {
                const lut16 l = LUT_IQ4;
                lut8(l, p4_word(q, kb, 0), a[0], a[2]);
                lut8(l, p4_word(q, kb, 1), a[1], a[3]);
        }
        __device__ float scale(int kb, int, int r) const { return sbyte_at(word4(s, r * 2 + (kb >> 2)), kb & 3); }
        __device__ float min(int, int, int) const { return 0; }
        __device__ void super(float *sd, float *) const { sd[0] = half_lo(d); sd[1] = half_hi(d); }
};

/* ---- K-quants ------------------------------------------------------------------------------ */

/* Q4_K and Q5_K's 16-byte head: d, dmin, then 6-bit scales and mins; unpacked to bytes, 8 + 8. */
struct khead {
        uint32_t dm[2], sc[2][2], mn[2][2];
        template <bool S> __device__ void load(const uint8_t *p, uint32_t lane) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                        uint4 v = ld16<S>(p + (lane >> 2) * 32 + r * 16);
                        dm[r] = v.x;
                        sc[r][0] = v.y;
                        mn[r][0] = v.z;
                        sc[r][1] = v.w;
                }
        }
        /* Blocks 2 p and 2 p + 1 of the row whose head is at 'at'. */
        template <bool MANY> static __device__ void pair(const uint8_t *at, uint32_t p, float *sc, float *mn) {
                const uint4 v = *(const uint4 *)at;
                if (MANY) {
                        uint32_t s = p < 2 ? v.y & 0x3f3f3f3f : (v.w & M4) | ((v.y >> 2) & 0x30303030);
                        uint32_t m = p < 2 ? v.z & 0x3f3f3f3f : ((v.w >> 4) & M4) | ((v.z >> 2) & 0x30303030);
                        pair_unsigned<MANY, 2>(s >> (16 * (p & 1)), 0, half_lo(v.x), at, sc);
                        pair_unsigned<MANY, 2>(m >> (16 * (p & 1)), 0, half_hi(v.x), at, mn);
                        return;
                }
                const uint32_t sel = p & 1 ? 0x7632 : 0x5410; /* of two words the bytes of these blocks */
                const uint32_t six = __byte_perm(v.y, v.z, sel), four = __byte_perm(v.w, v.w >> 4, sel);
                const uint32_t b = ((p < 2 ? six : four) & M4) | ((six >> (p & 2)) & 0x30303030);
                pair_unsigned<MANY, 2>(b, 0, half_lo(v.x), at, sc);
                pair_unsigned<MANY, 2>(b, 2, half_hi(v.x), at, mn);
        }
        __device__ uint32_t scales(int r, int i) const {
                return i == 0 ? sc[r][0] & 0x3f3f3f3f : (sc[r][1] & M4) | ((sc[r][0] >> 2) & 0x30303030);
        }
        __device__ uint32_t mins(int r, int i) const {
                return i == 0 ? mn[r][0] & 0x3f3f3f3f : ((sc[r][1] >> 4) & M4) | ((mn[r][0] >> 2) & 0x30303030);
        }
};

template <> struct qtype<K_Q4_K> : q_base {
        static constexpr bool SUPER = true, HAS_MIN = true;
        static constexpr float LEFT = 16;
        p4 q; khead h;
        template <bool S> __device__ void load_codes(const tile_src &t, uint32_t lane, int q_ = -1) { p4_load<S>(q, t.code, lane, q_); }
        template <bool S> __device__ void load_scales(const tile_src &t, uint32_t lane) { h.template load<S>(t.scale, lane); }
        LANE_PAIR { khead::pair<MANY>(t.scale + g * 32 + r * 16, p, sc, mn); }
        __device__ void left(int kb, uint32_t a[4]) const { p4_left(q, kb, a); }
        __device__ void codes(int kb, uint32_t a[4]) const {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                        uint32_t w = p4_word(q, kb, r);
                        a[r] = w & M4;
                        a[2 + r] = (w >> 4) & M4;
                }
        }
        __device__ float scale(int kb, int, int r) const { return ubyte_at(h.scales(r, kb >> 2), kb & 3); }
        __device__ float min(int kb, int, int r) const { return ubyte_at(h.mins(r, kb >> 2), kb & 3); }
        __device__ void super(float *d, float *m) const {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                        d[r] = half_lo(h.dm[r]);
                        m[r] = half_hi(h.dm[r]);
                }
        }
};

template <> struct qtype<K_Q5_K> : q_base {
        static constexpr bool SUPER = true, HAS_MIN = true;
        p4 q; uint4 b; khead h;
        template <bool S> __device__ void load_codes(const tile_src &t, uint32_t lane, int q_ = -1) {
                p4_load<S>(q, t.code, lane, q_);
                if (q_ <= 0)
                        b = ld16<S>(t.high + lane * 16);
        }
        template <bool S> __device__ void load_scales(const tile_src &t, uint32_t lane) { h.template load<S>(t.scale, lane); }
        LANE_PAIR { khead::pair<MANY>(t.scale + g * 32 + r * 16, p, sc, mn); }
        __device__ void codes(int kb, uint32_t a[4]) const {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                        uint32_t w = p4_word(q, kb, r), x = p1_word(b, kb, r);
                        a[r] = (w & M4) | ((x << 4) & 0x10101010);
                        a[2 + r] = ((w >> 4) & M4) | ((x << 3) & 0x10101010);
                }
        }
        __device__ float scale(int kb, int, int r) const { return ubyte_at(h.scales(r, kb >> 2), kb & 3); }
        __device__ float min(int kb, int, int r) const { return ubyte_at(h.mins(r, kb >> 2), kb & 3); }
        __device__ void super(float *d, float *m) const {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                        d[r] = half_lo(h.dm[r]);
                        m[r] = half_hi(h.dm[r]);
                }
        }
};

template <> struct qtype<K_Q6_K> : q_base {
        static constexpr bool SUPER = true, N16 = true;
        static constexpr float MUL = 4;
        p4 q; p2 b; uint4 s[2]; uint32_t d;
        template <bool S> __device__ void load_codes(const tile_src &t, uint32_t lane, int q_ = -1) {
                p4_load<S>(q, t.code, lane, q_);
                p2_load<S>(b, t.high, lane, q_);
        }
        template <bool S> __device__ void load_scales(const tile_src &t, uint32_t lane) {
                s[0] = ld16<S>(t.scale + (lane >> 2) * 32);
                s[1] = ld16<S>(t.scale + (lane >> 2) * 32 + 16);
                d = *(const uint32_t *)(t.super + (lane >> 2) * 4);
        }
        LANE_PAIR {
                uint32_t v = *(const uint32_t *)(t.scale + g * 32 + r * 16 + p * 4);
                pair_signed<MANY, 4>(v, half_from(t.super + g * 4 + r * 2) * (1.0f / MUL), t.code, sc);
        }
        __device__ void codes(int kb, uint32_t a[4]) const {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                        uint32_t w = p4_word(q, kb, r), x = p2_word(b, kb, r);
                        a[r] = ((w << 2) & 0x3c3c3c3c) | ((x << 6) & 0xc0c0c0c0);
                        a[2 + r] = ((w >> 2) & 0x3c3c3c3c) | ((x << 4) & 0xc0c0c0c0);
                }
        }
        __device__ float scale(int kb, int h, int r) const { return sbyte_at(word4(s[r], kb >> 1), (kb & 1) * 2 + h); }
        __device__ float min(int, int, int) const { return 0; }
        __device__ void super(float *sd, float *) const { sd[0] = half_lo(d); sd[1] = half_hi(d); }
};

template <> struct qtype<K_Q3_K> : q_base {
        static constexpr bool SUPER = true, N16 = true;
        static constexpr float MUL = 32;
        p2 q; uint4 b; uint4 s[2]; uint32_t d;
        template <bool S> __device__ void load_codes(const tile_src &t, uint32_t lane, int q_ = -1) {
                p2_load<S>(q, t.code, lane, q_);
                if (q_ <= 0)
                        b = ld16<S>(t.high + lane * 16);
        }
        template <bool S> __device__ void load_scales(const tile_src &t, uint32_t lane) {
                s[0] = ld16<S>(t.scale + (lane >> 2) * 32);
                s[1] = ld16<S>(t.scale + (lane >> 2) * 32 + 16);
                d = *(const uint32_t *)(t.super + (lane >> 2) * 4);
        }
        LANE_PAIR {
                uint32_t v = *(const uint32_t *)(t.scale + g * 32 + r * 16 + p * 4);
                pair_signed<MANY, 4>(v, half_from(t.super + g * 4 + r * 2) * (1.0f / MUL), t.code, sc);
        }
        __device__ void codes(int kb, uint32_t a[4]) const {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                        uint32_t w = p2_word(q, kb, r), x = p1_word(b, kb, r);
                        a[r] = ((w << 5) & 0x60606060) | ((x << 7) & 0x80808080);
                        a[2 + r] = ((w << 3) & 0x60606060) | ((x << 6) & 0x80808080);
                }
        }
        __device__ float scale(int kb, int h, int r) const { return sbyte_at(word4(s[r], kb >> 1), (kb & 1) * 2 + h); }
        __device__ float min(int, int, int) const { return 0; }
        __device__ void super(float *sd, float *) const { sd[0] = half_lo(d); sd[1] = half_hi(d); }
};

template <> struct qtype<K_Q2_K> : q_base {
        static constexpr bool SUPER = true, HAS_MIN = true, N16 = true, FIELDS = true;
        p2 q; uint4 s[2]; uint2 d;
        __device__ void fields(int kb, uint32_t a[4]) const {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                        uint32_t w = word4(q.v[kb >> 2], ((kb >> 1) & 1) * 2 + r);
                        a[r] = w & (0x03030303u << (4 * (kb & 1)));
                        a[2 + r] = w & (0x0c0c0c0cu << (4 * (kb & 1)));
                }
        }
        template <bool S> __device__ void load_codes(const tile_src &t, uint32_t lane, int q_ = -1) { p2_load<S>(q, t.code, lane, q_); }
        template <bool S> __device__ void load_scales(const tile_src &t, uint32_t lane) {
                s[0] = ld16<S>(t.scale + (lane >> 2) * 32);
                s[1] = ld16<S>(t.scale + (lane >> 2) * 32 + 16);
                d = *(const uint2 *)(t.super + (lane >> 2) * 8);
        }
        LANE_PAIR {
                uint32_t v = *(const uint32_t *)(t.scale + g * 32 + r * 16 + p * 4), u = *(const uint32_t *)(t.super + g * 8 + r * 4);
                pair_unsigned<MANY, 4>(v & M4, 0, half_lo(u), t.code, sc);
                if (MANY)
                        pair_unsigned<MANY, 4>((v >> 4) & M4, 0, half_hi(u), t.code, mn);
                else
                        pair_unsigned<MANY, 4>(v & MH, 0, half_hi(u) * (1.0f / 16), t.code, mn);
        }
        __device__ void codes(int kb, uint32_t a[4]) const {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                        uint32_t w = p2_word(q, kb, r);
                        a[r] = w & 0x03030303;
                        a[2 + r] = (w >> 2) & 0x03030303;
                }
        }
        __device__ float scale(int kb, int h, int r) const { return ubyte_at(word4(s[r], kb >> 1) & M4, (kb & 1) * 2 + h); }
        __device__ float min(int kb, int h, int r) const { return ubyte_at((word4(s[r], kb >> 1) >> 4) & M4, (kb & 1) * 2 + h); }
        __device__ void super(float *sd, float *sm) const {
                sd[0] = half_lo(d.x);
                sm[0] = half_hi(d.x);
                sd[1] = half_lo(d.y);
                sm[1] = half_hi(d.y);
        }
};

/* ---- ternary: weight = d * (code - 1); TQ1_0 is spread to 2 bits at fill --------------------- */
template <> struct qtype<K_TQ2_0> : q_base {
        static constexpr bool SUPER = true, HAS_MIN = true;
        p2 q; uint32_t d;
        template <bool S> __device__ void load_codes(const tile_src &t, uint32_t lane, int q_ = -1) { p2_load<S>(q, t.code, lane, q_); }
        template <bool S> __device__ void load_scales(const tile_src &t, uint32_t lane) { d = *(const uint32_t *)(t.super + (lane >> 2) * 4); }
        LANE_PAIR {
                sc[0] = sc[1] = mn[0] = mn[1] = half_from(t.super + g * 4 + r * 2);
        }
        __device__ void codes(int kb, uint32_t a[4]) const {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                        uint32_t w = p2_word(q, kb, r);
                        a[r] = w & 0x03030303;
                        a[2 + r] = (w >> 2) & 0x03030303;
                }
        }
        __device__ float scale(int, int, int) const { return 1; }
        __device__ float min(int, int, int) const { return 1; }
        __device__ void super(float *sd, float *sm) const {
                sd[0] = sm[0] = half_lo(d);
                sd[1] = sm[1] = half_hi(d);
        }
};
template <> struct qtype<K_TQ1_0> : qtype<K_TQ2_0> {};

/* Codes and scales of a whole tile. */
template <bool S, class Q> static __device__ __forceinline__ void tile_load(Q &w, const tile_src &t, uint32_t lane) {
        w.template load_codes<S>(t, lane);
        w.template load_scales<S>(t, lane);
}

/* Four weights from one word of codes(), with k_decode()'s bits: no contraction, its order. */
template <class Q> static __device__ __forceinline__ void tile_value(const Q &w, int kb, int h, int r, uint32_t bytes, float v[4]) {
        float d[2] = {1, 1}, m[2] = {1, 1};
        const int hs = Q::N16 ? h : 0;
        w.super(d, m);
        float ds = Q::SUPER ? __fmul_rn(d[r], w.scale(kb, hs, r)) : w.scale(kb, hs, r);
        ds = __fmul_rn(ds, 1.0f / Q::MUL);
        float ms = Q::HAS_MIN ? (Q::SUPER ? __fmul_rn(m[r], w.min(kb, hs, r)) : w.min(kb, hs, r)) : 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
                float p = __fmul_rn(ds, sbyte_at(bytes, j));
                v[j] = Q::HAS_MIN ? __fsub_rn(p, ms) : p;
        }
}

/* Bytes of a tile's planes, as cuda_layout_planes() has them (checked in a test). */
struct tile_bytes { int code, high, scale, super; };
template <int T> static __host__ __device__ constexpr tile_bytes tile_bytes_of() {
        return T == K_Q4_0 || T == K_IQ4_NL || T == K_NVFP4 ? tile_bytes{2048, 0, 256, 0}
             : T == K_Q4_1  ? tile_bytes{2048, 0, 512, 0}
             : T == K_Q5_0  ? tile_bytes{2048, 512, 256, 0}
             : T == K_Q5_1  ? tile_bytes{2048, 512, 512, 0}
             : T == K_Q8_0  ? tile_bytes{4096, 0, 256, 0}
             : T == K_MXFP4 ? tile_bytes{2048, 0, 128, 0}
             : T == K_Q2_K  ? tile_bytes{1024, 0, 256, 64}
             : T == K_Q3_K  ? tile_bytes{1024, 512, 256, 32}
             : T == K_Q4_K  ? tile_bytes{2048, 0, 256, 0}
             : T == K_Q5_K  ? tile_bytes{2048, 512, 256, 0}
             : T == K_Q6_K  ? tile_bytes{2048, 1024, 256, 32}
             : T == K_IQ4_XS ? tile_bytes{2048, 0, 128, 32}
                             : tile_bytes{1024, 0, 0, 32}; /* TQ1_0, TQ2_0 */
}

/* Calls F with the type as a constant; every type that has planes. */
#define CUDA_FOR_PLANE_TYPES(X)                                                                                     \
        X(K_Q4_0) X(K_Q4_1) X(K_Q5_0) X(K_Q5_1) X(K_Q8_0) X(K_Q2_K) X(K_Q3_K) X(K_Q4_K) X(K_Q5_K) X(K_Q6_K) X(K_IQ4_NL) \
        X(K_IQ4_XS) X(K_TQ1_0) X(K_TQ2_0) X(K_MXFP4) X(K_NVFP4)

/* Where a matrix's planes start. */
struct plane_base {
        const uint8_t *p[4];
        uint32_t bytes[4]; /* per tile */
};
static inline plane_base planes_of(enum k_type t, const void *data, uint32_t rows, uint32_t cols) {
        struct cuda_planes pl = {};
        struct cuda_plane_offsets o;
        cuda_layout_planes(t, &pl);
        cuda_layout_offsets(t, rows, cols, &o);
        const uint8_t *d = (const uint8_t *)data;
        return plane_base{{d + o.code, d + o.high, d + o.scale, d + o.super}, {pl.code, pl.high, pl.scale, pl.super}};
}
static __device__ __forceinline__ tile_src tile_at(const plane_base &b, size_t expert_off, size_t tile) {
        return tile_src{b.p[0] + expert_off + tile * b.bytes[0], b.p[1] + expert_off + tile * b.bytes[1],
                        b.p[2] + expert_off + tile * b.bytes[2], b.p[3] + expert_off + tile * b.bytes[3]};
}
