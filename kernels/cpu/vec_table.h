/* SPDX-License-Identifier: Apache-2.0 */
/* Template: the table of one instruction set, named by VEC_TABLE and VEC_NAME. */
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_ops.h"

#include "kernels/cpu/vec_row.h"
#include "kernels/cpu/vec_attention.h"
#include "kernels/cpu/vec_few.h"
#include "kernels/cpu/vec_delta.h"

const struct k_cpu_vec VEC_TABLE = {
        .name = VEC_NAME,
        .sum = row_sum,
        .sum_squares = row_sum_squares,
        .norm = row_norm,
        .axpy = row_axpy,
        .scale = row_scale,
        .mul = row_mul,
        .mul_sigmoid = row_mul_sigmoid,
        .mul_silu = row_mul_silu,
        .softcap = row_softcap,
        .glu = row_glu,
        .softmax = row_softmax,
        .rope = row_rope,
        .to_float = row_to_float,
        .from_float = row_from_float,
        .attend = attend,
        .attend_few = attend_few,
        .half = VF_F16,
        .conv = conv,
        .delta = delta,
};
