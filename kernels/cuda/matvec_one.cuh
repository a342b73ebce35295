/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A product with one activation, the step of a single sequence: memory is to be
 * the limit, so each lane's work counts.
 *
 * A tile is multiplied by one_tile() (tile.cuh), so every lane scales what nobody
 * else does. The order of the sum is matvec.cuh's.
 *
 * The activation's image lies in shared memory, each warp's share copied by the
 * warp itself. The warps that multiply never wait for each other: their sums go
 * to one more warp, which adds them and writes the results, ONE_SUMS units behind
 * at most. Whoever wrote sums, or has read them, says so for itself at the
 * barrier: an arrival is then known to order them without what a warp's lanes
 * know of each other.
 */

#include "kernels/cuda/matvec.cuh"

template <class Q> struct one_image { /* per tile */
        static constexpr uint32_t BYTES = 256 + 32 + (Q::HAS_MIN ? 64 : 0);
};

/* A warp's share of the image, copied by itself: codes, scales, sums; by mail, as soon as it is there. (Of a norm's: norm.cuh.) */
template <class Q> static __device__ __forceinline__ void one_share(const matvec_args &a, const matvec_place &p, size_t slot, uint8_t *x) {
        constexpr uint32_t XB = one_image<Q>::BYTES;
        uint8_t *xd = x + a.per_warp * 256, *xs = xd + a.per_warp * 32;
        const uint32_t *const mail = mail_box(a.mail);
        const uint8_t *from = mail ? (const uint8_t *)mail : a.image + slot, *from_d = from + a.kpad + p.sb0 * 32,
                      *from_s = from + a.kpad + a.kpad / 8 + p.sb0 * 64;
        const uint32_t pieces = p.tiles * (XB / 16), turned = mail ? MAIL_CODES : 0;
        uint32_t tries = 0;

        from += p.sb0 * 256;
        if (mail) /* one word, likely the last to come, lest all are asked for in vain */
                mail_wait((const uint32_t *)from_d + p.tiles * 8 - 1, tries);
        for (uint32_t i0 = p.lane; i0 < pieces; i0 += 128) {
                uint4 v[4];
                for (;;) {
#pragma unroll
                        for (int k = 0; k < 4; k++) {
                                const uint32_t i = i0 + 32 * k;
                                const uint8_t *at = i < p.tiles * 16 ? from + i * 16 : i < p.tiles * 18 ? from_d + (i - p.tiles * 16) * 16
                                                                                                    : from_s + (i - p.tiles * 18) * 16;
                                v[k] = i < pieces ? mail_look4(at) : make_uint4(0, 0, 0, 0);
                        }
                        if (!mail || (mail_there(v[0]) && mail_there(v[1]) && mail_there(v[2]) && mail_there(v[3])))
                                break;
                        mail_again(tries);
                }
#pragma unroll
                for (int k = 0; k < 4; k++) {
                        const uint32_t i = i0 + 32 * k;
                        uint8_t *to = i < p.tiles * 16 ? x + i * 16 : i < p.tiles * 18 ? xd + (i - p.tiles * 16) * 16 : xs + (i - p.tiles * 18) * 16;
                        const uint32_t m = i < p.tiles * 16 ? turned : 0;
                        if (i < pieces)
                                *(uint4 *)to = make_uint4(v[k].x ^ m, v[k].y ^ m, v[k].z ^ m, v[k].w ^ m);
                }
        }
        __syncwarp();
}

enum { ONE_SUMS = 4, ONE_WRITERS = 8 /* lanes of a warp that have sums */ };
/* mbarriers in shared memory (PTX ISA, "mbarrier"): addresses are shared ones. */
static __device__ __forceinline__ void bar_init(uint32_t bar, uint32_t count) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
static __device__ __forceinline__ void bar_arrive(uint32_t bar) {
        asm volatile("{ .reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0]; }" ::"r"(bar) : "memory");
}
static __device__ __forceinline__ void bar_wait(uint32_t bar, uint32_t parity) {
        uint32_t done;
        do {
#if __CUDA_ARCH__ >= 900
                asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                             : "=r"(done) : "r"(bar), "r"(parity) : "memory");
#else
                asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                             : "=r"(done) : "r"(bar), "r"(parity) : "memory");
