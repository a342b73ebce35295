/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts of one row between two norms: a product adds to the residual, the norm of
 * that is read by a router and its experts, which add to the residual, and the norm of
 * that by a product. Kernels share all this (check_between.c has it for products);
 * the bits are those where they don't, and of the row among others.
 */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/types.h"

enum { ROWS = 6, FEW = 3 /* rows whose experts' results are summed where they are made */, IN = 256, USED = 4, AGAIN = 40 };

struct chain {
        uint32_t d, ff, experts, groups;
        enum k_norm kind;
        float scale;
        struct matrix first, router, gate, up, down, again;
        struct acts in, x, h, h2;
        struct pair y, logits, z, w, bias, zeros;
        float *hx, *hin;
        void *scratch;
        size_t scratch_bytes;
};

static void chain_new(struct rig *r, struct chain *c, enum k_type t, bool bad) {
        const uint32_t d = c->d, experts = c->experts;

        if (matrix_new(r, K_Q8_0, d, IN, 1, false, 1, &c->first) < 0 || matrix_new(r, K_F32, experts, d, 1, false, 2, &c->router) < 0 ||
            matrix_new(r, t, c->ff, d, experts, false, 3, &c->gate) < 0 || matrix_new(r, t, c->ff, d, experts, false, 4, &c->up) < 0 ||
            matrix_new(r, t, d, c->ff, experts, false, 5, &c->down) < 0 || matrix_new(r, K_Q8_0, AGAIN, d, 1, false, 6, &c->again) < 0)
                exit(70); /* no such matrix: a case is wrong */
        c->hx = random_floats((size_t)ROWS * d, d + 7);
        c->hin = random_floats((size_t)ROWS * IN, d + 8);
        for (size_t i = 0; bad && i < (size_t)ROWS * d; i++)
                c->hx[i] = NAN;
        float *hw = random_floats(d, d + 9), *hb = random_floats(MAX(d, experts), d + 10);
        c->w = both(r, hw, d * sizeof(float));
        c->bias = both(r, hb, MAX(d, experts) * sizeof(float));
        memset(hw, 0, d * sizeof(float));
        c->zeros = both(r, hw, d * sizeof(float));
        free(hw);
        free(hb);
        c->in = acts_new(r, c->hin, ROWS, IN);
        c->x = acts_new(r, c->hx, ROWS, d);
        c->h = acts_new(r, NULL, ROWS, d);
        c->h2 = acts_new(r, NULL, ROWS, d);
        c->y = both_poison(r, (size_t)ROWS * d);
        c->logits = both_poison(r, ROWS * experts);
        c->z = both_poison(r, ROWS * AGAIN);
        c->scratch_bytes = r->gpu->ops->moe_scratch(ROWS, USED, d, c->ff, experts);
        c->scratch = r->gpu->ops->mem_alloc(r->gpu, c->scratch_bytes);
}

static void chain_free(struct rig *r, struct chain *c) {
        struct pair *p[] = { &c->y, &c->logits, &c->z, &c->w, &c->bias, &c->zeros };
        struct acts *a[] = { &c->in, &c->x, &c->h, &c->h2 };
        struct matrix *m[] = { &c->first, &c->router, &c->gate, &c->up, &c->down, &c->again };

        for (size_t i = 0; i < ELEMENTSOF(p); i++)
                both_free(r, p[i]);
        for (size_t i = 0; i < ELEMENTSOF(a); i++)
                acts_free(r, a[i]);
        for (size_t i = 0; i < ELEMENTSOF(m); i++)
                matrix_free(r, m[i]);
        r->gpu->ops->mem_free(r->gpu, c->scratch);
        free(c->hx);
        free(c->hin);
}

