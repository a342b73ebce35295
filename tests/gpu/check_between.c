/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A norm of one row between two products: the first adds to the residual, the
 * second reads what the norm makes. In a batch they may share kernels and no norm
 * is launched; the bits are those of the ops one by one, and of the same row among
 * others, also for whoever reads the norm's row after the second product.
 */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/types.h"

enum { ROWS = 3, IN = 512, AGAIN = 40 };

struct chain {
        uint32_t cols, rows, n; /* of the residual; of each of the second product's matrices; rows of the batch */
        bool glu, weights; /* weights: of the norm */
        enum k_norm kind;
        struct matrix first, second[2], again;
        struct acts in, x, h, mid;
        struct pair y, o[2], z, w, bias;
        float *hx, *hin;
};

/* Types of the second product's matrices. */
static bool chain_new(struct rig *r, struct chain *c, enum k_type t0, enum k_type t1, uint32_t cols, uint32_t rows, bool glu, uint32_t n, bool bad) {
        *c = (struct chain){ .cols = cols, .rows = rows, .n = n, .glu = glu, .weights = true };
        if (cols % k_type_block(t0) || cols % k_type_block(t1))
                return false;
        matrix_new(r, K_Q8_0, cols, IN, 1, false, cols + 1, &c->first);
        matrix_new(r, t0, rows, cols, 1, false, cols + 2, &c->second[0]);
        matrix_new(r, t1, rows, cols, 1, false, cols + 3, &c->second[1]);
        matrix_new(r, t0, AGAIN, cols, 1, false, cols + 4, &c->again);
        c->hx = random_floats((size_t)n * cols, cols + 5);
        c->hin = random_floats((size_t)n * IN, cols + 6);
        if (bad)
                for (size_t i = 0; i < (size_t)n * cols; i++)
                        c->hx[i] = NAN;
        float *hw = random_floats(cols, cols + 7), *hb = random_floats(cols, cols + 8);
        c->w = both(r, hw, cols * sizeof(float));
        c->bias = both(r, hb, cols * sizeof(float));
        free(hw);
        free(hb);
        c->in = acts_new(r, c->hin, n, IN);
        c->x = acts_new(r, c->hx, n, cols);
        c->h = acts_new(r, NULL, n, cols);
        c->mid = acts_new(r, NULL, n, rows);
        c->y = both_poison(r, (size_t)n * cols);
        c->o[0] = both_poison(r, (size_t)n * rows);
        c->o[1] = both_poison(r, (size_t)n * rows);
        c->z = both_poison(r, (size_t)n * AGAIN);
        return true;
}

static void chain_free(struct rig *r, struct chain *c) {
        struct pair *p[] = { &c->y, &c->o[0], &c->o[1], &c->z, &c->w, &c->bias };
        struct acts *a[] = { &c->in, &c->x, &c->h, &c->mid };
        struct matrix *m[] = { &c->first, &c->second[0], &c->second[1], &c->again };

        for (size_t i = 0; i < ELEMENTSOF(p); i++)
                both_free(r, p[i]);
        for (size_t i = 0; i < ELEMENTSOF(a); i++)
                acts_free(r, a[i]);
        for (size_t i = 0; i < ELEMENTSOF(m); i++)
                matrix_free(r, m[i]);
        free(c->hx);
        free(c->hin);
}

