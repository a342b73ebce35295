/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of role P on Hopper from the packed weights themselves: what dequant.cu and matmul_sm90.cu do in two kernels,
 * without f16 weights in global memory. Same instruction, same roles of its operands, same K order and the same f16
 * weights (direct.cuh): the same bits.
 *
 * A block: 128 rows of x by DN weight rows, K in steps of 64. A warp decodes the 16 weight rows of one row group to a
 * stage in shared memory (DN = 64, for few blocks: two warps share a row group); codes come through registers, loaded two or
 * three steps ahead, scales through a small ring. While wgmma works on a step, asynchronously, the same warps decode the
 * next. A warpgroup multiplies 64 rows of x; one without rows only decodes. Each fetches its own rows of x by the tensor
 * copy engine. Several matrices of one x and type share a launch.
 *
 * Of the decoded stages there are three: when a warp is past step s's barrier, both warpgroups have waited for their
 * wgmma of s - 2, and s + 1 overwrites what that one read.
 */
#include <errno.h>

#include "kernels/cuda/direct.cuh"
#include "kernels/cuda/wgmma.cuh"

CUDA_FAMILY(matmul_direct)

enum { DM = 128, D_THREADS = 256, STAGES = 3, X_BYTES = DM * HK * 2 };
template <int DN> static constexpr int direct_smem() { return STAGES * (X_BYTES + DN * HK * 2) + 1024; }

struct direct_matrix {
        plane_base w;
        uint32_t n_rg, tile_end; /* tile_end: number of the first block (y) that is not its own */
        uint32_t n;
        const float *w_scale, *bias;
        float *y;
        size_t y_stride;
};
struct direct_args {
        struct matmul p; /* what they share */
        size_t expert_stride;
        uint32_t n_sb, steps;
        direct_matrix out[K_LINEAR_MAX];
};

#ifdef HAVE_WGMMA
static __device__ __forceinline__ void st8(uint32_t at, uint32_t a, uint32_t b) {
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at), "r"(a), "r"(b) : "memory");
}
/* The step by the decoder's arithmetic, clamped to f16's range; rare. */
template <int T, int I> static __device__ __forceinline__ void direct_clamped(const tile_src &t, uint32_t lane, int q, uint32_t to, uint32_t odd) {
        qtype<T> w;
        w.template load_codes<false>(t, lane, q & ~1);
        if (q & 1)
                w.template load_codes<false>(t, lane, q);
        w.template load_scales<false>(t, lane);
#pragma unroll
        for (int i = 0; i < 2; i++) {
                uint32_t c[4];
                w.codes(2 * q + i, c);
#pragma unroll
                for (int r = 0; r < 2; r++)
#pragma unroll
                        for (int h = 0; h < 2 && (I == 2 || i == (int)odd); h++) {
                                float v[4];
                                tile_value(w, 2 * q + i, h, r, c[2 * h + r], v);
#pragma unroll
                                for (int j = 0; j < 4; j++)
                                        v[j] = fminf(fmaxf(v[j], -65504.0f), 65504.0f);
                                st8((to ^ ((i ^ odd) * 64 + h * 32)) + r * 1024, pack_h2(v[0], v[1]), pack_h2(v[2], v[3]));
                        }
        }
}
#endif

#ifdef HAVE_WGMMA
/* The n-th tile of DM rows, all experts' one after the other; by each warp for itself. False: there are fewer. */
static __device__ __forceinline__ bool row_tile(const struct matmul &p, uint32_t n, uint32_t *expert, uint32_t *m0, uint32_t *m_end) {
        const uint32_t lane = threadIdx.x & 31;

        for (uint32_t e0 = 0; e0 < p.n_group; e0 += 32) {
                const uint32_t e = e0 + lane, start = p.group_start[min(e, p.n_group)], end = p.group_start[min(e + 1, p.n_group)];
                const uint32_t own = (end - start + DM - 1) / DM;
                uint32_t sum = own; /* of this expert and those before it */
#pragma unroll
                for (int s = 1; s < 32; s *= 2) {
                        const uint32_t v = __shfl_up_sync(~0u, sum, s);
                        sum += lane >= (uint32_t)s ? v : 0;
                }
                const uint32_t all = __shfl_sync(~0u, sum, 31);
                if (n < all) {
                        const int at = __ffs(__ballot_sync(~0u, n < sum)) - 1;
                        *expert = e0 + at;
                        *m0 = __shfl_sync(~0u, start + (n - (sum - own)) * DM, at);
                        *m_end = __shfl_sync(~0u, end, at);
                        return true;
                }
                n -= all;
        }
        return false;
}
#endif

