/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Products with two to four activations: a few sequences, or a draft's tokens
 * being verified. Memory is to be the limit, as with one (matvec_one.cuh), and
 * the order of the sum is matvec.cuh's.
 *
 * An MMA's eight columns are COLS activations, each in 8 / COLS places: place s
 * has the activation's blocks of 32 of the pairs that are place s's share of a
 * tile's four, and zeros while another place's blocks of weights are multiplied.
 * After a tile's eight MMAs a lane has sums that no other lane has: 8 of two
 * activations, 16 of four, instead of the 32 that eight columns are.
 *
 * Warps that multiply do not wait for each other; one more adds what they found.
 * Activations are read from memory: a multiprocessor's blocks and warps that
 * read the same ones find them in L1.
 */

#include "kernels/cuda/matvec_one.cuh"

template <int COLS> struct few {
        static constexpr int PLACES = 8 / COLS, PAIRS = 4 / PLACES; /* of a tile's four pairs of blocks each place has so many */
        /*
         * Column n of an MMA. Lane t of four has the sums of columns 2t and 2t + 1, of one place and two activations; four
         * activations are ordered such that what two lanes write at once is then in a row.
         */
        static __device__ __forceinline__ uint32_t col(uint32_t n) { return COLS == 2 ? n & 1 : (n >> 1 & 1) + 2 * (n & 1); }
        static __device__ __forceinline__ uint32_t place(uint32_t n) { return n / COLS; }
};

/* Where a lane reads: codes of column g, scales and sums of columns 2t and 2t + 1; a tile's are in a row. */
struct few_x {
        const uint8_t *codes, *d[2], *s[2];
};

/*
 * 16 bytes at 'from' where 'mine', else to stays as it is: zeros, since it is another lane's, in every tile. So the zeros of an
 * operand cost nothing, which selects would.
 */
static __device__ __forceinline__ void few_codes(uint4 &to, const uint8_t *from, bool mine) {
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                     : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w) : "l"(from), "r"((uint32_t)mine));
}

/*
 * One tile. b[s][i]: codes of the pair number i of place s, zeros in lanes of other places. acc[i][2 r + j]: this lane's place's pair
 * number i, row g + 8 r, column 2t + j.
 */
template <class Q, int COLS>
static __device__ __forceinline__ void few_tile(const tile_src &src, const Q &w, const uint4 (&b)[few<COLS>::PLACES][few<COLS>::PAIRS],
                                                const few_x &x, uint32_t lane, float (&acc)[few<COLS>::PAIRS][4]) {
        typedef few<COLS> F;
        constexpr bool U = Q::FIELDS || Q::LEFT != 0;
        constexpr int H = Q::N16 ? 2 : 1;
        const uint32_t g = lane >> 2, place = F::place(2 * (lane & 3));
#pragma unroll
        for (int i = 0; i < F::PAIRS; i++) {
                float sc[2][4], mn[2][4];
                float2 d[2];
                float4 s[2];
#pragma unroll
                for (int j = 0; j < 2; j++) {
                        d[j] = *(const float2 *)(x.d[j] + i * 8);
                        if (Q::HAS_MIN)
                                s[j] = *(const float4 *)(x.s[j] + i * 16);
                }
#pragma unroll
                for (int r = 0; r < 2; r++)
                        Q::pair(src, g, place * F::PAIRS + i, r, sc[r], mn[r]);
#pragma unroll
                for (int k1 = 0; k1 < 2; k1++) {
                        int c[H][4], less[4] = {};
#pragma unroll
                        for (int k = 0; k < 4 * H; k++)
                                c[k >> 2][k & 3] = INT_BIAS;
#pragma unroll
                        for (int p = 0; p < F::PLACES; p++) {
                                const int kb = 2 * (p * F::PAIRS + i) + k1;
                                const uint32_t b0 = k1 ? b[p][i].z : b[p][i].x, b1 = k1 ? b[p][i].w : b[p][i].y;
                                uint32_t a[4], down[4];
                                if constexpr (Q::SPLIT) {
                                        const uint32_t s0 = __byte_perm(b0, b1, 0x5140), s1 = __byte_perm(b0, b1, 0x7362);
                                        w.split(kb, a, down);
                                        mma_k32_add<true>(c[0], a, s0, s1);
                                        mma_k32_add<true>(less, down, s0, s1);
                                } else if constexpr (Q::N16) {
                                        one_codes(w, kb, a);
                                        mma_k16_add<U>(c[0], a[0], a[1], b0);
                                        mma_k16_add<U>(c[H - 1], a[2], a[3], b1);
                                } else {
                                        one_codes(w, kb, a);
                                        mma_k32_add<U>(c[0], a, b0, b1);
                                }
                        }
#pragma unroll
                        for (int k = 0; k < 4; k++) {
                                const int r = k >> 1, j = k & 1;
#pragma unroll
                                for (int h = 0; h < H; h++) {
                                        const int sum = Q::SPLIT ? c[h][k] - less[k] : c[h][k], at = k1 * H + h;
                                        const float s0 = k1 ? s[j].z : s[j].x, s1 = k1 ? s[j].w : s[j].y;
                                        float &to = acc[i][k];
                                        to = __fmaf_rn(sc[r][at], __fmul_rn(int_sum(sum, one_field<Q>(k1, h)), k1 ? d[j].y : d[j].x), to);
                                        if (Q::HAS_MIN)
                                                to = __fmaf_rn(-mn[r][at], !Q::N16 ? __fadd_rn(s0, s1) : h ? s1 : s0, to);
                                }
                        }
                }
        }
}