/* The ops of rows [row, row + n) on one device; norm_b: one that no product makes. */
static int ops_of(struct k_dev *d, const struct k_batch *b, struct chain *c, bool cpu, uint32_t row, uint32_t n, bool norm_b) {
#define SIDE(p) ((float *)(cpu ? (p).c : (p).g))
        struct k_act in = cpu ? c->in.c : c->in.g, x = cpu ? c->x.c : c->x.g, h = cpu ? c->h.c : c->h.g, mid = cpu ? c->mid.c : c->mid.g;
        struct k_act y = { .f = SIDE(c->y), .cols = c->cols };
        struct k_linear_args first = { .x = &in, .n_out = 1, .n_rows = n, .n_d = n }, second = { .x = &h, .n_out = 2, .n_rows = n, .n_d = n };
        struct k_linear_args again = { .x = &h, .n_out = 1, .n_rows = n, .n_d = n };
        struct k_norm_args norm = { .x = &x, .add = &y, .add_scale = 0.5f, .kind = c->kind, .eps = 1e-5f, .out_scale = 0.75f, .w = c->weights ? SIDE(c->w) : NULL,
                                    .b = norm_b ? SIDE(c->bias) : NULL, .out = &h };
        struct k_glu_args glu = { .gate = SIDE(c->o[0]), .up = SIDE(c->o[1]), .gate_stride = c->rows, .up_stride = c->rows, .act = K_GLU_SILU,
                                  .out = &mid, .n = n };
        int e;

        in.f += (size_t)row * IN;
        x.f += (size_t)row * c->cols;
        first.out[0].w = cpu ? &c->first.c : &c->first.g;
        first.out[0].bias = SIDE(c->bias);
        first.out[0].y = y.f;
        first.out[0].y_stride = c->cols;
        for (int i = 0; i < 2; i++) {
                second.out[i].w = cpu ? &c->second[i].c : &c->second[i].g;
                second.out[i].y = SIDE(c->o[i]);
                second.out[i].y_stride = c->rows;
        }
        again.out[0].w = cpu ? &c->again.c : &c->again.g;
        again.out[0].y = SIDE(c->z);
        again.out[0].y_stride = AGAIN;
        e = d->ops->linear(d, b, &first);
        e = e ? e : d->ops->norm(d, b, &norm);
        e = e ? e : d->ops->linear(d, b, &second);
        if (e == 0 && c->glu)
                e = d->ops->glu(d, b, &glu);
        return e ? e : d->ops->linear(d, b, &again);
#undef SIDE
}

enum how { ONE_BY_ONE, BATCH };

static void chain_reset(struct rig *r, struct chain *c) {
        const struct k_ops *o = r->gpu->ops;
        const size_t n = c->n;

        if (o->upload(r->gpu, c->x.f.g, c->hx, n * c->cols * 4) < 0 || o->upload(r->gpu, c->in.f.g, c->hin, n * IN * 4) < 0 ||
            o->zero(r->gpu, c->h.f.g, n * c->cols * 4) < 0 || o->zero(r->gpu, c->h.q.g, o->act_q_bytes((uint32_t)n, c->cols)) < 0 ||
            o->zero(r->gpu, c->mid.f.g, n * c->rows * 4) < 0 || o->zero(r->gpu, c->mid.q.g, o->act_q_bytes((uint32_t)n, c->rows)) < 0 ||
            o->zero(r->gpu, c->z.g, n * AGAIN * 4) < 0 || o->zero(r->gpu, c->o[0].g, n * c->rows * 4) < 0 ||
            o->zero(r->gpu, c->o[1].g, n * c->rows * 4) < 0)
                expect(r, false, "norm between products: %s", r->gpu->ops->last_error(r->gpu));
}

/* What row 'row' of all that the ops write is, where they ran on rows from 'first' on; malloc. */
static float *chain_row(struct rig *r, struct chain *c, uint32_t first, uint32_t row, size_t *ret_floats) {
        const struct k_ops *o = r->gpu->ops;
        const uint32_t at = row - first; /* within what is dense */
        const size_t hq = o->act_q_bytes(1, c->cols) / 4, mq = o->act_q_bytes(1, c->rows) / 4;
        const struct { const void *p; size_t at, floats; } part[] = {
                { c->x.f.g, row, c->cols }, { c->h.f.g, at, c->cols }, { c->h.q.g, at, hq }, { c->z.g, at, AGAIN },
                { c->glu ? c->mid.f.g : c->o[0].g, at, c->rows }, { c->glu ? NULL : c->o[1].g, at, c->rows }, { c->glu ? c->mid.q.g : NULL, at, mq },
        };
        float *all = malloc((2 * (size_t)c->cols + hq + mq + AGAIN + 2 * (size_t)c->rows) * sizeof(float));

        if (!all)
                exit(70);
        *ret_floats = 0;
        for (size_t i = 0; i < ELEMENTSOF(part); i++) {
                if (!part[i].p)
                        continue;
                float *f = fetch(r, (const float *)part[i].p + part[i].at * part[i].floats, part[i].floats);
                memcpy(all + *ret_floats, f, part[i].floats * sizeof(float));
                *ret_floats += part[i].floats;
                free(f);
        }
        return all;
}

static float *chain_run(struct rig *r, struct chain *c, enum how how, uint32_t first, uint32_t n, uint32_t row, size_t *ret_floats) {
        const struct k_ops *o = r->gpu->ops;
        struct k_batch b = { .n = n, .n_d = n, .n_seq = 1 };
        int e = 0;

        chain_reset(r, c);
        if (how == BATCH)
                e = o->batch_begin(r->gpu, &b);
        e = e ? e : ops_of(r->gpu, &b, c, false, first, n, false);
        if (how == BATCH)
                e = e ? e : o->batch_end(r->gpu, &b);
        if (e < 0)
                expect(r, false, "norm between products: %s", o->last_error(r->gpu));
        return chain_row(r, c, first, row, ret_floats);
}

