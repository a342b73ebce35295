/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixture of experts. Two launches choose and sort: routing (a warp per row),
 * then one block per role lists the pairs (row, rank) expert by expert. D pairs
 * go through the int8 products with one job per chosen expert; P pairs through
 * grouped f16 products over all experts. A row's results are summed in order of
 * rank. Nothing here asks the host what was chosen.
 */
#include <errno.h>

#include "kernels/cuda/cuda.cuh"

enum { MAX_EXPERT = 1024, MAX_GROUP = 256 };

struct moe_lists { /* of one role */
        uint32_t *expert, *start, *count; /* jobs, chosen experts only; the rest UINT32_MAX */
        uint32_t *first;                  /* [n_expert + 1] by expert */
        uint32_t *row, *pair;             /* by place */
        uint32_t *full_expert, *full_count; /* [n_expert] every expert as a job of its own */
};

struct moe_space {
        uint32_t *id;
        float *weight;
        struct moe_lists list[2]; /* D, P */
        float *up, *h, *o;        /* [pairs][2 ff], [pairs][ff], [pairs][d] */
        uint8_t *image_x, *image_h; /* of pairs: [pairs] slots */
        size_t bytes;
};

static size_t cut(size_t *at, size_t bytes) {
        size_t r = *at;
        *at += (bytes + 255) & ~(size_t)255;
        return r;
}

static void moe_cut(struct moe_space *s, uint8_t *base, uint32_t n, uint32_t n_used, uint32_t d, uint32_t ff, uint32_t n_expert) {
        size_t at = 0, pairs = (size_t)n * n_used;
#define TAKE(p, type, count) (p) = (type *)(base + cut(&at, (count) * sizeof(type)))
        TAKE(s->id, uint32_t, pairs);
        TAKE(s->weight, float, pairs);
        for (int i = 0; i < 2; i++) {
                struct moe_lists *l = &s->list[i];
                TAKE(l->expert, uint32_t, n_expert);
                TAKE(l->start, uint32_t, n_expert);
                TAKE(l->count, uint32_t, n_expert);
                TAKE(l->first, uint32_t, n_expert + 1);
                TAKE(l->row, uint32_t, pairs);
                TAKE(l->pair, uint32_t, pairs);
                TAKE(l->full_expert, uint32_t, n_expert);
                TAKE(l->full_count, uint32_t, n_expert);
        }
        TAKE(s->up, float, pairs * 2 * ff);
        TAKE(s->h, float, pairs * ff);
        TAKE(s->o, float, pairs * d);
        TAKE(s->image_x, uint8_t, pairs * image_slot(kpad_of(d)));
        TAKE(s->image_h, uint8_t, pairs * image_slot(kpad_of(ff)));
#undef TAKE
        s->bytes = at;
}

size_t cuda_moe_scratch(uint32_t n, uint32_t n_used, uint32_t d, uint32_t ff, uint32_t n_expert) {
        struct moe_space s;
        moe_cut(&s, NULL, n, n_used, d, ff, n_expert);
        return s.bytes;
}

/* ---- choice ---------------------------------------------------------------------------- */

struct route_args {
        const float *router, *select_bias;
        size_t stride;
        uint32_t n, n_expert, n_used, n_group, n_group_used, gating, norm_weights;
        float scale;
        uint32_t *id;
        float *weight;
};

