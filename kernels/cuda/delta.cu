/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers with recurrent state: the gated delta net (arXiv:2412.06464: S = g S;
 * S += k (beta (v - S^T k))^T; o = S^T q) and the gated short convolution.
 *
 * Everything before and after the recurrence is parallel over rows; the
 * recurrence itself keeps its part of the state in registers and walks the rows
 * of its sequence. A row's arithmetic never depends on where a chunk begins.
 */
#include <errno.h>

#include "kernels/cuda/delta.cuh"

CUDA_FAMILY(delta)

/* ---- causal convolution ----------------------------------------------------------------- */

static __device__ __forceinline__ float conv_in(const conv_args &a, uint32_t row, uint32_t c) {
        float v = a.x[row * a.x_stride + c];
        return a.gate_off ? v * a.x[row * a.x_stride + a.gate_off + c] : v;
}
/* Input number i of the sequence; negative: from its state. */
static __device__ __forceinline__ float conv_at(const conv_args &a, uint32_t s, const uint32_t *rows, int32_t i, uint32_t c) {
        if (i >= 0)
                return conv_in(a, rows[i], c);
        if (a.b.state_zero[s])
                return 0;
        return a.state[((size_t)a.b.state_in[s] * (a.taps - 1) + (uint32_t)(i + (int32_t)a.taps - 1)) * a.channels + c];
}

__global__ void __launch_bounds__(128) conv_kernel(const conv_args a) {
        pdl_next();
        pdl_wait();
        const uint32_t c = blockIdx.x * 128 + threadIdx.x, row = blockIdx.y, s = a.b.seq[row];
        if (c >= a.channels)
                return;
        const uint32_t *rows = a.b.seq_rows + a.b.seq_start[s];
        const int32_t i = (int32_t)a.b.row_at[row];
        float v = 0;
        for (uint32_t t = 0; t < a.taps; t++)
                v = __fmaf_rn(a.w[(size_t)c * a.taps + t], conv_at(a, s, rows, i - (int32_t)a.taps + 1 + (int32_t)t, c), v);
        if (a.silu)
                v *= sigmoid(v);
        if (a.mul)
                v *= a.mul[row * a.x_stride + c];
        a.out[(size_t)row * a.channels + c] = v;
}

/*
 * After conv_kernel: one thread per (sequence, channel), since a slot may be both
 * read and written. Rows whose state is kept are few: the block finds them together.
 */
__global__ void __launch_bounds__(128) conv_state_kernel(const conv_args a) {
        pdl_next();
        pdl_wait();
        const uint32_t c = blockIdx.x * 128 + threadIdx.x, s = blockIdx.y;
        const uint32_t *rows = a.b.seq_rows + a.b.seq_start[s], n = a.b.seq_start[s + 1] - a.b.seq_start[s];
        const int32_t keep = (int32_t)a.taps - 1;
        const bool on = c < a.channels;
        float old[CONV_MAX];
#pragma unroll
        for (int t = 0; t < CONV_MAX - 1; t++)
                old[t] = on && t < keep && n ? conv_at(a, s, rows, t - keep, c) : 0;
        for (uint32_t i0 = 0; i0 < n; i0 += 128) {
                const uint32_t mine = i0 + threadIdx.x < n ? a.b.state_out[rows[i0 + threadIdx.x]] : UINT32_MAX;
                if (!__syncthreads_or(mine != UINT32_MAX))
                        continue;
                for (uint32_t i = i0; i < min(i0 + 128, n); i++) {
                        uint32_t to = a.b.state_out[rows[i]];
                        if (to == UINT32_MAX || !on)
                                continue;
#pragma unroll
                        for (int t = 0; t < CONV_MAX - 1; t++) {
                                if (t >= keep)
                                        continue;
                                int32_t at = (int32_t)i - keep + 1 + t;
                                float v = 0;
                                if (at >= 0)
                                        v = conv_in(a, rows[at], c);
                                else
#pragma unroll
                                        for (int k = 0; k < CONV_MAX - 1; k++)
                                                v = k == at + keep ? old[k] : v;
                                a.state[((size_t)to * (uint32_t)keep + t) * a.channels + c] = v;
                        }
                }
        }
}

