/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A panel piece: up to 256 columns of 16 rows, unpacked into what the AVX2
 * inner loops read. Unpacking costs once per panel piece, however many tokens
 * then use it, and keeps the loops free of the formats.
 *
 * Codes are bytes, 64 per step of 4 columns: row-major within the step, so
 * that a 32-byte vector is 8 rows x 4 columns and meets 4 activations broadcast
 * to all its lanes. Codes of up to 6 bits are unsigned (code + center), codes
 * of 8 bits are signed.
 */

#include "kernels/cpu/linear.h"

#define PANEL_COLS 256u

struct k_panel {
        uint8_t q[PANEL_COLS * K_PANEL];
        union {
                float d[16][K_PANEL];               /* kind 1: scale per group */
                int16_t sc[16][K_PANEL][2];         /* kind 2: scale per group, twice */
        };
        union {
                float m[8][K_PANEL];                /* kind 1: minimum per block */
                int16_t mn[8][K_PANEL][2];          /* kind 2: minimums of two neighbouring groups */
        };
        float d0[K_PANEL], m0[K_PANEL];             /* kind 2 */
};

/* Columns [col, col + cols) of 16 rows from row0 on; rows past the matrix are zero. */
void k_panel_from_file(struct k_panel *p, const struct k_weight *w, const uint8_t *data, uint32_t row0, uint32_t col,
                       uint32_t cols);
/* Decoded floats [cols][16] likewise, from either layout. */
void k_panel_floats(float *dst, const struct k_weight *w, const uint8_t *data, uint32_t row0, uint32_t col, uint32_t cols);