/* One warp per row; ties go to the lowest index. */
__global__ void __launch_bounds__(32) route_kernel(const route_args a) {
        extern __shared__ float sm[];
        float *prob = sm, *choice = sm + a.n_expert;
        __shared__ float score[MAX_GROUP];
        const uint32_t lane = threadIdx.x, row = blockIdx.x, X = a.n_expert;

        pdl_next();
        pdl_wait();
        const float *x = a.router + row * a.stride;
        float m = -INFINITY, sum = 0;
        for (uint32_t e = lane; e < X; e += 32)
                m = fmaxf(m, x[e]);
        m = warp_max(m);
        for (uint32_t e = lane; e < X; e += 32) {
                float v = x[e];
                if (a.gating == K_GATE_SOFTMAX)
                        sum += v = expf(v - m);
                else if (a.gating == K_GATE_SIGMOID)
                        v = sigmoid(v);
                prob[e] = v;
        }
        if (a.gating == K_GATE_SOFTMAX)
                sum = 1.0f / warp_sum(sum);
        for (uint32_t e = lane; e < X; e += 32) {
                if (a.gating == K_GATE_SOFTMAX)
                        prob[e] *= sum;
                choice[e] = prob[e] + (a.select_bias ? a.select_bias[e] : 0);
        }
        __syncwarp();
        if (a.n_group) { /* a group counts by its two best experts */
                uint32_t per = X / a.n_group;
                for (uint32_t g = lane; g < a.n_group; g += 32) {
                        float b1 = -INFINITY, b2 = -INFINITY;
                        for (uint32_t e = g * per; e < (g + 1) * per; e++) {
                                float v = choice[e];
                                b2 = v > b1 ? b1 : fmaxf(b2, v);
                                b1 = fmaxf(b1, v);
                        }
                        score[g] = b2 == -INFINITY ? b1 : b1 + b2;
                }
                __syncwarp();
                for (uint32_t g = lane; g < a.n_group; g += 32) {
                        uint32_t better = 0;
                        for (uint32_t o = 0; o < a.n_group; o++)
                                better += score[o] > score[g] || (score[o] == score[g] && o < g);
                        if (better >= a.n_group_used)
                                for (uint32_t e = g * per; e < (g + 1) * per; e++)
                                        choice[e] = -INFINITY;
                }
                __syncwarp();
        }
        float w = 0; /* lane k: the weight of rank k */
        for (uint32_t k = 0; k < a.n_used; k++) {
                float best = -INFINITY;
                uint32_t at = UINT32_MAX;
                for (uint32_t e = lane; e < X; e += 32)
                        if (at == UINT32_MAX ? !isnan(choice[e]) : choice[e] > best) {
                                best = choice[e];
                                at = e;
                        }
#pragma unroll
                for (int o = 16; o; o >>= 1) {
                        float v = __shfl_xor_sync(~0u, best, o);
                        uint32_t i = __shfl_xor_sync(~0u, at, o);
                        if (i != UINT32_MAX && (at == UINT32_MAX || v > best || (v == best && i < at))) {
                                best = v;
                                at = i;
                        }
                }
                if (at == UINT32_MAX)
                        at = k; /* only NaN left */
                if (lane == k)
                        w = prob[at];
                __syncwarp(); /* every lane has read its choices before one of them changes */
                if (lane == 0) {
                        a.id[row * a.n_used + k] = at;
                        choice[at] = NAN; /* taken */
                }
                __syncwarp();
        }
        bool on = lane < a.n_used;
        if (a.gating == K_GATE_SOFTMAX_TOPK) {
                float t = warp_max(on ? w : -INFINITY);
                w = on ? expf(w - t) : 0;
                w /= warp_sum(w);
        }
        if (a.norm_weights)
                w /= fmaxf(warp_sum(on ? w : 0), 6.103515625e-5f);
        if (on)
                a.weight[row * a.n_used + lane] = w * a.scale;
}

/* Block 0: pairs of D rows, block 1: of P rows. Counting sort by expert. */
__global__ void __launch_bounds__(1024) sort_kernel(const uint32_t *id, uint32_t n_used, uint32_t n_expert, uint32_t n_d, uint32_t n,
                                                    struct moe_lists ld, struct moe_lists lp) {
        __shared__ uint32_t count[MAX_EXPERT], first[MAX_EXPERT + 1], jobs;
        const struct moe_lists &l = blockIdx.x ? lp : ld;
        const uint32_t p0 = (blockIdx.x ? n_d : 0) * n_used, p1 = (blockIdx.x ? n : n_d) * n_used;

        pdl_next();
        pdl_wait();
        for (uint32_t e = threadIdx.x; e < n_expert; e += blockDim.x)
                count[e] = 0;
        __syncthreads();
        for (uint32_t p = p0 + threadIdx.x; p < p1; p += blockDim.x)
                atomicAdd(&count[id[p]], 1);
        __syncthreads();
        if (threadIdx.x < 32) { /* prefix sums by one warp: places, and the numbers of the jobs */
                uint32_t base = 0, job = 0;
                for (uint32_t e0 = 0; e0 < n_expert; e0 += 32) {
                        uint32_t e = e0 + threadIdx.x, c = e < n_expert ? count[e] : 0, s = c;
                        for (int o = 1; o < 32; o *= 2) {
                                uint32_t v = __shfl_up_sync(~0u, s, o);
                                s += threadIdx.x >= o ? v : 0;
                        }
                        uint32_t some = __ballot_sync(~0u, c != 0), j = job + __popc(some & ((1u << threadIdx.x) - 1));
                        if (e < n_expert) {
                                first[e] = base + s - c;
                                l.first[e] = base + s - c;
                                l.full_expert[e] = c ? e : UINT32_MAX;
                                l.full_count[e] = c;
                                if (c) {
                                        l.expert[j] = e;
                                        l.start[j] = base + s - c;
                                        l.count[j] = c;
                                }
                        }
                        base += __shfl_sync(~0u, s, 31);
                        job += __popc(some);
                }
                if (threadIdx.x == 0) {
                        l.first[n_expert] = base;
                        jobs = job;
                }
        }
        __syncthreads();
        for (uint32_t j = jobs + threadIdx.x; j < n_expert; j += blockDim.x)
                l.expert[j] = UINT32_MAX;
        for (uint32_t p = p0 + threadIdx.x; p < p1; p += blockDim.x) {
                uint32_t place = atomicAdd(&first[id[p]], 1);
                l.row[place] = p / n_used;
                l.pair[place] = p;
        }
}

