/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The products of role D's experts (moe.cuh), by type. */

#include "kernels/cuda/matvec_many.cuh"
#include "kernels/cuda/moe.cuh"

/*
 * A pair by itself: a tile's 256 columns of the image (codes, scales, sums) come in the ring with the tile.
 */
enum { MOE_PIECE = 256 + 32 + 64 };
template <int TYPE> struct moe_shape {
        static constexpr int TILE = tile_stage<TYPE>::BYTES, STAGE = TILE + MOE_PIECE, RING = 2;
        static constexpr uint32_t WARPS = 16; /* at most: each has few tiles, and none waits behind another */
};
static __device__ __forceinline__ void moe_copy16(uint8_t *to, const uint8_t *from) { copy16((uint32_t)__cvta_generic_to_shared(to), from); }
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
template <int TYPE, bool MANY>
static __device__ __forceinline__ void moe_take(qtype<TYPE> &w, float (&sc)[2][4], float (&mn)[2][4], const uint8_t *from, uint32_t lane) {
        constexpr tile_bytes TB = tile_bytes_of<TYPE>();
        const tile_src src = {from, from + TB.code, from + TB.code + TB.high, from + TB.code + TB.high + TB.scale};
        w.template load_codes<true>(src, lane);
#pragma unroll
        for (int r = 0; r < 2; r++)
                qtype<TYPE>::template pair<MANY>(src, lane >> 2, lane & 3, r, sc[r], mn[r]);
}
/* One row's activations, which are in the ring behind the tile. */
template <int TYPE> static __device__ __forceinline__ void moe_one(const uint8_t *from, uint32_t lane, float acc[2]) {
        const uint8_t *x = from + tile_stage<TYPE>::BYTES;
        qtype<TYPE> w;
        float sc[2][4], mn[2][4];
        moe_take<TYPE, false>(w, sc, mn, from, lane);
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

/* What the warps found of row r of a block's row group l, parts in order. red: [row groups][ks] arrays of 'part' floats, which begin with its column's 16. */
static __device__ __forceinline__ float moe_sum(const moe_product &a, const moe_side &s, const float *red, uint32_t part, uint32_t l, uint32_t r, uint32_t expert,
                                                uint32_t row) {
        const float *at = red + l * a.ks * part + r;
        float v = *at;
        for (uint32_t k = 1; k < a.ks; k++)
                v = __fadd_rn(v, at[k * part]);
        if (s.scale)
                v = __fmul_rn(v, s.scale[s.many_scales ? expert : 0]);
        if (s.bias)
                v = __fadd_rn(v, s.bias[(size_t)expert * s.bias_stride + s.bias0 + row]);
        return v;
}
/* By a whole warp: a pair's middle columns 32 x .. 32 x + 31, which are a block of its image. */
static __device__ __forceinline__ void moe_put_glu(const moe_product &a, const float *red, uint32_t part, uint32_t x, uint32_t expert, uint32_t pair) {
        const uint32_t lane = threadIdx.x & 31, row = x * 32 + lane;
        float v = 0;
        if (row < a.rows)
                v = glu_value(a.act, moe_sum(a, a.side[0], red, part, lane >> 4, lane & 15, expert, row),
                              moe_sum(a, a.side[1], red, part, 2 + (lane >> 4), lane & 15, expert, row), true, a.alpha, a.limit);
        if (a.image)
                image_put32(a.image + pair * image_slot(a.image_kpad), a.image_kpad, x, v);
        else if (row < a.rows)
                a.y[(size_t)pair * a.rows + row] = v;
}

/*
 * Gate and up of a pair (block y) by itself: block x has row groups 2x and 2x + 1 of both sides. ks warps share a row group; as
 * many groups as fit in 16 warps go side by side.
 */
template <int TYPE> __global__ void __launch_bounds__(32 * moe_shape<TYPE>::WARPS, 2) moe_alone_kernel(const moe_product a) {
        typedef qtype<TYPE> Q;
        typedef moe_shape<TYPE> SH;
        constexpr int RING = SH::RING, STAGE = SH::STAGE;
        constexpr float INV = Q::SUPER ? 1.0f : 1.0f / Q::MUL;
        extern __shared__ __align__(16) uint8_t ring_all[]; /* [warps][RING][STAGE]; sums */
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5, g = lane >> 2, t = lane & 3;
        uint8_t *ring = ring_all + warp * RING * STAGE;
        float *red = (float *)(ring_all + warps * RING * STAGE); /* [MOE_BLOCK_RG][ks][16] */
        const uint32_t part = warp % a.ks, beside = warps / a.ks, rounds = MOE_BLOCK_RG / beside;
        const uint32_t sb0 = part * a.per_warp, tiles = min(sb0 + a.per_warp, a.n_sb) - sb0, pair = blockIdx.y;

        pdl_wait();
        pdl_next(); /* the choice is there, for whoever begins now: down relies on it */
        const uint32_t expert = a.id[pair];

        /* Row group i of this warp's: which side, which group there. */
        auto group = [&](uint32_t i, uint32_t &s, uint32_t &rg) {
                const uint32_t l = i * beside + warp / a.ks;
                s = l >> 1;
                rg = blockIdx.x * 2 + (l & 1);
                return rg < a.side[s].n_rg;
        };
        uint32_t pi = 0, pt = 0, slot = 0, from_side = 0, from_tile = 0; /* a tile's number, not its addresses: registers */
        auto ask = [&](uint32_t to) {
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
                        moe_fetch<TYPE>(ring + to * STAGE, tile_at(s.w, (size_t)expert * s.expert_stride, from_tile + pt), lane);
                        moe_fetch_piece(ring + to * STAGE + SH::TILE, a.x + pair / a.n_used * image_slot(a.kpad), a.kpad, sb0 + pt, lane);
                        if (++pt == tiles) {
                                pt = 0;
                                pi++;
                        }
                }
                asm volatile("cp.async.commit_group;" ::: "memory");
        };
#pragma unroll
        for (int i = 0; i < RING; i++)
                ask(i);
        for (uint32_t i = 0; i < rounds; i++) {
                const uint32_t l = i * beside + warp / a.ks;
                uint32_t s, rg;
                if (!group(i, s, rg))
                        continue;
                float acc[2] = {};
#pragma unroll 1
                for (uint32_t k = 0; k < tiles; k++) {
                        asm volatile("cp.async.wait_group %0;" ::"n"(RING - 1) : "memory");
                        __syncwarp();
                        moe_one<TYPE>(ring + slot * STAGE, lane, acc);
                        __syncwarp();
                        ask(slot); /* into the place just read */
                        slot = slot + 1 == RING ? 0 : slot + 1;
                }
                moe_one_sums(acc, INV);
                if (t == 0) {
                        red[(l * a.ks + part) * 16 + g] = acc[0];
                        red[(l * a.ks + part) * 16 + g + 8] = acc[1];
                }
        }
        __syncthreads();
        if (warp == 0)
                moe_put_glu(a, red, 16, blockIdx.x, expert, pair);
        asm volatile("cp.async.wait_all;" ::: "memory");
}