template <int TYPE, int COLS> struct few_shape {
        static constexpr int STAGE = tile_stage<TYPE>::BYTES, RING = one_shape<TYPE, false>::RING;
        static constexpr int SUMS = COLS > 2 ? 2 : 4; /* units whose sums may be waiting for the warp that adds */
        static constexpr uint32_t PART = COLS * 16; /* floats of a warp's sums of a row group */
        static constexpr size_t red(uint32_t per_unit, uint32_t ks) { return (size_t)SUMS * per_unit * ks * PART * sizeof(float); }
};

/* A warp's sums of a row group, [column][16 rows], from its lanes' shares of them. */
template <int COLS> static __device__ __forceinline__ void few_put(float *to, const float (&acc)[few<COLS>::PAIRS][4], uint32_t lane, float inv) {
        const uint32_t g = lane >> 2, t = lane & 3;
        if (COLS == 2) {
                to[(t & 1) * 16 + g + 8 * (t >> 1)] = __fmul_rn(four_sums(acc[0], t), inv);
                return;
        }
        const bool second = t >> 1; /* the place of pairs 2 and 3: it writes row g + 8, the other one row g */
#pragma unroll
        for (int j = 0; j < 2; j++) {
                const float r0 = __fadd_rn(acc[0][j], acc[few<COLS>::PAIRS - 1][j]), r1 = __fadd_rn(acc[0][2 + j], acc[few<COLS>::PAIRS - 1][2 + j]);
                const float sum = __fadd_rn(second ? r1 : r0, __shfl_xor_sync(~0u, second ? r0 : r1, 2));
                to[((t & 1) + 2 * j) * 16 + g + 8 * (t >> 1)] = __fmul_rn(sum, inv);
        }
}

