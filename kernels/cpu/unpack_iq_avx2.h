/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * FILE layout of the lattice types (IQ1, IQ2, IQ3) with AVX2: the values of
 * k_codes_get(), bit for bit (kernels/quant/codes_iq.c says what the formats
 * are). What a whole block has of signs and scales is brought to words first;
 * then 32 weights at a time, whose table entries are loaded as bytes, straight
 * into the vector. A panel turns eight rows of them to its order by a
 * transposition of 32-bit words; products of few tokens (few_iq_avx2.h) use
 * them as they are.
 */

#include "kernels/cpu/unpack_avx2.h"
#include "kernels/quant/grids.h"

INLINE uint64_t le64(const uint8_t *p) {
        uint64_t v;
        memcpy(&v, p, 8);
        return v;
}

/*
 * A block's
 *   sc      scales, each twice as 16 bits: of its 32s or 16s, whichever the type has
 *   signs   bit i of word j is column 32 j + i
 *   at      numbers of its entries, where the file has them in pieces; IQ1_S: twice the number
 */
struct iq_block {
        _Alignas(32) uint32_t sc[16];
        _Alignas(32) uint32_t signs[8];
        _Alignas(32) uint16_t at[64];
};

INLINE bool iq_per16(enum k_type t) {
        return t == K_IQ1_M || t == K_IQ2_XS || t == K_IQ2_S;
}

INLINE bool iq_is_1(enum k_type t) {
        return t == K_IQ1_S || t == K_IQ1_M;
}

/* To 32 bytes of 7 bits the eighth that makes their parity even. */
INLINE __m256i iq_even(__m256i x) {
        const __m256i odd = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
        __m256i high = _mm256_and_si256(_mm256_srli_epi16(x, 4), _mm256_set1_epi8(7));

        return _mm256_or_si256(x, _mm256_xor_si256(_mm256_shuffle_epi8(odd, x), _mm256_shuffle_epi8(odd, high)));
}

/* Words of four 7-bit fields to their bytes. */
INLINE __m256i iq_sevens(__m256i w) {
        __m256i x = _mm256_and_si256(w, _mm256_set1_epi32(0x7f));

        x = _mm256_or_si256(x, _mm256_and_si256(_mm256_slli_epi32(w, 1), _mm256_set1_epi32(0x7f00)));
        x = _mm256_or_si256(x, _mm256_and_si256(_mm256_slli_epi32(w, 2), _mm256_set1_epi32(0x7f0000)));
        return _mm256_or_si256(x, _mm256_and_si256(_mm256_slli_epi32(w, 3), _mm256_set1_epi32(0x7f000000)));
}

/* Scales s as 2 s + 1, in both halves of each word. s2: twice s, and other bits. */
INLINE __m256i iq_odd(__m256i s2, int mask) {
        __m256i s = _mm256_or_si256(_mm256_and_si256(s2, _mm256_set1_epi32(mask)), _mm256_set1_epi32(1));
        return _mm256_or_si256(s, _mm256_slli_epi32(s, 16));
}

/* Eight nibbles. */
INLINE __m256i iq_nibbles(uint32_t n) {
        const __m256i by = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
        return iq_odd(_mm256_slli_epi32(_mm256_srlv_epi32(_mm256_set1_epi32((int)n), by), 1), 30);
}

/* 16-bit lanes of byte v[0], v[0], ... v[1], ..., each 'times'. */
INLINE __m256i iq_lanes(__m256i v, unsigned times) {
        const __m256i two = _mm256_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, 4, -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1, 7,
                                             -1, 7, -1);
        const __m256i four = _mm256_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 1, -1, 1, -1, 1, -1, 1, -1, 2, -1, 2, -1, 2, -1, 2, -1, 3, -1, 3, -1, 3,
                                              -1, 3, -1);
        const __m256i eight = _mm256_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1,
                                               1, -1, 1, -1);
        return _mm256_shuffle_epi8(v, times == 2 ? two : times == 4 ? four : eight);
}

/*
 * Sixteen numbers: low bytes, and fields of 'high' whose lanes hold several, each lane's own at another place. A
 * multiplication is the shift by lane that there is no instruction for.
 */
INLINE __m256i iq_number(__m256i low, __m256i high, __m256i by, int field) {
        return _mm256_or_si256(low, _mm256_and_si256(_mm256_mullo_epi16(high, by), _mm256_set1_epi16((short)field)));
}

