/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the products of role P on Hopper share: barriers, the tensor copy engine, wgmma m64n128k16 and the way from
 * its accumulators to rows of results. Sources: PTX ISA, wgmma, mbarrier and cp.async.bulk.tensor; shared layout: rows of
 * 128 bytes in the 128-byte swizzle, which the tensor maps and the descriptors name alike.
 */
#include <cuda.h>

#include "kernels/cuda/cuda.cuh"

enum { HK = 64 }; /* columns of a stage: 128 bytes */

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAVE_WGMMA 1
#endif

#ifdef HAVE_WGMMA
static __device__ __forceinline__ uint32_t smem_of(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
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

/* c += a b^T: 64 rows by twice as many columns as c has, K 16. */
static __device__ __forceinline__ void wgmma(float (&c)[64], uint64_t a, uint64_t b) {
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
                     : "l"(a), "l"(b), "r"(1));
}
static __device__ __forceinline__ void wgmma(float (&c)[32], uint64_t a, uint64_t b) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},"
                     " %32, %33, p, 1, 1, 0, 0;\n}\n"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
                       "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
                       "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
                       "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
                     : "l"(a), "l"(b), "r"(1));
}

/* c += a b^T over a stage (HK), which is under way when this returns; the stage before has been read then. */
template <int N> static __device__ __forceinline__ void wgmma_stage(float (&c)[N], uint64_t a, uint64_t b) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < HK / 16; k++)
                wgmma(c, a + 2 * k, b + 2 * k);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}

/* A warpgroup's 64 rows from m0 on, N columns from n0 on. */
template <int N> static __device__ __forceinline__ void wgmma_store(const struct matmul &p, const float (&c)[N / 2], uint32_t m0, uint32_t m_end, uint32_t n0,
                                                   uint32_t expert) {
        const size_t slot = image_slot(p.k_image);
        const uint32_t lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
        const float ws = p.w_scale ? p.w_scale[p.n_group ? expert : 0] : 1;
        const float *bias = p.bias ? p.bias + expert * p.bias_group : NULL;
#pragma unroll
        for (int h = 0; h < 2; h++) {
                uint32_t m = m0 + warp * 16 + h * 8 + (lane >> 2);
                if (m >= m_end)
                        continue;
                const float up = *(const float *)(p.x + m * slot + 2 * (size_t)p.k_image) * ws;
                float *y = p.y + (size_t)(p.y_row ? p.y_row[m] : m) * p.y_stride;
                const bool pairs = ((uintptr_t)y & 7) == 0;
#pragma unroll
                for (int j = 0; j < N / 8; j++) {
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
}
#endif

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static inline int tensor_map(struct cuda_dev *d, CUtensorMap *map, const void *at, uint64_t rows, uint64_t cols, uint64_t stride, uint32_t box_rows) {
        const cuuint64_t dims[2] = {cols, rows}, strides[1] = {stride};
        const cuuint32_t box[2] = {HK, box_rows}, one[2] = {1, 1};
        CUresult e = ((encode_fn)d->tma_encode)(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, (void *)at, dims, strides, box, one,
                                                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
        return e == CUDA_SUCCESS ? 0 : cuda_fail(d, cudaErrorInvalidValue, "tensor map");
}
