/* SPDX-License-Identifier: Apache-2.0 */
/*
 * qkv and attention against double references over shapes no tile divides,
 * pages in scattered order and full of NaN where nothing was written, every KV
 * type, windows, sinks, softcaps, gates; and the bits of a row alone, in chunks
 * and in company.
 */
#include "ops_test.h"

struct shape {
        const char *name;
        uint32_t n_head, n_kv, dk, dv;
        enum k_type type;
        uint32_t page, window;
        float softcap;
        bool sinks, gate, causal, v_in_k;
};

static const struct shape shapes[] = {
        { "plain", 9, 3, 64, 64, K_F32, 16, 0, 0, false, false, true, false },
        { "f16", 8, 2, 128, 128, K_F16, 64, 0, 0, false, true, true, false },
        { "bf16", 4, 4, 32, 32, K_BF16, 32, 0, 0, false, false, true, false },
        { "q8_0", 6, 2, 64, 64, K_Q8_0, 16, 0, 0, false, false, true, false },
        { "q4_0", 6, 1, 32, 64, K_Q4_0, 16, 0, 0, false, false, true, false },
        { "q8_0, part of a block", 6, 2, 80, 40, K_Q8_0, 16, 0, 0, false, false, true, false },
        { "q4_0, part of a block", 5, 1, 24, 72, K_Q4_0, 16, 0, 0, false, false, true, false },
        { "q8_0 latent", 8, 1, 80, 64, K_Q8_0, 16, 0, 0, false, false, true, true },
        { "odd", 5, 1, 40, 24, K_F32, 7, 0, 0, false, false, true, false },
        { "tiny", 1, 1, 2, 3, K_F32, 1, 0, 0, false, false, true, false },
        { "window", 4, 2, 64, 64, K_F32, 16, 21, 0, true, false, true, false },
        { "window 1", 2, 1, 16, 16, K_F16, 8, 1, 0, false, false, true, false },
        { "softcap", 4, 2, 48, 48, K_F32, 16, 0, 20, false, false, true, false },
        { "sinks", 7, 7, 20, 20, K_F32, 16, 0, 0, true, true, true, false },
        { "latent", 16, 1, 80, 64, K_F32, 16, 0, 0, false, false, true, true },
        { "encoder", 4, 4, 16, 16, K_F32, 16, 0, 0, false, false, false, false },
        { "encoder window", 4, 2, 32, 32, K_F16, 16, 11, 0, false, false, false, false },
};

struct world {
        const struct shape *s;
        uint32_t n_pages;
        struct k_kv kv;
        uint8_t *k, *v;
        float *q, *keys, *vals, *gate, *sinks; /* per sequence and position, as floats */
        uint32_t n_ctx;
};

enum { SEQS = 3 };

/* Columns that a head of a type takes: whole blocks. */
static uint32_t stored(enum k_type t, uint32_t cols) {
        uint32_t block = k_type_block(t);

        return (cols + block - 1) / block * block;
}

/* Gives every sequence pages in scattered places for its positions; the rest of memory is NaN. */
static void world_init(struct world *w, const struct shape *s, struct seqs *b, uint32_t n_ctx) {
        uint32_t pages = DIV_ROUND_UP(n_ctx, s->page), each = pages + 1;
        size_t kr = 0, vr = 0;

        assert_true(each <= 256);
        memset(w, 0, sizeof(*w));
        w->s = s;
        w->n_ctx = n_ctx;
        w->n_pages = each * SEQS + 2;
        assert_true(k_type_row_bytes(s->type, stored(s->type, s->dk), &kr));
        assert_true(k_type_row_bytes(s->type, stored(s->type, s->dv), &vr));
        kr *= s->n_kv;
        vr *= s->n_kv;
        w->k = aligned_alloc(64, (w->n_pages * s->page * kr + 63) / 64 * 64);
        w->v = aligned_alloc(64, (w->n_pages * s->page * vr + 63) / 64 * 64);
        memset(w->k, 0xff, w->n_pages * s->page * kr);
        memset(w->v, 0xff, w->n_pages * s->page * vr);
        w->kv = (struct k_kv){ .k = w->k, .v = s->v_in_k ? NULL : w->v, .type_k = s->type, .type_v = s->type, .page_tokens = s->page,
                               .n_head_kv = s->n_kv, .dk = s->dk, .dv = s->dv, .k_row_bytes = kr, .v_row_bytes = vr };
        seqs_init(b, each);
        for (uint32_t q = 0; q < SEQS; q++)
                for (uint32_t p = 0; p < pages; p++)
                        b->table[q * each + p] = (each - 1 - (p + q) % each) * SEQS + q;
        w->q = randoms((size_t)SEQS * n_ctx * s->n_head * s->dk, 1);
        w->keys = randoms((size_t)SEQS * n_ctx * s->n_kv * s->dk, 1);
        w->vals = randoms((size_t)SEQS * n_ctx * s->n_kv * s->dv, 1);
        w->gate = randoms((size_t)SEQS * n_ctx * s->n_head * s->dv, 3);
        w->sinks = randoms(s->n_head, 2);
}

