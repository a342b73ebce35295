/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Vectors of floats of the width this file is compiled for: 16 (AVX-512), 8
 * (AVX2 + FMA + F16C) or 4 (anything, through compiler vectors). Included only
 * by the templates of vec_<isa>.c. Only operations whose result is defined per
 * lane are used, so a lane's bits do not depend on its neighbours.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__)

#define VW 16
typedef __m512 vf;
typedef __m512i vi;
static inline vf vf_set1(float x) { return _mm512_set1_ps(x); }
static inline vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
static inline vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf vf_round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf vf_pow2(vf k) { /* 2^k for integral k in [-126, 127] */
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(k), _mm512_set1_epi32(127)), 23));
}
/* lo <= x && x < hi ? a : b, by comparing floats */
static inline vf vf_between(vf x, vf lo, vf hi, vf a, vf b) {
        return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, lo, _CMP_GE_OQ) & _mm512_cmp_ps_mask(x, hi, _CMP_LT_OQ), b, a);
}
static inline float vf_sum(vf x) { return _mm512_reduce_add_ps(x); }
static inline float vf_top(vf x) { return _mm512_reduce_max_ps(x); }
static inline vf vf_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)); }
static inline void vf_store_f16(uint16_t *p, vf x) {
        _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline vf vf_load_bf16(const uint16_t *p) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16));
}
static inline vf vf_load_i8(const int8_t *p) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
}
/* Sums of four vectors. */
static inline void vf_sum4(float *p, vf a, vf b, vf c, vf d) {
        p[0] = vf_sum(a);
        p[1] = vf_sum(b);
        p[2] = vf_sum(c);
        p[3] = vf_sum(d);
}
#define VF_F16 1

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#define VW 8
typedef __m256 vf;
static inline vf vf_set1(float x) { return _mm256_set1_ps(x); }
static inline vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
static inline vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf vf_round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf vf_pow2(vf k) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(k), _mm256_set1_epi32(127)), 23));
}
static inline vf vf_between(vf x, vf lo, vf hi, vf a, vf b) {
        return _mm256_blendv_ps(b, a, _mm256_and_ps(_mm256_cmp_ps(x, lo, _CMP_GE_OQ), _mm256_cmp_ps(x, hi, _CMP_LT_OQ)));
}
static inline float vf_sum(vf x) {
        __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline float vf_top(vf x) {
        __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        s = _mm_max_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
static inline vf vf_load_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p)); }
static inline void vf_store_f16(uint16_t *p, vf x) {
        _mm_storeu_si128((void *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline vf vf_load_bf16(const uint16_t *p) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}
static inline vf vf_load_i8(const int8_t *p) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
}
static inline void vf_sum4(float *p, vf a, vf b, vf c, vf d) {
        vf h = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
        _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1)));
}
#define VF_F16 1

#else

