/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * K_LAYOUT_CUDA: a quantized matrix as planes of tiles. A tile is 16 rows by
 * 256 columns; tiles lie row group by row group, then along the columns. Rows
 * are padded to 16 and columns to 256 with zero scales. Every plane starts at a
 * multiple of 256 bytes, and within a tile a plane is in the order in which a
 * warp's lanes load it, so that each load is 16 bytes wide and a warp's loads
 * are contiguous. The order is the A fragment of mma.m16n8k32 (PTX ISA, matrix
 * fragments for .s8): lane = 4 g + t holds, of rows g and g + 8 and of each 32
 * columns, columns 4t..4t+3 and 16+4t..16+4t+3.
 *
 * Values are those of the file: codes are moved, never rounded. Codes whose
 * zero is in the middle are stored in two's complement so that a shift into the
 * top of a byte sign-extends them.
 */

#include "kernels/types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
        CUDA_TILE_ROWS = 16,
        CUDA_TILE_COLS = 256,
        CUDA_P4_BYTES = 2048, /* low 4 bits of 16 x 256 codes */
        CUDA_P2_BYTES = 1024,
        CUDA_P1_BYTES = 512,
        CUDA_P8_BYTES = 4096,
};

/* Bytes per tile of the four planes: main codes, further code bits, block scales, super-block scales. */
struct cuda_planes {
        uint16_t code, high, scale, super;
};

static inline bool cuda_layout_supported(enum k_type t) {
        switch (t) {
        case K_Q4_0: case K_Q4_1: case K_Q5_0: case K_Q5_1: case K_Q8_0: case K_Q2_K: case K_Q3_K: case K_Q4_K:
        case K_Q5_K: case K_Q6_K: case K_IQ4_NL: case K_IQ4_XS: case K_TQ1_0: case K_TQ2_0: case K_MXFP4: case K_NVFP4:
                return true;
        default:
                return false;
        }
}

bool cuda_layout_planes(enum k_type t, struct cuda_planes *ret);
/* Offsets of the planes within a matrix, and its size. */
struct cuda_plane_offsets {
        size_t code, high, scale, super, bytes;
};
void cuda_layout_offsets(enum k_type t, uint32_t rows, uint32_t cols, struct cuda_plane_offsets *ret);

enum k_layout cuda_layout_pick(enum k_type t, uint32_t rows, uint32_t cols, bool is_embedding);
size_t cuda_layout_bytes(enum k_type t, enum k_layout l, uint32_t rows, uint32_t cols);
int cuda_layout_repack(enum k_type t, enum k_layout l, uint32_t rows, uint32_t cols, const void *src, void *dst);

#ifdef __cplusplus
}
#endif
