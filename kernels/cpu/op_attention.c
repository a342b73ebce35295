/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over paged KV. A task is a tile: some consecutive rows of one
 * sequence, the heads of one KV head (all that share its keys), and a span of
 * keys; vec_attention.h treats one block of keys at a time, blocks being cut on
 * the absolute grid of positions.
 *
 * Role P takes all keys in one span. Role D cuts them every SPLIT positions,
 * also on the absolute grid, and merges the spans in order; whether spans run
 * in parallel (few rows, long context) or one after the other changes no bit.
 */
#include "kernels/cpu/ops.h"

#include <math.h>
#include <string.h>

#define SPLIT 512u   /* a multiple of K_ATT_KEYS */
#define TILE 96u     /* queries of a tile, rows times heads */
#define FEW 8u       /* heads of a KV head up to which generated rows read keys in place */

struct att_run {
        struct k_cpu *cpu;
        const struct k_cpu_vec *vec;
        const struct k_batch *bt;
        const struct k_attention_args *a;
        uint32_t group;          /* heads per KV head */
        uint32_t heads, parts;   /* heads of a tile; tiles that share a KV head's group */
        uint32_t n_tile;         /* row tiles */
        const uint32_t *tile;    /* [n_tile + 1] first rows */
        uint32_t n_split;        /* spans run in parallel; 0: each task takes all */
        float *partial;          /* [tile][kv head][part][split][m_max * (dv + 2)] */
        uint32_t m_max;
        const float *zeros;      /* a row of the wider of keys and values */
};

struct span { /* one task's work */
        uint32_t row0, rows, kvh, head0, heads, m, mp;
        bool few;                /* qt is [m][dk], for attend_few(); by role and shape only */
        uint32_t key0, key1;     /* first and one past the last key that any query sees */
        float *qt, *s, *k, *v, *lo, *hi, *corr;
        float *o, *max, *sum;    /* result */
};

static float *carve(float **at, size_t n) {
        float *p = *at;

        *at += (n + 15) & ~(size_t)15;
        return p;
}

static size_t scratch_floats(uint32_t m, uint32_t dk, uint32_t dv) {
        size_t mp = (m + K_ATT_M_ALIGN - 1) / K_ATT_M_ALIGN * K_ATT_M_ALIGN;

        return (dk + K_ATT_KEYS + 9) * mp + 2 * (size_t)m * dv + (size_t)K_ATT_KEYS * (dk + dv) + 16 * 16;
}

/* Positions that row r sees: [lo, hi). */
static void sees(const struct att_run *r, uint32_t row, int32_t last, uint32_t *lo, uint32_t *hi) {
        uint32_t pos = (uint32_t)r->bt->pos[row], w = r->a->window;

        *lo = w && pos + 1 > w ? pos + 1 - w : 0;
        *hi = r->a->causal ? pos + 1 : (uint32_t)last + 1;
        if (w && *hi - pos > w) /* not causal: as far ahead as back */
                *hi = pos + w;
}

static int32_t last_position(const struct att_run *r, uint32_t row) {
        uint32_t seq = r->bt->seq[row];

        if (r->a->causal)
                return r->bt->pos[row];
        while (row + 1 < r->bt->n && r->bt->seq[row + 1] == seq)
                row++;
        return r->bt->pos[row];
}

static bool is_d(const struct att_run *r, const struct span *x) {
        return x->row0 < r->bt->n_d;
}

