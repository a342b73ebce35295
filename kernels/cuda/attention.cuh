/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the attention kernels share. */

#include "kernels/cuda/image.cuh"
#include "kernels/cuda/head.cuh"

enum { ATT_TILE = 64 }; /* tokens of a tile; those of a page are a multiple for the tensor-core kernels */

/* What the command before attention does, where attention does it: q is as the product has it then. */
struct att_turn {
        struct head_rules rules;
        const float *k, *v, *q_norm, *k_norm;
        size_t k_stride, v_stride;
        uint32_t k_head, v_head, k_norm_cols, v_norm;
};

struct attn_args { /* in the order in which role D's kernels read them (matvec.cuh says why) */
        uint32_t n_head, row0, joined; /* joined: turn is to be done too */
        uint32_t causal, window;
        uint32_t slice_bits;     /* attention_wide.cuh: so many times halved, a head's V has a block for each slice of columns */
        const float *sinks, *q;
        size_t q_stride;
        struct k_kv kv;
        struct dbatch b;
        struct att_turn turn;
        uint32_t q_head;
        float scale, softcap;
        uint32_t merge_image;    /* the merge writes D images */
        struct image img;
        uint32_t *mail_to;       /* one row whose image the merge writes: it also goes to this box (mail.cuh), or NULL */
        float *out;              /* [n, n_head * dv] */
        const float *gate;
        size_t gate_stride;
        uint32_t gate_head, n_split;
        float *part;             /* [rows of this launch][n_head][n_split][dv + 2]: sum, maximum, denominator */
        uint32_t *ended;         /* [rows of this launch][blocks of a split]: splits done, all 0 between launches */
};

#ifdef __CUDACC__
/* The last position that a row of 'seq' at 'pos' sees. */
static __device__ __forceinline__ int32_t att_last(const attn_args &a, uint32_t seq, int32_t pos) {
        if (a.causal)
                return pos;
        const int32_t last = a.b.seq_last[seq];
        return a.window ? (int32_t)min((int64_t)last, (int64_t)pos + a.window - 1) : last;
}
#endif

/* attention_mma_*.cu: n_d_rows rows of role D from a.row0 on, with their images, or, if 0, all rows from n_d on. */
int cuda_attention_mma_64(struct cuda_dev *, const attn_args &a, uint32_t n_d_rows, uint32_t n_d, uint32_t n);
int cuda_attention_mma_128(struct cuda_dev *, const attn_args &a, uint32_t n_d_rows, uint32_t n_d, uint32_t n);
int cuda_attention_mma_256(struct cuda_dev *, const attn_args &a, uint32_t n_d_rows, uint32_t n_d, uint32_t n);
int cuda_attention_mma_512(struct cuda_dev *, const attn_args &a, uint32_t n_d_rows, uint32_t n_d, uint32_t n); /* role P only */
int cuda_attention_wide(struct cuda_dev *, const attn_args &a, uint32_t n_d_rows, uint32_t n_d, uint32_t n);    /* role D only */
