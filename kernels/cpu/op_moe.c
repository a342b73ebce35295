/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixture of experts, and the per-head products of latent attention: many small
 * matrices from one stack.
 *
 * Pairs (row, rank) are sorted by expert, so that an expert's weights are read
 * once for all rows that chose it; a product's bits do not depend on the other
 * rows (cpu.h), and a row's results are summed in order of rank.
 */
#include "kernels/cpu/ops.h"

#include <math.h>
#include <string.h>

/* ---- choice ---------------------------------------------------------------------- */

struct moe_run {
        struct k_cpu *cpu;
        const struct k_cpu_vec *vec;
        const struct k_moe_args *a;
        uint32_t n_pair, d, ff;
        uint32_t *id;       /* [n][n_used] expert of each rank */
        float *weight;      /* [n][n_used] */
        uint32_t *pair;     /* [n][n_used] place in expert order */
        uint32_t *row;      /* [n_pair] row of each place */
        uint32_t *first;    /* [n_expert + 1] */
        float *prob;        /* [n][n_expert], then what the choice goes by */
        float *up, *h, *o;  /* [n_pair][2 ff], [n_pair][ff], [n_pair][d] */
        uint8_t *image, *image2;
        struct k_cpu_gemm *job;
        uint32_t per;
};

struct cut {
        uint8_t *base;
        size_t at;
};

static void *take(struct cut *c, size_t n, size_t size) {
        void *p = c->base ? c->base + c->at : NULL;

        c->at += (n * size + 63) & ~(size_t)63;
        return p;
}

static size_t moe_layout(struct moe_run *r, void *base, uint32_t n, uint32_t n_used, uint32_t d, uint32_t ff, uint32_t n_expert) {
        size_t pairs = (size_t)n * n_used;
        struct cut c = { .base = base };

        r->id = take(&c, pairs, sizeof(uint32_t));
        r->weight = take(&c, pairs, sizeof(float));
        r->pair = take(&c, pairs, sizeof(uint32_t));
        r->row = take(&c, pairs, sizeof(uint32_t));
        r->first = take(&c, (size_t)n_expert + 1, sizeof(uint32_t));
        r->prob = take(&c, (size_t)n * n_expert, 2 * sizeof(float));
        r->up = take(&c, pairs * ff, 2 * sizeof(float));
        r->h = take(&c, pairs * ff, sizeof(float));
        r->o = take(&c, pairs * d, sizeof(float));
        r->image = take(&c, k_cpu_image_bytes(n, d), 1);
        r->image2 = take(&c, k_cpu_image_bytes((uint32_t)pairs, ff), 1);
        r->job = take(&c, (size_t)MIN((size_t)n_expert, pairs) * 2, sizeof(struct k_cpu_gemm));
        return c.at;
}

size_t k_cpu_moe_scratch(uint32_t n, uint32_t n_used, uint32_t d, uint32_t ff, uint32_t n_expert) {
        struct moe_run r;

        return moe_layout(&r, NULL, n, n_used, d, ff, n_expert);
}

/* Clears the choice values of the groups that are not among the best: a group counts by its two best experts. */
static void limit_groups(const struct k_moe_args *a, float *choice) {
        uint32_t per = a->n_expert / a->n_group;
        float score[K_CPU_EXPERT_GROUPS];
        uint32_t kept = 0;

        for (uint32_t g = 0; g < a->n_group; g++) {
                float b1 = -INFINITY, b2 = -INFINITY;

                for (uint32_t e = g * per; e < (g + 1) * per; e++) {
                        float v = choice[e];
                        if (v > b1) {
                                b2 = b1;
                                b1 = v;
                        } else if (v > b2) {
                                b2 = v;
                        }
                }
                score[g] = b2 == -INFINITY ? b1 : b1 + b2;
        }
        for (uint32_t g = 0; g < a->n_group; g++) {
                uint32_t better = 0;

                for (uint32_t o = 0; o < a->n_group; o++)
                        better += score[o] > score[g] || (score[o] == score[g] && o < g);
                if (better < a->n_group_used && kept < a->n_group_used)
                        kept++;
                else
                        for (uint32_t e = g * per; e < (g + 1) * per; e++)
                                choice[e] = -INFINITY;
        }
}

