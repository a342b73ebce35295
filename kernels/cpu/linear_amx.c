/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of many tokens with AMX; those of few, and of float weights, are AVX-512's.
 *
 * A tile of weights is a panel's: 16 steps of 16 rows x 4 columns, as they lie there. A tile of activations is up to
 * 16 tokens x 64 columns of their images, as those lie in memory. Their product is 16 x 16 sums in 32 bits, a vector
 * of output rows for each token: what the accumulators of tile_avx512.h hold, so from there on the arithmetic is the
 * same, in the order of linear.h. The sums are integers and exact in any order.
 *
 * kind 1   a tile is one scale group (32 columns, half of what a tile could hold; NVFP4: 16), its sums meet the scales
 *          as floats.
 * kind 2   sums over groups need their integer scales, so the panel holds scale times code instead, in bytes: one where
 *          the products fit it, otherwise two, whose sums are added when all 256 columns are done:
 *            WHOLE   scale * code, signed
 *            THREES  unsigned codes of 4 and 5 bits with scales of 6: (scale & 7) * code and (scale >> 3) * code
 *            BYTES   scale * code, at most 13 bits and a sign: its low byte, unsigned, and its high byte, signed
 *          That takes two tile products for 64 columns where the groups as they are would take two to four, and
 *          four vectors of sums a token where they would leave 8 to 16.
 *
 * All tiles of a block have the same shape: tokens past the last full 16 are computed with the 15 or fewer before them.
 * Only where images are long can a product's last block have fewer than 16; its tiles are that much shorter.
 */
#include <string.h>

#include "kernels/cpu/planes.h"
#include "kernels/cpu/tile_avx512.h"
#include "kernels/cpu/unpack_iq_avx2.h"

#define TILE 16u             /* tokens and rows */
#define FEWEST TILE          /* tokens; with 8 AVX-512 is as fast: docs/kernels/cpu-linear.md */
#define BLOCK (16 * TILE)    /* most tokens that pass over a panel; their images should fit half of a 2-MiB L2 */
#define AHEAD 4096u          /* bytes to prefetch: linear_wide.h */
#define COPY_BYTES (1024u * 1024)

struct amx {
        struct k_panel panel;
        uint8_t b[2][PANEL_COLS * K_PANEL];       /* tiles of weights */
        union {
                int32_t group[16][TILE][K_PANEL]; /* kind 1: sums by group */
                int32_t part[2][2][TILE][K_PANEL]; /* kind 2: of two tiles of tokens, by byte */
        };
        float acc[BLOCK][K_PANEL];
        struct k_image image[BLOCK];
};
_Static_assert(sizeof(struct amx) <= K_LINEAR_SCRATCH && K_LINEAR_SCRATCH + COPY_BYTES <= K_LINEAR_SCRATCH_AMX, "linear's scratch is too small");

/* gcc's tile loads don't say that they read memory. */
INLINE void written(void) {
        __asm__ volatile("" ::: "memory");
}

/* Of all tiles: 0-3 sums, 4-5 tokens, 6-7 weights. cols: columns of a tile product. */
static void configure(uint32_t tokens, uint32_t cols) {
        struct {
                uint8_t palette, start_row, zero[14];
                uint16_t row_bytes[16];
                uint8_t rows[16];
        } c = { .palette = 1 };

        for (unsigned i = 0; i < 8; i++) {
                c.row_bytes[i] = (uint16_t)(i >= 4 && i < 6 ? cols : 4 * K_PANEL);
                c.rows[i] = (uint8_t)(i < 6 ? tokens : cols / 4);
        }
        _Static_assert(sizeof(c) == 64, "a tile configuration");
        written();
        _tile_loadconfig(&c);
}

/* ---- kind 1 ---- */

INLINE void tile_codes(const struct codes c, uint8_t *b, uint32_t cols, int center) {
        const __m512i off = _mm512_set1_epi8((char)center);

        for (unsigned first = 0; first < cols / 4; first += 4, b += 256) {
                codes_prefetch(c, 16, first / 4);
#pragma GCC unroll 4
                for (unsigned s = 0; s < 4; s++)
                        _mm512_storeu_si512(b + 64 * s, _mm512_sub_epi8(codes_step_512(c, first, s), off));
        }
}