static void world_free(struct world *w) {
        free(w->k);
        free(w->v);
        free(w->q);
        free(w->keys);
        free(w->vals);
        free(w->gate);
        free(w->sinks);
}

/* Writes K and V of the batch's rows through the qkv op, with nothing but the store. */
static void store(struct k_dev *dev, struct world *w, const struct seqs *b) {
        const struct shape *s = w->s;
        size_t kd = (size_t)s->n_kv * s->dk, vd = (size_t)s->n_kv * s->dv, qd = (size_t)s->n_head * s->dk;
        float *q = floats(b->b.n * qd), *k = floats(b->b.n * kd), *v = floats(b->b.n * vd);

        for (uint32_t i = 0; i < b->b.n; i++) {
                size_t at = (size_t)b->seq[i] * w->n_ctx + (size_t)b->pos[i];

                memcpy(q + i * qd, w->q + at * qd, qd * sizeof(float));
                memcpy(k + i * kd, w->keys + at * kd, kd * sizeof(float));
                memcpy(v + i * vd, w->vals + at * vd, vd * sizeof(float));
        }
        assert_int_equal(dev->ops->qkv(dev, &b->b, &(struct k_qkv_args){
                .q = q, .q_stride = qd, .q_head = s->dk, .k = k, .k_stride = kd, .k_head = s->dk, .v = v, .v_stride = vd,
                .v_head = s->dv, .n_head = s->n_head, .n_head_kv = s->n_kv, .dk = s->dk, .dv = s->dv, .kv = &w->kv }), 0);
        done(q, b->b.n * qd);
        done(k, b->b.n * kd);
        done(v, b->b.n * vd);
}

/* What a type stores of n floats. */
static void rounded(enum k_type t, float *x, size_t n) {
        uint8_t buf[4096];
        float whole[512] = { 0 };

        memcpy(whole, x, n * sizeof(float));
        assert_true(k_encode(t, whole, buf, stored(t, (uint32_t)n)));
        k_decode(t, buf, whole, stored(t, (uint32_t)n));
        memcpy(x, whole, n * sizeof(float));
}

static void reference(const struct world *w, const struct seqs *b, uint32_t row, uint32_t head, double *out) {
        const struct shape *s = w->s;
        uint32_t kvh = head / (s->n_head / s->n_kv), seq = b->seq[row], last = 0;
        size_t at = (size_t)seq * w->n_ctx;
        const float *q = w->q + ((at + (size_t)b->pos[row]) * s->n_head + head) * s->dk;
        double sum = 0, max = s->sinks ? (double)w->sinks[head] : -INFINITY, *p;
        float kv[256];

        for (uint32_t i = 0; i < b->b.n; i++)
                if (b->seq[i] == seq)
                        last = (uint32_t)b->pos[i];
        if (s->causal)
                last = (uint32_t)b->pos[row];
        p = calloc(last + 1, sizeof(double));
        for (uint32_t j = 0; j <= last; j++) {
                p[j] = -INFINITY;
                if (s->window && (uint32_t)abs(b->pos[row] - (int32_t)j) >= s->window)
                        continue;
                memcpy(kv, w->keys + ((at + j) * s->n_kv + kvh) * s->dk, s->dk * sizeof(float));
                rounded(s->type, kv, s->dk);
                p[j] = 0;
                for (uint32_t d = 0; d < s->dk; d++)
                        p[j] += (double)kv[d] * (double)q[d] * 0.3;
                if (s->softcap != 0)
                        p[j] = (double)s->softcap * tanh(p[j] / (double)s->softcap);
                max = fmax(max, p[j]);
        }
        for (uint32_t j = 0; j <= last; j++)
                sum += p[j] = exp(p[j] - max);
        if (s->sinks)
                sum += exp((double)w->sinks[head] - max);
        for (uint32_t c = 0; c < s->dv; c++)
                out[c] = 0;
        for (uint32_t j = 0; j <= last; j++) {
                if (s->v_in_k) {
                        memcpy(kv, w->keys + ((at + j) * s->n_kv + kvh) * s->dk, s->dk * sizeof(float));
                        rounded(s->type, kv, s->dk);
                } else {
                        memcpy(kv, w->vals + ((at + j) * s->n_kv + kvh) * s->dv, s->dv * sizeof(float));
                        rounded(s->type, kv, s->dv);
                }
                for (uint32_t c = 0; c < s->dv; c++)
                        out[c] += p[j] / sum * (double)kv[c];
        }
        for (uint32_t c = 0; s->gate && c < s->dv; c++)
                out[c] *= sigmoid((double)w->gate[((at + (size_t)b->pos[row]) * s->n_head + head) * s->dv + c]);
        free(p);
}