/* Whether an expert comes before one of a lower index: NaN is below all numbers. */
static bool above(float a, float b) {
        return a > b || (isnan(b) && !isnan(a));
}

static void route_row(const struct moe_run *r, uint32_t i) {
        const struct k_moe_args *a = r->a;
        uint32_t X = a->n_expert, K = a->n_used, *id = r->id + (size_t)i * K;
        float *prob = r->prob + (size_t)i * 2 * X, *choice = prob + X, *w = r->weight + (size_t)i * K, sum = 0;

        memcpy(prob, a->router + i * a->router_stride, X * sizeof(float));
        if (a->gating == K_GATE_SOFTMAX)
                r->vec->softmax(prob, X);
        else if (a->gating == K_GATE_SIGMOID)
                for (uint32_t e = 0; e < X; e++)
                        prob[e] = 1.0f / (1.0f + expf(-prob[e]));
        for (uint32_t e = 0; e < X; e++)
                choice[e] = prob[e] + (a->select_bias ? a->select_bias[e] : 0);
        if (a->n_group)
                limit_groups(a, choice);
        for (uint32_t k = 0; k < K; k++) { /* the lowest index wins a tie */
                uint32_t best = UINT32_MAX;

                for (uint32_t e = 0; e < X; e++) {
                        bool taken = false;
                        if (best != UINT32_MAX && !above(choice[e], choice[best]))
                                continue;
                        for (uint32_t j = 0; j < k && !taken; j++)
                                taken = id[j] == e;
                        if (!taken)
                                best = e;
                }
                id[k] = best;
                w[k] = prob[best];
        }
        if (a->gating == K_GATE_SOFTMAX_TOPK)
                r->vec->softmax(w, K);
        if (a->norm_weights) {
                for (uint32_t k = 0; k < K; k++)
                        sum += w[k];
                sum = fmaxf(sum, 6.103515625e-5f); /* the smallest normal half, as the families' code has it */
                for (uint32_t k = 0; k < K; k++)
                        w[k] /= sum;
        }
        for (uint32_t k = 0; k < K; k++)
                w[k] *= a->weight_scale;
}

static void route_task(void *arg, uint32_t task, uint32_t worker) {
        const struct moe_run *r = arg;

        (void)worker;
        for (uint32_t i = task * r->per; i < MIN((task + 1) * r->per, r->a->n); i++)
                route_row(r, i);
}

/* Counting sort of the pairs by expert. */
static void sort_pairs(const struct moe_run *r) {
        uint32_t X = r->a->n_expert, at = 0;

        memset(r->first, 0, ((size_t)X + 1) * sizeof(uint32_t));
        for (uint32_t p = 0; p < r->n_pair; p++)
                r->first[r->id[p]]++;
        for (uint32_t e = 0; e <= X; e++) {
                uint32_t n = e < X ? r->first[e] : 0;
                r->first[e] = at;
                at += n;
        }
        for (uint32_t p = 0; p < r->n_pair; p++) {
                uint32_t place = r->first[r->id[p]]++;
                r->pair[p] = place;
                r->row[place] = p / r->a->n_used;
        }
        for (uint32_t e = X; e > 0; e--)
                r->first[e] = r->first[e - 1];
        r->first[0] = 0;
}

/* ---- products --------------------------------------------------------------------- */

