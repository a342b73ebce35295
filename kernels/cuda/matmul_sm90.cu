/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of role P on Hopper: the same product as matmul.cu with wgmma
 * (m64nNk16, both operands in shared memory), fed by the tensor copy engine.
 *
 * A block: 128 x rows by 128 weight rows, K in steps of 64. A ninth warp fills a ring
 * of stages (full/empty barriers), two warpgroups have 64 rows each. K order is
 * that of the instruction, 16 at a time, for any number of rows.
 */
#include <errno.h>

#include "kernels/cuda/wgmma.cuh"

CUDA_FAMILY(matmul_sm90)

enum { HM = 128, BN = 128, H_THREADS = 288 };

template <int STAGES>
__global__ void __launch_bounds__(H_THREADS, 2)
matmul_sm90_kernel(const __grid_constant__ CUtensorMap mx, const __grid_constant__ CUtensorMap mw, const struct matmul p) {
#ifdef HAVE_WGMMA
        extern __shared__ __align__(1024) uint8_t raw[];
        const uint32_t base = (smem_of(raw) + 1023) & ~1023u;
        constexpr uint32_t XB = HM * HK * 2, WB = BN * HK * 2;
        __shared__ __align__(8) uint64_t bars[2 * STAGES];
        const uint32_t full = smem_of(bars), empty = full + 8 * STAGES;
        const uint32_t tid = threadIdx.x, wg = tid >> 7, steps = p.k / HK;
        uint32_t m0 = blockIdx.x * HM, m_end = p.m, expert = 0;
        const uint32_t n0 = blockIdx.y * BN;

        if (tid == 0) {
                for (int s = 0; s < STAGES; s++) {
                        bar_init(full + 8 * s, 1);
                        bar_init(empty + 8 * s, 2);
                }
                asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        pdl_next();
        __syncthreads();
        pdl_wait();
        if (p.n_group) {
                expert = p.group0 + blockIdx.z;
                m0 += p.group_start[expert];
                m_end = p.group_start[expert + 1];
        }
        if (m0 >= m_end)
                return;
        if (wg == 2) {
                if (tid == 256) {
                        const int32_t wr = (int32_t)(blockIdx.z * p.n + n0);
                        for (uint32_t s = 0; s < steps; s++) {
                                uint32_t st = s % STAGES, at = base + st * (XB + WB), bar = full + 8 * st;
                                if (s >= STAGES)
                                        bar_wait(empty + 8 * st, (s / STAGES - 1) & 1);
                                bar_expect(bar, XB + WB);
                                tma_2d(at, &mx, (int32_t)(s * HK), (int32_t)m0, bar);
                                tma_2d(at + XB, &mw, (int32_t)(s * HK), wr, bar);
                        }
                }
                return;
        }
        float c[64];
#pragma unroll
        for (int i = 0; i < 64; i++)
                c[i] = 0;
        for (uint32_t s = 0; s < steps; s++) {
                uint32_t st = s % STAGES, at = base + st * (XB + WB);
                bar_wait(full + 8 * st, (s / STAGES) & 1);
                wgmma_stage(c, wg_desc(at + wg * 64 * 128), wg_desc(at + XB));
                /* the step before has been read: its stage may be filled again */
                if (s > 0 && (tid & 127) == 0)
                        bar_arrive(empty + 8 * ((s - 1) % STAGES));
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");

        wgmma_store<BN>(p, c, m0 + wg * 64, m_end, n0, expert);
#endif
}

template <int STAGES> static int matmul_run(struct cuda_dev *d, const struct matmul *m) {
        const size_t smem = (size_t)STAGES * (HM + BN) * HK * 2 + 1024;
        CUtensorMap mx, mw;
        int r;

        if ((r = tensor_map(d, &mx, m->x, m->n_group ? m->m_all : m->m, m->k, image_slot(m->k_image), HM)) < 0 ||
            (r = tensor_map(d, &mw, m->w, (uint64_t)m->n * MAX(m->n_group, 1u), m->w_cols, m->w_stride * 2, BN)) < 0)
                return r;
        CUDA_TRY(d, cudaFuncSetAttribute(matmul_sm90_kernel<STAGES>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem), "matrix product");
        return launch(d, "matrix product (wgmma)", matmul_sm90_kernel<STAGES>,
                      dim3(DIV_ROUND_UP(m->m, (uint32_t)HM), DIV_ROUND_UP(m->n, (uint32_t)BN), MAX(m->n_group, 1u)), H_THREADS, smem, mx, mw, *m);
}

int cuda_matmul_sm90(struct cuda_dev *d, const struct matmul *m) {
        if (m->k % HK)
                return -EINVAL;
        return matmul_run<3>(d, m);
}
