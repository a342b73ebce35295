/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Products of role D: int8 codes times int8 activations on the tensor cores
 * (mma.m16n8k32, or m16n8k16 where scales change every 16 columns), scaled and
 * summed in f32.
 *
 * One reduction order per shape, whatever the number of columns: a row's tiles
 * are shared among KS warps in contiguous runs (matvec_ks); a warp adds blocks
 * in column order; the warps' sums are added in warp order. The integer sums
 * are exact, so columns never influence each other.
 */

#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/types.cuh"

struct matvec_out {
        plane_base w;
        size_t expert_stride;
        const float *bias, *scale;
        float *y;
        size_t y_stride;
        uint32_t rows, rg0; /* first row group in the grid's order */
        uint32_t many_scales, bias_stride;
};

struct matvec_args {
        matvec_out out[K_LINEAR_MAX];
        uint32_t n_out, n_rg, n_sb, per_warp, ks;
        const uint8_t *image;
        uint32_t kpad;
        struct jobs jobs;
};

static __device__ __forceinline__ void mma_s8_k32(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
static __device__ __forceinline__ void mma_s8_k16(int c[4], uint32_t a0, uint32_t a1, uint32_t b0) {
        asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                     : "r"(a0), "r"(a1), "r"(b0));
}

/* An int accumulator that starts here reads as a float 2^23 * 1.5 + sum: exact for |sum| < 2^22 (at most 32 * 127 * 128). */
#define INT_BIAS 0x4b400000
static __device__ __forceinline__ float int_sum(int c) { return __int_as_float(c) - 12582912.0f; }

/* One tile: 16 rows x 256 columns against 8 NT activations. */
template <class Q, int NT>
static __device__ __forceinline__ void matvec_tile(const Q &w, float acc[NT][4], const uint8_t *const bx[NT],
                                                   const uint8_t *const cx[NT][2], uint32_t kpad, uint32_t sb) {
        float tacc[NT][4], tmin[NT][4];
        constexpr float INV = 1.0f / Q::MUL;
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                        tacc[nt][i] = tmin[nt][i] = 0;

#pragma unroll
        for (int k4 = 0; k4 < 2; k4++) {
                float4 dx[NT][2];
#pragma unroll
                for (int nt = 0; nt < NT; nt++)
#pragma unroll
                        for (int j = 0; j < 2; j++)
                                dx[nt][j] = cx[nt][j] ? *(const float4 *)(cx[nt][j] + kpad + (sb * 8 + k4 * 4) * 4) : make_float4(0, 0, 0, 0);
#pragma unroll
                for (int k2 = 0; k2 < 2; k2++) {
                        uint4 b[NT];
                        float4 sx[NT][2];
#pragma unroll
                        for (int nt = 0; nt < NT; nt++) {
                                b[nt] = bx[nt] ? *(const uint4 *)(bx[nt] + sb * 256 + (k4 * 2 + k2) * 64) : make_uint4(0, 0, 0, 0);
                                if (Q::HAS_MIN)
#pragma unroll
                                        for (int j = 0; j < 2; j++)
                                                sx[nt][j] = cx[nt][j] ? *(const float4 *)(cx[nt][j] + kpad + kpad / 8 +
                                                                                          (sb * 16 + (k4 * 2 + k2) * 4) * 4)
                                                                      : make_float4(0, 0, 0, 0);
                        }
#pragma unroll
                        for (int k1 = 0; k1 < 2; k1++) {
                                const int kb = k4 * 4 + k2 * 2 + k1;
                                uint32_t a[4];
                                w.codes(kb, a);
                                float sc[2][2], mn[2][2];
#pragma unroll
                                for (int r = 0; r < 2; r++)
#pragma unroll
                                        for (int h = 0; h < (Q::N16 ? 2 : 1); h++) {
                                                sc[r][h] = w.scale(kb, h, r);
                                                if (!Q::SUPER && Q::MUL != 1)
                                                        sc[r][h] = __fmul_rn(sc[r][h], INV);
                                                mn[r][h] = Q::HAS_MIN ? w.min(kb, h, r) : 0;
                                        }
#pragma unroll
                                for (int nt = 0; nt < NT; nt++) {
                                        uint32_t b0 = k1 ? b[nt].z : b[nt].x, b1 = k1 ? b[nt].w : b[nt].y;
                                        float *to = Q::SUPER ? tacc[nt] : acc[nt];
#pragma unroll
                                        for (int h = 0; h < (Q::N16 ? 2 : 1); h++) {
                                                int c[4] = {INT_BIAS, INT_BIAS, INT_BIAS, INT_BIAS};
                                                if (Q::N16)
                                                        mma_s8_k16(c, a[h * 2], a[h * 2 + 1], h ? b1 : b0);
                                                else
                                                        mma_s8_k32(c, a, b0, b1);
#pragma unroll
                                                for (int i = 0; i < 4; i++) {
                                                        const int r = i >> 1, j = i & 1;
                                                        const int x = k2 * 2 + k1;
                                                        float4 dv = dx[nt][j];
                                                        float d = x == 0 ? dv.x : x == 1 ? dv.y : x == 2 ? dv.z : dv.w;
                                                        to[i] = __fmaf_rn(sc[r][h], __fmul_rn(int_sum(c[i]), d), to[i]);
                                                        if (Q::HAS_MIN) {
                                                                float4 sv = sx[nt][j];
                                                                float s;
                                                                if (Q::N16)
                                                                        s = k1 == 0 ? (h ? sv.y : sv.x) : (h ? sv.w : sv.z);
                                                                else
                                                                        s = k1 == 0 ? __fadd_rn(sv.x, sv.y) : __fadd_rn(sv.z, sv.w);
                                                                tmin[nt][i] = __fmaf_rn(mn[r][h], s, tmin[nt][i]);
                                                        }
                                                }
                                        }
                                }
                        }
                }
        }
        if (Q::SUPER) {
                float d[2], m[2];
                w.super(d, m);
#pragma unroll
                for (int nt = 0; nt < NT; nt++)
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                                acc[nt][i] = __fmaf_rn(__fmul_rn(d[i >> 1], INV), tacc[nt][i], acc[nt][i]);
                                if (Q::HAS_MIN)
                                        acc[nt][i] = __fmaf_rn(-m[i >> 1], tmin[nt][i], acc[nt][i]);
                        }
        } else if (Q::HAS_MIN) {
#pragma unroll
                for (int nt = 0; nt < NT; nt++)
#pragma unroll
                        for (int i = 0; i < 4; i++)
                                acc[nt][i] = __fsub_rn(acc[nt][i], tmin[nt][i]);
        }
}

