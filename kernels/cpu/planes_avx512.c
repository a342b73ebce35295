/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with the card's tiles on AVX-512 VNNI. A tile is 16 rows by 256
 * columns; 64 bytes of its 4-bit plane are, of rows g and g + 8, the words
 * [l][kb & 1][top]: columns 4l.. of the first half of block kb in the low
 * nibbles, of the second half in the high ones. So the activations of two
 * blocks need one shuffle each for both halves, whatever g is, and after the
 * eight g's a tree of shuffles adds over l and leaves sums with one lane for
 * each row: lane 2g + top. From there on it is linear.h's arithmetic in the
 * order written there.
 *
 * Codes are unsigned here (u = q + center, or table values + center); what the
 * center adds is taken off with the image's sums.
 */
#include "kernels/cpu/planes.h"

#include <immintrin.h>
#include <string.h>

#include "kernels/cuda/layout.h"
#include "kernels/quant/codes.h"

#define INLINE static inline __attribute__((always_inline))
#define MAX_X 4 /* activation rows at once */

struct tile {
        const uint8_t *code, *high, *scale, *super;
};

/* ---- shuffles ------------------------------------------------------------------- */

/* 8 vectors [l][pair][top] of g = 0..7: summed over l; *ret0 of pair 0 and *ret1 of pair 1, lane 2g + top. */
INLINE void sum_over_l(const __m512i p[8], __m512i *ret0, __m512i *ret1) {
        __m512i s[4], v[2];

        for (int i = 0; i < 4; i++)
                s[i] = _mm512_add_epi32(_mm512_shuffle_i32x4(p[2 * i], p[2 * i + 1], 0x44), _mm512_shuffle_i32x4(p[2 * i], p[2 * i + 1], 0xee));
        for (int i = 0; i < 2; i++)
                v[i] = _mm512_add_epi32(_mm512_shuffle_i32x4(s[2 * i], s[2 * i + 1], 0x88), _mm512_shuffle_i32x4(s[2 * i], s[2 * i + 1], 0xdd));
        *ret0 = _mm512_permutex2var_epi32(v[0], _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29), v[1]);
        *ret1 = _mm512_permutex2var_epi32(v[0], _mm512_setr_epi32(2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31), v[1]);
}

/* Lanes 2g + top back to rows g + 8 top. */
INLINE __m512 by_row(__m512 v) {
        return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15), v);
}

/* 32-bit words at p + lane * stride. */
INLINE __m512i words_at(const uint8_t *p, int stride) {
        __m512i at = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(stride));
        return _mm512_i32gather_epi32(at, p, 1);
}

INLINE __m512 half_low(__m512i v) {
        return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v));
}

INLINE __m512 half_high(__m512i v) {
        return half_low(_mm512_srli_epi32(v, 16));
}

/* 16 halves in lane order. */
INLINE __m512 halves(const uint8_t *p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

INLINE __m512i byte_of(__m512i v, int i) {
        return _mm512_and_si512(_mm512_srli_epi32(v, 8 * i), _mm512_set1_epi32(255));
}

INLINE __m512i sbyte_of(__m512i v, int i) {
        return _mm512_srai_epi32(_mm512_slli_epi32(v, 24 - 8 * i), 24);
}

/* ---- codes ---------------------------------------------------------------------- */

INLINE bool is_int(enum k_type t) {
        return t == K_Q2_K || t == K_Q3_K || t == K_Q4_K || t == K_Q5_K || t == K_Q6_K || t == K_IQ4_XS;
}
INLINE bool has_min(enum k_type t) { return t == K_Q2_K || t == K_Q4_K || t == K_Q5_K || t == K_Q4_1 || t == K_Q5_1; }
INLINE bool per16(enum k_type t) { return t == K_Q2_K || t == K_Q3_K || t == K_Q6_K; } /* scales per 16 columns */
INLINE int center(enum k_type t) {
        switch (t) {
        case K_Q4_0: return 8;
        case K_Q5_0: return 16;
        case K_Q6_K: return 32;
        case K_Q3_K: return 4;
        case K_Q8_0: case K_IQ4_NL: case K_IQ4_XS: return 128;
        case K_MXFP4: return 12;
        default: return 0;
        }
}

/* Two bits of [l][(kb >> 1) & 1][top] words for blocks 2c and 2c + 1: first halves in bits 0..1 of each byte, second in 2..3. */
INLINE __m512i two_bits(const uint8_t *plane, int c, int g) {
        __m512i v = _mm512_load_si512(plane + (size_t)((c >> 1) * 8 + g) * 64);
        v = c & 1 ? _mm512_shuffle_epi32(v, (_MM_PERM_ENUM)0xee) : _mm512_shuffle_epi32(v, (_MM_PERM_ENUM)0x44);
        return _mm512_srlv_epi32(v, _mm512_set4_epi32(4, 4, 0, 0));
}

/* One bit likewise, from [l][kb >> 2][top]: bit 0 of the first half, bit 1 of the second. */
INLINE __m512i one_bit(const uint8_t *plane, int c, int g) {
        __m512i v = _mm512_load_si512(plane + (size_t)g * 64);
        int s = 4 * (c & 1);
        v = c >> 1 ? _mm512_shuffle_epi32(v, (_MM_PERM_ENUM)0xee) : _mm512_shuffle_epi32(v, (_MM_PERM_ENUM)0x44);
        return _mm512_srlv_epi32(v, _mm512_set4_epi32(s + 2, s + 2, s, s));
}

INLINE __m512i table(enum k_type t) {
        const int8_t *lut = t == K_MXFP4 ? k_lut_e2m1 : k_lut_iq4;
        return _mm512_add_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)lut)), _mm512_set1_epi8((char)center(t)));
}

