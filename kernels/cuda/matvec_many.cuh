/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Products with 8 NT activations side by side; matvec.cuh says how. */

#include "kernels/cuda/matvec_one.cuh"

/*
 * One tile: 16 rows x 256 columns against 8 NT activations. acc: [][pair of 32
 * columns][row, column]. at: where the images of column g and of columns 2t and
 * 2t + 1 begin.
 */
template <class Q, int NT>
static __device__ __forceinline__ void many_tile(const tile_src &src, uint32_t lane, float acc[NT][4][4], const uint8_t *image, const uint32_t at[NT][3],
                                                 uint32_t kpad, uint32_t sb, uint32_t t) {
        Q w;
        float d[2] = {1, 1}, m[2] = {1, 1};
        w.template load_scales<true>(src, lane);
        w.super(d, m);
        if (Q::SUPER) {
                d[0] *= 1.0f / Q::MUL;
                d[1] *= 1.0f / Q::MUL;
        }
#pragma unroll
        for (int q = 0; q < 4; q++) {
                w.template load_codes<true>(src, lane, q);
                uint4 b[NT];
                float2 dx[NT][2];
#pragma unroll
                for (int nt = 0; nt < NT; nt++) {
                        b[nt] = *(const uint4 *)(image + at[nt][0] + sb * 256 + q * 64 + t * 16);
#pragma unroll
                        for (int j = 0; j < 2; j++)
                                dx[nt][j] = *(const float2 *)(image + at[nt][1 + j] + kpad + (sb * 8 + q * 2) * 4);
                }
#pragma unroll
                for (int k1 = 0; k1 < 2; k1++) {
                        const int kb = q * 2 + k1;
                        uint32_t a[4];
                        tile_codes(w, kb, a);
                        float sc[2][2], mn[2][2];
                        float2 sx[NT][2]; /* sums of the block's halves */
#pragma unroll
                        for (int nt = 0; Q::HAS_MIN && nt < NT; nt++)
#pragma unroll
                                for (int j = 0; j < 2; j++)
                                        sx[nt][j] = *(const float2 *)(image + at[nt][1 + j] + kpad + kpad / 8 + (sb * 16 + kb * 2) * 4);
#pragma unroll
                        for (int r = 0; r < 2; r++)
#pragma unroll
                                for (int h = 0; h < (Q::N16 ? 2 : 1); h++) {
                                        sc[r][h] = Q::SUPER ? __fmul_rn(d[r], w.scale(kb, h, r)) : w.scale(kb, h, r);
                                        mn[r][h] = !Q::HAS_MIN ? 0 : Q::SUPER ? __fmul_rn(m[r], w.min(kb, h, r)) : w.min(kb, h, r);
                                }
#pragma unroll
                        for (int nt = 0; nt < NT; nt++) {
                                const uint32_t b0 = k1 ? b[nt].z : b[nt].x, b1 = k1 ? b[nt].w : b[nt].y;
                                float *to = acc[nt][q];
#pragma unroll
                                for (int h = 0; h < (Q::N16 ? 2 : 1); h++) {
                                        int c[4];
                                        if (Q::N16)
                                                mma_k16<Q::FIELDS>(c, a[h * 2], a[h * 2 + 1], h ? b1 : b0, INT_BIAS);
                                        else
                                                mma_s8_k32(c, a, b0, b1, INT_BIAS);
#pragma unroll
                                        for (int i = 0; i < 4; i++) {
                                                const int r = i >> 1, j = i & 1;
                                                const float dd = k1 ? dx[nt][j].y : dx[nt][j].x;
                                                to[i] = __fmaf_rn(sc[r][h], __fmul_rn(int_sum(c[i], tile_field<Q>(kb, h)), dd), to[i]);
                                                if (Q::HAS_MIN) {
                                                        const float2 sv = sx[nt][j];
                                                        const float s = !Q::N16 ? __fadd_rn(sv.x, sv.y) : h ? sv.y : sv.x;
                                                        to[i] = __fmaf_rn(-mn[r][h], s, to[i]);
                                                }
                                        }
                                }
                        }
                }
        }
}

template <int TYPE, int NT> struct many_shape {
        static constexpr int STAGE = matvec_stage<TYPE>::BYTES;
        static constexpr int RING = STAGE > 3500 ? 2 : STAGE > 2000 ? 3 : 4;
        static constexpr int COLS = 8 * NT;
        static constexpr bool TWO = NT < 2; /* sums of two units: one barrier each instead of two */
        static constexpr size_t red(uint32_t per_unit, uint32_t ks) { return (size_t)per_unit * ks * 16 * COLS * sizeof(float) * (TWO ? 2 : 1); }
};

