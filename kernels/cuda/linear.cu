/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which kernel computes which part of a product:
 *   role D: planes and lattice formats -> int8 tensor cores (matvec, matvec_iq);
 *           F16 and BF16 -> tensor cores of their type (matvec_half); F32 -> f32
 *   role P: F32 weights -> f32; all others -> f16 tensor cores with f32 sums, from
 *           F16 as it lies, or weights decoded to f16 where they are multiplied (few
 *           rows, Hopper) or a slice at a time before (a slice stays in L2): same bits
 *   exact:  decoded to f32 (lattice formats a slice at a time), f32
 */
#include <errno.h>

#include "kernels/cuda/norm.cuh"

CUDA_FAMILY(linear)

static bool is_float(enum k_type t) { return t == K_F32 || t == K_F16 || t == K_BF16; }

/* Rows of a matrix that fit the decoding scratch. */
static uint32_t slice_rows(const struct cuda_dev *d, uint32_t kpad, size_t size, uint32_t rows) {
        size_t fit = d->s_dequant_bytes / (kpad * size) & ~(size_t)127;
        return (uint32_t)MIN(MAX(fit, (size_t)16), (size_t)rows);
}

/* y rows from float activations, any weight type. */
int cuda_linear_float(struct cuda_dev *d, const struct linear_out *o, const float *x, size_t x_stride, const struct jobs *jobs) {
        const struct k_weight *w = &o->w;
        struct float_weight f = {w->data, w->type, w->cols, w->rows, w->cols, w->scale, w->expert_stride, w->n_expert > 1};
        int r;

        if (cuda_is_half(d, w))
                return cuda_matvec_half(d, o, 1, x, x_stride, jobs);
        if (is_float(w->type))
                return cuda_matvec_float(d, &f, o->bias, o->y, o->y_stride, x, x_stride, jobs);
        if (jobs->expert || jobs->per_expert)
                return -EINVAL; /* callers go expert by expert */
        uint32_t kpad = kpad_of(w->cols), step = slice_rows(d, kpad, sizeof(float), w->rows);
        for (uint32_t r0 = 0; r0 < w->rows; r0 += step) {
                uint32_t n = MIN(step, w->rows - r0);
                if ((r = cuda_dequant(d, w, 0, r0, n, d->s_dequant, K_F32, kpad)) < 0)
                        return r;
                f = {d->s_dequant, K_F32, kpad, n, w->cols, w->scale, 0, 0};
                if ((r = cuda_matvec_float(d, &f, o->bias ? o->bias + r0 : NULL, o->y + r0, o->y_stride, x, x_stride, jobs)) < 0)
                        return r;
        }
        return 0;
}

int cuda_linear_int8(struct cuda_dev *d, const struct linear_out *out, uint32_t n_out, const uint8_t *image, uint32_t kpad, const struct jobs *jobs,
                     const struct matvec_with *with) {
        struct linear_out planes[K_LINEAR_MAX], lattices[K_LINEAR_MAX];
        uint32_t n_planes = 0, n_lattices = 0;

        for (uint32_t i = 0; i < n_out; i++)
                if (out[i].w.layout == K_LAYOUT_CUDA)
                        planes[n_planes++] = out[i];
                else
                        lattices[n_lattices++] = out[i];
        int r = n_planes ? cuda_matvec(d, planes, n_planes, image, kpad, jobs, with) : 0;
        return r || !n_lattices ? r : cuda_matvec_iq(d, lattices, n_lattices, image, kpad, jobs);
}

/* y rows from P images, by way of f16 weights. */
static int linear_f16(struct cuda_dev *d, const struct linear_out *o, const uint8_t *image, uint32_t kpad, uint32_t n_rows) {
        const struct k_weight *w = &o->w;
        uint32_t step = slice_rows(d, kpad, sizeof(__half), w->rows);
        struct matmul m = {};
        int r;

        m.x = image;
        m.m = n_rows;
        m.k = m.k_image = kpad;
        m.w_scale = w->scale;
        m.y_stride = o->y_stride;
        if (cuda_matmul_in_place(&m, w)) {
                m.n = w->rows;
                m.bias = o->bias;
                m.y = o->y;
                return cuda_matmul(d, &m);
        }
        m.w = (const __half *)d->s_dequant;
        m.w_stride = m.w_cols = kpad;
        for (uint32_t r0 = 0; r0 < w->rows; r0 += step) {
                m.n = MIN(step, w->rows - r0);
                if ((r = cuda_dequant(d, w, 0, r0, m.n, d->s_dequant, K_F16, kpad)) < 0)
                        return r;
                m.bias = o->bias ? o->bias + r0 : NULL;
                m.y = o->y + r0;
                if ((r = cuda_matmul(d, &m)) < 0)
                        return r;
        }
        return 0;
}

