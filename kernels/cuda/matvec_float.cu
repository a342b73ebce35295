/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with float weights and float activations, in f32: F32 in either role, what was decoded to f32, and with 'exact' F16 and
 * BF16. (F16 and BF16 else: matvec_half.cu.)
 *
 * One order of a row's sum, by its columns alone: lane l of a warp has the columns 8l..8l+7 of every 256 (F32: 4l..4l+3 of
 * every 128), one after the other, in one chain; then the 32 lanes' sums are added pairwise, 16 apart first. So a column's
 * bits are the same in each of the kernels:
 * - one column: a warp a row, its packs of 16 bytes in registers, several ahead; x from the L1 cache
 * - more: a warp has R rows and the block NC columns; weights and x come through a ring in shared memory. A lane reads
 *   the weights that it asked for itself, x is the block's.
 * - rows that don't begin at 16 bytes, or end within a lane's pack: one by one, by the first kernel's order
 */
#include <errno.h>

#include "kernels/cuda/job.cuh"
#include "kernels/cuda/ptx.cuh"

CUDA_FAMILY(matvec_float)

struct float_args {
        const void *w;
        size_t w_stride, expert_stride; /* bytes */
        const float *scale, *bias;
        float *y;
        size_t y_stride;
        const float *x;
        size_t x_stride;
        uint32_t rows, cols, many_scales;
        uint32_t late;     /* the kernel before makes w, or says which: nothing is read ahead of it */
        uint32_t n_groups; /* blocks side by side that share the columns */
        struct jobs jobs;
};

struct bf16 { uint16_t v; };
static __device__ __forceinline__ float as_float(float v) { return v; }
static __device__ __forceinline__ float as_float(__half v) { return __half2float(v); }
static __device__ __forceinline__ float as_float(bf16 v) { return __uint_as_float((uint32_t)v.v << 16); }

/* Columns 4h..4h+3 of a pack. */
template <class W> static __device__ __forceinline__ void unpack(const uint4 &p, int h, float v[4]);
template <> __device__ __forceinline__ void unpack<float>(const uint4 &p, int, float v[4]) {
        v[0] = __uint_as_float(p.x);
        v[1] = __uint_as_float(p.y);
        v[2] = __uint_as_float(p.z);
        v[3] = __uint_as_float(p.w);
}
template <> __device__ __forceinline__ void unpack<__half>(const uint4 &p, int h, float v[4]) {
        const uint32_t a = h ? p.z : p.x, b = h ? p.w : p.y;
        const float2 fa = __half22float2(*(const __half2 *)&a), fb = __half22float2(*(const __half2 *)&b);
        v[0] = fa.x;
        v[1] = fa.y;
        v[2] = fb.x;
        v[3] = fb.y;
}
template <> __device__ __forceinline__ void unpack<bf16>(const uint4 &p, int h, float v[4]) {
        const uint32_t a = h ? p.z : p.x, b = h ? p.w : p.y;
        v[0] = __uint_as_float(a << 16);
        v[1] = __uint_as_float(a & 0xffff0000u);
        v[2] = __uint_as_float(b << 16);
        v[3] = __uint_as_float(b & 0xffff0000u);
}

/* Columns of a lane's pack; of a warp's step, whose weights are always 512 bytes of a row. */
template <class W> struct packs { enum { PACK = 16 / sizeof(W), STEP = 32 * PACK, FOURS = PACK / 4 }; };

static __device__ __forceinline__ job job_of(const float_args &a) { return job_of(a.jobs, a.jobs.per_expert, blockIdx.y); }
static __device__ __forceinline__ const float *x_of(const float_args &a, const job &j, uint32_t col) {
        return a.x + job_x_row(a.jobs, a.jobs.per_expert, j, col) * a.x_stride;
}
static __device__ __forceinline__ void y_put(const float_args &a, const job &j, uint32_t col, uint32_t row, float v) {
        if (a.scale)
                v = __fmul_rn(v, a.scale[a.many_scales ? j.expert : 0]);
        if (a.bias)
                v = __fadd_rn(v, a.bias[(size_t)j.expert * a.rows + row]);
        a.y[job_y_row(a.jobs, j, col) * a.y_stride + (a.jobs.per_expert ? j.expert * a.jobs.y_job : 0) + row] = v;
}

