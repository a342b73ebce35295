/* SPDX-License-Identifier: Apache-2.0 */
/* Experts of role D (moe.cuh), a third of the types: files of their own only so that they compile at once. */
#include "kernels/cuda/moe_product.cuh"

CUDA_FAMILY(moe_c)

int cuda_moe_c(struct cuda_dev *d, enum k_type type, enum moe_form form, const moe_product &a) {
        switch (type) {
        case K_IQ4_NL: return moe_type<K_IQ4_NL>(d, form, a);
        case K_IQ4_XS: return moe_type<K_IQ4_XS>(d, form, a);
        case K_NVFP4: return moe_type<K_NVFP4>(d, form, a);
        case K_TQ1_0: case K_TQ2_0: return moe_type<K_TQ2_0>(d, form, a);
        default: return 1;
        }
}
