/* SPDX-License-Identifier: Apache-2.0 */
/* attention_wide.cuh for heads of 512 columns (Gemma 4's layers without a window) and for latent attention with keys of 576. */
#include <errno.h>

#include "kernels/cuda/attention_wide.cuh"

CUDA_FAMILY(attention_wide)

template <int DK, int DV> static int run(struct cuda_dev *d, const attn_args &a, uint32_t rows) {
        switch (a.kv.type_k) {
        case K_F16: return att_wide_run<DK, DV, K_F16>(d, a, rows);
        case K_Q8_0: return att_wide_run<DK, DV, K_Q8_0>(d, a, rows);
        default: return att_wide_run<DK, DV, K_Q4_0>(d, a, rows);
        }
}

int cuda_attention_wide(struct cuda_dev *dev, const attn_args &a, uint32_t n_d_rows, uint32_t, uint32_t) {
        if (n_d_rows == 0)
                return -EINVAL;
        return a.kv.v ? run<512, 512>(dev, a, n_d_rows) : run<576, 512>(dev, a, n_d_rows);
}