/* out: [n, n_head * dv], the caller's to release */
static float *attend(struct k_dev *dev, const struct world *w, const struct seqs *b) {
        const struct shape *s = w->s;
        size_t qd = (size_t)s->n_head * s->dk, od = (size_t)s->n_head * s->dv;
        float *out = floats(b->b.n * od), *q = floats(b->b.n * qd), *gate = floats(b->b.n * od);
        struct k_act ao = { .f = out, .cols = (uint32_t)od, .q_kind = 1 };

        for (uint32_t i = 0; i < b->b.n; i++) {
                size_t at = (size_t)b->seq[i] * w->n_ctx + (size_t)b->pos[i];

                memcpy(q + i * qd, w->q + at * qd, qd * sizeof(float));
                memcpy(gate + i * od, w->gate + at * od, od * sizeof(float));
        }
        assert_int_equal(dev->ops->attention(dev, &b->b, &(struct k_attention_args){
                .q = q, .q_stride = qd, .q_head = s->dk, .n_head = s->n_head, .kv = &w->kv, .scale = 0.3f, .softcap = s->softcap,
                .window = s->window, .causal = s->causal, .sinks = s->sinks ? w->sinks : NULL, .gate = s->gate ? gate : NULL,
                .gate_stride = od, .gate_head = s->dv, .out = &ao }), 0);
        assert_int_equal(ao.q_kind, 0);
        done(q, b->b.n * qd);
        done(gate, b->b.n * od);
        return out;
}

static void clear(struct seqs *b) {
        b->b.n = b->b.n_d = b->b.n_seq = 0;
}

/* Stores positions [0, n) of each sequence. */
static void fill(struct k_dev *dev, struct world *w, struct seqs *b, const uint32_t n[SEQS]) {
        clear(b);
        for (uint32_t q = 0; q < SEQS; q++)
                seqs_add(b, q, 0, n[q]);
        assert_int_equal(dev->ops->batch_begin(dev, &b->b), 0);
        store(dev, w, b);
}

static void test_attention(void **state) {
        static const uint32_t ctx[SEQS] = { 130, 1, 67 };
        static struct seqs b;
        struct world w;

        FOR_EACH_DEVICE(dev)
                for (size_t k = 0; k < ELEMENTSOF(shapes); k++) {
                        const struct shape *s = &shapes[k];
                        size_t od = (size_t)s->n_head * s->dv;
                        double ref[128];
                        float *out;

                        world_init(&w, s, &b, 130);
                        fill(dev, &w, &b, ctx);
                        out = attend(dev, &w, &b);
                        for (uint32_t i = 0; i < b.b.n; i += i % 3 + 1)
                                for (uint32_t h = 0; h < s->n_head; h++) {
                                        reference(&w, &b, i, h, ref);
                                        all_near(s->name, out + i * od + (size_t)h * s->dv, ref, s->dv, 5e-6);
                                }
                        done(out, b.b.n * od);
                        world_free(&w);
                }
}

