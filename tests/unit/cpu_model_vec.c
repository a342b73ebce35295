/* SPDX-License-Identifier: Apache-2.0 */
/* The vectors' other operations, by the name of those of AVX-512. */
#define VEC_TABLE k_cpu_vec_avx512
#define VEC_NAME "base"
#include "kernels/cpu/vec_table.h"
