/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gated delta net for heads of 128 key and 128 value columns.
 *
 * Role D, two launches: convolution, SiLU, q/k norms and the convolution's new
 * state (a block per head); then recurrence, gated norm and image (a block per
 * value head). Role P, four: convolution and norms for 16 rows a block; its state; the
 * recurrence, 32 value columns a block, rows staged 16 ahead; gated norm and image.
 *
 * The recurrence is walked row by row in both: its arithmetic is a function of
 * the row's number alone, so a prompt may be cut anywhere, and a P row has the
 * bits of a D row. A chunkwise form would fix the bits to its own grid, so that a
 * chunk's end within a block would need the block's keys and values kept beside the
 * state; docs/kernels/cuda-delta.md has what that would bring.
 */
#include <errno.h>

#include "kernels/cuda/delta.cuh"

CUDA_FAMILY(delta_128)

enum {
        HD = 128,           /* columns of a head */
        PER = 32,           /* keys of one column that a thread holds: 4 threads a column */
        CONV_ROWS = 16,
        SCAN_COLS = 32, SCAN_ROWS = 16,
        STEP_THREADS = 4 * HD,
};

/* Whether sequence s of the batch is of role D: its rows are all of one role. */
static __device__ __forceinline__ bool seq_is_d(const dbatch &b, const uint32_t *rows) { return rows[0] < b.n_d; }

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
                        v[i] *= head_factor(q, eps, h < n_q);
                }
        }
#pragma unroll
        for (int i = 0; i < CONV_ROWS; i++)
                if (r0 + i < a.b.n)
                        a.out[(size_t)(r0 + i) * a.channels + c] = v[i];
}

/* The state after the rows that keep one; after conv_p_kernel, which reads the old ones. Thread = channel. */
__global__ void __launch_bounds__(HD) conv_keep_kernel(const conv_args a) {
        pdl_next();
        pdl_wait();
        const uint32_t c = blockIdx.x * HD + threadIdx.x, s = blockIdx.y, keep = a.taps - 1;
        const uint32_t *rows = a.b.seq_rows + a.b.seq_start[s], n = a.b.seq_start[s + 1] - a.b.seq_start[s];
        if (n == 0 || seq_is_d(a.b, rows))
                return;
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
                }
        }
}

/* ---- recurrence ------------------------------------------------------------------------------------ */

/* (beta, decay) of a row and head. */
static __device__ __forceinline__ float2 row_gates(const delta_args &g, uint32_t row, uint32_t ba, float ah, float dt) {
        const float t = g.a.alpha[row * g.a.ba_stride + ba] + dt;
        return make_float2(sigmoid(g.a.beta[row * g.a.ba_stride + ba]), expf(ah * (t > 20 ? t : log1pf(expf(t)))));
}

/*
 * One row for one value column, by the four lanes 8 apart that hold it: keys
 * 32 part .. 32 part + 31. q and k: this part's. Returns o, on all four.
 */
static __device__ __forceinline__ float delta_row(float (&S)[PER], const float *q, const float *k, float v, float2 gate) {
        float4 kk[PER / 4];
        float a[4] = {}, o[4] = {};
#pragma unroll
        for (int i = 0; i < PER / 4; i++) {
                kk[i] = ((const float4 *)k)[i];
                S[4 * i] = __fmul_rn(S[4 * i], gate.y);
                S[4 * i + 1] = __fmul_rn(S[4 * i + 1], gate.y);
                S[4 * i + 2] = __fmul_rn(S[4 * i + 2], gate.y);
                S[4 * i + 3] = __fmul_rn(S[4 * i + 3], gate.y);
                a[0] = __fmaf_rn(kk[i].x, S[4 * i], a[0]);
                a[1] = __fmaf_rn(kk[i].y, S[4 * i + 1], a[1]);
                a[2] = __fmaf_rn(kk[i].z, S[4 * i + 2], a[2]);
                a[3] = __fmaf_rn(kk[i].w, S[4 * i + 3], a[3]);
        }
        float kv = __fadd_rn(__fadd_rn(a[0], a[1]), __fadd_rn(a[2], a[3]));
        kv = __fadd_rn(kv, __shfl_xor_sync(~0u, kv, 8));
        kv = __fadd_rn(kv, __shfl_xor_sync(~0u, kv, 16));
        const float dl = __fmul_rn(__fsub_rn(v, kv), gate.x);
#pragma unroll
        for (int i = 0; i < PER / 4; i++) {
                const float4 qq = ((const float4 *)q)[i];
                S[4 * i] = __fmaf_rn(kk[i].x, dl, S[4 * i]);
                S[4 * i + 1] = __fmaf_rn(kk[i].y, dl, S[4 * i + 1]);
                S[4 * i + 2] = __fmaf_rn(kk[i].z, dl, S[4 * i + 2]);
                S[4 * i + 3] = __fmaf_rn(kk[i].w, dl, S[4 * i + 3]);
                o[0] = __fmaf_rn(qq.x, S[4 * i], o[0]);
                o[1] = __fmaf_rn(qq.y, S[4 * i + 1], o[1]);
                o[2] = __fmaf_rn(qq.z, S[4 * i + 2], o[2]);
                o[3] = __fmaf_rn(qq.w, S[4 * i + 3], o[3]);
        }
        float r = __fadd_rn(__fadd_rn(o[0], o[1]), __fadd_rn(o[2], o[3]));
        r = __fadd_rn(r, __shfl_xor_sync(~0u, r, 8));
        return __fadd_rn(r, __shfl_xor_sync(~0u, r, 16));
}