/* A row's bits: in one batch of all, in chunks of every size, alone, beside generated rows. */
static void test_prompt_bits(void **state) {
        static const uint32_t ctx[SEQS] = { 150, 90, 3 }, chunks[] = { 1, 5, 33, 64, 100 };
        static struct seqs b;
        struct world w;

        FOR_EACH_DEVICE(dev)
                for (size_t k = 0; k < ELEMENTSOF(shapes); k++) {
                        const struct shape *s = &shapes[k];
                        size_t od = (size_t)s->n_head * s->dv;
                        float *all;

                        if (!s->causal)
                                continue;
                        world_init(&w, s, &b, 150);
                        fill(dev, &w, &b, ctx);
                        all = attend(dev, &w, &b);
                        for (size_t c = 0; c < ELEMENTSOF(chunks); c++)
                                for (uint32_t p = 0; p < ctx[0]; p += chunks[c]) {
                                        uint32_t n = MIN(chunks[c], ctx[0] - p), company = p % 2;
                                        float *part;

                                        clear(&b);
                                        if (company) {
                                                seqs_add(&b, 1, 80, 1);
                                                seqs_add(&b, 2, 2, 1);
                                                b.b.n_d = 2;
                                        }
                                        seqs_add(&b, 0, (int32_t)p, n);
                                        part = attend(dev, &w, &b);
                                        assert_memory_equal(part + (company ? 2 : 0) * od, all + p * od, n * od * sizeof(float));
                                        done(part, b.b.n * od);
                                }
                        free(all);
                        world_free(&w);
                }
}

/* Generated rows over long contexts: spans in parallel or in turn, alone or among many, drafts. */
static void test_generated_bits(void **state) {
        static const uint32_t at[SEQS] = { 1200, 700, 511 };
        static struct seqs b;
        static const struct shape longs[] = {
                { "long", 4, 1, 16, 16, K_F16, 64, 0, 0, true, false, true, false },
                { "long window", 2, 2, 16, 32, K_F32, 64, 600, 0, false, false, true, false },
        };
        struct world w;

        FOR_EACH_DEVICE(dev)
                for (size_t k = 0; k < ELEMENTSOF(longs); k++) {
                        const struct shape *s = &longs[k];
                        size_t od = (size_t)s->n_head * s->dv;
                        float *alone[SEQS], *out;
                        double ref[128];

                        world_init(&w, s, &b, 1210);
                        for (uint32_t q = 0; q < SEQS; q++)
                                for (uint32_t p = 0; p < 1210; p += 605) {
                                        clear(&b);
                                        seqs_add(&b, q, (int32_t)p, 605);
                                        store(dev, &w, &b);
                                }
                        for (uint32_t q = 0; q < SEQS; q++) {
                                clear(&b);
                                seqs_add(&b, q, (int32_t)at[q], 1);
                                b.b.n_d = 1;
                                alone[q] = attend(dev, &w, &b);
                                for (uint32_t h = 0; h < s->n_head; h++) {
                                        reference(&w, &b, 0, h, ref);
                                        all_near(s->name, alone[q] + (size_t)h * s->dv, ref, s->dv, 5e-6);
                                }
                        }
                        for (uint32_t draft = 1; draft < 4; draft++)
                                for (uint32_t prompt = 0; prompt < 50; prompt += 49) {
                                        clear(&b);
                                        for (uint32_t q = 0; q < SEQS; q++)
                                                seqs_add(&b, q, (int32_t)at[q], draft);
                                        b.b.n_d = b.b.n;
                                        if (prompt) /* the last sequence prefills instead */
                                                b.b.n_d -= draft;
                                        out = attend(dev, &w, &b);
                                        for (uint32_t q = 0; q < (prompt ? 2u : 3u); q++)
                                                assert_memory_equal(out + q * draft * od, alone[q], od * sizeof(float));
                                        done(out, b.b.n * od);
                                }
                        for (uint32_t q = 0; q < SEQS; q++)
                                free(alone[q]);
                        world_free(&w);
                }
}

/* Pages outside the window may be gone. */
static void test_dropped_pages(void **state) {
        static const struct shape s = { "dropped", 4, 2, 32, 32, K_F16, 16, 40, 0, false, false, true, false };
        static const uint32_t ctx[SEQS] = { 130, 1, 1 };
        static struct seqs b;
        struct world w;

        FOR_EACH_DEVICE(dev) {
                float *before, *after;

                world_init(&w, &s, &b, 130);
                fill(dev, &w, &b, ctx);
                clear(&b);
                seqs_add(&b, 0, 120, 10);
                before = attend(dev, &w, &b);
                for (uint32_t p = 0; p < (120 - 39) / 16; p++)
                        b.table[p] = UINT32_MAX;
                after = attend(dev, &w, &b);
                assert_memory_equal(before, after, 10 * 4 * 32 * sizeof(float));
                free(before);
                free(after);
                world_free(&w);
        }
}

/* ---- qkv ----------------------------------------------------------------------- */

