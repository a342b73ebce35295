/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Images that go from one product to the next word by word, in a step taken down
 * (kernels/cuda/mail.cuh), against the same ops in a batch, where the second waits
 * for all of the first: the same bits, also of NaNs of all ones and of codes of -1,
 * which look like what an empty box has, and the same each time the step runs.
 */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/types.h"

enum { COLS = 512, TIMES = 3 };
enum fill { RANDOM, ONES, NANS };

struct chain {
        /* gate and up with GLU, or the delta net of n_v heads, or a norm, and two products of what it makes */
        uint32_t mid, rows, n_v;
        bool norm;
        struct matrix gate, up, down[2];
        struct acts x, h;
        struct pair g, u, y[2], bias[2], in, small, state, conv, conv_w;
        float *host;
};

static void chain_free(struct rig *r, struct chain *c) {
        struct pair *p[] = { &c->y[0], &c->y[1], &c->g, &c->u, &c->bias[0], &c->bias[1], &c->in, &c->small, &c->state, &c->conv, &c->conv_w };
        struct matrix *m[] = { &c->down[0], &c->down[1], &c->gate, &c->up };

        for (size_t i = 0; i < ELEMENTSOF(p); i++)
                if (p[i]->g)
                        both_free(r, p[i]);
        for (size_t i = 0; i < ELEMENTSOF(m); i++)
                if (m[i]->mem_g)
                        matrix_free(r, m[i]);
        if (c->x.f.g)
                acts_free(r, &c->x);
        acts_free(r, &c->h);
        free(c->host);
}

static struct pair random_pair(struct rig *r, size_t n, uint32_t seed) {
        float *f = random_floats(n, seed);
        struct pair p = both(r, f, n * sizeof(float));
        free(f);
        return p;
}

/* What both kinds have. The second of the two products may be of another type, which is another launch. */
static void chain_new(struct rig *r, struct chain *c, enum k_type t0, enum k_type t1, uint32_t mid, uint32_t rows) {
        *c = (struct chain){ .mid = mid, .rows = rows };
        if (matrix_new(r, t0, rows, mid, 1, false, mid + 1, &c->down[0]) < 0 || matrix_new(r, t1, rows, mid, 1, false, mid + 2, &c->down[1]) < 0)
                exit(70); /* no such matrix: a case is wrong */
        c->h = acts_new(r, NULL, 1, mid);
        for (int i = 0; i < 2; i++)
                c->y[i] = both_poison(r, rows);
}

/* Biases are all there is of gate and up where x is 0: then each block of the image has what is asked for here. */
static void chain_glu(struct rig *r, struct chain *c, enum k_type t, enum fill fill) {
        float *b[2] = { random_floats(c->mid, 5), random_floats(c->mid, 6) };
        const uint32_t ones = UINT32_MAX;

        c->host = random_floats(COLS, 7);
        if (fill != RANDOM)
                memset(c->host, 0, COLS * sizeof(float));
        for (uint32_t i = 0; fill != RANDOM && i < c->mid; i++) {
                const uint32_t block = i / 32 % 4;
                b[0][i] = 1;
                b[1][i] = block == 0 ? i % 32 ? -1 : -127 : block == 1 ? 0 : block == 2 ? i % 32 == 9 ? 127 : -1 : b[1][i];
                if (fill == NANS && block == 1)
                        memcpy(&b[i % 2][i], &ones, sizeof(ones));
                if (fill == NANS && block == 3)
                        b[1][i] = i % 5 ? INFINITY : 3;
        }
        if (matrix_new(r, t, c->mid, COLS, 1, false, 3, &c->gate) < 0 || matrix_new(r, t, c->mid, COLS, 1, false, 4, &c->up) < 0)
                exit(70);
        c->x = acts_new(r, c->host, 1, COLS);
        c->g = both_poison(r, c->mid);
        c->u = both_poison(r, c->mid);
        for (int i = 0; i < 2; i++) {
                c->bias[i] = both(r, b[i], c->mid * sizeof(float));
                free(b[i]);
        }
}

enum { HEAD = 128, TAPS = 4 };
static void chain_delta(struct rig *r, struct chain *c, uint32_t n_v) {
        const uint32_t channels = 3 * n_v * HEAD;
        float *small = random_floats(256, 9);

        for (uint32_t i = 0; i < 64; i++)
                small[i] = -0.5f - fabsf(small[i]) * 0.2f;
        c->n_v = n_v;
        c->small = both(r, small, 256 * sizeof(float));
        c->in = random_pair(r, channels + c->mid + 2 * n_v, 11);
        const size_t state = (size_t)n_v * HEAD * HEAD, slot = r->gpu->ops->delta_slot(n_v, n_v, HEAD, HEAD);
        float *st = random_floats(2 * slot, 12);
        for (int i = 0; i < 2; i++) /* nothing is pending */
                memset(st + i * slot + state, 0, (slot - state) * sizeof(float));
        c->state = both(r, st, 2 * slot * sizeof(float));
        free(st);
        c->conv = random_pair(r, (size_t)2 * (TAPS - 1) * channels, 13);
        c->conv_w = random_pair(r, (size_t)TAPS * channels, 14);
        free(small);
}

