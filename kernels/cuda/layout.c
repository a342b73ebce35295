/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host side of K_LAYOUT_CUDA (layout.h): sizes, and the repack done once when a
 * model's image is filled. Plain C, needs no device.
 *
 * The repack works on words of four codes: row_codes() spreads 256 weights of
 * one row into word[kb][half][t] (codes of columns 32 kb + 16 half + 4t ..+3,
 * one per byte), whatever the file's own order; the plane packers only combine
 * such words. Block formats: GGUF as in kernels/types.def's sizes; bit positions
 * are those documented beside k_decode().
 */
#include "kernels/cuda/layout.h"

#include <errno.h>
#include <string.h>

struct row_tile {
        uint32_t w[8][2][4];
        uint8_t scale[32]; /* this row's part of the scale plane */
        uint8_t super[4];
};

static inline uint32_t ld32(const uint8_t *p) {
        uint32_t v;
        memcpy(&v, p, 4);
        return v;
}

bool cuda_layout_planes(enum k_type t, struct cuda_planes *ret) {
        enum { R = CUDA_TILE_ROWS };
        switch (t) {
        case K_Q4_0: case K_IQ4_NL:
                *ret = (struct cuda_planes){CUDA_P4_BYTES, 0, R * 16, 0};
                return true;
        case K_Q4_1:
                *ret = (struct cuda_planes){CUDA_P4_BYTES, 0, R * 32, 0};
                return true;
        case K_Q5_0:
                *ret = (struct cuda_planes){CUDA_P4_BYTES, CUDA_P1_BYTES, R * 16, 0};
                return true;
        case K_Q5_1:
                *ret = (struct cuda_planes){CUDA_P4_BYTES, CUDA_P1_BYTES, R * 32, 0};
                return true;
        case K_Q8_0:
                *ret = (struct cuda_planes){CUDA_P8_BYTES, 0, R * 16, 0};
                return true;
        case K_MXFP4:
                *ret = (struct cuda_planes){CUDA_P4_BYTES, 0, R * 8, 0};
                return true;
        case K_NVFP4:
                *ret = (struct cuda_planes){CUDA_P4_BYTES, 0, R * 16, 0};
                return true;
        case K_Q2_K:
                *ret = (struct cuda_planes){CUDA_P2_BYTES, 0, R * 16, R * 4};
                return true;
        case K_Q3_K:
                *ret = (struct cuda_planes){CUDA_P2_BYTES, CUDA_P1_BYTES, R * 16, R * 2};
                return true;
        case K_Q4_K:
                *ret = (struct cuda_planes){CUDA_P4_BYTES, 0, R * 16, 0};
                return true;
        case K_Q5_K:
                *ret = (struct cuda_planes){CUDA_P4_BYTES, CUDA_P1_BYTES, R * 16, 0};
                return true;
        case K_Q6_K:
                *ret = (struct cuda_planes){CUDA_P4_BYTES, CUDA_P2_BYTES, R * 16, R * 2};
                return true;
        case K_IQ4_XS:
                *ret = (struct cuda_planes){CUDA_P4_BYTES, 0, R * 8, R * 2};
                return true;
        case K_TQ1_0: case K_TQ2_0:
                *ret = (struct cuda_planes){CUDA_P2_BYTES, 0, 0, R * 2};
                return true;
        default:
                return false;
        }
}

void cuda_layout_offsets(enum k_type t, uint32_t rows, uint32_t cols, struct cuda_plane_offsets *ret) {
        struct cuda_planes p = {0};
        size_t tiles = DIV_ROUND_UP((size_t)rows, CUDA_TILE_ROWS) * DIV_ROUND_UP((size_t)cols, CUDA_TILE_COLS);

        cuda_layout_planes(t, &p);
        ret->code = 0;
        ret->high = ret->code + tiles * p.code; /* code and high are multiples of 256 */
        ret->scale = ret->high + tiles * p.high;
        ret->super = (ret->scale + tiles * p.scale + 255) & ~(size_t)255;
        ret->bytes = (ret->super + tiles * p.super + 255) & ~(size_t)255;
}

enum k_layout cuda_layout_pick(enum k_type t, uint32_t rows, uint32_t cols, bool is_embedding) {
        return cuda_layout_supported(t) && rows > 1 ? K_LAYOUT_CUDA : K_LAYOUT_FILE;
}

size_t cuda_layout_bytes(enum k_type t, enum k_layout l, uint32_t rows, uint32_t cols) {
        struct cuda_plane_offsets o;
        size_t row, all;

        if (l == K_LAYOUT_FILE)
                return k_type_row_bytes(t, cols, &row) && size_mul(row, rows, &all) ? all : 0;
        if (l != K_LAYOUT_CUDA || !cuda_layout_supported(t) || !k_type_row_bytes(t, cols, &row))
                return 0;
        cuda_layout_offsets(t, rows, cols, &o);
        return o.bytes;
}