/* Unsigned codes of blocks 2c and 2c + 1 of rows g and g + 8, [l][kb & 1][top]; *lo the first halves. Not of 8 bits. */
INLINE void codes(enum k_type t, const struct tile *p, int c, int g, __m512i lut, __m512i *lo, __m512i *hi) {
        const __m512i m4 = _mm512_set1_epi8(15), m2 = _mm512_set1_epi8(3), m1 = _mm512_set1_epi8(1);
        __m512i a, b, h, v;

        if (t == K_Q2_K || t == K_Q3_K) {
                v = two_bits(p->code, c, g);
                a = _mm512_and_si512(v, m2);
                b = _mm512_and_si512(_mm512_srli_epi32(v, 2), m2);
        } else {
                v = _mm512_load_si512(p->code + (size_t)(c * 8 + g) * 64);
                a = _mm512_and_si512(v, m4);
                b = _mm512_and_si512(_mm512_srli_epi32(v, 4), m4);
        }
        switch (t) {
        case K_Q4_0:
                a = _mm512_xor_si512(a, _mm512_set1_epi8(8));
                b = _mm512_xor_si512(b, _mm512_set1_epi8(8));
                break;
        case K_Q5_0: case K_Q5_1: case K_Q5_K:
                h = one_bit(p->high, c, g);
                a = _mm512_or_si512(a, _mm512_slli_epi32(_mm512_and_si512(h, m1), 4));
                b = _mm512_or_si512(b, _mm512_slli_epi32(_mm512_and_si512(_mm512_srli_epi32(h, 1), m1), 4));
                if (t == K_Q5_0) {
                        a = _mm512_xor_si512(a, _mm512_set1_epi8(16));
                        b = _mm512_xor_si512(b, _mm512_set1_epi8(16));
                }
                break;
        case K_Q3_K:
                h = one_bit(p->high, c, g);
                a = _mm512_xor_si512(_mm512_or_si512(a, _mm512_slli_epi32(_mm512_and_si512(h, m1), 2)), _mm512_set1_epi8(4));
                b = _mm512_xor_si512(_mm512_or_si512(b, _mm512_slli_epi32(_mm512_and_si512(_mm512_srli_epi32(h, 1), m1), 2)),
                                     _mm512_set1_epi8(4));
                break;
        case K_Q6_K:
                h = two_bits(p->high, c, g);
                a = _mm512_xor_si512(_mm512_or_si512(a, _mm512_slli_epi32(_mm512_and_si512(h, m2), 4)), _mm512_set1_epi8(32));
                b = _mm512_xor_si512(_mm512_or_si512(b, _mm512_slli_epi32(_mm512_and_si512(_mm512_srli_epi32(h, 2), m2), 4)),
                                     _mm512_set1_epi8(32));
                break;
        case K_MXFP4: case K_IQ4_NL: case K_IQ4_XS:
                a = _mm512_shuffle_epi8(lut, a);
                b = _mm512_shuffle_epi8(lut, b);
                break;
        default:
                break;
        }
        *lo = a;
        *hi = b;
}