INLINE __m256i iq_number16(enum k_type t, const uint8_t *b, unsigned i) {
        const __m256i words = _mm256_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3, 4, 5, 4, 5, 4, 5, 4, 5, 6, 7, 6, 7, 6, 7, 6, 7);
        const __m256i by8 = _mm256_set1_epi64x(0x0010010000100100ll), by6 = _mm256_set1_epi64x(0x0004001000400100ll);
        const __m256i by1 = _mm256_broadcastsi128_si256(_mm_setr_epi16(256, 128, 64, 32, 16, 8, 4, 2));
        const __m256i by3 = _mm256_set1_epi64x(0x0001000800400200ll);
        const __m256i low = _mm256_cvtepu8_epi16(load128(b + (t == K_IQ1_M ? 0 : 2) + 16 * i));
        uint32_t four;
        uint16_t two;

        switch ((int)t) {
        case K_IQ2_S:
                memcpy(&four, b + 66 + 4 * i, 4);
                return iq_number(low, iq_lanes(_mm256_set1_epi32((int)four), 4), by6, 0x300);
        case K_IQ3_S:
                memcpy(&two, b + 66 + 2 * i, 2);
                return iq_number(low, iq_lanes(_mm256_set1_epi16((short)two), 8), by1, 0x100);
        case K_IQ1_S: /* three bits of a word: twice the number, so that all are shifted the same way */
                return iq_number(_mm256_slli_epi16(low, 1), _mm256_shuffle_epi8(_mm256_set1_epi64x((long long)le64(b + 34 + 8 * i)), words), by3, 0xe00);
        default: /* IQ1_M */
                return iq_number(low, iq_lanes(_mm256_set1_epi64x((long long)le64(b + 32 + 8 * i)), 2), by8, 0x700);
        }
}

INLINE void iq_prepare(enum k_type t, const uint8_t *b, struct iq_block *ret) {
        __m256i w, sc[2];

        switch ((int)t) {
        case K_IQ2_XXS:
        case K_IQ3_XXS:
                if (t == K_IQ3_XXS) {
                        w = load256(b + 66);
                } else { /* every second word */
                        __m256 lo = _mm256_castsi256_ps(load256(b + 2)), hi = _mm256_castsi256_ps(load256(b + 34));
                        w = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(lo, hi, 0xdd)), 0xd8);
                }
                sc[0] = iq_odd(_mm256_srli_epi32(w, 27), 30);
                store256(ret->signs, iq_even(iq_sevens(w)));
                break;
        case K_IQ2_XS:
                store256(ret->at, _mm256_and_si256(load256(b + 2), _mm256_set1_epi16(511)));
                store256(ret->at + 16, _mm256_and_si256(load256(b + 34), _mm256_set1_epi16(511)));
                w = _mm256_packus_epi16(_mm256_srli_epi16(load256(b + 2), 9), _mm256_srli_epi16(load256(b + 34), 9));
                store256(ret->signs, iq_even(_mm256_permute4x64_epi64(w, 0xd8)));
                sc[0] = iq_nibbles((uint32_t)le64(b + 66));
                sc[1] = iq_nibbles((uint32_t)(le64(b + 66) >> 32));
                break;
        case K_IQ2_S:
                store256(ret->signs, load256(b + 34));
                sc[0] = iq_nibbles((uint32_t)le64(b + 74));
                sc[1] = iq_nibbles((uint32_t)(le64(b + 74) >> 32));
                break;
        case K_IQ3_S:
                store256(ret->signs, load256(b + 74));
                sc[0] = iq_nibbles((uint32_t)(le64(b + 102) >> 32));
                break;
        case K_IQ1_S:
                sc[0] = iq_odd(_mm256_srli_epi32(_mm256_cvtepu16_epi32(load128(b + 34)), 11), 14);
                break;
        default: { /* IQ1_M: four scales of 3 bits in each of four words of 16 */
                const __m256i by = _mm256_setr_epi32(0, 3, 6, 9, 0, 3, 6, 9);
                const __m256i first = _mm256_setr_epi8(0, 1, -1, -1, 0, 1, -1, -1, 0, 1, -1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 2, 3, -1, -1, 2,
                                                       3, -1, -1, 2, 3, -1, -1);
                w = _mm256_set1_epi64x((long long)le64(b + 48));
                for (unsigned i = 0; i < 2; i++, w = _mm256_srli_epi64(w, 32))
                        sc[i] = iq_odd(_mm256_slli_epi32(_mm256_srlv_epi32(_mm256_shuffle_epi8(w, first), by), 1), 14);
        }
        }
        if (iq_is_1(t) || t == K_IQ2_S || t == K_IQ3_S)
#pragma GCC unroll 4
                for (unsigned i = 0; i < 4; i++)
                        if (i < 2 || t == K_IQ3_S)
                                store256(ret->at + 16 * i, iq_number16(t, b, i));
        store256(ret->sc, sc[0]);
        if (iq_per16(t))
                store256(ret->sc + 8, sc[1]);
        __asm__("" : "+m"(*ret)); /* loads that broadcast a word are cheaper than taking it from the register, as the compiler would */
}

