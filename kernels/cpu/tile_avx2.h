/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Inner products of one panel piece (16 rows) with T tokens, AVX2.
 *
 * Unsigned codes times signed activations: vpmaddubsw gives sums of two
 * products in 16 bits, which are added up in 16 bits over a whole scale group
 * before anything is widened. That is exact because each lane's final sum of
 * (code - center) * x over its half of the group fits 16 bits:
 *      group 32, per lane 16 products:  4 bits 16*15*127, 5 bits centered 16*16*127
 *      group 16, per lane 8 products:   5 bits 8*31*127,  6 bits centered 8*32*127
 * all below 32768, and wrapping on the way does no harm: the lanes start at
 * minus center times the sum of their x, an exact value modulo 2^16. A single
 * vpmaddubsw can't saturate: 63 * 127 * 2 < 32768. Per 32 products that is two
 * vector operations (multiply, add) and half a broadcast load.
 *
 * Codes of 8 bits take the sign from the weight: |w| times sign(w) x, at most
 * 128 * 127 * 2 = 32512 a pair, widened at once by a multiplication with ones
 * or with the group's integer scale: four operations. Where codes stay within
 * -64..64 (IQ2, IQ3), two pairs are added before that: 64 * 127 * 4 = 32512.
 */

#include "kernels/cpu/unpack_avx2.h"

#define T_MAX 4u
#define T_PACKED 2u
#define T_PLAIN 6u
#define T_DIRECT 6u

static inline uint32_t tile_take(uint32_t n) {
        return MIN(n, T_MAX);
}

struct tok {
        struct k_image im; /* at the piece's first column */
        float *acc;        /* [16] */
};

INLINE __m256i four(const int8_t *q) {
        int32_t v;
        __builtin_memcpy(&v, q, 4);
        return _mm256_set1_epi32(v);
}

INLINE __m256i pair(const int16_t *p) {
        int32_t v;
        __builtin_memcpy(&v, p, 4);
        return _mm256_set1_epi32(v);
}

/* Keeps the compiler from reordering the additions of a chain: done early, all products would need a register at once. */
INLINE void pin(__m256i *v) {
        __asm__("" : "+x"(*v));
}

/* Lanes before the first product: -center * (sums of x). */
INLINE __m256i start(const struct tok *t, unsigned group, unsigned g, int center) {
        if (center == 0)
                return _mm256_setzero_si256();
        return _mm256_mullo_epi16(pair((group == 16 ? t->im.pair16 : t->im.pair32) + 2 * g), _mm256_set1_epi16((short)-center));
}

INLINE struct codes small(struct codes c) {
        c.small = true;
        return c;
}

/* Unsigned codes, both halves: a[t][half] = sum of (code - center) x in 16-bit lanes. */
INLINE void group_unsigned(const struct codes c, const struct tok *tok, unsigned T, unsigned group, unsigned g, int center,
                           __m256i a[4][2]) {
        codes_prefetch(c, group, g);
#pragma GCC unroll 4
        for (unsigned t = 0; t < T; t++)
                a[t][0] = a[t][1] = start(&tok[t], group, g, center);
#pragma GCC unroll 8
        for (unsigned s = 0; s < group / 4; s++) {
                __m256i w[2];
                codes_step(c, g * (group / 4), s, w);
#pragma GCC unroll 4
                for (unsigned t = 0; t < T; t++) {
                        __m256i x = four(tok[t].im.q + g * group + 4 * s);
                        a[t][0] = _mm256_add_epi16(a[t][0], _mm256_maddubs_epi16(w[0], x));
                        a[t][1] = _mm256_add_epi16(a[t][1], _mm256_maddubs_epi16(w[1], x));
                        pin(&a[t][0]);
                        pin(&a[t][1]);
                }
        }
}

/* Signed codes: a[t][half] += sum of code x times 'by' (ones, or the group's scales) in 32-bit lanes. */
INLINE void group_signed(const struct codes c, const struct tok *tok, unsigned T, unsigned group, unsigned g,
                         const __m256i by[2], __m256i a[4][2]) {
        codes_prefetch(c, group, g);
        const unsigned step = c.small ? 2 : 1;

#pragma GCC unroll 8
        for (unsigned s = 0; s < group / 4; s += step) {
                __m256i w[2], more[2] = { 0 };
                codes_step(c, g * (group / 4), s, w);
                if (c.small)
                        codes_step(c, g * (group / 4), s + 1, more);
#pragma GCC unroll 2
                for (unsigned h = 0; h < 2; h++) {
                        __m256i abs = _mm256_abs_epi8(w[h]), abs_more = _mm256_abs_epi8(more[h]);
#pragma GCC unroll 4
                        for (unsigned t = 0; t < T; t++) {
                                const int8_t *q = tok[t].im.q + g * group + 4 * s;
                                __m256i v = _mm256_maddubs_epi16(abs, _mm256_sign_epi8(four(q), w[h]));
                                if (c.small)
                                        v = _mm256_add_epi16(v, _mm256_maddubs_epi16(abs_more, _mm256_sign_epi8(four(q + 4), more[h])));
                                a[t][h] = _mm256_add_epi32(a[t][h], _mm256_madd_epi16(v, by[h]));
                                pin(&a[t][h]);
                        }
                }
        }
}