/* ---- one column ------------------------------------------------------------------------- */

enum { ONE_WARPS = 4, ONE_AHEAD = 8 };

template <class W> __global__ void __launch_bounds__(ONE_WARPS * 32, 6) float_one_kernel(const float_args a) {
        typedef packs<W> P;
        const uint32_t lane = threadIdx.x & 31, row = blockIdx.x * ONE_WARPS + (threadIdx.x >> 5), col = lane * P::PACK;
        int32_t steps = DIV_ROUND_UP(a.cols, (uint32_t)P::STEP), mine = a.cols > col ? DIV_ROUND_UP(a.cols - col, (uint32_t)P::STEP) : 0;
        uint4 ahead[ONE_AHEAD];

        pdl_next();
        if (a.late)
                pdl_wait();
        const job j = job_of(a);
        if (j.n == 0)
                return;
        const uint8_t *w = (const uint8_t *)a.w + j.expert * a.expert_stride + min(row, a.rows - 1) * a.w_stride + lane * 16;
        auto load = [&](int u) { return u < mine ? load16_once(w + u * 512) : make_uint4(0, 0, 0, 0); };
#pragma unroll
        for (int u = 0; u < ONE_AHEAD; u++)
                ahead[u] = load(u);
        if (!a.late)
                pdl_wait();
        const float *x = x_of(a, j, 0) + col;
        float sum = 0;
        auto step = [&](int u, const uint4 &p) {
                float4 xv[P::FOURS];
#pragma unroll
                for (int h = 0; h < P::FOURS; h++)
                        xv[h] = u < mine ? *(const float4 *)(x + u * P::STEP + 4 * h) : make_float4(0, 0, 0, 0);
#pragma unroll
                for (int h = 0; h < P::FOURS; h++) {
                        float v[4];
                        unpack<W>(p, h, v);
                        sum = __fmaf_rn(v[0], xv[h].x, sum);
                        sum = __fmaf_rn(v[1], xv[h].y, sum);
                        sum = __fmaf_rn(v[2], xv[h].z, sum);
                        sum = __fmaf_rn(v[3], xv[h].w, sum);
                }
        };
#pragma unroll 1
        for (; steps >= ONE_AHEAD; steps -= ONE_AHEAD, mine -= ONE_AHEAD) {
#pragma unroll
                for (int u = 0; u < ONE_AHEAD; u++) {
                        const uint4 p = ahead[u];
                        ahead[u] = load(u + ONE_AHEAD);
                        step(u, p);
                }
                w += ONE_AHEAD * 512;
                x += ONE_AHEAD * P::STEP;
        }
#pragma unroll
        for (int u = 0; u < ONE_AHEAD; u++)
                if (u < steps)
                        step(u, ahead[u]);
        sum = warp_sum(sum);
        if (lane == 0 && row < a.rows)
                y_put(a, j, 0, row, sum);
}

/* ---- several columns ---------------------------------------------------------------------- */

static __device__ __forceinline__ void copy16_if(uint32_t to, const void *from, bool ok) {
        int n = ok ? 16 : 0;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n) : "memory");
}

/* warp_sum() of N values: each lane ends with those from index on, as many as are left. Lanes that differ in spare bits have the same. */
template <int N, int O> static __device__ __forceinline__ void sums_spread(float *v, uint32_t lane, uint32_t *index, uint32_t *spare) {
        if constexpr (O > 0) {
                if constexpr (N > 1) {
                        const bool upper = lane & O;
#pragma unroll
                        for (int i = 0; i < N / 2; i++) {
                                const float keep = upper ? v[i + N / 2] : v[i], give = upper ? v[i] : v[i + N / 2];
                                v[i] = keep + __shfl_xor_sync(~0u, give, O);
                        }
                        *index += upper ? N / 2 : 0;
                        sums_spread<N / 2, O / 2>(v, lane, index, spare);
                } else {
                        v[0] += __shfl_xor_sync(~0u, v[0], O);
                        *spare |= O;
                        sums_spread<N, O / 2>(v, lane, index, spare);
                }
        }
}

enum { MANY_WARPS = 8, MANY_THREADS = MANY_WARPS * 32 };