/* Places' images from rows' images, whole slots. */
__global__ void __launch_bounds__(128) gather_slots_kernel(const uint8_t *from, uint8_t *to, const uint32_t *row, size_t slot) {
        pdl_next();
        pdl_wait();
        const uint4 *s = (const uint4 *)(from + row[blockIdx.x] * slot);
        uint4 *d = (uint4 *)(to + blockIdx.x * slot);
        for (uint32_t i = threadIdx.x; i < slot / 16; i += blockDim.x)
                d[i] = s[i];
}

__global__ void __launch_bounds__(256) moe_sum_kernel(const float *o, const float *weight, uint32_t n_used, uint32_t d, float *y, size_t y_stride) {
        pdl_next();
        pdl_wait();
        uint32_t c = blockIdx.x * 256 + threadIdx.x, row = blockIdx.y;
        if (c >= d)
                return;
        float v = 0;
        for (uint32_t k = 0; k < n_used; k++)
                v = __fmaf_rn(weight[row * n_used + k], o[((size_t)row * n_used + k) * d + c], v);
        y[row * y_stride + c] = v;
}

/* ---- products ------------------------------------------------------------------------------ */

struct moe_run {
        struct cuda_dev *d;
        const struct cmd_moe *c;
        struct moe_space s;
        uint32_t ff, dd; /* of the experts' middle, of their result */
};

/* f32 products of one role; expert by expert where weights must be decoded first. */
static int products_f32(const struct moe_run *m, const struct moe_lists *l, uint32_t n_rows, const struct k_weight *w, const float *bias,
                        const float *x, size_t x_stride, const uint32_t *x_row, float *y, size_t y_stride) {
        struct linear_out o = {*w, bias, y, y_stride};
        struct jobs j = {};
        const uint32_t X = m->c->a.n_expert;
        int r;

        j.n = n_rows;
        j.x_row = x_row;
        j.y_row = l->pair;
        if (w->type == K_F32 || w->type == K_F16 || w->type == K_BF16) {
                j.n_job = MIN(X, n_rows * m->c->a.n_used);
                j.expert = l->expert;
                j.start = l->start;
                j.count = l->count;
                return cuda_linear_f32(m->d, &o, x, x_stride, &j);
        }
        uint32_t kpad = kpad_of(w->cols);
        uint32_t step = (uint32_t)MIN((m->d->s_dequant_bytes / (kpad * sizeof(float))) & ~(size_t)15, (size_t)w->rows);
        for (uint32_t e = 0; e < X; e++)
                for (uint32_t r0 = 0; r0 < w->rows; r0 += step) {
                        uint32_t n = MIN(step, w->rows - r0);
                        if ((r = cuda_dequant(m->d, w, e, r0, n, m->d->s_dequant, K_F32, kpad)) < 0)
                                return r;
                        struct float_weight f = {m->d->s_dequant, K_F32, kpad, n, w->cols, w->scale ? w->scale + e : NULL, 0, 0};
                        struct jobs je = j;
                        je.n_job = 1;
                        je.expert = l->full_expert + e;
                        je.start = l->first + e;
                        je.count = l->full_count + e;
                        /* the kernel steps 'expert * rows' into the bias: take back what this slice's row count gets wrong */
                        const float *b = bias ? bias + (size_t)e * w->rows + r0 - (size_t)e * n : NULL;
                        if ((r = cuda_matvec_float(m->d, &f, b, y + r0, y_stride, x, x_stride, &je)) < 0)
                                return r;
                }
        return 0;
}

