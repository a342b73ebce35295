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

/* c = start + a b */
static __device__ __forceinline__ void mma_s8_k32(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, int start) {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
            : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(start));
}
static __device__ __forceinline__ void mma_s8_k16(int c[4], uint32_t a0, uint32_t a1, uint32_t b0, int start) {
        asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
            : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
            : "r"(a0), "r"(a1), "r"(b0), "r"(start));
}

/* An int accumulator that starts here reads as a float 2^23 * 1.5 + sum: exact for |sum| < 2^22 (at most 32 * 127 * 128). */
#define INT_BIAS 0x4b400000
static __device__ __forceinline__ float int_sum(int c) { return __int_as_float(c) - 12582912.0f; }

/* One tile: 16 rows x 256 columns against 8 NT activations, or only one; the same operations for each. */
template <class Q, int NT, bool ONE>
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
                        for (int j = 0; j < (ONE ? 1 : 2); j++)
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
                                        for (int j = 0; j < (ONE ? 1 : 2); j++)
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
                                                mn[r][h] = Q::HAS_MIN ? w.min(kb, h, r) : 0;
                                        }
#pragma unroll
                                for (int nt = 0; nt < NT; nt++) {
                                        uint32_t b0 = k1 ? b[nt].z : b[nt].x, b1 = k1 ? b[nt].w : b[nt].y;
                                        float *to = Q::SUPER ? tacc[nt] : acc[nt];
#pragma unroll
                                        for (int h = 0; h < (Q::N16 ? 2 : 1); h++) {
                                                int c[4];
                                                if (Q::N16)
                                                        mma_s8_k16(c, a[h * 2], a[h * 2 + 1], h ? b1 : b0, INT_BIAS);
                                                else
                                                        mma_s8_k32(c, a, b0, b1, INT_BIAS);
#pragma unroll
                                                for (int i = 0; i < 4; i++) {
                                                        const int r = i >> 1, j = i & 1;
                                                        if (ONE && j) /* there is only column 0 */
                                                                continue;
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

static __device__ __forceinline__ void copy16(uint8_t *to, const uint8_t *from) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from));
}
/* A plane's part of a tile, 16 bytes a lane. */
template <int BYTES> static __device__ __forceinline__ void copy_plane(uint8_t *to, const uint8_t *from, uint32_t lane) {
#pragma unroll
        for (int i = 0; i < (BYTES + 511) / 512; i++)
                if ((i + 1) * 512 <= BYTES || i * 512 + lane * 16 < BYTES)
                        copy16(to + i * 512 + lane * 16, from + i * 512 + lane * 16);
}

/*
 * Each warp has a ring of tiles of its own in shared memory, filled by
 * asynchronous copies RING tiles ahead, across the row groups that its block
 * goes through: what is in flight depends on no register and on no other warp.
 * The first tiles are asked for before the predecessor's results are waited for.
 */
template <int TYPE, int NT> struct matvec_shape {
        static constexpr tile_bytes TB = tile_bytes_of<TYPE>();
        static constexpr int STAGE = TB.code + TB.high + TB.scale + TB.super;
        static constexpr int RING = STAGE > 3500 ? 2 : STAGE > 2000 ? 3 : 4;
        static constexpr bool TWO = NT < 4; /* sums of two row groups: one barrier each instead of two */
        static constexpr size_t red_bytes(uint32_t warps) { return (size_t)warps * 16 * 8 * NT * sizeof(float) * (TWO ? 2 : 1); }
        static constexpr size_t smem(uint32_t warps) { return (size_t)warps * STAGE * RING + red_bytes(warps); }
};

