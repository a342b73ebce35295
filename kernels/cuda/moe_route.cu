/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of experts. A warp chooses for a row: its lanes hold the experts
 * lane, lane + 32, ... in registers; a rank is found by two reductions over
 * order-preserving integer keys. Ties go to the lowest index, NaN comes last; in a
 * softmax a difference that is no number counts as the least, as on the CPU.
 *
 * moe_route_kernel also makes the logits: a block has one expert and one row, or four;
 * the block that ends last among those of its rows chooses. Its counter goes
 * back to 0 by itself, so nothing is cleared between launches. The norm of one row
 * can be made by every block for itself (moe_route_norm_kernel).
 */
#include <errno.h>

#include "kernels/cuda/moe.cuh"
#include "kernels/cuda/tile.cuh"

CUDA_FAMILY(moe_route)

enum { MAX_GROUP = CUDA_EXPERT_GROUPS, ROUTE_THREADS = 128 };

/* Greater floats have greater keys; NaN has the least of all, 1; what has been taken has 0. */
static __device__ __forceinline__ uint32_t key_of(float v) {
        uint32_t u = __float_as_uint(v);
        return isnan(v) ? 1 : u & 0x80000000u ? ~u : u | 0x80000000u;
}
/* e^d of a softmax; NaN comes of infinity less infinity, too, and gets what the CPU's vectors give it. */
static __device__ __forceinline__ float exp_of(float d) { return isnan(d) ? 1.17549435e-38f : expf(d); }
static __device__ __forceinline__ uint32_t warp_max_u32(uint32_t v) {
#if __CUDA_ARCH__ >= 800
        return __reduce_max_sync(~0u, v);
#else
#pragma unroll
        for (int o = 16; o; o >>= 1)
                v = max(v, __shfl_xor_sync(~0u, v, o));
        return v;
#endif
}
static __device__ __forceinline__ uint32_t warp_min_u32(uint32_t v) { return ~warp_max_u32(~v); }