struct qkv_case {
        const char *name;
        struct k_rope_params rope;
        uint32_t off, norm_cols;
        bool q_norm, k_norm, v_norm, full, v_is_k, no_kv;
        float temp;
};

static void ref_rms(double *x, uint32_t n, const float *w) {
        double ss = 0;

        for (uint32_t i = 0; i < n; i++)
                ss += x[i] * x[i];
        ss = 1 / sqrt(ss / n + 1e-5);
        for (uint32_t i = 0; i < n; i++)
                x[i] *= ss * (w ? (double)w[i] : 1);
}

static void ref_rope(double *x, const struct k_rope_params *p, int32_t pos) {
        for (uint32_t i = 0; i < p->n_dims / 2; i++) {
                double f = pow((double)p->base, -2.0 * i / p->n_dims) / (p->factors ? (double)p->factors[i] : 1), t, a, b, c, s;
                uint32_t x0 = p->kind == K_ROPE_ADJACENT ? 2 * i : i, x1 = p->kind == K_ROPE_ADJACENT ? 2 * i + 1 : i + p->n_dims / 2;

                t = f * (double)p->freq_scale;
                if (p->ext_factor != 0) {
                        double lo = p->n_dims * log(p->n_ctx_orig / ((double)p->beta_fast * 2 * M_PI)) / (2 * log((double)p->base));
                        double hi = p->n_dims * log(p->n_ctx_orig / ((double)p->beta_slow * 2 * M_PI)) / (2 * log((double)p->base));
                        double mix;

                        lo = fmax(0, floor(lo));
                        hi = fmin(p->n_dims - 1, ceil(hi));
                        mix = (1 - fmin(1, fmax(0, (i - lo) / fmax(0.001, hi - lo)))) * (double)p->ext_factor;
                        t = t * (1 - mix) + f * mix;
                }
                c = cos(t * pos) * (double)p->attn_factor;
                s = sin(t * pos) * (double)p->attn_factor;
                a = x[x0];
                b = x[x1];
                x[x0] = a * c - b * s;
                x[x1] = a * s + b * c;
        }
}

static void one_qkv(struct k_dev *dev, const struct qkv_case *t, uint32_t dk) {
        enum { N = 13, H = 6, KV = 2, POS = 1000 };
        static struct seqs b;
        size_t qd = (size_t)H * dk, kd = (size_t)KV * dk;
        float *q = randoms(N * qd, 2), *k = randoms(N * kd, 2), *v = t->v_is_k ? k : randoms(N * kd, 2), *q0 = copy_of(q, N * qd),
              *k0 = copy_of(k, N * kd), *v0 = copy_of(v, N * kd), *qn = randoms(qd, 1), *kn = randoms(kd, 1),
              *pk = floats((size_t)(POS + N + 16) * kd), *pv = floats((size_t)(POS + N + 16) * kd);
        struct k_kv kv = { .k = pk, .v = pv, .type_k = K_F32, .type_v = K_F32, .page_tokens = 8, .n_head_kv = KV, .dk = dk, .dv = dk,
                           .k_row_bytes = kd * sizeof(float), .v_row_bytes = kd * sizeof(float) };
        double x[H * 600];

        seqs_init(&b, 200);
        for (uint32_t p = 0; p < 126 + 2; p++)
                b.table[p] = p ^ 1;
        seqs_add(&b, 0, POS, N);
        assert_int_equal(dev->ops->batch_begin(dev, &b.b), 0);
        assert_int_equal(dev->ops->qkv(dev, &b.b, &(struct k_qkv_args){
                .q = q, .q_stride = qd, .q_head = dk, .k = t->no_kv ? NULL : k, .k_stride = kd, .k_head = dk, .v = v, .v_stride = kd,
                .v_head = dk, .n_head = H, .n_head_kv = KV, .dk = dk, .dv = dk, .rope_off = t->off, .q_norm = t->q_norm ? qn : NULL,
                .k_norm = t->k_norm ? kn : NULL, .k_norm_cols = t->norm_cols, .v_norm = t->v_norm, .norm_full = t->full,
                .norm_eps = 1e-5f, .q_temp = t->temp, .q_temp_len = 100, .rope = t->rope.kind == K_ROPE_NONE ? NULL : &t->rope,
                .kv = &kv }), 0);
        for (uint32_t i = 0; i < N; i++) {
                int32_t pos = POS + (int32_t)i;
                size_t place = ((size_t)b.table[pos / 8] * 8 + (size_t)pos % 8) * kd;

                for (uint32_t c = 0; c < qd; c++)
                        x[c] = (double)q0[i * qd + c];
                if (t->q_norm && t->full)
                        ref_rms(x, (uint32_t)qd, qn);
                for (uint32_t h = 0; h < H; h++) {
                        if (t->q_norm && !t->full)
                                ref_rms(x + h * dk, dk, qn);
                        ref_rope(x + h * dk + t->off, &t->rope, t->rope.kind == K_ROPE_NONE ? 0 : pos);
                }
                for (uint32_t c = 0; c < qd; c++)
                        near(t->name, c, (double)q[i * qd + c], x[c] * (1 + (double)t->temp * log(1 + floor(pos / 100))), 2e-5);
                if (t->no_kv) {
                        assert_true(isnan(pk[place]) && isnan(pv[place]));
                        continue;
                }
                for (uint32_t c = 0; c < kd; c++)
                        x[c] = (double)k0[i * kd + c];
                if (t->k_norm && t->full)
                        ref_rms(x, (uint32_t)kd, kn);
                for (uint32_t h = 0; h < KV; h++) {
                        if (t->k_norm && !t->full)
                                ref_rms(x + h * dk, t->norm_cols ? t->norm_cols : dk, kn);
                        ref_rope(x + h * dk + t->off, &t->rope, t->rope.kind == K_ROPE_NONE ? 0 : pos);
                }
                all_near(t->name, pk + place, x, kd, 2e-5);
                for (uint32_t c = 0; c < kd; c++)
                        x[c] = (double)v0[i * kd + c];
                for (uint32_t h = 0; t->v_norm && h < KV; h++)
                        ref_rms(x + h * dk, dk, NULL);
                all_near(t->name, pv + place, x, kd, 2e-5);
        }
        done(q, N * qd);
        done(k, N * kd);
        if (!t->v_is_k)
                done(v, N * kd);
        done(q0, N * qd);
        done(k0, N * kd);
        done(v0, N * kd);
        done(qn, qd);
        done(kn, kd);
        done(pk, (size_t)(POS + N + 16) * kd);
        done(pv, (size_t)(POS + N + 16) * kd);
}