static int conv_run(struct cuda_dev *d, const conv_args &a) {
        uint32_t gx = DIV_ROUND_UP(a.channels, 128u);
        int r;
        if (a.taps < 1 || a.taps > CONV_MAX || !a.b.state_in || !a.b.state_out)
                return -EINVAL;
        if ((r = launch(d, "convolution", conv_kernel, dim3(gx, a.b.n), 128, 0, a)) < 0 || a.taps == 1)
                return r;
        return launch(d, "convolution state", conv_state_kernel, dim3(gx, a.b.n_seq), 128, 0, a);
}

int cuda_run_shortconv(struct cuda_dev *d, const struct dbatch *b, const struct cmd_shortconv *c) {
        conv_args a = {};
        int r;
        a.x = c->a.bcx; /* b * x */
        a.x_stride = c->a.stride;
        a.gate_off = 2 * c->a.d;
        a.mul = c->a.bcx + c->a.d;
        a.channels = c->a.d;
        a.taps = c->a.conv;
        a.w = c->a.conv_w;
        a.state = c->a.conv_state;
        a.out = c->out.f;
        a.b = *b;
        if ((r = conv_run(d, a)) < 0 || !c->write_image)
                return r;
        struct image img = {c->out.q, kpad_of(c->a.d), b->n_d};
        return cuda_quantize(d, c->out.f, c->a.d, NULL, b->n, c->a.d, img);
}

/* ---- delta net ------------------------------------------------------------------------------ */

/* q and k of each head: x / sqrt(sum x^2 + eps), q also / sqrt(s_k). A warp per head. */
__global__ void __launch_bounds__(128) delta_norm_kernel(const delta_args g) {
        pdl_next();
        pdl_wait();
        const uint32_t lane = threadIdx.x & 31, h = blockIdx.x * 4 + (threadIdx.x >> 5), n = g.a.s_k;
        if (h >= 2 * g.a.n_k)
                return;
        float *p = g.x + (size_t)blockIdx.y * g.channels + h * n, s = 0;
        for (uint32_t c = lane; c < n; c += 32)
                s = __fmaf_rn(p[c], p[c], s);
        float f = rsqrtf(warp_sum(s) + g.a.eps);
        if (h < g.a.n_k)
                f *= rsqrtf((float)n);
        for (uint32_t c = lane; c < n; c += 32)
                p[c] *= f;
}

enum { DELTA_COLS = 32, DELTA_ROWS = 8 };

/*
 * A block: 32 value columns of one head of one sequence. A warp has 8 columns;
 * lane = 8 part + column, and part p of 4 holds keys p, p + 4, ... of its column.
 */
