/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gated delta net for heads of 128 key and 128 value columns.
 *
 * Role D, two launches: convolution, SiLU, q/k norms and the convolution's new
 * state (a block per head); then recurrence, gated norm and image (a block per
 * value head), row by row. Role P, five: convolution and norms for 16 rows a block; what
 * blocks of rows need of themselves; the walk over them (delta_chunk.cuh); what a chunk leaves
 * in the slot besides the state; gated norm and image.
 */
#include <errno.h>
#include <stdio.h>

#include "kernels/cuda/delta_chunk.cuh"

CUDA_FAMILY(delta_128)

enum {
        PER = 32,           /* keys of one column that a thread holds: 4 threads a column */
        CONV_ROWS = 16,
        STEP_THREADS = 4 * HD,
};

/* v / sqrt(sum v^2 + eps), for q also / sqrt(128), over the 128 threads of a head. */
static __device__ __forceinline__ float head_factor(float square_sum, float eps, bool q) {
        float f = rsqrtf(square_sum + eps);
        return q ? f * rsqrtf((float)HD) : f;
}

static __device__ __forceinline__ float conv_silu(const float *w, uint32_t taps, const float (&x)[4]) {
        float v = 0;
#pragma unroll
        for (int t = 0; t < 4; t++)
                if (t < taps)
                        v = __fmaf_rn(w[t], x[4 - taps + t], v);
        return v * sigmoid(v);
}

/* ---- convolution, D: block (head, sequence); a thread walks its channel's rows ---------------- */

__global__ void __launch_bounds__(HD) conv_d_kernel(const conv_args a, uint32_t n_qk, uint32_t n_q, float eps) {
        __shared__ float red[33];
        const uint32_t h = blockIdx.x, c = h * HD + threadIdx.x, s = blockIdx.y, keep = a.taps - 1;
        float w[4], x[4] = {};

        pdl_next();
#pragma unroll
        for (int t = 0; t < 4; t++)
                w[t] = t < a.taps ? a.w[(size_t)c * a.taps + t] : 0;
        pdl_wait();
        const uint32_t *rows = a.b.seq_rows + a.b.seq_start[s], n = a.b.seq_start[s + 1] - a.b.seq_start[s];
        if (n == 0 || !seq_is_d(a.b, rows))
                return;
        /* x[4 - taps ..]: the inputs that the taps see; the last is the current row's. */
#pragma unroll
        for (int t = 0; t < 4; t++)
                if (t >= (int)(4 - keep) && !a.b.state_zero[s])
                        x[t] = a.state[((size_t)a.b.state_in[s] * keep + t - (4 - keep)) * a.channels + c];
        for (uint32_t i = 0; i < n; i++) {
                const uint32_t row = rows[i];
#pragma unroll
                for (int t = 0; t < 3; t++)
                        x[t] = x[t + 1];
                x[3] = a.x[row * a.x_stride + c];
                float v = conv_silu(w, a.taps, x);
                if (h < n_qk) {
                        float f = block_sum(__fmul_rn(v, v), red);
                        v *= head_factor(f, eps, h < n_q);
                }
                a.out[(size_t)row * a.channels + c] = v;
                const uint32_t to = a.b.state_out[row];
                if (to != UINT32_MAX)
#pragma unroll
                        for (int t = 0; t < 4; t++)
                                if (t >= (int)(4 - keep))
                                        a.state[((size_t)to * keep + t - (4 - keep)) * a.channels + c] = x[t];
        }
}

/* ---- convolution, P: block (head, 16 rows) ------------------------------------------------------- */