struct head_of { uint32_t kh, ba; float ah, dt; };
static __device__ __forceinline__ head_of head_args(const delta_args &g, uint32_t h) {
        head_of r;
        r.kh = g.a.k_head_blocked ? h / (g.a.n_v / g.a.n_k) : h % g.a.n_k;
        r.ba = g.a.ba_run ? h / g.a.ba_run * 2 * g.a.ba_run + h % g.a.ba_run : h;
        r.ah = g.a.a[h];
        r.dt = g.a.dt_bias[h];
        return r;
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
        __shared__ __align__(16) float q[ROW_FLOATS], k[ROW_FLOATS], out[HD];
        const uint32_t lane = threadIdx.x & 31, part = lane >> 3, col = (threadIdx.x >> 5) * 8 + (lane & 7), h = blockIdx.x, s = blockIdx.y;

        pdl_next();
        pdl_wait(); /* before the step's data too: a graph's first kernel may be what brings it */
        const uint32_t *rows = g.b.seq_rows + g.b.seq_start[s], n = g.b.seq_start[s + 1] - g.b.seq_start[s];
        if (n == 0 || !seq_is_d(g.b, rows))
                return;
        const head_of p = head_args(g, h);
        float S[PER];
        const float *from = g.a.state + (((size_t)g.b.state_in[s] * g.a.n_v + h) * HD + part * PER) * HD + col;
        const bool zero = g.b.state_zero[s];
#pragma unroll
        for (int i = 0; i < PER; i++)
                S[i] = zero ? 0 : from[(size_t)i * HD];
        for (uint32_t i = 0; i < n; i++) {
                const uint32_t row = rows[i];
                const float *x = g.x + (size_t)row * g.channels;
                __syncthreads();
                if (threadIdx.x < HD)
                        q[key_at(threadIdx.x)] = x[p.kh * HD + threadIdx.x];
                else if (threadIdx.x < 2 * HD)
                        k[key_at(threadIdx.x - HD)] = x[(g.a.n_k + p.kh) * HD + threadIdx.x - HD];
                const float v = x[(2 * g.a.n_k + h) * HD + col];
                const float2 gate = row_gates(g, row, p.ba, p.ah, p.dt);
                __syncthreads();
                const float o = delta_row(S, q + part * PART, k + part * PART, v, gate);
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
                        float *dst = g.a.state + (((size_t)to * g.a.n_v + h) * HD + part * PER) * HD + col;
#pragma unroll
                        for (int j = 0; j < PER; j++)
                                dst[(size_t)j * HD] = S[j];
                }
        }
}

static __device__ __forceinline__ void copy16f(float *to, const float *from) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from));
}

struct scan_stage {
        float q[SCAN_ROWS][ROW_FLOATS], k[SCAN_ROWS][ROW_FLOATS], v[SCAN_ROWS][SCAN_COLS];
        float2 gate[SCAN_ROWS];
};

