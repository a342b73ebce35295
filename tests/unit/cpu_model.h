/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The AVX-512 and AMX instructions that kernels/cpu uses, in plain C, bit for bit as Intel's manual states them: with
 * this file included before theirs, the same sources run, and are tested, on any processor with AVX2. A tile
 * instruction that the processor would refuse ends the program.
 */

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Calls, not inlined: thousands of them would take a compiler minutes. */
#define MODEL static __attribute__((noinline, unused))

union model {
        __m512i i;
        __m512 f;
        uint8_t b[64];
        int8_t sb[64];
        uint16_t h[32];
        int16_t sh[32];
        uint32_t w[16];
        int32_t sw[16];
        uint64_t q[8];
        float s[16];
};

/* r.lane of x.i, y.i */
#define MODEL_1(name, lane, n, expr) \
        MODEL __m512i name(__m512i a) { union model x = { .i = a }, r; for (int k = 0; k < (n); k++) r.lane[k] = (expr); return r.i; }
#define MODEL_2(name, lane, n, expr) \
        MODEL __m512i name(__m512i a, __m512i c) { union model x = { .i = a }, y = { .i = c }, r; for (int k = 0; k < (n); k++) r.lane[k] = (expr); return r.i; }
#define MODEL_SHIFT(name, lane, n, expr) \
        MODEL __m512i name(__m512i a, unsigned c) { union model x = { .i = a }, r; for (int k = 0; k < (n); k++) r.lane[k] = (expr); return r.i; }
#define MODEL_SET(name, type, lane, n) \
        MODEL __m512i name(type v) { union model r; for (int k = 0; k < (n); k++) r.lane[k] = v; return r.i; }

MODEL_2(model_and, q, 8, x.q[k] & y.q[k])
MODEL_2(model_or, q, 8, x.q[k] | y.q[k])
MODEL_2(model_xor, q, 8, x.q[k] ^ y.q[k])
MODEL_2(model_add8, b, 64, (uint8_t)(x.b[k] + y.b[k]))
MODEL_2(model_sub8, b, 64, (uint8_t)(x.b[k] - y.b[k]))
MODEL_2(model_sub16, h, 32, (uint16_t)(x.h[k] - y.h[k]))
MODEL_2(model_mullo16, h, 32, (uint16_t)((uint32_t)x.h[k] * y.h[k]))
MODEL_2(model_add32, w, 16, x.w[k] + y.w[k])
MODEL_2(model_sub32, w, 16, x.w[k] - y.w[k])
MODEL_2(model_mullo32, w, 16, x.w[k] * y.w[k])
MODEL_2(model_madd16, w, 16, (uint32_t)(x.sh[2 * k] * y.sh[2 * k]) + (uint32_t)(x.sh[2 * k + 1] * y.sh[2 * k + 1]))
MODEL_2(model_srlv32, w, 16, y.w[k] < 32 ? x.w[k] >> y.w[k] : 0)
MODEL_2(model_sllv32, w, 16, y.w[k] < 32 ? x.w[k] << y.w[k] : 0)
MODEL_2(model_srlv64, q, 8, y.q[k] < 64 ? x.q[k] >> y.q[k] : 0)
MODEL_2(model_shuffle8, b, 64, y.b[k] & 128 ? 0 : x.b[k / 16 * 16 + (y.b[k] & 15)])
MODEL_2(model_permute32, w, 16, y.w[x.w[k] & 15])
MODEL_2(model_unpacklo32, w, 16, (k % 2 ? y : x).w[k / 4 * 4 + k % 4 / 2])
MODEL_2(model_unpackhi32, w, 16, (k % 2 ? y : x).w[k / 4 * 4 + 2 + k % 4 / 2])
MODEL_2(model_unpacklo64, q, 8, (k % 2 ? y : x).q[k / 2 * 2])
MODEL_2(model_unpackhi64, q, 8, (k % 2 ? y : x).q[k / 2 * 2 + 1])
MODEL_SHIFT(model_slli16, h, 32, (uint16_t)(x.h[k] << c))
MODEL_SHIFT(model_srli16, h, 32, (uint16_t)(x.h[k] >> c))
MODEL_SHIFT(model_srai16, sh, 32, (int16_t)(x.sh[k] >> c))
MODEL_SHIFT(model_slli32, w, 16, x.w[k] << c)
MODEL_SHIFT(model_srli32, w, 16, x.w[k] >> c)
MODEL_SHIFT(model_srai32, sw, 16, x.sw[k] >> c)
MODEL_SHIFT(model_slli64, q, 8, x.q[k] << c)
MODEL_SHIFT(model_shuffle32, w, 16, x.w[k / 4 * 4 + (c >> k % 4 * 2 & 3)])
MODEL_SET(model_set8, int8_t, sb, 64)
MODEL_SET(model_set16, int16_t, sh, 32)
MODEL_SET(model_set32, int32_t, sw, 16)

