/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The driver of the wide variants, included once by each (linear_avx2.c,
 * linear_avx512.c) after its tiles, which bring struct tok, T_MAX (most tokens
 * of a tile), T_PACKED (tokens up to which a tile reads the bit planes itself),
 * T_PLAIN (most tokens of a float tile), T_DIRECT (tokens up to which float
 * weights have no panel) and tile_take().
 *
 * For each 16 output rows, pieces of 256 columns are unpacked into a panel that
 * stays in L1, and all tokens of a block pass over it, a tile at a time. A block
 * is as many tokens as keep their images in half of a 512-KiB L2.
 *
 * scratch: struct work.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/few_iq_avx2.h"

#define TOKENS_MAX 256u
#define BLOCK_BYTES (256u * 1024)
#define PREFETCH 4096u /* bytes; measured, see docs/kernels/cpu-linear.md */

struct work {
        union {
                struct k_panel panel;
                float floats[PANEL_COLS][K_PANEL];
        };
        float acc[TOKENS_MAX][K_PANEL];
        struct k_image image[TOKENS_MAX];
};
_Static_assert(sizeof(struct work) <= K_LINEAR_SCRATCH, "linear's scratch is too small");

/* ---- activations ---- */

static inline void quantize_block(const float *x, unsigned n, int8_t *q, float *ret_d) {
        const __m256 abs = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
        __m256 max = _mm256_setzero_ps(), poison = max;
        float m, inv;

        for (unsigned i = 0; i < n; i += 8) {
                __m256 v = _mm256_loadu_ps(x + i);
                max = _mm256_max_ps(max, _mm256_and_ps(v, abs));
                poison = _mm256_add_ps(poison, _mm256_mul_ps(v, _mm256_setzero_ps()));
        }
        if (_mm256_movemask_ps(_mm256_cmp_ps(poison, poison, _CMP_UNORD_Q))) {
                memset(q, 0, n);
                *ret_d = NAN;
                return;
        }
        __m128 r = _mm_max_ps(_mm256_castps256_ps128(max), _mm256_extractf128_ps(max, 1));
        r = _mm_max_ps(r, _mm_movehl_ps(r, r));
        m = _mm_cvtss_f32(_mm_max_ss(r, _mm_shuffle_ps(r, r, 1)));
        inv = m > 0 ? 127.0f / m : 0.0f;
        if (!(inv < INFINITY))
                inv = m = 0;
        for (unsigned i = 0; i < n; i += 32) {
                const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
                __m256i v[4];
                for (unsigned k = 0; k < 4; k++)
                        v[k] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8 * k), _mm256_set1_ps(inv)));
                __m256i b = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
                _mm256_storeu_si256((__m256i *)(void *)(q + i), _mm256_permutevar8x32_epi32(b, order));
        }
        *ret_d = m / 127.0f;
}

static inline void quantize(uint32_t kind, const float *x, uint32_t cols, void *image_row) {
        struct k_image im = k_image_at(kind, image_row, cols);
        int8_t *q = image_row;
        int16_t *pair16 = (int16_t *)im.pair16, *pair32 = (int16_t *)im.pair32;
        float *d = (float *)im.d;
        uint32_t block = kind == 1 ? 32 : 256;

        for (uint32_t i = 0; i < cols; i += block)
                quantize_block(x + i, block, q + i, d + i / block);
        for (uint32_t g = 0; g < cols / 32; g++) {
                __m256i s = _mm256_maddubs_epi16(_mm256_set1_epi8(1), load256(q + 32 * g));
                s = _mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0x4e));
                s = _mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0xb1));
                __m128i a = _mm256_castsi256_si128(s), b = _mm256_extracti128_si256(s, 1), c = _mm_add_epi16(a, b);
                _mm_storel_epi64((__m128i *)(void *)(pair16 + 4 * g), _mm_unpacklo_epi32(a, b));
                int32_t both = _mm_cvtsi128_si32(c);
                memcpy(pair32 + 2 * g, &both, 4);
                if (kind == 1) {
                        ((float *)im.sx)[g] = d[g] * (float)(pair32[2 * g] + pair32[2 * g + 1]);
                } else {
                        ((int16_t *)im.sum16)[2 * g] = (int16_t)(pair16[4 * g] + pair16[4 * g + 1]);
                        ((int16_t *)im.sum16)[2 * g + 1] = (int16_t)(pair16[4 * g + 2] + pair16[4 * g + 3]);
                        ((int16_t *)im.sum32)[g] = (int16_t)(pair32[2 * g] + pair32[2 * g + 1]);
                }
        }
}