template <class W, int R, int NC, int STAGES> struct many_shape {
        enum : uint32_t {
                X_BYTES = NC * packs<W>::STEP * 4, W_BYTES = MANY_WARPS * R * 512, STAGE = X_BYTES + W_BYTES, SMEM = STAGES * STAGE,
                BLOCKS = R * NC > 32 ? 1 : 2,
        };
};

template <class W, int R, int NC, int STAGES>
__global__ void __launch_bounds__(MANY_THREADS, (many_shape<W, R, NC, STAGES>::BLOCKS)) float_many_kernel(const float_args a) {
        typedef packs<W> P;
        typedef many_shape<W, R, NC, STAGES> M;
        extern __shared__ __align__(128) uint8_t sm[]; /* stages of x [NC][fours][lane], weights [warp][R][lane], 16 bytes each */
        enum { PIECES = NC * 32 * P::FOURS, EACH = (PIECES + MANY_THREADS - 1) / MANY_THREADS };
        const uint32_t tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, base = (uint32_t)__cvta_generic_to_shared(sm);
        const uint32_t row0 = (blockIdx.x / a.n_groups * MANY_WARPS + warp) * R, group = blockIdx.x % a.n_groups;
        const uint32_t steps = DIV_ROUND_UP(a.cols, (uint32_t)P::STEP);

        pdl_next();
        if (a.late)
                pdl_wait();
        const job j = job_of(a);
        const uint32_t first = min(row0, a.rows - 1), last = a.rows - 1 - first;
        const uint8_t *w = (const uint8_t *)a.w + j.expert * a.expert_stride + first * a.w_stride + lane * 16;
        auto fill_w = [&](uint32_t s, uint32_t stage) {
                const uint32_t to = base + stage + M::X_BYTES + warp * (R * 512) + lane * 16;
                const bool ok = s * P::STEP + lane * P::PACK < a.cols;
                const uint8_t *from = ok ? w + (size_t)s * 512 : w;
#pragma unroll
                for (int r = 0; r < R; r++)
                        copy16_if(to + r * 512, from + min((uint32_t)r, last) * a.w_stride, ok);
        };
        bool w_asked = false;
        if (!a.late) {
                for (uint32_t s = 0; s < STAGES - 1 && s < steps; s++)
                        fill_w(s, s * M::STAGE);
                w_asked = true;
                pdl_wait();
        }
        for (uint32_t cb = group * NC; cb < j.n; cb += a.n_groups * NC) {
                /* Four columns of x a thread at a time; where they lie depends on who multiplies them. */
                const float *x[EACH];
                uint32_t to[EACH], from_col[EACH];
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                        const uint32_t piece = tid + i * MANY_THREADS, c = piece / (32 * P::FOURS), q = piece % (32 * P::FOURS);
                        const bool on = piece < PIECES && cb + c < j.n;
                        x[i] = x_of(a, j, on ? cb + c : cb);
                        to[i] = base + ((c * P::FOURS + q % P::FOURS) * 32 + q / P::FOURS) * 16;
                        from_col[i] = on ? q * 4 : UINT32_MAX;
                }
                auto fill_x = [&](uint32_t s, uint32_t stage) {
#pragma unroll
                        for (int i = 0; i < EACH; i++) {
                                const bool ok = from_col[i] != UINT32_MAX && s * P::STEP + from_col[i] < a.cols;
                                if (PIECES % MANY_THREADS == 0 || tid + i * MANY_THREADS < PIECES)
                                        copy16_if(to[i] + stage, ok ? x[i] + s * P::STEP + from_col[i] : x[i], ok);
                        }
                };
                float sum[NC * R];
#pragma unroll
                for (int i = 0; i < NC * R; i++)
                        sum[i] = 0;
                for (uint32_t s = 0; s < STAGES - 1; s++) {
                        if (s < steps) {
                                if (!w_asked)
                                        fill_w(s, s * M::STAGE);
                                fill_x(s, s * M::STAGE);
                        }
                        asm volatile("cp.async.commit_group;" ::: "memory");
                }
                w_asked = false;
                uint32_t get = 0, put = (STAGES - 1) * M::STAGE;
#pragma unroll 1
                for (uint32_t s = 0; s < steps; s++) {
                        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
                        __syncthreads(); /* step s is here, and step s - 1 has been read by all */
                        if (s + STAGES - 1 < steps) {
                                fill_w(s + STAGES - 1, put);
                                fill_x(s + STAGES - 1, put);
                        }
                        asm volatile("cp.async.commit_group;" ::: "memory");
                        const uint8_t *at = sm + get;
                        put = get; /* which is free at the next step's barrier */
                        get = get + M::STAGE < M::SMEM ? get + M::STAGE : 0;
                        const uint4 *ws = (const uint4 *)(at + M::X_BYTES + warp * (R * 512)) + lane;
                        const float4 *xs = (const float4 *)at + lane;
                        uint4 p[R];
#pragma unroll
                        for (int r = 0; r < R; r++)
                                p[r] = ws[r * 32];
#pragma unroll
                        for (int h = 0; h < P::FOURS; h++) {
                                float v[R][4];
#pragma unroll
                                for (int r = 0; r < R; r++)
                                        unpack<W>(p[r], h, v[r]);
#pragma unroll
                                for (int c = 0; c < NC; c++) {
                                        const float4 xv = xs[(c * P::FOURS + h) * 32];
#pragma unroll
                                        for (int r = 0; r < R; r++)
                                                sum[c * R + r] = __fmaf_rn(v[r][0], xv.x, sum[c * R + r]);
#pragma unroll
                                        for (int r = 0; r < R; r++)
                                                sum[c * R + r] = __fmaf_rn(v[r][1], xv.y, sum[c * R + r]);
#pragma unroll
                                        for (int r = 0; r < R; r++)
                                                sum[c * R + r] = __fmaf_rn(v[r][2], xv.z, sum[c * R + r]);
#pragma unroll
                                        for (int r = 0; r < R; r++)
                                                sum[c * R + r] = __fmaf_rn(v[r][3], xv.w, sum[c * R + r]);
                                }
                        }
                }
                uint32_t index = 0, spare = 0;
                sums_spread<NC * R, 16>(sum, lane, &index, &spare);
                if ((lane & spare) == 0) {
#pragma unroll
                        for (int i = 0; i < (NC * R > 32 ? NC * R / 32 : 1); i++) {
                                const uint32_t c = (index + i) / R, r = (index + i) % R;
                                if (cb + c < j.n && row0 + r < a.rows)
                                        y_put(a, j, cb + c, row0 + r, sum[i]);
                        }
                }
                __syncthreads(); /* the ring is filled again */
        }
}

