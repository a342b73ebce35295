/* SPDX-License-Identifier: Apache-2.0 */
#define VEC_TABLE k_cpu_vec_base
#define VEC_NAME "base"
#include "kernels/cpu/vec_table.h"
