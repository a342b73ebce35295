/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the QKV product and attention: per-head norms, rope, attention
 * temperature, K and V into their pages. A warp per head; the warp of a K head
 * also stores the V head, first, since V may be the raw K.
 */
#include <errno.h>

#include "kernels/cuda/head.cuh"

CUDA_FAMILY(qkv)

enum { QKV_WARPS = 4, QKV_MAX_DIM = CUDA_HEAD };

struct qkv_args {
        struct k_qkv_args a;
        struct k_kv kv;
        struct head_rules rules;
        const float *full; /* [n][2] factors of norms that span all heads */
        struct dbatch b;
};

__global__ void __launch_bounds__(256) full_norm_kernel(const float *q, size_t q_stride, uint32_t q_head, uint32_t n_head, const float *k,
                                                        size_t k_stride, uint32_t k_head, uint32_t n_head_kv, uint32_t dk, float eps,
                                                        float *full) {
        __shared__ float red[33];
        pdl_next();
        pdl_wait();
        const uint32_t r = blockIdx.x;
        for (int w = 0; w < 2; w++) {
                const float *p = w ? k : q;
                uint32_t n = (w ? n_head_kv : n_head) * dk;
                float s = 0;
                if (!p)
                        continue;
                p += r * (w ? k_stride : q_stride);
                for (uint32_t c = threadIdx.x; c < n; c += blockDim.x) {
                        float v = p[c / dk * (w ? k_head : q_head) + c % dk];
                        s = __fmaf_rn(v, v, s);
                }
                s = block_sum(s, red);
                if (threadIdx.x == 0)
                        full[2 * r + w] = rsqrtf(s / (float)n + eps);
        }
}

__global__ void __launch_bounds__(QKV_WARPS * 32) qkv_kernel(const qkv_args g) {
        extern __shared__ __align__(8) float heads_all[]; /* [warps][columns], then the row's turns */
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, item = blockIdx.x * QKV_WARPS + warp, row = blockIdx.y;
        const uint32_t cols = MAX(g.a.dk, g.a.dv) + 1 & ~1u;
        float *buf = heads_all + warp * cols;
        float2 *turns = (float2 *)(heads_all + QKV_WARPS * cols);

        pdl_next();
        /* Positions and pages are the step's own data, there before its first kernel: so angles and places come before the wait. */
        const int32_t pos = g.b.pos[row];
        const bool is_k = item >= g.a.n_head && item < g.a.n_head + (g.a.k ? g.a.n_head_kv : 0);
        const uint32_t slot = is_k ? kv_slot(g.b, g.kv, g.b.seq[row], (uint32_t)pos) : UINT32_MAX;
        for (uint32_t i = threadIdx.x; i < g.rules.n_dims / 2; i += QKV_WARPS * 32)
                turns[i] = head_angle(g.rules, pos, i);
        __syncthreads();
        pdl_wait();
        if (item >= g.a.n_head && !is_k)
                return;
        if (item < g.a.n_head) {
                float *q = g.a.q + row * g.a.q_stride + (size_t)item * g.a.q_head;
                for (uint32_t c = lane; c < g.a.dk; c += 32)
                        buf[c] = q[c];
                __syncwarp();
                head_turn(g.rules, buf, g.a.dk, g.a.q_norm ? g.a.q_norm + (g.a.norm_full ? item * g.a.dk : 0) : NULL, g.a.dk,
                          g.full ? g.full + 2 * row : NULL, turns, head_q_scale(g.rules, pos));
                for (uint32_t c = lane; c < g.a.dk; c += 32)
                        q[c] = buf[c];
                return;
        }
        const uint32_t h = item - g.a.n_head;
        if (g.a.v && g.kv.v) {
                const float *v = g.a.v + row * g.a.v_stride + (size_t)h * g.a.v_head;
                const float f = g.a.v_norm ? head_rms(v, g.a.dv, g.a.norm_eps) : 1;
                if (slot != UINT32_MAX)
                        head_put(g.kv.type_v, (uint8_t *)g.kv.v + (size_t)slot * g.kv.v_row_bytes, h * g.a.dv, v, g.a.dv, f);
        }
        const float *k = g.a.k + row * g.a.k_stride + (size_t)h * g.a.k_head;
        for (uint32_t c = lane; c < g.a.dk; c += 32)
                buf[c] = k[c];
        __syncwarp();
        head_turn(g.rules, buf, g.a.dk, g.a.k_norm ? g.a.k_norm + (g.a.norm_full ? h * g.a.dk : 0) : NULL,
                  g.a.k_norm_cols ? g.a.k_norm_cols : g.a.dk, g.full ? g.full + 2 * row + 1 : NULL, turns, 1);
        if (slot != UINT32_MAX)
                head_put(g.kv.type_k, (uint8_t *)g.kv.k + (size_t)slot * g.kv.k_row_bytes, h * g.a.dk, buf, g.a.dk, 1);
}

int cuda_run_qkv(struct cuda_dev *d, const struct dbatch *b, const struct cmd_qkv *c) {
        qkv_args g = {};
        g.a = c->a;
        g.kv = c->kv;
        g.rules = head_rules_of(c);
        g.b = *b;
        if (g.a.dk > QKV_MAX_DIM || g.a.dv > QKV_MAX_DIM || (g.a.k && !c->has_kv))
                return -EINVAL;
        if (g.a.norm_full && (g.a.q_norm || g.a.k_norm)) {
                g.full = d->s_row;
                int r = launch(d, "norm over heads", full_norm_kernel, b->n, 256, 0, g.a.q, g.a.q_stride, g.a.q_head, g.a.n_head, g.a.k,
                               g.a.k_stride, g.a.k_head, g.a.n_head_kv, g.a.dk, g.a.norm_eps, d->s_row);
                if (r < 0)
                        return r;
        }
        uint32_t items = g.a.n_head + (g.a.k ? g.a.n_head_kv : 0);
        return launch(d, "rope and KV", qkv_kernel, dim3(DIV_ROUND_UP(items, (uint32_t)QKV_WARPS), b->n), QKV_WARPS * 32,
                      ((size_t)QKV_WARPS * (MAX(g.a.dk, g.a.dv) + 1 & ~1u) + g.rules.n_dims) * sizeof(float), g);
}
