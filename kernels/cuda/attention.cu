/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention for any shape and KV type, in f32: a block per (row, head, split of
 * CUDA_SPLIT positions), of which each warp has a quarter, then a merge of the
 * splits in order. Splits lie on absolute positions, so a row's bits depend on its
 * position alone. The plain kernel: attention_mma.cuh, attention_d.cuh and
 * attention_wide.cuh cover the shapes that matter for speed.
 */
#include <errno.h>
#include <math.h>

#include "kernels/cuda/attention.cuh"

CUDA_FAMILY(attention)

enum { PLAIN_WARPS = 4, PLAIN_TOKENS = CUDA_SPLIT / PLAIN_WARPS };

template <int T, int N, int PER> static __device__ __forceinline__ void rows_of_type(const uint8_t *const (&row)[N], uint32_t c0, uint32_t cols, float (&x)[N][PER]) {
        const uint32_t lane = threadIdx.x & 31;
#pragma unroll
        for (int u = 0; u < N; u++)
#pragma unroll
                for (int i = 0; i < PER; i++) { /* all are loads: where a column is none, of another one */
                        const float v = kv_get((enum k_type)T, row[u], c0 + min(lane + 32 * i, cols - 1));
                        x[u][i] = lane + 32 * i < cols ? v : 0;
                }
}

/* Columns c0 + lane + 32i, i < PER, of N rows: which type they have is asked once, for loads wait for one another across a branch. */
template <int N, int PER> static __device__ __forceinline__ void rows_get(enum k_type type, const void *base, size_t bytes, const uint32_t (&slot)[N], uint32_t c0,
                                                                         uint32_t cols, float (&x)[N][PER]) {
        const uint8_t *row[N];
#pragma unroll
        for (int u = 0; u < N; u++)
                row[u] = (const uint8_t *)base + (slot[u] == UINT32_MAX ? 0 : slot[u] * bytes);
        switch (type) {
        case K_F16: return rows_of_type<K_F16>(row, c0, cols, x);
        case K_BF16: return rows_of_type<K_BF16>(row, c0, cols, x);
        case K_Q8_0: return rows_of_type<K_Q8_0>(row, c0, cols, x);
        case K_Q4_0: return rows_of_type<K_Q4_0>(row, c0, cols, x);
        default: return rows_of_type<K_F32>(row, c0, cols, x);
        }
}

