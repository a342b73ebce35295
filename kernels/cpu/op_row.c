/* SPDX-License-Identifier: Apache-2.0 */
/* Ops that treat each row by itself: embed, norm, glu, elem. */
#include "kernels/cpu/ops.h"

#include <math.h>
#include <string.h>

/* ---- embed ----------------------------------------------------------------- */

struct embed_run {
        struct k_cpu *cpu;
        const struct k_cpu_vec *vec;
        const struct k_batch *bt;
        const struct k_embed_args *a;
};

static void embed_task(void *arg, uint32_t row, uint32_t worker) {
        const struct embed_run *e = arg;
        const struct k_embed_args *a = e->a;
        uint32_t cols = a->w->cols, index = 0;
        float *out = a->out->f + (size_t)row * cols, *dst = a->add ? k_cpu_scratch(e->cpu, worker) : out;

        if (a->index == K_EMBED_TOKEN)
                index = e->bt->token[row];
        else if (a->index == K_EMBED_POS)
                index = (uint32_t)e->bt->pos[row];
        k_cpu_weight_row(a->w, 0, index, dst);
        if (a->w->scale)
                e->vec->scale(dst, dst, cols, a->w->scale[0]);
        if (a->add)
                e->vec->axpy(out, dst, cols, 1, a->scale);
        else if (a->scale != 1)
                e->vec->scale(out, out, cols, a->scale);
}

int k_cpu_embed(struct k_dev *dev, const struct k_batch *bt, const struct k_embed_args *a) {
        struct k_cpu *cpu = k_cpu(dev);
        struct embed_run e = { cpu, k_cpu_vec(cpu), bt, a };

        for (uint32_t i = 0; i < bt->n; i++)
                if ((a->index == K_EMBED_TOKEN && bt->token[i] >= a->w->rows) ||
                    (a->index == K_EMBED_POS && (bt->pos[i] < 0 || (uint32_t)bt->pos[i] >= a->w->rows)))
                        return k_cpu_refuse(cpu, "embed", "index outside the table");
        if (a->add && (size_t)a->w->cols * sizeof(float) > cpu->scratch_bytes)
                return k_cpu_refuse(cpu, "embed", "rows wider than reserved");
        a->out->q_kind = 0;
        k_cpu_tasks(cpu, embed_task, &e, bt->n, (uint64_t)bt->n * a->w->cols);
        return 0;
}

/* ---- norm ------------------------------------------------------------------- */

struct norm_run {
        const struct k_cpu_vec *vec;
        const struct k_norm_args *a;
        uint32_t n, per;
};

static void norm_span(const struct k_cpu_vec *vec, const struct k_norm_args *a, float *y, const float *x, uint32_t n, const float *w,
                      const float *b, float out_scale) {
        float mean = 0, ss, scale = 1;

        switch (a->kind) {
        case K_NORM_RMS:
                ss = vec->sum_squares(x, n, 0);
                scale = 1.0f / sqrtf(ss / (float)n + a->eps);
                break;
        case K_NORM_LAYER:
                mean = vec->sum(x, n) / (float)n;
                ss = vec->sum_squares(x, n, mean);
                scale = 1.0f / sqrtf(ss / (float)n + a->eps);
                break;
        case K_NORM_L2:
                ss = vec->sum_squares(x, n, 0);
                scale = 1.0f / sqrtf(ss + a->eps);
                break;
        }
        /* a bias is scaled too: fold the factor only where there is none */
        vec->norm(y, x, n, mean, b ? scale : scale * out_scale, w, b);
        if (b && out_scale != 1)
                vec->scale(y, y, n, out_scale);
}

static void norm_row(const struct norm_run *r, uint32_t i) {
        const struct k_norm_args *a = r->a;
        uint32_t cols = a->x->cols, g = a->group ? a->group : cols, row = a->gather ? a->gather[i] : i;
        float *x = a->x->f + (size_t)row * cols;

        if (a->add) {
                float *add = a->add->f + (size_t)row * cols;

                if (a->add_norm_w)
                        norm_span(r->vec, a, add, add, cols, a->add_norm_w, a->add_norm_b, 1);
                r->vec->axpy(x, add, cols, 1, a->add_scale);
        }
        if (a->out)
                for (uint32_t c = 0; c < cols; c += g)
                        norm_span(r->vec, a, a->out->f + (size_t)i * a->out->cols + a->out_col + c, x + c, g, a->w, a->b,
                                  a->out_scale);
}

static void norm_task(void *arg, uint32_t task, uint32_t worker) {
        const struct norm_run *r = arg;

        (void)worker;
        for (uint32_t i = task * r->per; i < MIN((task + 1) * r->per, r->n); i++)
                norm_row(r, i);
}