/* ---- sums of one pair of blocks --------------------------------------------------- */

struct sums { /* per activation row: of block 2c and 2c + 1; [1] the second halves where scales are per 16 */
        __m512i of[2][2];
};

/* Activations of two blocks, for both halves of the codes' words. 'one': the second block is behind the row's end. */
INLINE void activations(const int8_t *q, bool one, __m512i *lo, __m512i *hi) {
        __m512i v = one ? _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)q)) : _mm512_loadu_si512(q);

        *lo = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 8, 8, 1, 1, 9, 9, 2, 2, 10, 10, 3, 3, 11, 11), v);
        *hi = _mm512_permutexvar_epi32(_mm512_setr_epi32(4, 4, 12, 12, 5, 5, 13, 13, 6, 6, 14, 14, 7, 7, 15, 15), v);
}

INLINE void pair_sums(enum k_type t, const struct tile *p, int c, const struct k_image *im, uint32_t n, uint32_t col, bool one, __m512i lut,
                      struct sums *ret) {
        __m512i xl[MAX_X], xh[MAX_X], pl[MAX_X][8], ph[MAX_X][8], lo, hi;

        for (uint32_t x = 0; x < n; x++)
                activations(im[x].q + col, one, &xl[x], &xh[x]);
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) {
                codes(t, p, c, g, lut, &lo, &hi);
                for (uint32_t x = 0; x < n; x++) {
                        pl[x][g] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), lo, xl[x]);
                        if (per16(t))
                                ph[x][g] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), hi, xh[x]);
                        else
                                pl[x][g] = _mm512_dpbusd_epi32(pl[x][g], hi, xh[x]);
                }
        }
        for (uint32_t x = 0; x < n; x++) {
                sum_over_l(pl[x], &ret[x].of[0][0], &ret[x].of[1][0]);
                if (per16(t))
                        sum_over_l(ph[x], &ret[x].of[0][1], &ret[x].of[1][1]);
        }
}

/* 8 bits: a block's words are [l][half][top], so one block at a time. */
INLINE __m512i byte_sums(const struct tile *p, int kb, const int8_t *q) {
        __m512i v = _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)q)), s[8], a, b;
        __m512i x = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 4, 4, 1, 1, 5, 5, 2, 2, 6, 6, 3, 3, 7, 7), v);

#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) {
                __m512i w = _mm512_load_si512(p->code + (size_t)(kb * 8 + g) * 64);
                s[g] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_xor_si512(w, _mm512_set1_epi8((char)128)), x);
        }
        sum_over_l(s, &a, &b);
        return _mm512_add_epi32(a, b);
}

/* ---- kind 1: float scales per 32 ---------------------------------------------------- */

/* Scales and minima of block kb, in lane order. */
INLINE __m512 block_scale(enum k_type t, const struct tile *p, int kb) {
        if (t == K_MXFP4) {
                __m512i e = _mm512_and_si512(words_at(p->scale + kb, 8), _mm512_set1_epi32(255));
                __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e), big = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
                return _mm512_castsi512_ps(_mm512_mask_blend_epi32(_mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2)), big, small));
        }
        __m512i v = words_at(p->scale + (kb & ~1) * 2, t == K_Q4_1 || t == K_Q5_1 ? 32 : 16);
        return kb & 1 ? half_high(v) : half_low(v);
}

INLINE __m512 block_min(const struct tile *p, int kb) {
        __m512i v = words_at(p->scale + 16 + (kb & ~1) * 2, 32);
        return kb & 1 ? half_high(v) : half_low(v);
}

INLINE __m512 add_block(enum k_type t, __m512 acc, __m512i sum, const struct k_image *im, uint32_t b, __m512 d, __m512 m) {
        if (center(t))
                sum = _mm512_sub_epi32(sum, _mm512_set1_epi32(center(t) * (im->pair32[2 * b] + im->pair32[2 * b + 1])));
        acc = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(im->d[b])), d, acc);
        return has_min(t) ? _mm512_fmadd_ps(m, _mm512_set1_ps(im->sx[b]), acc) : acc;
}

