/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Products of few tokens with the lattice types (IQ1, IQ2, IQ3), with AVX2. For
 * these a panel costs more than it saves: a row's weights, 32 columns at a time
 * as unpack_iq_avx2.h has them, meet the one or two rows of activations
 * where they are. Lanes are columns here; a block's eight lanes of eight rows are
 * added across once, and from there on lanes are rows, as everywhere.
 *
 * Magnitudes are unsigned: a token's signs are changed instead. Sums of two
 * products are at most 2 * 62 * 127 and meet their integer scale (at most 31)
 * in 32 bits. IQ1's codes lie 7 or 9 above their values; that many sums of
 * the activations, times the scales, are where a row's sum begins.
 */

#include "kernels/cpu/unpack_iq_avx2.h"

#define FEW 2u /* tokens up to which there is no panel; measured, see docs/kernels/cpu-linear.md */

struct few_token {
        const int8_t *q;
        const int16_t *sum16, *sum32;
        const float *d;
};

/* What a row's sum of this token begins with. */
INLINE __m256i few_start(enum k_type t, const uint8_t *b, const struct iq_block *block, const struct few_token *x) {
        if (t == K_IQ1_S) { /* 32 columns are an eighth less or more: they lie 9 or 7 too high */
                __m256i less = _mm256_srli_epi32(_mm256_cvtepu16_epi32(load128(b + 34)), 15);
                __m256i off = _mm256_sub_epi32(_mm256_set1_epi32(-7), _mm256_slli_epi32(less, 1));
                __m256i sum = _mm256_and_si256(_mm256_cvtepi16_epi32(load128(x->sum32)), _mm256_set1_epi32(0xffff));
                return _mm256_madd_epi16(_mm256_mullo_epi16(load256(block->sc), off), sum);
        }
        if (t == K_IQ1_M) {
                const __m256i low = _mm256_set1_epi32(0xffff);
                __m256i sc = _mm256_packus_epi32(_mm256_and_si256(load256(block->sc), low), _mm256_and_si256(load256(block->sc + 8), low));
                sc = _mm256_permute4x64_epi64(_mm256_mullo_epi16(sc, _mm256_set1_epi16(-9)), 0xd8);
                return _mm256_madd_epi16(sc, load256(x->sum16));
        }
        return _mm256_setzero_si256();
}

INLINE __m256i few_scale(enum k_type t, const struct iq_block *block, unsigned j) {
        double two;

        if (!iq_per16(t))
                return _mm256_set1_epi32((int)block->sc[j]);
        memcpy(&two, block->sc + 2 * j, sizeof(two));
        return _mm256_castps_si256(_mm256_permutevar_ps(_mm256_castpd_ps(_mm256_set1_pd(two)), _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1)));
}

/* One row's block with T tokens. */
INLINE void few_block(enum k_type t, unsigned T, const uint8_t *b, const struct few_token *x, __m256i sum[FEW]) {
        struct iq_block block;

        iq_prepare(t, b, &block);
#pragma GCC unroll 2
        for (unsigned k = 0; k < T; k++)
                sum[k] = few_start(t, b, &block, &x[k]);
#pragma GCC unroll 2
        for (unsigned j = 0; j < 8; j++) {
                const __m256i v = iq_32(t, b, &block, j), sc = few_scale(t, &block, j);
                const __m256i s = iq_is_1(t) ? sc : iq_signs(block.signs[j]);
#pragma GCC unroll 2
                for (unsigned k = 0; k < T; k++) {
                        __m256i q = load256(x[k].q + 32 * j);
                        if (!iq_is_1(t))
                                q = _mm256_sign_epi8(q, s);
                        sum[k] = _mm256_add_epi32(sum[k], _mm256_madd_epi16(_mm256_maddubs_epi16(v, q), sc));
                }
        }
}