/* The sums of a piece's groups for the tokens from q on. */
static void sums_float(struct amx *a, const uint8_t *b, uint32_t n_group, uint32_t group, const int8_t *q, size_t stride) {
        const size_t step = (size_t)group * K_PANEL;

        for (uint32_t g = 0; g < n_group; g += 2) { /* neighbours in tiles of their own: neither waits for the other */
                _tile_zero(0);
                _tile_loadd(4, q + (size_t)g * group, stride);
                _tile_loadd(6, b + g * step, 64);
                _tile_dpbssd(0, 4, 6);
                _tile_stored(0, a->group[g], 64);
                if (g + 1 == n_group)
                        break;
                _tile_zero(1);
                _tile_loadd(5, q + (size_t)(g + 1) * group, stride);
                _tile_loadd(7, b + (g + 1) * step, 64);
                _tile_dpbssd(1, 5, 7);
                _tile_stored(1, a->group[g + 1], 64);
        }
}

/* A token at a time over the groups, whose scales stay in registers. i: of the block; k: of the tile. */
INLINE void scale_float(struct amx *a, uint32_t i, uint32_t k, uint32_t n, uint32_t col, uint32_t n_group, uint32_t group, bool min) {
        __m512 dw[16] = { 0 }, m[8] = { 0 };

#pragma GCC unroll 16
        for (uint32_t g = 0; g < n_group; g++) {
                dw[g] = _mm512_loadu_ps(a->panel.d[g]);
                if (min)
                        m[g] = _mm512_loadu_ps(a->panel.m[g]);
        }
        for (; k < n; k++, i++) {
                const float *d = a->image[i].d + col / 32, *sx = a->image[i].sx + col / 32;
                __m512 f = _mm512_loadu_ps(a->acc[i]);
#pragma GCC unroll 16
                for (uint32_t g = 0; g < n_group; g++) {
                        __m512 v = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_loadu_si512(a->group[g][k])), _mm512_set1_ps(d[g * group / 32]));
                        f = _mm512_fmadd_ps(v, dw[g], f);
                        if (min)
                                f = _mm512_fmadd_ps(m[g], _mm512_set1_ps(sx[g]), f);
                }
                _mm512_storeu_ps(a->acc[i], f);
        }
}

/* n tokens at 'col', 16 at a time. */
INLINE void piece_float(struct amx *a, const uint8_t *b, uint32_t n, size_t stride, uint32_t col, uint32_t cols, uint32_t group, bool min) {
        const uint32_t tile = MIN(n, TILE);

        for (uint32_t i = 0; i < n; i += TILE) {
                uint32_t first = MIN(i, n - tile), k = i - first;

                sums_float(a, b, cols / group, group, a->image[first].q + col, stride);
                if (cols == PANEL_COLS)
                        scale_float(a, i, k, tile, col, PANEL_COLS / group, group, min);
                else
                        scale_float(a, i, k, tile, col, cols / group, group, min);
        }
}

/* ---- kind 2 ---- */

enum form { WHOLE, THREES, BYTES };

INLINE void tile_scaled(const struct codes c, const struct k_panel *p, uint8_t b[2][PANEL_COLS * K_PANEL], unsigned scale_group, enum form form,
                        int center) {
        const __m512i byte = _mm512_set1_epi16(255), seven = _mm512_set1_epi16(7), off = _mm512_set1_epi8((char)center);
        const __m512i off16 = _mm512_set1_epi16((short)center);

        for (unsigned first = 0; first < PANEL_COLS / 4; first += 4) {
                const __m512i sc = _mm512_loadu_si512(p->sc[4 * first / scale_group]); /* each row's scale twice, in 16 bits */
                const __m512i low = _mm512_and_si512(sc, seven), high = _mm512_srli_epi16(sc, 3);

                codes_prefetch(c, 16, first / 4);
#pragma GCC unroll 4
                for (unsigned s = 0; s < 4; s++) {
                        uint8_t *lo = b[0] + 64 * (first + s), *hi = b[1] + 64 * (first + s);
                        __m512i w = codes_step_512(c, first, s), even, odd;

                        if (form == WHOLE) { /* two products of a byte at once: nothing carries */
                                w = _mm512_sub_epi8(_mm512_mullo_epi16(w, sc), _mm512_mullo_epi16(off, sc));
                                _mm512_storeu_si512(lo, w);
                                continue;
                        }
                        if (form == THREES) {
                                _mm512_storeu_si512(lo, _mm512_mullo_epi16(w, low));
                                _mm512_storeu_si512(hi, _mm512_mullo_epi16(w, high));
                                continue;
                        }
                        if (c.is_signed) {
                                even = _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8);
                                odd = _mm512_srai_epi16(w, 8);
                        } else {
                                even = _mm512_sub_epi16(_mm512_and_si512(w, byte), off16);
                                odd = _mm512_sub_epi16(_mm512_srli_epi16(w, 8), off16);
                        }
                        even = _mm512_mullo_epi16(even, sc);
                        odd = _mm512_mullo_epi16(odd, sc);
                        _mm512_storeu_si512(lo, _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaaull, even, _mm512_slli_epi16(odd, 8)));
                        _mm512_storeu_si512(hi, _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaaull, _mm512_srli_epi16(even, 8), odd));
                }
        }
}

