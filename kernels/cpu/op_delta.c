/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recurrent layers: the gated delta net and the gated short convolution. Tokens
 * of a sequence follow one another; channels and heads are independent of each
 * other, so they are what the pool shares. States are read before any slot is
 * written, so a sequence may continue in the slot it came from.
 */
#include "kernels/cpu/ops.h"

#include <math.h>
#include <string.h>

#define CHANNELS 128u /* of a convolution task */

/* ---- convolutions ------------------------------------------------------------- */

struct conv_run {
        struct k_cpu *cpu;
        const struct k_cpu_vec *vec;
        const struct k_batch *bt;
        const struct k_cpu_run *run;
        float *x;
        size_t stride;
        uint32_t channels, taps, chunks;
        const float *w;
        float *state;
        bool silu;
};

/* The last taps - 1 inputs up to each row that is to be kept; before the convolution overwrites them. */
static void conv_keep(const struct conv_run *r, const struct k_cpu_run *run, const float *prev, uint32_t c, uint32_t n) {
        uint32_t back = r->taps - 1;
        size_t slot_floats = (size_t)back * r->channels;

        for (uint32_t t = 0; t < run->n; t++) {
                uint32_t slot = r->bt->state_out[run->row0 + t];
                float *dst = slot == UINT32_MAX ? NULL : r->state + slot * slot_floats + c;

                for (uint32_t j = 0; dst && j < back; j++) {
                        uint32_t at = t + 1 + j; /* input at - back */
                        const float *src = at < back ? prev + (size_t)at * CHANNELS : r->x + (run->row0 + at - back) * r->stride + c;
                        memcpy(dst + (size_t)j * r->channels, src, n * sizeof(float));
                }
        }
}

static void conv_task(void *arg, uint32_t task, uint32_t worker) {
        const struct conv_run *r = arg;
        const struct k_cpu_run *run = &r->run[task / r->chunks];
        uint32_t c = task % r->chunks * CHANNELS, n = MIN(CHANNELS, r->channels - c), back = r->taps - 1;
        float *prev = k_cpu_scratch(r->cpu, worker);
        const float *state = r->state + r->bt->state_in[run->seq] * (size_t)back * r->channels + c;

        for (uint32_t j = 0; j < back; j++) {
                if (r->bt->state_zero[run->seq])
                        memset(prev + (size_t)j * CHANNELS, 0, n * sizeof(float));
                else
                        memcpy(prev + (size_t)j * CHANNELS, state + (size_t)j * r->channels, n * sizeof(float));
        }
        conv_keep(r, run, prev, c, n);
        r->vec->conv(r->x + run->row0 * r->stride + c, r->stride, run->n, n, r->taps, r->w + (size_t)c * r->taps, prev, CHANNELS,
                     r->silu);
}

static void conv_all(struct conv_run *r, uint32_t n_runs) {
        r->chunks = DIV_ROUND_UP(r->channels, CHANNELS);
        k_cpu_tasks(r->cpu, conv_task, r, n_runs * r->chunks, (uint64_t)r->bt->n * r->channels * r->taps);
}

/* ---- delta net ------------------------------------------------------------------ */

struct delta_run {
        struct k_cpu *cpu;
        const struct k_cpu_vec *vec;
        const struct k_batch *bt;
        const struct k_cpu_run *run;
        const struct k_delta_args *a;
};

size_t k_cpu_delta_slot(uint32_t n_k, uint32_t n_v, uint32_t s_k, uint32_t s_v) {
        (void)n_k;
        return (size_t)n_v * s_k * s_v;
}

static size_t delta_floats(const struct k_delta_args *a) {
        return (size_t)a->s_k * a->s_v + (size_t)K_DELTA_ROWS * (2 * a->s_k + 2) + 64;
}

static void l2(const struct k_cpu_vec *vec, float *y, const float *x, uint32_t n, float eps, float scale) {
        vec->norm(y, x, n, 0, scale / sqrtf(vec->sum_squares(x, n, 0) + eps), NULL, NULL);
}

/* ln(1 + e^x), Dao's and Mamba's threshold: beyond 20 it is x */
static float softplus(float x) {
        return x > 20 ? x : log1pf(expf(x));
}