/* By a whole warp; x: the row's logits. choice, score: shared memory of this warp, only used with groups. */
template <int PER> static __device__ __forceinline__ void choose(const moe_route &a, uint32_t row, const float *x, float *choice, float *score) {
        const uint32_t lane = threadIdx.x & 31, X = a.n_expert;
        float prob[PER], m = -INFINITY, sum = 0;
        uint32_t key[PER];

#pragma unroll
        for (int i = 0; i < PER; i++) {
                const uint32_t e = lane + 32 * i;
                prob[i] = e < X ? __ldcg(x + e) : -INFINITY;
                m = fmaxf(m, prob[i]);
        }
        m = warp_max(m);
#pragma unroll
        for (int i = 0; i < PER; i++) {
                if (a.gating == K_GATE_SOFTMAX) {
                        prob[i] = lane + 32 * i < X ? exp_of(prob[i] - m) : 0;
                        sum += prob[i];
                } else if (a.gating == K_GATE_SIGMOID) {
                        prob[i] = sigmoid(prob[i]);
                }
        }
        if (a.gating == K_GATE_SOFTMAX) {
                sum = 1.0f / warp_sum(sum);
#pragma unroll
                for (int i = 0; i < PER; i++)
                        prob[i] *= sum;
        }
#pragma unroll
        for (int i = 0; i < PER; i++) {
                const uint32_t e = lane + 32 * i;
                float c = prob[i] + (a.select_bias && e < X ? a.select_bias[e] : 0);
                key[i] = e < X ? key_of(c) : 0;
                if (a.n_group && e < X)
                        choice[e] = c;
        }
        if (a.n_group) { /* a group counts by its two best experts */
                const uint32_t per = X / a.n_group;
                __syncwarp();
                for (uint32_t g = lane; g < a.n_group; g += 32) {
                        float b1 = -INFINITY, b2 = -INFINITY;
                        for (uint32_t e = g * per; e < (g + 1) * per; e++) {
                                float v = choice[e];
                                b2 = v > b1 ? b1 : fmaxf(b2, v);
                                b1 = fmaxf(b1, v);
                        }
                        score[g] = b2 == -INFINITY ? b1 : b1 + b2;
                }
                __syncwarp();
#pragma unroll
                for (int i = 0; i < PER; i++) {
                        const uint32_t e = lane + 32 * i, g = e / per;
                        uint32_t better = 0;
                        if (e >= X || g >= a.n_group)
                                continue;
                        for (uint32_t o = 0; o < a.n_group; o++)
                                better += score[o] > score[g] || (score[o] == score[g] && o < g);
                        if (better >= a.n_group_used)
                                key[i] = key_of(-INFINITY);
                }
                __syncwarp();
        }
        float w = 0; /* lane k: the weight of rank k */
        uint32_t mine = 0;
        for (uint32_t k = 0; k < a.n_used; k++) {
                uint32_t best = key[0], e = lane;
                float p = prob[0];
#pragma unroll
                for (int i = 1; i < PER; i++)
                        if (key[i] > best) {
                                best = key[i];
                                e = lane + 32 * i;
                                p = prob[i];
                        }
                const uint32_t top = warp_max_u32(best);
                const uint32_t at = warp_min_u32(best == top ? e : UINT32_MAX);
                p = __shfl_sync(~0u, p, at & 31);
                if (lane == k) {
                        w = p;
                        mine = at;
                }
#pragma unroll
                for (int i = 0; i < PER; i++)
                        if (lane + 32 * i == at)
                                key[i] = 0;
        }
        const bool on = lane < a.n_used;
        if (a.gating == K_GATE_SOFTMAX_TOPK) {
                float top = warp_max(on ? w : -INFINITY);
                w = on ? exp_of(w - top) : 0;
                w /= warp_sum(w);
        }
        if (a.norm_weights)
                w /= fmaxf(warp_sum(on ? w : 0), 6.103515625e-5f);
        if (on) {
                a.id[row * a.n_used + lane] = mine;
                a.weight[row * a.n_used + lane] = w * a.scale;
        }
}

/* Four rows a block, one a warp. */
template <int PER> __global__ void __launch_bounds__(ROUTE_THREADS) choose_kernel(const moe_route a) {
        extern __shared__ float sm[]; /* with groups: [4][n_expert], [4][MAX_GROUP] */
        const uint32_t warp = threadIdx.x >> 5, row = blockIdx.x * MOE_ROUTE_ROWS + warp;

        pdl_next();
        pdl_wait();
        if (row < a.n)
                choose<PER>(a, row, a.router + row * a.stride, sm + warp * a.n_expert, sm + MOE_ROUTE_ROWS * a.n_expert + warp * MAX_GROUP);
}

struct route_product {
        const float *w, *bias, *x;
        uint32_t cols;
        float *logits;      /* [n][a.stride] */
        uint32_t *arrived;  /* [gridDim.y] 0 between launches */
};

enum { ROUTE_V = 8 }; /* float4 of a row that a thread asks for at once: 4,096 columns */
static_assert(ROUTE_V * ROUTE_THREADS * 4 == MOE_ROUTE_NORM_COLS, "a row that its blocks norm");

static __device__ __forceinline__ float route_four(float4 w, float4 x, float s) {
        return __fmaf_rn(w.w, x.w, __fmaf_rn(w.z, x.z, __fmaf_rn(w.y, x.y, __fmaf_rn(w.x, x.x, s))));
}

/*
 * What a block ends with: logits of its expert and rows from row0 on, of which s has the thread's part, and the choice, if it is
 * the last of all experts' blocks. sm: shared memory for choose(), which nobody reads for anything else by now.
 */