/* ks is at most 8; four warps' shares of row groups side by side, if 'most' warps are enough for that. */
static inline uint32_t moe_warps(const moe_product &a, uint32_t most) { return (a.ks * 4 <= most ? 4 : a.ks * 2 <= most ? 2 : 1) * a.ks; }

/*
 * Several rows. A job is an expert with up to MOE_COLS of its pairs, a unit a job's block of 32 middle columns, or of 64 of the
 * result's; blocks share all jobs' units, and a warp's ring of tiles goes on from one unit to the next. Most experts of a small
 * batch have one or two pairs: these are spread over the MMA's columns (moe_two()). With three and more, an MMA has eight.
 */
enum { MOE_COLS = 8, MOE_MANY_WARPS = 8 };
template <int TYPE> struct moe_many_shape {
        static constexpr int STAGE = tile_stage<TYPE>::BYTES, RING = 2;
        /* Blocks of a multiprocessor, and the threads that registers are shared out for: MXFP4's scales take more, and gpt-oss's 192 threads leave them. */
        static constexpr int BLOCKS = qtype<TYPE>::N16 || STAGE > 3500 || TYPE == K_MXFP4 ? 2 : 3, THREADS = 32 * (TYPE == K_MXFP4 ? 9 : MOE_MANY_WARPS);
};
/* At most. */
static __host__ __device__ __forceinline__ uint32_t moe_jobs(const moe_product &a, uint32_t pairs) {
        return (a.n_expert < pairs ? a.n_expert : pairs) + pairs / MOE_COLS;
}
/* Floats of a unit's sums, of so many columns. Places for those of eight, of two and of two: the next unit's are then elsewhere, mostly. */
static __host__ __device__ __forceinline__ uint32_t moe_sums(const moe_product &a, uint32_t cols) { return MOE_BLOCK_RG * a.ks * cols * 16; }
template <int TYPE> static size_t moe_many_smem(const moe_product &a, uint32_t pairs) {
        typedef moe_many_shape<TYPE> SH;
        return (size_t)moe_warps(a, MOE_MANY_WARPS) * SH::RING * SH::STAGE +
               ((size_t)moe_sums(a, MOE_COLS + 4) + a.n_expert + moe_jobs(a, pairs)) * sizeof(float) + pairs * 2 * sizeof(uint16_t);
}

