/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * K_LAYOUT_CPU to panels, with AVX2. Two parts per type: the codes from their
 * bit planes (layout.h), and the scales from the interleaved heads, where each
 * byte or half of the file's block is a vector over the 16 rows.
 */

#include "kernels/cpu/panel.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

INLINE __m256i load256(const void *p) {
        return _mm256_loadu_si256(p);
}

INLINE void store256(void *p, __m256i v) {
        _mm256_store_si256(p, v);
}

INLINE __m128i load128(const void *p) {
        return _mm_loadu_si128(p);
}

/* (v >> shift) & mask in each byte; the mask removes what crossed from the neighbour. */
INLINE __m256i field(__m256i v, int shift, int mask) {
        return _mm256_and_si256(shift >= 0 ? _mm256_srli_epi16(v, shift) : _mm256_slli_epi16(v, -shift),
                                _mm256_set1_epi8((char)mask));
}

/*
 * Where the inner loops take codes from: a panel of bytes, or the bit planes
 * themselves (few tokens: unpacking on the way is cheaper than by a panel).
 * All but p and lut are compile-time constants.
 */
struct codes {
        const uint8_t *p;
        __m256i lut;
        unsigned bits;     /* stored; 8 for a panel */
        bool use_lut, is_signed;
        bool small;        /* signed and within -64..64 */
        unsigned unit;     /* columns per unit of the layout */
        unsigned ahead;    /* bytes to prefetch ahead; 0: none */
};

/* Streams of bit planes a few hundred bytes long defeat the processor's own prefetchers. */
INLINE void codes_prefetch(const struct codes c, unsigned group, unsigned g) {
        const unsigned bytes = group * c.bits * K_PANEL / 8;
        for (unsigned i = 0; i < bytes && c.ahead; i += 64)
                _mm_prefetch((const char *)c.p + c.ahead + g * bytes + i, _MM_HINT_T0);
}

/* Codes of rows 0-7 and 8-15 at step first + s; s a constant, first a multiple of 4. */
INLINE void codes_step(const struct codes c, unsigned first, unsigned s, __m256i w[2]) {
        const unsigned steps = c.unit / 4;
        const uint8_t *p = c.p, *high = p;
        int i = (int)(s % 4);

        if (c.bits == 8) {
                w[0] = load256(p + 64 * (first + s));
                w[1] = load256(p + 64 * (first + s) + 32);
                return;
        }
        if (c.unit == 32) { /* a step's place within its unit */
                p += first / steps * (c.bits * 64);
                first %= steps;
        }
        high = p + steps * (c.bits >= 4 ? 32 : 16);
        if (c.bits >= 4) {
                __m256i v = load256(p + 32 * (first + s));
                w[0] = field(v, 0, 15);
                w[1] = field(v, 4, 15);
        } else {
                __m256i v = load256(p + 16 * first + s / 2 * 32);
                w[0] = field(v, i % 2 * 4, 3);
                w[1] = field(v, i % 2 * 4 + 2, 3);
        }
        if (c.bits == 3 || c.bits == 5) {
                __m256i h = load256(high + 8 * first + s / 4 * 32);
                int to = c.bits == 3 ? 2 : 4;
                w[0] = _mm256_or_si256(w[0], field(h, 2 * i - to, 1 << to));
                w[1] = _mm256_or_si256(w[1], field(h, 2 * i + 1 - to, 1 << to));
        }
        if (c.bits == 6) {
                __m256i h = load256(high + 16 * first + s / 2 * 32);
                w[0] = _mm256_or_si256(w[0], field(h, i % 2 * 4 - 4, 48));
                w[1] = _mm256_or_si256(w[1], field(h, i % 2 * 4 - 2, 48));
        }
        if (c.use_lut) {
                w[0] = _mm256_shuffle_epi8(c.lut, w[0]);
                w[1] = _mm256_shuffle_epi8(c.lut, w[1]);
        }
}

/* A panel's codes from the planes. */
INLINE void codes_panel(const struct codes c, uint8_t *q, uint32_t cols) {
        for (unsigned first = 0; first < cols / 4; first += 4, q += 256) {
                codes_prefetch(c, 16, first / 4);
#pragma GCC unroll 4
                for (unsigned s = 0; s < 4; s++) {
                        __m256i w[2];
                        codes_step(c, first, s, w);
                        store256(q + 64 * s, w[0]);
                        store256(q + 64 * s + 32, w[1]);
                }
        }
}

