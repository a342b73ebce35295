/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Inner products of one panel piece (16 rows) with T tokens, AVX-512 with VNNI.
 *
 * A vector is a whole step: 16 rows x 4 columns. vpdpbusd multiplies unsigned
 * codes with 4 broadcast activations and adds into 32-bit lanes, one per row,
 * so there is no limit to watch: lanes start at -center times the sum of x.
 * Signed bytes become unsigned by flipping their top bit (center 128).
 *
 * Integer scales are multiplied into the 32-bit group sums. Where a group's sum
 * of (code - center) * x fits 16 bits ('small'), one vpdpwssd does that and the
 * addition; otherwise vpmulld, which takes twice as long, and an addition.
 */

#include "kernels/cpu/unpack_avx2.h"

#define T_MAX 8u
#define T_PACKED 2u
#define T_PLAIN 8u
#define T_DIRECT 1u

static inline uint32_t tile_take(uint32_t n) {
        return n >= 8 ? 8 : n >= 4 ? 4 : n >= 2 ? 2 : 1;
}

struct tok {
        struct k_image im; /* at the piece's first column */
        float *acc;        /* [16] */
};

INLINE __m512i four(const int8_t *q) {
        int32_t v;
        __builtin_memcpy(&v, q, 4);
        return _mm512_set1_epi32(v);
}

INLINE __m512i pair(const int16_t *p) {
        int32_t v;
        __builtin_memcpy(&v, p, 4);
        return _mm512_set1_epi32(v);
}

/* 32 bytes to both halves, the upper half of the result shifted 'more' bits further down. */
INLINE __m512i spread(const void *p, int shift, int more) {
        __m512i v = _mm512_broadcast_i64x4(load256(p));
        const __m512i by = _mm512_setr_epi64(shift, shift, shift, shift, shift + more, shift + more, shift + more, shift + more);
        return _mm512_srlv_epi64(v, by);
}

INLINE __m512i masked(__m512i v, int mask) {
        return _mm512_and_si512(v, _mm512_set1_epi8((char)mask));
}

/* Codes of all 16 rows at step first + s (see codes_step() of unpack_avx2.h). */
INLINE __m512i codes_step_512(const struct codes c, unsigned first, unsigned s) {
        const unsigned steps = c.unit / 4;
        const uint8_t *p = c.p, *high;
        int i = (int)(s % 4);
        __m512i w, h;

        if (c.bits == 8)
                return _mm512_loadu_si512(p + 64 * (first + s));
        if (c.unit == 32) {
                p += first / steps * (c.bits * 64);
                first %= steps;
        }
        high = p + steps * (c.bits >= 4 ? 32 : 16);
        if (c.bits >= 4)
                w = masked(spread(p + 32 * (first + s), 0, 4), 15);
        else
                w = masked(spread(p + 16 * first + s / 2 * 32, i % 2 * 4, 2), 3);
        if (c.bits == 3 || c.bits == 5) {
                h = masked(spread(high + 8 * first + s / 4 * 32, 2 * i, 1), 1);
                w = _mm512_or_si512(w, _mm512_slli_epi64(h, c.bits == 3 ? 2 : 4));
        }
        if (c.bits == 6) {
                h = masked(spread(high + 16 * first + s / 2 * 32, i % 2 * 4, 2), 3);
                w = _mm512_or_si512(w, _mm512_slli_epi64(h, 4));
        }
        if (c.use_lut)
                w = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm256_castsi256_si128(c.lut)), w);
        return w;
}

/* A panel's codes from the planes. */
INLINE void codes_panel_512(const struct codes c, uint8_t *q, uint32_t cols) {
        for (unsigned first = 0; first < cols / 4; first += 4, q += 256) {
                codes_prefetch(c, 16, first / 4);
#pragma GCC unroll 4
                for (unsigned s = 0; s < 4; s++)
                        _mm512_store_si512(q + 64 * s, codes_step_512(c, first, s));
        }
}

/* a[t] = sum over the group of (code - center) x. */
INLINE void group_512(const struct codes c, const struct tok *tok, unsigned T, unsigned group, unsigned g, int center,
                      __m512i a[T_MAX]) {
        codes_prefetch(c, group, g);
#pragma GCC unroll 8
        for (unsigned t = 0; t < T; t++)
                a[t] = center ? _mm512_madd_epi16(pair((group == 16 ? tok[t].im.pair16 : tok[t].im.pair32) + 2 * g),
                                                  _mm512_set1_epi16((short)-center))
                              : _mm512_setzero_si512();
#pragma GCC unroll 8
        for (unsigned s = 0; s < group / 4; s++) {
                __m512i w = codes_step_512(c, g * (group / 4), s);
                if (c.is_signed) /* center is 128 */
                        w = _mm512_xor_si512(w, _mm512_set1_epi8((char)0x80));
#pragma GCC unroll 8
                for (unsigned t = 0; t < T; t++)
                        a[t] = _mm512_dpbusd_epi32(a[t], w, four(tok[t].im.q + g * group + 4 * s));
        }
}

