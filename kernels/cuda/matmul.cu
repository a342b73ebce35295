/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of role P: y = x w^T from f16 images and f16 weight rows, f32 sums.
 *
 * The portable kernel: 128 x 128 tiles, K in steps of 32 through a cp.async
 * ring, mma.m16n8k16. A sum runs over K in order, 16 at a time, whatever the
 * tile an output falls in, so results do not depend on how rows are chunked.
 */
#include <errno.h>

#include "kernels/cuda/cuda.cuh"

CUDA_FAMILY(matmul)

enum { BM = 128, BN = 128, BK = 32, STAGES = 4, MM_THREADS = 256 };

static __device__ __forceinline__ void cp_async16(uint32_t to, const void *from, bool ok) {
        int n = ok ? 16 : 0;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n));
}
static __device__ __forceinline__ void ldmatrix4(uint32_t r[4], uint32_t at) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
static __device__ __forceinline__ void mma_f16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* Byte offset of 16-byte chunk c of row r in a tile with 64-byte rows; rows two apart would share banks. */
static __device__ __forceinline__ uint32_t tile_off(uint32_t r, uint32_t c) { return r * 64 + ((c ^ ((r >> 1) & 3)) * 16); }

__global__ void __launch_bounds__(MM_THREADS, 2) matmul_kernel(const struct matmul p) {
        extern __shared__ __align__(128) uint8_t sm[];
        const uint32_t tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, wm = warp & 1, wn = warp >> 1;
        const uint32_t base = (uint32_t)__cvta_generic_to_shared(sm);
        uint32_t m0 = blockIdx.y * BM, m_end = p.m, expert = 0;
        const uint32_t n0 = blockIdx.x * BN;
        const __half *w = p.w;

        pdl_next();
        pdl_wait();
        if (p.n_group) {
                expert = p.group0 + blockIdx.z;
                m0 += p.group_start[expert];
                m_end = p.group_start[expert + 1];
                w += blockIdx.z * p.w_group;
        }
        if (m0 >= m_end)
                return;
        const size_t slot = image_slot(p.k_image);
        float acc[4][4][4] = {};
        const uint32_t steps = p.k / BK;

        auto fill = [&](uint32_t s) {
                uint32_t to = base + (s % STAGES) * (BM + BN) * 64;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                        uint32_t r = (tid >> 2) + i * 64, c = tid & 3;
                        bool ok = m0 + r < m_end;
                        cp_async16(to + tile_off(r, c), p.x + (size_t)(ok ? m0 + r : m0) * slot + (s * BK + c * 8) * 2, ok);
                }
#pragma unroll
                for (int i = 0; i < 2; i++) {
                        uint32_t r = (tid >> 2) + i * 64, c = tid & 3;
                        bool ok = n0 + r < p.n && s * BK + c * 8 < p.w_cols;
                        cp_async16(to + BM * 64 + tile_off(r, c), ok ? w + (size_t)(n0 + r) * p.w_stride + s * BK + c * 8 : w, ok);
                }
        };
#pragma unroll
        for (int s = 0; s < STAGES - 1; s++) {
                if (s < steps)
                        fill(s);
                asm volatile("cp.async.commit_group;");
        }
        for (uint32_t s = 0; s < steps; s++) {
                asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
                __syncthreads();
                if (s + STAGES - 1 < steps)
                        fill(s + STAGES - 1);
                asm volatile("cp.async.commit_group;");
                uint32_t at = base + (s % STAGES) * (BM + BN) * 64;
#pragma unroll
                for (int k = 0; k < 2; k++) {
                        uint32_t a[4][4], b[2][4];
#pragma unroll
                        for (int i = 0; i < 4; i++)
                                ldmatrix4(a[i], at + tile_off(wm * 64 + i * 16 + (lane & 15), k * 2 + (lane >> 4)));
#pragma unroll
                        for (int j = 0; j < 2; j++)
                                ldmatrix4(b[j], at + BM * 64 +
                                                        tile_off(wn * 32 + j * 16 + (lane & 7) + ((lane >> 4) << 3), k * 2 + ((lane >> 3) & 1)));
#pragma unroll
                        for (int i = 0; i < 4; i++)
#pragma unroll
                                for (int j = 0; j < 4; j++)
                                        mma_f16(acc[i][j], a[i], b[j >> 1][(j & 1) * 2], b[j >> 1][(j & 1) * 2 + 1]);
                }
        }
        const float ws = p.w_scale ? p.w_scale[p.n_group ? expert : 0] : 1;
        const float *bias = p.bias ? p.bias + expert * p.bias_group : NULL;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                        uint32_t m = m0 + wm * 64 + i * 16 + h * 8 + (lane >> 2);
                        if (m >= m_end)
                                continue;
                        float up = *(const float *)(p.x + m * slot + 2 * (size_t)p.k_image) * ws;
                        float *y = p.y + (size_t)(p.y_row ? p.y_row[m] : m) * p.y_stride;
#pragma unroll
                        for (int j = 0; j < 4; j++)
#pragma unroll
                                for (int e = 0; e < 2; e++) {
                                        uint32_t n = n0 + wn * 32 + j * 8 + (lane & 3) * 2 + e;
                                        if (n < p.n)
                                                y[n] = __fmaf_rn(acc[i][j][h * 2 + e], up, bias ? bias[n] : 0.0f);
                                }
                }
}

bool cuda_matmul_in_place(struct matmul *m, const struct k_weight *w) {
        const size_t row = 2 * (size_t)w->cols;

        if (w->type != K_F16 || w->layout != K_LAYOUT_FILE || w->place != K_PLACE_DEVICE || ((uintptr_t)w->data | row) % 16 ||
            (w->n_expert > 1 && w->expert_stride != w->rows * row))
                return false;
        m->w = (const __half *)w->data;
        m->w_stride = m->w_cols = w->cols;
        return true;
}

int cuda_matmul(struct cuda_dev *d, const struct matmul *m) {
        if (m->m == 0 || m->n == 0)
                return 0;
        if (d->sm90)
                return cuda_matmul_sm90(d, m);
        if (m->k % BK)
                return -EINVAL;
        size_t smem = (size_t)STAGES * (BM + BN) * 64;
        CUDA_TRY(d, cudaFuncSetAttribute(matmul_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem), "matrix product");
        return launch(d, "matrix product (f16)", matmul_kernel,
                      dim3(DIV_ROUND_UP(m->n, (uint32_t)BN), DIV_ROUND_UP(m->m, (uint32_t)BM), MAX(m->n_group, 1u)), MM_THREADS, smem, *m);
}
