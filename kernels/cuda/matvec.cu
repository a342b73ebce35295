/* SPDX-License-Identifier: Apache-2.0 */
/* Host side of the int8 products (matvec.cuh): shape to launch; products with float weights and float activations. */
#include <errno.h>

#include "kernels/cuda/matvec.cuh"

CUDA_FAMILY(matvec)

int cuda_matvec_a(struct cuda_dev *, enum k_type, const matvec_args &, uint32_t warps, uint32_t jobs);
int cuda_matvec_b(struct cuda_dev *, enum k_type, const matvec_args &, uint32_t warps, uint32_t jobs);
int cuda_matvec_c(struct cuda_dev *, enum k_type, const matvec_args &, uint32_t warps, uint32_t jobs);

/* How many warps share a row, and how many tiles each takes: by shape alone, since it fixes the order of the sum. */
static void matvec_split(uint32_t n_sb, uint32_t *ret_ks, uint32_t *ret_per_warp) {
        *ret_per_warp = DIV_ROUND_UP(n_sb, 8u);
        *ret_ks = DIV_ROUND_UP(n_sb, *ret_per_warp);
}

static void matvec_fill(matvec_args *a, const struct linear_out *const *out, uint32_t n_out, const uint8_t *image, uint32_t kpad,
                        const struct jobs *jobs, const struct matvec_with *with) {
        uint32_t rg = 0;

        if (with) {
                a->add_to = with->add_to;
                a->add_scale = with->add_scale;
                a->squares = with->squares;
                a->mail = with->mail;
                if (with->norm)
                        a->norm = *with->norm;
        }
        for (uint32_t i = 0; i < n_out; i++) {
                const struct k_weight *w = &out[i]->w;
                a->out[i].w = planes_of(w->type, w->data, w->rows, w->cols);
                a->out[i].expert_stride = w->expert_stride;
                a->out[i].bias = out[i]->bias;
                a->out[i].bias_stride = w->rows;
                a->out[i].scale = w->scale;
                a->out[i].many_scales = w->n_expert > 1;
                a->out[i].y = out[i]->y;
                a->out[i].y_stride = out[i]->y_stride;
                a->out[i].rows = w->rows;
                a->out[i].rg0 = rg;
                rg += DIV_ROUND_UP(w->rows, (uint32_t)CUDA_TILE_ROWS);
        }
        a->n_out = n_out;
        a->n_rg = rg;
        a->n_sb = kpad / CUDA_TILE_COLS;
        a->image = image;
        a->kpad = kpad;
        a->jobs = *jobs;
        matvec_split(a->n_sb, &a->ks, &a->per_warp);
        a->ks_inverse = DIV_ROUND_UP(65536u, a->ks);
}

static int matvec_try(struct cuda_dev *d, enum k_type t, const matvec_args &a, uint32_t warps, uint32_t jobs) {
        int r;

        if ((r = cuda_matvec_a(d, t, a, warps, jobs)) <= 0)
                return r;
        if ((r = cuda_matvec_b(d, t, a, warps, jobs)) <= 0)
                return r;
        return cuda_matvec_c(d, t, a, warps, jobs);
}

static const struct matvec_choice plain = {0, 0, CUDA_GRID_RESIDENT, 0, CUDA_MANY_RULE};
static bool is_plain(const struct matvec_choice &c) {
        return c.groups == plain.groups && c.per_sm == plain.per_sm && c.grid == plain.grid && c.deep == plain.deep && c.many == plain.many;
}

/* As was chosen for a product of its shape (kernels/tune.h), or, where this one's tiles then don't fit, as if nothing was. */
static int matvec_launch(struct cuda_dev *d, const struct k_weight *w, matvec_args *a, uint32_t teams) {
        const bool lists = a->jobs.expert || a->jobs.per_expert;
        const uint32_t jobs = lists ? a->jobs.n_job : 1;
        uint32_t rows = 0;
        int r;

        if (jobs == 0 || a->jobs.n == 0)
                return 0;
        for (uint32_t i = 0; i < a->n_out; i++)
                rows += a->out[i].rows;
        a->how = lists ? plain : cuda_matvec_choice(d, w->type, rows, w->cols, a->jobs.n);
        for (;; a->how = plain) {
                if (!a->glu) {
                        a->per_unit = teams * MAX(a->how.groups, 1u);
                        a->n_unit = DIV_ROUND_UP(a->n_rg, a->per_unit);
                }
                r = matvec_try(d, w->type, *a, teams * a->ks, jobs);
                if (r <= 0 || is_plain(a->how))
                        return r;
        }
}