struct moe_job { /* in 32 bits: up to 1,024 experts and 2,048 pairs */
        uint32_t bits;
        static __device__ __forceinline__ moe_job of(uint32_t expert, uint32_t first, uint32_t n) { return moe_job{expert << 14 | first << 3 | (n - 1)}; }
        __device__ __forceinline__ uint32_t expert() const { return bits >> 14; }
        __device__ __forceinline__ uint32_t first() const { return bits >> 3 & 2047; }
        __device__ __forceinline__ uint32_t n() const { return (bits & 7) + 1; }
};
static_assert(MOE_PAIRS <= 2048 && MOE_COLS == 8, "a job's bits");

/*
 * A block lists the pairs by expert, an expert's in order, and the jobs; their number for all. The order must be every block's:
 * an expert of more than MOE_COLS pairs has several jobs, whose units go to different blocks. 'loose' is room for as many as the
 * list. 'wait' returns when there is a choice.
 */
template <class F>
static __device__ __forceinline__ uint32_t moe_sort(const moe_product &a, uint16_t *list, uint16_t *loose, moe_job *job, uint32_t *count, F wait) {
        __shared__ uint32_t jobs;
        for (uint32_t e = threadIdx.x; e < a.n_expert; e += blockDim.x)
                count[e] = 0;
        wait();
        const uint32_t own = threadIdx.x < a.pairs ? __ldcg(a.id + threadIdx.x) : 0; /* mostly all: there and back takes its time */
        __syncthreads();
        for (uint32_t p = threadIdx.x; p < a.pairs; p += blockDim.x)
                atomicAdd(&count[p == threadIdx.x ? own : __ldcg(a.id + p)], 1);
        __syncthreads();
        if (threadIdx.x < 32) { /* a lane has experts in a row */
                const uint32_t per = (a.n_expert + 31) / 32, e0 = min(threadIdx.x * per, a.n_expert), end = min(e0 + per, a.n_expert);
                uint32_t here = 0, all; /* pairs, and above them jobs */
                for (uint32_t e = e0; e < end; e++)
                        here += count[e] | (count[e] + MOE_COLS - 1) / MOE_COLS << 16;
                all = here;
#pragma unroll
                for (int o = 1; o < 32; o *= 2) {
                        const uint32_t v = __shfl_up_sync(~0u, all, o);
                        all += threadIdx.x >= o ? v : 0;
                }
                uint32_t first = (all - here) & 0xffff, at = (all - here) >> 16;
                for (uint32_t e = e0; e < end; e++) {
                        const uint32_t n = count[e];
                        count[e] = first;
                        for (uint32_t i = 0; i < n; i += MOE_COLS)
                                job[at++] = moe_job::of(e, first + i, min(n - i, (uint32_t)MOE_COLS));
                        first += n;
                }
                if (threadIdx.x == 31)
                        jobs = all >> 16;
        }
        __syncthreads();
        for (uint32_t p = threadIdx.x; p < a.pairs; p += blockDim.x)
                loose[atomicAdd(&count[p == threadIdx.x ? own : __ldcg(a.id + p)], 1)] = (uint16_t)p; /* as it happens */
        __syncthreads();
        for (uint32_t p = threadIdx.x; p < a.pairs; p += blockDim.x) { /* count: by now where an expert's pairs end */
                const uint32_t e = p == threadIdx.x ? own : __ldcg(a.id + p), first = e ? count[e - 1] : 0, end = count[e];
                uint32_t at = first;
                for (uint32_t i = first; i < end; i++)
                        at += loose[i] < p;
                list[at] = (uint16_t)p;
        }
        __syncthreads();
        return jobs;
}