/* The n_p rows of role P of a product's outputs; those decoded where they are multiplied go type by type, one launch each. */
static int linear_p(struct cuda_dev *d, const struct cmd_linear *c, const uint8_t *image, uint32_t kpad, uint32_t n_p) {
        struct linear_out o[K_LINEAR_MAX];
        struct matmul m = {};
        bool done[K_LINEAR_MAX] = {};
        int r;

        m.x = image;
        m.m = n_p;
        m.k = m.k_image = kpad;
        for (uint32_t i = 0; i < c->n_out; i++) {
                uint32_t n = 0;
                if (done[i] || c->out[i].w.type == K_F32)
                        continue;
                const bool direct = cuda_direct_takes(d, &c->out[i].w, n_p);
                for (uint32_t j = i; j < (direct ? c->n_out : i + 1); j++) {
                        if (j > i && (c->out[j].w.type != c->out[i].w.type || !cuda_direct_takes(d, &c->out[j].w, n_p)))
                                continue;
                        o[n] = c->out[j];
                        o[n++].y += c->n_d * c->out[j].y_stride;
                        done[j] = true;
                }
                if ((r = direct ? cuda_matmul_direct(d, o, n, &m) : linear_f16(d, o, image, kpad, n_p)) < 0)
                        return r;
        }
        return 0;
}

/* ---- what runs with a product of role D ----------------------------------------------------- */

/* One kernel does it all: rows in order, all of role D, no weights but in planes. */
static bool linear_plain_d(const struct cuda_dev *d, const struct cmd_linear *c) {
        if (d->exact || c->gather || c->row0 || c->n_d != c->n_rows)
                return false;
        for (uint32_t i = 0; i < c->n_out; i++)
                if (c->out[i].w.layout != K_LAYOUT_CUDA)
                        return false;
        return true;
}

/* The next command adds this product, as it is, to its x. */
static bool linear_adds(const struct cuda_dev *d, const struct cmd_linear *c, const struct cmd_norm *n) {
        return n && linear_plain_d(d, c) && c->n_out == 1 && n->has_add && !n->add_norm_w && n->add.f == c->out[0].y && !n->gather &&
               n->n == c->n_rows && n->x.cols == c->out[0].w.rows && c->out[0].y_stride == n->x.cols;
}

/*
 * One row of role D, read where the norm writes it, and by at least one matrix in planes: the first launch leaves it in
 * memory for the others. While it does, no block may write what others of its blocks read: the norm's x.
 * The bits are the same either way.
 */
bool cuda_linear_norms(const struct cuda_dev *d, const struct cmd_linear *c, const struct cmd_norm *n) {
        bool planes = false;

        if (d->exact || c->n_rows != 1 || c->n_d != 1 || c->row0 || c->gather || c->make_image || !c->x.image || c->x.f != n->out.f ||
            c->x.q != n->out.q || c->x.cols != n->out.cols)
                return false;
        if (!norm_joins(n))
                return false;
        for (uint32_t i = 0; i < c->n_out; i++) {
                planes |= c->out[i].w.layout == K_LAYOUT_CUDA;
                if (!norm_apart(c->out[i].y, c->out[i].w.rows, n->x.f, n->x.cols))
                        return false;
        }
        return planes;
}

/* gate and up whose GLU is the next command: neither is ever written. 1: they run by themselves. */
static int linear_glu(struct cuda_dev *d, const struct cmd_linear *c, const struct cmd_glu *g, const struct matvec_with *with, const uint8_t *image,
                      uint32_t kpad) {
        const struct linear_out *gate = &c->out[0], *up = &c->out[1];

        if (!g || g->a.sparse_std != 0 || c->n_out != 2 || !linear_plain_d(d, c) || g->a.n != c->n_rows || g->n_d != c->n_rows || g->a.gate != gate->y ||
            g->a.up != up->y || g->a.gate_stride != gate->y_stride || g->a.up_stride != up->y_stride || g->out.cols != gate->w.rows ||
            (with->norm && !norm_apart(g->out.f, g->out.cols, with->norm->x, with->norm->cols)))
                return 1;
        struct jobs j = {};
        j.n = c->n_d;
        struct glu_out to = {(uint32_t)g->a.act, g->a.alpha, g->a.limit, g->out.f,
                             {g->write_image ? g->out.q : NULL, kpad_of(g->out.cols), g->n_d}, NULL};
        if (to.image.slots && c->n_rows == 1)
                to.mail_to = cuda_mail_box(d, to.image.kpad);
        int r = cuda_matvec_glu(d, gate, up, image, kpad, &j, with, &to);
        if (r > 0 && to.mail_to) {
                to.mail_to = NULL;
                r = cuda_matvec_glu(d, gate, up, image, kpad, &j, with, &to);
        }
        if (r == 0 && to.mail_to)
                cuda_mail_sent(d, to.image.slots, to.image.kpad, to.mail_to);
        return r;
}