static int matvec_same_type(struct cuda_dev *d, const struct linear_out *const *out, uint32_t n_out, const uint8_t *image,
                            uint32_t kpad, const struct jobs *jobs, const struct matvec_with *with) {
        matvec_args a = {};
        int r;

        matvec_fill(&a, out, n_out, image, kpad, jobs, with);
        r = matvec_launch(d, &out[0]->w, &a, MAX(1u, 8 / a.ks));
        return r > 0 && !a.squares && !a.norm.x ? -EINVAL : r;
}

int cuda_matvec(struct cuda_dev *d, const struct linear_out *out, uint32_t n_out, const uint8_t *image, uint32_t kpad,
                const struct jobs *jobs, const struct matvec_with *with) {
        bool done[K_LINEAR_MAX] = {};
        struct matvec_with w = {};

        if (with)
                w = *with;
        if (w.add_to && n_out != 1)
                return -EINVAL;

        for (uint32_t i = 0; i < n_out; i++) {
                const struct linear_out *same[K_LINEAR_MAX];
                uint32_t n = 0;
                if (done[i])
                        continue;
                for (uint32_t j = i; j < n_out; j++)
                        if (!done[j] && out[j].w.type == out[i].w.type) {
                                same[n++] = &out[j];
                                done[j] = true;
                        }
                int r = matvec_same_type(d, same, n, image, kpad, jobs, &w);
                if (r)
                        return r;
                w.norm = NULL; /* the first launch leaves its image */
        }
        return 0;
}

int cuda_matvec_glu(struct cuda_dev *d, const struct linear_out *gate, const struct linear_out *up, const uint8_t *image, uint32_t kpad,
                    const struct jobs *jobs, const struct matvec_with *with, const struct glu_out *to) {
        const struct linear_out *out[2] = {gate, up};
        matvec_args a = {};

        if (gate->w.type != up->w.type || gate->w.rows != up->w.rows || gate->w.rows % 32 || jobs->per_expert)
                return 1;
        matvec_fill(&a, out, 2, image, kpad, jobs, with);
        a.glu = 1;
        a.act = to->act;
        a.alpha = to->alpha;
        a.limit = to->limit;
        a.h = to->h;
        a.h_image = to->image;
        a.mail_to = to->mail_to;
        a.per_unit = 4;
        a.n_unit = gate->w.rows / 32;
        return matvec_launch(d, &gate->w, &a, MAX(1u, MIN(8 / a.ks, 4u)));
}

/* ---- float weights ------------------------------------------------------------------- */

struct float_args {
        const void *w;
        size_t w_stride, expert_stride; /* elements; bytes */
        const float *scale, *bias;
        float *y;
        size_t y_stride;
        const float *x;
        size_t x_stride;
        uint32_t rows, cols, many_scales;
        struct jobs jobs;
};

template <class W> static __device__ __forceinline__ float as_float(W v);
template <> __device__ __forceinline__ float as_float<float>(float v) { return v; }
template <> __device__ __forceinline__ float as_float<__half>(__half v) { return __half2float(v); }
struct bf16 { uint16_t v; };
template <> __device__ __forceinline__ float as_float<bf16>(bf16 v) { return __uint_as_float((uint32_t)v.v << 16); }

/*
 * One warp per output row, NC columns at a time. Lane l sums columns l, l + 32,
 * ... of the row in eight chains by position, so the order depends on the shape alone.
 */
