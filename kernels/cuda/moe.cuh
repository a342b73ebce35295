/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Experts of role D, three launches a layer:
 *   route     logits of the router, and in the block that ends last the choice
 *   gate/up   both products of a block of 32 middle columns, GLU, the image
 *   down      the products and the weighted sum in order of rank
 *
 * A pair is (row, rank), number row * n_used + rank. No lists are made: the
 * block of a pair looks for the other pairs with its expert, and leaves them to
 * the first of them, so an expert's tiles are decoded once for all its rows (with
 * many rows there are as many blocks as experts instead). These go
 * two by two (tile.cuh), as most experts have one or two.
 * With few rows the down product goes row by row instead, which can sum at once.
 *
 * A row's sum has the same order in every form (one per shape: within a part of
 * the columns four sums, added as (0 + 1) + (2 + 3), then parts in order, then
 * ranks in order), so bits don't depend on company.
 */

#include <errno.h>

#include "kernels/cuda/moe_router.cuh"
#include "kernels/cuda/tile.cuh"

enum {
        MOE_BLOCK_RG = 4,    /* row groups of 16 rows that a block computes */
        MOE_ROUTE_ROWS = 4,  /* rows that a routing block takes, one a warp in the end */
};

struct moe_side { /* one matrix of all experts */
        plane_base w;
        size_t expert_stride;
        uint32_t rg0, n_rg;  /* first row group of this side; how many there are */
        const float *bias, *scale; /* [n_expert][bias_stride], [n_expert] or one */
        uint32_t bias_stride, bias0, many_scales;
};

struct moe_product {
        moe_side side[2];    /* gate, up; down alone in [0] */
        const uint32_t *id;  /* [pairs] expert */
        const float *weight; /* [pairs] */
        uint32_t pairs, n_used, n_expert;
        const uint8_t *x;    /* images: of rows for gate/up, of pairs for down */
        uint32_t kpad, n_sb, per_warp, ks;
        uint32_t rows;       /* of the result: middle columns, or the model's */
        uint32_t act;
        float alpha, limit;
        uint8_t *image;      /* gate/up: images of pairs, or NULL and ... */
        uint32_t image_kpad;
        float *y;            /* ... floats [pairs][rows]; down: [pairs][rows], or by row: [n][y_stride] */
        size_t y_stride;
};

/* MOE_FITS launches nothing: 0 if every form fits this card's shared memory for a product of this shape, else -ENOSPC. */
enum moe_form { MOE_GATE_UP, MOE_GATE_UP_ALONE /* each pair by itself */, MOE_DOWN, MOE_DOWN_SUM, MOE_FITS };
enum { MOE_PAIRS = 2048 }; /* D pairs of a launch: their list is in shared memory */

/* 1: not one of this file's types. */
int cuda_moe_a(struct cuda_dev *, enum k_type, enum moe_form, const moe_product &);
int cuda_moe_b(struct cuda_dev *, enum k_type, enum moe_form, const moe_product &);
int cuda_moe_c(struct cuda_dev *, enum k_type, enum moe_form, const moe_product &);

struct moe_route {
        const float *router, *select_bias; /* logits [n][stride] */
        size_t stride;
        uint32_t n, n_expert, n_used, n_group, n_group_used, gating, norm_weights;
        float scale;
        uint32_t *id;
        float *weight;
};
/* Choice from logits that are there. */
int cuda_moe_choose(struct cuda_dev *, const moe_route &);
/* Only logits, of P rows. */
int cuda_moe_logits(struct cuda_dev *, const moe_route &, const float *w, const float *bias, const float *x, uint32_t cols, float *logits);
/* Logits of rows x [n][cols] and the choice in one launch; logits are written too. F32 weights of a multiple of 4 columns. */
int cuda_moe_route(struct cuda_dev *, const moe_route &, const float *w, const float *bias, const float *x, uint32_t cols, float *logits);

