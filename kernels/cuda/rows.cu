/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What works on one row at a time: norms with the residual's addition, GLU,
 * elementwise ops, and making activation images. Norm and GLU write the image
 * in the same pass, so the product that follows reads it ready.
 */
#include <errno.h>

#include "kernels/cuda/mail.cuh"
#include "kernels/cuda/norm.cuh"

CUDA_FAMILY(rows)

enum { ROW_THREADS = 256 };

/* ---- norm -------------------------------------------------------------------------- */

struct norm_args {
        float *x;
        const float *add, *add_w, *add_b, *w, *b;
        float *out;
        const uint32_t *gather;
        float add_scale, eps, out_scale;
        uint32_t cols, kind, group, out_stride, out_col, write_image;
        struct image img;
        uint32_t *mail_to; /* one row: the image also goes to this box, or NULL */
};

/* (mean, factor) of n values, by the whole block. */
template <class F> static __device__ __forceinline__ float2 norm_stat(uint32_t kind, uint32_t n, float eps, float *red, F get) {
        float s = 0, mean = 0;
        if (kind == K_NORM_LAYER) {
                for (uint32_t c = threadIdx.x; c < n; c += blockDim.x)
                        s += get(c);
                mean = block_sum(s, red) / (float)n;
                s = 0;
        }
        for (uint32_t c = threadIdx.x; c < n; c += blockDim.x) {
                float v = get(c) - mean;
                s = __fmaf_rn(v, v, s);
        }
        s = block_sum(s, red);
        return make_float2(mean, kind == K_NORM_L2 ? rsqrtf(s + eps) : rsqrtf(s / (float)n + eps));
}

__global__ void __launch_bounds__(ROW_THREADS) norm_kernel(const norm_args a) {
        __shared__ float red[33];
        extern __shared__ float buf[]; /* the row */
        const uint32_t o = blockIdx.x;

        pdl_next();
        pdl_wait();
        const uint32_t r = a.gather ? a.gather[o] : o;
        float *x = a.x + (size_t)r * a.cols;
        if (a.add) {
                const float *y = a.add + (size_t)r * a.cols;
                if (a.add_w) {
                        float2 st = norm_stat(a.kind, a.cols, a.eps, red, [&](uint32_t c) { return y[c]; });
                        for (uint32_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
                                float v = (y[c] - st.x) * st.y * a.add_w[c];
                                if (a.add_b)
                                        v += a.add_b[c];
                                buf[c] = __fmaf_rn(a.add_scale, v, x[c]);
                        }
                } else {
                        for (uint32_t c = threadIdx.x; c < a.cols; c += blockDim.x)
                                buf[c] = __fmaf_rn(a.add_scale, y[c], x[c]);
                }
                for (uint32_t c = threadIdx.x; c < a.cols; c += blockDim.x)
                        x[c] = buf[c];
        } else {
                for (uint32_t c = threadIdx.x; c < a.cols; c += blockDim.x)
                        buf[c] = x[c];
        }
        if (!a.out)
                return;
        float *out = a.out + (size_t)o * a.out_stride + a.out_col;
        __syncthreads();
        if (a.group) { /* a warp per group */
                for (uint32_t g0 = (threadIdx.x >> 5) * a.group; g0 < a.cols; g0 += (blockDim.x >> 5) * a.group) {
                        float s = 0, mean = 0;
                        if (a.kind == K_NORM_LAYER) {
                                for (uint32_t c = threadIdx.x & 31; c < a.group; c += 32)
                                        s += x[g0 + c];
                                mean = warp_sum(s) / (float)a.group;
                                s = 0;
                        }
                        for (uint32_t c = threadIdx.x & 31; c < a.group; c += 32) {
                                float v = x[g0 + c] - mean;
                                s = __fmaf_rn(v, v, s);
                        }
                        s = warp_sum(s);
                        float f = a.kind == K_NORM_L2 ? rsqrtf(s + a.eps) : rsqrtf(s / (float)a.group + a.eps);
                        for (uint32_t c = threadIdx.x & 31; c < a.group; c += 32) {
                                float v = (x[g0 + c] - mean) * f;
                                if (a.w)
                                        v *= a.w[c];
                                if (a.b)
                                        v += a.b[c];
                                buf[g0 + c] = v * a.out_scale;
                        }
                }
        } else {
                float2 st = norm_stat(a.kind, a.cols, a.eps, red, [&](uint32_t c) { return buf[c]; });
                for (uint32_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
                        float v = (buf[c] - st.x) * st.y;
                        if (a.w)
                                v *= a.w[c];
                        if (a.b)
                                v += a.b[c];
                        buf[c] = v * a.out_scale;
                }
        }
        __syncthreads();
        for (uint32_t c = threadIdx.x; c < a.cols; c += blockDim.x)
                out[c] = buf[c];
        if (a.write_image)
                image_row(a.img, o, a.cols, red, [&](uint32_t c) { return buf[c]; });
}