/* Over 256 columns for the tokens from q[0] and from q[1] on; two tiles of tokens keep four sums in flight. */
INLINE void sums_int(struct amx *a, const int8_t *const q[2], bool two, size_t stride, enum form form) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (uint32_t k = 0; k < PANEL_COLS / 64; k++) {
                _tile_loadd(6, a->b[0] + 1024 * k, 64);
                _tile_loadd(4, q[0] + 64 * k, stride);
                if (form == WHOLE)
                        _tile_dpbssd(0, 4, 6);
                else
                        _tile_dpbsud(0, 4, 6);
                if (two) {
                        _tile_loadd(5, q[1] + 64 * k, stride);
                        if (form == WHOLE)
                                _tile_dpbssd(1, 5, 6);
                        else
                                _tile_dpbsud(1, 5, 6);
                }
                if (form == WHOLE)
                        continue;
                _tile_loadd(7, a->b[1] + 1024 * k, 64);
                if (form == THREES)
                        _tile_dpbsud(2, 4, 7);
                else
                        _tile_dpbssd(2, 4, 7);
                if (two && form == THREES)
                        _tile_dpbsud(3, 5, 7);
                else if (two)
                        _tile_dpbssd(3, 5, 7);
        }
        _tile_stored(0, a->part[0][0], 64);
        if (two)
                _tile_stored(1, a->part[1][0], 64);
        if (form != WHOLE)
                _tile_stored(2, a->part[0][1], 64);
        if (form != WHOLE && two)
                _tile_stored(3, a->part[1][1], 64);
}

/* i: of the block; k: of the tile. mins: weights per minimum, 0 for none. */
INLINE void scale_int(struct amx *a, int32_t (*part)[TILE][K_PANEL], uint32_t i, uint32_t k, uint32_t n, uint32_t col, enum form form,
                      unsigned mins) {
        const __m512 d0 = _mm512_loadu_ps(a->panel.d0), m0 = _mm512_loadu_ps(a->panel.m0);

        for (; k < n; k++, i++) {
                const struct k_image *im = &a->image[i];
                const __m512 dx = _mm512_set1_ps(im->d[col / 256]);
                __m512i sum = _mm512_loadu_si512(part[0][k]);
                __m512 f = _mm512_loadu_ps(a->acc[i]);

                if (form != WHOLE)
                        sum = _mm512_add_epi32(sum, _mm512_slli_epi32(_mm512_loadu_si512(part[1][k]), form == THREES ? 3 : 8));
                f = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), dx), d0, f);
                if (mins) {
                        const int16_t *s = mins == 16 ? im->sum16 + col / 16 : im->sum32 + col / 32;

                        sum = _mm512_setzero_si512();
#pragma GCC unroll 8
                        for (unsigned j = 0; j < 128 / mins; j++)
                                sum = _mm512_dpwssd_epi32(sum, _mm512_loadu_si512(a->panel.mn[j]), pair(s + 2 * j));
                        f = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), dx), m0, f);
                }
                _mm512_storeu_ps(a->acc[i], f);
        }
}

