/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Residual streams side by side: see struct k_altup_args. A row is treated in
 * blocks of columns, so that the old values of every stream fit into registers
 * and the first-level cache while the new ones are written over them.
 */
#include "kernels/cpu/ops.h"

#include <math.h>
#include <string.h>

#define BLOCK 64u

struct altup_run {
        const struct k_cpu_vec *vec;
        const struct k_altup_args *a;
        uint32_t per;
};

static void predict(const struct altup_run *r, uint32_t row) {
        const struct k_altup_args *a = r->a;
        const float *c = a->c + row * a->c_stride;
        float old[K_ALTUP_MAX][BLOCK];

        for (uint32_t at = 0, n; at < a->cols; at += n) {
                float *h = a->h + (size_t)row * a->cols + at;

                n = MIN(BLOCK, a->cols - at);
                for (uint32_t i = 0; i < a->n_stream; i++)
                        memcpy(old[i], h + i * a->stream_stride, n * sizeof(float));
                for (uint32_t j = 0; j < a->n_stream; j++)
                        for (uint32_t i = 0; i < a->n_stream; i++)
                                r->vec->axpy(h + j * a->stream_stride, old[i], n, 1, c[j * a->n_stream + i]);
        }
}

static void correct(const struct altup_run *r, uint32_t row) {
        const struct k_altup_args *a = r->a;
        const float *c = a->c + row * a->c_stride;
        float news[BLOCK];

        for (uint32_t at = 0, n; at < a->cols; at += n) {
                float *h = a->h + (size_t)row * a->cols + at;

                n = MIN(BLOCK, a->cols - at);
                memcpy(news, a->x + (size_t)row * a->cols + at, n * sizeof(float));
                r->vec->axpy(news, h + a->active * a->stream_stride, n, 1, -1);
                for (uint32_t i = 0; i < a->n_stream; i++)
                        r->vec->axpy(h + i * a->stream_stride, news, n, 1, 1 + c[i]);
        }
}

static void match(const struct altup_run *r, uint32_t row) {
        const struct k_altup_args *a = r->a;
        const float *h = a->h + a->active * a->stream_stride + (size_t)row * a->cols;
        float *x = a->x + (size_t)row * a->cols, n = (float)a->cols;
        float want = r->vec->sum_squares(h, a->cols, 0) / n, have = r->vec->sum_squares(x, a->cols, 0) / n;

        r->vec->scale(x, x, a->cols, sqrtf(want) / sqrtf(have > a->eps ? have : a->eps));
}

static void altup_task(void *arg, uint32_t task, uint32_t worker) {
        const struct altup_run *r = arg;

        (void)worker;
        for (uint32_t i = task * r->per; i < MIN((task + 1) * r->per, r->a->n); i++)
                switch (r->a->op) {
                case K_ALTUP_PREDICT:
                        predict(r, i);
                        break;
                case K_ALTUP_CORRECT:
                        correct(r, i);
                        break;
                case K_ALTUP_MATCH:
                        match(r, i);
                        break;
                }
}

int k_cpu_altup(struct k_dev *dev, const struct k_batch *bt, const struct k_altup_args *a) {
        struct k_cpu *cpu = k_cpu(dev);
        struct altup_run r = { k_cpu_vec(cpu), a, k_cpu_rows_per_task(cpu, a->n) };

        (void)bt;
        if (a->n_stream > K_ALTUP_MAX || a->active >= a->n_stream)
                return k_cpu_refuse(cpu, "altup", "more streams than it can hold");
        k_cpu_tasks(cpu, altup_task, &r, DIV_ROUND_UP(a->n, r.per), (uint64_t)a->n * a->cols * a->n_stream);
        return 0;
}