static void chain_norm(struct rig *r, struct chain *c, enum fill fill) {
        c->host = random_floats(c->mid, 15);
        if (fill == NANS)
                memset(c->host + c->mid / 2, 0xff, sizeof(float));
        c->norm = true;
        c->x = acts_new(r, c->host, 1, c->mid);
        c->bias[0] = random_pair(r, c->mid, 16);
}

static int ops_of(struct rig *r, const struct k_batch *b, struct chain *c) {
        const struct k_ops *o = r->gpu->ops;
        struct k_act x = c->x.g, h = c->h.g;
        int e;

        if (c->n_v) {
                struct k_delta_args a = { .qkv = c->in.g, .qkv_stride = 3 * (size_t)c->mid, .z = (float *)c->in.g + 3 * (size_t)c->mid, .z_stride = c->mid,
                                          .beta = (float *)c->in.g + 4 * (size_t)c->mid, .ba_stride = c->n_v, .a = c->small.g,
                                          .dt_bias = (float *)c->small.g + 64, .norm_w = (float *)c->small.g + 128, .conv_w = c->conv_w.g,
                                          .conv_state = c->conv.g, .state = c->state.g, .n_k = c->n_v, .n_v = c->n_v, .s_k = HEAD, .s_v = HEAD,
                                          .conv = TAPS, .eps = 1e-6f, .out = &h };
                a.alpha = a.beta + c->n_v;
                e = o->delta(r->gpu, b, &a);
        } else if (c->norm) {
                struct k_norm_args a = { .x = &x, .kind = K_NORM_RMS, .eps = 1e-5f, .out_scale = 1, .w = c->bias[0].g, .out = &h };
                e = o->norm(r->gpu, b, &a);
        } else {
                struct k_linear_args first = { .x = &x, .n_out = 2, .n_rows = 1, .n_d = 1 };
                struct k_glu_args glu = { .gate = c->g.g, .up = c->u.g, .gate_stride = c->mid, .up_stride = c->mid, .act = K_GLU_SILU, .out = &h, .n = 1 };
                for (int i = 0; i < 2; i++) {
                        first.out[i].w = i ? &c->up.g : &c->gate.g;
                        first.out[i].bias = c->bias[i].g;
                        first.out[i].y = i ? c->u.g : c->g.g;
                        first.out[i].y_stride = c->mid;
                }
                e = o->linear(r->gpu, b, &first);
                e = e ? e : o->glu(r->gpu, b, &glu);
        }
        struct k_linear_args second = { .x = &h, .n_out = 2, .n_rows = 1, .n_d = 1 };
        for (int i = 0; i < 2; i++) {
                second.out[i].w = &c->down[i].g;
                second.out[i].y = c->y[i].g;
                second.out[i].y_stride = c->rows;
        }
        return e ? e : o->linear(r->gpu, b, &second);
}

/* The image and both results; malloc. */
static uint8_t *results(struct rig *r, struct chain *c, size_t *ret_bytes) {
        const struct k_ops *o = r->gpu->ops;
        const size_t q = o->act_q_bytes(1, c->mid), y = c->rows * sizeof(float);
        uint8_t *all = malloc(q + 2 * y);

        if (!all || o->download(r->gpu, all, c->h.q.g, q) < 0 || o->download(r->gpu, all + q, c->y[0].g, y) < 0 ||
            o->download(r->gpu, all + q + y, c->y[1].g, y) < 0)
                exit(70);
        *ret_bytes = q + 2 * y;
        return all;
}
static void forget(struct rig *r, struct chain *c) {
        const struct k_ops *o = r->gpu->ops;

        if (o->zero(r->gpu, c->h.q.g, o->act_q_bytes(1, c->mid)) < 0 || o->zero(r->gpu, c->h.f.g, c->mid * 4) < 0 ||
            o->zero(r->gpu, c->y[0].g, c->rows * 4) < 0 || o->zero(r->gpu, c->y[1].g, c->rows * 4) < 0)
                exit(70);
}