INLINE void piece_int(struct amx *a, uint32_t n, size_t stride, uint32_t col, enum form form, unsigned mins) {
        const uint32_t tile = MIN(n, TILE);

        for (uint32_t i = 0; i < n; i += 2 * TILE) {
                uint32_t j = i + TILE, first = MIN(i, n - tile), second = j < n ? MIN(j, n - tile) : first;
                const int8_t *const q[2] = { a->image[first].q + col, a->image[second].q + col };

                sums_int(a, q, j < n, stride, form);
                scale_int(a, a->part[0], i, i - first, tile, col, form, mins);
                if (j < n)
                        scale_int(a, a->part[1], j, j - second, tile, col, form, mins);
        }
}

/* ---- types ---- */

struct type {
        uint32_t group; /* columns of a tile product; 0: not here */
        bool bytes;     /* K_LAYOUT_CPU holds the tiles themselves */
        void (*head)(struct k_panel *p, const uint8_t *head, uint32_t cols);
        void (*from_planes)(struct amx *a, const uint8_t *codes, uint32_t cols);
        void (*from_panel)(struct amx *a, uint32_t cols);
        void (*piece)(struct amx *a, const uint8_t *b, uint32_t n, size_t stride, uint32_t col, uint32_t cols);
};

INLINE struct codes planes_of(enum k_type t, const uint8_t *p, unsigned bits, unsigned unit, bool is_signed) {
        struct codes c = { .p = p, .bits = bits, .is_signed = is_signed, .unit = unit, .ahead = AHEAD, .lut = _mm256_setzero_si256() };

        c.use_lut = t == K_MXFP4 || t == K_NVFP4 || t == K_IQ4_NL || t == K_IQ4_XS;
        if (t == K_MXFP4 || t == K_NVFP4)
                c.lut = lut_plus(k_lut_e2m1, 12);
        else if (c.use_lut)
                c.lut = lut_plus(k_lut_iq4, 0);
        return c;
}

INLINE struct codes panel_of(const uint8_t *p, bool is_signed) {
        return (struct codes){ .p = p, .bits = 8, .is_signed = is_signed, .unit = 256, .lut = _mm256_setzero_si256() };
}

#define FLOATS(t, bits, unit, is_signed, group, center, min)                                                                       \
        static void t##_head(struct k_panel *p, const uint8_t *head, uint32_t cols) { unpack_head(K_##t, p, head, cols); }         \
        static void t##_planes(struct amx *a, const uint8_t *codes, uint32_t cols) {                                               \
                tile_codes(planes_of(K_##t, codes, bits, unit, is_signed), a->b[0], cols, center);                                 \
        }                                                                                                                          \
        static void t##_panel(struct amx *a, uint32_t cols) { tile_codes(panel_of(a->panel.q, is_signed), a->b[0], cols, center); } \
        static void t##_piece(struct amx *a, const uint8_t *b, uint32_t n, size_t stride, uint32_t col, uint32_t cols) {           \
                piece_float(a, b, n, stride, col, cols, group, min);                                                               \
        }
#define PIECES(t, is_signed, scale_group, form, center, mins)                                                                      \
        static void t##_panel(struct amx *a, uint32_t cols) {                                                                      \
                (void)cols;                                                                                                        \
                tile_scaled(panel_of(a->panel.q, is_signed), &a->panel, a->b, scale_group, form, center);                          \
        }                                                                                                                          \
        static void t##_piece(struct amx *a, const uint8_t *b, uint32_t n, size_t stride, uint32_t col, uint32_t cols) {           \
                (void)b;                                                                                                           \
                (void)cols;                                                                                                        \
                piece_int(a, n, stride, col, form, mins);                                                                          \
        }