MODEL __m512i model_setr32(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l, int m, int n, int o, int p) {
        union model r = { .sw = { a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p } };
        return r.i;
}

MODEL __m512i model_setr64(long long a, long long b, long long c, long long d, long long e, long long f, long long g, long long h) {
        union model r = { .q = { (uint64_t)a, (uint64_t)b, (uint64_t)c, (uint64_t)d, (uint64_t)e, (uint64_t)f, (uint64_t)g, (uint64_t)h } };
        return r.i;
}

MODEL __m512i model_load(const void *p) {
        union model r;
        memcpy(&r, p, 64);
        return r.i;
}

MODEL __m512i model_load_aligned(const void *p) {
        if ((uintptr_t)p % 64)
                abort();
        return model_load(p);
}

MODEL void model_store(void *p, __m512i v) {
        memcpy(p, &v, 64);
}

MODEL void model_store_aligned(void *p, __m512i v) {
        if ((uintptr_t)p % 64)
                abort();
        memcpy(p, &v, 64);
}

MODEL __m512 model_load_ps(const void *p) {
        union model r;
        memcpy(&r, p, 64);
        return r.f;
}

MODEL void model_store_ps(void *p, __m512 v) {
        memcpy(p, &v, 64);
}

MODEL __m512i model_zero(void) {
        return model_set32(0);
}

MODEL __m512 model_set_ps(float v) {
        union model r;
        for (int k = 0; k < 16; k++)
                r.s[k] = v;
        return r.f;
}

MODEL __m512i model_gather32(__m512i at, const void *base, int scale) {
        union model x = { .i = at }, r;
        for (int k = 0; k < 16; k++)
                memcpy(&r.w[k], (const uint8_t *)base + (ptrdiff_t)x.sw[k] * scale, 4);
        return r.i;
}

MODEL __m512i model_permute2_32(__m512i a, __m512i at, __m512i c) {
        union model x = { .i = a }, y = { .i = c }, t = { .i = at }, r;
        for (int k = 0; k < 16; k++)
                r.w[k] = (t.w[k] & 16 ? y : x).w[t.w[k] & 15];
        return r.i;
}

MODEL __m512i model_shuffle128(__m512i a, __m512i c, unsigned at) {
        union model x = { .i = a }, y = { .i = c }, r;
        for (int k = 0; k < 4; k++)
                memcpy(r.b + 16 * k, (k < 2 ? x : y).b + 16 * (at >> 2 * k & 3), 16);
        return r.i;
}

MODEL __m512i model_blend8(uint64_t mask, __m512i a, __m512i c) {
        union model x = { .i = a }, y = { .i = c }, r;
        for (int k = 0; k < 64; k++)
                r.b[k] = mask >> k & 1 ? y.b[k] : x.b[k];
        return r.i;
}

MODEL __m512i model_blend32(uint16_t mask, __m512i a, __m512i c) {
        union model x = { .i = a }, y = { .i = c }, r;
        for (int k = 0; k < 16; k++)
                r.w[k] = mask >> k & 1 ? y.w[k] : x.w[k];
        return r.i;
}

MODEL uint16_t model_less32(__m512i a, __m512i c) {
        union model x = { .i = a }, y = { .i = c };
        unsigned r = 0;
        for (int k = 0; k < 16; k++)
                r |= (unsigned)(x.w[k] < y.w[k]) << k;
        return (uint16_t)r;
}