template <class W, int NC> __global__ void __launch_bounds__(128) float_kernel(const float_args a) {
        const uint32_t lane = threadIdx.x & 31, row = blockIdx.x * 4 + (threadIdx.x >> 5);
        uint32_t expert = 0, c0 = 0, n = a.jobs.n;

        pdl_next();
        pdl_wait();
        if (row >= a.rows)
                return;
        if (a.jobs.expert) {
                expert = a.jobs.expert[blockIdx.y];
                if (expert == UINT32_MAX)
                        return;
                c0 = a.jobs.start[blockIdx.y];
                n = a.jobs.count[blockIdx.y];
        } else if (a.jobs.per_expert) {
                expert = blockIdx.y;
        }
        const W *w = (const W *)((const uint8_t *)a.w + (size_t)expert * a.expert_stride) + (size_t)row * a.w_stride;
        for (uint32_t cb = blockIdx.z * NC; cb < n; cb += gridDim.z * NC) {
                const float *x[NC];
                float s[NC][4];
#pragma unroll
                for (int c = 0; c < NC; c++) {
                        uint32_t col = min(cb + c, n - 1), xr = a.jobs.x_row ? a.jobs.x_row[c0 + col] : c0 + col;
                        if (a.jobs.per_expert)
                                xr = xr * a.jobs.n_job + expert;
                        x[c] = a.x + xr * a.x_stride;
                        s[c][0] = s[c][1] = s[c][2] = s[c][3] = 0;
                }
                uint32_t k = lane;
                for (; k + 96 < a.cols; k += 128) {
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                                float v = as_float(w[k + 32 * i]);
#pragma unroll
                                for (int c = 0; c < NC; c++)
                                        s[c][i] = __fmaf_rn(v, x[c][k + 32 * i], s[c][i]);
                        }
                }
                for (; k < a.cols; k += 32) {
                        float v = as_float(w[k]);
#pragma unroll
                        for (int c = 0; c < NC; c++)
                                s[c][0] = __fmaf_rn(v, x[c][k], s[c][0]);
                }
#pragma unroll
                for (int c = 0; c < NC; c++) {
                        float v = warp_sum(__fadd_rn(__fadd_rn(s[c][0], s[c][1]), __fadd_rn(s[c][2], s[c][3])));
                        if (lane == 0 && cb + c < n) {
                                if (a.scale)
                                        v = __fmul_rn(v, a.scale[a.many_scales ? expert : 0]);
                                if (a.bias)
                                        v = __fadd_rn(v, a.bias[(size_t)expert * a.rows + row]);
                                uint32_t yr = a.jobs.y_row ? a.jobs.y_row[c0 + cb + c] : c0 + cb + c;
                                a.y[yr * a.y_stride + (a.jobs.per_expert ? expert * a.jobs.y_job : 0) + row] = v;
                        }
                }
        }
}

template <class W> static int float_type(struct cuda_dev *d, const float_args &a, dim3 grid) {
        if (a.jobs.n == 1)
                return launch(d, "product (float)", float_kernel<W, 1>, grid, 128, 0, a);
        grid.z = MIN(DIV_ROUND_UP(a.jobs.n, 4u), 64u);
        return launch(d, "product (float, 4 columns)", float_kernel<W, 4>, grid, 128, 0, a);
}

int cuda_matvec_float(struct cuda_dev *d, const struct float_weight *w, const float *bias, float *y, size_t y_stride,
                      const float *x, size_t x_stride, const struct jobs *jobs) {
        float_args a = {};
        a.w = w->data;
        a.w_stride = w->stride;
        a.expert_stride = w->expert_stride;
        a.many_scales = w->many_scales;
        a.scale = w->scale;
        a.bias = bias;
        a.y = y;
        a.y_stride = y_stride;
        a.x = x;
        a.x_stride = x_stride;
        a.rows = w->rows;
        a.cols = w->cols;
        a.jobs = *jobs;
        if (jobs->n == 0)
                return 0;
        dim3 grid(DIV_ROUND_UP(w->rows, 4u), jobs->expert || jobs->per_expert ? jobs->n_job : 1);
        switch (w->type) {
        case K_F32: return float_type<float>(d, a, grid);
        case K_F16: return float_type<__half>(d, a, grid);
        case K_BF16: return float_type<bf16>(d, a, grid);
        default: return -EINVAL;
        }
}
