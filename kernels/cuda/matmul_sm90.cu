/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of role P on Hopper: the same product as matmul.cu with wgmma
 * (m64nNk16, both operands in shared memory), fed by the tensor copy engine.
 *
 * A block: 128 x rows by BN weight rows, K in steps of 64. A ninth warp fills a ring
 * of stages (full/empty barriers), two warpgroups have 64 rows each. K order is
 * that of the instruction, 16 at a time, for any BN and any number of rows.
 * Sources: PTX ISA, wgmma and cp.async.bulk.tensor; shared layout: 128-byte
 * swizzle, which the tensor maps and the descriptors name alike.
 */
#include <cuda.h>
#include <errno.h>

#include "kernels/cuda/cuda.cuh"

CUDA_FAMILY(matmul_sm90)

enum { HM = 128, HK = 64, H_THREADS = 288 };

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAVE_WGMMA 1
#endif

static __device__ __forceinline__ uint32_t smem_of(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
#ifdef HAVE_WGMMA
static __device__ __forceinline__ void bar_init(uint32_t bar, uint32_t n) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(n));
}
static __device__ __forceinline__ void bar_expect(uint32_t bar, uint32_t bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void bar_arrive(uint32_t bar) {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
static __device__ __forceinline__ void bar_wait(uint32_t bar, uint32_t parity) {
        asm volatile("{\n.reg .pred p;\nagain:\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                     "@p bra done;\nbra again;\ndone:\n}" ::"r"(bar), "r"(parity) : "memory");
}
static __device__ __forceinline__ void tma_2d(uint32_t to, const CUtensorMap *map, int32_t x, int32_t y, uint32_t bar) {
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                     ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
/* K-major operand, rows of 128 bytes, 128-byte swizzle, groups of 8 rows 1024 bytes apart. */
static __device__ __forceinline__ uint64_t wg_desc(uint32_t at) {
        return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)64 << 32 | (uint64_t)1 << 62;
}

template <int N> static __device__ __forceinline__ void wgmma(float (&c)[N / 2], uint64_t a, uint64_t b, int add);
template <> __device__ __forceinline__ void wgmma<128>(float (&c)[64], uint64_t a, uint64_t b, int add) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                     "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                     "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63},"
                     " %64, %65, p, 1, 1, 0, 0;\n}\n"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
                       "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
                       "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
                       "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]),
                       "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]),
                       "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
                       "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
                       "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
                     : "l"(a), "l"(b), "r"(add));
}
#endif

template <int BN, int STAGES>
__global__ void __launch_bounds__(H_THREADS, BN == 128 ? 2 : 1)
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
        float c[BN / 2];
#pragma unroll
        for (int i = 0; i < BN / 2; i++)
                c[i] = 0;
        for (uint32_t s = 0; s < steps; s++) {
                uint32_t st = s % STAGES, at = base + st * (XB + WB);
                bar_wait(full + 8 * st, (s / STAGES) & 1);
                uint64_t da = wg_desc(at + wg * 64 * 128), db = wg_desc(at + XB);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                for (int k = 0; k < HK / 16; k++)
                        wgmma<BN>(c, da + 2 * k, db + 2 * k, 1);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                /* the step before has been read: its stage may be filled again */
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                if (s > 0 && (tid & 127) == 0)
                        bar_arrive(empty + 8 * ((s - 1) % STAGES));
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");

        const size_t slot = image_slot(p.k_image);
        const uint32_t lane = tid & 31, warp = (tid >> 5) & 3;
        const float ws = p.w_scale ? p.w_scale[p.n_group ? expert : 0] : 1;
        const float *bias = p.bias ? p.bias + expert * p.bias_group : NULL;
#pragma unroll
        for (int h = 0; h < 2; h++) {
                uint32_t m = m0 + wg * 64 + warp * 16 + h * 8 + (lane >> 2);
                if (m >= m_end)
                        continue;
                const float up = *(const float *)(p.x + m * slot + 2 * (size_t)p.k_image) * ws;
                float *y = p.y + (size_t)(p.y_row ? p.y_row[m] : m) * p.y_stride;
                const bool pairs = ((uintptr_t)y & 7) == 0;
#pragma unroll
                for (int j = 0; j < BN / 8; j++) {
                        uint32_t n = n0 + j * 8 + (lane & 3) * 2;
                        float v0 = c[j * 4 + h * 2], v1 = c[j * 4 + h * 2 + 1];
                        if (n + 1 < p.n) {
                                v0 = __fmaf_rn(v0, up, bias ? bias[n] : 0.0f);
                                v1 = __fmaf_rn(v1, up, bias ? bias[n + 1] : 0.0f);
                                if (pairs) {
                                        *(float2 *)(y + n) = make_float2(v0, v1);
                                } else {
                                        y[n] = v0;
                                        y[n + 1] = v1;
                                }
                        } else if (n < p.n) {
                                y[n] = __fmaf_rn(v0, up, bias ? bias[n] : 0.0f);
                        }
                }
        }
#endif
}

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static int tensor_map(struct cuda_dev *d, CUtensorMap *map, const void *at, uint64_t rows, uint64_t cols, uint64_t stride, uint32_t box_rows) {
        const cuuint64_t dims[2] = {cols, rows}, strides[1] = {stride};
        const cuuint32_t box[2] = {HK, box_rows}, one[2] = {1, 1};
        CUresult e = ((encode_fn)d->tma_encode)(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, (void *)at, dims, strides, box, one,
                                                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
        return e == CUDA_SUCCESS ? 0 : cuda_fail(d, cudaErrorInvalidValue, "tensor map");
}

template <int BN, int STAGES> static int matmul_run(struct cuda_dev *d, const struct matmul *m) {
        const size_t smem = (size_t)STAGES * (HM + BN) * HK * 2 + 1024;
        CUtensorMap mx, mw;
        int r;

        if ((r = tensor_map(d, &mx, m->x, m->n_group ? m->m_all : m->m, m->k, image_slot(m->k_image), HM)) < 0 ||
            (r = tensor_map(d, &mw, m->w, (uint64_t)m->n * MAX(m->n_group, 1u), m->k, m->w_stride * 2, BN)) < 0)
                return r;
        CUDA_TRY(d, cudaFuncSetAttribute(matmul_sm90_kernel<BN, STAGES>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem), "matrix product");
        return launch(d, "matrix product (wgmma)", matmul_sm90_kernel<BN, STAGES>,
                      dim3(DIV_ROUND_UP(m->m, (uint32_t)HM), DIV_ROUND_UP(m->n, (uint32_t)BN), MAX(m->n_group, 1u)), H_THREADS, smem, mx, mw, *m);
}

int cuda_matmul_sm90(struct cuda_dev *d, const struct matmul *m) {
        if (m->k % HK)
                return -EINVAL;
        return matmul_run<128, 3>(d, m);
}