/*
 * The same for whole rows of a multiple of 4 columns, V float4 a thread in
 * registers. The order of the sum of squares is norm.cuh's, that of a mean goes by
 * the number of threads, hence by the columns: a row's bits never depend on how
 * many rows there are.
 */
template <int V> __global__ void __launch_bounds__(1024) norm_fast_kernel(const norm_args a) {
        __shared__ float red[33], groups[V * 1024 * 4 / NORM_GROUP];
        const uint32_t o = blockIdx.x, n4 = a.cols / 4;

        pdl_next();
        float4 w[V];
#pragma unroll
        for (int i = 0; i < V; i++) { /* parameters: before the wait */
                uint32_t c = i * blockDim.x + threadIdx.x;
                w[i] = a.w && c < n4 ? ((const float4 *)a.w)[c] : make_float4(1, 1, 1, 1);
        }
        pdl_wait();
        const uint32_t r = a.gather ? a.gather[o] : o;
        float4 *x = (float4 *)(a.x + (size_t)r * a.cols);
        float4 v[V];
#pragma unroll
        for (int i = 0; i < V; i++) {
                uint32_t c = i * blockDim.x + threadIdx.x;
                v[i] = c < n4 ? x[c] : make_float4(0, 0, 0, 0);
        }
        auto stat = [&](const float4 (&u)[V]) {
                float s = 0, mean = 0;
                if (a.kind == K_NORM_LAYER) {
#pragma unroll
                        for (int i = 0; i < V; i++)
                                s += (u[i].x + u[i].y) + (u[i].z + u[i].w);
                        mean = block_sum(s, red) / (float)a.cols;
                        s = 0;
                }
#pragma unroll
                for (int i = 0; i < V; i++) {
                        const uint32_t c = i * blockDim.x + threadIdx.x;
                        const float4 t = c < n4 ? make_float4(u[i].x - mean, u[i].y - mean, u[i].z - mean, u[i].w - mean) : make_float4(0, 0, 0, 0);
                        const float group = norm_group4(t);
                        if (c < n4 && (c & 3) == 0)
                                groups[c >> 2] = group;
                }
                __syncthreads();
                for (uint32_t g = threadIdx.x & 31; g < norm_groups(a.cols); g += 32)
                        s = __fadd_rn(s, groups[g]);
                __syncwarp();
                return make_float2(mean, norm_factor(a.kind, norm_lanes(s), a.cols, a.eps));
        };
        if (a.add) {
                const float4 *add = (const float4 *)(a.add + (size_t)r * a.cols);
                float4 y[V];
#pragma unroll
                for (int i = 0; i < V; i++) {
                        uint32_t c = i * blockDim.x + threadIdx.x;
                        y[i] = c < n4 ? add[c] : make_float4(0, 0, 0, 0);
                }
                if (a.add_w) {
                        float2 st = stat(y);
#pragma unroll
                        for (int i = 0; i < V; i++) {
                                uint32_t c = i * blockDim.x + threadIdx.x;
                                float4 g = c < n4 ? ((const float4 *)a.add_w)[c] : make_float4(0, 0, 0, 0);
                                float4 b = a.add_b && c < n4 ? ((const float4 *)a.add_b)[c] : make_float4(0, 0, 0, 0);
                                y[i] = make_float4((y[i].x - st.x) * st.y * g.x + b.x, (y[i].y - st.x) * st.y * g.y + b.y,
                                                   (y[i].z - st.x) * st.y * g.z + b.z, (y[i].w - st.x) * st.y * g.w + b.w);
                        }
                        __syncthreads(); /* groups have been read */
                }
#pragma unroll
                for (int i = 0; i < V; i++) {
                        uint32_t c = i * blockDim.x + threadIdx.x;
                        v[i] = make_float4(__fmaf_rn(a.add_scale, y[i].x, v[i].x), __fmaf_rn(a.add_scale, y[i].y, v[i].y),
                                           __fmaf_rn(a.add_scale, y[i].z, v[i].z), __fmaf_rn(a.add_scale, y[i].w, v[i].w));
                        if (c < n4)
                                x[c] = v[i];
                }
        }
        if (!a.out)
                return;
        const float2 st = stat(v);
        float4 *out = (float4 *)(a.out + (size_t)o * a.out_stride + a.out_col);
        float amax = 0;
#pragma unroll
        for (int i = 0; i < V; i++) {
                uint32_t c = i * blockDim.x + threadIdx.x;
                float4 b = a.b && c < n4 ? ((const float4 *)a.b)[c] : make_float4(0, 0, 0, 0);
                v[i] = norm_value4(v[i], st.x, st.y, w[i], b, a.out_scale);
                if (c < n4)
                        out[c] = v[i];
                else
                        v[i] = make_float4(0, 0, 0, 0);
                amax = fmaxf(amax, fmaxf(fmaxf(fabsf(v[i].x), fabsf(v[i].y)), fmaxf(fabsf(v[i].z), fabsf(v[i].w))));
        }
        if (mail_box(a.mail_to))
                mail_row4<V>(a.mail_to, a.img.kpad, v);
        if (a.write_image)
                image_row4<V>(a.img, o, amax, red, v);
}