bool cuda_linear_wants_image(const struct cuda_dev *d, const struct cmd_linear *c) {
        for (uint32_t i = 0; i < c->n_out && !d->exact; i++)
                if ((c->n_d && cuda_int8(d, &c->out[i].w)) || (c->n_d < c->n_rows && c->out[i].w.type != K_F32))
                        return true;
        return false;
}

int cuda_run_linear(struct cuda_dev *d, const struct dbatch *b, const struct cmd_linear *c, struct linear_with *lw) {
        const uint32_t cols = c->x.cols, kpad = kpad_of(cols), n_p = c->n_rows - c->n_d;
        const bool want_image = cuda_linear_wants_image(d, c);
        int r;

        for (uint32_t i = 0; i < c->n_out; i++)
                if (c->out[i].w.cols != cols)
                        return -EINVAL;

        /* image: slots of the rows [row0, ...); with gather, of the batch's rows. */
        const uint8_t *image = c->x.q, *image_p = NULL;
        const uint32_t *d_rows = NULL;
        if (c->make_image) {
                struct image img = {c->x.q, kpad, c->n_d};
                if ((r = cuda_quantize(d, c->x.f, cols, NULL, c->n_rows, cols, img)) < 0)
                        return r;
        } else if (want_image && !c->x.image) {
                if (c->n_rows > d->max_rows || cols > d->max_cols)
                        return -E2BIG;
                struct image img = {d->s_image, kpad, c->n_d};
                const float *x = c->gather ? c->x.f : c->x.f + (size_t)c->row0 * cols;
                if ((r = cuda_quantize(d, x, cols, c->gather, c->n_rows, cols, img)) < 0)
                        return r;
                image = d->s_image;
                image_p = image + c->n_d * image_slot(kpad);
        } else if (want_image && c->gather) {
                d_rows = c->gather;
                if (n_p) { /* the matrix product wants its rows side by side */
                        struct image img = {d->s_image, kpad, 0};
                        if ((r = cuda_quantize(d, c->x.f, cols, c->gather + c->n_d, n_p, cols, img)) < 0)
                                return r;
                        image_p = d->s_image;
                }
        } else if (want_image) {
                image = c->x.q + c->row0 * image_slot(kpad);
        }
        if (!image_p)
                image_p = image + c->n_d * image_slot(kpad);

        struct matvec_with with = {};
        struct norm_in norm = {};
        if (lw->norm) {
                norm = norm_of(d, lw->norm);
                with.norm = &norm;
        } else if (want_image && c->x.image && image == c->x.q && c->n_rows == 1 && c->n_d == 1 && !c->gather) {
                with.mail = cuda_mail_of(d, image, kpad);
        }
        if ((r = linear_glu(d, c, lw->glu, &with, image, kpad)) <= 0) {
                lw->glu_done = r == 0;
                return r;
        }
        if (!lw->norm && linear_adds(d, c, lw->add)) {
                with.add_to = lw->add->x.f;
                with.add_scale = lw->add->add_scale;
                if (c->n_rows == 1 && norm_whole(lw->add))
                        with.squares = d->squares;
                lw->add_done = true;
        }
        const float *xf = c->gather ? c->x.f : c->x.f + (size_t)c->row0 * cols;
        struct linear_out ints[K_LINEAR_MAX], halves[K_LINEAR_MAX], floats[K_LINEAR_MAX];
        uint32_t n_ints = 0, n_halves = 0, n_floats = 0;
        for (uint32_t i = 0; i < c->n_out; i++)
                if (c->n_d && cuda_int8(d, &c->out[i].w))
                        ints[n_ints++] = c->out[i];
                else if (c->n_d && cuda_is_half(d, &c->out[i].w))
                        halves[n_halves++] = c->out[i];
                else
                        floats[n_floats++] = c->out[i];
        if (n_ints) { /* first: a norm made by them is read by the others */
                struct jobs j = {};
                j.n = c->n_d;
                j.x_row = d_rows;
                r = cuda_linear_int8(d, ints, n_ints, image, kpad, &j, &with);
                if (r > 0 && with.norm) { /* nothing was launched */
                        if ((r = cuda_run_norm(d, b, lw->norm)) < 0)
                                return r;
                        lw->norm = NULL;
                        return cuda_run_linear(d, b, c, lw);
                }
                lw->squares_done = r == 0 && with.squares;
                if (r > 0) {
                        with.squares = NULL;
                        r = cuda_linear_int8(d, ints, n_ints, image, kpad, &j, &with);
                }
                if (r < 0)
                        return r;
        }
        if (n_halves) {
                struct jobs j = {};
                j.n = c->n_d;
                j.x_row = c->gather;
                if ((r = cuda_matvec_half(d, halves, n_halves, xf, cols, &j)) < 0)
                        return r;
        }
        for (uint32_t i = 0; i < n_floats; i++) {
                uint32_t n = d->exact || floats[i].w.type == K_F32 ? c->n_rows : c->n_d;
                if (n) {
                        struct jobs j = {};
                        j.n = n;
                        j.x_row = c->gather;
                        if ((r = cuda_linear_float(d, &floats[i], xf, cols, &j)) < 0)
                                return r;
                }
        }
        return n_p && !d->exact ? linear_p(d, c, image_p, kpad, n_p) : 0;
}