/* ---- file blocks to words of codes -------------------------------------- */

/* 16 bytes of nibbles, low half = columns 0..15, high half = 16..31. */
static void nibbles32(uint32_t w[2][4], const uint8_t *qs) {
        for (int t = 0; t < 4; t++) {
                uint32_t v = ld32(qs + 4 * t);
                w[0][t] = v & 0x0f0f0f0f;
                w[1][t] = (v >> 4) & 0x0f0f0f0f;
        }
}

/* Four bits of a 32-bit mask, starting at 'at', to bit 4 of four bytes. */
static inline uint32_t spread_bit4(uint32_t mask, int at) {
        uint32_t b = (mask >> at) & 15;
        return (b & 1) << 4 | (b & 2) << 11 | (b & 4) << 18 | (b & 8) << 25;
}

static void row_32(enum k_type t, const uint8_t *b, uint32_t n_block, struct row_tile *o) {
        uint32_t bytes = k_type_bytes(t);

        for (uint32_t kb = 0; kb < n_block; kb++, b += bytes) {
                switch (t) {
                case K_Q4_0: case K_IQ4_NL:
                        memcpy(o->scale + 2 * kb, b, 2);
                        nibbles32(o->w[kb], b + 2);
                        break;
                case K_Q4_1:
                        memcpy(o->scale + 2 * kb, b, 2);
                        memcpy(o->scale + 16 + 2 * kb, b + 2, 2);
                        nibbles32(o->w[kb], b + 4);
                        break;
                case K_Q5_0: case K_Q5_1: {
                        size_t head = t == K_Q5_0 ? 2 : 4;
                        uint32_t qh = ld32(b + head);
                        memcpy(o->scale + 2 * kb, b, 2);
                        if (t == K_Q5_1)
                                memcpy(o->scale + 16 + 2 * kb, b + 2, 2);
                        nibbles32(o->w[kb], b + head + 4);
                        for (int i = 0; i < 8; i++)
                                o->w[kb][i >> 2][i & 3] |= spread_bit4(qh, 4 * i);
                        break;
                }
                case K_Q8_0:
                        memcpy(o->scale + 2 * kb, b, 2);
                        memcpy(o->w[kb], b + 2, 32);
                        break;
                case K_MXFP4:
                        o->scale[kb] = b[0];
                        nibbles32(o->w[kb], b + 1);
                        break;
                default:
                        break;
                }
        }
}

/* NVFP4: 64 weights, 4 scales, then per 16 weights 8 bytes: low nibbles first. */
static void row_nvfp4(const uint8_t *b, uint32_t n_block, struct row_tile *o) {
        for (uint32_t i = 0; i < n_block; i++, b += 36) {
                for (int s = 0; s < 4; s++) {
                        uint32_t *w = o->w[2 * i + (s >> 1)][s & 1];
                        uint32_t lo = ld32(b + 4 + 8 * s), hi = ld32(b + 8 + 8 * s);
                        o->scale[4 * i + s] = b[s];
                        w[0] = lo & 0x0f0f0f0f;
                        w[1] = hi & 0x0f0f0f0f;
                        w[2] = (lo >> 4) & 0x0f0f0f0f;
                        w[3] = (hi >> 4) & 0x0f0f0f0f;
                }
        }
}

