/* SPDX-License-Identifier: Apache-2.0 */
/* attention_mma.cuh for heads of 512 columns (Gemma 4's layers without a window): prompts only. */
#include <errno.h>

#include "kernels/cuda/attention_mma.cuh"

CUDA_FAMILY(attention_mma_512)

int cuda_attention_mma_512(struct cuda_dev *dev, const attn_args &a, uint32_t n_d_rows, uint32_t n_d, uint32_t n) {
        if (n_d_rows)
                return -EINVAL;
        switch (a.kv.type_k) {
        case K_F16: return att_p_run<512, K_F16>(dev, a, n_d, n);
        case K_Q8_0: return att_p_run<512, K_Q8_0>(dev, a, n_d, n);
        default: return att_p_run<512, K_Q4_0>(dev, a, n_d, n);
        }
}
