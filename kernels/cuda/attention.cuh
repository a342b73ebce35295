/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the attention kernels share. */

#include "kernels/cuda/kv.cuh"

struct attn_args {
        const float *q;
        size_t q_stride;
        uint32_t q_head, n_head;
        struct k_kv kv;
        float scale, softcap;
        uint32_t window, causal;
        const float *sinks, *gate;
        size_t gate_stride;
        uint32_t gate_head;
        float *out;              /* [n, n_head * dv] */
        float *part;             /* [rows of this launch][n_head][n_split][dv + 2]: sum, maximum, denominator */
        uint32_t n_split, row0;
        uint32_t merge_image;    /* the merge writes D images */
        struct image img;
        struct dbatch b;
};

/* Rows [0, *done) were handled (all, or none where no kernel fits the shape). */
int cuda_attention_mma(struct cuda_dev *d, const attn_args &a, uint32_t *done);
