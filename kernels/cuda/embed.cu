/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Table look-up: one row of a matrix in any type and layout, with k_decode()'s bits.
 * The look-up by token also takes what the device sampled, and keeps every token.
 */
#include <errno.h>

#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/iq.cuh"
#include "kernels/cuda/types.cuh"

CUDA_FAMILY(embed)

struct embed_args {
        plane_base w;
        const uint8_t *file;
        size_t row_bytes;
        uint32_t n_sb, cols, rows;
        uint32_t index, add;
        float scale;
        const float *w_scale;
        float *out;
        size_t out_stride;
        struct dbatch b;
};

static __device__ __forceinline__ uint32_t embed_index(const embed_args &a, uint32_t row) {
        uint32_t i = a.index == K_EMBED_POS ? (uint32_t)a.b.pos[row] : 0;
        if (a.index == K_EMBED_TOKEN) {
                i = a.b.token[row];
                if (a.b.sampled) {
                        const uint32_t place = a.b.place[a.b.seq[row]];
                        i = i == K_TOKEN_SAMPLED ? a.b.sampled[place] : i;
                        if (blockIdx.x == 0 && threadIdx.x == 0)
                                a.b.history[place * a.b.history_stride + a.b.pos[row]] = i;
                }
        }
        return min(i, a.rows - 1);
}
static __device__ __forceinline__ void embed_put(const embed_args &a, uint32_t row, uint32_t col, float v) {
        float *p = a.out + row * a.out_stride + col;
        if (a.w_scale)
                v = __fmul_rn(v, a.w_scale[0]);
        if (col < a.cols)
                *p = a.add ? __fadd_rn(*p, __fmul_rn(v, a.scale)) : __fmul_rn(v, a.scale);
}

template <int TYPE> __global__ void __launch_bounds__(128) embed_kernel(const embed_args a) {
        typedef qtype<TYPE> Q;
        const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
        const uint32_t sb = blockIdx.x * 4 + (threadIdx.x >> 5), row = blockIdx.y;

        pdl_next();
        pdl_wait();
        if (sb >= a.n_sb)
                return;
        uint32_t i = embed_index(a, row);
        Q w;
        tile_load<false>(w, tile_at(a.w, 0, (size_t)(i / 16) * a.n_sb + sb), lane);
        if (g != (i & 7))
                return;
#pragma unroll
        for (int kb = 0; kb < 8; kb++) {
                uint32_t c[4];
                w.codes(kb, c);
#pragma unroll
                for (int r = 0; r < 2; r++)
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                                float v[4];
                                if (r != (int)((i >> 3) & 1))
                                        continue;
                                tile_value(w, kb, h, r, c[h * 2 + r], v);
#pragma unroll
                                for (int j = 0; j < 4; j++)
                                        embed_put(a, row, sb * 256 + kb * 32 + h * 16 + t * 4 + j, v[j]);
                        }
        }
}

__global__ void __launch_bounds__(256) embed_file_kernel(enum k_type type, const embed_args a) {
        pdl_next();
        pdl_wait();
        uint32_t c = blockIdx.x * 256 + threadIdx.x, row = blockIdx.y;
        if (c < a.cols)
                embed_put(a, row, c, file_value(type, a.file + embed_index(a, row) * a.row_bytes, c));
}

int cuda_run_embed(struct cuda_dev *d, const struct dbatch *b, const struct cmd_embed *c) {
        embed_args a = {};
        a.cols = c->w.cols;
        a.rows = c->w.rows;
        a.index = c->index;
        a.add = c->add;
        a.scale = c->scale;
        a.w_scale = c->w.scale;
        a.out = c->out.f;
        a.out_stride = c->out.cols;
        a.b = *b;
        if (c->w.layout == K_LAYOUT_CUDA) {
                a.w = planes_of(c->w.type, c->w.data, c->w.rows, c->w.cols);
                a.n_sb = kpad_of(c->w.cols) / CUDA_TILE_COLS;
                dim3 grid(DIV_ROUND_UP(a.n_sb, 4u), c->n);
                switch (c->w.type) {
#define X(T) case T: return launch(d, "embedding", embed_kernel<T>, grid, 128, 0, a);
                        CUDA_FOR_PLANE_TYPES(X)
#undef X
                default: return -EINVAL;
                }
        }
        if (!k_type_row_bytes(c->w.type, c->w.cols, &a.row_bytes))
                return -EINVAL;
        a.file = (const uint8_t *)c->w.data;
        return launch(d, "embedding", embed_file_kernel, dim3(DIV_ROUND_UP(a.cols, 256u), c->n), 256, 0, c->w.type, a);
}

int cuda_tables_embed(struct cuda_dev *d) { return iq_upload(d); }