template <int PER> __global__ void __launch_bounds__(PLAIN_WARPS * 32, PER < 32 ? 4 : 2) attention_kernel(const __grid_constant__ attn_args a) {
        constexpr int N = PER < 16 ? 32 / PER : 2; /* tokens at a time */
        __shared__ float sums[PLAIN_WARPS][32 * PER], tops[PLAIN_WARPS], dens[PLAIN_WARPS];
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, head = blockIdx.y, split = blockIdx.x, row = a.row0 + blockIdx.z;

        pdl_next();
        pdl_wait();
        const uint32_t seq = a.b.seq[row];
        const int32_t pos = a.b.pos[row], hi = att_last(a, seq, pos) + 1, lo = a.window ? max(0, pos - (int32_t)a.window + 1) : 0;
        const int32_t base = (int32_t)split * CUDA_SPLIT, at = base + (int32_t)warp * PLAIN_TOKENS;
        if (max(base, lo) >= min(base + (int32_t)CUDA_SPLIT, hi))
                return;
        const int32_t p0 = max(at, lo), p1 = min(at + (int32_t)PLAIN_TOKENS, hi);
        const uint32_t kvh = head / (a.n_head / a.kv.n_head_kv), dk = a.kv.dk, dv = a.kv.dv;
        const float *q = a.q + row * a.q_stride + (size_t)head * a.q_head;
        float qr[PER], acc[PER], m = -INFINITY, l = 0;
#pragma unroll
        for (int i = 0; i < PER; i++) {
                qr[i] = lane + 32 * i < dk ? q[lane + 32 * i] : 0;
                acc[i] = 0;
        }
        for (int32_t from = p0; from < p1; from += 32) {
                const uint32_t slots = from + (int32_t)lane < p1 ? kv_slot(a.b, a.kv, seq, (uint32_t)from + lane) : UINT32_MAX;
                for (int32_t in = 0; in < 32 && from + in < p1; in += N) {
                        uint32_t slot[N];
                        float x[N][PER], s[N];
#pragma unroll
                        for (int u = 0; u < N; u++)
                                slot[u] = __shfl_sync(~0u, slots, in + u);
                        rows_get(a.kv.type_k, a.kv.k, a.kv.k_row_bytes, slot, kvh * dk, dk, x);
#pragma unroll
                        for (int u = 0; u < N; u++) {
                                s[u] = 0;
#pragma unroll
                                for (int i = 0; i < PER; i++)
                                        s[u] = __fmaf_rn(qr[i], x[u][i], s[u]);
                        }
                        if (a.kv.v)
                                rows_get(a.kv.type_v, a.kv.v, a.kv.v_row_bytes, slot, kvh * dv, dv, x);
                        else
                                rows_get(a.kv.type_k, a.kv.k, a.kv.k_row_bytes, slot, kvh * dk, dv, x);
#pragma unroll
                        for (int u = 0; u < N; u++)
                                s[u] = warp_sum(s[u]) * a.scale;
#pragma unroll
                        for (int u = 0; u < N; u++) {
                                if (slot[u] == UINT32_MAX)
                                        continue;
                                if (a.softcap != 0)
                                        s[u] = a.softcap * tanhf(s[u] / a.softcap);
                                const float mn = fmaxf(m, s[u]), f = expf(m - mn), e = expf(s[u] - mn);
                                m = mn;
                                l = l * f + e;
#pragma unroll
                                for (int i = 0; i < PER; i++)
                                        acc[i] = __fmaf_rn(e, x[u][i], acc[i] * f);
                        }
                }
        }
#pragma unroll
        for (int i = 0; i < PER; i++)
                sums[warp][lane + 32 * i] = acc[i];
        if (lane == 0) {
                tops[warp] = m;
                dens[warp] = l;
        }
        __syncthreads();
        /* The warps' quarters, in order. */
        float f[PLAIN_WARPS];
        m = -INFINITY, l = 0;
#pragma unroll
        for (int w = 0; w < PLAIN_WARPS; w++)
                m = fmaxf(m, tops[w]);
#pragma unroll
        for (int w = 0; w < PLAIN_WARPS; w++) {
                f[w] = tops[w] == -INFINITY ? 0 : expf(tops[w] - m);
                l = __fmaf_rn(dens[w], f[w], l);
        }
        float *o = a.part + ((size_t)(blockIdx.z * a.n_head + head) * a.n_split + split) * (dv + 2);
        for (uint32_t c = threadIdx.x; c < dv; c += PLAIN_WARPS * 32) {
                float v = 0;
#pragma unroll
                for (int w = 0; w < PLAIN_WARPS; w++)
                        v = __fmaf_rn(f[w], sums[w][c], v);
                o[c] = v;
        }
        if (threadIdx.x == 0) {
                o[dv] = m;
                o[dv + 1] = l;
        }
}

/*
 * Merges the splits of one (row, head); writes the D image where it can. All that
 * a thread needs of MERGE_AHEAD splits is asked for at once, before their weights
 * are known.
 */
enum { MERGE_AHEAD = 32 };

__global__ void __launch_bounds__(128) attention_merge_kernel(const attn_args a) {
        extern __shared__ float factor[]; /* [n_split] weights, [n_split] denominators */
        __shared__ float red[33];
        float *den = factor + a.n_split;
        const uint32_t head = blockIdx.x, row = a.row0 + blockIdx.y, dv = a.kv.dv;

        pdl_next();
        pdl_wait();
        const int32_t pos = a.b.pos[row], last = att_last(a, a.b.seq[row], pos);
        const uint32_t s1 = (uint32_t)last / CUDA_SPLIT + 1;
        const uint32_t s0 = a.window && pos - (int32_t)a.window + 1 > 0 ? (uint32_t)(pos - (int32_t)a.window + 1) / CUDA_SPLIT : 0;
        const float *p = a.part + (size_t)(blockIdx.y * a.n_head + head) * a.n_split * (dv + 2);
        const uint32_t dv32 = (dv + 31) & ~31u;
        /* Each split's weight once: maxima and denominators are read side by side. */
        float m = a.sinks ? a.sinks[head] : -INFINITY, l = 0, e[MERGE_AHEAD];
        for (uint32_t s = s0 + threadIdx.x; s < s1; s += blockDim.x) {
                float ms = p[(size_t)s * (dv + 2) + dv];
                den[s - s0] = p[(size_t)s * (dv + 2) + dv + 1];
                factor[s - s0] = ms;
                m = fmaxf(m, ms);
        }
        auto ahead = [&](uint32_t c, uint32_t from) {
#pragma unroll
                for (int i = 0; i < MERGE_AHEAD; i++)
                        e[i] = c < dv && from + i < s1 ? p[(size_t)(from + i) * (dv + 2) + c] : 0;
        };
        ahead(threadIdx.x, s0);
        m = block_max(m, red);
        for (uint32_t s = s0 + threadIdx.x; s < s1; s += blockDim.x) {
                float ms = factor[s - s0];
                factor[s - s0] = ms == -INFINITY ? 0 : expf(ms - m);
        }
        __syncthreads();
#pragma unroll 8
        for (uint32_t s = 0; s < s1 - s0; s++) { /* in order, by every thread: the same bits everywhere */
                float f = factor[s], d = den[s];
                l = f != 0 ? __fmaf_rn(d, f, l) : l;
        }
        if (a.sinks)
                l += expf(a.sinks[head] - m);
        const float inv = l > 0 ? 1.0f / l : 0;
        for (uint32_t c = threadIdx.x; c < dv32; c += blockDim.x) {
                float v = 0;
                for (uint32_t from = s0; from < s1; from += MERGE_AHEAD) {
                        if (from > s0 || c != threadIdx.x)
                                ahead(c, from);
#pragma unroll
                        for (int i = 0; i < MERGE_AHEAD; i++) {
                                float w = from + i < s1 ? factor[from + i - s0] : 0;
                                v = w != 0 ? __fmaf_rn(w, e[i], v) : v;
                        }
                }
                if (c < dv) {
                        v *= inv;
                        if (a.gate)
                                v *= sigmoid(a.gate[row * a.gate_stride + (size_t)head * a.gate_head + c]);
                        a.out[(size_t)row * a.n_head * dv + head * dv + c] = v;
                }
                if (a.merge_image && row < a.img.n_d)
                        image_put32(a.img.slots + row * image_slot(a.img.kpad), a.img.kpad, (head * dv + c) >> 5, v);
        }
        if (a.merge_image && row < a.img.n_d && head == a.n_head - 1)
                for (uint32_t c = a.n_head * dv + threadIdx.x; c < a.img.kpad; c += blockDim.x)
                        image_put32(a.img.slots + row * image_slot(a.img.kpad), a.img.kpad, c >> 5, 0);
}