static void row_256(enum k_type t, const uint8_t *b, struct row_tile *o) {
        uint32_t (*w)[2][4] = o->w;

        switch (t) {
        case K_Q2_K: case K_Q3_K: {
                const uint8_t *qs = t == K_Q2_K ? b + 16 : b + 32;
                for (int kb = 0; kb < 8; kb++)
                        for (int i = 0; i < 8; i++)
                                w[kb][i >> 2][i & 3] = (ld32(qs + 32 * (kb >> 2) + 4 * i) >> (2 * (kb & 3))) & 0x03030303;
                if (t == K_Q2_K) {
                        memcpy(o->scale, b, 16);
                        memcpy(o->super, b + 80, 4);
                        break;
                }
                for (int kb = 0; kb < 8; kb++)
                        for (int i = 0; i < 8; i++)
                                w[kb][i >> 2][i & 3] |= ((ld32(b + 4 * i) >> kb) & 0x01010101) << 2;
                for (int s = 0; s < 16; s++) {
                        const uint8_t *sc = b + 96;
                        int low = s < 8 ? sc[s] & 15 : sc[s - 8] >> 4, high = (sc[8 + (s & 3)] >> (2 * (s >> 2))) & 3;
                        o->scale[s] = (uint8_t)(int8_t)((low | high << 4) - 32);
                }
                memcpy(o->super, b + 108, 2);
                break;
        }
        case K_Q4_K: case K_Q5_K: {
                const uint8_t *qs = t == K_Q4_K ? b + 16 : b + 48;
                memcpy(o->scale, b, 16);
                for (int kb = 0; kb < 8; kb++)
                        for (int i = 0; i < 8; i++) {
                                uint32_t v = ld32(qs + 32 * (kb >> 1) + 4 * i) >> (4 * (kb & 1)) & 0x0f0f0f0f;
                                if (t == K_Q5_K)
                                        v |= ((ld32(b + 16 + 4 * i) >> kb) & 0x01010101) << 4;
                                w[kb][i >> 2][i & 3] = v;
                        }
                break;
        }
        case K_Q6_K:
                for (int kb = 0; kb < 8; kb++) {
                        const uint8_t *ql = b + 64 * (kb >> 2) + 32 * (kb & 1), *qh = b + 128 + 32 * (kb >> 2);
                        for (int i = 0; i < 8; i++)
                                w[kb][i >> 2][i & 3] = ((ld32(ql + 4 * i) >> (4 * ((kb >> 1) & 1))) & 0x0f0f0f0f) |
                                                       ((ld32(qh + 4 * i) >> (2 * (kb & 3))) & 0x03030303) << 4;
                }
                memcpy(o->scale, b + 192, 16);
                memcpy(o->super, b + 208, 2);
                break;
        case K_IQ4_XS: {
                uint32_t high = b[2] | (uint32_t)b[3] << 8;
                for (int kb = 0; kb < 8; kb++) {
                        int ls = ((b[4 + (kb >> 1)] >> (4 * (kb & 1))) & 15) | ((high >> (2 * kb)) & 3) << 4;
                        o->scale[kb] = (uint8_t)(int8_t)(ls - 32);
                        nibbles32(w[kb], b + 8 + 16 * kb);
                }
                memcpy(o->super, b, 2);
                break;
        }
        case K_TQ2_0:
                for (int kb = 0; kb < 8; kb++)
                        for (int i = 0; i < 8; i++)
                                w[kb][i >> 2][i & 3] = (ld32(b + 32 * (kb >> 2) + 4 * i) >> (2 * (kb & 3))) & 0x03030303;
                memcpy(o->super, b + 64, 2);
                break;
        case K_TQ1_0: {
                static const uint8_t pow3[5] = {1, 3, 9, 27, 81};
                uint8_t code[256];
                int at = 0;
                for (int n = 0; n < 5; n++)
                        for (int m = 0; m < 32; m++)
                                code[at++] = (uint16_t)((uint8_t)(b[m] * pow3[n]) * 3) >> 8;
                for (int n = 0; n < 5; n++)
                        for (int m = 0; m < 16; m++)
                                code[at++] = (uint16_t)((uint8_t)(b[32 + m] * pow3[n]) * 3) >> 8;
                for (int n = 0; n < 4; n++)
                        for (int m = 0; m < 4; m++)
                                code[at++] = (uint16_t)((uint8_t)(b[48 + m] * pow3[n]) * 3) >> 8;
                memcpy(w, code, 256);
                memcpy(o->super, b + 52, 2);
                break;
        }
        default:
                break;
        }
}

/* ---- planes -------------------------------------------------------------- */

/* The bit that makes a code two's complement, in every byte; 0 for unsigned codes and table indices. */
static uint32_t sign_flip(enum k_type t) {
        switch (t) {
        case K_Q4_0: return 0x08080808;
        case K_Q5_0: return 0x10101010;
        case K_Q6_K: return 0x20202020;
        case K_Q3_K: return 0x04040404;
        default: return 0;
        }
}