/* What a lane has of two activations for a tile: codes of number g & 1, scales and sums of both. */
struct moe_two_x {
        uint4 b;
        float2 d[2];
        float4 s[2];
};
/*
 * One tile, two activations: column n of an MMA has activation n & 1, of the blocks 2 (n / 2) and 2 (n / 2) + 1. acc[r * 2 + j]:
 * row g + 8 r, activation j.
 */
template <class Q>
static __device__ __forceinline__ void moe_two(const Q &w, const float (&sc)[2][4], const float (&mn)[2][4], const moe_two_x &x, uint32_t g, float acc[4]) {
        constexpr int H = Q::N16 ? 2 : 1;
        int c[2][H][4];
#pragma unroll
        for (int k1 = 0; k1 < 2; k1++)
#pragma unroll
                for (int i = 0; i < 4 * H; i++)
                        c[k1][i >> 2][i & 3] = INT_BIAS;
#pragma unroll
        for (int kb = 0; kb < 8; kb++) {
                uint32_t a[4];
                tile_codes(w, kb, a);
                const bool mine = g >> 1 == kb >> 1;
                const uint32_t b0 = !mine ? 0 : kb & 1 ? x.b.z : x.b.x, b1 = !mine ? 0 : kb & 1 ? x.b.w : x.b.y;
                if (Q::N16) {
                        mma_k16_add<Q::FIELDS>(c[kb & 1][0], a[0], a[1], b0);
                        mma_k16_add<Q::FIELDS>(c[kb & 1][H - 1], a[2], a[3], b1);
                } else {
                        mma_k32_add<Q::FIELDS>(c[kb & 1][0], a, b0, b1);
                }
        }
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
                for (int r = 0; r < 2; r++)
#pragma unroll
                        for (int k1 = 0; k1 < 2; k1++)
#pragma unroll
                                for (int h = 0; h < H; h++) {
                                        const float s0 = k1 ? x.s[j].z : x.s[j].x, s1 = k1 ? x.s[j].w : x.s[j].y;
                                        float *to = &acc[r * 2 + j];
                                        *to = __fmaf_rn(sc[r][k1 * H + h], __fmul_rn(int_sum(c[k1][h][2 * r + j], tile_field<Q>(k1, h)), k1 ? x.d[j].y : x.d[j].x), *to);
                                        if (Q::HAS_MIN)
                                                *to = __fmaf_rn(-mn[r][k1 * H + h], !Q::N16 ? __fadd_rn(s0, s1) : h ? s1 : s0, *to);
                                }
}

