/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After the QKV product: norms of q, k and v heads, rope, and K and V into
 * their pages. One task is some rows; V goes first because it may be K's own
 * raw values.
 *
 * Rope angles are pos * freq_i in double, reduced by the C library, so that
 * they stay exact at long contexts. They are made once per batch and rope and
 * kept (ops.h), since every layer needs the same. YaRN: Peng et al.,
 * arXiv:2309.00071, section 3: each frequency is interpolated, left, or mixed
 * by how often it turns within the original context.
 */
#include "kernels/cpu/ops.h"

#include <math.h>
#include <string.h>

/* ---- rope -------------------------------------------------------------------- */

/* The pair index at which a frequency turns 'rotations' times in the original context. */
static double yarn_pair(const struct k_rope_params *p, double rotations) {
        return p->n_dims * log(p->n_ctx_orig / (rotations * 2 * M_PI)) / (2 * log((double)p->base));
}

/* Turns of each pair per position. */
static double pair_freq(const struct k_rope_params *p, uint32_t i) {
        double f = pow((double)p->base, -2.0 * i / p->n_dims), low, high, ramp;

        if (p->factors)
                f /= (double)p->factors[i];
        if (p->ext_factor == 0)
                return f * (double)p->freq_scale;
        low = fmax(0, floor(yarn_pair(p, (double)p->beta_fast)));
        high = fmin(p->n_dims - 1, ceil(yarn_pair(p, (double)p->beta_slow)));
        ramp = 1 - fmin(1, fmax(0, (i - low) / fmax(0.001, high - low)));
        ramp *= (double)p->ext_factor;
        return f * (double)p->freq_scale * (1 - ramp) + f * ramp;
}

struct angles {
        const struct k_rope_params *p;
        const int32_t *pos;
        float *cs;
        size_t stride;
        double freq[K_ROPE_DIMS / 2];
};

static void angles_row(float *cs, const struct k_rope_params *p, const double *freq, int32_t pos) {
        uint32_t h = p->n_dims / 2;

        for (uint32_t i = 0; i < h; i++) {
                double s, c;

                sincos(pos * (freq ? freq[i] : pair_freq(p, i)), &s, &c);
                cs[i] = (float)c * p->attn_factor;
                cs[h + i] = (float)s * p->attn_factor;
        }
}

static void angles_task(void *arg, uint32_t row, uint32_t worker) {
        const struct angles *a = arg;

        (void)worker;
        angles_row(a->cs + row * a->stride, a->p, a->freq, a->pos[row]);
}

/* This batch's angles; NULL: too wide to keep, make them per row. */
static const float *rope_table(struct k_cpu *cpu, const struct k_batch *bt, const struct k_rope_params *p) {
        struct k_cpu_ops *o = &cpu->ops;
        struct angles a = { .p = p, .pos = bt->pos, .stride = K_ROPE_DIMS };
        uint32_t slot = 0;

        if (p->n_dims > K_ROPE_DIMS || bt->n > o->max_rows)
                return NULL;
        while (slot < K_ROPE_SLOTS && o->rope_of[slot] && o->rope_of[slot] != p)
                slot++;
        if (slot == K_ROPE_SLOTS)
                return NULL;
        a.cs = o->rope + (size_t)slot * o->max_rows * K_ROPE_DIMS;
        if (o->rope_of[slot] == p && o->rope_rows[slot] == bt->n)
                return a.cs;
        for (uint32_t i = 0; i < p->n_dims / 2; i++)
                a.freq[i] = pair_freq(p, i);
        k_cpu_tasks(cpu, angles_task, &a, bt->n, (uint64_t)bt->n * p->n_dims * 16);
        o->rope_of[slot] = p;
        o->rope_rows[slot] = bt->n;
        return a.cs;
}

/* ---- heads --------------------------------------------------------------------- */

struct qkv_run {
        struct k_cpu *cpu;
        const struct k_cpu_vec *vec;
        const struct k_batch *bt;
        const struct k_qkv_args *a;
        const float *angles;
        uint32_t per;
};

static void rms(const struct k_cpu_vec *vec, float *x, uint32_t n, const float *w, float eps) {
        float ss = vec->sum_squares(x, n, 0);

        vec->norm(x, x, n, 0, 1.0f / sqrtf(ss / (float)n + eps), w, NULL);
}

/* A norm over all heads: heads need not be adjacent. */
static void rms_heads(const struct k_cpu_vec *vec, float *x, uint32_t heads, uint32_t head, uint32_t dk, const float *w, float eps) {
        float ss = 0, scale;

        for (uint32_t h = 0; h < heads; h++)
                ss += vec->sum_squares(x + (size_t)h * head, dk, 0);
        scale = 1.0f / sqrtf(ss / ((float)heads * (float)dk) + eps);
        for (uint32_t h = 0; h < heads; h++)
                vec->norm(x + (size_t)h * head, x + (size_t)h * head, dk, 0, scale, w + (size_t)h * dk, NULL);
}