/* Scratch, transposed queries, and what each query sees. */
static void span_begin(const struct att_run *r, struct span *x, uint32_t worker) {
        const struct k_attention_args *a = r->a;
        uint32_t dk = a->kv->dk, lo, hi, base;
        float *at = k_cpu_scratch(r->cpu, worker);
        int32_t last = last_position(r, x->row0);

        x->m = x->rows * x->heads;
        x->mp = (x->m + K_ATT_M_ALIGN - 1) / K_ATT_M_ALIGN * K_ATT_M_ALIGN;
        x->qt = carve(&at, (size_t)dk * x->mp);
        x->s = carve(&at, (size_t)K_ATT_KEYS * x->mp);
        x->k = carve(&at, (size_t)K_ATT_KEYS * dk);
        x->v = carve(&at, (size_t)K_ATT_KEYS * a->kv->dv);
        x->lo = carve(&at, x->mp);
        x->hi = carve(&at, x->mp);
        x->corr = carve(&at, x->mp);
        x->max = carve(&at, x->mp);
        x->sum = carve(&at, x->mp);
        x->o = carve(&at, (size_t)x->m * a->kv->dv);

        x->key0 = UINT32_MAX;
        x->key1 = 0;
        for (uint32_t i = 0; i < x->rows; i++) {
                sees(r, x->row0 + i, last, &lo, &hi);
                x->key0 = MIN(x->key0, lo);
                x->key1 = MAX(x->key1, hi);
        }
        x->few = is_d(r, x) && r->group <= FEW && dk % K_ATT_LANES == 0 && a->kv->dv % K_ATT_LANES == 0;
        base = x->key0 / K_ATT_KEYS * K_ATT_KEYS;
        for (uint32_t i = 0; i < x->rows; i++) {
                const float *q = a->q + (x->row0 + i) * a->q_stride + (size_t)(x->kvh * r->group + x->head0) * a->q_head;

                sees(r, x->row0 + i, last, &lo, &hi);
                for (uint32_t h = 0; h < x->heads; h++, q += a->q_head) {
                        uint32_t j = i * x->heads + h;

                        x->lo[j] = (float)(int32_t)(lo - base);
                        x->hi[j] = (float)(int32_t)(hi - base);
                        if (x->few)
                                r->vec->scale(x->qt + (size_t)j * dk, q, dk, a->scale);
                        else
                                for (uint32_t d = 0; d < dk; d++)
                                        x->qt[(size_t)d * x->mp + j] = q[d] * a->scale;
                }
        }
        for (uint32_t j = x->m; j < x->mp; j++) {
                x->lo[j] = x->hi[j] = 0;
                for (uint32_t d = 0; !x->few && d < dk; d++)
                        x->qt[(size_t)d * x->mp + j] = 0;
        }
}

/* Keys [p0, p1) of one head in floats; what is not resident is outside every window and reads as zeros. */
static void load_block(const struct att_run *r, const struct span *x, uint32_t p0, uint32_t p1) {
        const struct k_kv *kv = r->a->kv;
        const uint32_t *table = r->bt->table[kv->group] + (size_t)r->bt->seq[x->row0] * r->bt->table_stride[kv->group];
        size_t kb = kv->k_row_bytes / kv->n_head_kv * x->kvh, vb = kv->v ? kv->v_row_bytes / kv->n_head_kv * x->kvh : 0;
        float *k = x->k, *v = x->v;

        for (uint32_t p = p0; p < p1; p++, k += kv->dk, v += kv->dv) {
                uint32_t page = table[p / kv->page_tokens];
                size_t at = (size_t)page * kv->page_tokens + p % kv->page_tokens;

                if (p < x->key0 || page == UINT32_MAX) {
                        memset(k, 0, kv->dk * sizeof(float));
                        if (kv->v)
                                memset(v, 0, kv->dv * sizeof(float));
                        continue;
                }
                r->vec->to_float(kv->type_k, k, (const uint8_t *)kv->k + at * kv->k_row_bytes + kb, kv->dk);
                if (kv->v)
                        r->vec->to_float(kv->type_v, v, (const uint8_t *)kv->v + at * kv->v_row_bytes + vb, kv->dv);
        }
}