/* Entry 'at' of 8 bytes, or where 'half', at / 2. */
INLINE const double *iq_entry8(const uint64_t *table, size_t at, bool half) {
        return (const double *)(const void *)((const uint8_t *)table + at * (half ? 4 : 8));
}

INLINE __m256i iq_four8(const uint64_t *table, size_t a, size_t b, size_t c, size_t d, bool half) {
        __m128d lo = _mm_loadh_pd(_mm_load_sd(iq_entry8(table, a, half)), iq_entry8(table, b, half));
        __m128d hi = _mm_loadh_pd(_mm_load_sd(iq_entry8(table, c, half)), iq_entry8(table, d, half));

        return _mm256_castpd_si256(_mm256_insertf128_pd(_mm256_castpd128_pd256(lo), hi, 1));
}

/* Two entries of 4 bytes; the second is read with what follows it. */
INLINE __m128i iq_two4(const uint32_t *table, size_t a, size_t b) {
        return _mm_unpacklo_epi32(_mm_loadu_si32(table + a), load128(table + b));
}

INLINE __m256i iq_eight4(const uint32_t *table, size_t a, size_t b, size_t c, size_t d, size_t e, size_t f, size_t g, size_t h) {
        return _mm256_set_m128i(_mm_unpacklo_epi64(iq_two4(table, e, f), iq_two4(table, g, h)),
                                _mm_unpacklo_epi64(iq_two4(table, a, b), iq_two4(table, c, d)));
}

/* Columns 32 j on: magnitudes, without their signs; IQ1_S: eight times code + 1; IQ1_M: code + 9. */
INLINE __m256i iq_32(enum k_type t, const uint8_t *b, const struct iq_block *block, unsigned j) {
        const uint16_t *at = block->at + (t == K_IQ3_S ? 8 : 4) * j;
        const uint8_t *p = b + 2 + 8 * j;

        switch ((int)t) {
        case K_IQ2_XXS:
                return iq_four8(k_bytes_iq2_xxs, p[0], p[1], p[2], p[3], false);
        case K_IQ2_XS:
                return iq_four8(k_bytes_iq2_xs, at[0], at[1], at[2], at[3], false);
        case K_IQ2_S:
                return iq_four8(k_bytes_iq2_s, at[0], at[1], at[2], at[3], false);
        case K_IQ3_XXS:
                return iq_eight4(k_bytes_iq3_xxs, p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]);
        case K_IQ3_S:
                return iq_eight4(k_bytes_iq3_s, at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7]);
        case K_IQ1_S:
                return iq_four8(k_bytes_iq1_s, at[0], at[1], at[2], at[3], true);
        default: { /* a bit for each 8 whether they are an eighth less or more */
                const __m256i bit = _mm256_setr_epi64x(0x0008000800080008ll, 0x0080008000800080ll, 0x0800080008000800ll,
                                                       (long long)0x8000800080008000ull);
                __m256i v = iq_four8(k_bytes_iq1_s, at[0], at[1], at[2], at[3], false);
                uint16_t h;

                memcpy(&h, b + 32 + 2 * j, 2);
                __m256i less = _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16((short)h), bit), bit);
                return _mm256_add_epi8(v, _mm256_andnot_si256(less, _mm256_set1_epi8(2)));
        }
        }
}

/* Bit i of the word to 1 or -1 in byte i. */
INLINE __m256i iq_signs(uint32_t word) {
        const __m256i rep = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3,
                                             3, 3, 3);
        const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201ull);
        __m256i s = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)word), rep), bit);

        return _mm256_or_si256(_mm256_cmpeq_epi8(s, bit), _mm256_set1_epi8(1));
}

/* The 32 codes as the panel has them: signed, plus 9 (IQ1) or plus 16 (IQ3_S). */
INLINE __m256i iq_codes(enum k_type t, const uint8_t *b, const struct iq_block *block, unsigned j) {
        __m256i v = iq_32(t, b, block, j);

        if (t == K_IQ1_S)
                return _mm256_add_epi8(v, _mm256_set1_epi8(b[35 + 2 * j] & 0x80 ? 0 : 2));
        if (t == K_IQ1_M)
                return v;
        v = _mm256_sign_epi8(v, iq_signs(block->signs[j]));
        return t == K_IQ3_S ? _mm256_add_epi8(v, _mm256_set1_epi8(16)) : v;
}

/* d of eight rows' blocks, with the power of two that its scales leave to it. */
INLINE __m256 iq_d(enum k_type t, const uint8_t *const b[8]) {
        _Alignas(16) uint16_t d[8];
        __m256 v;

        for (unsigned r = 0; r < 8; r++) {
                if (t == K_IQ1_M) { /* a quarter in the top of each word of scales */
                        uint64_t w = le64(b[r] + 48);
                        d[r] = (uint16_t)((w >> 12 & 0xf) | (w >> 24 & 0xf0) | (w >> 36 & 0xf00) | (w >> 48 & 0xf000));
                } else {
                        memcpy(&d[r], b[r], 2);
                }
        }
        v = _mm256_cvtph_ps(load128(d));
        return t == K_IQ3_S ? v : _mm256_mul_ps(v, _mm256_set1_ps(t == K_IQ3_XXS ? 0.25f : 0.125f));
}