template <int TYPE, int NT, bool ONE> __global__ void __launch_bounds__(256, NT == 4 ? 1 : 2) matvec_kernel(const matvec_args a) {
        typedef qtype<TYPE> Q;
        typedef matvec_shape<TYPE, NT> SH;
        constexpr int RING = SH::RING, STAGE = SH::STAGE;
        extern __shared__ __align__(16) uint8_t ring_all[]; /* [warps][RING][STAGE], then red */
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
        float *red_all = (float *)(ring_all + (blockDim.x >> 5) * RING * STAGE); /* [TWO ? 2 : 1][warps][16][8 NT] */
        uint32_t red_turn = 0;
        uint8_t *ring = ring_all + warp * RING * STAGE;
        const uint32_t per_block = blockDim.x / 32 / a.ks, part = warp % a.ks; /* row groups side by side in this block */
        const uint32_t rg_first = blockIdx.x * per_block, rg_step = gridDim.x * per_block;
        const uint32_t rounds = rg_first < a.n_rg ? (a.n_rg - rg_first + rg_step - 1) / rg_step : 0;
        const uint32_t sb0 = part * a.per_warp, tiles = min(sb0 + a.per_warp, a.n_sb) - sb0;
        uint32_t expert = 0, c0 = 0, n = a.jobs.n;
        uint32_t pi = 0, pt = 0, slot_in = 0; /* next tile to ask for */
        bool by_expert = false;

        tile_src src = {};
        auto ask = [&]() {
                if (pi < rounds && (pt || rg_first + warp / a.ks + pi * rg_step < a.n_rg)) {
                        if (pt == 0) { /* a new row group */
                                uint32_t rg = rg_first + warp / a.ks + pi * rg_step, o = 0;
                                while (o + 1 < a.n_out && rg >= a.out[o + 1].rg0)
                                        o++;
                                src = tile_at(a.out[o].w, by_expert ? (size_t)expert * a.out[o].expert_stride : 0,
                                              (size_t)(rg - a.out[o].rg0) * a.n_sb + sb0);
                        }
                        uint8_t *to = ring + slot_in * STAGE;
                        copy_plane<SH::TB.code>(to, src.code, lane);
                        src.code += SH::TB.code;
                        if (SH::TB.high) {
                                copy_plane<SH::TB.high>(to + SH::TB.code, src.high, lane);
                                src.high += SH::TB.high;
                        }
                        if (SH::TB.scale) {
                                copy_plane<SH::TB.scale>(to + SH::TB.code + SH::TB.high, src.scale, lane);
                                src.scale += SH::TB.scale;
                        }
                        if (SH::TB.super) {
                                copy_plane<SH::TB.super>(to + SH::TB.code + SH::TB.high + SH::TB.scale, src.super, lane);
                                src.super += SH::TB.super;
                        }
                        if (++pt == tiles) {
                                pt = 0;
                                pi++;
                        }
                }
                asm volatile("cp.async.commit_group;" ::: "memory");
                slot_in = slot_in + 1 == RING ? 0 : slot_in + 1;
        };
        auto start = [&]() {
                pi = pt = slot_in = 0;
#pragma unroll
                for (int i = 0; i < RING; i++)
                        ask();
        };

        pdl_next();
        const bool lists = a.jobs.expert || a.jobs.per_expert;
        if (!lists)
                start(); /* weights: before the wait */
        pdl_wait();
        if (lists) {
                expert = a.jobs.per_expert ? blockIdx.y : a.jobs.expert[blockIdx.y];
                if (expert == UINT32_MAX)
                        return;
                if (!a.jobs.per_expert) {
                        c0 = a.jobs.start[blockIdx.y];
                        n = a.jobs.count[blockIdx.y];
                }
                by_expert = true;
                start();
        }

        for (uint32_t cb = 0; cb < n; cb += 8 * NT) {
                const uint8_t *bx[NT], *cx[NT][2];
                uint32_t slot_out = 0;
                if (cb > 0) {
                        __syncthreads(); /* sums of the columns before */
                        asm volatile("cp.async.wait_all;" ::: "memory");
                        __syncwarp();
                        start();
                }
#pragma unroll
                for (int nt = 0; nt < NT; nt++) {
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
                for (uint32_t i = 0; i < rounds; i++) {
                        float acc[NT][4];
#pragma unroll
                        for (int nt = 0; nt < NT; nt++)
#pragma unroll
                                for (int k = 0; k < 4; k++)
                                        acc[nt][k] = 0;
                        constexpr float INV = Q::SUPER ? 1.0f : 1.0f / Q::MUL; /* a power of two: exact at the end too */
                        if (rg_first + warp / a.ks + i * rg_step < a.n_rg)
#pragma unroll 1
                                for (uint32_t k = 0; k < tiles; k++) {
                                        asm volatile("cp.async.wait_group %0;" ::"n"(RING - 1) : "memory");
                                        __syncwarp();
                                        const uint8_t *from = ring + slot_out * STAGE;
                                        Q w;
                                        w.template load<true>(tile_src{from, from + SH::TB.code, from + SH::TB.code + SH::TB.high,
                                                                       from + SH::TB.code + SH::TB.high + SH::TB.scale}, lane);
                                        __syncwarp();
                                        ask(); /* into the place just read */
                                        slot_out = slot_out + 1 == RING ? 0 : slot_out + 1;
                                        matvec_tile<Q, NT, ONE>(w, acc, bx, cx, a.kpad, sb0 + k);
                                }
                        float *red = red_all + (SH::TWO ? red_turn * (blockDim.x >> 5) * 16 * 8 * NT : 0);
                        red_turn ^= 1;
#pragma unroll
                        for (int nt = 0; nt < NT; nt++)
#pragma unroll
                                for (int k = 0; k < 4; k++)
                                        if (!ONE || (t == 0 && !(k & 1)))
                                                red[(warp * 16 + g + 8 * (k >> 1)) * (8 * NT) + nt * 8 + 2 * t + (k & 1)] = __fmul_rn(acc[nt][k], INV);
                        __syncthreads();
                        /* With one column the sums are a warp's work, another warp's each time; the others go on. */
                        const bool mine = !ONE || warp == i % (blockDim.x >> 5);
                        for (uint32_t e = ONE ? lane : threadIdx.x; mine && e < per_block * 16 * (ONE ? 1 : 8 * NT); e += ONE ? 32 : blockDim.x) {
                                uint32_t r = e & 15, c = ONE ? 0 : (e >> 4) % (8 * NT), b = ONE ? e >> 4 : (e >> 4) / (8 * NT);
                                uint32_t rg = rg_first + b + i * rg_step, q = 0;
                                if (rg >= a.n_rg || cb + c >= n)
                                        continue;
                                while (q + 1 < a.n_out && rg >= a.out[q + 1].rg0)
                                        q++;
                                const matvec_out &mo = a.out[q];
                                uint32_t row = (rg - mo.rg0) * 16 + r;
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
                        if (!SH::TWO)
                                __syncthreads();
                }
        }
}

template <int TYPE, int NT, bool ONE> static int matvec_run(struct cuda_dev *d, const matvec_args &a, uint32_t threads, dim3 grid, const char *what) {
        const size_t smem = matvec_shape<TYPE, NT>::smem(threads / 32);
        /* Persistent blocks: as many as are resident, shared among the jobs. */
        const uint32_t most = NT == 4 ? 1 : 2, fit = (uint32_t)MAX(d->smem_sm / (smem + 1024), (size_t)1);
        const uint32_t resident = d->n_sm * MIN(most, fit);
        grid.x = MIN(grid.x, MAX(resident / grid.y, 1u));
        CUDA_TRY(d, cudaFuncSetAttribute(matvec_kernel<TYPE, NT, ONE>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem), what);
        return launch(d, what, matvec_kernel<TYPE, NT, ONE>, grid, threads, smem, a);
}

template <int TYPE> static int matvec_type(struct cuda_dev *d, const matvec_args &a, uint32_t threads, dim3 grid) {
        if (a.jobs.n == 1)
                return matvec_run<TYPE, 1, true>(d, a, threads, grid, "product (int8, 1 column)");
        if (a.jobs.n <= 8)
                return matvec_run<TYPE, 1, false>(d, a, threads, grid, "product (int8, 8 columns)");
        if (a.jobs.n <= 16)
                return matvec_run<TYPE, 2, false>(d, a, threads, grid, "product (int8, 16 columns)");
        return matvec_run<TYPE, 4, false>(d, a, threads, grid, "product (int8, 32 columns)");
}