static void case_with(struct rig *r, enum k_type t0, enum k_type t1, uint32_t cols, uint32_t rows, bool glu, enum k_norm kind, bool weights, bool bad) {
        struct chain c;
        size_t n[3];
        char what[160];

        if (!chain_new(r, &c, t0, t1, cols, rows, glu, ROWS, bad))
                return;
        c.kind = kind;
        c.weights = weights;
        snprintf(what, sizeof(what), "norm %d of %u columns before %s, %s [%u]%s%s%s", (int)kind, cols, k_type_name(t0), k_type_name(t1), rows,
                 glu ? ", GLU" : "", weights ? "" : ", no weights", bad ? ", no numbers" : "");
        float *apart = chain_run(r, &c, ONE_BY_ONE, 1, 1, 1, &n[0]), *joined = chain_run(r, &c, BATCH, 1, 1, 1, &n[1]);
        size_t at = 0;
        while (at < n[0] && memcmp(apart + at, joined + at, sizeof(float)) == 0)
                at++;
        expect(r, n[0] == n[1] && at == n[0], "%s: as one by one (%zu of %zu: %.9g, %.9g)", what, at, n[0], at < n[0] ? (double)apart[at] : 0,
               at < n[0] ? (double)joined[at] : 0);
        float *among = chain_run(r, &c, BATCH, 0, ROWS, 1, &n[2]);
        expect(r, n[0] == n[2] && memcmp(apart, among, n[0] * sizeof(float)) == 0, "%s: as among others", what);
        if (!bad) {
                struct k_batch b = { .n = ROWS, .n_d = ROWS };
                if (ops_of(r->cpu, &b, &c, true, 0, ROWS, false) < 0)
                        expect(r, false, "norm between products: the CPU refuses");
                const double limit = r->exact ? 1e-5 : 2.5e-2;
                compare(r, what, c.x.f, ROWS, cols, cols, limit);
                compare(r, what, c.h.f, ROWS, cols, cols, limit);
                compare(r, what, glu ? c.mid.f : c.o[1], ROWS, rows, rows, glu ? 2 * limit : limit);
                compare(r, what, c.z, ROWS, AGAIN, AGAIN, limit);
        }
        free(apart);
        free(joined);
        free(among);
        chain_free(r, &c);
}

static void case_of(struct rig *r, enum k_type t0, enum k_type t1, uint32_t cols, uint32_t rows, bool glu, enum k_norm kind, bool bad) {
        case_with(r, t0, t1, cols, rows, glu, kind, true, bad);
}

/* As a graph, which says how many kernels there are: a norm that no product makes is one more. */
static size_t graph_of(struct rig *r, struct chain *c, const struct k_sample_row *row, const float *logits, void *scratch, bool norm_b, float **ret,
                       size_t *ret_floats) {
        const struct k_ops *o = r->gpu->ops;
        uint32_t token = 0, seq = 0, place = 0;
        int32_t pos = 0;
        uint32_t *dev = o->mem_alloc(r->gpu, 64);
        struct k_batch b = { .n = 1, .n_d = 1, .n_seq = 1, .token = &token, .pos = &pos, .seq = &seq, .place = &place, .sampled = dev,
                             .history = dev + 1, .history_stride = 8 };
        struct k_sample_args a = { .logits = logits, .n_vocab = AGAIN, .rows = row, .n = 1, .scratch = scratch };
        void *g = NULL;
        size_t bytes = 0;
        int e;

        chain_reset(r, c);
        o->sync(r->gpu);
        e = o->graph_begin(r->gpu, &b);
        e = e ? e : ops_of(r->gpu, &b, c, false, 1, 1, norm_b);
        e = e ? e : o->sample(r->gpu, &b, &a);
        e = o->graph_end(r->gpu, &b, e ? NULL : &g);
        if (e == 0 && g) {
                bytes = o->graph_bytes(r->gpu, g, 0);
                for (int i = 0; i < 2 && e == 0; i++) { /* the second behind the first: the same again */
                        chain_reset(r, c);
                        e = o->graph_run(r->gpu, g, &b, row);
                }
        }
        expect(r, e == 0 && g, "norm between products, as a graph: %s", o->last_error(r->gpu));
        o->sync(r->gpu);
        *ret = chain_row(r, c, 1, 1, ret_floats);
        o->graph_free(r->gpu, g);
        o->mem_free(r->gpu, dev);
        return bytes;
}

