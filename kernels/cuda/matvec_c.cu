/* SPDX-License-Identifier: Apache-2.0 */
/* int8 products (matvec.cuh), a third of the types: files of their own only so that they compile at once. */
#include "kernels/cuda/matvec_many.cuh"

CUDA_FAMILY(matvec_c)

int cuda_matvec_c(struct cuda_dev *d, enum k_type type, const matvec_args &a, uint32_t warps, uint32_t jobs) {
        switch (type) {
        case K_IQ4_NL: return matvec_type<K_IQ4_NL>(d, a, warps, jobs);
        case K_IQ4_XS: return matvec_type<K_IQ4_XS>(d, a, warps, jobs);
        case K_TQ1_0: case K_TQ2_0: return matvec_type<K_TQ2_0>(d, a, warps, jobs);
        case K_NVFP4: return matvec_type<K_NVFP4>(d, a, warps, jobs);
        default: return 1;
        }
}