template <int T, int DN> __global__ void __launch_bounds__(D_THREADS, 2)
matmul_direct_kernel(const __grid_constant__ CUtensorMap mx, const direct_args a) {
#ifdef HAVE_WGMMA
        constexpr tile_bytes B = tile_bytes_of<T>();
        constexpr uint32_t SB = B.scale + B.super, W_BYTES = DN * HK * 2;
        constexpr int I = DN == 128 ? 2 : 1; /* blocks of 32 columns that a warp decodes of a step */
        extern __shared__ __align__(1024) uint8_t raw[];
        __shared__ __align__(16) uint8_t scales[8][2][SB];
        __shared__ __align__(8) uint64_t bars[2][STAGES];
        const struct matmul &p = a.p;
        const uint32_t tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, t = lane & 3;
        const uint32_t wg = __shfl_sync(~0u, tid >> 7, 0);
        const uint32_t base = (smem_of(raw) + 1023) & ~1023u, xs = base + wg * (X_BYTES / 2), ws = base + STAGES * X_BYTES;
        const uint32_t full = smem_of(bars[wg]), rg_in = warp % (DN / 16);
        const bool leader = (tid & 127) == 0;
        uint32_t m0 = 0, m_end = p.m, expert = 0;
        size_t expert_off = 0;
        direct_lane dl;
        direct<T> w;

        dl.g = g;
        dl.odd = (g ^ warp / (DN / 16)) & 1;
        uint32_t at = 0, tile_y = blockIdx.y;
        while (blockIdx.y >= a.out[at].tile_end)
                tile_y = blockIdx.y - a.out[at++].tile_end;
        const direct_matrix &o = a.out[at];
        const uint32_t n0 = tile_y * DN, rg = tile_y * (DN / 16) + rg_in;
        const bool on = rg < o.n_rg;
        const size_t tile0 = (size_t)rg * a.n_sb;
        auto tile = [&](uint32_t sb) { return tile_at(o.w, expert_off, tile0 + sb); };
        const uint8_t *code, *high; /* this lane's part of the tile that is decoded */
        auto at_first = [&]() {
                const tile_src s = tile(0);
                code = s.code + lane * 16;
                high = s.high + lane * 16;
#pragma unroll
                for (int q = 0; q < direct<T>::STEPS; q++)
                        w.template load<I>(code, high, dl.odd, q);
        };
        if (tid == 0) {
                for (int s = 0; s < 2 * STAGES; s++)
                        bar_init(smem_of(bars) + 8 * s, 1);
                asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        pdl_next();
        __syncthreads();
        if (on && !p.n_group)
                at_first();
        pdl_wait();
        if (p.n_group) {
                if (!row_tile(p, blockIdx.x, &expert, &m0, &m_end))
                        return;
                expert_off = expert * a.expert_stride;
                if (on)
                        at_first();
        } else {
                m0 = blockIdx.x * DM;
        }

        /* scales and super scales of tile sb, 16 bytes by each of the first lanes */
        auto fetch_scales = [&](uint32_t sb) {
                if (lane * 16 < SB) {
                        const tile_src s = tile(sb);
                        const uint8_t *scale = lane * 16 + 16 > B.scale ? s.super + (lane * 16 - B.scale) : s.scale + lane * 16;
                        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem_of(scales[warp][sb & 1]) + lane * 16), "l"(scale) : "memory");
                }
                asm volatile("cp.async.commit_group;" ::: "memory");
        };
        /* where this lane's columns of block kbl(0), half 0, row g lie; the swizzle is an exclusive or */
        const uint32_t lane_to = rg_in * 2048 + g * 128 + ((((dl.odd << 2) + (t >> 1)) ^ g) << 4) + (t & 1) * 8;

        uint32_t stage = 0, phase = 0; /* of this step */
        const bool active = m0 + wg * 64 < m_end;
        float c[DN / 2];
#pragma unroll
        for (int i = 0; i < DN / 2; i++)
                c[i] = 0;
        auto fetch_x = [&](uint32_t s, uint32_t st) {
                const uint32_t bar = full + 8 * st;
                bar_expect(bar, X_BYTES / 2);
                tma_2d(xs + st * X_BYTES, &mx, (int32_t)(s * HK), (int32_t)(m0 + wg * 64), bar);
        };
        if (active && leader)
                for (uint32_t s = 0; s < STAGES && s < a.steps; s++)
                        fetch_x(s, s);
        if (on)
                fetch_scales(0);
        for (uint32_t sb = 0; sb < a.n_sb; sb++) {
                const bool more = on && sb + 1 < a.n_sb;
                if (on) {
                        asm volatile("cp.async.wait_all;" ::: "memory");
                        __syncwarp();
                        dl.scale = scales[warp][sb & 1];
                        dl.super = dl.scale + B.scale;
                        if (more)
                                fetch_scales(sb + 1);
                }
#pragma unroll
                for (int q = 0; q < 4; q++) {
                        const uint32_t s = sb * 4 + q;
                        if (s >= a.steps)
                                break;
                        const uint32_t ws_at = ws + stage * W_BYTES, to = ws_at + lane_to;
                        if (on) {
                                if (__all_sync(~0u, direct<T>::plain(dl, q)))
                                        w.template decode<I>(dl, q, [&](int i, int r, int h, uint32_t v0, uint32_t v1) {
                                                st8((to ^ (i * 64 + h * 32)) + r * 1024, v0, v1);
                                        });
                                else
                                        direct_clamped<T, I>(tile(sb), lane, q, to, dl.odd);
                                if (direct<T>::STEPS == 2 && q < 2)
                                        w.template load<I>(code, high, dl.odd, q + 2);
                                if (direct<T>::STEPS == 2 && more && q >= 2)
                                        w.template load<I>(code + B.code, high + B.high, dl.odd, q - 2);
                                if (direct<T>::STEPS == 4 && more && q >= 1)
                                        w.template load<I>(code + B.code, high + B.high, dl.odd, q - 1);
                                if (direct<T>::STEPS == 4 && more && q == 3)
                                        w.template load<I>(code + B.code, high + B.high, dl.odd, 3);
                        }
                        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                        __syncthreads();
                        if (active) {
                                bar_wait(full + 8 * stage, phase);
                                wgmma_stage(c, wg_desc(xs + stage * X_BYTES), wg_desc(ws_at));
                                /* step s - 1 has been read: its stage may be filled again */
                                if (leader && s > 0 && s - 1 + STAGES < a.steps)
                                        fetch_x(s - 1 + STAGES, stage ? stage - 1 : STAGES - 1);
                        }
                        if (++stage == STAGES) {
                                stage = 0;
                                phase ^= 1;
                        }
                }
                code += B.code;
                high += B.high;
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        if (active) {
                struct matmul one = p;
                one.n = o.n;
                one.w_scale = o.w_scale;
                one.bias = o.bias;
                one.y = o.y;
                one.y_stride = o.y_stride;
                wgmma_store<DN>(one, c, m0 + wg * 64, m_end, n0, expert);
        }
#endif
}