/* A whole warp: a unit's values to where they belong. before: what the first of this lane's are added to. */
template <int COLS> static __device__ __forceinline__ void few_put_unit(const matvec_args &a, const float *red, uint32_t unit, uint32_t expert, uint32_t c0,
                                                                        uint32_t n, const float (&before)[COLS / 2]) {
        constexpr uint32_t PART = COLS * 16;
        const uint32_t lane = threadIdx.x & 31;
        if (a.glu) {
                image_quant q[COLS];
#pragma unroll
                for (uint32_t c = 0; c < COLS; c++) { /* of columns behind the last, too: all at once, since the multiplying warps may have ended */
                        const float v = matvec_glu(a, red + c * 16, PART, unit, expert);
                        const uint32_t col = c0 + min(c, n - 1), yr = a.jobs.y_row ? a.jobs.y_row[col] : col;
                        if (c < n)
                                a.h[(size_t)yr * a.out[0].rows + unit * 32 + lane] = v;
                        q[c] = image_quant32(v);
                }
                if (a.h_image.slots)
#pragma unroll
                        for (uint32_t c = 0; c < COLS; c++)
                                if (c < n) {
                                        const uint32_t yr = a.jobs.y_row ? a.jobs.y_row[c0 + c] : c0 + c;
                                        uint8_t *slot = a.h_image.slots + yr * image_slot(a.h_image.kpad);
                                        image_put32(slot, a.h_image.kpad, unit, q[c]);
                                        if (unit + 1 == a.n_unit)
                                                for (uint32_t kb = a.n_unit; kb < a.h_image.kpad / 32; kb++)
                                                        image_put32(slot, a.h_image.kpad, kb, image_quant{0, 0, 0});
                                }
                return;
        }
        for (uint32_t s = 0; s < a.per_unit; s++)
#pragma unroll
                for (uint32_t k = 0; k < COLS / 2; k++) {
                        const uint32_t c = 2 * k + (lane >> 4), r = lane & 15;
                        if (c < n)
                                matvec_put(a, red + c * 16, PART, unit, s, r, expert, c0 + c, s == 0, before[k]);
                }
}
/* What those are added to (never with lists), read while the unit's sums are not there yet. */
template <int COLS> static __device__ __forceinline__ void few_before(const matvec_args &a, uint32_t unit, uint32_t n, float (&before)[COLS / 2]) {
        const uint32_t lane = threadIdx.x & 31, row = unit * a.per_unit * 16 + (lane & 15);
#pragma unroll
        for (uint32_t k = 0; k < COLS / 2; k++) {
                const uint32_t c = 2 * k + (lane >> 4);
                before[k] = a.add_to && c < n && row < a.out[0].rows ? __ldcg(a.add_to + (size_t)c * a.out[0].rows + row) : 0;
        }
}