MODEL __m512i model_twice256(__m256i v) {
        union model r;
        memcpy(r.b, &v, 32);
        memcpy(r.b + 32, &v, 32);
        return r.i;
}

MODEL __m512i model_low256(__m256i v) {
        union model r = { .q = { 0 } };
        memcpy(r.b, &v, 32);
        return r.i;
}

MODEL __m512i model_times128(__m128i v) {
        union model r;
        for (int k = 0; k < 4; k++)
                memcpy(r.b + 16 * k, &v, 16);
        return r.i;
}

MODEL __m256i model_low16(__m512i a) {
        union model x = { .i = a };
        int16_t r[16];
        __m256i v;
        for (int k = 0; k < 16; k++)
                r[k] = (int16_t)x.sw[k];
        memcpy(&v, r, 32);
        return v;
}

MODEL __m512 model_half(__m256i v) {
        union model r;
        _mm256_storeu_ps(r.s, _mm256_cvtph_ps(_mm256_castsi256_si128(v)));
        _mm256_storeu_ps(r.s + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1)));
        return r.f;
}

/* Unsigned bytes of a, signed ones of c. */
MODEL __m512i model_dpbusd(__m512i sum, __m512i a, __m512i c) {
        union model r = { .i = sum }, x = { .i = a }, y = { .i = c };
        for (int k = 0; k < 64; k++)
                r.w[k / 4] += (uint32_t)(x.b[k] * y.sb[k]);
        return r.i;
}

MODEL __m512i model_dpwssd(__m512i sum, __m512i a, __m512i c) {
        return model_add32(sum, model_madd16(a, c));
}

MODEL __m512 model_float(__m512i a) {
        union model x = { .i = a }, r;
        for (int k = 0; k < 16; k++)
                r.s[k] = (float)x.sw[k];
        return r.f;
}

MODEL __m512 model_mul_ps(__m512 a, __m512 c) {
        union model x = { .f = a }, y = { .f = c }, r;
        for (int k = 0; k < 16; k++)
                r.s[k] = x.s[k] * y.s[k];
        return r.f;
}

MODEL __m512 model_sub_ps(__m512 a, __m512 c) {
        union model x = { .f = a }, y = { .f = c }, r;
        for (int k = 0; k < 16; k++)
                r.s[k] = x.s[k] - y.s[k];
        return r.f;
}

MODEL __m512 model_fmadd_ps(__m512 a, __m512 c, __m512 e) {
        union model x = { .f = a }, y = { .f = c }, z = { .f = e }, r;
        for (int k = 0; k < 16; k++)
                r.s[k] = __builtin_fmaf(x.s[k], y.s[k], z.s[k]);
        return r.f;
}

MODEL __m512i model_bits(__m512 a) {
        union model x = { .f = a };
        return x.i;
}

MODEL __m512 model_unbits(__m512i a) {
        union model x = { .i = a };
        return x.f;
}