/* A block for attend_few(): rows where they lie, or converted; zeros for what no window reaches. */
static bool find_block(const struct att_run *r, const struct span *x, uint32_t p0, uint32_t p1, const void **k, const void **v) {
        const struct k_kv *kv = r->a->kv;
        const uint32_t *table = r->bt->table[kv->group] + (size_t)r->bt->seq[x->row0] * r->bt->table_stride[kv->group];
        size_t kb = kv->k_row_bytes / kv->n_head_kv * x->kvh, vb = kv->v ? kv->v_row_bytes / kv->n_head_kv * x->kvh : 0;
        enum k_type tv = kv->v ? kv->type_v : kv->type_k;
        bool half = kv->type_k == K_F16 && tv == K_F16 && r->vec->half, plain = kv->type_k == K_F32 && tv == K_F32;

        if (!half && !plain)
                load_block(r, x, p0, p1);
        for (uint32_t p = p0, i = 0; p < p1; p++, i++) {
                uint32_t page = table[p / kv->page_tokens];
                size_t at = (size_t)page * kv->page_tokens + p % kv->page_tokens;

                if (!half && !plain) {
                        k[i] = x->k + (size_t)i * kv->dk;
                        v[i] = kv->v ? x->v + (size_t)i * kv->dv : k[i];
                } else if (p < x->key0 || page == UINT32_MAX) {
                        k[i] = v[i] = r->zeros;
                } else {
                        k[i] = (const uint8_t *)kv->k + at * kv->k_row_bytes + kb;
                        v[i] = kv->v ? (const uint8_t *)kv->v + at * kv->v_row_bytes + vb : k[i];
                }
        }
        return half;
}

static void span_run_few(const struct att_run *r, struct span *x, uint32_t from, uint32_t to) {
        const struct k_kv *kv = r->a->kv;
        const void *k[K_ATT_KEYS], *v[K_ATT_KEYS];
        uint32_t base = x->key0 / K_ATT_KEYS * K_ATT_KEYS;
        struct k_att_few t = {
                .m = x->m, .dk = kv->dk, .dv = kv->dv, .softcap = r->a->softcap, .q = x->qt, .lo = x->lo, .hi = x->hi, .s = x->s,
                .o = x->o, .max = x->max, .sum = x->sum, .k = k, .v = v,
        };

        for (uint32_t p = MAX(from, base); p < MIN(to, x->key1); p += K_ATT_KEYS) {
                t.n_keys = MIN(K_ATT_KEYS, x->key1 - p);
                t.base = (float)(p - base);
                t.half = find_block(r, x, p, p + t.n_keys, k, v);
                r->vec->attend_few(&t);
        }
}

/* Keys of [key0, key1) that lie in [from, to): leaves o, max and sum. */
static void span_run(const struct att_run *r, struct span *x, uint32_t from, uint32_t to) {
        const struct k_kv *kv = r->a->kv;
        uint32_t base = x->key0 / K_ATT_KEYS * K_ATT_KEYS;
        struct k_att_tile t = {
                .m = x->m, .mp = x->mp, .dk = kv->dk, .dv = kv->dv, .softcap = r->a->softcap, .qt = x->qt, .lo = x->lo, .hi = x->hi,
                .s = x->s, .o = x->o, .max = x->max, .sum = x->sum, .corr = x->corr, .k = x->k, .v = kv->v ? x->v : x->k,
                .v_stride = kv->v ? kv->dv : kv->dk,
        };

        for (uint32_t j = 0; j < x->mp; j++) {
                x->max[j] = -INFINITY;
                x->sum[j] = 0;
        }
        memset(x->o, 0, (size_t)x->m * kv->dv * sizeof(float));
        if (x->few) {
                span_run_few(r, x, from, to);
                return;
        }
        for (uint32_t p = MAX(from, base); p < MIN(to, x->key1); p += K_ATT_KEYS) {
                t.n_keys = MIN(K_ATT_KEYS, x->key1 - p);
                t.base = (float)(p - base);
                load_block(r, x, p, p + t.n_keys);
                r->vec->attend(&t);
        }
}

/* (o, max, sum) of x, then of a later span. */
static void merge(const struct span *x, uint32_t dv, float *o, float *max, float *sum, const struct k_cpu_vec *vec) {
        for (uint32_t j = 0; j < x->m; j++) {
                float m = fmaxf(max[j], x->max[j]), a, b;

                if (x->max[j] == -INFINITY)
                        continue;
                a = max[j] == -INFINITY ? 0 : expf(max[j] - m);
                b = expf(x->max[j] - m);
                vec->axpy(o + (size_t)j * dv, x->o + (size_t)j * dv, dv, a, b);
                sum[j] = sum[j] * a + x->sum[j] * b;
                max[j] = m;
        }
}