INLINE void tile_float(enum k_type t, const struct tile *p, uint32_t b0, uint32_t n_block, const struct k_image *im, uint32_t n, __m512i lut,
                       __m512 *acc) {
        struct sums s[MAX_X];
        __m512 d, m = _mm512_setzero_ps();

        for (uint32_t kb = 0; kb < n_block; kb++) {
                if (t != K_Q8_0 && (kb & 1) == 0)
                        pair_sums(t, p, (int)kb >> 1, im, n, (b0 + kb) * 32, kb + 1 == n_block, lut, s);
                d = block_scale(t, p, (int)kb);
                if (has_min(t))
                        m = block_min(p, (int)kb);
                for (uint32_t x = 0; x < n; x++) {
                        __m512i v = t == K_Q8_0 ? byte_sums(p, (int)kb, im[x].q + (b0 + kb) * 32) : s[x].of[kb & 1][0];
                        acc[x] = add_block(t, acc[x], v, &im[x], b0 + kb, d, m);
                }
        }
}

/* ---- kind 2: integer scales under one float ------------------------------------------ */

struct super { /* of a tile's 16 rows */
        __m512i sc[16], mn[16]; /* per 16 or per 32 */
        __m512 d, m;
};

INLINE void super_k4(const struct tile *p, struct super *s) {
        __m512i head = words_at(p->scale, 16), a = words_at(p->scale + 4, 16), b = words_at(p->scale + 8, 16), c = words_at(p->scale + 12, 16);
        const __m512i six = _mm512_set1_epi32(63), four = _mm512_set1_epi32(15);

        s->d = half_low(head);
        s->m = half_high(head);
        for (int i = 0; i < 4; i++) {
                __m512i x = byte_of(a, i), y = byte_of(b, i), z = byte_of(c, i);
                s->sc[i] = _mm512_and_si512(x, six);
                s->mn[i] = _mm512_and_si512(y, six);
                s->sc[4 + i] = _mm512_or_si512(_mm512_and_si512(z, four), _mm512_slli_epi32(_mm512_srli_epi32(x, 6), 4));
                s->mn[4 + i] = _mm512_or_si512(_mm512_srli_epi32(z, 4), _mm512_slli_epi32(_mm512_srli_epi32(y, 6), 4));
        }
}

INLINE void super_of(enum k_type t, const struct tile *p, struct super *s) {
        if (t == K_Q4_K || t == K_Q5_K) {
                super_k4(p, s);
        } else if (t == K_IQ4_XS) {
                for (int i = 0; i < 2; i++) {
                        __m512i v = words_at(p->scale + 4 * i, 8);
                        for (int k = 0; k < 4; k++)
                                s->sc[4 * i + k] = sbyte_of(v, k);
                }
                s->d = halves(p->super);
        } else {
                for (int i = 0; i < 4; i++) {
                        __m512i v = words_at(p->scale + 4 * i, 16);
                        for (int k = 0; k < 4; k++) {
                                __m512i b = byte_of(v, k);
                                s->sc[4 * i + k] = t == K_Q2_K ? _mm512_and_si512(b, _mm512_set1_epi32(15)) : sbyte_of(v, k);
                                if (t == K_Q2_K)
                                        s->mn[4 * i + k] = _mm512_srli_epi32(b, 4);
                        }
                }
                if (t == K_Q2_K) {
                        __m512i v = _mm512_loadu_si512(p->super);
                        s->d = half_low(v);
                        s->m = half_high(v);
                } else {
                        s->d = halves(p->super);
                }
        }
        if (has_min(t))
                s->m = _mm512_sub_ps(_mm512_set1_ps(-0.0f), s->m); /* minima are subtracted */
}

INLINE __m512i off_center(enum k_type t, __m512i v, int sum) {
        return center(t) ? _mm512_sub_epi32(v, _mm512_set1_epi32(center(t) * sum)) : v;
}