#undef _mm512_add_epi32
#define _mm512_add_epi32 model_add32
#undef _mm512_add_epi8
#define _mm512_add_epi8 model_add8
#undef _mm512_and_si512
#define _mm512_and_si512 model_and
#undef _mm512_broadcast_i32x4
#define _mm512_broadcast_i32x4 model_times128
#undef _mm512_broadcast_i64x4
#define _mm512_broadcast_i64x4 model_twice256
#undef _mm512_castps_si512
#define _mm512_castps_si512 model_bits
#undef _mm512_castsi512_ps
#define _mm512_castsi512_ps model_unbits
#undef _mm512_cmplt_epu32_mask
#define _mm512_cmplt_epu32_mask model_less32
#undef _mm512_cvtepi32_epi16
#define _mm512_cvtepi32_epi16 model_low16
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps model_float
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps model_half
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32 model_dpbusd
#undef _mm512_dpwssd_epi32
#define _mm512_dpwssd_epi32 model_dpwssd
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps model_fmadd_ps
#undef _mm512_i32gather_epi32
#define _mm512_i32gather_epi32 model_gather32
#undef _mm512_load_si512
#define _mm512_load_si512 model_load_aligned
#undef _mm512_loadu_ps
#define _mm512_loadu_ps model_load_ps
#undef _mm512_loadu_si512
#define _mm512_loadu_si512 model_load
#undef _mm512_madd_epi16
#define _mm512_madd_epi16 model_madd16
#undef _mm512_mask_blend_epi32
#define _mm512_mask_blend_epi32 model_blend32
#undef _mm512_mask_blend_epi8
#define _mm512_mask_blend_epi8 model_blend8
#undef _mm512_mul_ps
#define _mm512_mul_ps model_mul_ps
#undef _mm512_mullo_epi16
#define _mm512_mullo_epi16 model_mullo16
#undef _mm512_mullo_epi32
#define _mm512_mullo_epi32 model_mullo32
#undef _mm512_or_si512
#define _mm512_or_si512 model_or
#undef _mm512_permutex2var_epi32
#define _mm512_permutex2var_epi32 model_permute2_32
#undef _mm512_permutexvar_epi32
#define _mm512_permutexvar_epi32 model_permute32
#undef _mm512_permutexvar_ps
#define _mm512_permutexvar_ps(at, v) model_unbits(model_permute32(at, model_bits(v)))
#undef _mm512_set1_epi16
#define _mm512_set1_epi16 model_set16
#undef _mm512_set1_epi32
#define _mm512_set1_epi32 model_set32
#undef _mm512_set1_epi8
#define _mm512_set1_epi8 model_set8
#undef _mm512_set1_ps
#define _mm512_set1_ps model_set_ps
#undef _mm512_set4_epi32
#define _mm512_set4_epi32(d, c, b, a) model_setr32(a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d)
#undef _mm512_setr_epi32
#define _mm512_setr_epi32 model_setr32
#undef _mm512_setr_epi64
#define _mm512_setr_epi64 model_setr64
#undef _mm512_setzero_ps
#define _mm512_setzero_ps() model_set_ps(0)
#undef _mm512_setzero_si512
#define _mm512_setzero_si512 model_zero
#undef _mm512_shuffle_epi32
#define _mm512_shuffle_epi32 model_shuffle32
#undef _mm512_shuffle_epi8
#define _mm512_shuffle_epi8 model_shuffle8
#undef _mm512_shuffle_i32x4
#define _mm512_shuffle_i32x4 model_shuffle128
#undef _mm512_slli_epi16
#define _mm512_slli_epi16 model_slli16
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 model_slli32
#undef _mm512_slli_epi64
#define _mm512_slli_epi64 model_slli64
#undef _mm512_sllv_epi32
#define _mm512_sllv_epi32 model_sllv32
#undef _mm512_srai_epi16
#define _mm512_srai_epi16 model_srai16
#undef _mm512_srai_epi32
#define _mm512_srai_epi32 model_srai32
#undef _mm512_srli_epi16
#define _mm512_srli_epi16 model_srli16
#undef _mm512_srli_epi32
#define _mm512_srli_epi32 model_srli32
#undef _mm512_srlv_epi32
#define _mm512_srlv_epi32 model_srlv32
#undef _mm512_srlv_epi64
#define _mm512_srlv_epi64 model_srlv64
#undef _mm512_store_si512
#define _mm512_store_si512 model_store_aligned
#undef _mm512_storeu_ps
#define _mm512_storeu_ps model_store_ps
#undef _mm512_storeu_si512
#define _mm512_storeu_si512 model_store
#undef _mm512_sub_epi16
#define _mm512_sub_epi16 model_sub16
#undef _mm512_sub_epi32
#define _mm512_sub_epi32 model_sub32
#undef _mm512_sub_epi8
#define _mm512_sub_epi8 model_sub8
#undef _mm512_sub_ps
#define _mm512_sub_ps model_sub_ps
#undef _mm512_unpackhi_epi32
#define _mm512_unpackhi_epi32 model_unpackhi32
#undef _mm512_unpackhi_epi64
#define _mm512_unpackhi_epi64 model_unpackhi64
#undef _mm512_unpacklo_epi32
#define _mm512_unpacklo_epi32 model_unpacklo32
#undef _mm512_unpacklo_epi64
#define _mm512_unpacklo_epi64 model_unpacklo64
#undef _mm512_xor_si512
#define _mm512_xor_si512 model_xor
#undef _mm512_zextsi256_si512
#define _mm512_zextsi256_si512 model_low256