template <int PER> __global__ void __launch_bounds__(128) delta_kernel(const delta_args g) {
        extern __shared__ float sm[]; /* [DELTA_ROWS][2 s_k] */
        const uint32_t lane = threadIdx.x & 31, part = lane >> 3, col = blockIdx.x * DELTA_COLS + (threadIdx.x >> 5) * 8 + (lane & 7);
        const uint32_t h = blockIdx.y, s = blockIdx.z, sk = g.a.s_k, sv = g.a.s_v;
        const uint32_t kh = g.a.k_head_blocked ? h / (g.a.n_v / g.a.n_k) : h % g.a.n_k;

        pdl_next();
        pdl_wait();
        const uint32_t *rows = g.b.seq_rows + g.b.seq_start[s], n = g.b.seq_start[s + 1] - g.b.seq_start[s];
        if (n == 0)
                return;
        const bool on = col < sv;
        float S[PER];
        const float *from = g.a.state + g.b.state_in[s] * g.slot + (size_t)h * sk * sv;
#pragma unroll
        for (int i = 0; i < PER; i++) {
                uint32_t k = part + 4 * i;
                S[i] = on && k < sk && !g.b.state_zero[s] ? from[(size_t)k * sv + col] : 0;
        }
        const uint32_t ba = g.a.ba_run ? h / g.a.ba_run * 2 * g.a.ba_run + h % g.a.ba_run : h;
        const float ah = g.a.a[h], dt = g.a.dt_bias[h];
        for (uint32_t r0 = 0; r0 < n; r0 += DELTA_ROWS) {
                uint32_t m = min((uint32_t)DELTA_ROWS, n - r0);
                __syncthreads();
                for (uint32_t i = threadIdx.x; i < m * 2 * sk; i += 128) {
                        uint32_t r = i / (2 * sk), c = i % (2 * sk);
                        const float *x = g.x + (size_t)rows[r0 + r] * g.channels;
                        sm[i] = c < sk ? x[kh * sk + c] : x[g.a.n_k * sk + kh * sk + c - sk];
                }
                __syncthreads();
                for (uint32_t r = 0; r < m; r++) {
                        const uint32_t row = rows[r0 + r];
                        const float *q = sm + r * 2 * sk, *k = q + sk;
                        float v = on ? g.x[(size_t)row * g.channels + 2 * g.a.n_k * sk + h * sv + col] : 0;
                        float beta = sigmoid(g.a.beta[row * g.a.ba_stride + ba]);
                        float t = g.a.alpha[row * g.a.ba_stride + ba] + dt;
                        float decay = expf(ah * (t > 20 ? t : log1pf(expf(t))));
                        float kv = 0, o = 0;
#pragma unroll
                        for (int i = 0; i < PER; i++) {
                                uint32_t kk = part + 4 * i;
                                S[i] *= decay;
                                if (kk < sk)
                                        kv = __fmaf_rn(k[kk], S[i], kv);
                        }
                        kv += __shfl_xor_sync(~0u, kv, 8);
                        kv += __shfl_xor_sync(~0u, kv, 16);
                        float dl = (v - kv) * beta;
#pragma unroll
                        for (int i = 0; i < PER; i++) {
                                uint32_t kk = part + 4 * i;
                                if (kk < sk) {
                                        S[i] = __fmaf_rn(k[kk], dl, S[i]);
                                        o = __fmaf_rn(q[kk], S[i], o);
                                }
                        }
                        o += __shfl_xor_sync(~0u, o, 8);
                        o += __shfl_xor_sync(~0u, o, 16);
                        if (on && part == 0)
                                g.out[(size_t)row * g.a.n_v * sv + h * sv + col] = o;
                        uint32_t to = g.b.state_out[row];
                        if (to != UINT32_MAX && on) {
                                float *dst = g.a.state + to * g.slot + (size_t)h * sk * sv;
#pragma unroll
                                for (int i = 0; i < PER; i++)
                                        if (part + 4 * i < sk)
                                                dst[(size_t)(part + 4 * i) * sv + col] = S[i];
                        }
                }
        }
}

/* out = rms(o) * norm_w * silu(z) per head; a warp per head, D image where heads are whole blocks. */
__global__ void __launch_bounds__(128) delta_out_kernel(const delta_args g) {
        pdl_next();
        pdl_wait();
        const uint32_t lane = threadIdx.x & 31, h = blockIdx.x * 4 + (threadIdx.x >> 5), row = blockIdx.y, n = g.a.s_v;
        if (h >= g.a.n_v)
                return;
        float *o = g.out + (size_t)row * g.a.n_v * n + h * n, s = 0;
        const float *z = g.a.z + row * g.a.z_stride + h * n;
        for (uint32_t c = lane; c < n; c += 32)
                s = __fmaf_rn(o[c], o[c], s);
        float f = rsqrtf(warp_sum(s) / (float)n + g.a.eps);
        for (uint32_t c0 = 0; c0 < n; c0 += 32) {
                uint32_t c = c0 + lane;
                float v = 0;
                if (c < n) {
                        v = o[c] * f * g.a.norm_w[c] * (z[c] * sigmoid(z[c]));
                        o[c] = v;
                }
                if (g.image && row < g.img.n_d)
                        image_put32(g.img.slots + row * image_slot(g.img.kpad), g.img.kpad, (h * n + c0) >> 5, v);
        }
        if (g.image && row < g.img.n_d && h == g.a.n_v - 1)
                for (uint32_t c = g.a.n_v * n; c < g.img.kpad; c += 32)
                        image_put32(g.img.slots + row * image_slot(g.img.kpad), g.img.kpad, c >> 5, 0);
}

