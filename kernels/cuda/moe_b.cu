/* SPDX-License-Identifier: Apache-2.0 */
/* Experts of role D (moe.cuh), a third of the types: files of their own only so that they compile at once. */
#include "kernels/cuda/moe_product.cuh"

CUDA_FAMILY(moe_b)

int cuda_moe_b(struct cuda_dev *d, enum k_type type, enum moe_form form, const moe_product &a) {
        switch (type) {
        case K_Q2_K: return moe_type<K_Q2_K>(d, form, a);
        case K_Q3_K: return moe_type<K_Q3_K>(d, form, a);
        case K_Q5_K: return moe_type<K_Q5_K>(d, form, a);
        case K_Q5_0: return moe_type<K_Q5_0>(d, form, a);
        case K_Q5_1: return moe_type<K_Q5_1>(d, form, a);
        case K_Q4_1: return moe_type<K_Q4_1>(d, form, a);
        default: return 1;
        }
}