int cuda_run_norm(struct cuda_dev *d, const struct dbatch *, const struct cmd_norm *c) {
        norm_args a = {};
        a.x = c->x.f;
        a.cols = c->x.cols;
        if (c->has_add) {
                a.add = c->add.f;
                a.add_w = c->add_norm_w;
                a.add_b = c->add_norm_b;
        }
        a.add_scale = c->add_scale;
        a.w = c->w;
        a.b = c->b;
        a.kind = c->kind;
        a.eps = c->eps;
        a.out_scale = c->out_scale;
        a.group = c->group;
        a.gather = c->gather;
        if (c->has_out) {
                a.out = c->out.f;
                a.out_stride = c->out.cols;
                a.out_col = c->out_col;
        }
        a.write_image = c->write_image;
        a.img = {c->out.q, kpad_of(c->x.cols), c->n_d};
        if (norm_whole(c)) {
                const uint32_t threads = row4_threads(a.cols);
                if (c->has_out && c->write_image && c->n == 1 && c->n_d == 1)
                        a.mail_to = cuda_mail_box(d, a.img.kpad);
                const int r = DIV_ROUND_UP(kpad_of(a.cols), threads * 4) <= 2 ? launch(d, "norm", norm_fast_kernel<2>, c->n, threads, 0, a)
                                                                              : launch(d, "norm", norm_fast_kernel<4>, c->n, threads, 0, a);
                if (r == 0 && a.mail_to)
                        cuda_mail_sent(d, a.img.slots, a.img.kpad, a.mail_to);
                return r;
        }
        size_t smem = (size_t)a.cols * sizeof(float);
        if (smem > 48 * 1024)
                CUDA_TRY(d, cudaFuncSetAttribute(norm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem), "norm");
        return launch(d, "norm", norm_kernel, c->n, ROW_THREADS, smem, a);
}

/* ---- images ---------------------------------------------------------------------------- */

__global__ void __launch_bounds__(ROW_THREADS) quantize_kernel(const float *x, size_t x_stride, const uint32_t *gather, uint32_t cols,
                                                               struct image img) {
        __shared__ float red[33];
        pdl_next();
        pdl_wait();
        uint32_t o = blockIdx.x, r = gather ? gather[o] : o;
        const float *row = x + r * x_stride;
        image_row(img, o, cols, red, [&](uint32_t c) { return row[c]; });
}

int cuda_quantize(struct cuda_dev *d, const float *x, size_t x_stride, const uint32_t *gather, uint32_t n, uint32_t cols,
                  struct image img) {
        return launch(d, "quantize", quantize_kernel, n, ROW_THREADS, 0, x, x_stride, gather, cols, img);
}

/* ---- GLU ------------------------------------------------------------------------------------ */

struct glu_args {
        const float *gate, *up;
        size_t gate_stride, up_stride;
        float *out;
        uint32_t cols, act, write_image;
        float alpha, limit;
        struct image img;
};