static void graph_case(struct rig *r) {
        const struct k_ops *o = r->gpu->ops;
        struct chain c;
        size_t n[3];
        float *got[3];

        if (!chain_new(r, &c, K_Q4_0, K_Q4_0, 640, 96, true, ROWS, false))
                return;
        void *scratch = o->mem_alloc(r->gpu, o->sample_scratch(1, AGAIN));
        struct k_sample_out *out = o->host_alloc(r->gpu, sizeof(*out));
        struct k_sample_row row = { .n_history = 1, .repeat = 1, .top_p = 1, .log_min_p = -INFINITY, .out = out, .stamp = 1 };
        got[0] = chain_run(r, &c, ONE_BY_ONE, 1, 1, 1, &n[0]);
        const size_t with = graph_of(r, &c, &row, c.z.g, scratch, false, &got[1], &n[1]);
        const size_t without = graph_of(r, &c, &row, c.z.g, scratch, true, &got[2], &n[2]);
        expect(r, n[0] == n[1] && memcmp(got[0], got[1], n[0] * sizeof(float)) == 0, "norm between products: the same bits in a graph");
        if (!r->exact)
                expect(r, with < without, "norm between products: no kernel for it (%zu bytes of a graph, %zu with one)", with, without);
        for (int i = 0; i < 3; i++)
                free(got[i]);
        o->host_free(r->gpu, out);
        o->mem_free(r->gpu, scratch);
        chain_free(r, &c);
}

static void check_others(struct rig *r) {
        case_of(r, K_Q4_0, K_F32, 96, 33, false, K_NORM_RMS, false); /* who reads floats */
        case_of(r, K_F16, K_Q4_0, 640, 33, false, K_NORM_L2, false);
        case_of(r, K_Q4_0, K_Q4_0, 640, 64, true, K_NORM_LAYER, false);
        case_with(r, K_Q4_0, K_Q4_0, 768, 32, true, K_NORM_RMS, false, false);
        case_with(r, K_Q8_0, K_Q4_0, 640, 33, false, K_NORM_L2, false, false);
        case_with(r, K_Q8_0, K_Q4_0, 8224, 33, false, K_NORM_RMS, false, false); /* just more than 8,192 */
        if (!r->tiny) {
                static const uint32_t wide[] = { 8224, 12288, 16384 }; /* more than 512 groups: a second round of a warp's lanes */
                for (size_t i = 0; i < ELEMENTSOF(wide); i++)
                        for (int weights = 0; weights < 2; weights++) {
                                case_with(r, K_Q4_0, K_Q4_0, wide[i], 256, true, K_NORM_RMS, weights, false);
                                case_with(r, K_Q8_0, K_Q4_1, wide[i], 250, false, K_NORM_L2, weights, false);
                                case_with(r, K_Q4_K, K_Q6_K, wide[i], 64, false, K_NORM_RMS, weights, false);
                                case_with(r, K_Q4_0, K_Q4_0, wide[i], 64, true, K_NORM_RMS, weights, true);
                        }
                case_of(r, K_F16, K_F32, 8196, 33, false, K_NORM_RMS, false); /* a last group of four, which no product makes */
                case_of(r, K_F16, K_BF16, 16380, 33, false, K_NORM_LAYER, false);
                static const uint32_t cols[] = { 32, 256, 2560, 2880, 4096, 5120, 8192 };
                for (size_t i = 0; i < ELEMENTSOF(cols); i++) {
                        case_of(r, K_Q4_0, K_Q4_0, cols[i], 1024, true, K_NORM_RMS, false);
                        case_of(r, K_Q8_0, K_Q4_1, cols[i], 1000, false, K_NORM_RMS, false);
                        case_of(r, K_Q4_0, K_Q4_0, cols[i], 64, true, K_NORM_L2, true);
                }
        }
        graph_case(r);
}

void check_between(struct rig *r) {
        /* Squares that are no numbers are left in each place that the next ones will have. */
        case_of(r, K_Q8_0, K_Q8_0, r->tiny ? 8224 : 16384, 32, false, K_NORM_RMS, true);
        for (enum k_type t = 0; t < _K_TYPE_MAX; t++) {
                if (t == K_I32 || !mine(r, t))
                        continue;
                case_of(r, t, t, 768, r->tiny ? 32 : 96, true, K_NORM_RMS, false);
                if (!r->tiny)
                        case_of(r, t, t == K_Q8_0 ? K_Q6_K : K_Q8_0, 1280, 50, false, K_NORM_RMS, false);
        }
        if (mine(r, K_Q4_0))
                check_others(r);
}