/* per_job: units. A unit's row groups: gate/up 2x and 2x + 1 of both sides, down 4x .. 4x + 3. */
template <int TYPE, bool DOWN>
__global__ void __launch_bounds__(moe_many_shape<TYPE>::THREADS, moe_many_shape<TYPE>::BLOCKS)
        moe_kernel(const __grid_constant__ moe_product a, const uint32_t per_job) {
        typedef qtype<TYPE> Q;
        typedef moe_many_shape<TYPE> SH;
        constexpr int RING = SH::RING, STAGE = SH::STAGE;
        constexpr float INV = Q::SUPER ? 1.0f : 1.0f / Q::MUL;
        extern __shared__ __align__(16) uint8_t ring_all[]; /* [warps][RING][STAGE]; sums; lists */
        const uint32_t lane = threadIdx.x & 31, warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), warps = blockDim.x >> 5, g = lane >> 2, t = lane & 3;
        uint8_t *ring = ring_all + warp * RING * STAGE;
        float *red = (float *)(ring_all + warps * RING * STAGE); /* [MOE_BLOCK_RG][ks][MOE_COLS][16], two of [MOE_BLOCK_RG][ks][2][16] */
        uint32_t *count = (uint32_t *)(red + moe_sums(a, MOE_COLS + 4));
        moe_job *job = (moe_job *)(count + a.n_expert);
        uint16_t *list = (uint16_t *)(job + moe_jobs(a, a.pairs)), *loose = list + a.pairs;
        const uint32_t team = warp / a.ks, part = warp - team * a.ks, beside = warps / a.ks, rounds = MOE_BLOCK_RG / beside;
        const uint32_t sb0 = part * a.per_warp, tiles = min(sb0 + a.per_warp, a.n_sb) - sb0;

        /* The choice is there when gate/up has seen it, and lets down begin: that may ask for tiles before its wait. */
        const uint32_t units = per_job * moe_sort(a, list, loose, job, count, [] {
                if (!DOWN)
                        pdl_wait();
                pdl_next();
        });

        /* Row group i of this warp's in block x of a job: which side, which group there. */
        auto group = [&](uint32_t x, uint32_t i, uint32_t &s, uint32_t &rg) {
                const uint32_t l = i * beside + team;
                s = DOWN ? 0 : l >> 1;
                rg = DOWN ? x * MOE_BLOCK_RG + l : x * 2 + (l & 1);
                return rg < a.side[s].n_rg;
        };
        /* The next tile to ask for, by numbers: addresses take more registers. */
        uint32_t ask_unit = blockIdx.x, ask_round = 0, ask_tile = 0, slot_in = 0, from_expert = 0, from_x = 0, from_side = 0, from_tile = 0;
        auto ask = [&]() {
                while (ask_tile == 0 && ask_unit < units) {
                        uint32_t rg;
                        if (ask_round == 0) {
                                const uint32_t j = ask_unit / per_job;
                                from_expert = job[j].expert();
                                from_x = ask_unit - j * per_job;
                        }
                        if (group(from_x, ask_round, from_side, rg)) {
                                from_tile = (a.side[from_side].rg0 + rg) * a.n_sb + sb0;
                                break;
                        }
                        if (++ask_round == rounds) {
                                ask_round = 0;
                                ask_unit += gridDim.x;
                        }
                }
                if (ask_unit < units) {
                        const moe_side &s = a.side[from_side];
                        moe_fetch<TYPE>(ring + slot_in * STAGE, tile_at(s.w, (size_t)from_expert * s.expert_stride, from_tile + ask_tile), lane);
                        if (++ask_tile == tiles) {
                                ask_tile = 0;
                                if (++ask_round == rounds) {
                                        ask_round = 0;
                                        ask_unit += gridDim.x;
                                }
                        }
                }
                asm volatile("cp.async.commit_group;" ::: "memory");
                slot_in = slot_in + 1 == RING ? 0 : slot_in + 1;
        };
        uint32_t slot_out = 0;
        auto next = [&]() -> const uint8_t * { /* when it has come */
                const uint8_t *from = ring + slot_out * STAGE;
                asm volatile("cp.async.wait_group %0;" ::"n"(RING - 1) : "memory");
                __syncwarp();
                slot_out = slot_out + 1 == RING ? 0 : slot_out + 1;
                return from;
        };