/* Divides by the sums (sinks join them) and stores, gated. */
static void finish(const struct att_run *r, const struct span *x, float *o, const float *max, const float *sum) {
        const struct k_attention_args *a = r->a;
        uint32_t dv = a->kv->dv;

        for (uint32_t j = 0; j < x->m; j++) {
                uint32_t row = x->row0 + j / x->heads, head = x->kvh * r->group + x->head0 + j % x->heads;
                float *out = a->out->f + (size_t)row * a->out->cols + (size_t)head * dv, f = sum[j] > 0 ? 1.0f / sum[j] : 0;

                if (a->sinks) {
                        float m = fmaxf(max[j], a->sinks[head]), e = expf(max[j] - m);
                        f = e / (sum[j] * e + expf(a->sinks[head] - m));
                }
                r->vec->scale(out, o + (size_t)j * dv, dv, f);
                if (a->gate)
                        r->vec->mul_sigmoid(out, a->gate + row * a->gate_stride + (size_t)head * a->gate_head, dv);
        }
}

static void span_of(const struct att_run *r, struct span *x, uint32_t task) {
        uint32_t part = task % r->parts, t;

        task /= r->parts;
        x->kvh = task % r->a->kv->n_head_kv;
        t = r->n_tile - 1 - task / r->a->kv->n_head_kv; /* long ones first */
        x->row0 = r->tile[t];
        x->rows = r->tile[t + 1] - x->row0;
        x->head0 = part * r->heads;
        x->heads = MIN(r->heads, r->group - x->head0);
}

static void whole_task(void *arg, uint32_t task, uint32_t worker) {
        const struct att_run *r = arg;
        uint32_t dv = r->a->kv->dv;
        struct span x;

        span_of(r, &x, task);
        span_begin(r, &x, worker);
        if (!is_d(r, &x) || (x.key1 - 1) / SPLIT == x.key0 / SPLIT) {
                span_run(r, &x, 0, x.key1);
                finish(r, &x, x.o, x.max, x.sum);
                return;
        }
        /* the running result lies behind the scratch of span_begin() */
        float *o = x.o + (((size_t)x.m * dv + 15) & ~(size_t)15), *max = o + (((size_t)x.m * dv + 15) & ~(size_t)15), *sum = max + x.mp;

        memset(o, 0, (size_t)x.m * dv * sizeof(float));
        for (uint32_t j = 0; j < x.m; j++) {
                max[j] = -INFINITY;
                sum[j] = 0;
        }
        for (uint32_t s = x.key0 / SPLIT; s <= (x.key1 - 1) / SPLIT; s++) {
                span_run(r, &x, s * SPLIT, (s + 1) * SPLIT);
                merge(&x, dv, o, max, sum, r->vec);
        }
        finish(r, &x, o, max, sum);
}

/* ---- spans in parallel ------------------------------------------------------------ */

static float *partial_at(const struct att_run *r, uint32_t task, uint32_t split) {
        return r->partial + ((size_t)task * r->n_split + split) * r->m_max * (r->a->kv->dv + 2);
}

static void split_task(void *arg, uint32_t task, uint32_t worker) {
        const struct att_run *r = arg;
        uint32_t dv = r->a->kv->dv, split = task % r->n_split;
        struct span x;
        float *p;

        span_of(r, &x, task / r->n_split);
        span_begin(r, &x, worker);
        split += x.key0 / SPLIT;
        if (split > (x.key1 - 1) / SPLIT)
                return;
        span_run(r, &x, split * SPLIT, (split + 1) * SPLIT);
        p = partial_at(r, task / r->n_split, task % r->n_split);
        memcpy(p, x.o, (size_t)x.m * dv * sizeof(float));
        memcpy(p + (size_t)x.m * dv, x.max, x.m * sizeof(float));
        memcpy(p + (size_t)x.m * (dv + 1), x.sum, x.m * sizeof(float));
}

