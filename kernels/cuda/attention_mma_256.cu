/* SPDX-License-Identifier: Apache-2.0 */
/* attention_mma.cuh and attention_d.cuh for heads of 256 columns: files of their own only so that they compile at once. */
#include "kernels/cuda/attention_d.cuh"

CUDA_FAMILY(attention_mma_256)

int cuda_attention_mma_256(struct cuda_dev *dev, const attn_args &a, uint32_t n_d_rows, uint32_t n_d, uint32_t n) {
        switch (a.kv.type_k) {
        case K_F16: return att_run<256, K_F16>(dev, a, n_d_rows, n_d, n);
        case K_Q8_0: return att_run<256, K_Q8_0>(dev, a, n_d_rows, n_d, n);
        default: return att_run<256, K_Q4_0>(dev, a, n_d_rows, n_d, n);
        }
}