INLINE void tile_int(enum k_type t, const struct tile *p, uint32_t sb, const struct k_image *im, uint32_t n, __m512i lut, __m512 *acc) {
        __m512i isum[MAX_X], imin;
        struct sums s[MAX_X];
        struct super u;

        super_of(t, p, &u);
        for (uint32_t x = 0; x < n; x++)
                isum[x] = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
                pair_sums(t, p, c, im, n, sb * 256 + (uint32_t)c * 64, false, lut, s);
                for (uint32_t x = 0; x < n; x++)
                        for (int b = 0; b < 2; b++) {
                                int kb = 2 * c + b;
                                if (!per16(t)) {
                                        isum[x] = _mm512_add_epi32(isum[x], _mm512_mullo_epi32(off_center(t, s[x].of[b][0], im[x].sum32[sb * 8 + kb]), u.sc[kb]));
                                        continue;
                                }
                                for (int h = 0; h < 2; h++)
                                        isum[x] = _mm512_add_epi32(isum[x], _mm512_mullo_epi32(off_center(t, s[x].of[b][h], im[x].sum16[sb * 16 + 2 * kb + h]),
                                                                                              u.sc[2 * kb + h]));
                        }
        }
        for (uint32_t x = 0; x < n; x++) {
                __m512 dx = _mm512_set1_ps(im[x].d[sb]);

                acc[x] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(isum[x]), dx), u.d, acc[x]);
                if (!has_min(t))
                        continue;
                imin = _mm512_setzero_si512();
                for (int i = 0; i < (per16(t) ? 16 : 8); i++)
                        imin = _mm512_add_epi32(imin, _mm512_mullo_epi32(u.mn[i], _mm512_set1_epi32(per16(t) ? im[x].sum16[sb * 16 + i]
                                                                                                             : im[x].sum32[sb * 8 + i])));
                acc[x] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(imin), dx), u.m, acc[x]);
        }
}

/* ---- tiles and panels --------------------------------------------------------------- */

/* A row group's tile of columns. */
INLINE struct tile tile_at(const struct k_cpu_gemm *job, const struct cuda_planes *pl, const struct cuda_plane_offsets *o, uint32_t row0,
                           uint32_t sb) {
        const uint8_t *base = k_gemm_weights(job);
        size_t tile = (size_t)(row0 / CUDA_TILE_ROWS) * DIV_ROUND_UP(job->w->cols, CUDA_TILE_COLS) + sb;

        return (struct tile){ base + o->code + tile * pl->code, base + o->high + tile * pl->high, base + o->scale + tile * pl->scale,
                              base + o->super + tile * pl->super };
}

/* Vectors [l][pair][top] of g = 0..7 to steps of a panel, rows g + 8 top in order: vector l of pair i at dst + i * pair + 64 l. */
INLINE void turn(const __m512i v[8], uint8_t *dst, size_t pair) {
        __m512i a[2][4], b[2][2][2]; /* [pair][g / 2], [pair][top][g / 4] */

#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
                a[0][i] = _mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
                a[1][i] = _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
        }
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
#pragma GCC unroll 2
                for (int h = 0; h < 2; h++) {
                        b[i][0][h] = _mm512_unpacklo_epi64(a[i][2 * h], a[i][2 * h + 1]);
                        b[i][1][h] = _mm512_unpackhi_epi64(a[i][2 * h], a[i][2 * h + 1]);
                }
                __m512i x0 = _mm512_shuffle_i32x4(b[i][0][0], b[i][0][1], 0x44), x1 = _mm512_shuffle_i32x4(b[i][0][0], b[i][0][1], 0xee);
                __m512i y0 = _mm512_shuffle_i32x4(b[i][1][0], b[i][1][1], 0x44), y1 = _mm512_shuffle_i32x4(b[i][1][0], b[i][1][1], 0xee);
                _mm512_storeu_si512(dst + i * pair, _mm512_shuffle_i32x4(x0, y0, 0x88));
                _mm512_storeu_si512(dst + i * pair + 64, _mm512_shuffle_i32x4(x0, y0, 0xdd));
                _mm512_storeu_si512(dst + i * pair + 128, _mm512_shuffle_i32x4(x1, y1, 0x88));
                _mm512_storeu_si512(dst + i * pair + 192, _mm512_shuffle_i32x4(x1, y1, 0xdd));
        }
}

INLINE __m512i ints_by_row(__m512i v) {
        return _mm512_castps_si512(by_row(_mm512_castsi512_ps(v)));
}

/* Lanes of 16 bits to two of them. */
INLINE __m512i both(__m512i low, __m512i high) {
        return ints_by_row(_mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi32(0xffff)), _mm512_slli_epi32(high, 16)));
}