static void *kv_place(void *base, const struct k_kv *kv, const struct k_batch *bt, uint32_t row, size_t row_bytes) {
        uint32_t pos = (uint32_t)bt->pos[row];
        uint32_t page = bt->table[kv->group][(size_t)bt->seq[row] * bt->table_stride[kv->group] + pos / kv->page_tokens];

        return page == UINT32_MAX ? NULL
                                  : (uint8_t *)base + ((size_t)page * kv->page_tokens + pos % kv->page_tokens) * row_bytes;
}

static void heads(const struct qkv_run *r, uint32_t row, float *x, uint32_t n, uint32_t head, const float *norm, uint32_t norm_cols,
                  const float *cs) {
        const struct k_qkv_args *a = r->a;

        if (norm && a->norm_full)
                rms_heads(r->vec, x, n, head, a->dk, norm, a->norm_eps);
        for (uint32_t h = 0; h < n; h++) {
                float *p = x + (size_t)h * head;

                if (norm && !a->norm_full)
                        rms(r->vec, p, norm_cols, norm, a->norm_eps);
                if (cs)
                        r->vec->rope(a->rope->kind, p + a->rope_off, a->rope->n_dims, cs);
        }
        (void)row;
}

static void qkv_row(const struct qkv_run *r, uint32_t row, uint32_t worker) {
        const struct k_qkv_args *a = r->a;
        const struct k_kv *kv = a->kv;
        float *q = a->q + row * a->q_stride, *tmp = k_cpu_scratch(r->cpu, worker);
        const float *cs = NULL;

        if (a->rope && a->rope->kind != K_ROPE_NONE) {
                if (r->angles) {
                        cs = r->angles + (size_t)row * K_ROPE_DIMS;
                } else {
                        angles_row(tmp, a->rope, NULL, r->bt->pos[row]);
                        cs = tmp;
                        tmp += a->rope->n_dims;
                }
        }
        if (a->k && a->v && kv->v) {
                uint8_t *dst = kv_place(kv->v, kv, r->bt, row, kv->v_row_bytes);

                for (uint32_t h = 0; dst && h < a->n_head_kv; h++) {
                        const float *v = a->v + row * a->v_stride + (size_t)h * a->v_head;

                        if (a->v_norm) {
                                float ss = r->vec->sum_squares(v, a->dv, 0);
                                r->vec->norm(tmp, v, a->dv, 0, 1.0f / sqrtf(ss / (float)a->dv + a->norm_eps), NULL, NULL);
                                v = tmp;
                        }
                        r->vec->from_float(kv->type_v, dst + h * (kv->v_row_bytes / a->n_head_kv), v, a->dv);
                }
        }
        if (a->k) {
                float *k = a->k + row * a->k_stride;
                uint8_t *dst = kv_place(kv->k, kv, r->bt, row, kv->k_row_bytes);

                heads(r, row, k, a->n_head_kv, a->k_head, a->k_norm, a->k_norm_cols ? a->k_norm_cols : a->dk, cs);
                for (uint32_t h = 0; dst && h < a->n_head_kv; h++)
                        r->vec->from_float(kv->type_k, dst + h * (kv->k_row_bytes / a->n_head_kv), k + (size_t)h * a->k_head, a->dk);
        }
        heads(r, row, q, a->n_head, a->q_head, a->q_norm, a->dk, cs);
        if (a->q_temp != 0) {
                float t = 1 + a->q_temp * logf(1 + floorf((float)r->bt->pos[row] / (float)a->q_temp_len));

                for (uint32_t h = 0; t != 1 && h < a->n_head; h++)
                        r->vec->scale(q + (size_t)h * a->q_head, q + (size_t)h * a->q_head, a->dk, t);
        }
}

static void qkv_task(void *arg, uint32_t task, uint32_t worker) {
        const struct qkv_run *r = arg;

        for (uint32_t i = task * r->per; i < MIN((task + 1) * r->per, r->bt->n); i++)
                qkv_row(r, i, worker);
}

int k_cpu_qkv(struct k_dev *dev, const struct k_batch *bt, const struct k_qkv_args *a) {
        struct k_cpu *cpu = k_cpu(dev);
        struct qkv_run r = { .cpu = cpu, .vec = k_cpu_vec(cpu), .bt = bt, .a = a };
        uint64_t cost = (uint64_t)bt->n * (a->n_head + 2u * a->n_head_kv) * a->dk;

        if (a->rope && a->rope_off + a->rope->n_dims > a->dk)
                return k_cpu_refuse(cpu, "qkv", "rope is wider than the head");
        if ((size_t)(a->dk + a->dv + (a->rope ? a->rope->n_dims : 0)) * sizeof(float) > cpu->scratch_bytes)
                return k_cpu_refuse(cpu, "qkv", "heads are wider than reserved");
        if (a->rope && a->rope->kind != K_ROPE_NONE)
                r.angles = rope_table(cpu, bt, a->rope);
        r.per = k_cpu_rows_per_task(cpu, bt->n);
        k_cpu_tasks(cpu, qkv_task, &r, DIV_ROUND_UP(bt->n, r.per), cost * 2);
        return 0;
}