template <int PER, int ROWS>
static __device__ __forceinline__ void route_end(const moe_route &a, const route_product &p, const float (&s)[ROWS], uint32_t row0, uint32_t rows, float *sm) {
        __shared__ float part[ROUTE_THREADS / 32][ROWS];
        __shared__ uint32_t last;
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, e = blockIdx.x;

#pragma unroll
        for (int r = 0; r < ROWS; r++) {
                float v = warp_sum(s[r]);
                if (lane == 0)
                        part[warp][r] = v;
        }
        __syncthreads();
        if (threadIdx.x < rows) {
                const uint32_t r = threadIdx.x;
                float v = __fadd_rn(__fadd_rn(part[0][r], part[1][r]), __fadd_rn(part[2][r], part[3][r]));
                if (p.bias)
                        v = __fadd_rn(v, p.bias[e]);
                p.logits[(row0 + r) * a.stride + e] = v;
                __threadfence(); /* before the count below says so */
        }
        __syncthreads();
        if (threadIdx.x == 0)
                last = atomicInc(&p.arrived[blockIdx.y], a.n_expert - 1) == a.n_expert - 1;
        __syncthreads();
        if (!last)
                return;
        __threadfence();
        if (warp < rows)
                choose<PER>(a, row0 + warp, p.logits + (row0 + warp) * a.stride, sm + warp * a.n_expert,
                            sm + MOE_ROUTE_ROWS * a.n_expert + warp * MAX_GROUP);
}

/*
 * ROWS: 1, or MOE_ROUTE_ROWS, whose columns a thread asks for at once, since each time there and back takes as long as all the
 * rest; half as many of each, for registers. The order of a row's sum is the same.
 */
template <int PER, int ROWS> __global__ void __launch_bounds__(ROUTE_THREADS) moe_route_kernel(const moe_route a, const route_product p) {
        constexpr int X = ROWS == 1 ? ROUTE_V : ROUTE_V / 2;
        extern __shared__ float sm[];
        const uint32_t e = blockIdx.x, row0 = blockIdx.y * ROWS, n4 = p.cols / 4, rows = min((uint32_t)ROWS, a.n - row0);
        const float4 *w = (const float4 *)(p.w + (size_t)e * p.cols);
        float4 wv[ROUTE_V];
        float s[ROWS] = {};

        pdl_next();
#pragma unroll
        for (int i = 0; i < ROUTE_V; i++) { /* weights: before the wait */
                const uint32_t c = i * ROUTE_THREADS + threadIdx.x;
                wv[i] = c < n4 ? w[c] : make_float4(0, 0, 0, 0);
        }
        pdl_wait();
        for (uint32_t c0 = 0; c0 < n4; c0 += ROUTE_V * ROUTE_THREADS) {
                if (c0)
#pragma unroll
                        for (int i = 0; i < ROUTE_V; i++) {
                                const uint32_t c = c0 + i * ROUTE_THREADS + threadIdx.x;
                                wv[i] = c < n4 ? w[c] : make_float4(0, 0, 0, 0);
                        }
#pragma unroll
                for (int i0 = 0; i0 < ROUTE_V; i0 += X) {
                        float4 xv[ROWS][X];
                        if (c0 + i0 * ROUTE_THREADS >= n4)
                                break;
#pragma unroll
                        for (int r = 0; r < ROWS; r++)
#pragma unroll
                                for (int i = 0; i < X; i++) {
                                        const uint32_t c = c0 + (i0 + i) * ROUTE_THREADS + threadIdx.x;
                                        xv[r][i] = c < n4 && r < rows ? ((const float4 *)(p.x + (size_t)(row0 + r) * p.cols))[c] : make_float4(0, 0, 0, 0);
                                }
#pragma unroll
                        for (int r = 0; r < ROWS; r++)
#pragma unroll
                                for (int i = 0; i < X; i++)
                                        s[r] = route_four(wv[i0 + i], xv[r][i], s[r]);
                }
        }
        route_end<PER, ROWS>(a, p, s, row0, rows, sm);
}

/*
 * One row, which every block norms for itself, its squares being in n.squares; one block more than there are experts writes it and
 * its image. Blocks are to begin beside two of the product before, so they have few registers: the row and the norm's
 * weights wait in shared memory, where each thread reads what it has asked for.
 */