INLINE void panel_codes(enum k_type t, const struct tile *p, __m512i lut, uint8_t *q) {
        const __m512i top = _mm512_set1_epi8((char)128);
        __m512i lo[8], hi[8];

        if (t == K_Q8_0) {
                for (int kb = 0; kb < 8; kb++) { /* [l][half][top] */
                        for (int g = 0; g < 8; g++)
                                lo[g] = _mm512_load_si512(p->code + (size_t)(kb * 8 + g) * 64);
                        turn(lo, q + 512 * kb, 256);
                }
                return;
        }
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) { /* [l][block of two][top] */
#pragma GCC unroll 8
                for (int g = 0; g < 8; g++) {
                        codes(t, p, c, g, lut, &lo[g], &hi[g]);
                        if (center(t) == 128) { /* a panel's codes of 8 bits are signed */
                                lo[g] = _mm512_xor_si512(lo[g], top);
                                hi[g] = _mm512_xor_si512(hi[g], top);
                        }
                }
                turn(lo, q + 1024 * c, 512);
                turn(hi, q + 1024 * c + 256, 512);
        }
}

INLINE void panel(enum k_type t, const struct tile *p, struct k_panel *ret) {
        __m512i lut = t == K_MXFP4 || t == K_IQ4_NL || t == K_IQ4_XS ? table(t) : _mm512_setzero_si512();
        struct super s;

        panel_codes(t, p, lut, ret->q);
        if (!is_int(t)) {
                for (int kb = 0; kb < 8; kb++) {
                        _mm512_storeu_ps(ret->d[kb], by_row(block_scale(t, p, kb)));
                        if (has_min(t))
                                _mm512_storeu_ps(ret->m[kb], by_row(block_min(p, kb)));
                }
                return;
        }
        super_of(t, p, &s);
        _mm512_storeu_ps(ret->d0, by_row(s.d));
        for (int g = 0; g < 16; g++) {
                int i = per16(t) ? g : g / 2;
                if (per16(t) || t == K_Q5_K) /* as k_panel_from_file() has it */
                        _mm512_storeu_si512(ret->sc[g], both(s.sc[i], s.sc[i]));
                else if (g % 2 == 0)
                        _mm512_storeu_si512(ret->sc[i], both(s.sc[i], s.sc[i]));
        }
        if (has_min(t)) {
                _mm512_storeu_ps(ret->m0, by_row(s.m));
                for (int k = 0; k < (per16(t) ? 8 : 4); k++)
                        _mm512_storeu_si512(ret->mn[k], both(s.mn[2 * k], s.mn[2 * k + 1]));
        }
}

/* ---- rows ------------------------------------------------------------------------- */

/* 16 rows for n activation rows. */
INLINE void group(enum k_type t, const struct k_cpu_gemm *job, const struct cuda_planes *pl, const struct cuda_plane_offsets *o, uint32_t row0,
                  uint32_t x0, uint32_t n) {
        uint32_t cols = job->w->cols, n_sb = DIV_ROUND_UP(cols, CUDA_TILE_COLS), kind = is_int(t) ? 2 : 1;
        size_t stride = k_cpu_image_stride(kind, cols);
        struct tile p = tile_at(job, pl, o, row0, 0);
        __m512i lut = t == K_MXFP4 || t == K_IQ4_NL || t == K_IQ4_XS ? table(t) : _mm512_setzero_si512();
        struct k_image im[MAX_X];
        __m512 acc[MAX_X];
        float out[16];

        for (uint32_t x = 0; x < n; x++) {
                im[x] = k_image_at(kind, k_gemm_xq(job, stride, x0 + x), cols);
                acc[x] = _mm512_setzero_ps();
        }
        for (uint32_t sb = 0; sb < n_sb; sb++) {
                for (uint32_t i = 0; i < pl->code; i += 64)
                        _mm_prefetch((const char *)p.code + 2 * (size_t)pl->code + i, _MM_HINT_T0);
                if (is_int(t))
                        tile_int(t, &p, sb, im, n, lut, acc);
                else
                        tile_float(t, &p, sb * 8, MIN(cols / 32 - sb * 8, 8u), im, n, lut, acc);
                p.code += pl->code;
                p.high += pl->high;
                p.scale += pl->scale;
                p.super += pl->super;
        }
        for (uint32_t x = 0; x < n; x++) {
                _mm512_storeu_ps(out, by_row(acc[x]));
                k_gemm_store(job, x0 + x, row0, MIN(job->w->rows - row0, 16u), out);
        }
}