/* The ops of rows [row, row + n). apart: norms of forms that nobody shares, with the same values. */
static int ops_of(struct k_dev *d, const struct k_batch *b, struct chain *c, uint32_t row, uint32_t n, bool apart) {
        static const uint32_t rows[ROWS] = { 0, 1, 2, 3, 4, 5 };
        struct k_act in = c->in.g, x = c->x.g, h = c->h.g, h2 = c->h2.g, y = { .f = c->y.g, .cols = c->d };
        struct k_linear_args first = { .x = &in, .n_out = 1, .n_rows = n, .n_d = n }, router = { .x = &h, .n_out = 1, .n_rows = n, .n_d = n };
        struct k_linear_args again = { .x = &h2, .n_out = 1, .n_rows = n, .n_d = n };
        struct k_norm_args norm = { .x = &x, .add = &y, .add_scale = 0.5f, .kind = c->kind, .eps = 1e-5f, .out_scale = c->scale, .w = c->w.g, .out = &h };
        struct k_norm_args norm2 = norm;
        struct k_moe_args moe = { .x = &h, .router = c->logits.g, .router_stride = c->experts, .n_expert = c->experts, .n_used = USED, .n_group = c->groups, .n_group_used = c->groups / 2,
                                  .gating = K_GATE_SOFTMAX, .norm_weights = true, .weight_scale = 1, .gate = &c->gate.g, .up = &c->up.g,
                                  .down = &c->down.g, .down_b = NULL, .act = K_GLU_SILU, .scratch = c->scratch, .scratch_bytes = c->scratch_bytes,
                                  .y = c->y.g, .y_stride = c->d, .n = n, .n_d = n };
        int e;

        norm2.out = &h2;
        norm2.add_scale = 1;
        if (apart) {
                norm.b = c->zeros.g;
                norm2.gather = rows;
                norm2.n_rows = n;
        }
        in.f += (size_t)row * IN;
        x.f += (size_t)row * c->d;
        first.out[0].w = &c->first.g;
        first.out[0].y = c->y.g;
        first.out[0].y_stride = c->d;
        router.out[0].w = &c->router.g;
        router.out[0].bias = c->bias.g;
        router.out[0].y = c->logits.g;
        router.out[0].y_stride = c->experts;
        again.out[0].w = &c->again.g;
        again.out[0].y = c->z.g;
        again.out[0].y_stride = AGAIN;
        e = d->ops->linear(d, b, &first);
        e = e ? e : d->ops->norm(d, b, &norm);
        e = e ? e : d->ops->linear(d, b, &router);
        e = e ? e : d->ops->moe(d, b, &moe);
        e = e ? e : d->ops->norm(d, b, &norm2);
        return e ? e : d->ops->linear(d, b, &again);
}

/* All that the ops write of row 1, where they ran on rows from 'first' on; malloc. */
static float *chain_run(struct rig *r, struct chain *c, bool apart, uint32_t first, uint32_t n, size_t *ret_floats) {
        const struct k_ops *o = r->gpu->ops;
        struct k_batch b = { .n = n, .n_d = n, .n_seq = 1 };
        const uint32_t at = 1 - first; /* within what is dense */
        const size_t q = o->act_q_bytes(1, c->d) / 4;
        const struct { void *p; size_t at, floats; } part[] = {
                { c->x.f.g, 1, c->d }, { c->h.f.g, at, c->d }, { c->h.q.g, at, q }, { c->logits.g, at, c->experts }, { c->y.g, at, c->d },
                { c->h2.f.g, at, c->d }, { c->h2.q.g, at, q }, { c->z.g, at, AGAIN },
        };
        float *all = malloc((4 * (size_t)c->d + 2 * q + c->experts + AGAIN) * sizeof(float));
        int e = 0;

        if (!all)
                exit(70);
        for (size_t i = 0; i < ELEMENTSOF(part); i++)
                e = e ? e : o->zero(r->gpu, part[i].p, (i == 0 ? ROWS : n) * part[i].floats * 4);
        e = e ? e : o->upload(r->gpu, c->x.f.g, c->hx, (size_t)ROWS * c->d * 4);
        e = e ? e : o->batch_begin(r->gpu, &b);
        e = e ? e : ops_of(r->gpu, &b, c, first, n, apart);
        e = e ? e : o->batch_end(r->gpu, &b);
        if (e < 0)
                expect(r, false, "experts between norms: %s", o->last_error(r->gpu));
        *ret_floats = 0;
        for (size_t i = 0; i < ELEMENTSOF(part); i++) {
                float *f = fetch(r, (const float *)part[i].p + part[i].at * part[i].floats, part[i].floats);
                memcpy(all + *ret_floats, f, part[i].floats * sizeof(float));
                *ret_floats += part[i].floats;
                free(f);
        }
        return all;
}

