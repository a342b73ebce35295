/* SPDX-License-Identifier: Apache-2.0 */
/*
 * K_LAYOUT_CUDA back to the blocks of the file, for processors that compute on
 * the same bytes as the card: the inverse of layout.c, row by row. Needs no
 * device.
 */
#include "kernels/cuda/layout_file.h"

#include <string.h>

static inline uint32_t ld32(const uint8_t *p) {
        uint32_t v;
        memcpy(&v, p, 4);
        return v;
}

static inline void st32(uint8_t *p, uint32_t v) {
        memcpy(p, &v, 4);
}

static inline void or32(uint8_t *p, uint32_t v) {
        st32(p, ld32(p) | v);
}

/* Words of four codes of row r of a tile, in the file's numbering: layout.c, pack_tile(). */
static void tile_words(enum k_type t, const struct cuda_planes *p, const uint8_t *code, const uint8_t *high, int r, uint32_t w[8][2][4]) {
        int g = r & 7, top = r >> 3, bits = p->code == CUDA_P8_BYTES ? 8 : p->code == CUDA_P4_BYTES ? 4 : 2;
        uint32_t flip = t == K_Q4_0 ? 0x08080808 : t == K_Q5_0 ? 0x10101010 : t == K_Q6_K ? 0x20202020 : t == K_Q3_K ? 0x04040404 : 0;

        for (int kb = 0; kb < 8; kb++)
                for (int l = 0; l < 4; l++) {
                        int lane = 4 * g + l;
                        size_t pairs = (size_t)(((kb >> 2) * 32 + lane) * 4 + ((kb >> 1) & 1) * 2 + top) * 4;
                        uint32_t a, b, v, up;

                        if (bits == 8) {
                                w[kb][0][l] = ld32(code + (size_t)((kb * 32 + lane) * 4 + top) * 4);
                                w[kb][1][l] = ld32(code + (size_t)((kb * 32 + lane) * 4 + 2 + top) * 4);
                                continue;
                        }
                        if (bits == 4) {
                                v = ld32(code + (size_t)(((kb >> 1) * 32 + lane) * 4 + (kb & 1) * 2 + top) * 4);
                                a = v & 0x0f0f0f0f;
                                b = (v >> 4) & 0x0f0f0f0f;
                        } else {
                                v = ld32(code + pairs) >> (4 * (kb & 1));
                                a = v & 0x03030303;
                                b = (v >> 2) & 0x03030303;
                        }
                        if (p->high == CUDA_P2_BYTES) {
                                up = ld32(high + pairs) >> (4 * (kb & 1));
                                a |= (up & 0x03030303) << bits;
                                b |= ((up >> 2) & 0x03030303) << bits;
                        } else if (p->high == CUDA_P1_BYTES) {
                                up = ld32(high + (size_t)(lane * 4 + (kb >> 2) * 2 + top) * 4) >> (2 * (kb & 3));
                                a |= (up & 0x01010101) << bits;
                                b |= ((up >> 1) & 0x01010101) << bits;
                        }
                        w[kb][0][l] = a ^ flip;
                        w[kb][1][l] = b ^ flip;
                }
}

static void put_nibbles(uint8_t *qs, uint32_t w[2][4]) {
        for (int t = 0; t < 4; t++)
                st32(qs + 4 * t, (w[0][t] & 0x0f0f0f0f) | (w[1][t] & 0x0f0f0f0f) << 4);
}

static uint32_t fifth_bits(uint32_t w[2][4]) {
        uint32_t m = 0;

        for (int i = 0; i < 8; i++) {
                uint32_t v = w[i >> 2][i & 3] >> 4;
                m |= ((v & 1) | (v >> 7 & 2) | (v >> 14 & 4) | (v >> 21 & 8)) << (4 * i);
        }
        return m;
}

static void block_32(enum k_type t, uint32_t w[2][4], const uint8_t *scale, int kb, uint8_t *b) {
        switch (t) {
        case K_Q4_0: case K_IQ4_NL:
                memcpy(b, scale + 2 * kb, 2);
                put_nibbles(b + 2, w);
                break;
        case K_Q4_1:
                memcpy(b, scale + 2 * kb, 2);
                memcpy(b + 2, scale + 16 + 2 * kb, 2);
                put_nibbles(b + 4, w);
                break;
        case K_Q5_0: case K_Q5_1: {
                size_t head = t == K_Q5_0 ? 2 : 4;
                memcpy(b, scale + 2 * kb, 2);
                if (t == K_Q5_1)
                        memcpy(b + 2, scale + 16 + 2 * kb, 2);
                st32(b + head, fifth_bits(w));
                put_nibbles(b + head + 4, w);
                break;
        }
        case K_Q8_0:
                memcpy(b, scale + 2 * kb, 2);
                memcpy(b + 2, w, 32);
                break;
        case K_MXFP4:
                b[0] = scale[kb];
                put_nibbles(b + 1, w);
                break;
        default:
                break;
        }
}

static void block_nvfp4(uint32_t w[8][2][4], const uint8_t *scale, int i, uint8_t *b) {
        for (int s = 0; s < 4; s++) {
                const uint32_t *q = w[2 * i + (s >> 1)][s & 1];

                b[s] = scale[4 * i + s];
                st32(b + 4 + 8 * s, q[0] | q[2] << 4);
                st32(b + 8 + 8 * s, q[1] | q[3] << 4);
        }
}

