/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * FILE layout of the lattice types (IQ1, IQ2, IQ3) to panels, with AVX2: the
 * values of k_codes_get(), bit for bit (kernels/quant/codes_iq.c says what the
 * formats are). 32 weights at a time: the table's entries are looked up by
 * ordinary loads, put side by side in a register, and spread to bytes there;
 * signs are bits that select lanes. Eight rows are then turned to the panel's
 * order by a transposition of 32-bit words.
 */

#include "kernels/cpu/unpack_avx2.h"
#include "kernels/quant/grids.h"

INLINE uint32_t le32(const uint8_t *p) {
        uint32_t v;
        memcpy(&v, p, 4);
        return v;
}

INLINE uint64_t le64(const uint8_t *p) {
        uint64_t v;
        memcpy(&v, p, 8);
        return v;
}

INLINE uint64_t entries4(const uint16_t *grid, unsigned a, unsigned b, unsigned c, unsigned d) {
        return (uint64_t)grid[a] | (uint64_t)grid[b] << 16 | (uint64_t)grid[c] << 32 | (uint64_t)grid[d] << 48;
}

/* Four fields of 7 bits, one a byte: the eighth bit makes each byte's parity even. */
INLINE uint32_t even4(uint32_t x) {
        uint32_t t = x ^ x >> 4;

        t ^= t >> 2;
        t ^= t >> 1;
        return x | (t & 0x01010101u) << 7;
}

INLINE uint32_t even28(uint32_t w) {
        return even4((w & 0x7f) | (w & 0x3f80) << 1 | (w & 0x1fc000) << 2 | (w & 0xfe00000) << 3);
}

/* Four entries of eight 2-bit fields to bytes, each through lut[field]; 'lut' has four entries. */
INLINE __m256i spread_2(uint64_t entries, int l0, int l1, int l2, int l3) {
        const __m256i rep = _mm256_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7,
                                             7, 7, 7);
        const __m256i nibble = _mm256_set1_epi8(15);
        /* the low two bits of a nibble, and the high two */
        const __m256i even = _mm256_broadcastsi128_si256(_mm_setr_epi8((char)l0, (char)l1, (char)l2, (char)l3, (char)l0, (char)l1,
                (char)l2, (char)l3, (char)l0, (char)l1, (char)l2, (char)l3, (char)l0, (char)l1, (char)l2, (char)l3));
        const __m256i odd = _mm256_broadcastsi128_si256(_mm_setr_epi8((char)l0, (char)l0, (char)l0, (char)l0, (char)l1, (char)l1,
                (char)l1, (char)l1, (char)l2, (char)l2, (char)l2, (char)l2, (char)l3, (char)l3, (char)l3, (char)l3));
        __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi64x((long long)entries), rep);
        __m256i n = _mm256_blend_epi16(_mm256_and_si256(v, nibble), _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble), 0xaa);

        return _mm256_blendv_epi8(_mm256_shuffle_epi8(even, n), _mm256_shuffle_epi8(odd, n), _mm256_set1_epi16((short)0xff00));
}

/* Eight entries of four 3-bit fields to bytes, each through lut[field]. */
INLINE __m256i spread_3(uint64_t lo, uint64_t hi, __m256i lut) {
        __m256i g = _mm256_cvtepu16_epi32(_mm_set_epi64x((long long)hi, (long long)lo));
        __m256i v = _mm256_and_si256(g, _mm256_set1_epi32(7));

        v = _mm256_or_si256(v, _mm256_and_si256(_mm256_slli_epi32(g, 5), _mm256_set1_epi32(0x700)));
        v = _mm256_or_si256(v, _mm256_and_si256(_mm256_slli_epi32(g, 10), _mm256_set1_epi32(0x70000)));
        v = _mm256_or_si256(v, _mm256_and_si256(_mm256_slli_epi32(g, 15), _mm256_set1_epi32(0x7000000)));
        return _mm256_shuffle_epi8(lut, v);
}

/* Bit i of the word is the sign of byte i. */
INLINE __m256i signed_by(__m256i v, uint32_t signs) {
        const __m256i rep = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3,
                                             3, 3, 3);
        const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201ull);
        __m256i s = _mm256_shuffle_epi8(_mm256_set1_epi32((int)signs), rep);

        s = _mm256_cmpeq_epi8(_mm256_and_si256(s, bit), bit);
        return _mm256_sub_epi8(_mm256_xor_si256(v, s), s);
}

INLINE __m256i grid8(uint64_t entries, uint32_t signs) {
        return signed_by(spread_2(entries, 8, 25, 43, 60), signs);
}