__global__ void __launch_bounds__(HD) conv_p_kernel(const conv_args a, uint32_t n_qk, uint32_t n_q, float eps) {
        __shared__ float part[CONV_ROWS][4];
        const uint32_t h = blockIdx.x, c = h * HD + threadIdx.x, r0 = a.b.n_d + blockIdx.y * CONV_ROWS, keep = a.taps - 1;
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        float w[4], in[CONV_ROWS + 3], v[CONV_ROWS];

        pdl_next();
#pragma unroll
        for (int t = 0; t < 4; t++)
                w[t] = t < a.taps ? a.w[(size_t)c * a.taps + t] : 0;
        pdl_wait();
#pragma unroll
        for (int i = 0; i < CONV_ROWS + 3; i++) {
                const uint32_t row = r0 + i - 3; /* wraps below 0 */
                in[i] = row < a.b.n ? a.x[row * a.x_stride + c] : 0;
        }
#pragma unroll
        for (int i = 0; i < CONV_ROWS; i++) {
                const uint32_t row = r0 + i;
                v[i] = 0;
                if (row >= a.b.n)
                        continue;
                const uint32_t at = a.b.row_at[row], s = a.b.seq[row];
                float x[4];
#pragma unroll
                for (int t = 0; t < 4; t++) {
                        x[t] = in[i + t];
                        if (at < 3 - t) /* before this batch: number at + t - 3 of its sequence, in the state or nothing */
                                x[t] = t < (int)(4 - a.taps) || a.b.state_zero[s]
                                               ? 0
                                               : a.state[((size_t)a.b.state_in[s] * keep + keep + at + t - 3) * a.channels + c];
                }
                v[i] = conv_silu(w, a.taps, x);
        }
        if (h < n_qk) {
#pragma unroll
                for (int i = 0; i < CONV_ROWS; i++) {
                        float q = warp_sum(__fmul_rn(v[i], v[i]));
                        if (lane == 0)
                                part[i][warp] = q;
                }
                __syncthreads();
#pragma unroll
                for (int i = 0; i < CONV_ROWS; i++) { /* in the order of block_sum */
                        float q = 0;
                        for (int k = 0; k < 4; k++)
                                q += part[i][k];
                        v[i] = to_tf32(v[i] * head_factor(q, eps, h < n_q)); /* as the products read them, also from what is pending */
                }
        }
#pragma unroll
        for (int i = 0; i < CONV_ROWS; i++)
                if (r0 + i < a.b.n)
                        a.out[(size_t)(r0 + i) * a.channels + c] = v[i];
}

/*
 * The convolution's state after the rows that keep one, and what they leave pending; after conv_p_kernel and scan_kernel, which
 * read the old ones. Thread = channel.
 */
__global__ void __launch_bounds__(HD) conv_keep_kernel(const conv_args a, const delta_args g) {
        pdl_next();
        pdl_wait();
        const uint32_t c = blockIdx.x * HD + threadIdx.x, s = blockIdx.y, keep = a.taps - 1;
        const uint32_t *rows = a.b.seq_rows + a.b.seq_start[s], n = a.b.seq_start[s + 1] - a.b.seq_start[s];
        if (n == 0 || seq_is_d(a.b, rows))
                return;
        const seq_blocks w = seq_blocks_of(g.b, s);
        const uint32_t before = blockIdx.x >= 2 * g.a.n_k ? seq_pending(g, w, blockIdx.x - 2 * g.a.n_k) : 0;
        float old[3];
#pragma unroll
        for (int t = 0; t < 3; t++)
                old[t] = t < keep && !a.b.state_zero[s] ? a.state[((size_t)a.b.state_in[s] * keep + t) * a.channels + c] : 0;
        for (uint32_t i0 = 0; i0 < n; i0 += HD) {
                const uint32_t mine = i0 + threadIdx.x < n ? a.b.state_out[rows[i0 + threadIdx.x]] : UINT32_MAX;
                if (!__syncthreads_or(mine != UINT32_MAX))
                        continue;
                for (uint32_t i = i0; i < min(i0 + HD, n); i++) {
                        const uint32_t to = a.b.state_out[rows[i]];
                        if (to == UINT32_MAX)
                                continue;
                        for (uint32_t t = 0; t < keep; t++) {
                                const int32_t at = (int32_t)(i + 1 + t) - (int32_t)keep;
                                float v = at == -1 ? old[keep - 1] : at == -2 ? old[keep >= 2 ? keep - 2 : 0] : old[0];
                                if (at >= 0)
                                        v = a.x[rows[at] * a.x_stride + c];
                                a.state[((size_t)to * keep + t) * a.channels + c] = v;
                        }
                        keep_pending(g, w, blockIdx.x, i, before, to);
                }
        }
}

/* ---- recurrence ------------------------------------------------------------------------------------ */

/*
 * One row for one value column, by the four lanes 8 apart that hold it: keys
 * 32 part .. 32 part + 31. q and k: this part's. Returns o, on all four; without OUT only the state is wanted.
 */