/* f16 products of the P pairs, sorted by expert; x: images by place. y_row: where a place's result goes. */
static int products_p(const struct moe_run *m, uint32_t n_rows, const struct k_weight *w, const float *bias, const uint8_t *x, float *y,
                      size_t y_stride, const uint32_t *y_row) {
        const uint32_t X = m->c->a.n_expert, kpad = kpad_of(w->cols);
        const size_t one = (size_t)w->rows * kpad;
        uint32_t at_once = (uint32_t)MIN(m->d->s_dequant_bytes / (one * sizeof(__half)), (size_t)X);
        int r;

        if (at_once == 0)
                return -E2BIG;
        for (uint32_t e0 = 0; e0 < X; e0 += at_once) {
                uint32_t n = MIN(at_once, X - e0);
                if ((r = cuda_dequant_experts(m->d, w, e0, n, m->s.list[1].first, m->d->s_dequant, kpad)) < 0)
                        return r;
                struct matmul p = {};
                p.x = x;
                p.k = p.k_image = kpad;
                p.w = (const __half *)m->d->s_dequant;
                p.w_stride = kpad;
                p.m = n_rows; /* the most that one expert can have */
                p.m_all = n_rows * m->c->a.n_used;
                p.n = w->rows;
                p.w_scale = w->scale;
                p.bias = bias;
                p.bias_group = w->rows;
                p.y = y;
                p.y_stride = y_stride;
                p.y_row = y_row;
                p.n_group = n;
                p.group0 = e0;
                p.group_start = m->s.list[1].first;
                p.w_group = one;
                if ((r = cuda_matmul(m->d, &p)) < 0)
                        return r;
        }
        return 0;
}

static int role_d(const struct moe_run *m, const uint8_t *image, uint32_t n) {
        const struct cmd_moe *c = m->c;
        const struct moe_lists *l = &m->s.list[0];
        const uint32_t K = c->a.n_used, ff = m->ff, kx = kpad_of(c->x.cols), kh = kpad_of(ff);
        const bool fused = !c->gate.data, int8 = !m->d->exact && c->up.layout == K_LAYOUT_CUDA && (fused || c->gate.layout == K_LAYOUT_CUDA);
        const bool int8_down = !m->d->exact && c->down.layout == K_LAYOUT_CUDA;
        struct jobs j = {};
        int r;

        j.n_job = MIN(c->a.n_expert, n * K);
        j.expert = l->expert;
        j.start = l->start;
        j.count = l->count;
        j.n = n;
        j.y_row = l->pair;
        if (int8) {
                struct linear_out o[2];
                uint32_t no = 0;
                if (!fused)
                        o[no++] = {c->gate, c->a.gate_b, m->s.up, 2 * (size_t)ff};
                o[no++] = {c->up, c->a.up_b, m->s.up + (fused ? 0 : ff), 2 * (size_t)ff};
                j.x_row = l->row;
                r = cuda_matvec(m->d, o, no, image, kx, &j);
        } else {
                r = fused ? 0 : products_f32(m, l, n, &c->gate, c->a.gate_b, c->x.f, c->x.cols, l->row, m->s.up, 2 * (size_t)ff);
                if (r == 0)
                        r = products_f32(m, l, n, &c->up, c->a.up_b, c->x.f, c->x.cols, l->row, m->s.up + (fused ? 0 : ff), 2 * (size_t)ff);
        }
        if (r < 0)
                return r;
        struct image img = {m->s.image_h, kh, n * K};
        if ((r = cuda_glu_rows(m->d, m->s.up, 2 * (size_t)ff, m->s.up + ff, 2 * (size_t)ff, c->a.act, c->a.alpha, c->a.limit, m->s.h, ff,
                               n * K, int8_down, img)) < 0)
                return r;
        if (!int8_down)
                return products_f32(m, l, n, &c->down, c->a.down_b, m->s.h, ff, l->pair, m->s.o, m->dd);
        struct linear_out o = {c->down, c->a.down_b, m->s.o, m->dd};
        j.x_row = l->pair;
        return cuda_matvec(m->d, &o, 1, m->s.image_h, kh, &j);
}