/* Kind 1. back: what was taken off unsigned codes to fit is put back in 32 bits (Q5_1). */
INLINE void tile_float(const struct codes c, const struct k_panel *p, uint32_t cols, const struct tok *tok, unsigned T,
                       unsigned group, int center, bool back, bool min) {
        const __m256i ones = _mm256_set1_epi16(1), by[2] = { ones, ones };
        __m256 f[4][2];
        __m256i a[4][2];

#pragma GCC unroll 4
        for (unsigned t = 0; t < T; t++) {
                f[t][0] = _mm256_loadu_ps(tok[t].acc);
                f[t][1] = _mm256_loadu_ps(tok[t].acc + 8);
        }
        for (unsigned g = 0; g < cols / group; g++) {
                unsigned b = g * group / 32;
                if (c.is_signed) {
#pragma GCC unroll 4
                        for (unsigned t = 0; t < T; t++)
                                a[t][0] = a[t][1] = _mm256_setzero_si256();
                        group_signed(c, tok, T, group, g, by, a);
                } else {
                        group_unsigned(c, tok, T, group, g, center, a);
                }
#pragma GCC unroll 2
                for (unsigned h = 0; h < 2; h++) {
                        __m256 dw = _mm256_load_ps(p->d[g] + 8 * h);
#pragma GCC unroll 4
                        for (unsigned t = 0; t < T; t++) {
                                __m256i i = c.is_signed ? a[t][h] : _mm256_madd_epi16(a[t][h], ones);
                                if (back)
                                        i = _mm256_add_epi32(i, _mm256_madd_epi16(pair(tok[t].im.pair32 + 2 * g),
                                                                                  _mm256_set1_epi16((short)center)));
                                __m256 v = _mm256_mul_ps(_mm256_cvtepi32_ps(i), _mm256_broadcast_ss(tok[t].im.d + b));
                                f[t][h] = _mm256_fmadd_ps(v, dw, f[t][h]);
                                if (min)
                                        f[t][h] = _mm256_fmadd_ps(_mm256_load_ps(p->m[g] + 8 * h),
                                                                  _mm256_broadcast_ss(tok[t].im.sx + b), f[t][h]);
                        }
                }
        }
#pragma GCC unroll 4
        for (unsigned t = 0; t < T; t++) {
                _mm256_storeu_ps(tok[t].acc, f[t][0]);
                _mm256_storeu_ps(tok[t].acc + 8, f[t][1]);
        }
}

/* Kind 2: 256 columns. mins: weights per minimum, 0 for none. */
INLINE void tile_int(const struct codes c, const struct k_panel *p, const struct tok *tok, unsigned T, unsigned group,
                     int center, unsigned mins) {
        __m256i sum[4][2], a[4][2];

#pragma GCC unroll 4
        for (unsigned t = 0; t < T; t++)
                sum[t][0] = sum[t][1] = _mm256_setzero_si256();
        for (unsigned g = 0; g < 256 / group; g++) {
                const __m256i sc[2] = { load256(p->sc[g]), load256(p->sc[g] + 8) };
                if (c.is_signed) {
                        group_signed(c, tok, T, group, g, sc, sum);
                        continue;
                }
                group_unsigned(c, tok, T, group, g, center, a);
#pragma GCC unroll 2
                for (unsigned h = 0; h < 2; h++)
#pragma GCC unroll 4
                        for (unsigned t = 0; t < T; t++)
                                sum[t][h] = _mm256_add_epi32(sum[t][h], _mm256_madd_epi16(a[t][h], sc[h]));
        }
#pragma GCC unroll 4
        for (unsigned t = 0; t < T; t++) {
                __m256 dx = _mm256_broadcast_ss(tok[t].im.d);
#pragma GCC unroll 2
                for (unsigned h = 0; h < 2; h++) {
                        __m256 f = _mm256_loadu_ps(tok[t].acc + 8 * h);
                        f = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sum[t][h]), dx), _mm256_load_ps(p->d0 + 8 * h), f);
                        if (mins) {
                                const int16_t *s = mins == 16 ? tok[t].im.sum16 : tok[t].im.sum32;
                                __m256i i = _mm256_setzero_si256();
                                for (unsigned k = 0; k < 128 / mins; k++)
                                        i = _mm256_add_epi32(i, _mm256_madd_epi16(load256(p->mn[k] + 8 * h), pair(s + 2 * k)));
                                f = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(i), dx), _mm256_load_ps(p->m0 + 8 * h), f);
                        }
                        _mm256_storeu_ps(tok[t].acc + 8 * h, f);
                }
        }
}

/* Kind 0: one chain of fused multiply-adds per output. w: [cols][16] floats; x: T rows at one column. */
INLINE void tile_plain(const float *w, uint32_t cols, const float *const *x, float *const *acc, unsigned T) {
        __m256 f[6][2];

#pragma GCC unroll 6
        for (unsigned t = 0; t < T; t++) {
                f[t][0] = _mm256_loadu_ps(acc[t]);
                f[t][1] = _mm256_loadu_ps(acc[t] + 8);
        }
        for (uint32_t c = 0; c < cols; c++, w += K_PANEL) {
                __m256 w0 = _mm256_loadu_ps(w), w1 = _mm256_loadu_ps(w + 8);
#pragma GCC unroll 6
                for (unsigned t = 0; t < T; t++) {
                        __m256 v = _mm256_broadcast_ss(x[t] + c);
                        f[t][0] = _mm256_fmadd_ps(w0, v, f[t][0]);
                        f[t][1] = _mm256_fmadd_ps(w1, v, f[t][1]);
                }
        }
#pragma GCC unroll 6
        for (unsigned t = 0; t < T; t++) {
                _mm256_storeu_ps(acc[t], f[t][0]);
                _mm256_storeu_ps(acc[t] + 8, f[t][1]);
        }
}