typedef int (*attn_mma)(struct cuda_dev *, const attn_args &, uint32_t, uint32_t, uint32_t);

/* By role, shape and type alone. */
static attn_mma mma_for(const attn_args &a, bool prompt) {
        if (a.window && !a.causal) /* the tensor-core kernels see to the sequence's end */
                return NULL;
        const bool type = a.kv.type_k == K_F16 || a.kv.type_k == K_Q8_0 || a.kv.type_k == K_Q4_0;
        if (!type || a.kv.page_tokens % ATT_TILE)
                return NULL;
        if (!a.kv.v) /* latent attention: V are columns of K */
                return !prompt && a.kv.dk == 576 && a.kv.dv == 512 ? cuda_attention_wide : NULL;
        if (a.kv.type_v != a.kv.type_k || a.kv.dk != a.kv.dv || a.n_head / a.kv.n_head_kv > 16)
                return NULL;
        switch (a.kv.dk) {
        case 64: return cuda_attention_mma_64;
        case 128: return cuda_attention_mma_128;
        case 256: return cuda_attention_mma_256;
        case 512: return prompt ? cuda_attention_mma_512 : cuda_attention_wide;
        default: return NULL;
        }
}

/*
 * Whether attention does what the command before it says, too: where no row reads what another row of the step writes, and
 * only what the tensor-core kernel covers. Bits are those of the two, one after the other.
 */
bool cuda_attention_takes(const struct cuda_dev *d, const struct dbatch *b, const struct cmd_qkv *q, const struct cmd_attention *c) {
        attn_args a = {};

        a.kv = c->kv;
        a.n_head = c->a.n_head;
        a.window = c->a.window;
        a.causal = c->a.causal;
        if (d->exact || !b->one_each || b->n_d < b->n || !c->a.causal || !q->has_kv || !q->a.k || !q->a.v || (q->a.norm_full && (q->a.q_norm || q->a.k_norm)))
                return false;
        if (q->a.q != c->a.q || q->a.q_stride != c->a.q_stride || q->a.q_head != c->a.q_head || q->a.n_head != c->a.n_head ||
            q->kv.k != c->kv.k || q->kv.v != c->kv.v || q->a.n_head_kv != c->kv.n_head_kv || q->a.dk != c->kv.dk || q->a.dv != c->kv.dv ||
            q->a.rope_off + q->n_dims > q->a.dk)
                return false;
        return c->kv.n_head_kv && c->a.n_head % c->kv.n_head_kv == 0 && mma_for(a, false);
}