INLINE void halves16(const uint8_t *src, float *dst) {
        _mm256_store_ps(dst, _mm256_cvtph_ps(load128(src)));
        _mm256_store_ps(dst + 8, _mm256_cvtph_ps(load128(src + 16)));
}

/* Minimums of the K types are subtracted. */
INLINE void halves16_minus(const uint8_t *src, float *dst) {
        const __m256 sign = _mm256_set1_ps(-0.0f);
        _mm256_store_ps(dst, _mm256_xor_ps(sign, _mm256_cvtph_ps(load128(src))));
        _mm256_store_ps(dst + 8, _mm256_xor_ps(sign, _mm256_cvtph_ps(load128(src + 16))));
}

/* 16 unsigned or signed bytes to pairs of the same 16-bit value. */
INLINE void twice(__m128i bytes, int16_t dst[K_PANEL][2], bool is_signed) {
        const __m256i low = _mm256_setr_epi8(-1, 0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, 4, -1, 4, -1, 5, -1,
                                             5, -1, 6, -1, 6, -1, 7, -1, 7);
        __m256i v = _mm256_broadcastsi128_si256(bytes);
        __m256i a = _mm256_shuffle_epi8(v, low);
        __m256i b = _mm256_shuffle_epi8(_mm256_bsrli_epi128(v, 8), low);
        store256(dst, is_signed ? _mm256_srai_epi16(a, 8) : _mm256_srli_epi16(a, 8));
        store256(dst + 8, is_signed ? _mm256_srai_epi16(b, 8) : _mm256_srli_epi16(b, 8));
}

/* Bytes of two groups to pairs (a, b). */
INLINE void pairs(__m128i a, __m128i b, int16_t dst[K_PANEL][2]) {
        store256(dst, _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b)));
        store256(dst + 8, _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b)));
}

INLINE __m128i field128(__m128i v, int shift, int mask) {
        return _mm_and_si128(shift >= 0 ? _mm_srli_epi16(v, shift) : _mm_slli_epi16(v, -shift), _mm_set1_epi8((char)mask));
}

INLINE void head_k45(const uint8_t *h, struct k_panel *p, bool per16) {
        __m128i b[12], sc, mn[8];

        halves16(h, p->d0);
        halves16_minus(h + 32, p->m0);
        for (int i = 0; i < 12; i++)
                b[i] = load128(h + 64 + 16 * i);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
                if (j < 4) {
                        sc = field128(b[j], 0, 63);
                        mn[j] = field128(b[j + 4], 0, 63);
                } else {
                        sc = _mm_or_si128(field128(b[j + 4], 0, 15), field128(b[j - 4], 2, 48));
                        mn[j] = _mm_or_si128(field128(b[j + 4], 4, 15), field128(b[j], 2, 48));
                }
                if (per16) {
                        twice(sc, p->sc[2 * j], false);
                        twice(sc, p->sc[2 * j + 1], false);
                } else {
                        twice(sc, p->sc[j], false);
                }
        }
        for (int j = 0; j < 4; j++)
                pairs(mn[2 * j], mn[2 * j + 1], p->mn[j]);
}

INLINE void head_q2(const uint8_t *h, struct k_panel *p) {
        halves16(h, p->d0);
        halves16_minus(h + 32, p->m0);
        h += 64;
        for (int g = 0; g < 16; g += 2) {
                __m128i a = load128(h + 16 * g), b = load128(h + 16 * g + 16);
                twice(field128(a, 0, 15), p->sc[g], false);
                twice(field128(b, 0, 15), p->sc[g + 1], false);
                pairs(field128(a, 4, 15), field128(b, 4, 15), p->mn[g / 2]);
        }
}

INLINE void head_q3(const uint8_t *h, struct k_panel *p) {
        const __m128i off = _mm_set1_epi8(32);
        halves16(h, p->d0);
        h += 32;
#pragma GCC unroll 16
        for (int g = 0; g < 16; g++) {
                __m128i lo = field128(load128(h + 16 * (g % 8)), g / 8 * 4, 15);
                __m128i hi = field128(load128(h + 128 + 16 * (g % 4)), g / 4 * 2 - 4, 48);
                twice(_mm_sub_epi8(_mm_or_si128(lo, hi), off), p->sc[g], true);
        }
}

INLINE void head_q6(const uint8_t *h, struct k_panel *p) {
        halves16(h, p->d0);
        for (int g = 0; g < 16; g++)
                twice(load128(h + 32 + 16 * g), p->sc[g], true);
}