static void merge_task(void *arg, uint32_t task, uint32_t worker) {
        const struct att_run *r = arg;
        uint32_t dv = r->a->kv->dv, n;
        struct span x, y;
        float *o, *max, *sum;

        span_of(r, &x, task);
        span_begin(r, &x, worker);
        n = (x.key1 - 1) / SPLIT - x.key0 / SPLIT + 1;
        if (n == 1) {
                o = partial_at(r, task, 0);
                finish(r, &x, o, o + (size_t)x.m * dv, o + (size_t)x.m * (dv + 1));
                return;
        }
        o = x.o;
        max = x.max;
        sum = x.sum;
        memset(o, 0, (size_t)x.m * dv * sizeof(float));
        for (uint32_t j = 0; j < x.m; j++) {
                max[j] = -INFINITY;
                sum[j] = 0;
        }
        y = x;
        for (uint32_t s = 0; s < n; s++) {
                y.o = partial_at(r, task, s);
                y.max = y.o + (size_t)x.m * dv;
                y.sum = y.max + x.m;
                merge(&y, dv, o, max, sum, r->vec);
        }
        finish(r, &x, o, max, sum);
}

/* Row tiles of at most 'rows' consecutive rows of one sequence and one role. */
static void cut_tiles(struct att_run *r, uint32_t rows) {
        uint32_t *tile = r->cpu->ops.tile, n = 0;

        for (uint32_t i = 0; i < r->bt->n; i++)
                if (n == 0 || r->bt->seq[i] != r->bt->seq[i - 1] || i == r->bt->n_d || i - tile[n - 1] == rows)
                        tile[n++] = i;
        tile[n] = r->bt->n;
        r->tile = tile;
        r->n_tile = n;
}

int k_cpu_attention(struct k_dev *dev, const struct k_batch *bt, const struct k_attention_args *a) {
        struct k_cpu *cpu = k_cpu(dev);
        const struct k_kv *kv = a->kv;
        struct att_run r = { .cpu = cpu, .vec = k_cpu_vec(cpu), .bt = bt, .a = a, .group = a->n_head / kv->n_head_kv };
        uint32_t limit = TILE, tasks, longest = 0;
        size_t need;

        if (bt->n == 0)
                return 0;
        if (bt->n > cpu->ops.max_rows || a->n_head % kv->n_head_kv)
                return k_cpu_refuse(cpu, "attention", "more rows than reserved, or heads that don't divide");
        while (limit > 1 && scratch_floats(limit, kv->dk, kv->dv) * sizeof(float) > cpu->scratch_bytes)
                limit /= 2;
        if (scratch_floats(limit, kv->dk, kv->dv) * sizeof(float) > cpu->scratch_bytes)
                return k_cpu_refuse(cpu, "attention", "heads are wider than reserved");
        a->out->q_kind = 0;
        r.zeros = cpu->ops.zeros;
        if (MAX(kv->dk, kv->dv) > K_ATT_WIDEST)
                return k_cpu_refuse(cpu, "attention", "heads are wider than the widest known");
        r.heads = MIN(r.group, limit);
        r.parts = DIV_ROUND_UP(r.group, r.heads);
        cut_tiles(&r, MAX(1u, limit / r.heads));
        tasks = r.n_tile * kv->n_head_kv * r.parts;

        /* Few tiles of generated rows over long contexts: spread their spans. */
        for (uint32_t i = 0; i < bt->n; i++)
                longest = MAX(longest, (uint32_t)bt->pos[i] + 1);
        if (bt->n_d == bt->n && longest > SPLIT && tasks < cpu->n_workers * 4) {
                r.m_max = r.heads * MAX(1u, limit / r.heads);
                r.m_max = MIN(r.m_max, r.heads * bt->n);
                r.n_split = DIV_ROUND_UP(longest, SPLIT);
                if (a->window && a->causal)
                        r.n_split = MIN(r.n_split, a->window / SPLIT + 2);
                need = (size_t)tasks * r.n_split * r.m_max * (kv->dv + 2);
                if (need <= cpu->ops.partial_floats) {
                        r.partial = cpu->ops.partial;
                        k_pool_run(cpu->pool, split_task, &r, tasks * r.n_split);
                        k_cpu_tasks(cpu, merge_task, &r, tasks, (uint64_t)tasks * r.n_split * r.m_max * kv->dv);
                        return 0;
                }
        }
        k_cpu_tasks(cpu, whole_task, &r, tasks, (uint64_t)bt->n * a->n_head * kv->dk * longest);
        return 0;
}
