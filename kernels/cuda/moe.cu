/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixture of experts. D rows with matrices in planes need no lists (moe.cuh). For
 * P rows, and for D rows of other types (lattice formats, floats), one block per
 * role lists the pairs (row, rank) expert by expert; P pairs go through grouped
 * f16 products over all experts. A row's results are summed in order of rank.
 * Nothing here asks the host what was chosen.
 */
#include <errno.h>

#include "kernels/cuda/moe.cuh"

CUDA_FAMILY(moe)

enum { MAX_EXPERT = CUDA_EXPERTS };

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

/* ---- lists ---------------------------------------------------------------------------- */

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
        bool direct, direct_down; /* D rows without lists */
        struct moe_choice how;    /* of these */
        const struct cmd_norm *add; /* what adds the one row's sum to its x, to be done where it is made, or NULL */
};

/* Products of one role from float activations; expert by expert where weights must be decoded first. */
static int products_float(const struct moe_run *m, const struct moe_lists *l, uint32_t n_rows, const struct k_weight *w, const float *bias,
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
                return cuda_linear_float(m->d, &o, x, x_stride, &j);
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

/* Products of one role D matrix by lists: from int8 images, or float activations. */
static bool int8(const struct moe_run *m, const struct k_weight *w) { return cuda_int8(m->d, w); }
static int products_any(const struct moe_run *m, const struct moe_lists *l, uint32_t n_rows, const struct k_weight *w, const float *bias,
                        const float *x, size_t x_stride, const uint8_t *image, const uint32_t *x_row, float *y, size_t y_stride) {
        if (!int8(m, w))
                return products_float(m, l, n_rows, w, bias, x, x_stride, x_row, y, y_stride);
        struct linear_out o = {*w, bias, y, y_stride};
        struct jobs j = {};
        j.n_job = MIN(m->c->a.n_expert, n_rows * m->c->a.n_used);
        j.expert = l->expert;
        j.start = l->start;
        j.count = l->count;
        j.n = n_rows;
        j.x_row = x_row;
        j.y_row = l->pair;
        return cuda_linear_int8(m->d, &o, 1, image, kpad_of(w->cols), &j, NULL);
}

/* f16 products of the P pairs, sorted by expert; x: images by place. y_row: where a place's result goes. */
static int products_p(const struct moe_run *m, uint32_t n_rows, const struct k_weight *w, const float *bias, const uint8_t *x, float *y,
                      size_t y_stride, const uint32_t *y_row) {
        const uint32_t X = m->c->a.n_expert, kpad = kpad_of(w->cols);
        const size_t one = (size_t)w->rows * kpad;
        /* Whole experts, as many as there is room for; of one that is too large, a slice of its rows. */
        const size_t fit = m->d->s_dequant_bytes / (kpad * sizeof(__half)); /* rows */
        const uint32_t at_once = (uint32_t)MIN(MAX(fit / w->rows, (size_t)1), (size_t)X), step = fit >= w->rows ? w->rows : (uint32_t)(fit & ~(size_t)15);
        struct matmul p = {};
        uint32_t e0 = 0, r0 = 0;
        int r;

        p.x = x;
        p.k = p.k_image = kpad;
        p.m = n_rows; /* the most that one expert can have */
        p.m_all = n_rows * m->c->a.n_used;
        p.w_scale = w->scale;
        p.bias_group = w->rows;
        p.y_stride = y_stride;
        p.y_row = y_row;
        p.group_start = m->s.list[1].first;
        if (cuda_direct_takes(m->d, w, DIV_ROUND_UP(p.m_all, X))) {
                const struct linear_out o = {*w, bias, y, y_stride};
                p.n_group = X;
                return cuda_matmul_direct(m->d, &o, 1, &p);
        }
        if (cuda_matmul_in_place(&p, w)) {
                p.n = w->rows;
                p.bias = bias;
                p.y = y;
                p.n_group = X;
                p.w_group = (size_t)w->rows * w->cols;
                return cuda_matmul(m->d, &p);
        }
        if (step == 0)
                return -E2BIG;
        while (e0 < X) {
                const uint32_t n = MIN(at_once, X - e0), rows = MIN(step, w->rows - r0);
                r = rows == w->rows ? cuda_dequant_experts(m->d, w, e0, n, m->s.list[1].first, m->d->s_dequant, kpad)
                                    : cuda_dequant(m->d, w, e0, r0, rows, m->d->s_dequant, K_F16, kpad);
                if (r < 0)
                        return r;
                p.w = (const __half *)m->d->s_dequant;
                p.w_stride = p.w_cols = kpad;
                p.n = rows;
                p.bias = bias ? bias + r0 : NULL;
                p.y = y + r0;
                p.n_group = n;
                p.group0 = e0;
                p.w_group = one;
                if ((r = cuda_matmul(m->d, &p)) < 0)
                        return r;
                if ((r0 += rows) == w->rows) {
                        r0 = 0;
                        e0 += n;
                }
        }
        return 0;
}

static moe_side side_of(const struct k_weight *w, const float *bias, uint32_t row0, uint32_t rows) {
        moe_side s = {};
        s.w = planes_of(w->type, w->data, w->rows, w->cols);
        s.expert_stride = w->expert_stride;
        s.rg0 = row0 / CUDA_TILE_ROWS;
        s.n_rg = DIV_ROUND_UP(rows, (uint32_t)CUDA_TILE_ROWS);
        s.bias = bias;
        s.bias_stride = w->rows;
        s.bias0 = row0;
        s.scale = w->scale;
        s.many_scales = w->n_expert > 1;
        return s;
}

static void split(moe_product *p, uint32_t cols) {
        p->kpad = kpad_of(cols);
        p->n_sb = p->kpad / CUDA_TILE_COLS;
        p->per_warp = DIV_ROUND_UP(p->n_sb, 8u);
        p->ks = DIV_ROUND_UP(p->n_sb, p->per_warp);
}

static int product(struct cuda_dev *d, enum k_type t, enum moe_form form, const moe_product &p) {
        int r;
        if ((r = cuda_moe_a(d, t, form, p)) <= 0 || (r = cuda_moe_b(d, t, form, p)) <= 0 || (r = cuda_moe_c(d, t, form, p)) <= 0)
                return r;
        return -EINVAL;
}

/*
 * D rows whose matrices are in planes go without lists, by shape, type and card alone (cards of less shared memory have not
 * room for every type); down may still be of another kind.
 */
static void choose_direct(struct moe_run *m) {
        const struct cmd_moe *c = m->c;
        const bool fused = !c->gate.data;
        moe_product p = {};

        m->direct = m->direct_down = false;
        if (m->d->exact || c->up.layout != K_LAYOUT_CUDA ||
            !(fused ? m->ff % CUDA_TILE_ROWS == 0 : c->gate.layout == K_LAYOUT_CUDA && c->gate.type == c->up.type))
                return;
        p.n_used = c->a.n_used;
        p.n_expert = c->a.n_expert;
        split(&p, c->x.cols);
        m->direct = product(m->d, c->up.type, MOE_FITS, p) == 0;
        split(&p, m->ff);
        m->direct_down = m->direct && c->down.layout == K_LAYOUT_CUDA && product(m->d, c->down.type, MOE_FITS, p) == 0;
}

/* Rows [row0, row0 + n), few enough for a launch. ret_summed: y has the sum already. */
static int role_d_direct(const struct moe_run *m, const uint8_t *image, uint32_t row0, uint32_t n, bool sum) {
        const struct cmd_moe *c = m->c;
        const bool fused = !c->gate.data, down = m->direct_down;
        const uint32_t K = c->a.n_used;
        const size_t p0 = (size_t)row0 * K, kx = kpad_of(c->x.cols), kh = kpad_of(m->ff);
        moe_product p = {};
        int r;

        p.id = m->s.id + p0;
        p.weight = m->s.weight + p0;
        p.pairs = n * K;
        p.n_used = K;
        p.n_expert = c->a.n_expert;
        p.act = (uint32_t)c->a.act;
        p.alpha = c->a.alpha;
        p.limit = c->a.limit;
        p.rows = m->ff;
        p.side[0] = fused ? side_of(&c->up, c->a.up_b, 0, m->ff) : side_of(&c->gate, c->a.gate_b, 0, m->ff);
        p.side[1] = fused ? side_of(&c->up, c->a.up_b, m->ff, m->ff) : side_of(&c->up, c->a.up_b, 0, m->ff);
        p.x = image + row0 * image_slot(kx);
        p.image = int8(m, &c->down) ? m->s.image_h + p0 * image_slot(kh) : NULL;
        p.image_kpad = kh;
        p.y = m->s.h + p0 * m->ff;
        split(&p, c->x.cols);
        if ((r = product(m->d, c->up.type, m->how.up_alone ? MOE_GATE_UP_ALONE : MOE_GATE_UP, p)) < 0 || !down)
                return r;
        p.side[0] = side_of(&c->down, c->a.down_b, 0, m->dd);
        p.rows = m->dd;
        p.x = p.image;
        p.image = NULL;
        p.y = sum ? c->a.y + row0 * c->a.y_stride : m->s.o + p0 * m->dd;
        p.y_stride = c->a.y_stride;
        if (m->add) {
                p.add_to = m->add->x.f;
                p.add_scale = m->add->add_scale;
                p.squares = m->d->squares;
        }
        split(&p, m->ff);
        return product(m->d, c->down.type, sum ? MOE_DOWN_SUM : MOE_DOWN, p);
}

/* sum: y gets the rows' sums at once. */
static int role_d(const struct moe_run *m, const uint8_t *image, uint32_t n, bool sum) {
        const struct cmd_moe *c = m->c;
        const struct moe_lists *l = &m->s.list[0];
        const uint32_t K = c->a.n_used, ff = m->ff, step = MAX(MOE_PAIRS / K, 1u);
        const bool fused = !c->gate.data;
        int r;

        for (uint32_t r0 = 0; m->direct && r0 < n; r0 += step)
                if ((r = role_d_direct(m, image, r0, MIN(step, n - r0), sum)) < 0)
                        return r;
        if (m->direct_down)
                return 0;
        if (!m->direct) {
                r = fused ? 0 : products_any(m, l, n, &c->gate, c->a.gate_b, c->x.f, c->x.cols, image, l->row, m->s.up, 2 * (size_t)ff);
                if (r == 0)
                        r = products_any(m, l, n, &c->up, c->a.up_b, c->x.f, c->x.cols, image, l->row, m->s.up + (fused ? 0 : ff), 2 * (size_t)ff);
                if (r < 0)
                        return r;
                struct image img = {m->s.image_h, kpad_of(ff), n * K};
                if ((r = cuda_glu_rows(m->d, m->s.up, 2 * (size_t)ff, m->s.up + ff, 2 * (size_t)ff, c->a.act, c->a.alpha, c->a.limit, m->s.h, ff,
                                       n * K, int8(m, &c->down), img)) < 0)
                        return r;
        }
        return products_any(m, l, n, &c->down, c->a.down_b, m->s.h, ff, m->s.image_h, l->pair, m->s.o, m->dd);
}

/* n_d: D rows before them; pairs of P rows keep their numbers, places count from 0. */
static int role_p(const struct moe_run *m, const uint8_t *image, uint32_t n_d, uint32_t n) {
        const struct cmd_moe *c = m->c;
        const struct moe_lists *l = &m->s.list[1];
        const uint32_t K = c->a.n_used, ff = m->ff, kx = kpad_of(c->x.cols), kh = kpad_of(ff), pairs = n * K;
        const bool fused = !c->gate.data;
        int r;

        if (m->d->exact || c->up.type == K_F32 || c->down.type == K_F32 || (!fused && c->gate.type == K_F32)) {
                r = fused ? 0 : products_float(m, l, n, &c->gate, c->a.gate_b, c->x.f, c->x.cols, l->row, m->s.up, 2 * (size_t)ff);
                if (r == 0)
                        r = products_float(m, l, n, &c->up, c->a.up_b, c->x.f, c->x.cols, l->row, m->s.up + (fused ? 0 : ff), 2 * (size_t)ff);
                if (r < 0)
                        return r;
                struct image none = {NULL, kh, 0};
                size_t p0 = (size_t)n_d * K;
                if ((r = cuda_glu_rows(m->d, m->s.up + p0 * 2 * ff, 2 * (size_t)ff, m->s.up + p0 * 2 * ff + ff, 2 * (size_t)ff, c->a.act,
                                       c->a.alpha, c->a.limit, m->s.h + p0 * ff, ff, pairs, false, none)) < 0)
                        return r;
                return products_float(m, l, n, &c->down, c->a.down_b, m->s.h, ff, l->pair, m->s.o, m->dd);
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

bool cuda_moe_takes(const struct cuda_dev *d, const struct cmd_linear *l, const struct cmd_moe *c) {
        const struct linear_out *o = &l->out[0];
        return !d->exact && l->n_out == 1 && !l->gather && l->row0 == 0 && o->y == c->a.router && o->y_stride == c->a.router_stride &&
               o->w.type == K_F32 && !o->w.scale && o->w.rows == c->a.n_expert && o->w.cols % 4 == 0 && l->n_rows == c->a.n && l->n_d == c->a.n_d &&
               DIV_ROUND_UP(l->n_d, (uint32_t)MOE_ROUTE_ROWS) <= MOE_COUNTERS;
}

/* With fewer a launch for the norm alone is faster: gpt-oss-20b's 32 lost 4% with it in their blocks, 30B-A3B's 128 gained as much. */
enum : uint32_t { MOE_ROUTE_NORM_EXPERTS = 64 };

bool cuda_moe_norms(const struct cuda_dev *d, const struct cmd_linear *l, const struct cmd_moe *c, const struct cmd_norm *n) {
        const struct linear_out *o = &l->out[0];
        return !d->exact && norm_joins(n) && n->x.cols <= MOE_ROUTE_NORM_COLS && c->a.n_expert >= MOE_ROUTE_NORM_EXPERTS && c->a.n == 1 &&
               l->n_rows == 1 && l->n_d == 1 && l->x.f == n->out.f && l->x.cols == n->out.cols && c->x.f == n->out.f && c->x.q == n->out.q &&
               c->x.image == 2 && c->x.cols == n->out.cols &&
               norm_apart(o->y, o->w.rows, n->x.f, n->x.cols);
}

/* The next command adds the row's sum, as it is, to its x. */
static bool moe_adds(const struct moe_run *m, const struct cmd_norm *n) {
        return n && m->c->a.n == 1 && n->has_add && !n->add_norm_w && n->add.f == m->c->a.y && !n->gather && n->n == 1 && n->x.cols == m->dd &&
               norm_whole(n);
}

/* The choice for all rows; with a router its product, for D rows in the same launch. */
static int route(const struct moe_run *m, const struct moe_with *with, uint32_t n_d) {
        const struct cmd_moe *c = m->c;
        const struct cmd_linear *router = with->router;
        moe_route a = {c->a.router, c->a.select_bias, c->a.router_stride, n_d, c->a.n_expert, c->a.n_used, c->a.n_group, c->a.n_group_used,
                       (uint32_t)c->a.gating, c->a.norm_weights, c->a.weight_scale, m->s.id, m->s.weight};
        const uint32_t done = router ? n_d : 0;
        int r;

        if (done) {
                const struct linear_out *o = &router->out[0];
                struct norm_in norm = {};
                if (with->norm)
                        norm = norm_of(m->d, with->norm);
                if ((r = cuda_moe_route(m->d, a, (const float *)o->w.data, o->bias, router->x.f, router->x.cols, o->y, with->norm ? &norm : NULL)) < 0)
                        return r;
        }
        a.router += done * a.stride;
        a.n = c->a.n - done;
        a.id += done * a.n_used;
        a.weight += done * a.n_used;
        if (router && a.n) {
                const struct linear_out *o = &router->out[0];
                if ((r = cuda_moe_logits(m->d, a, (const float *)o->w.data, o->bias, router->x.f + (size_t)done * router->x.cols, router->x.cols,
                                         o->y + done * a.stride)) < 0)
                        return r;
        }
        return a.n ? cuda_moe_choose(m->d, a) : 0;
}

int cuda_run_moe_with(struct cuda_dev *d, const struct cmd_moe *c, struct moe_with *with) {
        struct moe_run m = {d, c, {}, c->down.cols, c->down.rows, false, false, {}, NULL};
        const uint32_t n = c->a.n, n_d = MIN(c->a.n_d, n), K = c->a.n_used, X = c->a.n_expert, kx = kpad_of(c->x.cols);
        int r;

        moe_cut(&m.s, (uint8_t *)c->a.scratch, n, K, m.dd, m.ff, X);
        if (m.s.bytes > c->a.scratch_bytes || X > MAX_EXPERT || n > d->max_rows || m.dd != c->x.cols) {
                cuda_fail(d, cudaErrorInvalidValue, "experts: more rows than reserved");
                return -EINVAL;
        }
        choose_direct(&m);
        if ((r = route(&m, with, n_d)) < 0)
                return r;
        if ((n_d < n || !m.direct_down) &&
            (r = launch(d, "expert lists", sort_kernel, 2, 1024, 0, m.s.id, K, X, n_d, n, m.s.list[0], m.s.list[1])) < 0)
                return r;
        const uint8_t *image = c->x.q;
        if (!d->exact && c->x.image != 1 + n_d) {
                struct image img = {d->s_image, kx, n_d};
                if ((r = cuda_quantize(d, c->x.f, c->x.cols, NULL, n, c->x.cols, img)) < 0)
                        return r;
                image = d->s_image;
        }
        m.how = cuda_moe_choice(d, c->up.type, m.ff, c->x.cols, n_d);
        const bool sum = n_d && m.how.down_alone && m.direct_down;
        if (sum && moe_adds(&m, with->add))
                m.add = with->add;
        if (n_d && (r = role_d(&m, image, n_d, sum)) < 0)
                return r;
        with->add_done = m.add;
        if (n_d < n && (r = role_p(&m, image, n_d, n - n_d)) < 0)
                return r;
        const uint32_t s0 = sum ? n_d : 0;
        return launch(d, "expert sum", moe_sum_kernel, dim3(DIV_ROUND_UP(m.dd, 256u), n - s0), 256, 0, m.s.o + (size_t)s0 * K * m.dd,
                      m.s.weight + (size_t)s0 * K, K, m.dd, c->a.y + s0 * c->a.y_stride, c->a.y_stride);
}

int cuda_run_moe(struct cuda_dev *d, const struct dbatch *, const struct cmd_moe *c) {
        struct moe_with with = {};
        return cuda_run_moe_with(d, c, &with);
}