static void case_of(struct rig *r, enum k_type t, uint32_t d, uint32_t ff, uint32_t experts, uint32_t groups, enum k_norm kind, float scale, bool bad) {
        struct chain c = { .d = d, .ff = ff, .experts = experts, .groups = groups, .kind = kind, .scale = scale };
        char what[120];
        size_t n[4], at = 0;

        if (!mine(r, t))
                return;
        chain_new(r, &c, t, bad);
        snprintf(what, sizeof(what), "%u experts %s, %u -> %u%s, between norms %d%s", experts, k_type_name(t), d, ff, groups ? ", groups" : "", (int)kind, bad ? ", no numbers" : "");
        float *apart = chain_run(r, &c, true, 1, 1, &n[0]), *joined = chain_run(r, &c, false, 1, 1, &n[1]), *few = chain_run(r, &c, false, 0, FEW, &n[2]);
        float *among = chain_run(r, &c, false, 0, ROWS, &n[3]);
        while (at < n[0] && memcmp(apart + at, joined + at, sizeof(float)) == 0)
                at++;
        expect(r, n[0] == n[1] && at == n[0], "%s: as apart (%zu of %zu: %.9g, %.9g)", what, at, n[0], at < n[0] ? (double)apart[at] : 0,
               at < n[0] ? (double)joined[at] : 0);
        expect(r, n[0] == n[2] && memcmp(apart, few, n[0] * sizeof(float)) == 0, "%s: as among few others", what);
        expect(r, n[0] == n[3] && memcmp(apart, among, n[0] * sizeof(float)) == 0, "%s: as among others", what);
        free(apart);
        free(joined);
        free(few);
        free(among);
        chain_free(r, &c);
}

void check_between_moe(struct rig *r) {
        case_of(r, K_Q4_K, 512, 256, 64, 0, K_NORM_RMS, 1, true);
        case_of(r, K_Q4_K, 512, 256, 64, 0, K_NORM_RMS, 1, false);
        case_of(r, K_MXFP4, 96, 160, 65, 0, K_NORM_RMS, 1, false);
        case_of(r, K_MXFP4, 96, 160, 24, 0, K_NORM_RMS, 1, false); /* the norm by itself, the addition not */
        case_of(r, K_Q8_0, 160, 64, 80, 0, K_NORM_L2, 0.75f, false);
        case_of(r, K_Q8_0, 96, 32, 100, 0, K_NORM_RMS, 1, false);
        case_of(r, K_Q8_0, 96, 32, 200, 8, K_NORM_RMS, 1, false);
        case_of(r, K_Q8_0, 64, 32, 300, 0, K_NORM_RMS, 1, false);
        case_of(r, K_F16, 64, 96, 72, 0, K_NORM_RMS, 1, false);
        case_of(r, K_Q4_0, 320, 64, 72, 0, K_NORM_LAYER, 1, false);
        if (!r->tiny) { /* few experts: it is the host's work that takes time */
                case_of(r, K_Q4_K, 2048, 768, 8, 0, K_NORM_RMS, 1, false);
                case_of(r, K_Q4_K, 2048, 256, 64, 0, K_NORM_RMS, 1, false);
                case_of(r, K_MXFP4, 2880, 2880, 4, 0, K_NORM_RMS, 1, false);
                case_of(r, K_Q8_0, 4096, 64, 64, 4, K_NORM_RMS, 1, false);
                case_of(r, K_Q8_0, 8192, 64, 8, 0, K_NORM_RMS, 1, false);
        }
}
