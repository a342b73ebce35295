/* SPDX-License-Identifier: Apache-2.0 */
#define VEC_TABLE k_cpu_vec_avx2
#define VEC_NAME "avx2"
#include "kernels/cpu/vec_table.h"