/* ---- rows that don't fit packs --------------------------------------------------------------- */

template <class W, int NC> __global__ void __launch_bounds__(128) float_rows_kernel(const float_args a) {
        typedef packs<W> P;
        const uint32_t lane = threadIdx.x & 31, row = blockIdx.x / a.n_groups * 4 + (threadIdx.x >> 5);

        pdl_next();
        pdl_wait();
        const job j = job_of(a);
        if (row >= a.rows || j.n == 0)
                return;
        const W *w = (const W *)((const uint8_t *)a.w + j.expert * a.expert_stride + row * a.w_stride);
        for (uint32_t cb = blockIdx.x % a.n_groups * NC; cb < j.n; cb += a.n_groups * NC) {
                const float *x[NC];
                float sum[NC];
#pragma unroll
                for (int c = 0; c < NC; c++) {
                        x[c] = x_of(a, j, min(cb + c, j.n - 1));
                        sum[c] = 0;
                }
                for (uint32_t k0 = lane * P::PACK; k0 < a.cols; k0 += P::STEP)
#pragma unroll
                        for (int i = 0; i < P::PACK; i++) {
                                const uint32_t k = k0 + i;
                                if (k >= a.cols)
                                        break;
                                const float v = as_float(w[k]);
#pragma unroll
                                for (int c = 0; c < NC; c++)
                                        sum[c] = __fmaf_rn(v, x[c][k], sum[c]);
                        }
#pragma unroll
                for (int c = 0; c < NC; c++) {
                        const float v = warp_sum(sum[c]);
                        if (lane == 0 && cb + c < j.n)
                                y_put(a, j, cb + c, row, v);
                }
        }
}