int cuda_run_delta(struct cuda_dev *d, const struct dbatch *b, const struct cmd_delta *c) {
        delta_args g = {};
        conv_args a = {};
        int r;

        g.a = c->a;
        g.slot = cuda_delta_slot(c->a.n_k, c->a.n_v, c->a.s_k, c->a.s_v);
        g.channels = 2 * c->a.n_k * c->a.s_k + c->a.n_v * c->a.s_v;
        g.x = d->s_row;
        g.out = c->out.f;
        g.image = c->write_image;
        g.img = {c->out.q, kpad_of(c->a.n_v * c->a.s_v), b->n_d};
        g.b = *b;
        if (g.channels > d->max_cols || b->n > d->max_rows || c->a.s_k > CUDA_DELTA_KEY || c->a.n_k == 0 || c->a.n_v % c->a.n_k)
                return -EINVAL;
        a.x = c->a.qkv;
        a.x_stride = c->a.qkv_stride;
        a.channels = g.channels;
        a.taps = c->a.conv;
        a.w = c->a.conv_w;
        a.state = c->a.conv_state;
        a.out = d->s_row;
        a.silu = 1;
        a.b = *b;
        /* By shape alone: it rounds to tf32 and keeps rows pending in the slot, so no other kernel may have a part of a sequence. */
        if (!d->exact && c->a.s_k == 128 && c->a.s_v == 128 && c->a.conv >= 2 && c->a.conv <= 4) {
                if (g.image && b->n == 1 && b->n_d == 1)
                        g.mail_to = cuda_mail_box(d, g.img.kpad);
                r = cuda_delta_128(d, g, a);
                if (r == 0 && g.mail_to)
                        cuda_mail_sent(d, g.img.slots, g.img.kpad, g.mail_to);
                return r;
        }
        if ((r = conv_run(d, a)) < 0)
                return r;
        if ((r = launch(d, "delta net norms", delta_norm_kernel, dim3(DIV_ROUND_UP(2 * c->a.n_k, 4u), b->n), 128, 0, g)) < 0)
                return r;
        g.image = c->write_image && c->a.s_v % 32 == 0;
        dim3 grid(DIV_ROUND_UP(c->a.s_v, (uint32_t)DELTA_COLS), c->a.n_v, b->n_seq);
        size_t smem = (size_t)DELTA_ROWS * 2 * c->a.s_k * sizeof(float);
        if (c->a.s_k <= 32)
                r = launch(d, "delta net", delta_kernel<8>, grid, 128, smem, g);
        else if (c->a.s_k <= 128)
                r = launch(d, "delta net", delta_kernel<32>, grid, 128, smem, g);
        else
                r = launch(d, "delta net", delta_kernel<64>, grid, 128, smem, g);
        if (r < 0 || (r = launch(d, "delta net output", delta_out_kernel, dim3(DIV_ROUND_UP(c->a.n_v, 4u), b->n), 128, 0, g)) < 0)
                return r;
        if (!c->write_image)
                return 0;
        uint32_t q0 = g.image ? b->n_d : 0, cols = c->a.n_v * c->a.s_v;
        struct image img = {c->out.q + q0 * image_slot(g.img.kpad), g.img.kpad, b->n_d - q0};
        return q0 < b->n ? cuda_quantize(d, c->out.f + (size_t)q0 * cols, cols, NULL, b->n - q0, cols, img) : 0;
}