template <int TYPE, int NT> __global__ void __launch_bounds__(256, NT == 1 ? 2 : 1) matvec_kernel(const __grid_constant__ matvec_args a) {
        typedef qtype<TYPE> Q;
        typedef many_shape<TYPE, NT> SH;
        extern __shared__ __align__(16) uint8_t sm[]; /* [warps] rings, [TWO ? 2 : 1][per_unit][ks][16][COLS] sums */
        const uint32_t warps = blockDim.x >> 5;
        const matvec_place p(a, warps);
        const uint32_t g = p.lane >> 2, t = p.lane & 3;
        float *red_all = (float *)(sm + warps * SH::RING * SH::STAGE);
        const uint8_t *base = sm + p.warp * SH::RING * SH::STAGE;
        uint32_t expert = 0, c0 = 0, n = a.jobs.n, turn = 0;
        matvec_ring<TYPE, SH::RING> ring;

        pdl_next();
        const bool lists = a.jobs.expert || a.jobs.per_expert;
        if (!lists)
                ring.start(a, p, base, 0); /* weights: before the wait */
        pdl_wait();
        if (lists) {
                if (!matvec_job(a, expert, c0, n))
                        return;
                ring.start(a, p, base, expert);
        }

        for (uint32_t cb = 0; cb < n; cb += SH::COLS) {
                uint32_t at[NT][3];
                if (cb > 0) {
                        __syncthreads(); /* sums of the columns before */
                        asm volatile("cp.async.wait_all;" ::: "memory");
                        __syncwarp();
                        ring.start(a, p, base, expert);
                }
#pragma unroll
                for (int nt = 0; nt < NT; nt++) {
                        const uint32_t col[3] = {cb + nt * 8 + g, cb + nt * 8 + 2 * t, cb + nt * 8 + 2 * t + 1};
#pragma unroll
                        for (int j = 0; j < 3; j++)
                                at[nt][j] = (uint32_t)matvec_slot(a, expert, c0 + min(col[j], n - 1)); /* behind the last: it again, for nobody */
                }
                for (uint32_t i = 0; i < p.rounds; i++) {
                        const uint32_t unit = blockIdx.x + i * gridDim.x;
                        float *red = red_all + (SH::TWO ? turn * a.per_unit * a.ks * 16 * SH::COLS : 0);
                        turn ^= 1;
                        for (uint32_t s = p.team; s < a.per_unit; s += p.teams) {
                                float acc[NT][4][4];
                                if (!a.glu && unit * a.per_unit + s >= a.n_rg)
                                        break;
#pragma unroll
                                for (int nt = 0; nt < NT; nt++)
#pragma unroll
                                        for (int k = 0; k < 16; k++)
                                                acc[nt][k >> 2][k & 3] = 0;
#pragma unroll 1
                                for (uint32_t k = 0; k < p.tiles; k++) {
                                        const tile_src src = ring.next(base);
                                        many_tile<Q, NT>(src, p.lane, acc, a.image, at, a.kpad, p.sb0 + k, t);
                                        __syncwarp();
                                        ring.ask(a, p, expert); /* into the place just read: not before, for registers' sake */
                                }
                                constexpr float INV = Q::SUPER ? 1.0f : 1.0f / Q::MUL; /* a power of two: exact at the end too */
#pragma unroll
                                for (int nt = 0; nt < NT; nt++)
#pragma unroll
                                        for (int k = 0; k < 4; k++)
                                                red[((s * a.ks + p.part) * 16 + g + 8 * (k >> 1)) * SH::COLS + nt * 8 + 2 * t + (k & 1)] = __fmul_rn(
                                                        __fadd_rn(__fadd_rn(acc[nt][0][k], acc[nt][1][k]), __fadd_rn(acc[nt][2][k], acc[nt][3][k])), INV);
                        }
                        __syncthreads();
                        if (a.glu) {
                                for (uint32_t c = p.warp; c < SH::COLS && cb + c < n; c += warps)
                                        matvec_put_glu(a, red, unit, SH::COLS, c, expert, c0 + cb + c);
                        } else {
                                for (uint32_t e = threadIdx.x; e < a.per_unit * 16 * SH::COLS; e += blockDim.x) {
                                        uint32_t r = e & 15, c = (e >> 4) % SH::COLS, s = (e >> 4) / SH::COLS;
                                        if (cb + c < n)
                                                matvec_put(a, red, unit, s, r, SH::COLS, c, expert, c0 + cb + c);
                                }
                        }
                        if (!SH::TWO)
                                __syncthreads();
                }
        }
}

/* 1: this card's shared memory is too small for it. */
template <int TYPE, int NT> static int matvec_run(struct cuda_dev *d, matvec_args a, uint32_t warps, uint32_t jobs, const char *what) {
        typedef many_shape<TYPE, NT> SH;
        const size_t smem = (size_t)warps * SH::RING * SH::STAGE + SH::red(a.per_unit, a.ks);
        const uint32_t per_sm = NT == 1 && smem <= matvec_budget(d, 2) ? 2 : 1;
        if (smem > matvec_budget(d, 1))
                return 1;
        /* Persistent blocks: as many as are resident, shared among the jobs. */
        const dim3 grid(MIN(a.n_unit, MAX(d->n_sm * per_sm / jobs, 1u)), jobs);
        CUDA_TRY(d, cudaFuncSetAttribute(matvec_kernel<TYPE, NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem), what);
        return launch(d, what, matvec_kernel<TYPE, NT>, grid, warps * 32, smem, a);
}

template <int TYPE> static int matvec_type(struct cuda_dev *d, const matvec_args &a, uint32_t warps, uint32_t jobs) {
        if (a.jobs.n == 1 || a.jobs.single) {
                int r = matvec_one_run<TYPE>(d, a, warps, jobs);
                if (r <= 0)
                        return r;
        }
        if (a.jobs.n <= 8)
                return matvec_run<TYPE, 1>(d, a, warps, jobs, "product (int8, 8 columns)");
        if (a.jobs.n <= 16)
                return matvec_run<TYPE, 2>(d, a, warps, jobs, "product (int8, 16 columns)");
        return matvec_run<TYPE, 4>(d, a, warps, jobs, "product (int8, 32 columns)");
}