#ifdef __CUDACC__
/*
 * Activations are read from shared memory. One: a tile's 256 columns of the image
 * (codes, scales, sums) come in the ring with the tile. Eight: each warp copies its
 * share of the columns once, a slot of which has the image's own form with kpad = 256
 * per_warp, strides a multiple of 64 bytes but not of 128, for the banks.
 */
enum { MOE_PIECE = 256 + 32 + 64 };
template <int TYPE, bool ONE> struct moe_shape {
        static constexpr int TILE = tile_stage<TYPE>::BYTES, STAGE = TILE + (ONE ? MOE_PIECE : 0), RING = ONE || TILE > 3500 ? 2 : 3;
        static constexpr uint32_t WARPS = ONE ? 16 : 8; /* at most: with one row each has few tiles, and none waits behind another */
        static __host__ __device__ constexpr uint32_t slot(uint32_t per_warp) { return (MOE_PIECE * per_warp + 63) / 128 * 128 + 64; }
};
static __device__ __forceinline__ void moe_copy16(uint8_t *to, const uint8_t *from) { copy16<0>((uint32_t)__cvta_generic_to_shared(to), from, 0); }
static __device__ __forceinline__ void moe_fetch_piece(uint8_t *to, const uint8_t *image, uint32_t kpad, uint32_t sb, uint32_t lane) {
        if (lane < MOE_PIECE / 16)
                moe_copy16(to + lane * 16, lane < 16 ? image + sb * 256 + lane * 16
                                         : lane < 18 ? image + kpad + sb * 32 + (lane - 16) * 16
                                                     : image + kpad + kpad / 8 + sb * 64 + (lane - 18) * 16);
}

/* A warp's ring of tiles: ask() fetches the next one or nothing; a group is committed either way. */
template <int TYPE> static __device__ __forceinline__ void moe_fetch(uint8_t *to, const tile_src &s, uint32_t lane) {
        constexpr tile_bytes TB = tile_bytes_of<TYPE>();
        const uint32_t dst = (uint32_t)__cvta_generic_to_shared(to) + lane * 16;
        copy_plane<0, TB.code>(dst, s.code + lane * 16, lane);
        if constexpr (TB.high > 0)
                copy_plane<TB.code, TB.high>(dst, s.high + lane * 16, lane);
        if constexpr (TB.scale > 0)
                copy_plane<TB.code + TB.high, TB.scale>(dst, s.scale + lane * 16, lane);
        if constexpr (TB.super > 0)
                copy_plane<TB.code + TB.high + TB.scale, TB.super>(dst, s.super + lane * 16, lane);
}
/* A tile's codes, and the scales of this lane's blocks. */
template <int TYPE>
static __device__ __forceinline__ void moe_take(qtype<TYPE> &w, float (&sc)[2][4], float (&mn)[2][4], const uint8_t *from, uint32_t lane) {
        constexpr tile_bytes TB = tile_bytes_of<TYPE>();
        const tile_src src = {from, from + TB.code, from + TB.code + TB.high, from + TB.code + TB.high + TB.scale};
        w.template load_codes<true>(src, lane);
#pragma unroll
        for (int r = 0; r < 2; r++)
                qtype<TYPE>::pair(src, lane >> 2, lane & 3, r, sc[r], mn[r]);
}
/* With more pairs than experts a block is an expert's, or there is nothing for it; else that of the first pair which has the expert. */
static __host__ __device__ __forceinline__ bool moe_by_expert(const moe_product &a) { return a.pairs >= a.n_expert; }

/* One row's activations, which are in the ring behind the tile. */
template <int TYPE> static __device__ __forceinline__ void moe_one(const uint8_t *from, uint32_t lane, float acc[2]) {
        const uint8_t *x = from + tile_stage<TYPE>::BYTES;
        qtype<TYPE> w;
        float sc[2][4], mn[2][4];
        moe_take<TYPE>(w, sc, mn, from, lane);
        one_tile(w, sc, mn, x, x + 256, x + 256 + 32, lane >> 2, lane & 3, acc);
}
/* Its sums of rows g and g + 8, in all four lanes. */
static __device__ __forceinline__ void moe_one_sums(float acc[2], float inv) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
                acc[r] = __fadd_rn(acc[r], __shfl_xor_sync(~0u, acc[r], 1));
                acc[r] = __fmul_rn(__fadd_rn(acc[r], __shfl_xor_sync(~0u, acc[r], 2)), inv);
        }
}