template <int PER> __global__ void __launch_bounds__(ROUTE_THREADS, PER > 8 ? 3 : 6) moe_route_norm_kernel(const moe_route a, const route_product p, const norm_in n) {
        extern __shared__ __align__(16) float sm[]; /* [2][cols]; then choose()'s */
        const uint32_t lane = threadIdx.x & 31, e = blockIdx.x, n4 = n.cols / 4, kpad = kpad_of(n.cols);
        const float4 *w = (const float4 *)(p.w + (size_t)e * n.cols), *x = (const float4 *)sm, *nw = x + n4;
        const bool keeps = e == a.n_expert;
        float4 wv[ROUTE_V];
        float s[1] = {};

        auto fetch = [&](float *to, const float *from) {
                for (uint32_t c = threadIdx.x; c < n4; c += ROUTE_THREADS)
                        copy16((uint32_t)__cvta_generic_to_shared(to + c * 4), from + c * 4);
        };
        pdl_next();
#pragma unroll
        for (int i = 0; i < ROUTE_V; i++) { /* weights: before the wait */
                const uint32_t c = i * ROUTE_THREADS + threadIdx.x;
                wv[i] = c < n4 && !keeps ? w[c] : make_float4(0, 0, 0, 0);
        }
        if (n.w)
                fetch(sm + n.cols, n.w);
        pdl_wait();
        fetch(sm, n.x);
        const float f = norm_share<false>::factor(n, lane);
        asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll
        for (int i = 0; i < ROUTE_V; i++) {
                const uint32_t c = i * ROUTE_THREADS + threadIdx.x;
                float4 v = make_float4(0, 0, 0, 0);
                if (c < n4)
                        v = norm_value4(x[c], f, n.w ? nw[c] : make_float4(1, 1, 1, 1), n.scale);
                if (!keeps) {
                        s[0] = route_four(wv[i], v, s[0]);
                } else if (c * 4 < kpad) { /* whole warps: 256 divides it */
                        image_put4(n.image, kpad, c * 4, quantize4(v));
                        if (c < n4)
                                ((float4 *)n.out)[c] = v;
                }
        }
        if (!keeps)
                route_end<PER, 1>(a, p, s, 0, 1, sm);
}

/*
 * Logits of P rows: a warp has 8 experts and 4 rows, its lanes every 32nd float4 of
 * the columns; a block's four warps share the experts. One order per element.
 */
enum { LOGIT_EXPERTS = 8, LOGIT_ROWS = 4 };

__global__ void __launch_bounds__(ROUTE_THREADS) logits_kernel(const moe_route a, const route_product p) {
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, e0 = blockIdx.x * LOGIT_EXPERTS;
        const uint32_t r0 = (blockIdx.y * (ROUTE_THREADS / 32) + warp) * LOGIT_ROWS, n4 = p.cols / 4;
        const float4 *w[LOGIT_EXPERTS], *x[LOGIT_ROWS];
        float s[LOGIT_EXPERTS][LOGIT_ROWS] = {};

        pdl_next();
        pdl_wait();
        if (r0 >= a.n)
                return;
#pragma unroll
        for (int e = 0; e < LOGIT_EXPERTS; e++)
                w[e] = (const float4 *)(p.w + (size_t)min(e0 + e, a.n_expert - 1) * p.cols);
#pragma unroll
        for (int r = 0; r < LOGIT_ROWS; r++)
                x[r] = (const float4 *)(p.x + (size_t)min(r0 + r, a.n - 1) * p.cols);
        for (uint32_t c = lane; c < n4; c += 32) {
                float4 v[LOGIT_ROWS];
#pragma unroll
                for (int r = 0; r < LOGIT_ROWS; r++)
                        v[r] = x[r][c];
#pragma unroll
                for (int e = 0; e < LOGIT_EXPERTS; e++) {
                        const float4 u = w[e][c];
#pragma unroll
                        for (int r = 0; r < LOGIT_ROWS; r++)
                                s[e][r] = __fmaf_rn(u.w, v[r].w, __fmaf_rn(u.z, v[r].z, __fmaf_rn(u.y, v[r].y, __fmaf_rn(u.x, v[r].x, s[e][r]))));
                }
        }
#pragma unroll
        for (int e = 0; e < LOGIT_EXPERTS; e++)
#pragma unroll
                for (int r = 0; r < LOGIT_ROWS; r++) {
                        float v = warp_sum(s[e][r]);
                        if (lane == 0 && e0 + e < a.n_expert && r0 + r < a.n)
                                p.logits[(r0 + r) * a.stride + e0 + e] = p.bias ? __fadd_rn(v, p.bias[e0 + e]) : v;
                }
}

