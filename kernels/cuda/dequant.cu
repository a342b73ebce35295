/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoding: weights to dense rows of f16 (operands of matmul.cu) or f32 (exact
 * products), and single rows for the embedding (embed.cu). Arithmetic and its order are
 * k_decode()'s, so f32 results have its bits.
 *
 * The lattice formats are decoded from the file's blocks, eight weights a lane (iq.cuh);
 * F16 and BF16 whose rows begin at 16 bytes eight weights a thread; other float types one by one.
 */
#include <errno.h>

#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/iq.cuh"
#include "kernels/cuda/types.cuh"

CUDA_FAMILY(dequant)

static __device__ __forceinline__ float to_f16_range(float v) { return fminf(fmaxf(v, -65504.0f), 65504.0f); }
static __device__ __forceinline__ void put4(float *p, const float v[4]) { *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]); }

/*
 * A lane has columns 4t..+3 and 16+4t..+3 of a block. In f16, neighbours trade
 * halves so that each stores 16 bytes: even t columns 4t..4t+7, odd t the same of the upper half.
 */
static __device__ __forceinline__ void put8(float *dst, bool ok, uint32_t row, uint32_t stride, uint32_t col, uint32_t t, const float v[2][4]) {
        if (!ok)
                return;
#pragma unroll
        for (int h = 0; h < 2; h++)
                if (col + h * 16 + t * 4 < stride)
                        put4(dst + (size_t)row * stride + col + h * 16 + t * 4, v[h]);
}
static __device__ __forceinline__ void put8(__half *dst, bool ok, uint32_t row, uint32_t stride, uint32_t col, uint32_t t, const float v[2][4]) {
        uint32_t p[2][2];
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                        __half2 x = __floats2half2_rn(to_f16_range(v[h][2 * i]), to_f16_range(v[h][2 * i + 1]));
                        p[h][i] = *(uint32_t *)&x;
                }
        const bool odd = t & 1;
        uint32_t g0 = __shfl_xor_sync(~0u, odd ? p[0][0] : p[1][0], 1), g1 = __shfl_xor_sync(~0u, odd ? p[0][1] : p[1][1], 1);
        const uint4 o = odd ? make_uint4(g0, g1, p[1][0], p[1][1]) : make_uint4(p[0][0], p[0][1], g0, g1);
        const uint32_t c = col + (odd ? 16 : 0) + (t & 2) * 4;
        if (ok && c < stride)
                *(uint4 *)(dst + (size_t)row * stride + c) = o;
}

struct dequant_args {
        plane_base w;
        size_t expert_off, expert_stride, dst_expert;
        const uint32_t *first; /* with grid.z experts: [e], [e + 1] equal: not needed */
        uint32_t n_sb, rg0, row0, n, stride;
        void *dst;
};

/* A warp per tile. */
template <int TYPE, class OUT> __global__ void __launch_bounds__(128) dequant_kernel(const dequant_args a) {
        typedef qtype<TYPE> Q;
        const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
        const uint32_t sb = blockIdx.x * 4 + (threadIdx.x >> 5), rg = a.rg0 + blockIdx.y;
        Q w;

        pdl_next();
        if (sb < a.n_sb && !a.first)
                tile_load<false>(w, tile_at(a.w, a.expert_off, (size_t)rg * a.n_sb + sb), lane);
        pdl_wait();
        if (sb >= a.n_sb)
                return;
        OUT *dst = (OUT *)a.dst + blockIdx.z * a.dst_expert;
        if (a.first) {
                if (a.first[blockIdx.z] == a.first[blockIdx.z + 1])
                        return;
                tile_load<false>(w, tile_at(a.w, a.expert_off + blockIdx.z * a.expert_stride, (size_t)rg * a.n_sb + sb), lane);
        }
#pragma unroll
        for (int kb = 0; kb < 8; kb++) {
                uint32_t c[4];
                w.codes(kb, c);
#pragma unroll
                for (int r = 0; r < 2; r++) {
                        const uint32_t row = rg * 16 + g + 8 * r - a.row0; /* rows before row0 wrap */
                        float v[2][4];
                        tile_value(w, kb, 0, r, c[r], v[0]);
                        tile_value(w, kb, 1, r, c[2 + r], v[1]);
                        put8(dst, row < a.n, row, a.stride, sb * 256 + kb * 32, t, v);
                }
        }
}

struct file_args {
        const uint8_t *src;
        size_t row_bytes, expert_stride, dst_expert;
        const uint32_t *first; /* as above, experts in grid.y */
        uint32_t row0, n, cols, stride;
        void *dst;
};
static __device__ __forceinline__ void put1(__half *p, float v) { *p = __float2half_rn(to_f16_range(v)); }
static __device__ __forceinline__ void put1(float *p, float v) { *p = v; }