/* The 32 codes of group j of a block, as the panel has them: signed, or plus 9 (IQ1). */
INLINE __m256i iq_codes(enum k_type t, const uint8_t *b, unsigned j) {
        const __m256i mag4 = _mm256_broadcastsi128_si256(_mm_setr_epi8(4, 12, 20, 28, 36, 44, 52, 62, 0, 0, 0, 0, 0, 0, 0, 0));
        const __m256i mag4s = _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 3, 5, 7, 9, 11, 13, 15, 0, 0, 0, 0, 0, 0, 0, 0));

        switch ((int)t) {
        case K_IQ2_XXS: {
                const uint8_t *p = b + 2 + 8 * j;
                return grid8(entries4(k_grid_iq2_xxs, p[0], p[1], p[2], p[3]), even28(le32(p + 4)));
        }
        case K_IQ2_XS: {
                uint64_t w = le64(b + 2 + 8 * j), s = w >> 9 & 0x007f007f007f007full;
                uint32_t s7 = (uint32_t)(s | s >> 8) & 0xffff;

                s7 |= (uint32_t)((s >> 16 | s >> 24) & 0xffff0000);
                return grid8(entries4(k_grid_iq2_xs, w & 511, w >> 16 & 511, w >> 32 & 511, w >> 48 & 511), even4(s7));
        }
        case K_IQ2_S: {
                const uint8_t *p = b + 2 + 4 * j;
                unsigned h = (unsigned)b[66 + j] << 8;
                uint64_t e = entries4(k_grid_iq2_s, p[0] | (h & 0x300), p[1] | (h >> 2 & 0x300), p[2] | (h >> 4 & 0x300),
                                  p[3] | (h >> 6 & 0x300));
                return grid8(e, le32(b + 34 + 4 * j));
        }
        case K_IQ3_XXS: {
                const uint8_t *p = b + 2 + 8 * j;
                __m256i v = spread_3(entries4(k_grid_iq3_xxs, p[0], p[1], p[2], p[3]), entries4(k_grid_iq3_xxs, p[4], p[5], p[6], p[7]), mag4);
                return signed_by(v, even28(le32(b + 66 + 4 * j)));
        }
        case K_IQ3_S: {
                const uint8_t *p = b + 2 + 8 * j;
                unsigned h = (unsigned)b[66 + j] << 8;
                __m256i v = spread_3(entries4(k_grid_iq3_s, p[0] | (h & 0x100), p[1] | (h >> 1 & 0x100), p[2] | (h >> 2 & 0x100),
                                          p[3] | (h >> 3 & 0x100)),
                                     entries4(k_grid_iq3_s, p[4] | (h >> 4 & 0x100), p[5] | (h >> 5 & 0x100), p[6] | (h >> 6 & 0x100),
                                          p[7] | (h >> 7 & 0x100)), mag4s);
                return signed_by(v, le32(b + 74 + 4 * j));
        }
        case K_IQ1_S: {
                const uint8_t *p = b + 2 + 4 * j;
                unsigned h = b[34 + 2 * j] | (unsigned)b[35 + 2 * j] << 8;
                uint64_t e = entries4(k_grid_iq1_s, p[0] | (h << 8 & 0x700), p[1] | (h << 5 & 0x700), p[2] | (h << 2 & 0x700),
                                  p[3] | (h >> 1 & 0x700));
                return _mm256_add_epi8(spread_2(e, 0, 8, 16, 24), _mm256_set1_epi8(h >> 15 ? 0 : 2));
        }
        default: { /* IQ1_M: a bit for each 8 whether they are an eighth less or more */
                const uint8_t *p = b + 4 * j;
                unsigned h = b[32 + 2 * j] | (unsigned)b[33 + 2 * j] << 8;
                uint64_t e = entries4(k_grid_iq1_s, p[0] | (h << 8 & 0x700), p[1] | (h << 4 & 0x700), p[2] | (h & 0x700),
                                  p[3] | (h >> 4 & 0x700));
                const __m256i bit = _mm256_setr_epi64x(0x0008000800080008ll, 0x0080008000800080ll, 0x0800080008000800ll,
                                                       (long long)0x8000800080008000ull);
                __m256i more = _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16((short)h), bit), _mm256_setzero_si256());
                return _mm256_add_epi8(spread_2(e, 0, 8, 16, 24), _mm256_and_si256(more, _mm256_set1_epi8(2)));
        }
        }
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

/* One block (256 columns) of 16 rows that are row_bytes apart. */
INLINE void iq_block(enum k_type t, struct k_panel *p, const uint8_t *src, size_t row_bytes) {
        for (unsigned half = 0; half < 2; half++)
                for (unsigned j = 0; j < 8; j++) {
                        const uint8_t *b = src + 8 * half * row_bytes;
                        __m256i v[8];

#pragma GCC unroll 8
                        for (unsigned r = 0; r < 8; r++)
                                v[r] = iq_codes(t, b + r * row_bytes, j);
                        turn8(v, p->q + 512 * j + 32 * half, 64);
                }
        for (unsigned r = 0; r < K_PANEL; r++)
                k_panel_head(p, t, src + r * row_bytes, r);
}

static inline bool is_lattice(enum k_type t) {
        return t == K_IQ1_S || t == K_IQ1_M || t == K_IQ2_XXS || t == K_IQ2_XS || t == K_IQ2_S || t == K_IQ3_XXS || t == K_IQ3_S;
}

/* As k_panel_from_file() for a lattice type and a whole panel of rows. */
static inline void iq_panel(struct k_panel *p, enum k_type t, const uint8_t *src, size_t row_bytes) {
        switch ((int)t) {
        case K_IQ1_S: iq_block(K_IQ1_S, p, src, row_bytes); break;
        case K_IQ1_M: iq_block(K_IQ1_M, p, src, row_bytes); break;
        case K_IQ2_XXS: iq_block(K_IQ2_XXS, p, src, row_bytes); break;
        case K_IQ2_XS: iq_block(K_IQ2_XS, p, src, row_bytes); break;
        case K_IQ2_S: iq_block(K_IQ2_S, p, src, row_bytes); break;
        case K_IQ3_XXS: iq_block(K_IQ3_XXS, p, src, row_bytes); break;
        default: iq_block(K_IQ3_S, p, src, row_bytes); break;
        }
}
