/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Lattice tables of the IQ formats, packed; grids.c says how. */

#include "base/types.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const uint16_t k_grid_iq2_xxs[256];
extern const uint16_t k_grid_iq2_xs[512];
extern const uint16_t k_grid_iq2_s[1024];
extern const uint16_t k_grid_iq3_xxs[256];
extern const uint16_t k_grid_iq3_s[512];
extern const uint16_t k_grid_iq1_s[2048];

/*
 * The same entries as bytes, the first lowest: magnitudes of IQ2 (8 bytes) and IQ3 (4), and eight times 0, 1, 2 for
 * IQ1's -1, 0, 1. Entries of 4 bytes may be read as 16.
 */
#define K_GRID_PAST 3
extern const uint64_t k_bytes_iq2_xxs[256];
extern const uint64_t k_bytes_iq2_xs[512];
extern const uint64_t k_bytes_iq2_s[1024];
extern const uint32_t k_bytes_iq3_xxs[256 + K_GRID_PAST];
extern const uint32_t k_bytes_iq3_s[512 + K_GRID_PAST];
extern const uint64_t k_bytes_iq1_s[2048];

#ifdef __cplusplus
}
#endif