/* ---- tiles: palette 1, eight of up to 16 rows of 64 bytes ---- */

struct model_tiles {
        uint8_t palette, rows[8];
        uint16_t row_bytes[8];
        uint8_t at[8][16][64];
};

__attribute__((unused)) static _Thread_local struct model_tiles model_tiles;

MODEL void model_refuse(bool bad) {
        if (bad)
                abort();
}

__attribute__((unused)) static void model_loadconfig(const void *config) {
        struct model_tiles *m = &model_tiles;
        const uint8_t *c = config;

        model_refuse(c[0] != 1);
        for (int i = 1; i < 16; i++)
                model_refuse(c[i] != 0);
        memset(m, 0, sizeof(*m));
        m->palette = 1;
        for (int i = 0; i < 16; i++) {
                uint16_t row_bytes;

                memcpy(&row_bytes, c + 16 + 2 * i, 2);
                model_refuse(i >= 8 && (row_bytes || c[48 + i]));
                model_refuse(row_bytes > 64 || c[48 + i] > 16 || !row_bytes != !c[48 + i]);
                if (i < 8) {
                        m->row_bytes[i] = row_bytes;
                        m->rows[i] = c[48 + i];
                }
        }
}

__attribute__((unused)) static void model_release(void) {
        memset(&model_tiles, 0, sizeof(model_tiles));
}

__attribute__((unused)) static void model_tilezero(unsigned t) {
        model_refuse(!model_tiles.palette || !model_tiles.rows[t]);
        memset(model_tiles.at[t], 0, sizeof(model_tiles.at[t]));
}

__attribute__((unused)) static void model_loadd(unsigned t, const void *base, size_t stride) {
        model_tilezero(t);
        for (unsigned r = 0; r < model_tiles.rows[t]; r++)
                memcpy(model_tiles.at[t][r], (const uint8_t *)base + r * stride, model_tiles.row_bytes[t]);
}

__attribute__((unused)) static void model_stored(unsigned t, void *base, size_t stride) {
        model_refuse(!model_tiles.palette || !model_tiles.rows[t]);
        for (unsigned r = 0; r < model_tiles.rows[t]; r++)
                memcpy((uint8_t *)base + r * stride, model_tiles.at[t][r], model_tiles.row_bytes[t]);
}

/* c += a b: signed bytes of a, signed or unsigned ones of b. */
__attribute__((unused)) static void model_dp(unsigned c, unsigned a, unsigned b, bool b_signed) {
        struct model_tiles *m = &model_tiles;

        model_refuse(!m->palette || c == a || c == b || a == b || !m->rows[c] || m->row_bytes[c] % 4 || m->row_bytes[a] % 4 || m->row_bytes[b] % 4);
        model_refuse(m->rows[a] != m->rows[c] || m->row_bytes[b] != m->row_bytes[c] || m->row_bytes[a] / 4 != m->rows[b]);
        for (unsigned r = 0; r < m->rows[c]; r++)
                for (unsigned n = 0; n < m->row_bytes[c] / 4u; n++) {
                        uint32_t sum;

                        memcpy(&sum, &m->at[c][r][4 * n], 4);
                        for (unsigned k = 0; k < m->row_bytes[a]; k++) {
                                int x = (int8_t)m->at[a][r][k], y = m->at[b][k / 4][4 * n + k % 4];

                                sum += (uint32_t)(x * (b_signed ? (int8_t)y : y));
                        }
                        memcpy(&m->at[c][r][4 * n], &sum, 4);
                }
}

#undef _tile_loadconfig
#define _tile_loadconfig model_loadconfig
#undef _tile_release
#define _tile_release model_release
#undef _tile_zero
#define _tile_zero model_tilezero
#undef _tile_loadd
#define _tile_loadd model_loadd
#undef _tile_stored
#define _tile_stored model_stored
#undef _tile_dpbssd
#define _tile_dpbssd(c, a, b) model_dp(c, a, b, true)
#undef _tile_dpbsud
#define _tile_dpbsud(c, a, b) model_dp(c, a, b, false)