#define VW 4
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
static inline vf vf_set1(float x) { return (vf){ x, x, x, x }; }
static inline vf vf_load(const float *p) { vf v; memcpy(&v, p, sizeof(v)); return v; }
static inline void vf_store(float *p, vf x) { memcpy(p, &x, sizeof(x)); }
static inline vf vf_add(vf a, vf b) { return a + b; }
static inline vf vf_sub(vf a, vf b) { return a - b; }
static inline vf vf_mul(vf a, vf b) { return a * b; }
static inline vf vf_div(vf a, vf b) { return a / b; }
static inline vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
static inline vf vf_pick(vi m, vf a, vf b) { return (vf)(((vi)a & m) | ((vi)b & ~m)); }
static inline vf vf_max(vf a, vf b) { return vf_pick(a > b, a, b); }
static inline vf vf_min(vf a, vf b) { return vf_pick(a < b, a, b); }
static inline vf vf_round(vf a) { /* |a| < 2^22 */
        const vf m = vf_set1(12582912.0f);
        return a + m - m;
}
static inline vf vf_pow2(vf k) {
        vi i = { (int32_t)k[0], (int32_t)k[1], (int32_t)k[2], (int32_t)k[3] };
        return (vf)((i + 127) << 23);
}
static inline vf vf_between(vf x, vf lo, vf hi, vf a, vf b) { return vf_pick((x >= lo) & (x < hi), a, b); }
static inline float vf_sum(vf x) { return (x[0] + x[2]) + (x[1] + x[3]); }
static inline float vf_top(vf x) { vf y = vf_max(x, (vf){ x[2], x[3], x[2], x[3] }); return y[0] > y[1] ? y[0] : y[1]; }
static inline vf vf_load_bf16(const uint16_t *p) {
        vi i = { (int32_t)((uint32_t)p[0] << 16), (int32_t)((uint32_t)p[1] << 16), (int32_t)((uint32_t)p[2] << 16),
                 (int32_t)((uint32_t)p[3] << 16) };
        return (vf)i;
}
static inline vf vf_load_i8(const int8_t *p) { return (vf){ p[0], p[1], p[2], p[3] }; }
static inline void vf_sum4(float *p, vf a, vf b, vf c, vf d) {
        p[0] = vf_sum(a);
        p[1] = vf_sum(b);
        p[2] = vf_sum(c);
        p[3] = vf_sum(d);
}
#define VF_F16 0

#endif

/*
 * exp: x = k ln 2 + r with |r| <= ln 2 / 2 (two-part ln 2), e^r by its Taylor
 * polynomial of degree 7 (error below 1 ulp of float), times 2^k. Saturates at
 * the ends of the float range: below -87.3 the result is 0.
 */
static inline vf vf_exp(vf x) {
        const vf lo = vf_set1(-87.336544f), hi = vf_set1(88.722f);
        vf c = vf_min(vf_max(x, lo), hi);
        vf k = vf_min(vf_round(vf_mul(c, vf_set1(1.44269504f))), vf_set1(127.0f));
        vf r = vf_fma(k, vf_set1(-0.693359375f), c);
        vf p;

        r = vf_fma(k, vf_set1(2.12194440e-4f), r);
        p = vf_fma(vf_set1(1.98412698e-4f), r, vf_set1(1.38888889e-3f));
        p = vf_fma(p, r, vf_set1(8.33333333e-3f));
        p = vf_fma(p, r, vf_set1(4.16666667e-2f));
        p = vf_fma(p, r, vf_set1(1.66666667e-1f));
        p = vf_fma(p, r, vf_set1(0.5f));
        p = vf_fma(p, r, vf_set1(1.0f));
        p = vf_fma(p, r, vf_set1(1.0f));
        p = vf_mul(p, vf_pow2(vf_max(k, vf_set1(-126.0f))));
        return vf_between(x, vf_set1(-INFINITY), lo, vf_set1(0.0f), p);
}

static inline vf vf_sigmoid(vf x) {
        vf one = vf_set1(1.0f);
        return vf_div(one, vf_add(one, vf_exp(vf_sub(vf_set1(0.0f), x))));
}

/* tanh(x) = 1 - 2 / (e^2x + 1); for |x| < 0.3 the odd Taylor polynomial, where that would cancel. */
static inline vf vf_tanh(vf x) {
        vf one = vf_set1(1.0f), y = vf_mul(x, x);
        vf big = vf_sub(one, vf_div(vf_set1(2.0f), vf_add(vf_exp(vf_add(x, x)), one)));
        vf p = vf_fma(vf_set1(-8.863235529902197e-3f), y, vf_set1(2.186948853615520e-2f));

        p = vf_fma(p, y, vf_set1(-5.396825396825397e-2f));
        p = vf_fma(p, y, vf_set1(1.333333333333333e-1f));
        p = vf_fma(p, y, vf_set1(-3.333333333333333e-1f));
        p = vf_fma(vf_mul(p, y), x, x);
        return vf_between(x, vf_set1(-0.3f), vf_set1(0.3f), p, big);
}