int k_cpu_norm(struct k_dev *dev, const struct k_batch *bt, const struct k_norm_args *a) {
        struct k_cpu *cpu = k_cpu(dev);
        struct norm_run r = { .vec = k_cpu_vec(cpu), .a = a, .n = a->gather ? a->n_rows : bt->n };

        if (a->group && a->x->cols % a->group)
                return k_cpu_refuse(cpu, "norm", "columns are no multiple of the group");
        if (a->out && a->out->cols < a->out_col + a->x->cols)
                return k_cpu_refuse(cpu, "norm", "the result is wider than its place");
        if (a->out)
                a->out->q_kind = 0;
        r.per = k_cpu_rows_per_task(cpu, r.n);
        k_cpu_tasks(cpu, norm_task, &r, DIV_ROUND_UP(r.n, r.per), (uint64_t)r.n * a->x->cols);
        return 0;
}

/* ---- glu --------------------------------------------------------------------- */

struct glu_run {
        struct k_cpu *cpu;
        const struct k_cpu_vec *vec;
        const struct k_glu_args *a;
        uint32_t per;
};

/* What of a row of gates exceeds its mean by so many standard deviations, the rest 0 (gemma3n). */
static const float *sparse_gate(const struct k_cpu_vec *vec, float *out, const float *g, uint32_t n, float n_std) {
        float mean = vec->sum(g, n) / (float)n, cut = mean + n_std * sqrtf(vec->sum_squares(g, n, mean) / (float)n);

        for (uint32_t i = 0; i < n; i++)
                out[i] = g[i] > cut ? g[i] - cut : 0;
        return out;
}

static void glu_task(void *arg, uint32_t task, uint32_t worker) {
        const struct glu_run *r = arg;
        const struct k_glu_args *a = r->a;
        uint32_t cols = a->out->cols;

        for (uint32_t i = task * r->per; i < MIN((task + 1) * r->per, a->n); i++) {
                const float *gate = a->gate ? a->gate + i * a->gate_stride : NULL;

                if (gate && a->sparse_std != 0)
                        gate = sparse_gate(r->vec, k_cpu_scratch(r->cpu, worker), gate, cols, a->sparse_std);
                r->vec->glu(a->act, a->out->f + (size_t)i * cols, gate, a->up + i * a->up_stride, cols, a->alpha, a->limit);
        }
}

int k_cpu_glu(struct k_dev *dev, const struct k_batch *bt, const struct k_glu_args *a) {
        struct k_cpu *cpu = k_cpu(dev);
        struct glu_run r = { cpu, k_cpu_vec(cpu), a, k_cpu_rows_per_task(cpu, a->n) };

        (void)bt;
        if (a->sparse_std != 0 && (size_t)a->out->cols * sizeof(float) > cpu->scratch_bytes)
                return k_cpu_refuse(cpu, "glu", "rows wider than reserved");
        a->out->q_kind = 0;
        k_cpu_tasks(cpu, glu_task, &r, DIV_ROUND_UP(a->n, r.per), (uint64_t)a->n * a->out->cols * 4);
        return 0;
}

/* ---- elem --------------------------------------------------------------------- */

struct elem_run {
        const struct k_cpu_vec *vec;
        const struct k_elem_args *a;
        uint32_t per;
};

static void elem_row(const struct k_cpu_vec *vec, const struct k_elem_args *a, uint32_t i) {
        float *y = a->y + i * a->y_stride;
        const float *x = a->x ? a->x + (a->gather ? a->gather[i] : i) * a->x_stride : NULL;

        switch (a->op) {
        case K_ELEM_AXPY:
                vec->axpy(y, x, a->cols, a->a, a->b);
                break;
        case K_ELEM_COPY:
                memcpy(y, x, a->cols * sizeof(float));
                break;
        case K_ELEM_SCALE:
                vec->scale(y, y, a->cols, a->a);
                break;
        case K_ELEM_SOFTCAP:
                vec->softcap(y, a->cols, a->a, a->b);
                break;
        case K_ELEM_MUL:
                vec->mul(y, x, a->cols);
                break;
        case K_ELEM_MUL_SIGMOID:
                vec->mul_sigmoid(y, x, a->cols);
                break;
        case K_ELEM_MUL_SILU:
                vec->mul_silu(y, x, a->cols);
                break;
        case K_ELEM_MUL_SIGMOID_ROW:
                vec->scale(y, y, a->cols, 1.0f / (1.0f + expf(-x[0])));
                break;
        case K_ELEM_MUL_VEC:
                vec->mul(y, a->x, a->cols);
                break;
        }
}

static void elem_task(void *arg, uint32_t task, uint32_t worker) {
        const struct elem_run *r = arg;

        (void)worker;
        for (uint32_t i = task * r->per; i < MIN((task + 1) * r->per, r->a->n); i++)
                elem_row(r->vec, r->a, i);
}

int k_cpu_elem(struct k_dev *dev, const struct k_batch *bt, const struct k_elem_args *a) {
        struct k_cpu *cpu = k_cpu(dev);
        struct elem_run r = { k_cpu_vec(cpu), a, k_cpu_rows_per_task(cpu, a->n) };

        (void)bt;
        k_cpu_tasks(cpu, elem_task, &r, DIV_ROUND_UP(a->n, r.per), (uint64_t)a->n * a->cols);
        return 0;
}