/* ---- one type: its tiles by number of tokens ---- */

typedef void (*tile_fn)(const uint8_t *codes, const struct k_panel *p, uint32_t cols, const struct tok *tok);
typedef void (*head_fn)(struct k_panel *p, const uint8_t *head, uint32_t cols);
typedef void (*codes_fn)(uint8_t *q, const uint8_t *codes, uint32_t cols);

typedef void (*plain_fn)(const float *w, uint32_t cols, const float *const *x, float *const *acc, uint32_t T);

struct type_fns {
        tile_fn panel[T_MAX], packed[T_PACKED]; /* [T - 1], those that tile_take() gives */
        head_fn head;
        codes_fn codes;
};

INLINE struct codes from_panel(const uint8_t *p, bool is_signed) {
        return (struct codes){ .p = p, .bits = 8, .is_signed = is_signed, .unit = 256 };
}

INLINE struct codes from_planes(enum k_type t, const uint8_t *p, unsigned bits, unsigned unit, bool is_signed) {
        struct codes c = { .p = p, .bits = bits, .is_signed = is_signed, .unit = unit, .ahead = PREFETCH,
                           .lut = _mm256_setzero_si256() };
        if (t == K_MXFP4 || t == K_NVFP4)
                c.lut = lut_plus(k_lut_e2m1, 12);
        if (t == K_IQ4_NL || t == K_IQ4_XS)
                c.lut = lut_plus(k_lut_iq4, 0);
        c.use_lut = t == K_MXFP4 || t == K_NVFP4 || t == K_IQ4_NL || t == K_IQ4_XS;
        return c;
}

static inline struct tok token_at(const struct work *wk, uint32_t kind, float *acc, uint32_t i, uint32_t col) {
        struct k_image im = wk->image[i];
        im.q += col;
        im.pair16 += col / 16 * 2;
        im.pair32 += col / 32 * 2;
        if (kind == 1) {
                im.d += col / 32;
                im.sx += col / 32;
        } else {
                im.d += col / 256;
                im.sum16 += col / 16;
                im.sum32 += col / 32;
        }
        return (struct tok){ im, acc };
}

static inline void panel_codes(const struct type_fns *f, const struct k_cpu_gemm *job, uint32_t kind, struct work *wk, uint32_t row0, uint32_t n) {
        const struct k_weight *w = job->w;
        const struct k_layout_type *l = k_layout_type(w->type);
        const uint8_t *data = k_gemm_weights(job), *head = NULL, *codes = NULL, *src = NULL;
        bool bytes = w->layout == K_LAYOUT_CPU && l->bits == 8; /* the layout is the panel */
        bool packed = w->layout == K_LAYOUT_CPU && n <= T_PACKED;

        if (w->layout == K_LAYOUT_CPU) {
                head = data + row0 / K_PANEL * k_layout_panel_bytes(w->type, w->cols);
                codes = head + k_layout_codes_off(w->type, w->cols);
        }
        for (uint32_t col = 0; col < w->cols; col += PANEL_COLS) {
                uint32_t cols = MIN(w->cols - col, PANEL_COLS);

                if (w->layout == K_LAYOUT_CPU) {
                        uint32_t head_bytes = cols / l->unit * l->head;
                        src = codes + (size_t)(col / l->unit) * l->codes;
                        for (uint32_t i = 0; i < head_bytes; i += 64)
                                _mm_prefetch((const char *)head + col / l->unit * l->head + 2 * head_bytes + i, _MM_HINT_T0);
                        f->head(&wk->panel, head + col / l->unit * l->head, cols);
                        if (!packed && !bytes)
                                f->codes(wk->panel.q, src, cols);
                } else if (is_lattice(w->type)) {
                        iq_panel(&wk->panel, w, data, row0, col);
                } else {
                        k_panel_from_file(&wk->panel, w, data, row0, col, cols);
                }
                for (uint32_t t = 0, T; t < n; t += T) {
                        struct tok tok[T_MAX];
                        T = tile_take(n - t);
                        for (uint32_t k = 0; k < T; k++)
                                tok[k] = token_at(wk, kind, wk->acc[t + k], t + k, col);
                        (packed ? f->packed : f->panel)[T - 1](packed || bytes ? src : wk->panel.q, &wk->panel, cols, tok);
                }
        }
}