#define INTS(t, bits, is_signed, scale_group, form, center, mins)                                                                  \
        static void t##_head(struct k_panel *p, const uint8_t *head, uint32_t cols) { unpack_head(K_##t, p, head, cols); }         \
        static void t##_planes(struct amx *a, const uint8_t *codes, uint32_t cols) {                                               \
                (void)cols;                                                                                                        \
                tile_scaled(planes_of(K_##t, codes, bits, 256, is_signed), &a->panel, a->b, scale_group, form, center);            \
        }                                                                                                                          \
        PIECES(t, is_signed, scale_group, form, center, mins)

/*            bits unit signed group center min */
FLOATS(Q4_0,    4,  32, false,  32,    8, false)
FLOATS(Q4_1,    4,  32, false,  32,    0, true)
FLOATS(Q5_0,    5,  32, false,  32,   16, false)
FLOATS(Q5_1,    5,  32, false,  32,    0, true)
FLOATS(Q8_0,    8,  32, true,   32,    0, false)
FLOATS(IQ4_NL,  4,  32, true,   32,    0, false)
FLOATS(MXFP4,   4,  32, false,  32,   12, false)
FLOATS(NVFP4,   4,  64, false,  16,   12, false)
/*            bits signed scales form center mins */
INTS(Q2_K,      2, false, 16, WHOLE,   0, 16) /* 3 * 15 */
INTS(Q3_K,      3, false, 16, BYTES,   4,  0) /* -4 * -32 is one too many for a byte */
INTS(Q4_K,      4, false, 32, THREES,  0, 32) /* 15 * 7 */
INTS(Q5_K,      5, false, 16, THREES,  0, 32) /* 31 * 7 */
INTS(Q6_K,      6, false, 16, BYTES,  32,  0)
INTS(IQ4_XS,    4, true,  32, BYTES,   0,  0)
INTS(TQ2_0,     2, false, 32, WHOLE,   1,  0)
PIECES(IQ1_S,      false, 32, BYTES,   9,  0)
PIECES(IQ1_M,      false, 16, BYTES,   9,  0)
PIECES(IQ2_XXS,    true,  32, BYTES,   0,  0)
PIECES(IQ2_XS,     true,  16, BYTES,   0,  0)
PIECES(IQ3_S,      false, 32, BYTES,  16,  0)

#define HERE(t, group_) { .group = group_, .head = t##_head, .from_planes = t##_planes, .from_panel = t##_panel, .piece = t##_piece }
#define LATTICE(t) { .group = 64, .from_panel = t##_panel, .piece = t##_piece }
static const struct type types[_K_TYPE_MAX] = {
        [K_Q4_0] = HERE(Q4_0, 32),
        [K_Q4_1] = HERE(Q4_1, 32),
        [K_Q5_0] = HERE(Q5_0, 32),
        [K_Q5_1] = HERE(Q5_1, 32),
        [K_Q8_0] = { 32, true, Q8_0_head, Q8_0_planes, Q8_0_panel, Q8_0_piece },
        [K_IQ4_NL] = HERE(IQ4_NL, 32),
        [K_MXFP4] = HERE(MXFP4, 32),
        [K_NVFP4] = HERE(NVFP4, 16),
        [K_Q2_K] = HERE(Q2_K, 64),
        [K_Q3_K] = HERE(Q3_K, 64),
        [K_Q4_K] = HERE(Q4_K, 64),
        [K_Q5_K] = HERE(Q5_K, 64),
        [K_Q6_K] = HERE(Q6_K, 64),
        [K_IQ4_XS] = HERE(IQ4_XS, 64),
        [K_TQ1_0] = HERE(TQ2_0, 64),
        [K_TQ2_0] = HERE(TQ2_0, 64),
        [K_IQ1_S] = LATTICE(IQ1_S),
        [K_IQ1_M] = LATTICE(IQ1_M),
        [K_IQ2_XXS] = LATTICE(IQ2_XXS),
        [K_IQ2_XS] = LATTICE(IQ2_XS),
        [K_IQ2_S] = LATTICE(IQ2_XS),    /* the same scales per 16 */
        [K_IQ3_XXS] = LATTICE(IQ2_XXS), /* and per 32 */
        [K_IQ3_S] = LATTICE(IQ3_S),
};

/* ---- rows ---- */

/* Tiles of weights and scales of a panel's columns from col on; where the tiles are. */
static const uint8_t *weights(const struct type *t, const struct k_cpu_gemm *job, struct amx *a, uint32_t row0, uint32_t col, uint32_t cols) {
        const struct k_weight *w = job->w;
        const struct k_layout_type *l = k_layout_type(w->type);
        const uint8_t *data = k_gemm_weights(job), *codes, *head;

        if (w->layout == K_LAYOUT_CPU) {
                uint32_t bytes = cols / l->unit * l->head;

                head = data + row0 / K_PANEL * k_layout_panel_bytes(w->type, w->cols);
                codes = head + k_layout_codes_off(w->type, w->cols) + (size_t)(col / l->unit) * l->codes;
                head += (size_t)(col / l->unit) * l->head;
                for (uint32_t i = 0; i < bytes; i += 64)
                        _mm_prefetch((const char *)head + 2 * bytes + i, _MM_HINT_T0);
                t->head(&a->panel, head, cols);
                if (t->bytes)
                        return codes;
                t->from_planes(a, codes, cols);
                return a->b[0];
        }
        if (w->layout == K_LAYOUT_CUDA) {
                k_planes_panel(job, row0, col / PANEL_COLS, &a->panel);
        } else if (is_lattice(w->type)) {
                iq_panel(&a->panel, w, data, row0, col);
        } else {
                k_panel_from_file(&a->panel, w, data, row0, col, cols);
        }
        t->from_panel(a, cols);
        return a->b[0];
}

static void rows_tiles(const struct type *t, const struct k_cpu_gemm *job, uint32_t kind, uint8_t *scratch, uint32_t row0, uint32_t row1) {
        const struct k_weight *w = job->w;
        struct amx *a = (struct amx *)(void *)scratch;
        uint8_t *copy = scratch + K_LINEAR_SCRATCH;
        size_t stride = k_cpu_image_stride(kind, w->cols);
        uint32_t most = (uint32_t)MIN(MAX(COPY_BYTES / stride / TILE * TILE, (size_t)TILE), (size_t)BLOCK);
        /* Blocks of about the same size: a last one of few tokens would take as long as a full one. */
        uint32_t block = DIV_ROUND_UP(DIV_ROUND_UP(job->n, DIV_ROUND_UP(job->n, most)), TILE) * TILE, tile = 0;

        for (uint32_t t0 = 0; t0 < job->n; t0 += block) {
                uint32_t n = MIN(job->n - t0, block);

                for (uint32_t i = 0; i < n; i++) {
                        const void *image = k_gemm_xq(job, stride, t0 + i);

                        if (job->x_row) /* a tile's rows are equally far apart */
                                image = memcpy(copy + i * stride, image, stride);
                        a->image[i] = k_image_at(kind, image, w->cols);
                }
                if (tile != MIN(n, TILE)) {
                        tile = MIN(n, TILE);
                        configure(tile, t->group);
                }
                for (uint32_t r = row0; r < row1; r += K_PANEL) {
                        memset(a->acc, 0, n * sizeof(a->acc[0]));
                        for (uint32_t col = 0; col < w->cols; col += PANEL_COLS) {
                                uint32_t cols = MIN(w->cols - col, PANEL_COLS);
                                const uint8_t *b = weights(t, job, a, r, col, cols);

                                written();
                                t->piece(a, b, n, stride, col, cols);
                        }
                        for (uint32_t i = 0; i < n; i++)
                                k_gemm_store(job, t0 + i, r, MIN(row1 - r, K_PANEL), a->acc[i]);
                }
        }
        _tile_release(); /* the kernel need not keep what nobody uses */
}

/* 16 images may be too long to be copied. */
static bool is_here(const struct k_cpu_gemm *job, uint32_t kind) {
        return kind && job->n >= FEWEST && types[job->w->type].group &&
               (!job->x_row || k_cpu_image_stride(kind, job->w->cols) <= COPY_BYTES / TILE);
}

bool k_cpu_amx_planes(const struct k_cpu_gemm *job, uint32_t kind) {
        return is_here(job, kind) && k_planes_has(job->w->type);
}

static void quantize(uint32_t kind, const float *x, uint32_t cols, void *image_row) {
        k_cpu_linear_avx512.quantize(kind, x, cols, image_row);
}

static void rows(const struct k_cpu_gemm *job, uint32_t kind, uint8_t *scratch, uint32_t row0, uint32_t row1) {
        if (is_here(job, kind))
                rows_tiles(&types[job->w->type], job, kind, scratch, row0, row1);
        else
                k_cpu_linear_avx512.rows(job, kind, scratch, row0, row1);
}

const struct k_cpu_linear_isa k_cpu_linear_amx = { "amx", K_LINEAR_SCRATCH_AMX, quantize, rows };