template <class OUT> __global__ void __launch_bounds__(256) dequant_file_kernel(enum k_type type, const file_args a) {
        pdl_next();
        pdl_wait();
        uint32_t c = blockIdx.x * 256 + threadIdx.x;
        for (uint32_t r = blockIdx.y; r < a.n; r += gridDim.y)
                if (c < a.stride)
                        put1((OUT *)a.dst + (size_t)r * a.stride + c,
                             c < a.cols ? file_value(type, a.src + (size_t)(a.row0 + r) * a.row_bytes, c) : 0.0f);
}

/* Eight weights of 16 bits a thread, four times over; cols and stride are multiples of 8. */
enum { HALVES_THREADS = 256, HALVES_EACH = 4 };
template <int TYPE> __global__ void __launch_bounds__(HALVES_THREADS) dequant_halves_kernel(const file_args a) {
        const uint32_t per_row = a.stride / 8;
        const uint32_t n = a.n * per_row, i0 = blockIdx.x * (HALVES_THREADS * HALVES_EACH) + threadIdx.x;
        uint4 p[HALVES_EACH];

        pdl_next();
        pdl_wait();
#pragma unroll
        for (int k = 0; k < HALVES_EACH; k++) {
                const uint32_t i = i0 + k * HALVES_THREADS, r = i / per_row, c = i % per_row * 8;
                p[k] = i < n && c < a.cols ? __ldcs((const uint4 *)(a.src + (a.row0 + r) * a.row_bytes + 2 * c)) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int k = 0; k < HALVES_EACH; k++) {
                uint32_t *u = (uint32_t *)&p[k];
#pragma unroll
                for (int h = 0; h < 4; h++) {
                        const float2 v = TYPE == K_F16 ? __half22float2(*(const __half2 *)&u[h])
                                                       : make_float2(__uint_as_float(u[h] << 16), __uint_as_float(u[h] & 0xffff0000u));
                        const __half2 o = __floats2half2_rn(to_f16_range(v.x), to_f16_range(v.y));
                        u[h] = *(const uint32_t *)&o;
                }
                if (i0 + k * HALVES_THREADS < n)
                        ((uint4 *)a.dst)[i0 + k * HALVES_THREADS] = p[k];
        }
}

static __device__ __forceinline__ void put_entry(float *p, const float v[8]) {
        *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]);
        *(float4 *)(p + 4) = make_float4(v[4], v[5], v[6], v[7]);
}
static __device__ __forceinline__ void put_entry(__half *p, const float v[8]) {
        uint32_t o[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
                const __half2 x = __floats2half2_rn(to_f16_range(v[2 * i]), to_f16_range(v[2 * i + 1]));
                o[i] = *(const uint32_t *)&x;
        }
        *(uint4 *)p = make_uint4(o[0], o[1], o[2], o[3]);
}

/* A warp per block of 256, an entry a lane. */
template <int TYPE, class OUT> __global__ void __launch_bounds__(256) dequant_iq_kernel(const file_args a) {
        const uint32_t lane = threadIdx.x & 31, n_sb = a.cols / 256, b = blockIdx.x * 8 + (threadIdx.x >> 5), r = b / n_sb, sb = b - r * n_sb;

        pdl_next();
        pdl_wait();
        if (r >= a.n || (a.first && a.first[blockIdx.y] == a.first[blockIdx.y + 1]))
                return;
        const uint8_t *src = a.src + blockIdx.y * a.expert_stride + (size_t)(a.row0 + r) * a.row_bytes + sb * iq_shape_of<TYPE>().bytes;
        float v[8];
        iq_values<TYPE>(src, lane >> 2, lane & 3, v);
        put_entry((OUT *)a.dst + blockIdx.y * a.dst_expert + (size_t)r * a.stride + sb * 256 + lane * 8, v);
}

template <class OUT> static int dequant_planes(struct cuda_dev *d, enum k_type type, const dequant_args &a, dim3 grid) {
        switch (type) {
#define X(T) case T: return launch(d, "decode", dequant_kernel<T, OUT>, grid, 128, 0, a);
                CUDA_FOR_PLANE_TYPES(X)
#undef X
        default: return -EINVAL;
        }
}

template <class OUT> static int dequant_iq(struct cuda_dev *d, enum k_type type, const file_args &a, uint32_t experts) {
        const dim3 grid(DIV_ROUND_UP((uint64_t)a.n * (a.cols / 256), (uint64_t)8), experts);
        switch (type) {
#define X(T) case T: return launch(d, "decode (lattice)", dequant_iq_kernel<T, OUT>, grid, 256, 0, a);
                IQ_FOR_TYPES(X)
#undef X
        default: return -EINVAL;
        }
}

