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

#ifdef __cplusplus
}
#endif