static uint32_t add_jobs(const struct moe_run *r, uint32_t at, const struct k_weight *w, const float *bias, const float *x,
                         size_t x_stride, const void *image, const uint32_t *x_row, size_t image_stride, float *y, size_t y_stride) {
        for (uint32_t e = 0; e < r->a->n_expert; e++) {
                uint32_t p = r->first[e], n = r->first[e + 1] - p;

                if (!n)
                        continue;
                r->job[at++] = (struct k_cpu_gemm){
                        .w = w, .expert = e, .xf = x_row ? x : x + p * x_stride, .xf_stride = x_stride,
                        .xq = !image ? NULL : x_row ? image : (const uint8_t *)image + p * image_stride,
                        .x_row = x_row ? x_row + p : NULL, .n = n, .y = y + p * y_stride, .y_stride = y_stride,
                        .bias = bias ? bias + (size_t)e * w->rows : NULL,
                };
        }
        return at;
}

static void mix_task(void *arg, uint32_t task, uint32_t worker) {
        const struct moe_run *r = arg;
        const struct k_moe_args *a = r->a;

        (void)worker;
        for (uint32_t p = task * r->per; p < MIN((task + 1) * r->per, r->n_pair); p++) {
                const float *g = r->up + (size_t)p * 2 * r->ff; /* [gate | up], fused or not */

                r->vec->glu(a->act, r->h + (size_t)p * r->ff, g, g + r->ff, r->ff, a->alpha, a->limit);
        }
}

static void sum_task(void *arg, uint32_t task, uint32_t worker) {
        const struct moe_run *r = arg;
        const struct k_moe_args *a = r->a;

        (void)worker;
        for (uint32_t i = task * r->per; i < MIN((task + 1) * r->per, a->n); i++) {
                float *y = a->y + i * a->y_stride;

                for (uint32_t k = 0; k < a->n_used; k++) {
                        size_t p = (size_t)i * a->n_used + k;
                        const float *o = r->o + (size_t)r->pair[p] * r->d;

                        if (k == 0)
                                r->vec->scale(y, o, r->d, r->weight[p]);
                        else
                                r->vec->axpy(y, o, r->d, 1, r->weight[p]);
                }
        }
}

/* The image of x that products with this type read, or NULL. The next call may overwrite it. */
static const void *image_of(const struct moe_run *r, struct k_act *x, enum k_type type) {
        uint32_t kind = k_cpu_image_kind(r->cpu, type);

        if (!kind)
                return NULL;
        if (x->q && x->q_kind == kind && x->q_rows >= r->a->n)
                return x->q;
        k_cpu_quantize(r->cpu, kind, x->f, x->cols, r->a->n, x->cols, r->image);
        return r->image;
}

/* Gate and up of every pair, side by side in r->up. One run of the pool if both read the same image. */
static void gate_and_up(const struct moe_run *r) {
        const struct k_moe_args *a = r->a;
        const void *image = image_of(r, a->x, a->gate ? a->gate->type : a->up->type);
        size_t stride = 2 * (size_t)r->ff;
        uint32_t jobs = 0;

        if (a->gate) {
                jobs = add_jobs(r, 0, a->gate, a->gate_b, a->x->f, a->x->cols, image, r->row, 0, r->up, stride);
                if (k_cpu_image_kind(r->cpu, a->gate->type) != k_cpu_image_kind(r->cpu, a->up->type)) {
                        k_cpu_gemm(r->cpu, r->job, jobs);
                        jobs = 0;
                        image = image_of(r, a->x, a->up->type);
                }
        }
        jobs = add_jobs(r, jobs, a->up, a->up_b, a->x->f, a->x->cols, image, r->row, 0, a->gate ? r->up + r->ff : r->up, stride);
        k_cpu_gemm(r->cpu, r->job, jobs);
}