/* Kind 1. */
INLINE void tile_float_512(const struct codes c, const struct k_panel *p, uint32_t cols, const struct tok *tok, unsigned T,
                           unsigned group, int center, bool min) {
        __m512 f[T_MAX];
        __m512i a[T_MAX];

#pragma GCC unroll 8
        for (unsigned t = 0; t < T; t++)
                f[t] = _mm512_loadu_ps(tok[t].acc);
        for (unsigned g = 0; g < cols / group; g++) {
                unsigned b = g * group / 32;
                group_512(c, tok, T, group, g, center, a);
                __m512 dw = _mm512_loadu_ps(p->d[g]);
#pragma GCC unroll 8
                for (unsigned t = 0; t < T; t++) {
                        __m512 v = _mm512_mul_ps(_mm512_cvtepi32_ps(a[t]), _mm512_set1_ps(tok[t].im.d[b]));
                        f[t] = _mm512_fmadd_ps(v, dw, f[t]);
                        if (min)
                                f[t] = _mm512_fmadd_ps(_mm512_loadu_ps(p->m[g]), _mm512_set1_ps(tok[t].im.sx[b]), f[t]);
                }
        }
#pragma GCC unroll 8
        for (unsigned t = 0; t < T; t++)
                _mm512_storeu_ps(tok[t].acc, f[t]);
}

/* Kind 2: 256 columns. scale_group: weights per scale in the panel; mins: weights per minimum, 0 for none. */
INLINE void tile_int_512(const struct codes c, const struct k_panel *p, const struct tok *tok, unsigned T, unsigned group,
                         unsigned scale_group, int center, bool small, unsigned mins) {
        __m512i sum[T_MAX], a[T_MAX];

#pragma GCC unroll 8
        for (unsigned t = 0; t < T; t++)
                sum[t] = _mm512_setzero_si512();
        for (unsigned g = 0; g < 256 / group; g++) {
                __m512i sc = _mm512_loadu_si512(p->sc[g * group / scale_group]);
                /* pairs (sc, sc) to (sc, 0), or to sc in 32 bits */
                sc = small ? _mm512_and_si512(sc, _mm512_set1_epi32(0xffff)) : _mm512_srai_epi32(sc, 16);
                group_512(c, tok, T, group, g, center, a);
#pragma GCC unroll 8
                for (unsigned t = 0; t < T; t++)
                        sum[t] = small ? _mm512_dpwssd_epi32(sum[t], a[t], sc)
                                       : _mm512_add_epi32(sum[t], _mm512_mullo_epi32(a[t], sc));
        }
#pragma GCC unroll 8
        for (unsigned t = 0; t < T; t++) {
                __m512 dx = _mm512_set1_ps(tok[t].im.d[0]), f = _mm512_loadu_ps(tok[t].acc);
                f = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum[t]), dx), _mm512_loadu_ps(p->d0), f);
                if (mins) {
                        const int16_t *s = mins == 16 ? tok[t].im.sum16 : tok[t].im.sum32;
                        __m512i i = _mm512_setzero_si512();
                        for (unsigned k = 0; k < 128 / mins; k++)
                                i = _mm512_dpwssd_epi32(i, _mm512_loadu_si512(p->mn[k]), pair(s + 2 * k));
                        f = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(i), dx), _mm512_loadu_ps(p->m0), f);
                }
                _mm512_storeu_ps(tok[t].acc, f);
        }
}

/* Kind 0. w: [cols][16] floats; x: T rows at one column. */
INLINE void tile_plain_512(const float *w, uint32_t cols, const float *const *x, float *const *acc, unsigned T) {
        __m512 f[T_MAX];

#pragma GCC unroll 8
        for (unsigned t = 0; t < T; t++)
                f[t] = _mm512_loadu_ps(acc[t]);
        for (uint32_t c = 0; c < cols; c++, w += K_PANEL) {
                __m512 v = _mm512_loadu_ps(w);
#pragma GCC unroll 8
                for (unsigned t = 0; t < T; t++)
                        f[t] = _mm512_fmadd_ps(v, _mm512_set1_ps(x[t][c]), f[t]);
        }
#pragma GCC unroll 8
        for (unsigned t = 0; t < T; t++)
                _mm512_storeu_ps(acc[t], f[t]);
}