/* turn: the command before, if attention is to do that too, or NULL. */
int cuda_run_attention(struct cuda_dev *d, const struct dbatch *b, const struct cmd_attention *c, const struct cmd_qkv *turn) {
        attn_args a = {};
        int r;

        a.q = c->a.q;
        a.q_stride = c->a.q_stride;
        a.q_head = c->a.q_head;
        a.n_head = c->a.n_head;
        a.kv = c->kv;
        a.scale = c->a.scale;
        a.softcap = c->a.softcap;
        a.window = c->a.window;
        a.causal = c->a.causal;
        a.sinks = c->a.sinks;
        a.gate = c->a.gate;
        a.gate_stride = c->a.gate_stride;
        a.gate_head = c->a.gate_head;
        a.out = c->out.f;
        a.b = *b;
        a.n_split = b->n_split;
        a.part = d->s_attn;
        a.img = {c->out.q, kpad_of(a.n_head * a.kv.dv), c->write_image ? MIN(b->n_d, b->n) : 0};
        a.merge_image = c->write_image && a.kv.dv % 32 == 0;
        a.ended = d->s_ended;
        if (turn) {
                a.joined = 1;
                a.turn.rules = head_rules_of(turn);
                a.turn.k = turn->a.k;
                a.turn.k_stride = turn->a.k_stride;
                a.turn.k_head = turn->a.k_head;
                a.turn.v = turn->a.v;
                a.turn.v_stride = turn->a.v_stride;
                a.turn.v_head = turn->a.v_head;
                a.turn.q_norm = turn->a.q_norm;
                a.turn.k_norm = turn->a.k_norm;
                a.turn.k_norm_cols = turn->a.k_norm_cols ? turn->a.k_norm_cols : turn->a.dk;
                a.turn.v_norm = turn->a.v_norm;
        }
        if (a.kv.n_head_kv == 0 || a.n_head % a.kv.n_head_kv || a.kv.dk > CUDA_HEAD || a.kv.dv > CUDA_HEAD)
                return -EINVAL;
        const attn_mma mma = d->exact ? NULL : mma_for(a, false), mma_p = d->exact ? NULL : mma_for(a, true);
        const uint32_t n_d = MIN(b->n_d, b->n);
        uint32_t end = b->n; /* rows that go by splits */
        if (mma_p && n_d < b->n) {
                if ((r = mma_p(d, a, 0, n_d, b->n)) < 0)
                        return r;
                if (r == 0)
                        end = n_d;
        }
        size_t per_row = (size_t)a.n_head * a.n_split * (a.kv.dv + 2) * sizeof(float);
        uint32_t rows = (uint32_t)MIN(d->s_attn_bytes / per_row, (size_t)65535);
        rows = MIN(rows, CUDA_ENDED / a.n_head);
        if (rows == 0) {
                cuda_fail(d, cudaErrorMemoryAllocation, "attention scratch");
                return -E2BIG;
        }
        for (uint32_t r0 = 0, n; r0 < end; r0 += n) {
                const uint32_t stop = r0 < n_d ? MIN(n_d, end) : end, per = DIV_ROUND_UP(MAX(a.kv.dk, a.kv.dv), 32u);
                n = MIN(rows, stop - r0);
                const dim3 grid(a.n_split, a.n_head, n);
                a.row0 = r0;
                if (mma && r0 < n_d) {
                        if (b->n == 1 && a.merge_image)
                                a.mail_to = cuda_mail_box(d, a.img.kpad);
                        if ((r = mma(d, a, n, n_d, b->n)) < 0)
                                return r;
                        if (a.mail_to)
                                cuda_mail_sent(d, c->out.q, a.img.kpad, a.mail_to);
                        continue;
                }
                if (per <= 4)
                        r = launch(d, "attention", attention_kernel<4>, grid, PLAIN_WARPS * 32, 0, a);
                else if (per <= 8)
                        r = launch(d, "attention", attention_kernel<8>, grid, PLAIN_WARPS * 32, 0, a);
                else if (per <= 16)
                        r = launch(d, "attention", attention_kernel<16>, grid, PLAIN_WARPS * 32, 0, a);
                else
                        r = launch(d, "attention", attention_kernel<32>, grid, PLAIN_WARPS * 32, 0, a);
                if (r < 0 || (r = launch(d, "attention merge", attention_merge_kernel, dim3(a.n_head, n), 128, 2 * a.n_split * sizeof(float), a)) < 0)
                        return r;
        }
        if (!c->write_image)
                return 0;
        /* What the merge has not done: P rows, and D rows of heads that are no multiple of a block. */
        uint32_t q0 = a.merge_image ? b->n_d : 0, cols = a.n_head * a.kv.dv;
        struct image img = {c->out.q + q0 * image_slot(a.img.kpad), a.img.kpad, b->n_d - q0};
        return q0 < b->n ? cuda_quantize(d, a.out + (size_t)q0 * cols, cols, NULL, b->n - q0, cols, img) : 0;
}
