/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One weight of a row in FILE layout, for the types that have no planes: float
 * types and the lattice formats (kernels/quant/codes_iq.c is the reference and
 * documents the bits). The lattices are copied to the device at open.
 */

#include <cuda_fp16.h>

#include "kernels/cuda/cuda.cuh"
#include "kernels/quant/grids.h"

struct iq_grids {
        uint16_t iq2_xxs[256], iq2_xs[512], iq2_s[1024], iq3_xxs[256], iq3_s[512], iq1_s[2048];
};
static __device__ struct iq_grids iq; /* this file's own; iq_upload() at open */

static int iq_upload(struct cuda_dev *d) {
        struct iq_grids g;
        memcpy(g.iq2_xxs, k_grid_iq2_xxs, sizeof(g.iq2_xxs));
        memcpy(g.iq2_xs, k_grid_iq2_xs, sizeof(g.iq2_xs));
        memcpy(g.iq2_s, k_grid_iq2_s, sizeof(g.iq2_s));
        memcpy(g.iq3_xxs, k_grid_iq3_xxs, sizeof(g.iq3_xxs));
        memcpy(g.iq3_s, k_grid_iq3_s, sizeof(g.iq3_s));
        memcpy(g.iq1_s, k_grid_iq1_s, sizeof(g.iq1_s));
        CUDA_TRY(d, cudaMemcpyToSymbol(iq, &g, sizeof(g)), "tables");
        return 0;
}

static __device__ __forceinline__ uint32_t iq_u16(const uint8_t *p) { return p[0] | (uint32_t)p[1] << 8; }
static __device__ __forceinline__ uint32_t iq_u32(const uint8_t *p) { return iq_u16(p) | iq_u16(p + 2) << 16; }
static __device__ __forceinline__ float iq_f16(uint32_t v) { return __half2float(__ushort_as_half((unsigned short)v)); }
static __device__ __forceinline__ uint32_t iq_even(uint32_t s7) { return s7 | (uint32_t)(__popc(s7) & 1) << 7; }
static __device__ __forceinline__ int iq_mag8(uint32_t g, uint32_t j) {
        uint32_t m = (g >> (2 * j)) & 3;
        return m == 0 ? 8 : m == 1 ? 25 : m == 2 ? 43 : 0;
}
static __device__ __forceinline__ int iq_mag3(uint32_t g, uint32_t j) {
        uint32_t m = (g >> (3 * j)) & 7;
        return m == 7 ? 62 : 4 + 8 * (int)m;
}

static __device__ float iq_value(enum k_type type, const uint8_t *b, uint32_t c) {
        uint32_t i = c >> 3, j = c & 7, g = c >> 4, s = 0;
        float d = iq_f16(iq_u16(b));
        int q;

        switch (type) {
        case K_IQ2_XXS: {
                const uint8_t *p = b + 2 + i / 4 * 8;
                uint32_t a = iq_u32(p + 4), sign = iq_even((a >> (7 * (i % 4))) & 127);
                q = iq_mag8(iq.iq2_xxs[p[i % 4]], j);
                q = (sign >> j) & 1 ? -q : q;
                s = a >> 28;
                d *= 0.125f;
                break;
        }
        case K_IQ2_XS: {
                uint32_t v = iq_u16(b + 2 + 2 * i), sign = iq_even(v >> 9);
                q = iq_mag8(iq.iq2_xs[v & 511], j);
                q = (sign >> j) & 1 ? -q : q;
                s = (b[66 + g / 2] >> (g % 2 * 4)) & 15;
                d *= 0.125f;
                break;
        }
        case K_IQ2_S: {
                uint32_t hi = (b[66 + i / 4] >> (2 * (i % 4))) & 3;
                q = iq_mag8(iq.iq2_s[b[2 + i] | hi << 8], j);
                q = (b[34 + i] >> j) & 1 ? -q : q;
                s = (b[74 + g / 2] >> (g % 2 * 4)) & 15;
                d *= 0.125f;
                break;
        }
        case K_IQ3_XXS: {
                uint32_t a = iq_u32(b + 66 + i / 4 * 4), sign = iq_even((a >> (7 * (i % 4))) & 127);
                q = iq_mag3(iq.iq3_xxs[b[2 + 2 * i + (j >> 2)]], j & 3);
                q = (sign >> j) & 1 ? -q : q;
                s = a >> 28;
                d *= 0.25f;
                break;
        }
        case K_IQ3_S: {
                uint32_t hi = b[66 + i / 4] >> (2 * (i % 4));
                uint32_t e = b[2 + 2 * i + (j >> 2)] | ((hi >> (j >> 2)) & 1) << 8;
                q = 2 * (int)((iq.iq3_s[e] >> (3 * (j & 3))) & 7) + 1;
                q = (b[74 + i] >> j) & 1 ? -q : q;
                s = (b[106 + g / 4] >> (g / 2 % 2 * 4)) & 15;
                break;
        }
        case K_IQ1_S: {
                uint32_t h = iq_u16(b + 34 + i / 4 * 2);
                q = ((int)((iq.iq1_s[b[2 + i] | ((h >> (3 * (i % 4))) & 7) << 8] >> (2 * j)) & 3) - 1) * 8 + (h >> 15 ? -1 : 1);
                s = (h >> 12) & 7;
                d *= 0.125f;
                break;
        }
        case K_IQ1_M: {
                uint32_t h = b[32 + i / 2] >> (i % 2 * 4), top = 0;
                q = ((int)((iq.iq1_s[b[i] | (h & 7) << 8] >> (2 * j)) & 3) - 1) * 8 + ((h >> 3) & 1 ? -1 : 1);
                s = (iq_u16(b + 48 + g / 4 * 2) >> (g % 4 * 3)) & 7;
                for (uint32_t k = 0; k < 4; k++)
                        top |= (iq_u16(b + 48 + 2 * k) >> 12) << (4 * k);
                d = iq_f16(top) * 0.125f;
                break;
        }
        default:
                return 0;
        }
        return __fmul_rn(__fmul_rn(d, (float)(2 * (int)s + 1)), (float)q);
}

static __device__ __forceinline__ uint32_t iq_block_bytes(enum k_type t) {
        switch (t) {
#define KT(name, id, block, bytes) case K_##name: return bytes;
#include "kernels/types.def"
#undef KT
        default: return 0;
        }
}

/* Weight c of a row in FILE layout. */
static __device__ __forceinline__ float file_value(enum k_type type, const uint8_t *row, uint32_t c) {
        switch (type) {
        case K_F32: return ((const float *)row)[c];
        case K_F16: return __half2float(((const __half *)row)[c]);
        case K_BF16: return __uint_as_float((uint32_t)((const uint16_t *)row)[c] << 16);
        case K_I32: return (float)((const int32_t *)row)[c];
        default: return iq_value(type, row + (size_t)(c >> 8) * iq_block_bytes(type), c & 255);
        }
}