template <int TYPE, int COLS> __global__ void __launch_bounds__(288, 2) matvec_few_kernel(const __grid_constant__ matvec_args a) {
        typedef qtype<TYPE> Q;
        typedef few<COLS> F;
        typedef few_shape<TYPE, COLS> SH;
        extern __shared__ __align__(16) uint8_t sm[]; /* [warps] rings, [SUMS][per_unit][ks][COLS][16] sums */
        __shared__ __align__(8) uint64_t bars[2 * SH::SUMS]; /* sums are there; sums have been read */
        const uint32_t warps = (blockDim.x >> 5) - 1;
        const matvec_place p(a, warps);
        const uint32_t g = p.lane >> 2, t = p.lane & 3, sums = a.per_unit * a.ks * SH::PART;
        float *red_all = (float *)(sm + warps * SH::RING * SH::STAGE);
        const uint32_t full = (uint32_t)__cvta_generic_to_shared(bars), empty = full + 8 * SH::SUMS;
        const uint8_t *base = sm + p.warp * SH::RING * SH::STAGE;
        const bool adds = p.warp == warps, lists = a.jobs.expert || a.jobs.per_expert;
        uint32_t expert = 0, c0 = 0, n = a.jobs.n;
        matvec_ring<TYPE, SH::RING> ring;

        pdl_next();
        if (!lists && !adds) /* weights: before the wait */
                ring.start(a, p, base, 0);
        if (threadIdx.x < 2 * SH::SUMS)
                bar_init(full + 8 * threadIdx.x, 32 * (threadIdx.x < SH::SUMS ? warps : 1));
        __syncthreads();
        pdl_wait();
        if (lists) {
                if (!matvec_job(a, expert, c0, n) || n == 0)
                        return;
                if (!adds)
                        ring.start(a, p, base, expert);
        }

        /* Every lane says for itself that it wrote sums, or has read them: matvec_one.cuh. */
        if (adds) {
                for (uint32_t i = 0, unit = blockIdx.x; unit < a.n_unit; i++, unit += gridDim.x) {
                        const uint32_t b = i % SH::SUMS;
                        float before[COLS / 2];
                        few_before<COLS>(a, unit, n, before);
                        bar_wait(full + 8 * b, i / SH::SUMS & 1);
                        few_put_unit<COLS>(a, red_all + b * sums, unit, expert, c0, n, before);
                        bar_arrive(empty + 8 * b);
                }
                return;
        }

        uint4 codes[F::PLACES][F::PAIRS] = {}; /* zeros that stay: few_codes() */
        few_x x;
        {
                const uint32_t cols[3] = {F::col(g), F::col(2 * t), F::col(2 * t + 1)}, mine = F::place(g) * F::PAIRS, sums_of = F::place(2 * t) * F::PAIRS;
                const uint8_t *at[3];
#pragma unroll
                for (int j = 0; j < 3; j++)
                        at[j] = a.image + matvec_slot(a, expert, c0 + min(cols[j], n - 1)); /* behind the last: it again, for nobody */
                x.codes = at[0] + p.sb0 * 256 + mine * 64 + t * 16;
#pragma unroll
                for (int j = 0; j < 2; j++) {
                        x.d[j] = at[1 + j] + a.kpad + p.sb0 * 32 + sums_of * 8;
                        x.s[j] = at[1 + j] + a.kpad + a.kpad / 8 + p.sb0 * 64 + sums_of * 16;
                }
        }
        for (uint32_t i = 0, unit = blockIdx.x; unit < a.n_unit; i++, unit += gridDim.x) {
                const uint32_t b = i % SH::SUMS, end = a.glu ? a.per_unit : min(a.per_unit, a.n_rg - unit * a.per_unit);
                float *red = red_all + b * sums + p.part * SH::PART;
                if (i >= SH::SUMS)
                        bar_wait(empty + 8 * b, (i / SH::SUMS - 1) & 1);
                for (uint32_t s = p.team; s < end; s += p.teams) {
                        float acc[F::PAIRS][4] = {};
                        few_x xk = x;
#pragma unroll 1
                        for (uint32_t k = 0; k < p.tiles; k++) {
#pragma unroll
                                for (int q = 0; q < F::PLACES; q++)
#pragma unroll
                                        for (int i = 0; i < F::PAIRS; i++) /* before the tile is waited for */
                                                few_codes(codes[q][i], xk.codes + i * 64, F::place(g) == q);
                                const tile_src src = ring.next(base);
                                Q w;
                                w.template load_codes<true>(src, p.lane);
                                few_tile<Q, COLS>(src, w, codes, xk, p.lane, acc);
                                xk.codes += 256;
#pragma unroll
                                for (int j = 0; j < 2; j++) {
                                        xk.d[j] += 32;
                                        xk.s[j] += 64;
                                }
                                __syncwarp();
                                ring.ask(a, p, expert); /* into the place just read: not before, for registers' sake */
                        }
                        constexpr float INV = Q::SUPER ? 1.0f : 1.0f / Q::MUL; /* a power of two: exact at the end too */
                        few_put<COLS>(red + s * a.ks * SH::PART, acc, p.lane, INV);
                }
                bar_arrive(full + 8 * b);
        }
}

/* 1: this card's shared memory is too small for it. */
template <int TYPE, int COLS> static int matvec_few_run(struct cuda_dev *d, const matvec_args &a, uint32_t warps, uint32_t jobs, const char *what) {
        typedef few_shape<TYPE, COLS> SH;
        const size_t smem = (size_t)warps * SH::RING * SH::STAGE + SH::red(a.per_unit, a.ks);
        const uint32_t per_sm = a.how.per_sm != 1 && smem + 128 <= matvec_budget(d, 2) ? 2 : 1;
        if (smem + 128 > matvec_budget(d, 1))
                return 1;
        CUDA_TRY(d, cudaFuncSetAttribute(matvec_few_kernel<TYPE, COLS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem), what);
        return launch(d, what, matvec_few_kernel<TYPE, COLS>, matvec_grid(d, a, per_sm, jobs, 1), (warps + 1) * 32, smem, a);
}