__global__ void __launch_bounds__(ROW_THREADS) glu_kernel(const glu_args a) {
        __shared__ float red[33];
        pdl_next();
        pdl_wait();
        const uint32_t r = blockIdx.x;
        const float *gate = a.gate ? a.gate + r * a.gate_stride : NULL, *up = a.up + r * a.up_stride;
        float *out = a.out + (size_t)r * a.cols;
        /* A D row is cut among the blocks of grid.y; a P row needs its largest value first. */
        if (!a.write_image || r < a.img.n_d) {
                uint8_t *slot = a.img.slots + r * image_slot(a.img.kpad);
                for (uint32_t c0 = (blockIdx.y * (ROW_THREADS / 32) + (threadIdx.x >> 5)) * 32; c0 < a.img.kpad;
                     c0 += gridDim.y * ROW_THREADS) {
                        uint32_t c = c0 + (threadIdx.x & 31);
                        float v = 0;
                        if (c < a.cols) {
                                v = glu_value(a.act, gate ? gate[c] : 0, up[c], gate != NULL, a.alpha, a.limit);
                                out[c] = v;
                        }
                        if (a.write_image)
                                image_put32(slot, a.img.kpad, c0 >> 5, v);
                }
                return;
        }
        if (blockIdx.y)
                return;
        for (uint32_t c = threadIdx.x; c < a.cols; c += blockDim.x)
                out[c] = glu_value(a.act, gate ? gate[c] : 0, up[c], gate != NULL, a.alpha, a.limit);
        __syncthreads();
        image_row(a.img, r, a.cols, red, [&](uint32_t c) { return out[c]; });
}

int cuda_glu_rows(struct cuda_dev *d, const float *gate, size_t gate_stride, const float *up, size_t up_stride, uint32_t act,
                  float alpha, float limit, float *out, uint32_t cols, uint32_t n, bool write_image, struct image img) {
        glu_args a = {gate, up, gate_stride, up_stride, out, cols, act, write_image, alpha, limit, img};
        a.img.kpad = kpad_of(cols);
        uint32_t cut = img.n_d || !write_image ? MIN(DIV_ROUND_UP(cols, (uint32_t)ROW_THREADS), n > 64 ? 1u : 64u) : 1;
        return launch(d, "GLU", glu_kernel, dim3(n, MAX(cut, 1u)), ROW_THREADS, 0, a);
}

int cuda_run_glu(struct cuda_dev *d, const struct dbatch *, const struct cmd_glu *c) {
        struct image img = {c->out.q, kpad_of(c->out.cols), c->n_d};
        const float *gate = c->a.gate;
        size_t gate_stride = c->a.gate_stride;
        int r;

        if (c->a.sparse_std != 0) { /* what is left of the gates waits in the result's place: each value is read before it is written */
                if ((r = cuda_sparse_gate(d, gate, gate_stride, c->out.f, c->out.cols, c->a.sparse_std, c->a.n)) < 0)
                        return r;
                gate = c->out.f;
                gate_stride = c->out.cols;
        }
        return cuda_glu_rows(d, gate, gate_stride, c->a.up, c->a.up_stride, c->a.act, c->a.alpha, c->a.limit, c->out.f,
                             c->out.cols, c->a.n, c->write_image, img);
}

/* ---- elementwise ------------------------------------------------------------------------------ */

struct elem_args {
        float *y;
        const float *x;
        size_t y_stride, x_stride;
        const uint32_t *gather;
        uint32_t cols, op;
        float a, b;
};

__global__ void __launch_bounds__(ROW_THREADS) elem_kernel(const elem_args a) {
        pdl_next();
        pdl_wait();
        uint32_t c = blockIdx.x * ROW_THREADS + threadIdx.x, r = blockIdx.y;
        if (c >= a.cols)
                return;
        float *p = a.y + r * a.y_stride + c, y = a.op == K_ELEM_COPY ? 0 : *p, v = y;
        const float *x = a.x + (a.gather ? a.gather[r] : r) * a.x_stride;
        switch (a.op) {
        case K_ELEM_AXPY: v = a.a * y + a.b * x[c]; break;
        case K_ELEM_COPY: v = x[c]; break;
        case K_ELEM_SCALE: v = a.a * y; break;
        case K_ELEM_SOFTCAP: v = a.b * tanhf(a.a * y / a.b); break;
        case K_ELEM_MUL: v = y * x[c]; break;
        case K_ELEM_MUL_SIGMOID: v = y * sigmoid(x[c]); break;
        case K_ELEM_MUL_SILU: v = y * x[c] * sigmoid(x[c]); break;
        case K_ELEM_MUL_SIGMOID_ROW: v = y * sigmoid(x[0]); break;
        case K_ELEM_MUL_VEC: v = y * a.x[c]; break;
        }
        *p = v;
}

int cuda_run_elem(struct cuda_dev *d, const struct dbatch *, const struct cmd_elem *c) {
        elem_args a = {c->a.y, c->a.x, c->a.y_stride, c->a.x_stride, c->gather, c->a.cols, (uint32_t)c->a.op, c->a.a, c->a.b};
        return launch(d, "elementwise", elem_kernel, dim3(DIV_ROUND_UP(a.cols, (uint32_t)ROW_THREADS), c->a.n), ROW_THREADS, 0, a);
}