INLINE void rows_of(enum k_type t, const struct k_cpu_gemm *job, uint32_t row0, uint32_t row1) {
        struct cuda_plane_offsets o;
        struct cuda_planes pl;

        (void)cuda_layout_planes(t, &pl);
        cuda_layout_offsets(t, job->w->rows, job->w->cols, &o);
        for (uint32_t r = row0; r < row1; r += CUDA_TILE_ROWS) {
                uint32_t x = 0;

                for (; x + MAX_X <= job->n; x += MAX_X)
                        group(t, job, &pl, &o, r, x, MAX_X);
                for (; x < job->n; x++)
                        group(t, job, &pl, &o, r, x, 1);
        }
}

INLINE void panel_of(enum k_type t, const struct k_cpu_gemm *job, uint32_t row0, uint32_t piece, struct k_panel *ret) {
        struct cuda_plane_offsets o;
        struct cuda_planes pl;
        struct tile p;

        (void)cuda_layout_planes(t, &pl);
        cuda_layout_offsets(t, job->w->rows, job->w->cols, &o);
        p = tile_at(job, &pl, &o, row0, piece);
        panel(t, &p, ret);
}

#define TYPE(t)                                                                                                \
        static __attribute__((noinline)) void panel_##t(const struct k_cpu_gemm *job, uint32_t row0, uint32_t piece, struct k_panel *ret) { \
                panel_of(K_##t, job, row0, piece, ret);                                                        \
        }                                                                                                      \
        static __attribute__((noinline)) void rows_##t(const struct k_cpu_gemm *job, uint32_t row0, uint32_t row1) { \
                rows_of(K_##t, job, row0, row1);                                                               \
        }
TYPE(Q4_0) TYPE(Q4_1) TYPE(Q5_0) TYPE(Q5_1) TYPE(Q8_0) TYPE(MXFP4) TYPE(IQ4_NL) TYPE(IQ4_XS) TYPE(Q2_K) TYPE(Q3_K) TYPE(Q4_K) TYPE(Q5_K)
TYPE(Q6_K)
#undef TYPE

bool k_planes_avx512(const struct k_cpu_gemm *job, uint32_t kind, uint32_t row0, uint32_t row1) {
        if (kind == 0 || row0 % CUDA_TILE_ROWS)
                return false;
        switch (job->w->type) {
#define TYPE(t) case K_##t: rows_##t(job, row0, row1); return true;
        TYPE(Q4_0) TYPE(Q4_1) TYPE(Q5_0) TYPE(Q5_1) TYPE(Q8_0) TYPE(MXFP4) TYPE(IQ4_NL) TYPE(IQ4_XS) TYPE(Q2_K) TYPE(Q3_K) TYPE(Q4_K)
        TYPE(Q5_K) TYPE(Q6_K)
#undef TYPE
        default:
                return false;
        }
}

bool k_planes_has(enum k_type t) {
        switch (t) {
#define TYPE(t) case K_##t:
        TYPE(Q4_0) TYPE(Q4_1) TYPE(Q5_0) TYPE(Q5_1) TYPE(Q8_0) TYPE(MXFP4) TYPE(IQ4_NL) TYPE(IQ4_XS) TYPE(Q2_K) TYPE(Q3_K) TYPE(Q4_K)
        TYPE(Q5_K) TYPE(Q6_K)
#undef TYPE
                return true;
        default:
                return false;
        }
}

void k_planes_panel(const struct k_cpu_gemm *job, uint32_t row0, uint32_t piece, struct k_panel *ret) {
        switch (job->w->type) {
#define TYPE(t) case K_##t: panel_##t(job, row0, piece, ret); return;
        TYPE(Q4_0) TYPE(Q4_1) TYPE(Q5_0) TYPE(Q5_1) TYPE(Q8_0) TYPE(MXFP4) TYPE(IQ4_NL) TYPE(IQ4_XS) TYPE(Q2_K) TYPE(Q3_K) TYPE(Q4_K)
        TYPE(Q5_K) TYPE(Q6_K)
#undef TYPE
        default: /* k_planes_has() was asked */
                return;
        }
}