template <bool OUT> static __device__ __forceinline__ float delta_row(float (&S)[PER], const float *q, const float *k, float v, float decay, float beta) {
        float4 kk[PER / 4];
        float a[4] = {}, o[4] = {};
#pragma unroll
        for (int i = 0; i < PER / 4; i++) {
                kk[i] = ((const float4 *)k)[i];
                S[4 * i] = __fmul_rn(S[4 * i], decay);
                S[4 * i + 1] = __fmul_rn(S[4 * i + 1], decay);
                S[4 * i + 2] = __fmul_rn(S[4 * i + 2], decay);
                S[4 * i + 3] = __fmul_rn(S[4 * i + 3], decay);
                a[0] = __fmaf_rn(kk[i].x, S[4 * i], a[0]);
                a[1] = __fmaf_rn(kk[i].y, S[4 * i + 1], a[1]);
                a[2] = __fmaf_rn(kk[i].z, S[4 * i + 2], a[2]);
                a[3] = __fmaf_rn(kk[i].w, S[4 * i + 3], a[3]);
        }
        float kv = __fadd_rn(__fadd_rn(a[0], a[1]), __fadd_rn(a[2], a[3]));
        kv = __fadd_rn(kv, __shfl_xor_sync(~0u, kv, 8));
        kv = __fadd_rn(kv, __shfl_xor_sync(~0u, kv, 16));
        const float dl = __fmul_rn(__fsub_rn(v, kv), beta);
        if (!OUT)
                __syncwarp(); /* rare, and k is not worth registers: read again */
#pragma unroll
        for (int i = 0; i < PER / 4; i++) {
                if (!OUT)
                        kk[i] = ((const float4 *)k)[i];
                S[4 * i] = __fmaf_rn(kk[i].x, dl, S[4 * i]);
                S[4 * i + 1] = __fmaf_rn(kk[i].y, dl, S[4 * i + 1]);
                S[4 * i + 2] = __fmaf_rn(kk[i].z, dl, S[4 * i + 2]);
                S[4 * i + 3] = __fmaf_rn(kk[i].w, dl, S[4 * i + 3]);
                if (!OUT)
                        continue;
                const float4 qq = ((const float4 *)q)[i];
                o[0] = __fmaf_rn(qq.x, S[4 * i], o[0]);
                o[1] = __fmaf_rn(qq.y, S[4 * i + 1], o[1]);
                o[2] = __fmaf_rn(qq.z, S[4 * i + 2], o[2]);
                o[3] = __fmaf_rn(qq.w, S[4 * i + 3], o[3]);
        }
        if (!OUT)
                return 0;
        float r = __fadd_rn(__fadd_rn(o[0], o[1]), __fadd_rn(o[2], o[3]));
        r = __fadd_rn(r, __shfl_xor_sync(~0u, r, 8));
        return __fadd_rn(r, __shfl_xor_sync(~0u, r, 16));
}

/* Lane = 8 part + column within the warp's 8; in shared memory a part's 32 keys are 36 apart, for the banks. */
enum { PART = 36, ROW_FLOATS = 4 * PART };
static __device__ __forceinline__ uint32_t key_at(uint32_t k) { return (k >> 5) * PART + (k & 31); }

/* rms(o) * w * silu(z) of four columns of a head, whose other columns are the other lanes'. */
static __device__ __forceinline__ float4 gated_norm(float4 o, float4 z, float4 w, float eps) {
        float s = __fmaf_rn(o.w, o.w, __fmaf_rn(o.z, o.z, __fmaf_rn(o.y, o.y, __fmul_rn(o.x, o.x))));
        const float f = rsqrtf(warp_sum(s) / (float)HD + eps);
        return make_float4(o.x * f * w.x * (z.x * sigmoid(z.x)), o.y * f * w.y * (z.y * sigmoid(z.y)), o.z * f * w.z * (z.z * sigmoid(z.z)),
                           o.w * f * w.w * (z.w * sigmoid(z.w)));
}