#pragma unroll 1
        for (int i = 0; i < RING; i++)
                ask();
        if (DOWN)
                pdl_wait();
        for (uint32_t unit = blockIdx.x, turn = 0; unit < units; unit += gridDim.x) {
                const uint32_t j = unit / per_job, x = unit - j * per_job, expert = job[j].expert(), n = job[j].n();
                const uint16_t *const pairs = list + job[j].first();
                const uint32_t wide = n <= 2 ? 2 * 16 : MOE_COLS * 16;
                float *sums = red;
                if (n <= 2) {
                        sums += moe_sums(a, MOE_COLS + turn);
                        turn ^= 2;
                }
                auto image_of = [&](uint32_t c) -> const uint8_t * { /* behind the last: it again, for nobody */
                        const uint32_t p = pairs[min(c, n - 1)];
                        return a.x + (DOWN ? p : p / a.n_used) * image_slot(a.kpad);
                };
                if (n <= 2) {
                        const uint8_t *const x0 = image_of(0), *const x1 = image_of(1), *codes = (g & 1 ? x1 : x0) + sb0 * 256 + (g >> 1) * 64 + t * 16;
                        const uint32_t d0 = a.kpad + sb0 * 32 + t * 8, s0 = a.kpad + a.kpad / 8 + sb0 * 64 + t * 16;
                        for (uint32_t i = 0; i < rounds; i++) {
                                uint32_t s, rg;
                                if (!group(x, i, s, rg))
                                        continue;
                                float acc[4] = {};
#pragma unroll 1
                                for (uint32_t k = 0; k < tiles; k++) {
                                        moe_two_x in;
                                        in.b = *(const uint4 *)(codes + k * 256); /* before the tile is waited for */
                                        in.d[0] = *(const float2 *)(x0 + d0 + k * 32);
                                        in.d[1] = *(const float2 *)(x1 + d0 + k * 32);
                                        if (Q::HAS_MIN) {
                                                in.s[0] = *(const float4 *)(x0 + s0 + k * 64);
                                                in.s[1] = *(const float4 *)(x1 + s0 + k * 64);
                                        }
                                        const uint8_t *from = next();
                                        Q w;
                                        float sc[2][4], mn[2][4];
                                        moe_take<TYPE, true>(w, sc, mn, from, lane);
                                        __syncwarp();
                                        ask(); /* into the place just read */
                                        moe_two(w, sc, mn, in, g, acc);
                                }
                                sums[((i * beside + team) * a.ks + part) * wide + (t & 1) * 16 + g + 8 * (t >> 1)] = __fmul_rn(four_sums(acc, t), INV);
                        }
                } else {
                        many_x<Q, 1> at;
                        at.codes[0] = image_of(g) + sb0 * 256 + t * 16;
#pragma unroll
                        for (int c = 0; c < 2; c++) {
                                const uint8_t *xc = image_of(2 * t + c);
                                at.dx[0][c] = xc + a.kpad + sb0 * 32;
                                at.sx[0][c] = xc + a.kpad + a.kpad / 8 + sb0 * 64;
                        }
                        __syncthreads(); /* sums of the unit before may be where this one's go */
                        for (uint32_t i = 0; i < rounds; i++) {
                                uint32_t s, rg;
                                if (!group(x, i, s, rg))
                                        continue;
                                float acc[1][4][4] = {};
#pragma unroll 1
                                for (uint32_t k = 0; k < tiles; k++) {
                                        many_in<Q, 1> in;
                                        Q w;
                                        in.load(at, 0); /* before the tile is waited for */
                                        const tile_src src = matvec_ring<TYPE, RING>::source(next());
#pragma unroll
                                        for (int q = 0; q < 4; q++) {
                                                if (q > 0)
                                                        in.load(at, q);
                                                many_quarter<Q, 1>(src, w, lane, q, acc, in);
                                        }
                                        at.move(1);
                                        __syncwarp();
                                        ask(); /* into the place just read */
                                }
                                at.move(-(int)tiles);
                                float *to = sums + ((i * beside + team) * a.ks + part) * wide + 2 * t * 16 + g;
#pragma unroll
                                for (int k = 0; k < 4; k++)
                                        to[(k & 1) * 16 + 8 * (k >> 1)] =
                                                __fmul_rn(__fadd_rn(__fadd_rn(acc[0][0][k], acc[0][1][k]), __fadd_rn(acc[0][2][k], acc[0][3][k])), INV);
                        }
                }
                __syncthreads(); /* the only one of a unit with two columns: the next one's sums have another place */
                if (DOWN) {
                        for (uint32_t e = threadIdx.x; e < n * MOE_BLOCK_RG * 16; e += blockDim.x) {
                                const uint32_t r = e % (MOE_BLOCK_RG * 16), c = e / (MOE_BLOCK_RG * 16), row = x * MOE_BLOCK_RG * 16 + r;
                                if (row < a.rows)
                                        a.y[(size_t)pairs[c] * a.rows + row] = moe_sum(a, a.side[0], sums + c * 16, wide, r >> 4, r & 15, expert, row);
                        }
                } else {
                        for (uint32_t c = warp; c < n; c += warps)
                                moe_put_glu(a, sums + c * 16, wide, x, expert, pairs[c]);
                }
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
}

/*
 * Down row by row: block (row group, row); its n_used * ks parts are shared among the warps. Bounds of more threads than it has: 72
 * registers, so that twelve warps find room beside a block of gate/up, or twice on a multiprocessor.
 */