int cuda_dequant(struct cuda_dev *d, const struct k_weight *w, uint32_t expert, uint32_t row0, uint32_t n, void *dst,
                 enum k_type to, uint32_t stride) {
        if (n == 0)
                return 0;
        if (w->layout == K_LAYOUT_CUDA) {
                dequant_args a = {};
                a.w = planes_of(w->type, w->data, w->rows, w->cols);
                a.expert_off = (size_t)expert * w->expert_stride;
                a.n_sb = kpad_of(w->cols) / CUDA_TILE_COLS;
                a.rg0 = row0 / CUDA_TILE_ROWS;
                a.row0 = row0;
                a.n = n;
                a.stride = stride;
                a.dst = dst;
                dim3 grid(DIV_ROUND_UP(a.n_sb, 4u), DIV_ROUND_UP(row0 + n, (uint32_t)CUDA_TILE_ROWS) - a.rg0);
                return to == K_F16 ? dequant_planes<__half>(d, w->type, a, grid) : dequant_planes<float>(d, w->type, a, grid);
        }
        file_args a = {};
        if (!k_type_row_bytes(w->type, w->cols, &a.row_bytes))
                return -EINVAL;
        a.src = (const uint8_t *)w->data + (size_t)expert * w->expert_stride;
        a.row0 = row0;
        a.n = n;
        a.cols = w->cols;
        a.stride = stride;
        a.dst = dst;
        if (to == K_F16 && (w->type == K_F16 || w->type == K_BF16) && ((uintptr_t)a.src | a.row_bytes | (uintptr_t)dst) % 16 == 0 && stride % 8 == 0) {
                const dim3 halves(DIV_ROUND_UP(n * (stride / 8), (uint32_t)(HALVES_THREADS * HALVES_EACH)));
                return w->type == K_F16 ? launch(d, "decode", dequant_halves_kernel<K_F16>, halves, HALVES_THREADS, 0, a)
                                        : launch(d, "decode", dequant_halves_kernel<K_BF16>, halves, HALVES_THREADS, 0, a);
        }
        if (cuda_is_iq(w->type)) /* whole blocks of 256: no columns behind them */
                return to == K_F16 ? dequant_iq<__half>(d, w->type, a, 1) : dequant_iq<float>(d, w->type, a, 1);
        dim3 grid(DIV_ROUND_UP(stride, 256u), MIN(n, 65535u));
        return to == K_F16 ? launch(d, "decode", dequant_file_kernel<__half>, grid, 256, 0, w->type, a)
                           : launch(d, "decode", dequant_file_kernel<float>, grid, 256, 0, w->type, a);
}

int cuda_dequant_experts(struct cuda_dev *d, const struct k_weight *w, uint32_t e0, uint32_t n, const uint32_t *first, void *dst,
                         uint32_t stride) {
        if (cuda_is_iq(w->type)) {
                file_args f = {};
                if (!k_type_row_bytes(w->type, w->cols, &f.row_bytes))
                        return -EINVAL;
                f.src = (const uint8_t *)w->data + (size_t)e0 * w->expert_stride;
                f.expert_stride = w->expert_stride;
                f.dst_expert = (size_t)w->rows * stride;
                f.first = first + e0;
                f.n = w->rows;
                f.cols = w->cols;
                f.stride = stride;
                f.dst = dst;
                return dequant_iq<__half>(d, w->type, f, n);
        }
        if (w->layout != K_LAYOUT_CUDA) {
                for (uint32_t e = 0; e < n; e++) {
                        int r = cuda_dequant(d, w, e0 + e, 0, w->rows, (__half *)dst + (size_t)e * w->rows * stride, K_F16, stride);
                        if (r < 0)
                                return r;
                }
                return 0;
        }
        dequant_args a = {};
        a.w = planes_of(w->type, w->data, w->rows, w->cols);
        a.expert_off = (size_t)e0 * w->expert_stride;
        a.expert_stride = w->expert_stride;
        a.dst_expert = (size_t)w->rows * stride;
        a.first = first + e0;
        a.n_sb = kpad_of(w->cols) / CUDA_TILE_COLS;
        a.n = w->rows;
        a.stride = stride;
        a.dst = dst;
        dim3 grid(DIV_ROUND_UP(a.n_sb, 4u), DIV_ROUND_UP(w->rows, (uint32_t)CUDA_TILE_ROWS), n);
        return dequant_planes<__half>(d, w->type, a, grid);
}

int cuda_tables_dequant(struct cuda_dev *d) { return iq_upload(d); }

cudaError_t cuda_kernel_probe(cudaFuncAttributes *ret) { return cudaFuncGetAttributes(ret, dequant_file_kernel<float>); }