#endif
        } while (!done);
}

/* DEEP: as many tiles as leave room for another block of that kind, which is then the next product's. */
template <int TYPE, bool DEEP> struct one_shape {
        static constexpr int STAGE = tile_stage<TYPE>::BYTES;
        static constexpr int RING_PLAIN = STAGE > 3500 ? 2 : STAGE > 2000 ? 3 : STAGE > 1400 ? 4 : 5;
        static constexpr int RING_DEEP = 11600 / STAGE > RING_PLAIN ? 11600 / STAGE : RING_PLAIN + 1;
        static constexpr int RING = DEEP ? RING_DEEP : RING_PLAIN;
        static constexpr uint32_t XB = one_image<qtype<TYPE>>::BYTES;
};

template <int TYPE, bool DEEP> __global__ void __launch_bounds__(288, 2) matvec_one_kernel(const __grid_constant__ matvec_args a) {
        typedef qtype<TYPE> Q;
        typedef one_shape<TYPE, DEEP> SH;
        extern __shared__ __align__(16) uint8_t sm[]; /* [warps] rings, [warps] shares of the image, [ONE_SUMS][per_unit][ks][16] sums */
        __shared__ __align__(8) uint64_t bars[2 * ONE_SUMS]; /* sums are there; sums have been read */
        const uint32_t warps = (blockDim.x >> 5) - 1;
        const matvec_place p(a, warps);
        const uint32_t g = p.lane >> 2, t = p.lane & 3, sums = a.per_unit * a.ks * 16;
        uint8_t *shares = sm + warps * SH::RING * SH::STAGE;
        float *red_all = (float *)(shares + warps * a.per_warp * SH::XB);
        const uint32_t full = (uint32_t)__cvta_generic_to_shared(bars), empty = full + 8 * ONE_SUMS;
        const uint8_t *base = sm + p.warp * SH::RING * SH::STAGE;
        const bool adds = p.warp == warps, lists = a.lists;
        uint32_t expert = 0, c0 = 0, n = 1;
        matvec_ring<TYPE, SH::RING> ring;
        norm_share<Q::HAS_MIN> norm;

        pdl_next();
        if (!lists && !adds) { /* weights: before the wait */
                ring.start(a, p, base, 0);
                if (a.norm.x)
                        norm.start(a.norm, p.sb0 * 256, p.tiles, p.lane);
        }
        if (threadIdx.x < 2 * ONE_SUMS)
                bar_init(full + 8 * threadIdx.x, threadIdx.x < ONE_SUMS ? warps * ONE_WRITERS : 32);
        __syncthreads();
        if (mail_box(a.mail) && !adds) /* all that they read comes by mail, and they write nothing; the warp that adds waits, in every block (mail.cuh) */
                pdl_crumb();
        else
                pdl_wait();
        if (lists) {
                if (!matvec_job(a, expert, c0, n) || n == 0)
                        return;
                if (!adds)
                        ring.start(a, p, base, expert);
        }

        if (adds) {
                for (uint32_t i = 0, unit = blockIdx.x; unit < a.n_unit; i++, unit += gridDim.x) {
                        const uint32_t b = i % ONE_SUMS;
                        const float *red = red_all + b * sums, before = matvec_before(a, unit);
                        bar_wait(full + 8 * b, i / ONE_SUMS & 1);
                        matvec_put_unit(a, red, 16, unit, expert, c0, before);
                        bar_arrive(empty + 8 * b);
                }
                return;
        }

        uint8_t *const x = shares + p.warp * a.per_warp * SH::XB, *const xd = x + a.per_warp * 256, *const xs = xd + a.per_warp * 32;
        if (a.norm.x) /* the last block, which has no more units than others, keeps it */
                norm.make(a.norm, p.sb0 * 256, p.tiles, p.lane, blockIdx.x + 1 == gridDim.x && p.team == 0, x, xd, xs);
        else
                one_share<Q>(a, p, matvec_slot(a, expert, c0), x);
        for (uint32_t i = 0, unit = blockIdx.x; unit < a.n_unit; i++, unit += gridDim.x) {
                const uint32_t b = i % ONE_SUMS, end = a.glu ? a.per_unit : min(a.per_unit, a.n_rg - unit * a.per_unit);
                float *red = red_all + b * sums + p.part * 16;
                if (i >= ONE_SUMS)
                        bar_wait(empty + 8 * b, (i / ONE_SUMS - 1) & 1);
                for (uint32_t s = p.team; s < end; s += p.teams) {
                        float acc[2] = {0, 0};
                        const uint8_t *xk = x, *dk = xd, *sk = xs;
#pragma unroll 1
                        for (uint32_t k = 0; k < p.tiles; k++, xk += 256, dk += 32, sk += 64) {
                                const tile_src src = ring.next(base);
                                Q w;
                                float sc[2][4], mn[2][4];
                                w.template load_codes<true>(src, p.lane);
#pragma unroll
                                for (int r = 0; r < 2; r++)
                                        Q::pair(src, g, t, r, sc[r], mn[r]);
                                __syncwarp();
                                ring.ask(a, p, expert); /* into the place just read */
                                one_tile(w, sc, mn, xk, dk, sk, g, t, acc);
                        }
                        constexpr float INV = Q::SUPER ? 1.0f : 1.0f / Q::MUL; /* a power of two: exact at the end too */
#pragma unroll
                        for (int r = 0; r < 2; r++) {
                                acc[r] = __fadd_rn(acc[r], __shfl_xor_sync(~0u, acc[r], 1));
                                acc[r] = __fadd_rn(acc[r], __shfl_xor_sync(~0u, acc[r], 2));
                                if (t == 0)
                                        red[s * a.ks * 16 + g + 8 * r] = __fmul_rn(acc[r], INV);
                        }
                }
                if (t == 0)
                        bar_arrive(full + 8 * b);
        }
}