/* ---- which ------------------------------------------------------------------------------------ */

/* 1: not for this card, or, unless it must, too few blocks to fill it. */
template <class W, int R, int NC, int STAGES> static int many(struct cuda_dev *d, float_args a, uint32_t jobs, bool must) {
        typedef many_shape<W, R, NC, STAGES> M;
        a.n_groups = a.jobs.expert ? 1 : DIV_ROUND_UP(a.jobs.n, (uint32_t)NC);
        const uint32_t blocks = DIV_ROUND_UP(a.rows, (uint32_t)(MANY_WARPS * R)) * a.n_groups;
        if (M::SMEM > d->smem_block || (!must && (size_t)blocks * jobs < d->n_sm * 3 / 4))
                return 1;
        CUDA_TRY(d, cudaFuncSetAttribute(float_many_kernel<W, R, NC, STAGES>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)M::SMEM), "product");
        return launch(d, "product (float, columns)", float_many_kernel<W, R, NC, STAGES>, dim3(blocks, jobs), MANY_THREADS, M::SMEM, a);
}

template <class W> static int float_type(struct cuda_dev *d, float_args &a, uint32_t jobs) {
        const uint32_t n = a.jobs.n, rows4 = DIV_ROUND_UP(a.rows, 4u);
        const bool packed = a.cols % packs<W>::PACK == 0 && ((uintptr_t)a.w | a.w_stride | (jobs > 1 || a.jobs.expert ? a.expert_stride : 0)) % 16 == 0 &&
                            ((uintptr_t)a.x | a.x_stride * sizeof(float)) % 16 == 0;
        int r;

        a.n_groups = 1;
        if (!packed) {
                if (n == 1)
                        return launch(d, "product (float rows)", float_rows_kernel<W, 1>, dim3(rows4, jobs), 128, 0, a);
                if (!a.jobs.expert)
                        a.n_groups = DIV_ROUND_UP(n, 4u);
                return launch(d, "product (float rows, columns)", float_rows_kernel<W, 4>, dim3(rows4 * a.n_groups, jobs), 128, 0, a);
        }
        if (n == 1)
                return launch(d, "product (float)", float_one_kernel<W>, dim3(DIV_ROUND_UP(a.rows, (uint32_t)ONE_WARPS), jobs), ONE_WARPS * 32, 0, a);
        if (n <= 4 || (a.jobs.expert && n <= 64)) /* of so many rows an expert has few */
                return (r = many<W, 4, 4, 4>(d, a, jobs, false)) <= 0 ? r : many<W, 2, 4, 6>(d, a, jobs, true);
        if (n > 8 && (r = many<W, 8, 16, 3>(d, a, jobs, false)) <= 0)
                return r;
        return (r = many<W, 4, 8, 4>(d, a, jobs, false)) <= 0 ? r : many<W, 2, 8, 6>(d, a, jobs, true);
}

int cuda_matvec_float(struct cuda_dev *d, const struct float_weight *w, const float *bias, float *y, size_t y_stride,
                      const float *x, size_t x_stride, const struct jobs *jobs) {
        const bool decoded = (const uint8_t *)w->data >= d->s_dequant && (const uint8_t *)w->data < d->s_dequant + d->s_dequant_bytes;
        const uint32_t n_job = jobs->expert || jobs->per_expert ? jobs->n_job : 1;
        float_args a = {};

        a.w = w->data;
        a.w_stride = w->stride * (w->type == K_F32 ? 4 : 2);
        a.expert_stride = w->expert_stride;
        a.many_scales = w->many_scales;
        a.scale = w->scale;
        a.bias = bias;
        a.y = y;
        a.y_stride = y_stride;
        a.x = x;
        a.x_stride = x_stride;
        a.rows = w->rows;
        a.cols = w->cols;
        a.late = decoded || jobs->expert;
        a.jobs = *jobs;
        if (jobs->n == 0 || n_job == 0)
                return 0;
        switch (w->type) {
        case K_F32: return float_type<float>(d, a, n_job);
        case K_F16: return float_type<__half>(d, a, n_job);
        case K_BF16: return float_type<bf16>(d, a, n_job);
        default: return -EINVAL;
        }
}