static void pack_tile(enum k_type t, const struct cuda_planes *p, struct row_tile rt[CUDA_TILE_ROWS], uint8_t *code,
                      uint8_t *high, uint8_t *scale, uint8_t *super) {
        uint32_t flip = sign_flip(t);
        int bits = p->code == CUDA_P8_BYTES ? 8 : p->code == CUDA_P4_BYTES ? 4 : 2;
        uint32_t *c = (uint32_t *)code, *h = (uint32_t *)high;

        if (p->high)
                memset(high, 0, p->high);
        if (bits == 2)
                memset(code, 0, p->code);
        for (int r = 0; r < CUDA_TILE_ROWS; r++) {
                int g = r & 7, top = r >> 3;
                for (int kb = 0; kb < 8; kb++)
                        for (int l = 0; l < 4; l++) {
                                int lane = 4 * g + l;
                                uint32_t a = rt[r].w[kb][0][l] ^ flip, b = rt[r].w[kb][1][l] ^ flip;
                                if (bits == 8) {
                                        c[(kb * 32 + lane) * 4 + top] = a;
                                        c[(kb * 32 + lane) * 4 + 2 + top] = b;
                                        continue;
                                }
                                uint32_t up_a, up_b;
                                if (bits == 4) {
                                        c[((kb >> 1) * 32 + lane) * 4 + (kb & 1) * 2 + top] = (a & 0x0f0f0f0f) | (b & 0x0f0f0f0f) << 4;
                                        up_a = (a >> 4) & 0x0f0f0f0f;
                                        up_b = (b >> 4) & 0x0f0f0f0f;
                                } else {
                                        c[((kb >> 2) * 32 + lane) * 4 + ((kb >> 1) & 1) * 2 + top] |=
                                                ((a & 0x03030303) | (b & 0x03030303) << 2) << (4 * (kb & 1));
                                        up_a = (a >> 2) & 0x0f0f0f0f;
                                        up_b = (b >> 2) & 0x0f0f0f0f;
                                }
                                if (p->high == CUDA_P2_BYTES)
                                        h[((kb >> 2) * 32 + lane) * 4 + ((kb >> 1) & 1) * 2 + top] |=
                                                ((up_a & 0x03030303) | (up_b & 0x03030303) << 2) << (4 * (kb & 1));
                                else if (p->high == CUDA_P1_BYTES)
                                        h[lane * 4 + (kb >> 2) * 2 + top] |=
                                                ((up_a & 0x01010101) | (up_b & 0x01010101) << 1) << (2 * (kb & 3));
                        }
                /* Scales: lane group g reads rows g and g + 8 one after the other. */
                if (p->scale) {
                        size_t n = p->scale / CUDA_TILE_ROWS;
                        memcpy(scale + (2 * g + top) * n, rt[r].scale, n);
                }
                if (p->super) {
                        size_t n = p->super / CUDA_TILE_ROWS;
                        memcpy(super + (2 * g + top) * n, rt[r].super, n);
                }
        }
}

int cuda_layout_repack(enum k_type t, enum k_layout l, uint32_t rows, uint32_t cols, const void *src, void *dst) {
        struct cuda_plane_offsets o;
        struct cuda_planes p;
        struct row_tile rt[CUDA_TILE_ROWS];
        uint32_t block = k_type_block(t), n_sb = DIV_ROUND_UP(cols, CUDA_TILE_COLS);
        size_t row_bytes;

        if (!k_type_row_bytes(t, cols, &row_bytes))
                return -EINVAL;
        if (l == K_LAYOUT_FILE) {
                memcpy(dst, src, row_bytes * rows);
                return 0;
        }
        if (l != K_LAYOUT_CUDA || !cuda_layout_planes(t, &p))
                return -EINVAL;
        cuda_layout_offsets(t, rows, cols, &o);
        for (uint32_t rg = 0; rg < DIV_ROUND_UP(rows, CUDA_TILE_ROWS); rg++)
                for (uint32_t sb = 0; sb < n_sb; sb++) {
                        size_t tile = (size_t)rg * n_sb + sb;
                        uint32_t n = MIN(cols - sb * CUDA_TILE_COLS, (uint32_t)CUDA_TILE_COLS) / block;
                        memset(rt, 0, sizeof(rt));
                        for (uint32_t r = 0; r < CUDA_TILE_ROWS && rg * CUDA_TILE_ROWS + r < rows; r++) {
                                const uint8_t *b = (const uint8_t *)src + (size_t)(rg * CUDA_TILE_ROWS + r) * row_bytes +
                                                   (size_t)sb * (CUDA_TILE_COLS / block) * k_type_bytes(t);
                                if (block == 32)
                                        row_32(t, b, n, &rt[r]);
                                else if (block == 64)
                                        row_nvfp4(b, n, &rt[r]);
                                else
                                        row_256(t, b, &rt[r]);
                        }
                        pack_tile(t, &p, rt, (uint8_t *)dst + o.code + tile * p.code, (uint8_t *)dst + o.high + tile * p.high,
                                  (uint8_t *)dst + o.scale + tile * p.scale, (uint8_t *)dst + o.super + tile * p.super);
                }
        if (o.super > o.scale + (size_t)DIV_ROUND_UP(rows, CUDA_TILE_ROWS) * n_sb * p.scale) {
                size_t end = o.scale + (size_t)DIV_ROUND_UP(rows, CUDA_TILE_ROWS) * n_sb * p.scale;
                memset((uint8_t *)dst + end, 0, o.super - end);
        }
        size_t end = o.super + (size_t)DIV_ROUND_UP(rows, CUDA_TILE_ROWS) * n_sb * p.super;
        memset((uint8_t *)dst + end, 0, o.bytes - end);
        return 0;
}