/* D: block (value head, sequence), a warp has 8 columns. */
__global__ void __launch_bounds__(STEP_THREADS) step_kernel(const delta_args g) {
        __shared__ __align__(16) float q[ROW_FLOATS], k[ROW_FLOATS], out[ROW_FLOATS];
        const uint32_t lane = threadIdx.x & 31, part = lane >> 3, col = (threadIdx.x >> 5) * 8 + (lane & 7), h = blockIdx.x, s = blockIdx.y;

        pdl_next();
        pdl_wait(); /* before the step's data too: a graph's first kernel may be what brings it */
        const uint32_t *rows = g.b.seq_rows + g.b.seq_start[s], n = g.b.seq_start[s + 1] - g.b.seq_start[s];
        if (n == 0 || !seq_is_d(g.b, rows))
                return;
        const head_of p = head_args(g, h);
        float S[PER];
        const float *from = slot_state(g, g.b.state_in[s], h) + (size_t)part * PER * HD + col;
        const bool zero = g.b.state_zero[s];
        const uint32_t pending = zero ? 0 : *pending_count(g, g.b.state_in[s], h); /* comes with the state, and is looked at when that is needed */
#pragma unroll
        for (int i = 0; i < PER; i++)
                S[i] = zero ? 0 : from[(size_t)i * HD];
        for (uint32_t i = 0; i < n; i++) {
                const uint32_t row = rows[i];
                const float *x = g.x + (size_t)row * g.channels;
                const size_t ba = row * g.a.ba_stride + p.ba;
                const float alpha = load_here(g.a.alpha + ba), beta = load_here(g.a.beta + ba), v = load_here(x + (2 * g.a.n_k + h) * HD + col);
                const float qk = threadIdx.x < 2 * HD ? load_here(x + (threadIdx.x < HD ? p.kh : g.a.n_k + p.kh - 1) * HD + threadIdx.x) : 0;
                __syncthreads();
                if (threadIdx.x < HD)
                        q[key_at(threadIdx.x)] = qk;
                else if (threadIdx.x < 2 * HD)
                        k[key_at(threadIdx.x - HD)] = qk;
                const float2 gate = gates_of(p, alpha, beta);
                const float decay = expf(gate.x);
                __syncthreads();
                if (i == 0 && pending) { /* behind a prompt that ended within a block: once */
                        const uint32_t end = (uint32_t)g.b.pos[row] % BLOCK, slot = g.b.state_in[s];
#pragma unroll 1
                        for (uint32_t r = end - min(pending, end); r < end; r++) {
                                if (threadIdx.x < HD)
                                        out[key_at(threadIdx.x)] = pending_k(g, slot, p.kh)[r * HD + threadIdx.x];
                                __syncthreads();
                                const float2 was = pending_gate(g, slot, h)[r];
                                delta_row<false>(S, NULL, out + part * PART, pending_v(g, slot, h)[r * HD + col], expf(was.x), was.y);
                                __syncthreads();
                        }
                }
                const float o = delta_row<true>(S, q + part * PART, k + part * PART, v, decay, gate.y);
                if (part == 0)
                        out[col] = o;
                __syncthreads();
                if (threadIdx.x < 32) { /* before the state is kept: somebody may wait for the image */
                        const float4 z = *(const float4 *)(g.a.z + row * g.a.z_stride + h * HD + lane * 4), w = ((const float4 *)g.a.norm_w)[lane];
                        const float4 y = gated_norm(((const float4 *)out)[lane], z, w, g.a.eps);
                        if (g.image) {
                                uint8_t *slot = g.img.slots + row * image_slot(g.img.kpad);
                                image_put4(slot, g.img.kpad, h * HD + lane * 4, y, g.mail_to);
                                if (h + 1 == g.a.n_v) /* the pad behind the last head */
                                        for (uint32_t c = g.a.n_v * HD + lane * 4; c < g.img.kpad; c += HD)
                                                image_put4(slot, g.img.kpad, c, make_float4(0, 0, 0, 0), g.mail_to);
                        }
                        ((float4 *)(g.out + (size_t)row * g.a.n_v * HD + h * HD))[lane] = y;
                }
                const uint32_t to = g.b.state_out[row];
                if (to != UINT32_MAX) {
                        float *dst = slot_state(g, to, h) + (size_t)part * PER * HD + col;
#pragma unroll
                        for (int j = 0; j < PER; j++)
                                dst[(size_t)j * HD] = S[j];
                        if (threadIdx.x == 0) /* all of this block have read it, if it is the same slot */
                                *pending_count(g, to, h) = 0;
                }
        }
}

/* P: gated norm and image of a row. A warp takes every 16th head; the row is walked again for the image, from L1. */
__global__ void __launch_bounds__(512) out_p_kernel(const delta_args g) {
        __shared__ float red[33];
        const uint32_t row = g.b.n_d + blockIdx.x, lane = threadIdx.x & 31, cols = g.a.n_v * HD;

        pdl_next();
        const float4 w = ((const float4 *)g.a.norm_w)[lane];
        pdl_wait();
        float *o = g.out + (size_t)row * cols;
        float amax = 0;
        for (uint32_t h = threadIdx.x >> 5; h < g.a.n_v; h += 16) {
                const float4 z = *(const float4 *)(g.a.z + row * g.a.z_stride + h * HD + lane * 4);
                const float4 y = gated_norm(((const float4 *)(o + h * HD))[lane], z, w, g.a.eps);
                ((float4 *)(o + h * HD))[lane] = y;
                amax = fmaxf(amax, fmaxf(fmaxf(fabsf(y.x), fabsf(y.y)), fmaxf(fabsf(y.z), fabsf(y.w))));
        }
        if (!g.image)
                return;
        const float up = image_pow2(block_max(amax, red));
        uint8_t *slot = g.img.slots + row * image_slot(g.img.kpad);
        for (uint32_t h = threadIdx.x >> 5; h * HD < g.img.kpad; h += 16) { /* each lane reads what it wrote */
                const float4 y = h < g.a.n_v ? ((const float4 *)(o + h * HD))[lane] : make_float4(0, 0, 0, 0);
                __half2 a = __floats2half2_rn(y.x * up, y.y * up), b = __floats2half2_rn(y.z * up, y.w * up);
                *(uint2 *)(slot + 2 * (size_t)(h * HD + lane * 4)) = make_uint2(*(uint32_t *)&a, *(uint32_t *)&b);
        }
        if (threadIdx.x == 0)
                *(float *)(slot + 2 * (size_t)g.img.kpad) = 1.0f / up;
}