INLINE void head_iq4_xs(const uint8_t *h, struct k_panel *p) {
        const __m128i off = _mm_set1_epi8(32), bytes = _mm_set1_epi16(255);
        halves16(h, p->d0);
        /* 16-bit words of high bits, as their low and their high bytes */
        __m128i w0 = load128(h + 32), w1 = load128(h + 48);
        __m128i high[2] = { _mm_packus_epi16(_mm_and_si128(w0, bytes), _mm_and_si128(w1, bytes)),
                            _mm_packus_epi16(_mm_srli_epi16(w0, 8), _mm_srli_epi16(w1, 8)) };
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
                __m128i lo = field128(load128(h + 64 + 16 * (j / 2)), j % 2 * 4, 15);
                __m128i hi = field128(high[j / 4], j % 4 * 2 - 4, 48);
                twice(_mm_sub_epi8(_mm_or_si128(lo, hi), off), p->sc[j], true);
        }
}

INLINE void head_flat(const uint8_t *h, struct k_panel *p) {
        halves16(h, p->d0);
        for (int g = 0; g < 8; g++)
                twice(_mm_set1_epi8(1), p->sc[g], false);
}

/* Bytes e to 2^(e - 128); 0 and 1 give the subnormals 2^-128 and 2^-127. */
INLINE __m256 e8m0_half(__m256i e) {
        __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
        __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
        return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

INLINE __m256 ue4m3_half(__m256i x) {
        __m256i e = _mm256_and_si256(_mm256_srli_epi32(x, 3), _mm256_set1_epi32(15));
        __m256i man = _mm256_and_si256(x, _mm256_set1_epi32(7));
        __m256i bits = _mm256_or_si256(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(119)), 23),
                                       _mm256_slli_epi32(man, 20));
        __m256 tiny = _mm256_mul_ps(_mm256_cvtepi32_ps(man), _mm256_set1_ps(0x1p-10f));
        __m256 v = _mm256_blendv_ps(_mm256_castsi256_ps(bits), tiny,
                                    _mm256_castsi256_ps(_mm256_cmpeq_epi32(e, _mm256_setzero_si256())));
        return _mm256_andnot_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(x, _mm256_set1_epi32(0x7f))), v);
}

INLINE __m256i lut_plus(const int8_t *lut, int add) {
        return _mm256_add_epi8(_mm256_broadcastsi128_si256(load128(lut)), _mm256_set1_epi8((char)add));
}

/* The scales of cols columns (a multiple of the unit) into a panel. */
INLINE void unpack_head(enum k_type t, struct k_panel *p, const uint8_t *h, uint32_t cols) {
        switch (t) {
        case K_Q4_0:
        case K_Q5_0:
        case K_Q8_0:
        case K_IQ4_NL:
                for (unsigned b = 0; b < cols / 32; b++)
                        halves16(h + 32 * b, p->d[b]);
                break;
        case K_Q4_1:
        case K_Q5_1:
                for (unsigned b = 0; b < cols / 32; b++) {
                        halves16(h + 64 * b, p->d[b]);
                        halves16(h + 64 * b + 32, p->m[b]);
                }
                break;
        case K_MXFP4:
                for (unsigned b = 0; b < cols / 32; b++) {
                        __m128i e = load128(h + 16 * b);
                        _mm256_store_ps(p->d[b], e8m0_half(_mm256_cvtepu8_epi32(e)));
                        _mm256_store_ps(p->d[b] + 8, e8m0_half(_mm256_cvtepu8_epi32(_mm_bsrli_si128(e, 8))));
                }
                break;
        case K_NVFP4:
                for (unsigned g = 0; g < cols / 16; g++) {
                        __m128i e = load128(h + 16 * g);
                        _mm256_store_ps(p->d[g], ue4m3_half(_mm256_cvtepu8_epi32(e)));
                        _mm256_store_ps(p->d[g] + 8, ue4m3_half(_mm256_cvtepu8_epi32(_mm_bsrli_si128(e, 8))));
                }
                break;
        case K_Q2_K:
                head_q2(h, p);
                break;
        case K_Q3_K:
                head_q3(h, p);
                break;
        case K_Q4_K:
                head_k45(h, p, false);
                break;
        case K_Q5_K:
                head_k45(h, p, true);
                break;
        case K_Q6_K:
                head_q6(h, p);
                break;
        case K_IQ4_XS:
                head_iq4_xs(h, p);
                break;
        case K_TQ1_0:
        case K_TQ2_0:
                head_flat(h, p);
                break;
        default: /* no K_LAYOUT_CPU with heads */
                break;
        }
}