/*
 * Of attention's output, one block a multiprocessor: a short product, at most two units for each, which adds to the residual. Gate and up,
 * behind it, then have one of theirs beside it everywhere. Where it was measured: 1.1% of a step of 8B Q4_0, nothing of Q4_K
 * (cuda-one-column.md, "Blocks beside each other").
 */
template <int TYPE> static bool one_block(const struct cuda_dev *d, const matvec_args &a) {
        const struct matvec_choice &h = a.how;
        return TYPE == K_Q4_0 && d->sm90 && h.groups == 0 && h.per_sm == 0 && h.grid == CUDA_GRID_RESIDENT && h.deep == 0 && a.add_to && !a.norm.x &&
               a.per_warp <= 2 && a.n_unit > d->n_sm && a.n_unit <= 2 * d->n_sm;
}

/* 1: this card's shared memory is too small for it. */
template <int TYPE, bool DEEP> static int matvec_one_run(struct cuda_dev *d, const matvec_args &a, uint32_t warps, uint32_t jobs) {
        typedef one_shape<TYPE, DEEP> SH;
        const size_t smem = (size_t)warps * (SH::RING * SH::STAGE + a.per_warp * SH::XB) + ONE_SUMS * (size_t)a.per_unit * a.ks * 16 * sizeof(float);
        /* Two blocks where both fit; on a large multiprocessor the next product's then begin to load while these end. */
        const uint32_t per_sm = a.how.per_sm != 1 && !one_block<TYPE>(d, a) && smem + 128 <= matvec_budget(d, 2) ? 2 : 1;
        if (smem + 128 > matvec_budget(d, 1))
                return 1;
        CUDA_TRY(d, cudaFuncSetAttribute(matvec_one_kernel<TYPE, DEEP>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem), "product");
        return launch(d, "product (int8, 1 column)", matvec_one_kernel<TYPE, DEEP>, matvec_grid(d, a, per_sm, jobs, 1), (warps + 1) * 32, smem, a);
}