template <int TYPE, int NT> __global__ void __launch_bounds__(256, NT == 1 ? 3 : NT == 2 ? 2 : 1) matvec_kernel(const matvec_args a) {
        typedef qtype<TYPE> Q;
        extern __shared__ float red[]; /* [warps][16][8 NT] */
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
        const uint32_t per_block = blockDim.x / 32 / a.ks; /* row groups of this block */
        const uint32_t rg_all = blockIdx.x * per_block + warp / a.ks, part = warp % a.ks;
        const bool active = rg_all < a.n_rg;
        uint32_t o = 0;
        while (o + 1 < a.n_out && rg_all >= a.out[o + 1].rg0)
                o++;
        const uint32_t rg = rg_all - a.out[o].rg0;
        const uint32_t sb0 = part * a.per_warp, sb1 = active ? min(sb0 + a.per_warp, a.n_sb) : sb0;
        uint32_t expert = 0, c0 = 0, n = a.jobs.n;
        Q cur;

        pdl_next();
        if (!a.jobs.expert && !a.jobs.per_expert && sb0 < sb1)
                cur.load(tile_at(a.out[o].w, 0, (size_t)rg * a.n_sb + sb0), lane); /* weights: before the wait */
        pdl_wait();
        if (a.jobs.expert) {
                expert = a.jobs.expert[blockIdx.y];
                if (expert == UINT32_MAX)
                        return;
                c0 = a.jobs.start[blockIdx.y];
                n = a.jobs.count[blockIdx.y];
        } else if (a.jobs.per_expert) {
                expert = blockIdx.y;
        }
        const size_t off = (size_t)expert * a.out[o].expert_stride;
        bool loaded = !a.jobs.expert && !a.jobs.per_expert;

        for (uint32_t cb = 0; cb < n; cb += 8 * NT) {
                float acc[NT][4];
                const uint8_t *bx[NT], *cx[NT][2];
#pragma unroll
                for (int nt = 0; nt < NT; nt++) {
#pragma unroll
                        for (int i = 0; i < 4; i++)
                                acc[nt][i] = 0;
                        uint32_t col[3] = {cb + nt * 8 + g, cb + nt * 8 + 2 * t, cb + nt * 8 + 2 * t + 1};
                        const uint8_t *p[3];
#pragma unroll
                        for (int j = 0; j < 3; j++) {
                                uint32_t x = a.jobs.x_row && col[j] < n ? a.jobs.x_row[c0 + col[j]] : c0 + col[j];
                                if (a.jobs.per_expert)
                                        x = x * a.jobs.n_job + expert;
                                p[j] = col[j] < n ? a.image + x * image_slot(a.kpad) : NULL;
                        }
                        bx[nt] = p[0] ? p[0] + t * 16 : NULL;
                        cx[nt][0] = p[1];
                        cx[nt][1] = p[2];
                }
                /* Many warps in flight rather than many tiles of one warp: registers go to occupancy. */
#pragma unroll 1
                for (uint32_t sb = sb0; sb < sb1; sb++) {
                        if (!loaded)
                                cur.load(tile_at(a.out[o].w, off, (size_t)rg * a.n_sb + sb), lane);
                        loaded = false;
                        matvec_tile<Q, NT>(cur, acc, bx, cx, a.kpad, sb);
                }
#pragma unroll
                for (int nt = 0; nt < NT; nt++)
#pragma unroll
                        for (int i = 0; i < 4; i++)
                                red[(warp * 16 + g + 8 * (i >> 1)) * (8 * NT) + nt * 8 + 2 * t + (i & 1)] = acc[nt][i];
                __syncthreads();
                for (uint32_t i = threadIdx.x; i < per_block * 16 * 8 * NT; i += blockDim.x) {
                        uint32_t r = i & 15, c = (i >> 4) % (8 * NT), b = (i >> 4) / (8 * NT);
                        uint32_t ga = blockIdx.x * per_block + b, q = 0;
                        if (ga >= a.n_rg || cb + c >= n)
                                continue;
                        while (q + 1 < a.n_out && ga >= a.out[q + 1].rg0)
                                q++;
                        const matvec_out &mo = a.out[q];
                        uint32_t row = (ga - mo.rg0) * 16 + r;
                        if (row >= mo.rows)
                                continue;
                        float s = red[((b * a.ks) * 16 + r) * (8 * NT) + c];
                        for (uint32_t k = 1; k < a.ks; k++)
                                s = __fadd_rn(s, red[((b * a.ks + k) * 16 + r) * (8 * NT) + c]);
                        if (mo.scale)
                                s = __fmul_rn(s, mo.scale[mo.many_scales ? expert : 0]);
                        if (mo.bias)
                                s = __fadd_rn(s, mo.bias[(size_t)expert * mo.bias_stride + row]);
                        uint32_t yr = a.jobs.y_row ? a.jobs.y_row[c0 + cb + c] : c0 + cb + c;
                        mo.y[yr * mo.y_stride + (a.jobs.per_expert ? expert * a.jobs.y_job : 0) + row] = s;
                }
                __syncthreads();
        }
}

template <int TYPE> static int matvec_type(struct cuda_dev *d, const matvec_args &a, uint32_t threads, dim3 grid) {
        size_t smem = (size_t)(threads / 32) * 16 * 8 * sizeof(float);
        if (a.jobs.n <= 8)
                return launch(d, "product (int8, 8 columns)", matvec_kernel<TYPE, 1>, grid, threads, smem, a);
        if (a.jobs.n <= 16)
                return launch(d, "product (int8, 16 columns)", matvec_kernel<TYPE, 2>, grid, threads, smem * 2, a);
        return launch(d, "product (int8, 32 columns)", matvec_kernel<TYPE, 4>, grid, threads, smem * 4, a);
}