static void delta_task(void *arg, uint32_t task, uint32_t worker) {
        const struct delta_run *r = arg;
        const struct k_delta_args *a = r->a;
        const struct k_cpu_run *run = &r->run[task / a->n_v];
        uint32_t h = task % a->n_v, kh = a->k_head_blocked ? h / (a->n_v / a->n_k) : h % a->n_k;
        uint32_t ba = a->ba_run ? h / a->ba_run * 2 * a->ba_run + h % a->ba_run : h;
        size_t head = (size_t)a->s_k * a->s_v, slot = k_cpu_delta_slot(a->n_k, a->n_v, a->s_k, a->s_v);
        float *S = k_cpu_scratch(r->cpu, worker), *q = S + ((head + 15) & ~(size_t)15), *k = q + (size_t)K_DELTA_ROWS * a->s_k,
              *decay = k + (size_t)K_DELTA_ROWS * a->s_k, *beta = decay + K_DELTA_ROWS;
        float *keep[K_DELTA_ROWS];

        if (r->bt->state_zero[run->seq])
                memset(S, 0, head * sizeof(float));
        else
                memcpy(S, a->state + r->bt->state_in[run->seq] * slot + h * head, head * sizeof(float));

        for (uint32_t t0 = 0; t0 < run->n; t0 += K_DELTA_ROWS) {
                uint32_t row0 = run->row0 + t0, n = MIN(K_DELTA_ROWS, run->n - t0);
                float *out = a->out->f + (size_t)row0 * a->out->cols + (size_t)h * a->s_v;

                for (uint32_t t = 0; t < n; t++) {
                        uint32_t row = row0 + t, to = r->bt->state_out[row];
                        const float *x = a->qkv + row * a->qkv_stride;

                        l2(r->vec, q + (size_t)t * a->s_k, x + (size_t)kh * a->s_k, a->s_k, a->eps, 1.0f / sqrtf((float)a->s_k));
                        l2(r->vec, k + (size_t)t * a->s_k, x + (size_t)(a->n_k + kh) * a->s_k, a->s_k, a->eps, 1);
                        decay[t] = expf(a->a[h] * softplus(a->alpha[row * a->ba_stride + ba] + a->dt_bias[h]));
                        beta[t] = 1.0f / (1.0f + expf(-a->beta[row * a->ba_stride + ba]));
                        keep[t] = to == UINT32_MAX ? NULL : a->state + to * slot + h * head;
                }
                r->vec->delta(&(struct k_delta_run){
                        .n = n, .s_k = a->s_k, .s_v = a->s_v, .q = q, .k = k,
                        .v = a->qkv + row0 * a->qkv_stride + (size_t)2 * a->n_k * a->s_k + (size_t)h * a->s_v,
                        .v_stride = a->qkv_stride, .decay = decay, .beta = beta, .state = S, .keep = keep, .o = out,
                        .o_stride = a->out->cols });
                for (uint32_t t = 0; t < n; t++, out += a->out->cols) {
                        float ss = r->vec->sum_squares(out, a->s_v, 0);

                        r->vec->norm(out, out, a->s_v, 0, 1.0f / sqrtf(ss / (float)a->s_v + a->eps), a->norm_w, NULL);
                        r->vec->mul_silu(out, a->z + (row0 + t) * a->z_stride + (size_t)h * a->s_v, a->s_v);
                }
        }
}

int k_cpu_delta(struct k_dev *dev, const struct k_batch *bt, const struct k_delta_args *a) {
        struct k_cpu *cpu = k_cpu(dev);
        struct delta_run r = { cpu, k_cpu_vec(cpu), bt, cpu->ops.run, a };
        struct conv_run c = {
                .cpu = cpu, .vec = r.vec, .bt = bt, .run = cpu->ops.run, .x = a->qkv, .stride = a->qkv_stride,
                .channels = 2 * a->n_k * a->s_k + a->n_v * a->s_v, .taps = a->conv, .w = a->conv_w, .state = a->conv_state,
                .silu = true,
        };
        uint32_t runs;

        if (bt->n > cpu->ops.max_rows || a->conv == 0 || a->conv > K_CPU_TAPS || delta_floats(a) * sizeof(float) > cpu->scratch_bytes)
                return k_cpu_refuse(cpu, "delta", "rows, taps or state beyond what was reserved");
        runs = k_cpu_runs(cpu, bt, 0, bt->n);
        a->out->q_kind = 0;
        conv_all(&c, runs);
        k_cpu_tasks(cpu, delta_task, &r, runs * a->n_v, (uint64_t)bt->n * a->n_v * a->s_k * a->s_v);
        return 0;
}

/* ---- short convolution ------------------------------------------------------------ */

struct short_run {
        const struct k_cpu_vec *vec;
        const struct k_shortconv_args *a;
        bool after;
};

/* Before: u = b * x in x's place. After: out = c * conv(u). */
static void short_task(void *arg, uint32_t row, uint32_t worker) {
        const struct short_run *r = arg;
        float *p = r->a->bcx + row * r->a->stride;
        uint32_t d = r->a->d;

        (void)worker;
        if (!r->after) {
                r->vec->mul(p + 2 * (size_t)d, p, d);
                return;
        }
        float *out = r->a->out->f + (size_t)row * r->a->out->cols;
        memcpy(out, p + 2 * (size_t)d, d * sizeof(float));
        r->vec->mul(out, p + d, d);
}

int k_cpu_shortconv(struct k_dev *dev, const struct k_batch *bt, const struct k_shortconv_args *a) {
        struct k_cpu *cpu = k_cpu(dev);
        struct short_run s = { k_cpu_vec(cpu), a, false };
        struct conv_run c = {
                .cpu = cpu, .vec = s.vec, .bt = bt, .run = cpu->ops.run, .x = a->bcx + 2 * (size_t)a->d, .stride = a->stride,
                .channels = a->d, .taps = a->conv, .w = a->conv_w, .state = a->conv_state,
        };
        uint32_t runs;

        if (bt->n > cpu->ops.max_rows || a->conv == 0 || a->conv > K_CPU_TAPS)
                return k_cpu_refuse(cpu, "shortconv", "rows or taps beyond what was reserved");
        runs = k_cpu_runs(cpu, bt, 0, bt->n);
        a->out->q_kind = 0;
        k_cpu_tasks(cpu, short_task, &s, bt->n, (uint64_t)bt->n * a->d);
        conv_all(&c, runs);
        s.after = true;
        k_cpu_tasks(cpu, short_task, &s, bt->n, (uint64_t)bt->n * a->d);
        return 0;
}