static inline void rows_codes(const struct type_fns *f, const struct k_cpu_gemm *job, uint32_t kind, struct work *wk, uint32_t row0, uint32_t row1) {
        const struct k_weight *w = job->w;
        size_t stride = k_cpu_image_stride(kind, w->cols);
        uint32_t block = (uint32_t)MIN(MAX(BLOCK_BYTES / stride / T_MAX * T_MAX, 16u), (size_t)TOKENS_MAX);

        for (uint32_t t0 = 0; t0 < job->n; t0 += block) {
                uint32_t n = MIN(job->n - t0, block);
                for (uint32_t t = 0; t < n; t++)
                        wk->image[t] = k_image_at(kind, k_gemm_xq(job, stride, t0 + t), w->cols);
                for (uint32_t r = row0; r < row1; r += K_PANEL) {
                        memset(wk->acc, 0, n * sizeof(wk->acc[0]));
                        panel_codes(f, job, kind, wk, r, n);
                        for (uint32_t t = 0; t < n; t++)
                                k_gemm_store(job, t0 + t, r, MIN(row1 - r, K_PANEL), wk->acc[t]);
                }
        }
}

/* ---- floats ---- */

INLINE __m256 eight(enum k_type t, const uint8_t *p) {
        if (t == K_F32)
                return _mm256_loadu_ps((const float *)(const void *)p);
        if (t == K_F16)
                return _mm256_cvtph_ps(load128(p));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
}

/* Columns [col, col + cols) of a panel as [cols][16] floats: in place, or converted into dst. */
static inline const float *panel_floats(const struct k_weight *w, const uint8_t *data, uint32_t row0, uint32_t col, uint32_t cols,
                                 float *dst) {
        if (w->layout != K_LAYOUT_CPU || k_layout_type(w->type)->bits != 0) {
                k_panel_floats(dst, w, data, row0, col, cols);
                return dst;
        }
        data += row0 / K_PANEL * k_layout_panel_bytes(w->type, w->cols) + (size_t)col * K_PANEL * k_type_bytes(w->type);
        if (w->type == K_F32)
                return (const float *)(const void *)data;
        if (w->type == K_F16)
                for (uint32_t i = 0; i < cols * K_PANEL; i += 8)
                        _mm256_store_ps(dst + i, eight(K_F16, data + 2 * i));
        else
                for (uint32_t i = 0; i < cols * K_PANEL; i += 8)
                        _mm256_store_ps(dst + i, eight(K_BF16, data + 2 * i));
        return dst;
}

/*
 * Few tokens: weights are converted where they are used, with no panel of floats between. A single panel and token are two
 * chains of additions that would wait for each other, so P panels go side by side, as many as there are registers for.
 */
INLINE void panels_direct(enum k_type t, unsigned P, unsigned T, const uint8_t *const p[4], uint32_t cols, const float *const x[T_DIRECT],
                          float acc[T_DIRECT][4 * K_PANEL]) {
        const size_t bytes = t == K_F32 ? 4 : 2;
        __m256 f[4][T_DIRECT][2];

#pragma GCC unroll 4
        for (unsigned k = 0; k < P; k++)
#pragma GCC unroll 6
                for (unsigned i = 0; i < T; i++)
                        f[k][i][0] = f[k][i][1] = _mm256_setzero_ps();
        for (uint32_t c = 0; c < cols; c++) {
                __m256 v[T_DIRECT];
#pragma GCC unroll 6
                for (unsigned i = 0; i < T; i++)
                        v[i] = _mm256_broadcast_ss(x[i] + c);
#pragma GCC unroll 4
                for (unsigned k = 0; k < P; k++) {
                        const uint8_t *w = p[k] + c * K_PANEL * bytes;
                        const __m256 w0 = eight(t, w), w1 = eight(t, w + 8 * bytes);
#pragma GCC unroll 6
                        for (unsigned i = 0; i < T; i++) {
                                f[k][i][0] = _mm256_fmadd_ps(w0, v[i], f[k][i][0]);
                                f[k][i][1] = _mm256_fmadd_ps(w1, v[i], f[k][i][1]);
                        }
                }
        }
#pragma GCC unroll 4
        for (unsigned k = 0; k < P; k++)
#pragma GCC unroll 6
                for (unsigned i = 0; i < T; i++) {
                        _mm256_storeu_ps(acc[i] + k * K_PANEL, f[k][i][0]);
                        _mm256_storeu_ps(acc[i] + k * K_PANEL + 8, f[k][i][1]);
                }
}