static void block_tq1(uint32_t w[8][2][4], const uint8_t *super, uint8_t *b) {
        const uint8_t *code = (const uint8_t *)w;

        for (int i = 0; i < 52; i++) {
                int v = 0, n = i < 48 ? 5 : 4, run = i < 32 ? 32 : i < 48 ? 16 : 4, m = i < 32 ? i : i < 48 ? i - 32 : i - 48;
                const uint8_t *from = code + (i < 32 ? 0 : i < 48 ? 160 : 240);

                for (int k = 0; k < n; k++)
                        v = v * 3 + from[k * run + m];
                if (n == 4)
                        v *= 3;
                b[i] = (uint8_t)((v * 256 + 242) / 243); /* the byte whose digits, taken by multiplying, are these */
        }
        memcpy(b + 52, super, 2);
}

static void block_256(enum k_type t, uint32_t w[8][2][4], const uint8_t *scale, const uint8_t *super, uint8_t *b) {
        memset(b, 0, k_type_bytes(t));
        switch (t) {
        case K_Q2_K: case K_Q3_K: {
                uint8_t *qs = t == K_Q2_K ? b + 16 : b + 32;
                for (int kb = 0; kb < 8; kb++)
                        for (int i = 0; i < 8; i++) {
                                uint32_t v = w[kb][i >> 2][i & 3];
                                or32(qs + 32 * (kb >> 2) + 4 * i, (v & 0x03030303) << (2 * (kb & 3)));
                                if (t == K_Q3_K)
                                        or32(b + 4 * i, (v >> 2 & 0x01010101) << kb);
                        }
                if (t == K_Q2_K) {
                        memcpy(b, scale, 16);
                        memcpy(b + 80, super, 4);
                        break;
                }
                for (int s = 0; s < 16; s++) {
                        int v = (int8_t)scale[s] + 32;
                        b[96 + (s & 7)] |= (uint8_t)((v & 15) << (s < 8 ? 0 : 4));
                        b[104 + (s & 3)] |= (uint8_t)((v >> 4) << (2 * (s >> 2)));
                }
                memcpy(b + 108, super, 2);
                break;
        }
        case K_Q4_K: case K_Q5_K: {
                uint8_t *qs = t == K_Q4_K ? b + 16 : b + 48;
                memcpy(b, scale, 16);
                for (int kb = 0; kb < 8; kb++)
                        for (int i = 0; i < 8; i++) {
                                uint32_t v = w[kb][i >> 2][i & 3];
                                or32(qs + 32 * (kb >> 1) + 4 * i, (v & 0x0f0f0f0f) << (4 * (kb & 1)));
                                if (t == K_Q5_K)
                                        or32(b + 16 + 4 * i, (v >> 4 & 0x01010101) << kb);
                        }
                break;
        }
        case K_Q6_K:
                for (int kb = 0; kb < 8; kb++)
                        for (int i = 0; i < 8; i++) {
                                uint32_t v = w[kb][i >> 2][i & 3];
                                or32(b + 64 * (kb >> 2) + 32 * (kb & 1) + 4 * i, (v & 0x0f0f0f0f) << (4 * ((kb >> 1) & 1)));
                                or32(b + 128 + 32 * (kb >> 2) + 4 * i, (v >> 4 & 0x03030303) << (2 * (kb & 3)));
                        }
                memcpy(b + 192, scale, 16);
                memcpy(b + 208, super, 2);
                break;
        case K_IQ4_XS:
                for (int kb = 0; kb < 8; kb++) {
                        int ls = (int8_t)scale[kb] + 32;
                        b[4 + (kb >> 1)] |= (uint8_t)((ls & 15) << (4 * (kb & 1)));
                        b[2 + (kb >> 2)] |= (uint8_t)((ls >> 4) << (2 * (kb & 3)));
                        put_nibbles(b + 8 + 16 * kb, w[kb]);
                }
                memcpy(b, super, 2);
                break;
        case K_TQ2_0:
                for (int kb = 0; kb < 8; kb++)
                        for (int i = 0; i < 8; i++)
                                or32(b + 32 * (kb >> 2) + 4 * i, (w[kb][i >> 2][i & 3] & 0x03030303) << (2 * (kb & 3)));
                memcpy(b + 64, super, 2);
                break;
        case K_TQ1_0:
                block_tq1(w, super, b);
                break;
        default:
                break;
        }
}

bool cuda_layout_to_file(enum k_type t, uint32_t rows, uint32_t cols, const void *data, uint32_t row, void *dst) {
        uint32_t block = k_type_block(t), bytes = k_type_bytes(t), n_sb = DIV_ROUND_UP(cols, CUDA_TILE_COLS), r = row % CUDA_TILE_ROWS;
        size_t at = 2 * (size_t)(r & 7) + (r >> 3);
        const uint8_t *base = data;
        struct cuda_plane_offsets o;
        struct cuda_planes p;
        uint8_t *out = dst;

        if (!cuda_layout_planes(t, &p) || row >= rows)
                return false;
        cuda_layout_offsets(t, rows, cols, &o);
        for (uint32_t sb = 0; sb < n_sb; sb++) {
                size_t tile = (size_t)(row / CUDA_TILE_ROWS) * n_sb + sb;
                uint32_t w[8][2][4], n = MIN(cols - sb * CUDA_TILE_COLS, (uint32_t)CUDA_TILE_COLS) / block;
                const uint8_t *scale = base + o.scale + tile * p.scale + at * (p.scale / CUDA_TILE_ROWS);
                const uint8_t *super = base + o.super + tile * p.super + at * (p.super / CUDA_TILE_ROWS);

                tile_words(t, &p, base + o.code + tile * p.code, base + o.high + tile * p.high, (int)r, w);
                for (uint32_t i = 0; i < n; i++, out += bytes)
                        if (block == 32)
                                block_32(t, w[i], scale, (int)i, out);
                        else if (block == 64)
                                block_nvfp4(w, scale, (int)i, out);
                        else
                                block_256(t, w, scale, super, out);
        }
        return true;
}
