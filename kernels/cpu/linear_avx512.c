/* SPDX-License-Identifier: Apache-2.0 */
/* Products with AVX-512 and VNNI: which tile each type uses. */
#include "kernels/cpu/tile_avx512.h"

#include "kernels/cpu/linear_wide.h"

#define FN(name, n, source, call)                                                                                   \
        static void name(const uint8_t *codes, const struct k_panel *p, uint32_t cols, const struct tok *tok) {       \
                enum { T = n };                                                                                     \
                const struct codes c = source;                                                                        \
                (void)cols;                                                                                           \
                call;                                                                                               \
        }
/* A type's tiles on panels. */
#define PANEL(t, is_signed, call)                             \
        FN(t##_p1, 1, from_panel(codes, is_signed), call)      \
        FN(t##_p2, 2, from_panel(codes, is_signed), call)      \
        FN(t##_p4, 4, from_panel(codes, is_signed), call)      \
        FN(t##_p8, 8, from_panel(codes, is_signed), call)
/* And those of a type with a K_LAYOUT_CPU of 'bits' in units of 'unit' columns. */
#define PLANES(t, bits, unit, is_signed, call)                                                         \
        PANEL(t, is_signed, call)                                                                      \
        static void t##_head(struct k_panel *p, const uint8_t *head, uint32_t cols) {                  \
                unpack_head(K_##t, p, head, cols);                                                     \
        }                                                                                              \
        FN(t##_k1, 1, from_planes(K_##t, codes, bits, unit, is_signed), call)                          \
        FN(t##_k2, 2, from_planes(K_##t, codes, bits, unit, is_signed), call)                          \
        static void t##_codes(uint8_t *q, const uint8_t *codes, uint32_t cols) {                       \
                codes_panel_512(from_planes(K_##t, codes, bits, unit, is_signed), q, cols);                \
        }

/*            bits unit signed                               group center min */
PLANES(Q4_0,    4,  32, false, tile_float_512(c, p, cols, tok, T, 32,   8, false))
PLANES(Q4_1,    4,  32, false, tile_float_512(c, p, cols, tok, T, 32,   0, true))
PLANES(Q5_0,    5,  32, false, tile_float_512(c, p, cols, tok, T, 32,  16, false))
PLANES(Q5_1,    5,  32, false, tile_float_512(c, p, cols, tok, T, 32,   0, true))
PLANES(Q8_0,    8,  32, true,  tile_float_512(c, p, cols, tok, T, 32, 128, false))
PLANES(IQ4_NL,  4,  32, true,  tile_float_512(c, p, cols, tok, T, 32, 128, false))
PLANES(MXFP4,   4,  32, false, tile_float_512(c, p, cols, tok, T, 32,  12, false))
PLANES(NVFP4,   4,  64, false, tile_float_512(c, p, cols, tok, T, 16,  12, false))
/*                                              group scales center small mins */
PLANES(Q2_K,    2, 256, false, tile_int_512(c, p, tok, T, 16, 16,   0, true,  16)) /* 16 * 3 * 127 */
PLANES(Q3_K,    3, 256, false, tile_int_512(c, p, tok, T, 16, 16,   4, true,   0)) /* 16 * 4 * 127 */
PLANES(Q4_K,    4, 256, false, tile_int_512(c, p, tok, T, 16, 32,   0, true,  32)) /* 16 * 15 * 127 */
PLANES(Q5_K,    5, 256, false, tile_int_512(c, p, tok, T, 16, 16,   0, false, 32))
PLANES(Q6_K,    6, 256, false, tile_int_512(c, p, tok, T, 16, 16,  32, false,  0))
PLANES(IQ4_XS,  4, 256, true,  tile_int_512(c, p, tok, T, 32, 32, 128, false,  0))
PLANES(TQ2_0,   2, 256, false, tile_int_512(c, p, tok, T, 32, 32,   1, true,   0)) /* 32 * 2 * 127 */
PANEL(IQ1_S,   false, tile_int_512(c, p, tok, T, 32, 32,   9, false, 0))
PANEL(IQ1_M,   false, tile_int_512(c, p, tok, T, 16, 16,   9, true,  0)) /* 16 * 9 * 127 */
PANEL(IQ3_S,   false, tile_int_512(c, p, tok, T, 32, 32,  16, false, 0))
PANEL(IQ2_XXS, true,  tile_int_512(c, p, tok, T, 32, 32, 128, false, 0))
PANEL(IQ2_XS,  true,  tile_int_512(c, p, tok, T, 16, 16, 128, false, 0))

#define PANEL_FNS(t) .panel = { [0] = t##_p1, [1] = t##_p2, [3] = t##_p4, [7] = t##_p8 }

static void plain(const float *w, uint32_t cols, const float *const *x, float *const *acc, uint32_t T) {
        switch (T) {
        case 1: tile_plain_512(w, cols, x, acc, 1); break;
        case 2: tile_plain_512(w, cols, x, acc, 2); break;
        case 3: tile_plain_512(w, cols, x, acc, 3); break;
        case 4: tile_plain_512(w, cols, x, acc, 4); break;
        case 5: tile_plain_512(w, cols, x, acc, 5); break;
        case 6: tile_plain_512(w, cols, x, acc, 6); break;
        case 7: tile_plain_512(w, cols, x, acc, 7); break;
        case 8: tile_plain_512(w, cols, x, acc, 8); break;
        }
}

#include "kernels/cpu/linear_types.h"

const struct k_cpu_linear_isa k_cpu_linear_avx512 = { "avx512-vnni", K_LINEAR_SCRATCH, quantize, rows };