template <int TYPE> __global__ void __launch_bounds__(896, 1) moe_down_sum_kernel(const moe_product a) {
        typedef qtype<TYPE> Q;
        typedef moe_shape<TYPE> SH;
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
        const uint32_t row = blockIdx.x * 16 + threadIdx.x;
        const bool mine = threadIdx.x < 16 && row < a.rows;
        const float before = a.add_to && mine ? __ldcg(a.add_to + row) : 0;
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
        if (warp == 0) {
                float v = 0, sum = 0;
                if (mine) {
                        for (uint32_t k = 0; k < a.n_used; k++)
                                v = __fmaf_rn(a.weight[row0 + k], one[k * 16 + threadIdx.x], v);
                        a.y[blockIdx.y * a.y_stride + row] = v;
                }
                if (a.add_to) { /* one row: a block has a group of it */
                        if (mine) {
                                sum = __fmaf_rn(a.add_scale, v, before);
                                a.add_to[row] = sum;
                        }
                        sum = norm_group1(sum);
                        if (lane == 0)
                                a.squares[blockIdx.x] = sum;
                }
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
}

template <int TYPE> static size_t moe_alone_smem(const moe_product &a) {
        typedef moe_shape<TYPE> SH;
        return (size_t)moe_warps(a, SH::WARPS) * SH::RING * SH::STAGE + (size_t)MOE_BLOCK_RG * a.ks * 16 * sizeof(float);
}
/* No more than are needed for as many rounds. */
template <int TYPE> static uint32_t moe_sum_warps(const moe_product &a) {
        const uint32_t tasks = a.n_used * a.ks;
        const uint32_t rounds = (tasks - 1) / moe_shape<TYPE>::WARPS + 1;
        return DIV_ROUND_UP(tasks, rounds);
}
template <int TYPE> static size_t moe_sum_smem(const moe_product &a, uint32_t warps) {
        return (size_t)warps * moe_shape<TYPE>::RING * moe_shape<TYPE>::STAGE + (size_t)a.n_used * (a.ks + 1) * 16 * sizeof(float);
}

/* Blocks of 32 middle columns, all of the image's. */
static inline uint32_t moe_middle(const moe_product &a) { return a.image ? a.image_kpad / 32 : DIV_ROUND_UP(a.rows, 32u); }

template <int TYPE> static int moe_alone(struct cuda_dev *d, const moe_product &a, const char *what) {
        const size_t smem = moe_alone_smem<TYPE>(a);
        CUDA_TRY(d, cudaFuncSetAttribute(moe_alone_kernel<TYPE>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem), what);
        return launch(d, what, moe_alone_kernel<TYPE>, dim3(moe_middle(a), a.pairs), moe_warps(a, moe_shape<TYPE>::WARPS) * 32, smem, a);
}

/* As many blocks as are resident. */
template <int TYPE, bool DOWN> static int moe_many(struct cuda_dev *d, const moe_product &a, const char *what) {
        const uint32_t threads = moe_warps(a, MOE_MANY_WARPS) * 32, per_job = DOWN ? DIV_ROUND_UP(a.side[0].n_rg, (uint32_t)MOE_BLOCK_RG) : moe_middle(a);
        const size_t smem = moe_many_smem<TYPE>(a, a.pairs);
        int per_sm;
        CUDA_TRY(d, cudaFuncSetAttribute(moe_kernel<TYPE, DOWN>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem), what);
        CUDA_TRY(d, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, moe_kernel<TYPE, DOWN>, (int)threads, smem), what);
        const uint32_t blocks = MIN(MIN(a.pairs, moe_jobs(a, a.pairs)) * per_job, d->n_sm * (uint32_t)MAX(per_sm, 1));
        return launch(d, what, moe_kernel<TYPE, DOWN>, blocks, threads, smem, a, per_job);
}

template <int TYPE> static int moe_type(struct cuda_dev *d, enum moe_form form, const moe_product &a) {
        switch (form) {
        case MOE_GATE_UP: return moe_many<TYPE, false>(d, a, "experts, gate and up");
        case MOE_GATE_UP_ALONE: return moe_alone<TYPE>(d, a, "experts, gate and up (row by row)");
        case MOE_DOWN: return moe_many<TYPE, true>(d, a, "experts, down");
        case MOE_FITS:
                return MAX(MAX(moe_alone_smem<TYPE>(a), moe_many_smem<TYPE>(a, MOE_PAIRS)), moe_sum_smem<TYPE>(a, moe_sum_warps<TYPE>(a))) + 1024 <= d->smem_block
                               ? 0 : -ENOSPC;
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