static void compare_ways(struct rig *r, const char *what, struct chain *c) {
        const struct k_ops *o = r->gpu->ops;
        uint32_t token = 0, seq = 0, place = 0, in = 0, out = 1;
        uint8_t zero = 0;
        int32_t pos = 0;
        uint32_t *dev = o->mem_alloc(r->gpu, 64);
        void *scratch = o->mem_alloc(r->gpu, o->sample_scratch(1, c->rows)), *g = NULL;
        struct k_sample_out *chosen = o->host_alloc(r->gpu, sizeof(*chosen));
        const struct k_sample_row row = { .n_history = 1, .repeat = 1, .top_p = 1, .log_min_p = -INFINITY, .out = chosen, .stamp = 1 };
        const struct k_sample_args a = { .logits = c->y[0].g, .n_vocab = c->rows, .rows = &row, .n = 1, .scratch = scratch };
        const struct k_batch step = { .n = 1, .n_d = 1, .n_seq = 1, .token = &token, .pos = &pos, .seq = &seq, .state_in = &in, .state_out = &out,
                                      .state_zero = &zero, .place = &place, .sampled = dev, .history = dev + 1, .history_stride = 8 };
        struct k_batch b = step;
        size_t bytes[2];
        int e;

        forget(r, c);
        e = o->batch_begin(r->gpu, &b);
        e = e ? e : ops_of(r, &b, c);
        e = e ? e : o->batch_end(r->gpu, &b);
        expect(r, e == 0, "%s, in a batch: %s", what, o->last_error(r->gpu));
        uint8_t *waits = results(r, c, &bytes[0]);

        b = step;
        o->sync(r->gpu);
        e = o->graph_begin(r->gpu, &b);
        e = e ? e : ops_of(r, &b, c);
        e = e ? e : o->sample(r->gpu, &b, &a);
        const int end = o->graph_end(r->gpu, &b, e ? NULL : &g);
        e = e ? e : end;
        for (int i = 0; i < (r->tiny ? 1 : TIMES) && e == 0 && g; i++) {
                forget(r, c);
                for (int k = 0; k < 2 && e == 0; k++) { /* the second right behind the first */
                        b = step;
                        e = o->graph_run(r->gpu, g, &b, &row);
                }
                o->sync(r->gpu);
                uint8_t *mail = results(r, c, &bytes[1]);
                size_t at = 0;
                while (at < bytes[0] && waits[at] == mail[at])
                        at++;
                expect(r, at == bytes[0], "%s: as in a batch, time %d (%zu of %zu bytes)", what, i + 1, at, bytes[0]);
                free(mail);
        }
        expect(r, e == 0 && g, "%s, as a graph: %s", what, o->last_error(r->gpu));
        o->graph_free(r->gpu, g);
        free(waits);
        o->host_free(r->gpu, chosen);
        o->mem_free(r->gpu, scratch);
        o->mem_free(r->gpu, dev);
}

static void glu_case(struct rig *r, enum k_type t, enum k_type t0, enum k_type t1, uint32_t mid, uint32_t rows, enum fill fill) {
        static const char *const fills[] = { "", ", codes of -1", ", no numbers" };
        struct chain c;
        char what[160];

        chain_new(r, &c, t0, t1, mid, rows);
        chain_glu(r, &c, t, fill);
        snprintf(what, sizeof(what), "mail of %u columns, %s to %s, %s [%u]%s", mid, k_type_name(t), k_type_name(t0), k_type_name(t1), rows, fills[fill]);
        compare_ways(r, what, &c);
        chain_free(r, &c);
}

static void delta_case(struct rig *r, uint32_t n_v, enum k_type t0, enum k_type t1) {
        struct chain c;
        char what[160];

        chain_new(r, &c, t0, t1, n_v * HEAD, 96);
        chain_delta(r, &c, n_v);
        snprintf(what, sizeof(what), "mail of the delta net's %u heads to %s, %s", n_v, k_type_name(t0), k_type_name(t1));
        compare_ways(r, what, &c);
        chain_free(r, &c);
}

static void norm_case(struct rig *r, uint32_t cols, enum fill fill) {
        struct chain c;
        char what[160];

        chain_new(r, &c, K_Q4_0, K_Q8_0, cols, 96);
        chain_norm(r, &c, fill);
        snprintf(what, sizeof(what), "mail of a norm of %u columns%s", cols, fill == NANS ? ", no numbers" : "");
        compare_ways(r, what, &c);
        chain_free(r, &c);
}

void check_mail(struct rig *r) {
        static const enum k_type types[] = { K_Q4_0, K_Q8_0, K_Q4_K, K_Q2_K, K_Q6_K, K_MXFP4 };

        for (size_t i = 0; i < ELEMENTSOF(types); i++)
                for (enum fill f = RANDOM; f <= NANS && mine(r, types[i]); f++)
                        glu_case(r, types[i], types[i], i % 2 ? types[i] : K_Q8_0, r->tiny ? 256 : 1024, 96, f);
        if (!mine(r, K_Q4_0))
                return;
        static const uint32_t mids[] = { 32, 96, 33, 64, 2880, 14336 }; /* ends within a tile; no whole block, so no mail */
        for (size_t i = 0; i < (r->tiny ? 2 : ELEMENTSOF(mids)); i++)
                for (enum fill f = RANDOM; f <= NANS; f++)
                        glu_case(r, K_Q4_0, mids[i] % 32 ? K_F32 : K_Q4_0, mids[i] % 32 ? K_F16 : K_Q8_0, mids[i], mids[i] > 4096 ? 320 : 50, f);
        static const uint32_t cols[] = { 32, 96, 2880, 4096, 8192, 12288 };
        for (size_t i = 0; i < (r->tiny ? 2 : ELEMENTSOF(cols)); i++) {
                norm_case(r, cols[i], RANDOM);
                norm_case(r, cols[i], NANS);
        }
        delta_case(r, 2, K_Q4_0, K_Q4_0);
        delta_case(r, 3, K_Q8_0, K_Q4_0);
        if (!r->tiny)
                delta_case(r, 22, K_Q4_0, K_Q6_K); /* 11 tiles of 256 */
}