/* Lanes of eight vectors added up, a vector's sum in its lane. */
INLINE __m256i across8(const __m256i v[8]) {
        __m256i lo = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
        __m256i hi = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
        return _mm256_add_epi32(_mm256_permute2x128_si256(lo, hi, 0x20), _mm256_permute2x128_si256(lo, hi, 0x31));
}

/* Eight rows, those from n on the last once more, with a job's T tokens. */
INLINE void few_rows(enum k_type t, unsigned T, const struct k_cpu_gemm *job, size_t stride, uint32_t row0, uint32_t n) {
        const struct k_weight *w = job->w;
        const size_t bytes = k_type_bytes(t), row_bytes = w->cols / 256 * bytes;
        const uint8_t *b[8];
        struct few_token x[FEW];
        __m256 acc[FEW];
        __m256i sum[FEW][8], one[FEW];

        for (unsigned r = 0; r < 8; r++)
                b[r] = k_gemm_weights(job) + (row0 + MIN(r, n - 1)) * row_bytes;
        for (unsigned k = 0; k < T; k++) {
                struct k_image im = k_image_at(K_CODES_INT, k_gemm_xq(job, stride, k), w->cols);
                x[k] = (struct few_token){ im.q, im.sum16, im.sum32, im.d };
                acc[k] = _mm256_setzero_ps();
        }
        for (uint32_t col = 0; col < w->cols; col += 256) {
                for (unsigned r = 0; r < 8; r++) {
                        _mm_prefetch((const char *)b[r] + 8 * row_bytes, _MM_HINT_T0); /* the next eight rows */
                        if (bytes > 64)
                                _mm_prefetch((const char *)b[r] + 8 * row_bytes + 64, _MM_HINT_T0);
                        few_block(t, T, b[r], x, one);
#pragma GCC unroll 2
                        for (unsigned k = 0; k < T; k++)
                                sum[k][r] = one[k];
                }
                const __m256 d = iq_d(t, b);
#pragma GCC unroll 2
                for (unsigned k = 0; k < T; k++) {
                        acc[k] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(across8(sum[k])), _mm256_broadcast_ss(x[k].d)), d, acc[k]);
                        x[k] = (struct few_token){ x[k].q + 256, x[k].sum16 + 16, x[k].sum32 + 8, x[k].d + 1 };
                }
                for (unsigned r = 0; r < 8; r++)
                        b[r] += bytes;
        }
        for (unsigned k = 0; k < T; k++) {
                float y[8];
                _mm256_storeu_ps(y, acc[k]);
                k_gemm_store(job, k, row0, n, y);
        }
}

INLINE void few_type(enum k_type t, const struct k_cpu_gemm *job, uint32_t row0, uint32_t row1) {
        const size_t stride = k_cpu_image_stride(K_CODES_INT, job->w->cols);

        for (uint32_t r = row0; r < row1; r += 8)
                if (job->n == 1)
                        few_rows(t, 1, job, stride, r, MIN(row1 - r, 8u));
                else
                        few_rows(t, 2, job, stride, r, MIN(row1 - r, 8u));
}

/* Rows [row0, row1) of a job whose type is_lattice() and whose tokens are one to FEW. */
static inline void rows_few(const struct k_cpu_gemm *job, uint32_t row0, uint32_t row1) {
        switch ((int)job->w->type) {
        case K_IQ1_S: few_type(K_IQ1_S, job, row0, row1); break;
        case K_IQ1_M: few_type(K_IQ1_M, job, row0, row1); break;
        case K_IQ2_XXS: few_type(K_IQ2_XXS, job, row0, row1); break;
        case K_IQ2_XS: few_type(K_IQ2_XS, job, row0, row1); break;
        case K_IQ2_S: few_type(K_IQ2_S, job, row0, row1); break;
        case K_IQ3_XXS: few_type(K_IQ3_XXS, job, row0, row1); break;
        default: few_type(K_IQ3_S, job, row0, row1); break;
        }
}