/* Eight rows of eight 32-bit words: dst vector s is word s of every row. */
INLINE void turn8(const __m256i v[8], uint8_t *dst, size_t stride) {
        __m256i a[8], b[8];

#pragma GCC unroll 4
        for (unsigned i = 0; i < 4; i++) {
                a[2 * i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
                a[2 * i + 1] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
        }
#pragma GCC unroll 2
        for (unsigned h = 0; h < 8; h += 4) {
                b[h] = _mm256_unpacklo_epi64(a[h], a[h + 2]);
                b[h + 1] = _mm256_unpackhi_epi64(a[h], a[h + 2]);
                b[h + 2] = _mm256_unpacklo_epi64(a[h + 1], a[h + 3]);
                b[h + 3] = _mm256_unpackhi_epi64(a[h + 1], a[h + 3]);
        }
#pragma GCC unroll 4
        for (unsigned i = 0; i < 4; i++) {
                store256(dst + i * stride, _mm256_permute2x128_si256(b[i], b[i + 4], 0x20));
                store256(dst + (i + 4) * stride, _mm256_permute2x128_si256(b[i], b[i + 4], 0x31));
        }
}

/* One block (256 columns) of n rows that are row_bytes apart; the panel's others repeat the last. */
INLINE void iq_block_panel(enum k_type t, struct k_panel *p, const uint8_t *src, size_t row_bytes, uint32_t n) {
        const bool two_lines = k_type_bytes(t) > 64;

        for (unsigned half = 0; half < 2; half++) {
                struct iq_block block[8];
                const uint8_t *b[8];
                __m256i v[8];

                for (unsigned r = 0; r < 8; r++) {
                        b[r] = src + MIN(8 * half + r, n - 1) * row_bytes;
                        _mm_prefetch((const char *)b[r] + K_PANEL * row_bytes, _MM_HINT_T0); /* the next panel */
                        if (two_lines)
                                _mm_prefetch((const char *)b[r] + K_PANEL * row_bytes + 64, _MM_HINT_T0);
                        iq_prepare(t, b[r], &block[r]);
                }
                for (unsigned j = 0; j < 8; j++) {
#pragma GCC unroll 8
                        for (unsigned r = 0; r < 8; r++)
                                v[r] = iq_codes(t, b[r], &block[r], j);
                        turn8(v, p->q + 512 * j + 32 * half, 64);
                }
                for (unsigned i = 0; i < (iq_per16(t) ? 2 : 1); i++) {
#pragma GCC unroll 8
                        for (unsigned r = 0; r < 8; r++)
                                v[r] = load256(block[r].sc + 8 * i);
                        turn8(v, (uint8_t *)p->sc[8 * i] + 32 * half, 64);
                }
                _mm256_store_ps(p->d0 + 8 * half, iq_d(t, b));
        }
}

static inline bool is_lattice(enum k_type t) {
        return t == K_IQ1_S || t == K_IQ1_M || t == K_IQ2_XXS || t == K_IQ2_XS || t == K_IQ2_S || t == K_IQ3_XXS || t == K_IQ3_S;
}

/* As k_panel_from_file(), for a lattice type. */
static inline void iq_panel(struct k_panel *p, const struct k_weight *w, const uint8_t *data, uint32_t row0, uint32_t col) {
        const size_t bytes = k_type_bytes(w->type), row_bytes = w->cols / 256 * bytes;
        const uint8_t *src = data + row0 * row_bytes + col / 256 * bytes;
        const uint32_t n = MIN(w->rows - row0, K_PANEL);

        switch ((int)w->type) {
        case K_IQ1_S: iq_block_panel(K_IQ1_S, p, src, row_bytes, n); break;
        case K_IQ1_M: iq_block_panel(K_IQ1_M, p, src, row_bytes, n); break;
        case K_IQ2_XXS: iq_block_panel(K_IQ2_XXS, p, src, row_bytes, n); break;
        case K_IQ2_XS: iq_block_panel(K_IQ2_XS, p, src, row_bytes, n); break;
        case K_IQ2_S: iq_block_panel(K_IQ2_S, p, src, row_bytes, n); break;
        case K_IQ3_XXS: iq_block_panel(K_IQ3_XXS, p, src, row_bytes, n); break;
        default: iq_block_panel(K_IQ3_S, p, src, row_bytes, n); break;
        }
}