int k_cpu_moe(struct k_dev *dev, const struct k_batch *bt, const struct k_moe_args *a) {
        struct k_cpu *cpu = k_cpu(dev);
        struct moe_run r = { .cpu = cpu, .vec = k_cpu_vec(cpu), .a = a, .n_pair = a->n * a->n_used, .d = a->down->rows };
        const void *image2 = NULL;
        uint32_t kind, jobs;

        (void)bt;
        r.ff = a->down->cols;
        if (a->n_group > K_CPU_EXPERT_GROUPS)
                return k_cpu_refuse(cpu, "moe", "over 256 groups of experts");
        if (moe_layout(&r, a->scratch, a->n, a->n_used, r.d, r.ff, a->n_expert) > a->scratch_bytes)
                return k_cpu_refuse(cpu, "moe", "more rows than reserved");
        r.per = k_cpu_rows_per_task(cpu, a->n);
        k_cpu_tasks(cpu, route_task, &r, DIV_ROUND_UP(a->n, r.per), (uint64_t)a->n * a->n_expert * (a->n_used + 2u));
        sort_pairs(&r);

        gate_and_up(&r);
        r.per = k_cpu_rows_per_task(cpu, r.n_pair);
        k_cpu_tasks(cpu, mix_task, &r, DIV_ROUND_UP(r.n_pair, r.per), (uint64_t)r.n_pair * r.ff * 4);

        kind = k_cpu_image_kind(cpu, a->down->type);
        if (kind) {
                k_cpu_quantize(cpu, kind, r.h, r.ff, r.n_pair, r.ff, r.image2);
                image2 = r.image2;
        }
        jobs = add_jobs(&r, 0, a->down, a->down_b, r.h, r.ff, image2, NULL, k_cpu_image_stride(kind, r.ff), r.o, r.d);
        k_cpu_gemm(cpu, r.job, jobs);
        r.per = k_cpu_rows_per_task(cpu, a->n);
        k_cpu_tasks(cpu, sum_task, &r, DIV_ROUND_UP(a->n, r.per), (uint64_t)r.n_pair * r.d);
        return 0;
}

/* ---- per-head products ------------------------------------------------------------- */

#define HEADS_AT_ONCE 64u

static void copy_tails(const struct k_head_linear_args *a, uint32_t heads) {
        uint32_t in = a->w->cols, out = a->w->rows;

        for (uint32_t i = 0; i < a->n; i++)
                for (uint32_t h = 0; h < heads; h++)
                        memcpy(a->y + i * a->y_stride + (size_t)h * a->y_head + out,
                               a->x + i * a->x_stride + (size_t)h * a->x_head + in, a->tail * sizeof(float));
}

int k_cpu_head_linear(struct k_dev *dev, const struct k_batch *bt, const struct k_head_linear_args *a) {
        struct k_cpu *cpu = k_cpu(dev);
        uint32_t heads = MAX(a->w->n_expert, 1u), kind = k_cpu_image_kind(cpu, a->w->type), at_once = HEADS_AT_ONCE;
        size_t bytes = k_cpu_image_stride(kind, a->w->cols) * a->n;
        struct k_cpu_gemm job[HEADS_AT_ONCE];

        (void)bt;
        if (kind && bytes)
                at_once = (uint32_t)MIN((size_t)at_once, cpu->image_bytes / bytes);
        if (at_once == 0)
                return k_cpu_refuse(cpu, "head_linear", "more rows than reserved");
        if (a->tail)
                copy_tails(a, heads);
        for (uint32_t h0 = 0; h0 < heads; h0 += at_once) {
                uint32_t n = MIN(at_once, heads - h0);

                for (uint32_t i = 0; i < n; i++) {
                        const float *x = a->x + (size_t)(h0 + i) * a->x_head;
                        uint8_t *image = kind ? cpu->image + i * bytes : NULL;

                        if (kind)
                                k_cpu_quantize(cpu, kind, x, a->x_stride, a->n, a->w->cols, image);
                        job[i] = (struct k_cpu_gemm){ .w = a->w, .expert = h0 + i, .xf = x, .xf_stride = a->x_stride, .xq = image, .n = a->n,
                                                      .y = a->y + (size_t)(h0 + i) * a->y_head, .y_stride = a->y_stride };
                }
                k_cpu_gemm(cpu, job, n);
        }
        return 0;
}