/*
 * MOE_GATE_UP: block x has middle columns 32 x .. 32 x + 31: row groups 2x and
 * 2x + 1 of both sides. MOE_DOWN: row groups 4x .. 4x + 3. Block y is a pair
 * or an expert (moe_by_expert).
 * ks warps share a row group; as many groups as fit in 8 (one row: 16) warps go side by side.
 */
template <int TYPE, bool ONE, bool DOWN> __global__ void __launch_bounds__(32 * moe_shape<TYPE, ONE>::WARPS, 2) moe_kernel(const moe_product a) {
        typedef qtype<TYPE> Q;
        typedef moe_shape<TYPE, ONE> SH;
        constexpr int RING = SH::RING, STAGE = SH::STAGE, C = ONE ? 1 : 8;
        constexpr float INV = Q::SUPER ? 1.0f : 1.0f / Q::MUL;
        extern __shared__ __align__(16) uint8_t ring_all[]; /* [warps][RING][STAGE], eight: [warps][8] slots; sums; list of columns */
        __shared__ uint32_t n_found, n_before;
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5, g = lane >> 2, t = lane & 3;
        uint8_t *ring = ring_all + warp * RING * STAGE;
        const uint32_t slot = ONE ? 0 : SH::slot(a.per_warp);
        uint8_t *x = ring_all + warps * RING * STAGE + warp * 8 * slot;
        float *red = (float *)(ring_all + warps * (RING * STAGE + 8 * slot)); /* [MOE_BLOCK_RG][ks][16][C] */
        uint32_t *list = (uint32_t *)(red + MOE_BLOCK_RG * a.ks * 16 * C);
        const uint32_t part = warp % a.ks, beside = warps / a.ks, rounds = MOE_BLOCK_RG / beside;
        const uint32_t sb0 = part * a.per_warp, tiles = min(sb0 + a.per_warp, a.n_sb) - sb0, pair = blockIdx.y;
        uint32_t n = 1;

        if (!ONE && threadIdx.x == 0)
                n_found = n_before = 0;
        if (DOWN)
                pdl_next();
        pdl_wait();
        if (!DOWN) /* the choice is there, for whoever begins now: moe_down_sum_kernel() relies on it */
                pdl_next();
        const bool by_expert = !ONE && moe_by_expert(a);
        const uint32_t expert = by_expert ? blockIdx.y : a.id[pair];
        if (!ONE) {
                __syncthreads();
                for (uint32_t p = threadIdx.x; p < a.pairs; p += blockDim.x)
                        if (a.id[p] == expert) {
                                if (!by_expert && p < pair)
                                        n_before = 1;
                                list[atomicAdd(&n_found, 1)] = p; /* their order decides nothing */
                        }
                __syncthreads();
                if (n_before || n_found == 0)
                        return;
                n = n_found;
        }

        /* Row group i of this warp's: which side, which group there. */
        auto group = [&](uint32_t i, uint32_t &s, uint32_t &rg) {
                const uint32_t l = i * beside + warp / a.ks;
                s = DOWN ? 0 : l >> 1;
                rg = DOWN ? blockIdx.x * MOE_BLOCK_RG + l : blockIdx.x * 2 + (l & 1);
                return rg < a.side[s].n_rg;
        };
        uint32_t pi = 0, pt = 0, slot_in = 0, from_side = 0, from_tile = 0; /* a tile's number, not its addresses: registers */
        auto ask = [&]() {
                if (pt == 0)
                        for (; pi < rounds; pi++) {
                                uint32_t rg;
                                if (!group(pi, from_side, rg))
                                        continue;
                                from_tile = (a.side[from_side].rg0 + rg) * a.n_sb + sb0;
                                break;
                        }
                if (pi < rounds) {
                        const moe_side &s = a.side[from_side];
                        moe_fetch<TYPE>(ring + slot_in * STAGE, tile_at(s.w, (size_t)expert * s.expert_stride, from_tile + pt), lane);
                        if (ONE)
                                moe_fetch_piece(ring + slot_in * STAGE + SH::TILE, a.x + (DOWN ? pair : pair / a.n_used) * image_slot(a.kpad), a.kpad,
                                                sb0 + pt, lane);
                        if (++pt == tiles) {
                                pt = 0;
                                pi++;
                        }
                }
                asm volatile("cp.async.commit_group;" ::: "memory");
                slot_in = slot_in + 1 == RING ? 0 : slot_in + 1;
        };

        for (uint32_t cb = 0; cb < n; cb += C) {
                uint32_t slot_out = 0;
                if (cb > 0) { /* more than 8 rows with this expert: its tiles once more */
                        asm volatile("cp.async.wait_all;" ::: "memory");
                        __syncthreads();
                        pi = pt = slot_in = 0;
                }
                if (!ONE) { /* this warp's share of the columns: in the first tile's group of copies */
                        const uint32_t per = tiles * (MOE_PIECE / 16), kpad = a.per_warp * 256;
                        for (uint32_t c = 0; c < min(n - cb, (uint32_t)C); c++) {
                                const uint32_t p = list[cb + c];
                                const uint8_t *from = a.x + (DOWN ? p : p / a.n_used) * image_slot(a.kpad);
                                for (uint32_t i = lane; i < per; i += 32) {
                                        const uint32_t k = i < tiles * 16 ? i * 16 : i < tiles * 18 ? kpad + (i - tiles * 16) * 16 : kpad + kpad / 8 + (i - tiles * 18) * 16;
                                        moe_copy16(x + c * slot + k, i < tiles * 16 ? from + sb0 * 256 + i * 16
                                                                     : i < tiles * 18 ? from + a.kpad + sb0 * 32 + (i - tiles * 16) * 16
                                                                                      : from + a.kpad + a.kpad / 8 + sb0 * 64 + (i - tiles * 18) * 16);
                                }
                        }
                }
#pragma unroll
                for (int i = 0; i < RING; i++)
                        ask();
                const uint32_t cols = min(n - cb, (uint32_t)C);
                for (uint32_t i = 0; i < rounds; i++) {
                        const uint32_t l = i * beside + warp / a.ks;
                        uint32_t s, rg;
                        if (!group(i, s, rg))
                                continue;
                        float acc[(C + 1) / 2][4] = {};
                        const uint8_t *xk = x;
#pragma unroll 1
                        for (uint32_t k = 0; k < tiles; k++, xk += 256) {
                                asm volatile("cp.async.wait_group %0;" ::"n"(RING - 1) : "memory");
                                __syncwarp();
                                const uint8_t *from = ring + slot_out * STAGE;
                                slot_out = slot_out + 1 == RING ? 0 : slot_out + 1;
                                if (ONE) {
                                        moe_one<TYPE>(from, lane, acc[0]);
                                        __syncwarp();
                                        ask(); /* into the place just read */
                                } else {
                                        qtype<TYPE> w;
                                        float sc[2][4], mn[2][4];
                                        uint32_t codes[8][4];
                                        moe_take<TYPE>(w, sc, mn, from, lane);
                                        __syncwarp();
                                        ask();
#pragma unroll
                                        for (int kb = 0; kb < 8; kb++)
                                                tile_codes(w, kb, codes[kb]);
                                        const uint32_t d0 = a.per_warp * 256 - k * 224, s0 = d0 + a.per_warp * 32 + k * 32; /* from xk: 32 and 64 bytes a tile */
#pragma unroll
                                        for (int c = 0; c < C / 2; c++) {
                                                if (2 * c >= cols)
                                                        break;
                                                const uint8_t *x0 = xk + 2 * c * slot, *x1 = 2 * c + 1 < cols ? x0 + slot : x0; /* the last once more, for nobody */
                                                const uint8_t *const dx[2] = {x0 + d0, x1 + d0}, *const sx[2] = {x0 + s0, x1 + s0};
                                                two_tile<Q>(codes, sc, mn, g & 1 ? x1 : x0, dx, sx, g, t, acc[c]);
                                        }
                                }
                        }
                        float *to = red + (l * a.ks + part) * 16 * C;
                        if (ONE) {
                                moe_one_sums(acc[0], INV);
                                if (t == 0) {
                                        to[g] = acc[0][0];
                                        to[g + 8] = acc[0][1];
                                }
                        } else {
#pragma unroll
                                for (int c = 0; c < C / 2; c++) {
                                        if (2 * c >= cols)
                                                break;
                                        to[(g + 8 * (t >> 1)) * C + 2 * c + (t & 1)] = __fmul_rn(four_sums(acc[c], t), INV);
                                }
                        }
                }
                __syncthreads();
                auto sum = [&](uint32_t l, uint32_t r, uint32_t c, const moe_side &s, uint32_t row) {
                        float v = red[(l * a.ks * 16 + r) * C + c];
                        for (uint32_t k = 1; k < a.ks; k++)
                                v = __fadd_rn(v, red[((l * a.ks + k) * 16 + r) * C + c]);
                        if (s.scale)
                                v = __fmul_rn(v, s.scale[s.many_scales ? expert : 0]);
                        if (s.bias)
                                v = __fadd_rn(v, s.bias[(size_t)expert * s.bias_stride + s.bias0 + row]);
                        return v;
                };
                if (DOWN) {
                        for (uint32_t e = threadIdx.x; e < cols * MOE_BLOCK_RG * 16; e += blockDim.x) {
                                const uint32_t r = e % (MOE_BLOCK_RG * 16), c = e / (MOE_BLOCK_RG * 16), row = blockIdx.x * MOE_BLOCK_RG * 16 + r;
                                if (row < a.rows)
                                        a.y[(size_t)(ONE ? pair : list[cb + c]) * a.rows + row] = sum(r >> 4, r & 15, c, a.side[0], row);
                        }
                } else {
                        for (uint32_t c = warp; c < cols; c += warps) { /* a warp has a whole block of 32 middle columns */
                                const uint32_t row = blockIdx.x * 32 + lane, p = ONE ? pair : list[cb + c];
                                float v = 0;
                                if (row < a.rows)
                                        v = glu_value(a.act, sum(lane >> 4, lane & 15, c, a.side[0], row), sum(2 + (lane >> 4), lane & 15, c, a.side[1], row),
                                                      true, a.alpha, a.limit);
                                if (a.image)
                                        image_put32(a.image + p * image_slot(a.image_kpad), a.image_kpad, blockIdx.x, v);
                                else if (row < a.rows)
                                        a.y[(size_t)p * a.rows + row] = v;
                        }
                }
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Down row by row: block (row group, row); its n_used * ks parts are shared among the warps. */
template <int TYPE> __global__ void __launch_bounds__(32 * moe_shape<TYPE, true>::WARPS, 1) moe_down_sum_kernel(const moe_product a) {
        typedef qtype<TYPE> Q;
        typedef moe_shape<TYPE, true> SH;
        constexpr int RING = SH::RING, STAGE = SH::STAGE;
        constexpr float INV = Q::SUPER ? 1.0f : 1.0f / Q::MUL;
        extern __shared__ __align__(16) uint8_t ring_all[];
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5, g = lane >> 2, t = lane & 3;
        uint8_t *ring = ring_all + warp * RING * STAGE;
        float *red = (float *)(ring_all + warps * RING * STAGE), *one = red + a.n_used * a.ks * 16; /* [n_used][ks][16], [n_used][16] */
        const uint32_t tasks = a.n_used * a.ks, row0 = blockIdx.y * a.n_used;
        const moe_side &s = a.side[0];
        uint32_t task = warp, pt = 0, pn = 0, slot_in = 0, slot_out = 0;
        tile_src src = {};

        pdl_next();
        auto ask = [&](bool tile, bool piece) {
                if (task < tasks) {
                        if (pt == 0) {
                                const uint32_t sb0 = task % a.ks * a.per_warp;
                                pn = min(sb0 + a.per_warp, a.n_sb) - sb0;
                                if (tile) {
                                        const uint32_t expert = __ldcg(a.id + row0 + task / a.ks);
                                        src = tile_at(s.w, (size_t)expert * s.expert_stride, (size_t)(s.rg0 + blockIdx.x) * a.n_sb + sb0);
                                }
                        }
                        if (tile) {
                                constexpr tile_bytes TB = tile_bytes_of<TYPE>();
                                moe_fetch<TYPE>(ring + slot_in * STAGE, src, lane);
                                src = tile_src{src.code + TB.code, src.high + TB.high, src.scale + TB.scale, src.super + TB.super};
                        }
                        if (piece)
                                moe_fetch_piece(ring + slot_in * STAGE + SH::TILE, a.x + (row0 + task / a.ks) * image_slot(a.kpad), a.kpad,
                                                task % a.ks * a.per_warp + pt, lane);
                        if (++pt == pn) {
                                pt = 0;
                                task += warps;
                        }
                }
                if (piece)
                        asm volatile("cp.async.commit_group;" ::: "memory");
                slot_in = slot_in + 1 == RING ? 0 : slot_in + 1;
        };
        /* The choice is there: gate/up lets this launch begin when it has seen it. So tiles before the wait, what gate/up makes after. */
#pragma unroll
        for (int i = 0; i < RING; i++)
                ask(true, false);
        task = warp;
        pt = slot_in = 0;
        pdl_wait();
#pragma unroll
        for (int i = 0; i < RING; i++)
                ask(false, true);
        for (uint32_t k = warp; k < tasks; k += warps) {
                const uint32_t sb0 = k % a.ks * a.per_warp, tiles = min(sb0 + a.per_warp, a.n_sb) - sb0;
                float acc[2] = {};
#pragma unroll 1
                for (uint32_t i = 0; i < tiles; i++) {
                        asm volatile("cp.async.wait_group %0;" ::"n"(RING - 1) : "memory");
                        __syncwarp();
                        moe_one<TYPE>(ring + slot_out * STAGE, lane, acc);
                        slot_out = slot_out + 1 == RING ? 0 : slot_out + 1;
                        __syncwarp();
                        ask(true, true);
                }
                moe_one_sums(acc, INV);
                if (t == 0) {
                        red[k * 16 + g] = acc[0];
                        red[k * 16 + g + 8] = acc[1];
                }
        }
        __syncthreads();
        for (uint32_t e = threadIdx.x; e < a.n_used * 16; e += blockDim.x) {
                const uint32_t k = e >> 4, r = e & 15, row = blockIdx.x * 16 + r, expert = a.id[row0 + k];
                float v = red[k * a.ks * 16 + r];
                for (uint32_t q = 1; q < a.ks; q++)
                        v = __fadd_rn(v, red[(k * a.ks + q) * 16 + r]);
                if (s.scale)
                        v = __fmul_rn(v, s.scale[s.many_scales ? expert : 0]);
                if (s.bias && row < a.rows)
                        v = __fadd_rn(v, s.bias[(size_t)expert * s.bias_stride + s.bias0 + row]);
                one[e] = v;
        }
        __syncthreads();
        const uint32_t row = blockIdx.x * 16 + threadIdx.x;
        if (threadIdx.x < 16 && row < a.rows) {
                float v = 0;
                for (uint32_t k = 0; k < a.n_used; k++)
                        v = __fmaf_rn(a.weight[row0 + k], one[k * 16 + threadIdx.x], v);
                a.y[blockIdx.y * a.y_stride + row] = v;
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
}

/* ks is at most 8. */
static inline uint32_t moe_warps(const moe_product &a, uint32_t most) { return (a.ks * 4 <= most ? 4 : a.ks * 2 <= most ? 2 : 1) * a.ks; }
template <int TYPE, bool ONE> static size_t moe_smem(const moe_product &a, uint32_t pairs) {
        typedef moe_shape<TYPE, ONE> SH;
        return (size_t)moe_warps(a, SH::WARPS) * (SH::RING * SH::STAGE + (ONE ? 0 : 8 * SH::slot(a.per_warp))) +
               (size_t)MOE_BLOCK_RG * a.ks * 16 * (ONE ? 1 : 8) * sizeof(float) + (ONE ? 0 : pairs) * sizeof(uint32_t);
}
/* No more than are needed for as many rounds. */
template <int TYPE> static uint32_t moe_sum_warps(const moe_product &a) {
        const uint32_t tasks = a.n_used * a.ks;
        const uint32_t rounds = (tasks - 1) / moe_shape<TYPE, true>::WARPS + 1;
        return DIV_ROUND_UP(tasks, rounds);
}
template <int TYPE> static size_t moe_sum_smem(const moe_product &a, uint32_t warps) {
        return (size_t)warps * moe_shape<TYPE, true>::RING * moe_shape<TYPE, true>::STAGE + (size_t)a.n_used * (a.ks + 1) * 16 * sizeof(float);
}

template <int TYPE, bool ONE, bool DOWN> static int moe_launch(struct cuda_dev *d, const moe_product &a, const char *what) {
        const uint32_t warps = moe_warps(a, moe_shape<TYPE, ONE>::WARPS);
        const size_t smem = moe_smem<TYPE, ONE>(a, a.pairs);
        const uint32_t blocks = DOWN ? DIV_ROUND_UP(a.side[0].n_rg, (uint32_t)MOE_BLOCK_RG) : a.image ? a.image_kpad / 32 : DIV_ROUND_UP(a.rows, 32u);
        CUDA_TRY(d, cudaFuncSetAttribute(moe_kernel<TYPE, ONE, DOWN>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem), what);
        return launch(d, what, moe_kernel<TYPE, ONE, DOWN>, dim3(blocks, !ONE && moe_by_expert(a) ? a.n_expert : a.pairs), warps * 32, smem, a);
}

template <int TYPE> static int moe_type(struct cuda_dev *d, enum moe_form form, const moe_product &a) {
        switch (form) {
        case MOE_GATE_UP: return moe_launch<TYPE, false, false>(d, a, "experts, gate and up");
        case MOE_GATE_UP_ALONE: return moe_launch<TYPE, true, false>(d, a, "experts, gate and up (row by row)");
        case MOE_DOWN: return moe_launch<TYPE, false, true>(d, a, "experts, down");
        case MOE_FITS:
                return MAX(MAX((moe_smem<TYPE, true>(a, 0)), (moe_smem<TYPE, false>(a, MOE_PAIRS))), moe_sum_smem<TYPE>(a, moe_sum_warps<TYPE>(a))) +
                                               1024 <= d->smem_block ? 0 : -ENOSPC;
        case MOE_DOWN_SUM: break;
        }
        const uint32_t warps = moe_sum_warps<TYPE>(a), blocks = a.side[0].n_rg * (a.pairs / a.n_used);
        size_t smem = moe_sum_smem<TYPE>(a, warps);
        /*
         * Blocks begin wherever gate/up leaves room, which is where it has fewer blocks: two to a multiprocessor then, and none
         * elsewhere. If there is one for each, they don't share.
         */
        if (d->pdl && blocks <= d->n_sm)
                smem = MAX(smem, d->smem_sm / 2);
        CUDA_TRY(d, cudaFuncSetAttribute(moe_down_sum_kernel<TYPE>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem), "experts, down and sum");
        return launch(d, "experts, down and sum", moe_down_sum_kernel<TYPE>, dim3(a.side[0].n_rg, a.pairs / a.n_used), warps * 32, smem, a);
}
#endif
