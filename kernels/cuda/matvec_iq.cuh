/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Products of role D of the lattice formats, from blocks in FILE layout: an MMA's
 * operand are the entries of a block of 32 columns, one a lane (rows g and g + 8,
 * entry t), found in tables and given their signs as they are multiplied. Which
 * columns an MMA calls which is free: a lane's operand of activations are the
 * entry's eight columns.
 *
 * The order of the sum is that of matvec.cuh, with a unit of as many row groups
 * of 16 rows as a block has teams of warps; ks warps share a row. Blocks of 256
 * have 50 to 110 bytes, so rows begin anywhere even: a warp copies of each of its
 * 16 rows the next block, the 16-byte pieces that cover it, into its ring, where
 * it lies as far from a piece's start as in memory.
 *
 * Of the tables each block has its own copy. What every lane has a copy of for
 * itself, word i of lane l at 32 i + l, is read without a conflict; that takes 32
 * or 16 KB for 256 entries or 128 signs, so the larger tables stay one, and cost
 * 3.5 turns on average where 32 lanes read them anywhere.
 */

#include "kernels/cuda/iq.cuh"
#include "kernels/cuda/tile.cuh"

struct iq_out {
        const uint8_t *w;
        size_t expert_stride;
        const float *bias, *scale;
        float *y;
        size_t y_stride;
        uint32_t rows, rg0, row_bytes, many_scales; /* rg0: first row group in the grid's order */
};

struct iq_args {
        iq_out out[K_LINEAR_MAX];
        uint32_t n_out, n_rg, n_sb, per_warp, ks, teams, n_unit;
        const uint8_t *image;
        uint32_t kpad;
        struct jobs jobs;
};

enum { IQ_WARPS = 8, IQ_SUMS = 2 * IQ_WARPS * 16 * 4 /* bytes, a column */ };

template <int T> struct iq_plan {
        static constexpr uint32_t BYTES = iq_shape_of<T>().bytes, ENTRIES = iq_shape_of<T>().entries, SIGNS = iq_shape_of<T>().signs;
        static constexpr bool HALVES = iq_shape_of<T>().halves;
        static constexpr uint32_t COPIES = ENTRIES <= 256 ? 32 : 1; /* of the entries; of signs there are always 32 */
        static constexpr uint32_t PIECES = (BYTES + 14 + 15) / 16;
        static constexpr uint32_t ROW = (PIECES | 1) * 16; /* an odd number of them: eight rows begin at different banks */
        static constexpr uint32_t STAGE = 16 * ROW;
        static constexpr uint32_t RING = STAGE > 1700 ? 3 : 4; /* with two blocks a multiprocessor 40 KB and more are on their way */
        static constexpr uint32_t TABLES = 4 * (ENTRIES * COPIES + SIGNS * 32);
};

/* Row group rg in the grid's order: of which output, and which of its own; rg < n_rg. */
static __device__ __forceinline__ uint32_t iq_which(const iq_args &a, uint32_t rg) {
        uint32_t o = 0;
        while (o + 1 < a.n_out && rg >= a.out[o + 1].rg0)
                o++;
        return o;
}
/* Row r of a row group: which of its output, behind the last the last. */
static __device__ __forceinline__ uint32_t iq_row(const iq_out &o, uint32_t rg, uint32_t r) { return min((rg - o.rg0) * 16 + r, o.rows - 1); }