size_t cuda_delta_slot(uint32_t n_k, uint32_t n_v, uint32_t s_k, uint32_t s_v) {
        const size_t pending = s_k == HD && s_v == HD ? (size_t)(n_k + n_v) * PENDING * HD + (size_t)n_v * BLOCK * 2 : 0;
        return (size_t)n_v * s_k * s_v + pending;
}

/* Sequences have a row each at least. */
size_t cuda_delta_scratch(uint32_t max_rows) { return (max_rows / BLOCK + 2 * (size_t)max_rows) * sizeof(scan_block); }

int cuda_delta_128(struct cuda_dev *d, const delta_args &g, const conv_args &a) {
        const uint32_t heads = 2 * g.a.n_k + g.a.n_v, n_p = g.b.n - g.b.n_d;
        int r;

        if (!g.b.pos || !g.b.state_in || !g.b.state_out) /* where a block of rows begins goes by a row's position, also for rows of role D */
                return -EINVAL;
        if (((uintptr_t)g.a.z | (uintptr_t)g.a.norm_w | g.a.z_stride * sizeof(float)) & 15) { /* read four at a time */
                snprintf(d->error, sizeof(d->error), "delta net: the output gate's rows or its norm's weights are not aligned to 16 bytes");
                return -EINVAL;
        }
        if (g.b.n_d) { /* a sequence has rows of one role, so D rows bound the D sequences */
                if ((r = launch(d, "delta net, convolution (D)", conv_d_kernel, dim3(heads, g.b.n_seq), HD, 0, a, 2 * g.a.n_k, g.a.n_k, g.a.eps)) < 0 ||
                    (r = launch(d, "delta net, step (D)", step_kernel, dim3(g.a.n_v, g.b.n_seq), STEP_THREADS, 0, g)) < 0)
                        return r;
        }
        if (!n_p)
                return 0;
        const size_t smem = SCAN_STAGES * sizeof(scan_stage), n_block = blocks_most(g.b);
        const uint32_t fit = (uint32_t)MIN(d->s_dequant_bytes / (n_block * sizeof(scan_block)), (size_t)g.a.n_v); /* value heads at a time */
        if (fit == 0) {
                snprintf(d->error, sizeof(d->error), "delta net: no room for %zu blocks of rows in %zu bytes of scratch", n_block, d->s_dequant_bytes);
                return -E2BIG;
        }
        CUDA_TRY(d, cudaFuncSetAttribute(scan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem), "delta net");
        if ((r = launch(d, "delta net, convolution (P)", conv_p_kernel, dim3(heads, DIV_ROUND_UP(n_p, (uint32_t)CONV_ROWS)), HD, 0, a, 2 * g.a.n_k,
                        g.a.n_k, g.a.eps)) < 0)
                return r;
        scan_block *made = (scan_block *)d->s_dequant;
        for (uint32_t h = 0; h < g.a.n_v; h += fit) {
                const uint32_t n = MIN(fit, g.a.n_v - h);
                if ((r = launch(d, "delta net, blocks (P)", block_kernel, dim3((uint32_t)n_block, g.a.n_k), 128, 0, g, made, h, n)) < 0 ||
                    (r = launch(d, "delta net, scan (P)", scan_kernel, dim3(HD / SCAN_COLS, n, g.b.n_seq), SCAN_THREADS, smem, g, made, h)) < 0)
                        return r;
        }
        if ((r = launch(d, "delta net, states (P)", conv_keep_kernel, dim3(heads, g.b.n_seq), HD, 0, a, g)) < 0)
                return r;
        return launch(d, "delta net, output (P)", out_p_kernel, n_p, 512, 0, g);
}
