/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The linear op: makes the activation image its weights need, once for all of
 * them, and hands panels of output rows to the pool. What is computed in a row
 * is linear.h's business; here is only who computes which rows, which changes
 * no bit of them.
 */
#include "kernels/cpu/linear.h"
#include "kernels/cpu/planes.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Jobs that one run of the pool covers; more are run in turns. */
#define JOBS_MAX 256u

uint32_t k_cpu_image_kind(const struct k_cpu *cpu, enum k_type type) {
        return cpu->exact ? 0 : k_codes_traits(type)->kind;
}

size_t k_cpu_image_stride(uint32_t kind, uint32_t cols) {
        size_t bytes = k_image_off_pair16(cols) + cols / 16 * 4 + cols / 32 * 4;
        if (kind == 0)
                return 0;
        bytes += kind == 1 ? (size_t)cols / 32 * 8 : (size_t)cols / 256 * 4 + cols / 16 * 2 + cols / 32 * 2;
        /* An odd number of cache lines, so that rows don't fall on the same sets. */
        return DIV_ROUND_UP(bytes, (size_t)64) / 2 * 128 + 64;
}

size_t k_cpu_image_bytes(uint32_t n, uint32_t cols) {
        return n * MAX(k_cpu_image_stride(1, cols), k_cpu_image_stride(2, cols));
}

struct quantize_run {
        const struct k_cpu_linear_isa *isa;
        uint32_t kind, cols;
        const float *x;
        size_t x_stride, stride;
        uint8_t *image;
};

static void quantize_task(void *arg, uint32_t task, uint32_t worker) {
        const struct quantize_run *q = arg;
        (void)worker;
        q->isa->quantize(q->kind, q->x + task * q->x_stride, q->cols, q->image + task * q->stride);
}

void k_cpu_quantize(struct k_cpu *cpu, uint32_t kind, const float *x, size_t x_stride, uint32_t n, uint32_t cols,
                    void *image) {
        struct quantize_run q = { cpu->linear, kind, cols, x, x_stride, k_cpu_image_stride(kind, cols), image };
        if (n < 4) /* less than waking a thread costs */
                for (uint32_t i = 0; i < n; i++)
                        quantize_task(&q, i, 0);
        else
                k_pool_run(cpu->pool, quantize_task, &q, n);
}

void k_cpu_quantize_row(struct k_cpu *cpu, uint32_t kind, const float *x, uint32_t cols, void *image_row) {
        cpu->linear->quantize(kind, x, cols, image_row);
}

void k_cpu_gemm_rows(struct k_cpu *cpu, uint32_t worker, const struct k_cpu_gemm *job, uint32_t row0, uint32_t row1) {
        uint32_t kind = k_cpu_image_kind(cpu, job->w->type);
        uint8_t *scratch = cpu->panel + (size_t)worker * cpu->linear->scratch;

        if (job->w->layout == K_LAYOUT_CUDA)
                k_cpu_planes_rows(cpu, job, kind, scratch, row0, row1);
        else
                cpu->linear->rows(job, kind, scratch, row0, row1);
}

struct gemm_run {
        struct k_cpu *cpu;
        const struct k_cpu_gemm *jobs;
        uint32_t n_jobs, step;          /* rows per task */
        uint32_t first[JOBS_MAX + 1];   /* task number of each job's first */
};

static void gemm_task(void *arg, uint32_t task, uint32_t worker) {
        const struct gemm_run *run = arg;
        uint32_t j = 0;

        while (task >= run->first[j + 1])
                j++;
        const struct k_cpu_gemm *job = &run->jobs[j];
        uint32_t row0 = (task - run->first[j]) * run->step;
        k_cpu_gemm_rows(run->cpu, worker, job, row0, MIN(row0 + run->step, job->w->rows));
}

/*
 * Tasks a worker: eight, so that a slow one costs little, or what was measured to
 * be better. Tasks are rows, so it changes no bit (kernels/tune.h).
 */
static const uint32_t tasks_each[] = { 8, 2, 4, 16 };
static const char *const tasks_names[ELEMENTSOF(tasks_each)] = { "plain", "2 tasks", "4 tasks", "16 tasks" };

uint32_t k_cpu_variants(struct k_dev *dev, const struct k_tune_key *key, const char *const **ret_names) {
        *ret_names = tasks_names;
        return key->family == K_TUNE_LINEAR && k_cpu(dev)->n_workers > 1 ? ELEMENTSOF(tasks_each) : 1;
}

int k_cpu_tune(struct k_dev *dev, const struct k_tune_choice *c, uint32_t n) {
        const char *const *names;

        for (uint32_t i = 0; i < n; i++)
                if (c[i].variant >= k_cpu_variants(dev, &c[i].key, &names))
                        return -EINVAL;
        return k_tune_table_set(&k_cpu(dev)->tuned, c, n);
}

/* At least a panel, at most 256 rows (x stays in cache). */
static uint32_t rows_per_task(const struct k_cpu *cpu, const struct k_cpu_gemm *jobs, uint32_t n_jobs) {
        const struct k_weight *w = jobs[0].w;
        uint64_t rows = 0;
        uint32_t v;

        for (uint32_t j = 0; j < n_jobs; j++)
                rows += jobs[j].w->rows;
        v = k_tune_find(&cpu->tuned, K_TUNE_LINEAR, w->type, (uint32_t)MIN(rows, (uint64_t)UINT32_MAX), w->cols, jobs[0].n);
        uint64_t step = rows / (cpu->n_workers * tasks_each[v]) / K_PANEL * K_PANEL;
        return (uint32_t)MIN(MAX(step, (uint64_t)K_PANEL), (uint64_t)256);
}