INLINE void rows_direct(enum k_type t, unsigned P, unsigned T, const struct k_cpu_gemm *job, uint32_t row0, uint32_t row1) {
        const struct k_weight *w = job->w;
        const size_t panel = k_layout_panel_bytes(t, w->cols);
        const uint8_t *data = k_gemm_weights(job) + row0 / K_PANEL * panel;
        const float *x[T_DIRECT];
        float acc[T_DIRECT][4 * K_PANEL];

        for (unsigned i = 0; i < T; i++)
                x[i] = k_gemm_x(job, i);
        for (uint32_t r = row0; r < row1; r += P * K_PANEL, data += P * panel) {
                const uint8_t *p[4];
                for (uint32_t k = 0; k < P; k++) /* past the end, the first once more: read and dropped */
                        p[k] = r + k * K_PANEL < row1 ? data + k * panel : data;
                panels_direct(t, P, T, p, w->cols, x, acc);
                for (unsigned i = 0; i < T; i++)
                        k_gemm_store(job, i, r, MIN(row1 - r, P * K_PANEL), acc[i]);
        }
}

INLINE void rows_direct_type(enum k_type t, const struct k_cpu_gemm *job, uint32_t row0, uint32_t row1) {
        switch (MIN(job->n, T_DIRECT)) {
        case 1: rows_direct(t, 4, 1, job, row0, row1); break;
#if T_DIRECT > 1
        case 2: rows_direct(t, 2, 2, job, row0, row1); break;
        case 3: rows_direct(t, 2, 3, job, row0, row1); break;
        case 4: rows_direct(t, 1, 4, job, row0, row1); break;
        case 5: rows_direct(t, 1, 5, job, row0, row1); break;
        case 6: rows_direct(t, 1, 6, job, row0, row1); break;
#endif
        }
}

static inline void rows_floats(plain_fn plain, const struct k_cpu_gemm *job, struct work *wk, uint32_t row0, uint32_t row1) {
        const struct k_weight *w = job->w;
        const uint8_t *data = k_gemm_weights(job);
        if (job->n <= T_DIRECT && w->layout == K_LAYOUT_CPU && k_layout_type(w->type)->bits == 0) {
                if (w->type == K_F32)
                        rows_direct_type(K_F32, job, row0, row1);
                else if (w->type == K_F16)
                        rows_direct_type(K_F16, job, row0, row1);
                else
                        rows_direct_type(K_BF16, job, row0, row1);
                return;
        }
        uint32_t block = (uint32_t)MIN(MAX(BLOCK_BYTES / ((size_t)w->cols * 4) / T_PLAIN * T_PLAIN, 16u), (size_t)TOKENS_MAX);

        for (uint32_t t0 = 0; t0 < job->n; t0 += block) {
                uint32_t n = MIN(job->n - t0, block);
                for (uint32_t r = row0; r < row1; r += K_PANEL) {
                        memset(wk->acc, 0, n * sizeof(wk->acc[0]));
                        for (uint32_t col = 0; col < w->cols; col += PANEL_COLS) {
                                uint32_t cols = MIN(w->cols - col, PANEL_COLS);
                                const float *p = panel_floats(w, data, r, col, cols, wk->floats[0]);
                                for (uint32_t t = 0; t < n; t += T_PLAIN) {
                                        uint32_t T = MIN(n - t, T_PLAIN);
                                        const float *x[T_PLAIN];
                                        float *acc[T_PLAIN];
                                        for (uint32_t k = 0; k < T; k++) {
                                                x[k] = k_gemm_x(job, t0 + t + k) + col;
                                                acc[k] = wk->acc[t + k];
                                        }
                                        plain(p, cols, x, acc, T);
                                }
                        }
                        for (uint32_t t = 0; t < n; t++)
                                k_gemm_store(job, t0 + t, r, MIN(row1 - r, K_PANEL), wk->acc[t]);
                }
        }
}