/* n_d: D rows before them; pairs of P rows keep their numbers, places count from 0. */
static int role_p(const struct moe_run *m, const uint8_t *image, uint32_t n_d, uint32_t n) {
        const struct cmd_moe *c = m->c;
        const struct moe_lists *l = &m->s.list[1];
        const uint32_t K = c->a.n_used, ff = m->ff, kx = kpad_of(c->x.cols), kh = kpad_of(ff), pairs = n * K;
        const bool fused = !c->gate.data;
        int r;

        if (m->d->exact || c->up.type == K_F32 || c->down.type == K_F32 || (!fused && c->gate.type == K_F32)) {
                r = fused ? 0 : products_f32(m, l, n, &c->gate, c->a.gate_b, c->x.f, c->x.cols, l->row, m->s.up, 2 * (size_t)ff);
                if (r == 0)
                        r = products_f32(m, l, n, &c->up, c->a.up_b, c->x.f, c->x.cols, l->row, m->s.up + (fused ? 0 : ff), 2 * (size_t)ff);
                if (r < 0)
                        return r;
                struct image none = {NULL, kh, 0};
                size_t p0 = (size_t)n_d * K;
                if ((r = cuda_glu_rows(m->d, m->s.up + p0 * 2 * ff, 2 * (size_t)ff, m->s.up + p0 * 2 * ff + ff, 2 * (size_t)ff, c->a.act,
                                       c->a.alpha, c->a.limit, m->s.h + p0 * ff, ff, pairs, false, none)) < 0)
                        return r;
                return products_f32(m, l, n, &c->down, c->a.down_b, m->s.h, ff, l->pair, m->s.o, m->dd);
        }
        /* By place from here on; D pairs used the front of the same buffers, so go behind them. */
        const size_t p0 = (size_t)n_d * K;
        uint8_t *ix = m->s.image_x + p0 * image_slot(kx), *ih = m->s.image_h + p0 * image_slot(kh);
        float *up = m->s.up + p0 * 2 * ff, *h = m->s.h + p0 * ff;
        if ((r = launch(m->d, "gather", gather_slots_kernel, pairs, 128, 0, image, ix, l->row, image_slot(kx))) < 0)
                return r;
        if (!fused && (r = products_p(m, n, &c->gate, c->a.gate_b, ix, up, 2 * (size_t)ff, NULL)) < 0)
                return r;
        if ((r = products_p(m, n, &c->up, c->a.up_b, ix, up + (fused ? 0 : ff), 2 * (size_t)ff, NULL)) < 0)
                return r;
        struct image img = {ih, kh, 0};
        if ((r = cuda_glu_rows(m->d, up, 2 * (size_t)ff, up + ff, 2 * (size_t)ff, c->a.act, c->a.alpha, c->a.limit, h, ff, pairs, true,
                               img)) < 0)
                return r;
        return products_p(m, n, &c->down, c->a.down_b, ih, m->s.o, m->dd, l->pair);
}

int cuda_run_moe(struct cuda_dev *d, const struct dbatch *, const struct cmd_moe *c) {
        struct moe_run m = {d, c, {}, c->down.cols, c->down.rows};
        const uint32_t n = c->a.n, n_d = MIN(c->a.n_d, n), K = c->a.n_used, X = c->a.n_expert, kx = kpad_of(c->x.cols);
        int r;

        moe_cut(&m.s, (uint8_t *)c->a.scratch, n, K, m.dd, m.ff, X);
        if (m.s.bytes > c->a.scratch_bytes || c->a.weight_before || c->a.n_group > MAX_GROUP || X > MAX_EXPERT || n > d->max_rows ||
            m.dd != c->x.cols) {
                cuda_fail(d, cudaErrorInvalidValue, "experts: more rows than reserved, or weights before the experts");
                return -EINVAL;
        }
        route_args a = {c->a.router, c->a.select_bias, c->a.router_stride, n, X, K, c->a.n_group, c->a.n_group_used, (uint32_t)c->a.gating,
                        c->a.norm_weights, c->a.weight_scale, m.s.id, m.s.weight};
        if ((r = launch(d, "routing", route_kernel, n, 32, 2 * (size_t)X * sizeof(float), a)) < 0 ||
            (r = launch(d, "expert lists", sort_kernel, 2, 1024, 0, m.s.id, K, X, n_d, n, m.s.list[0], m.s.list[1])) < 0)
                return r;
        const uint8_t *image = c->x.q;
        if (!d->exact && c->x.image != 1 + n_d) {
                struct image img = {d->s_image, kx, n_d};
                if ((r = cuda_quantize(d, c->x.f, c->x.cols, NULL, n, c->x.cols, img)) < 0)
                        return r;
                image = d->s_image;
        }
        if (n_d && (r = role_d(&m, image, n_d)) < 0)
                return r;
        if (n_d < n && (r = role_p(&m, image, n_d, n - n_d)) < 0)
                return r;
        return launch(d, "expert sum", moe_sum_kernel, dim3(DIV_ROUND_UP(m.dd, 256u), n), 256, 0, m.s.o, m.s.weight, K, m.dd, c->a.y,
                      c->a.y_stride);
}