static __device__ __forceinline__ void iq_commit() {
        asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> static __device__ __forceinline__ void iq_wait() {
        asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* A warp's ring: the blocks of its share of the rows of its row groups, one after the other. */
template <int T> struct iq_ring {
        typedef iq_plan<T> PL;
        const uint8_t *from; /* the next block of this lane's row, lane / 2, from byte (lane & 1) * 16 on */
        uint8_t *to;
        uint32_t unit, tile, place;
        bool more;

        __device__ __forceinline__ void group(const iq_args &a, uint32_t expert, uint32_t team, uint32_t sb0, uint32_t lane) {
                const uint32_t rg = unit * a.teams + team;
                more = unit < a.n_unit && rg < a.n_rg;
                if (!more)
                        return;
                const iq_out &o = a.out[iq_which(a, rg)];
                from = o.w + expert * o.expert_stride + (size_t)iq_row(o, rg, lane >> 1) * o.row_bytes + sb0 * PL::BYTES;
        }
        __device__ __forceinline__ void ask(const iq_args &a, uint32_t expert, uint32_t team, uint32_t sb0, uint32_t tiles, uint32_t lane) {
                if (more) {
                        const uint32_t off = (uint32_t)(uintptr_t)from & 15, end = off + PL::BYTES;
                        const uint8_t *piece = from - off;
                        uint8_t *dst = to + place;
#pragma unroll
                        for (uint32_t i = 0; i < (PL::PIECES + 1) / 2; i++) {
                                const uint32_t at = i * 32 + (lane & 1) * 16;
                                if (at < end)
                                        copy16_once((uint32_t)__cvta_generic_to_shared(dst + at), piece + at, min(16u, end - at));
                        }
                        from += PL::BYTES;
                        if (++tile == tiles) {
                                tile = 0;
                                unit += gridDim.x;
                                group(a, expert, team, sb0, lane);
                        }
                }
                iq_commit();
                place = place == (PL::RING - 1) * PL::STAGE ? 0 : place + PL::STAGE;
        }
        __device__ __forceinline__ void start(const iq_args &a, uint32_t expert, uint8_t *ring, uint32_t team, uint32_t sb0, uint32_t tiles,
                                              uint32_t lane) {
                to = ring + (lane >> 1) * PL::ROW;
                unit = blockIdx.x;
                tile = place = 0;
                group(a, expert, team, sb0, lane);
#pragma unroll 1
                for (uint32_t i = 0; i < PL::RING; i++)
                        ask(a, expert, team, sb0, tiles, lane);
        }
};

/* This block's copy of the tables. */
template <int T> static __device__ __forceinline__ void iq_fill(uint32_t *table, uint32_t *signs) {
        typedef iq_plan<T> PL;
        const uint32_t *from = iq_table<T>(), *from_signs = iq_signs<T>(); /* of global memory, in order */
        if constexpr (PL::COPIES == 32) {
                for (uint32_t i = threadIdx.x; i < PL::ENTRIES * 8; i += blockDim.x) {
                        const uint32_t v = from[i >> 3];
                        ((uint4 *)table)[i] = make_uint4(v, v, v, v);
                }
        } else {
                for (uint32_t i = threadIdx.x; i < PL::ENTRIES / 4; i += blockDim.x)
                        ((uint4 *)table)[i] = ((const uint4 *)from)[i];
        }
        if constexpr (PL::SIGNS != 0)
                for (uint32_t i = threadIdx.x; i < PL::SIGNS * 8; i += blockDim.x) {
                        const uint32_t v = from_signs[i >> 3];
                        ((uint4 *)signs)[i] = make_uint4(v, v, v, v);
                }
}

/* Where the image of a column begins, from a.image on. */
static __device__ __forceinline__ size_t iq_column(const iq_args &a, uint32_t expert, uint32_t col) {
        uint32_t x = a.jobs.x_row ? a.jobs.x_row[col] : col;
        if (a.jobs.per_expert)
                x = x * a.jobs.n_job + expert;
        return x * image_slot(a.kpad);
}

/* As a lane's own value, which is kept in a register and not made again wherever it is used: no compiler knows what a shuffle gives. */
static __device__ __forceinline__ uint32_t iq_keep(uint32_t v) { return __shfl_sync(~0u, v, threadIdx.x & 31); }
static __device__ __forceinline__ size_t iq_keep(size_t v) { return __shfl_sync(~0u, (unsigned long long)v, threadIdx.x & 31); }
/* A word of the block's tables, at a shared address; what the address is made of was read behind the barrier that follows their writing. */
static __device__ __forceinline__ uint32_t iq_word(uint32_t at) {
        uint32_t v;
        asm("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
        return v;
}
static __device__ __forceinline__ uint32_t iq_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* The tables of a block, as its lanes see them. */
template <int T> struct iq_local {
        uint32_t table, signs; /* shared addresses */
        uint32_t plus;         /* iq_global's */
        static constexpr uint32_t minus = iq_global<T>::minus;
        __device__ __forceinline__ uint32_t entry(uint32_t i) const { return iq_word(table + i * (4 * iq_plan<T>::COPIES)); }
        __device__ __forceinline__ uint32_t sign(uint32_t i) const { return iq_word(signs + i * 128); }
};

/* The A operand of block kb: rows at p[0] and p[1], entry t. */
template <int T>
static __device__ __forceinline__ void iq_operand(const uint8_t *const p[2], uint32_t kb, uint32_t t, const iq_local<T> &f, uint32_t a[4]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
                const uint2 q = iq_entry<T>(p[r], kb, t, f);
                a[r] = q.x;
                a[2 + r] = q.y;
        }
}

/* sum += product of a tile's block: its weights' scale times the activation's, then times the integer sum. */
static __device__ __forceinline__ float iq_add(float sum, int c, float scale, float d) {
        return __fmaf_rn(int_sum(c, 1.0f), __fmul_rn(scale, d), sum);
}

/*
 * One activation: column n of an MMA is its n-th block of 32, or zeros. Those of blocks kb and kb + 4 have zeros but in columns
 * kb and kb + 4, so four MMAs add up to the sums of blocks 0 .. 3 in the first columns, or of 4 .. 7 in the last, and what is in
 * the others is nobody's. A lane has the sums of blocks 2t and 2t + 1, which go into sum t of its rows. x: its operand of block
 * g; d: scales of blocks 2t, 2t + 1.
 */
template <int T>
static __device__ __forceinline__ void iq_tile_one(const uint8_t *const p[2], const iq_local<T> &f, uint32_t g, uint32_t t, const uint32_t x[2], float2 d,
                                                   float sum[2]) {
        constexpr int H = iq_plan<T>::HALVES ? 2 : 1;
        uint32_t b[4][H][2];
        int c[H][2][4];
#pragma unroll
        for (int h = 0; h < H; h++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                        const bool mine = (int)(g & 3) == i && (H == 1 || (int)(t >> 1) == h);
                        b[i][h][0] = mine ? x[0] : 0;
                        b[i][h][1] = mine ? x[1] : 0;
                }
#pragma unroll
        for (int kb = 0; kb < 8; kb++) {
                uint32_t a[4];
                iq_operand<T>(p, kb, t, f, a);
#pragma unroll
                for (int h = 0; h < H; h++)
                        if ((kb & 3) == 0)
                                mma_s8_k32(c[h][kb >> 2], a, b[0][h][0], b[0][h][1], INT_BIAS);
                        else
                                mma_k32_add<false>(c[h][kb >> 2], a, b[kb & 3][h][0], b[kb & 3][h][1]);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
                const float factor = iq_factor<T>(p[r]);
#pragma unroll
                for (int k = 0; k < 2; k++)
#pragma unroll
                        for (int h = 0; h < H; h++)
                                sum[r] = iq_add(sum[r], t & 2 ? c[h][1][2 * r + k] : c[h][0][2 * r + k],
                                                __fmul_rn(factor, iq_scale<T>(p[r], 2 * t + k, h)), k ? d.y : d.x);
        }
}

/* Eight activations. x: operands of all blocks of activation g; d: scales of activations 2t and 2t + 1; sum: [q][2 row + activation]. */
template <int T>
static __device__ __forceinline__ void iq_tile_many(const uint8_t *const p[2], const iq_local<T> &f, uint32_t t, const uint32_t x[8][2],
                                                    const float d[2][8], float sum[4][4]) {
        constexpr int H = iq_plan<T>::HALVES ? 2 : 1;
        const float factor[2] = {iq_factor<T>(p[0]), iq_factor<T>(p[1])};
#pragma unroll
        for (uint32_t kb = 0; kb < 8; kb++) {
                uint32_t a[4];
                iq_operand<T>(p, kb, t, f, a);
#pragma unroll
                for (int h = 0; h < H; h++) {
                        const bool mine = H == 1 || (int)(t >> 1) == h;
                        int c[4];
                        mma_s8_k32(c, a, mine ? x[kb][0] : 0, mine ? x[kb][1] : 0, INT_BIAS);
#pragma unroll
                        for (int r = 0; r < 2; r++) {
                                const float s = __fmul_rn(factor[r], iq_scale<T>(p[r], kb, h));
                                sum[kb >> 1][2 * r] = iq_add(sum[kb >> 1][2 * r], c[2 * r], s, d[0][kb]);
                                sum[kb >> 1][2 * r + 1] = iq_add(sum[kb >> 1][2 * r + 1], c[2 * r + 1], s, d[1][kb]);
                        }
                }
        }
}

/* A unit's results: the warps' sums in order, then the output's scale and bias. red: [teams * ks][COLS][16]. */
template <int COLS>
static __device__ __forceinline__ void iq_put(const iq_args &a, const float *red, uint32_t unit, uint32_t expert, uint32_t c0, uint32_t n) {
        for (uint32_t e = threadIdx.x; e < a.teams * 16 * COLS; e += blockDim.x) {
                const uint32_t r = e & 15, c = (e >> 4) % COLS, team = e / (16 * COLS), rg = unit * a.teams + team;
                if (rg >= a.n_rg || c >= n)
                        continue;
                const iq_out &o = a.out[iq_which(a, rg)];
                const uint32_t row = (rg - o.rg0) * 16 + r;
                if (row >= o.rows)
                        continue;
                const float *p = red + team * a.ks * 16 * COLS + c * 16 + r;
                float v = *p;
                for (uint32_t k = 1; k < a.ks; k++)
                        v = __fadd_rn(v, p[k * 16 * COLS]);
                if (o.scale)
                        v = __fmul_rn(v, o.scale[o.many_scales ? expert : 0]);
                if (o.bias)
                        v = __fadd_rn(v, o.bias[(size_t)expert * o.rows + row]);
                const uint32_t yr = a.jobs.y_row ? a.jobs.y_row[c0 + c] : c0 + c;
                o.y[yr * o.y_stride + (a.jobs.per_expert ? expert * a.jobs.y_job : 0) + row] = v;
        }
}

/* COLS: 1 or 8 columns, from blockIdx.z * COLS of the job's on. */
template <int T, int COLS> __global__ void __launch_bounds__(32 * IQ_WARPS, 2) iq_kernel(const __grid_constant__ iq_args a) {
        typedef iq_plan<T> PL;
        extern __shared__ __align__(16) uint8_t sm[]; /* tables, sums of two units, [warps] rings */
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2;
        const uint32_t team = warp / a.ks, sb0 = (warp - team * a.ks) * a.per_warp, tiles = min(sb0 + a.per_warp, a.n_sb) - sb0;
        uint32_t *const tables = (uint32_t *)sm, *const sign_table = tables + PL::ENTRIES * PL::COPIES;
        float *const red = (float *)(sm + PL::TABLES);
        uint8_t *const base = sm + PL::TABLES + IQ_SUMS * COLS + warp * PL::RING * PL::STAGE;
        const bool lists = a.jobs.expert || a.jobs.per_expert, first = blockIdx.z == 0;
        uint32_t expert = 0, c0 = 0, n = a.jobs.n;
        const uint32_t t = iq_keep(lane & 3);
        const iq_local<T> f = {iq_keep(iq_address(tables + (PL::COPIES == 32 ? lane : 0))), iq_keep(iq_address(sign_table + lane)),
                               iq_global<T>::ONE ? iq.plus1 : iq.plus2};
        const uint8_t *mine = base + g * PL::ROW;
        iq_ring<T> ring;

        pdl_next();
        if (!lists) /* weights: before the wait */
                ring.start(a, 0, base, team, sb0, tiles, lane);
        if (first)
                iq_fill<T>(tables, sign_table);
        pdl_wait();
        if (lists) {
                expert = a.jobs.per_expert ? blockIdx.y : a.jobs.expert[blockIdx.y];
                if (expert == UINT32_MAX)
                        return;
                if (!a.jobs.per_expert) {
                        c0 = a.jobs.start[blockIdx.y];
                        n = a.jobs.count[blockIdx.y];
                }
                if (blockIdx.z * COLS >= n)
                        return;
                ring.start(a, expert, base, team, sb0, tiles, lane);
        }
        if (!first)
                iq_fill<T>(tables, sign_table);
        __syncthreads();
        c0 += blockIdx.z * COLS;
        n -= blockIdx.z * COLS;

        /* What this lane reads of activations: codes of column g, or of block g of the only one; scales of columns 2t, 2t + 1 or of that one. */
        size_t x = iq_column(a, expert, c0 + (COLS == 1 ? 0 : min(g, n - 1)));
        size_t d0 = COLS == 1 ? x : iq_column(a, expert, c0 + min(2 * t, n - 1));
        size_t d1 = COLS == 1 ? x : iq_column(a, expert, c0 + min(2 * t + 1, n - 1));
        x += sb0 * 256 + (t & 1) * 32 + (COLS == 1 ? (g >> 1) * 64 + (g & 1) * 8 + (t >> 1) * 4 : 0);
        d0 += a.kpad + sb0 * 32 + (COLS == 1 ? 8 * t : 0);
        d1 += a.kpad + sb0 * 32;
        x = iq_keep(x);
        d0 = iq_keep(d0);
        d1 = COLS == 1 ? d0 : iq_keep(d1);

        uint32_t place = 0, turn = 0;
        for (uint32_t unit = blockIdx.x; unit < a.n_unit; unit += gridDim.x, turn ^= 1) {
                const uint32_t rg = unit * a.teams + team;
                float *const sums = red + (turn * a.teams * a.ks + warp) * 16 * COLS;
                if (rg < a.n_rg) {
                        const iq_out &o = a.out[iq_which(a, rg)];
                        const uint32_t low = (uint32_t)((uintptr_t)o.w + expert * o.expert_stride) + sb0 * PL::BYTES;
                        uint32_t low0 = low + iq_row(o, rg, g) * o.row_bytes, low1 = low + iq_row(o, rg, g + 8) * o.row_bytes; /* addresses' last bits */
                        float sum[COLS == 1 ? 1 : 4][COLS == 1 ? 2 : 4] = {};
#pragma unroll 1
                        for (uint32_t k = 0; k < tiles; k++) {
                                uint32_t xs[COLS == 1 ? 1 : 8][2];
                                float ds[2][8];
                                float2 d_one;
                                const uint8_t *xk = a.image + x + k * 256;
                                if constexpr (COLS == 1) {
                                        xs[0][0] = *(const uint32_t *)xk;
                                        xs[0][1] = *(const uint32_t *)(xk + 16);
                                        d_one = *(const float2 *)(a.image + d0 + k * 32);
                                } else {
#pragma unroll
                                        for (int i = 0; i < 4; i++) { /* two blocks: both halves of each */
                                                const uint4 lo = *(const uint4 *)(xk + i * 64), hi = *(const uint4 *)(xk + i * 64 + 16);
                                                xs[2 * i][0] = t & 2 ? lo.y : lo.x;
                                                xs[2 * i][1] = t & 2 ? hi.y : hi.x;
                                                xs[2 * i + 1][0] = t & 2 ? lo.w : lo.z;
                                                xs[2 * i + 1][1] = t & 2 ? hi.w : hi.z;
                                        }
#pragma unroll
                                        for (int i = 0; i < 2; i++) {
                                                *(float4 *)&ds[0][4 * i] = *(const float4 *)(a.image + d0 + k * 32 + 16 * i);
                                                *(float4 *)&ds[1][4 * i] = *(const float4 *)(a.image + d1 + k * 32 + 16 * i);
                                        }
                                }
                                iq_wait<(int)PL::RING - 1>();
                                __syncwarp();
                                const uint8_t *at = mine + place, *const p[2] = {at + (low0 & 15), at + 8 * PL::ROW + (low1 & 15)};
                                if constexpr (COLS == 1)
                                        iq_tile_one<T>(p, f, g, t, xs[0], d_one, sum[0]);
                                else
                                        iq_tile_many<T>(p, f, t, xs, ds, sum);
                                __syncwarp(); /* everybody has read it */
                                ring.ask(a, expert, team, sb0, tiles, lane);
                                place = place == (PL::RING - 1) * PL::STAGE ? 0 : place + PL::STAGE;
                                low0 += PL::BYTES;
                                low1 += PL::BYTES;
                        }
                        if constexpr (COLS == 1) {
#pragma unroll
                                for (int r = 0; r < 2; r++) {
                                        float v = sum[0][r];
                                        v = __fadd_rn(v, __shfl_xor_sync(~0u, v, 1));
                                        v = __fadd_rn(v, __shfl_xor_sync(~0u, v, 2));
                                        if (t == 0)
                                                sums[g + 8 * r] = v;
                                }
                        } else {
#pragma unroll
                                for (int i = 0; i < 4; i++) /* row g + 8 (i / 2), column 2t + i % 2 */
                                        sums[(2 * t + (i & 1)) * 16 + g + 8 * (i >> 1)] =
                                                __fadd_rn(__fadd_rn(sum[0][i], sum[1][i]), __fadd_rn(sum[2][i], sum[3][i]));
                        }
                }
                __syncthreads(); /* the sums of the unit after the next go where these are: behind the next one's meeting */
                iq_put<COLS>(a, red + turn * a.teams * a.ks * 16 * COLS, unit, expert, c0, n);
        }
        iq_wait<0>();
}
