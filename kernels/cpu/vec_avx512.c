/* SPDX-License-Identifier: Apache-2.0 */
#define VEC_TABLE k_cpu_vec_avx512
#define VEC_NAME "avx512"
#include "kernels/cpu/vec_table.h"
