/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Products with matrices as the card has them (K_LAYOUT_CUDA, kernels/cuda/layout.h), so that one copy in memory
 * serves both. The arithmetic is linear.h's, to the bit: a layout changes no result.
 */

#include "kernels/cpu/panel.h"

/* Rows [row0, row1) of a job, as k_cpu_linear_isa.rows; scratch: that variant's. */
void k_cpu_planes_rows(const struct k_cpu *cpu, const struct k_cpu_gemm *job, uint32_t kind, uint8_t *scratch, uint32_t row0,
                       uint32_t row1);

/* AVX-512: true if it has this type and kind and did them. */
bool k_planes_avx512(const struct k_cpu_gemm *job, uint32_t kind, uint32_t row0, uint32_t row1);

/* AVX-512: 16 rows' columns from 256 * piece on as a panel, as k_panel_from_file(); of the types that k_planes_has(). */
bool k_planes_has(enum k_type t);
void k_planes_panel(const struct k_cpu_gemm *job, uint32_t row0, uint32_t piece, struct k_panel *ret);
