/* SPDX-License-Identifier: Apache-2.0 */
/* int8 products (matvec.cuh), a third of the types: files of their own only so that they compile at once. */
#include "kernels/cuda/matvec_many.cuh"

CUDA_FAMILY(matvec_b)

int cuda_matvec_b(struct cuda_dev *d, enum k_type type, const matvec_args &a, uint32_t warps, uint32_t jobs) {
        switch (type) {
        case K_Q2_K: return matvec_type<K_Q2_K>(d, a, warps, jobs);
        case K_Q3_K: return matvec_type<K_Q3_K>(d, a, warps, jobs);
        case K_Q5_K: return matvec_type<K_Q5_K>(d, a, warps, jobs);
        case K_Q5_0: return matvec_type<K_Q5_0>(d, a, warps, jobs);
        case K_Q5_1: return matvec_type<K_Q5_1>(d, a, warps, jobs);
        case K_Q4_1: return matvec_type<K_Q4_1>(d, a, warps, jobs);
        default: return 1;
        }
}
