/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * K_LAYOUT_CPU, version 1: sixteen rows side by side, so that a vector's lanes
 * are output rows and no sum ever crosses lanes.
 *
 * A matrix is a run of panels of K_PANEL rows; the last is filled with zero
 * rows. A panel of a quantized type is
 *   heads    units x head bytes, padded to 64: each scale field of the file's
 *            block, verbatim, for the 16 rows one after another
 *   codes    units x (planes): one unit covers unit weights of each row
 * where code u = q + center, or the table index of the FP4 and IQ4 types, or
 * for 8 bits q itself, and a step is 4 columns of 16 rows:
 *   8 bits   64 bytes a step: 4 columns of row 0, of row 1, ...
 *   4 bits   32 bytes a step: byte i holds element i (rows 0-7) low, 32 + i (rows 8-15) high
 *   2 bits   32 bytes per two steps: bit pairs (step, half) = (0,0) (0,1) (1,0) (1,1) from the lowest
 *   1 bit    32 bytes per four steps, bits in the same order
 * 5 bits are a 4-bit and a 1-bit plane, 6 are 4 and 2, 3 are 2 and 1.
 * A panel of F32, F16 or BF16 is 16 values per column.
 */

#include "kernels/quant/codes.h"

#define K_PANEL 16u

struct k_layout_field {
        uint8_t off, width, count; /* in the file's block */
};

struct k_layout_type {
        bool present;
        uint8_t bits;      /* stored per code; 0: a float type */
        const int8_t *lut; /* codes are indices into it */
        uint16_t unit;     /* weights per unit = per block */
        uint16_t head;     /* bytes per unit, 16 rows */
        uint16_t codes;    /* bytes per unit, 16 rows */
        struct k_layout_field field[3];
};

const struct k_layout_type *k_layout_type(enum k_type t);

/* Bytes of one panel, and where its codes begin. */
size_t k_layout_panel_bytes(enum k_type t, uint32_t cols);
size_t k_layout_codes_off(enum k_type t, uint32_t cols);

enum k_layout k_cpu_layout_pick(enum k_type t, uint32_t rows, uint32_t cols, bool is_embedding);
size_t k_cpu_layout_bytes(enum k_type t, enum k_layout layout, uint32_t rows, uint32_t cols);
int k_cpu_repack(enum k_type t, enum k_layout layout, uint32_t rows, uint32_t cols, const void *src, void *dst);

/* Unit 'unit' of a row, from a matrix in K_LAYOUT_CPU. */
void k_layout_codes(enum k_type t, const void *data, uint32_t cols, uint32_t row, uint32_t unit, struct k_codes *c);
