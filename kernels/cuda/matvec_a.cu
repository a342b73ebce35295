/* SPDX-License-Identifier: Apache-2.0 */
/* int8 products (matvec.cuh), a third of the types: files of their own only so that they compile at once. */
#include "kernels/cuda/matvec_many.cuh"

CUDA_FAMILY(matvec_a)

int cuda_matvec_a(struct cuda_dev *d, enum k_type type, const matvec_args &a, uint32_t warps, uint32_t jobs) {
        switch (type) {
        case K_Q4_0: return matvec_type<K_Q4_0>(d, a, warps, jobs);
        case K_Q8_0: return matvec_type<K_Q8_0>(d, a, warps, jobs);
        case K_Q4_K: return matvec_type<K_Q4_K>(d, a, warps, jobs);
        case K_Q6_K: return matvec_type<K_Q6_K>(d, a, warps, jobs);
        case K_MXFP4: return matvec_type<K_MXFP4>(d, a, warps, jobs);
        default: return 1;
        }
}
