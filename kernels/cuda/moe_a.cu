/* SPDX-License-Identifier: Apache-2.0 */
/* Experts of role D (moe.cuh), a third of the types: files of their own only so that they compile at once. */
#include "kernels/cuda/moe_product.cuh"

CUDA_FAMILY(moe_a)

int cuda_moe_a(struct cuda_dev *d, enum k_type type, enum moe_form form, const moe_product &a) {
        switch (type) {
        case K_Q4_0: return moe_type<K_Q4_0>(d, form, a);
        case K_Q8_0: return moe_type<K_Q8_0>(d, form, a);
        case K_Q4_K: return moe_type<K_Q4_K>(d, form, a);
        case K_Q6_K: return moe_type<K_Q6_K>(d, form, a);
        case K_MXFP4: return moe_type<K_MXFP4>(d, form, a);
        default: return 1;
        }
}
