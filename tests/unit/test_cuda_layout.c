/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA layout's repack, which needs no device: codes and scales read back
 * from the planes by their documented places (layout.h) give the bits of
 * k_decode(), for every type, also where rows and columns fill no tile.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "kernels/cuda/layout.h"
#include "kernels/quant/codes.h"

static uint32_t rnd(uint32_t *seed) {
        *seed = *seed * 1664525 + 1013904223;
        return *seed >> 8;
}

static uint16_t u16_at(const uint8_t *p) {
        uint16_t v;
        memcpy(&v, p, 2);
        return v;
}

struct where { /* a weight's place within its tile */
        uint32_t lane, top, kb, half, byte;
};

static struct where place(uint32_t row, uint32_t col) {
        uint32_t in = col & 31;
        return (struct where){ .lane = 4 * (row & 7) + ((in & 15) >> 2), .top = row >> 3 & 1, .kb = col >> 5, .half = in >> 4, .byte = in & 3 };
}

static uint32_t bits2(const uint8_t *plane, const struct where *w) {
        uint32_t word = ((w->kb >> 2) * 32 + w->lane) * 4 + ((w->kb >> 1) & 1) * 2 + w->top;
        return plane[word * 4 + w->byte] >> (4 * (w->kb & 1) + 2 * w->half) & 3;
}

static uint32_t bits1(const uint8_t *plane, const struct where *w) {
        uint32_t word = w->lane * 4 + (w->kb >> 2) * 2 + w->top;
        return plane[word * 4 + w->byte] >> (2 * (w->kb & 3) + w->half) & 1;
}

static uint32_t bits4(const uint8_t *plane, const struct where *w) {
        uint32_t word = ((w->kb >> 1) * 32 + w->lane) * 4 + (w->kb & 1) * 2 + w->top;
        return plane[word * 4 + w->byte] >> (4 * w->half) & 15;
}

/* The code as the file has it: what the fill flipped is flipped back. */
static int code_at(enum k_type t, const struct cuda_planes *p, const uint8_t *code, const uint8_t *high, const struct where *w) {
        uint32_t c;

        if (p->code == CUDA_P8_BYTES)
                return (int8_t)code[((w->kb * 32 + w->lane) * 4 + 2 * w->half + w->top) * 4 + w->byte];
        c = p->code == CUDA_P4_BYTES ? bits4(code, w) : bits2(code, w);
        if (p->high == CUDA_P2_BYTES)
                c |= bits2(high, w) << 4;
        else if (p->high == CUDA_P1_BYTES)
                c |= bits1(high, w) << (p->code == CUDA_P4_BYTES ? 4 : 2);
        switch (t) {
        case K_Q4_0: return (int)(c ^ 8) - 8;
        case K_Q5_0: return (int)(c ^ 16) - 16;
        case K_Q6_K: return (int)(c ^ 32) - 32;
        case K_Q3_K: return (int)(c ^ 4) - 4;
        case K_IQ4_NL: case K_IQ4_XS: return k_lut_iq4[c];
        case K_MXFP4: case K_NVFP4: return k_lut_e2m1[c];
        case K_TQ1_0: case K_TQ2_0: return (int)c - 1;
        default: return (int)c;
        }
}

static void check_type(enum k_type t, uint32_t rows, uint32_t cols) {
        const uint32_t block = k_type_block(t), bytes = k_type_bytes(t), n_sb = DIV_ROUND_UP(cols, CUDA_TILE_COLS);
        size_t row_bytes, all = cuda_layout_bytes(t, K_LAYOUT_CUDA, rows, cols);
        struct cuda_plane_offsets o;
        struct cuda_planes p;
        struct k_codes c;
        uint32_t seed = t * 7 + rows;

        assert_true(k_type_row_bytes(t, cols, &row_bytes));
        assert_true(cuda_layout_planes(t, &p));
        cuda_layout_offsets(t, rows, cols, &o);
        assert_int_equal(all, o.bytes);
        uint8_t *src = h_malloc(row_bytes * rows), *dst = h_malloc(all + 64);
        for (size_t i = 0; i < row_bytes * rows; i++)
                src[i] = (uint8_t)(rnd(&seed) >> 5);
        memset(dst, 0xa5, all + 64);
        assert_int_equal(cuda_layout_repack(t, K_LAYOUT_CUDA, rows, cols, src, dst), 0);
        for (uint32_t i = 0; i < 64; i++)
                assert_int_equal(dst[all + i], 0xa5);
        for (uint32_t r = 0; r < rows; r++)
                for (uint32_t b = 0; b < cols / block; b++) {
                        k_codes_get(t, src + r * row_bytes + (size_t)b * bytes, &c);
                        for (uint32_t i = 0; i < block; i++) {
                                uint32_t col = b * block + i;
                                size_t tile = (size_t)(r / 16) * n_sb + col / 256;
                                struct where w = place(r & 15, col & 255);
                                assert_int_equal(code_at(t, &p, dst + o.code + tile * p.code, dst + o.high + tile * p.high, &w), c.q[i]);
                        }
                }
        /* Scales: row g's, then row g + 8's, whole; a few types with their meaning. */
        for (uint32_t r = 0; r < rows; r++)
                for (uint32_t sb = 0; sb < n_sb; sb++) {
                        size_t tile = (size_t)(r / 16) * n_sb + sb, n = p.scale / 16, m = p.super / 16, at = 2 * (r & 7) + (r >> 3 & 1);
                        const uint8_t *s = dst + o.scale + tile * p.scale + at * n, *u = dst + o.super + tile * p.super + at * m;
                        const uint8_t *b = src + r * row_bytes + (size_t)sb * (256 / block) * bytes;
                        uint32_t blocks = MIN(256u, cols - sb * 256) / block;
                        if (t == K_Q4_0 || t == K_Q8_0)
                                for (uint32_t i = 0; i < 8; i++)
                                        assert_int_equal(u16_at(s + 2 * i), i < blocks ? u16_at(b + i * bytes) : 0);
                        if (t == K_Q6_K) {
                                assert_memory_equal(s, b + 192, 16);
                                assert_memory_equal(u, b + 208, 2);
                        }
                        if (t == K_Q4_K)
                                assert_memory_equal(s, b, 16);
                        if (t == K_Q3_K) {
                                k_codes_get(t, b, &c);
                                for (uint32_t i = 0; i < 16; i++)
                                        assert_int_equal((int8_t)s[i], c.sc[i]);
                        }
                }
        free(src);
        free(dst);
}

static void test_repack(void **state) {
        (void)state;
        for (enum k_type t = 0; t < _K_TYPE_MAX; t++) {
                if (!cuda_layout_supported(t)) {
                        assert_int_equal(cuda_layout_pick(t, 64, 256, false), K_LAYOUT_FILE);
                        continue;
                }
                assert_int_equal(cuda_layout_pick(t, 64, 256, false), K_LAYOUT_CUDA);
                check_type(t, 16, 256);
                check_type(t, 37, 512);
                if (k_type_block(t) <= 64)
                        check_type(t, 5, 320);
        }
}

static void test_refuses(void **state) {
        uint8_t b[512] = { 0 };
        (void)state;
        assert_int_equal(cuda_layout_repack(K_Q4_0, K_LAYOUT_CUDA, 1, 33, b, b), -EINVAL);
        assert_int_equal(cuda_layout_repack(K_F32, K_LAYOUT_CUDA, 1, 32, b, b), -EINVAL);
        assert_int_equal(cuda_layout_bytes(K_Q4_0, K_LAYOUT_CPU, 16, 256), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_repack), cmocka_unit_test(test_refuses) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