/* ---- per head ---------------------------------------------------------------------------- */

__global__ void __launch_bounds__(128) head_gather_kernel(const float *x, size_t x_stride, uint32_t x_head, uint32_t cols, uint32_t n_head,
                                                          float *to) {
        pdl_next();
        pdl_wait();
        uint32_t h = blockIdx.x, r = blockIdx.y;
        for (uint32_t c = threadIdx.x; c < cols; c += blockDim.x)
                to[((size_t)r * n_head + h) * cols + c] = x[r * x_stride + h * x_head + c];
}
__global__ void __launch_bounds__(128) head_tail_kernel(const float *x, size_t x_stride, uint32_t x_head, uint32_t cols, float *y,
                                                        size_t y_stride, uint32_t y_head, uint32_t rows, uint32_t tail) {
        pdl_next();
        pdl_wait();
        uint32_t h = blockIdx.x, r = blockIdx.y;
        for (uint32_t c = threadIdx.x; c < tail; c += blockDim.x)
                y[r * y_stride + h * y_head + rows + c] = x[r * x_stride + h * x_head + cols + c];
}

/*
 * All roles go through the kernels of role D (or f32): the matrices are small,
 * and a row's bits then depend on no one else.
 */
int cuda_run_head_linear(struct cuda_dev *d, const struct dbatch *, const struct cmd_head_linear *c) {
        const struct k_weight *w = &c->w;
        uint32_t heads = MAX(w->n_expert, 1u), kpad = kpad_of(w->cols);
        struct jobs j = {};
        int r;

        if ((size_t)heads * w->cols > d->max_cols && (size_t)c->a.n * heads * w->cols > (size_t)d->max_rows * d->max_cols)
                return -E2BIG;
        if (c->a.tail && (r = launch(d, "head tail", head_tail_kernel, dim3(heads, c->a.n), 128, 0, c->a.x, c->a.x_stride, c->a.x_head,
                                     w->cols, c->a.y, c->a.y_stride, c->a.y_head, w->rows, c->a.tail)) < 0)
                return r;
        if ((r = launch(d, "head rows", head_gather_kernel, dim3(heads, c->a.n), 128, 0, c->a.x, c->a.x_stride, c->a.x_head, w->cols,
                        heads, d->s_row)) < 0)
                return r;
        j.n = c->a.n;
        j.n_job = heads;
        j.per_expert = 1;
        j.y_job = c->a.y_head;
        struct linear_out o = {*w, NULL, c->a.y, c->a.y_stride};
        if (cuda_int8(d, w)) {
                uint32_t step = (uint32_t)MIN((size_t)c->a.n, d->s_dequant_bytes / (heads * image_slot(kpad)));
                if (step == 0)
                        return -E2BIG;
                for (uint32_t r0 = 0; r0 < c->a.n; r0 += step) {
                        uint32_t n = MIN(step, c->a.n - r0);
                        struct image img = {d->s_dequant, kpad, n * heads};
                        if ((r = cuda_quantize(d, d->s_row + (size_t)r0 * heads * w->cols, w->cols, NULL, n * heads, w->cols, img)) < 0)
                                return r;
                        j.n = n;
                        o.y = c->a.y + r0 * c->a.y_stride;
                        if ((r = cuda_linear_int8(d, &o, 1, d->s_dequant, kpad, &j, NULL)) < 0)
                                return r;
                }
                return 0;
        }
        if (is_float(w->type))
                return cuda_linear_float(d, &o, d->s_row, w->cols, &j);
        for (uint32_t h = 0; h < heads; h++) {
                struct linear_out oh = o;
                struct jobs jh = {};
                jh.n = c->a.n;
                oh.w.data = (const uint8_t *)w->data + h * w->expert_stride;
                oh.w.scale = w->scale ? w->scale + (w->n_expert > 1 ? h : 0) : NULL;
                oh.y = c->a.y + h * c->a.y_head;
                if ((r = cuda_linear_float(d, &oh, d->s_row + h * w->cols, (size_t)heads * w->cols, &jh)) < 0)
                        return r;
        }
        return 0;
}
