/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "kernels/cuda/layout.h"

/* Row 'row' of a matrix in K_LAYOUT_CUDA as the file's blocks (TQ1_0: another byte of the same digits). False: no such row or layout. */
bool cuda_layout_to_file(enum k_type t, uint32_t rows, uint32_t cols, const void *data, uint32_t row, void *dst);