static void gemm_some(struct k_cpu *cpu, const struct k_cpu_gemm *jobs, uint32_t n_jobs) {
        struct gemm_run run = { .cpu = cpu, .jobs = jobs, .n_jobs = n_jobs };

        run.step = rows_per_task(cpu, jobs, n_jobs);
        for (uint32_t j = 0; j < n_jobs; j++)
                run.first[j + 1] = run.first[j] + (jobs[j].n ? DIV_ROUND_UP(jobs[j].w->rows, run.step) : 0);
        k_pool_run(cpu->pool, gemm_task, &run, run.first[n_jobs]);
}

void k_cpu_gemm(struct k_cpu *cpu, const struct k_cpu_gemm *jobs, uint32_t n_jobs) {
        for (uint32_t j = 0; j < n_jobs; j += JOBS_MAX)
                gemm_some(cpu, jobs + j, MIN(n_jobs - j, JOBS_MAX));
}

/* An image of at least the first n rows of x; what it already holds is kept. */
static const uint8_t *image_for(struct k_cpu *cpu, struct k_act *x, uint32_t kind, uint32_t n) {
        size_t stride = k_cpu_image_stride(kind, x->cols);
        uint32_t done = 0;

        if (!x->q) {
                if (stride * n > cpu->image_bytes)
                        return NULL;
                k_cpu_quantize(cpu, kind, x->f, x->cols, n, x->cols, cpu->image);
                return cpu->image;
        }
        if (x->q_kind == kind)
                done = x->q_rows;
        if (done < n) {
                k_cpu_quantize(cpu, kind, x->f + (size_t)done * x->cols, x->cols, n - done, x->cols,
                               (uint8_t *)x->q + stride * done);
                x->q_kind = kind;
                x->q_rows = n;
        }
        return x->q;
}

int k_cpu_linear(struct k_dev *dev, const struct k_batch *batch, const struct k_linear_args *a) {
        struct k_cpu *cpu = k_cpu(dev);
        struct k_cpu_gemm jobs[K_LINEAR_MAX] = { { 0 } };
        uint32_t n = a->row0 + a->n_rows;

        if (a->n_rows == 0)
                return 0;
        for (uint32_t i = 0; a->gather && i < a->n_rows; i++)
                n = MAX(n, a->gather[i] + 1);
        (void)batch;

        /* One kind after the other: an image holds one at a time. */
        for (uint32_t kind = 0; kind <= K_CODES_INT; kind++) {
                const uint8_t *image = NULL;
                uint32_t n_jobs = 0;

                for (uint32_t o = 0; o < a->n_out; o++) {
                        const struct k_weight *w = a->out[o].w;
                        if (k_cpu_image_kind(cpu, w->type) != kind)
                                continue;
                        if (kind && !image && !(image = image_for(cpu, a->x, kind, n))) {
                                snprintf(cpu->error, sizeof(cpu->error),
                                         "linear: no room for the image of %u rows of %u columns", n, a->x->cols);
                                return -ENOBUFS;
                        }
                        /* With a gather, x rows are absolute; without, they are [row0, row0 + n_rows). */
                        size_t skip = a->gather ? 0 : a->row0;
                        jobs[n_jobs++] = (struct k_cpu_gemm){
                                .w = w,
                                .xf = a->x->f + skip * a->x->cols,
                                .xf_stride = a->x->cols,
                                .xq = image ? image + skip * k_cpu_image_stride(kind, a->x->cols) : NULL,
                                .x_row = a->gather,
                                .n = a->n_rows,
                                .y = a->out[o].y + (a->gather ? 0 : a->row0 * a->out[o].y_stride),
                                .y_stride = a->out[o].y_stride,
                                .bias = a->out[o].bias,
                        };
                }
                k_cpu_gemm(cpu, jobs, n_jobs);
        }
        return 0;
}

void k_cpu_weight_row(const struct k_weight *w, uint32_t expert, uint32_t row, float *dst) {
        const uint8_t *data = (const uint8_t *)w->data + (size_t)expert * w->expert_stride;
        size_t row_bytes = 0;
        struct k_codes c;

        if (w->layout != K_LAYOUT_CPU) {
                (void)k_type_row_bytes(w->type, w->cols, &row_bytes);
                k_decode(w->type, data + row * row_bytes, dst, w->cols);
                return;
        }
        if (k_layout_type(w->type)->bits == 0) {
                uint32_t bytes = k_type_bytes(w->type);
                data += row / K_PANEL * k_layout_panel_bytes(w->type, w->cols) + row % K_PANEL * bytes;
                for (uint32_t i = 0; i < w->cols; i++)
                        k_decode(w->type, data + (size_t)i * K_PANEL * bytes, dst + i, 1);
                return;
        }
        for (uint32_t u = 0, n = k_type_block(w->type); u < w->cols / n; u++) {
                k_layout_codes(w->type, data, w->cols, row, u, &c);
                k_codes_values(w->type, &c, dst + (size_t)u * n);
        }
}