/* P: block (32 columns, value head, sequence); rows come 16 at a time, the next 16 on their way. */
__global__ void __launch_bounds__(4 * SCAN_COLS) scan_kernel(const delta_args g) {
        extern __shared__ __align__(16) uint8_t raw[];
        scan_stage *stage = (scan_stage *)raw; /* [2] */
        const uint32_t lane = threadIdx.x & 31, part = lane >> 3, wc = (threadIdx.x >> 5) * 8 + (lane & 7), c0 = blockIdx.x * SCAN_COLS;
        const uint32_t col = c0 + wc, h = blockIdx.y, s = blockIdx.z;

        pdl_next();
        pdl_wait();
        const uint32_t *rows = g.b.seq_rows + g.b.seq_start[s], n = g.b.seq_start[s + 1] - g.b.seq_start[s];
        if (n == 0 || seq_is_d(g.b, rows))
                return;
        const head_of p = head_args(g, h);
        float S[PER];
        const float *from = g.a.state + (((size_t)g.b.state_in[s] * g.a.n_v + h) * HD + part * PER) * HD + col;
        const bool zero = g.b.state_zero[s];
#pragma unroll
        for (int i = 0; i < PER; i++)
                S[i] = zero ? 0 : from[(size_t)i * HD];
        auto ask = [&](uint32_t r0, scan_stage &to) {
                const uint32_t m = min((uint32_t)SCAN_ROWS, n - r0);
                for (uint32_t i = threadIdx.x; i < m * (HD / 4); i += 4 * SCAN_COLS) {
                        const uint32_t r = i / (HD / 4), c = i % (HD / 4) * 4;
                        const float *x = g.x + (size_t)rows[r0 + r] * g.channels;
                        copy16f(&to.q[r][key_at(c)], x + p.kh * HD + c);
                        copy16f(&to.k[r][key_at(c)], x + (g.a.n_k + p.kh) * HD + c);
                }
                for (uint32_t i = threadIdx.x; i < m * (SCAN_COLS / 4); i += 4 * SCAN_COLS) {
                        const uint32_t r = i / (SCAN_COLS / 4), c = i % (SCAN_COLS / 4) * 4;
                        copy16f(&to.v[r][c], g.x + (size_t)rows[r0 + r] * g.channels + (2 * g.a.n_k + h) * HD + c0 + c);
                }
                asm volatile("cp.async.commit_group;" ::: "memory");
                if (threadIdx.x < m)
                        to.gate[threadIdx.x] = row_gates(g, rows[r0 + threadIdx.x], p.ba, p.ah, p.dt);
        };
        ask(0, stage[0]);
        uint32_t turn = 0;
        for (uint32_t r0 = 0; r0 < n; r0 += SCAN_ROWS, turn ^= 1) {
                const uint32_t m = min((uint32_t)SCAN_ROWS, n - r0);
                asm volatile("cp.async.wait_group 0;" ::: "memory");
                __syncthreads(); /* this stage is there, the other one read */
                if (r0 + SCAN_ROWS < n)
                        ask(r0 + SCAN_ROWS, stage[turn ^ 1]);
                const scan_stage &st = stage[turn];
                for (uint32_t r = 0; r < m; r++) {
                        const uint32_t row = rows[r0 + r];
                        const float o = delta_row(S, st.q[r] + part * PART, st.k[r] + part * PART, st.v[r][wc], st.gate[r]);
                        if (part == 0)
                                g.out[(size_t)row * g.a.n_v * HD + h * HD + col] = o;
                        const uint32_t to = g.b.state_out[row];
                        if (to != UINT32_MAX) {
                                float *dst = g.a.state + (((size_t)to * g.a.n_v + h) * HD + part * PER) * HD + col;
#pragma unroll
                                for (int j = 0; j < PER; j++)
                                        dst[(size_t)j * HD] = S[j];
                        }
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

int cuda_delta_128(struct cuda_dev *d, const delta_args &g, const conv_args &a) {
        const uint32_t heads = 2 * g.a.n_k + g.a.n_v, n_p = g.b.n - g.b.n_d;
        int r;

        if (g.b.n_d) { /* a sequence has rows of one role, so D rows bound the D sequences */
                if ((r = launch(d, "delta net, convolution (D)", conv_d_kernel, dim3(heads, g.b.n_seq), HD, 0, a, 2 * g.a.n_k, g.a.n_k, g.a.eps)) < 0 ||
                    (r = launch(d, "delta net, step (D)", step_kernel, dim3(g.a.n_v, g.b.n_seq), STEP_THREADS, 0, g)) < 0)
                        return r;
        }
        if (!n_p)
                return 0;
        const size_t smem = 2 * sizeof(scan_stage);
        CUDA_TRY(d, cudaFuncSetAttribute(scan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem), "delta net");
        if ((r = launch(d, "delta net, convolution (P)", conv_p_kernel, dim3(heads, DIV_ROUND_UP(n_p, (uint32_t)CONV_ROWS)), HD, 0, a, 2 * g.a.n_k,
                        g.a.n_k, g.a.eps)) < 0 ||
            (r = launch(d, "delta net, convolution state (P)", conv_keep_kernel, dim3(heads, g.b.n_seq), HD, 0, a)) < 0 ||
            (r = launch(d, "delta net, scan (P)", scan_kernel, dim3(HD / SCAN_COLS, g.a.n_v, g.b.n_seq), 4 * SCAN_COLS, smem, g)) < 0)
                return r;
        return launch(d, "delta net, output (P)", out_p_kernel, n_p, 512, 0, g);
}