template <int T, int DN> static int direct_launch(struct cuda_dev *d, const CUtensorMap &mx, const direct_args &a, dim3 grid) {
        CUDA_TRY(d, cudaFuncSetAttribute(matmul_direct_kernel<T, DN>, cudaFuncAttributeMaxDynamicSharedMemorySize, direct_smem<DN>()),
                 "matrix product");
        return launch(d, "matrix product (packed)", matmul_direct_kernel<T, DN>, grid, D_THREADS, direct_smem<DN>(), mx, a);
}

/* Numbers of blocks in y, in all and up to each matrix's end. */
static uint32_t direct_tiles(direct_args *a, uint32_t n_out, uint32_t dn) {
        uint32_t end = 0;
        for (uint32_t i = 0; i < n_out; i++)
                a->out[i].tile_end = end += DIV_ROUND_UP(a->out[i].n, dn);
        return end;
}

template <int T> static int direct_run(struct cuda_dev *d, const CUtensorMap &mx, direct_args *a, uint32_t n_out, dim3 grid) {
        grid.y = direct_tiles(a, n_out, 128);
        if ((size_t)grid.x * grid.y > d->n_sm)
                return direct_launch<T, 128>(d, mx, *a, grid);
        grid.y = direct_tiles(a, n_out, 64);
        return direct_launch<T, 64>(d, mx, *a, grid);
}

/* Measured (docs/kernels/cuda-products.md): 4-bit codes with minima or 6-bit codes cost the warps twice as much. */
static uint32_t direct_rows(enum k_type t, bool experts) { return t != K_Q4_K && t != K_Q6_K ? 1024 : experts ? 48 : 512; }

bool cuda_direct_takes(const struct cuda_dev *d, const struct k_weight *w, uint32_t n_rows) {
        switch (w->type) {
#define X(T) case T:
                CUDA_FOR_DIRECT_TYPES(X)
#undef X
                return d->sm90 && w->layout == K_LAYOUT_CUDA && n_rows <= direct_rows(w->type, w->n_expert > 1);
        default: return false;
        }
}

int cuda_matmul_direct(struct cuda_dev *d, const struct linear_out *out, uint32_t n_out, const struct matmul *m) {
        direct_args a = {};
        CUtensorMap mx;
        int r;

        a.p = *m;
        a.expert_stride = out->w.expert_stride;
        a.n_sb = m->k / CUDA_TILE_COLS;
        a.steps = DIV_ROUND_UP(out->w.cols, (uint32_t)HK); /* columns behind these are zeros */
        for (uint32_t i = 0; i < n_out; i++) {
                const struct linear_out *o = &out[i];
                a.out[i] = {planes_of(o->w.type, o->w.data, o->w.rows, o->w.cols), DIV_ROUND_UP(o->w.rows, (uint32_t)CUDA_TILE_ROWS), 0,
                            o->w.rows, o->w.scale, o->bias, o->y, o->y_stride};
        }
        /* As many row tiles as experts can have: of each of them the last one may be cut. */
        const dim3 grid(m->n_group ? MIN(m->n_group, m->m_all) + m->m_all / DM : DIV_ROUND_UP(m->m, (uint32_t)DM));
        if ((r = tensor_map(d, &mx, m->x, m->n_group ? m->m_all : m->m, m->k, image_slot(m->k_image), DM / 2)) < 0)
                return r;
        switch (out->w.type) {
#define X(T) case T: return direct_run<T>(d, mx, &a, n_out, grid);
                CUDA_FOR_DIRECT_TYPES(X)
#undef X
        default: return -EINVAL;
        }
}