static size_t route_smem(const moe_route &a) {
        return a.n_group ? (size_t)MOE_ROUTE_ROWS * (a.n_expert + MAX_GROUP) * sizeof(float) : 0;
}

/* 1024 experts at most: 32 a lane. */
#define BY_EXPERTS(X, F, ...) ((X) <= 32 ? F<1>(__VA_ARGS__) : (X) <= 64 ? F<2>(__VA_ARGS__) : (X) <= 128 ? F<4>(__VA_ARGS__) : (X) <= 256 ? F<8>(__VA_ARGS__) : F<32>(__VA_ARGS__))

template <int PER> static int choose_run(struct cuda_dev *d, const moe_route &a) {
        return launch(d, "choice of experts", choose_kernel<PER>, DIV_ROUND_UP(a.n, (uint32_t)MOE_ROUTE_ROWS), ROUTE_THREADS, route_smem(a), a);
}
template <int PER> static int route_run(struct cuda_dev *d, const moe_route &a, const route_product &p, const struct norm_in *norm) {
        if (norm)
                return launch(d, "router, norm", moe_route_norm_kernel<PER>, a.n_expert + 1, ROUTE_THREADS, MAX(2 * norm->cols * sizeof(float), route_smem(a)), a,
                              p, *norm);
        if (a.n == 1)
                return launch(d, "router, 1 row", moe_route_kernel<PER, 1>, a.n_expert, ROUTE_THREADS, route_smem(a), a, p);
        return launch(d, "router", moe_route_kernel<PER, MOE_ROUTE_ROWS>, dim3(a.n_expert, DIV_ROUND_UP(a.n, (uint32_t)MOE_ROUTE_ROWS)), ROUTE_THREADS,
                      route_smem(a), a, p);
}

int cuda_moe_choose(struct cuda_dev *d, const moe_route &a) {
        if (a.n_group > MAX_GROUP)
                return -EINVAL;
        return BY_EXPERTS(a.n_expert, choose_run, d, a);
}

int cuda_moe_route(struct cuda_dev *d, const moe_route &a, const float *w, const float *bias, const float *x, uint32_t cols, float *logits,
                   const struct norm_in *norm) {
        route_product p = {w, bias, x, cols, logits, moe_counters(d)};
        if (a.n_group > MAX_GROUP || cols % 4 || DIV_ROUND_UP(a.n, (uint32_t)MOE_ROUTE_ROWS) > MOE_COUNTERS)
                return -EINVAL;
        if (norm && (a.n != 1 || norm->cols != cols || cols > MOE_ROUTE_NORM_COLS))
                return -EINVAL;
        return BY_EXPERTS(a.n_expert, route_run, d, a, p, norm);
}

int cuda_moe_logits(struct cuda_dev *d, const moe_route &a, const float *w, const float *bias, const float *x, uint32_t cols, float *logits) {
        route_product p = {w, bias, x, cols, logits, NULL};
        return launch(d, "router (prompt)", logits_kernel, dim3(DIV_ROUND_UP(a.n_expert, (uint32_t)LOGIT_EXPERTS), DIV_ROUND_UP(a.n, ROUTE_THREADS / 32u * LOGIT_ROWS)),
                      ROUTE_THREADS, 0, a, p);
}