static void test_qkv(void **state) {
        static float factors[300];
        const struct qkv_case cases[] = {
                { "no rope", { .kind = K_ROPE_NONE }, .temp = 0.1f },
                { "adjacent", { K_ROPE_ADJACENT, 32, 1e4f, 1, NULL, 0, 1, 32, 1, 2048 } },
                { "halves", { K_ROPE_HALVES, 32, 1e6f, 0.25f, NULL, 0, 1, 32, 1, 2048 }, .q_norm = true, .k_norm = true },
                { "partial", { K_ROPE_HALVES, 12, 1e4f, 1, NULL, 0, 1, 32, 1, 2048 }, .q_norm = true, .k_norm = true, .full = true },
                { "factors", { K_ROPE_HALVES, 32, 5e5f, 1, factors, 0, 1, 32, 1, 2048 }, .v_norm = true, .v_is_k = true,
                  .k_norm = true, .q_norm = true },
                { "yarn", { K_ROPE_HALVES, 32, 1e4f, 0.125f, NULL, 1, 1.2f, 32, 1, 64 }, .temp = 0.3f },
                { "latent", { K_ROPE_ADJACENT, 16, 1e4f, 1, NULL, 0, 1, 32, 1, 64 }, .off = 16, .k_norm = true, .norm_cols = 16 },
                { "shared", { K_ROPE_HALVES, 32, 1e4f, 1, NULL, 0, 1, 32, 1, 64 }, .q_norm = true, .no_kv = true },
        };
        struct qkv_case wide = { "wide", { K_ROPE_HALVES, 600, 1e4f, 1, NULL, 0, 1, 32, 1, 64 } };

        for (uint32_t i = 0; i < ELEMENTSOF(factors); i++)
                factors[i] = 1 + (float)i / 3;
        FOR_EACH_DEVICE(dev) {
                for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                        one_qkv(dev, &cases[i], 32);
                        if (!cases[i].norm_cols)
                                one_qkv(dev, &cases[i], 50);
                }
                one_qkv(dev, &wide, 600);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_attention),
                cmocka_unit_test(test_prompt_bits),
                cmocka_unit_test(test_generated_bits),
                cmocka_unit_test(test_dropped_pages),
                cmocka_unit_test(test_qkv),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
