/* SPDX-License-Identifier: Apache-2.0 */
/* Experts: choice, products of both roles, and per-head products. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct moe {
        enum k_type t;
        uint32_t n_expert, n_used, d, ff;
        enum k_gating gating;
        bool fused, bias, select, norm;
        uint32_t groups;
        enum k_glu act;
};

/* All but x and scratch, of one device. */
static struct k_moe_args args_of(const struct moe *t, bool gpu, const struct matrix *gate, const struct matrix *up, const struct matrix *down,
                                 struct pair bias, struct pair route, struct pair y, uint32_t row0, uint32_t n, uint32_t n_d) {
        const float *b = gpu ? bias.g : bias.c;
        struct k_moe_args a = { .router = (float *)(gpu ? route.g : route.c) + (size_t)row0 * t->n_expert, .router_stride = t->n_expert,
                                .select_bias = t->select ? b : NULL, .n_expert = t->n_expert, .n_used = t->n_used, .n_group = t->groups,
                                .n_group_used = t->groups / 2, .gating = t->gating, .norm_weights = t->norm, .weight_scale = 1.5f,
                                .up = gpu ? &up->g : &up->c, .down = gpu ? &down->g : &down->c, .act = t->act, .alpha = 1.702f, .limit = 7,
                                .y = (float *)(gpu ? y.g : y.c) + (size_t)row0 * t->d, .y_stride = t->d, .n = n, .n_d = n_d };
        if (!t->fused)
                a.gate = gpu ? &gate->g : &gate->c;
        if (t->bias) {
                a.up_b = b;
                a.gate_b = t->fused ? NULL : b + 7;
                a.down_b = b + 19;
        }
        return a;
}

/*
 * Logits by which 23 rows go to one of the experts 0 .. 4 and one of 5 .. 9 each, and each five have 1, 2, 3, 8 and 9 rows, in
 * no order.
 */
static void mix(float *logits, uint32_t n_expert, uint32_t n) {
        static const uint8_t rows[] = { 1, 2, 3, 8, 9 };

        for (uint32_t rank = 0; rank < 2; rank++)
                for (uint32_t i = 0; i < n; i++) {
                        uint32_t e = 0, at = i * (rank ? 9 : 7) % 23;
                        while (at >= rows[e])
                                at -= rows[e++];
                        logits[i * n_expert + rank * 5 + e] += 10;
                }
}

/* cpu: r->cpu or r->int8, which gives what y.c is to hold; NULL: neither, it stays. */
static void run(struct rig *r, const struct moe *t, const struct matrix *gate, const struct matrix *up, const struct matrix *down,
                struct pair bias, struct acts *x, struct pair route, struct pair y, uint32_t row0, uint32_t n, uint32_t n_d, struct k_dev *cpu) {
        for (int side = cpu ? 0 : 1; side < 2; side++) {
                struct k_dev *dev = side ? r->gpu : cpu;
                size_t bytes = dev->ops->moe_scratch(n, t->n_used, t->d, t->ff, t->n_expert);
                void *scratch = dev->ops->mem_alloc(dev, bytes);
                struct k_act xs = side ? x->g : x->c;
                struct k_batch bt = { .n = n, .n_d = n_d };
                xs.f += (size_t)row0 * t->d;
                xs.q = NULL;
                xs.q_kind = 0;
                struct k_moe_args a = args_of(t, side, gate, up, down, bias, route, y, row0, n, n_d);
                a.x = &xs;
                a.scratch = scratch;
                a.scratch_bytes = bytes;
                if (dev->ops->moe(dev, &bt, &a) < 0 || dev->ops->sync(dev) < 0)
                        expect(r, false, "moe on %s: %s", dev->ops->name, dev->ops->last_error(dev));
                dev->ops->mem_free(dev, scratch);
        }
}

/*
 * Role D's activations are int8, each up to half a step of its 32 columns away from the float. How far that takes a result goes by how
 * much cancels in it: with 32 columns and 8 experts, the CPU's own int8 products were 1.2e-2 of |cpu| away in the middle of 400 seeds,
 * over 4e-2 in 12 of them, at most 9.6e-2. A limit from f32 that lets those pass lets faults of that size pass in all other cases. So
 * where the CPU quantizes as role D does, that is the reference. What is left is the order of sums and here and there a middle value
 * that rounds to the next code: with errors of 2e-6 in the middle values those 400 were within 2.6e-4, and larger cases within 6e-4.
 * In blocks of 256 the CPU has one scale for 256 activations, role D eight: there it is f32, from which sums of so many columns are
 * not as far (1.4e-2 at most in 12 seeds of Q8_0, 256 columns).
 */
static bool int8_alike(enum k_type t) { return k_type_block(t) <= 32; }
#define INT8_LIMIT 3e-3

/* down_t: of the down products. */
static void moe_case_of(struct rig *r, const struct moe *t, enum k_type down_t, uint32_t n, bool mixed) {
        struct matrix gate, up, down;

        if (!mine(r, t->t))
                return;
        float *hx = random_floats((size_t)n * t->d, 3), *hr = random_floats((size_t)n * t->n_expert, 4), *hb = random_floats(65536, 5);
        char what[160];

        if (mixed)
                mix(hr, t->n_expert, n);
        if ((!t->fused && matrix_new(r, t->t, t->ff, t->d, t->n_expert, false, 1, &gate) < 0) ||
            matrix_new(r, t->t, t->fused ? 2 * t->ff : t->ff, t->d, t->n_expert, false, 2, &up) < 0 ||
            matrix_new(r, down_t, t->d, t->ff, t->n_expert, false, 3, &down) < 0)
                exit(70); /* no such matrix: a case is wrong */
        struct pair bias = both(r, hb, 65536 * 4), route = both(r, hr, (size_t)n * t->n_expert * 4), y = both_poison(r, (size_t)n * t->d);
        struct acts x = acts_new(r, hx, n, t->d);
        snprintf(what, sizeof(what), "moe %s, %s, %u of %u, %u -> %u, gating %d%s%s%s%s, n %u", k_type_name(t->t), k_type_name(down_t), t->n_used,
                 t->n_expert, t->d, t->ff, (int)t->gating, t->fused ? ", fused" : "", t->bias ? ", bias" : "", t->groups ? ", groups" : "", mixed ? ", mixed" : "", n);
        bool f32 = r->exact || t->t == K_F32, alike = !f32 && int8_alike(t->t);
        run(r, t, &gate, &up, &down, bias, &x, route, y, 0, n, 0, r->cpu);
        compare(r, what, y, n, t->d, t->d, f32 ? 5e-6 : 3e-3);
        float *p = fetch(r, y.g, (size_t)n * t->d);
        run(r, t, &gate, &up, &down, bias, &x, route, y, 0, n, n, alike ? r->int8 : NULL);
        compare(r, what, y, n, t->d, t->d, f32 ? 5e-6 : alike ? INT8_LIMIT : 4e-2);
        float *d = fetch(r, y.g, (size_t)n * t->d);
        uint32_t half = (n + 1) / 2;
        run(r, t, &gate, &up, &down, bias, &x, route, y, 0, n, half, NULL);
        float *m = fetch(r, y.g, (size_t)n * t->d);
        expect(r, memcmp(m, d, (size_t)half * t->d * 4) == 0, "%s: D rows beside P rows", what);
        expect(r, memcmp(m + (size_t)half * t->d, p + (size_t)half * t->d, (size_t)(n - half) * t->d * 4) == 0, "%s: P rows beside D rows", what);
        free(m);
        for (uint32_t i = 0; i < n; i++)
                run(r, t, &gate, &up, &down, bias, &x, route, y, i, 1, 1, NULL);
        m = fetch(r, y.g, (size_t)n * t->d);
        expect(r, memcmp(m, d, (size_t)n * t->d * 4) == 0, "%s: alone = in company", what);
        free(m);
        /* every way to launch them (kernels/tune.h) */
        const struct k_tune_key key = { K_TUNE_EXPERTS, t->t, t->ff, t->d, k_tune_bucket(n) };
        const char *const *names;
        for (uint32_t v = 1; v < r->gpu->ops->variants(r->gpu, &key, &names); v++) {
                expect(r, r->gpu->ops->tune(r->gpu, &(struct k_tune_choice){ key, v }, 1) == 0, "%s: \"%s\" is taken", what, names[v]);
                both_free(r, &y);
                y = both_poison(r, (size_t)n * t->d);
                run(r, t, &gate, &up, &down, bias, &x, route, y, 0, n, n, NULL);
                m = fetch(r, y.g, (size_t)n * t->d);
                expect(r, memcmp(m, d, (size_t)n * t->d * 4) == 0, "%s: \"%s\" has the plain one's bits", what, names[v]);
                free(m);
        }
        r->gpu->ops->tune(r->gpu, NULL, 0);
        free(p);
        free(d);
        acts_free(r, &x);
        both_free(r, &bias);
        both_free(r, &route);
        both_free(r, &y);
        if (!t->fused)
                matrix_free(r, &gate);
        matrix_free(r, &up);
        matrix_free(r, &down);
        free(hx);
        free(hr);
        free(hb);
}

static void moe_case(struct rig *r, const struct moe *t, uint32_t n, bool mixed) { moe_case_of(r, t, t->t, n, mixed); }

/* Whether each float is the other's bits, or both are no numbers. */
static bool same(const float *a, const float *b, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (memcmp(a + i, b + i, sizeof(float)) != 0 && !(isnan(a[i]) && isnan(b[i])))
                        return false;
        return true;
}

/* Row by row, for some are no numbers: in the same places, and elsewhere as compare() has it. */
static void compare_wild(struct rig *r, const char *what, struct pair p, uint32_t n, uint32_t cols, double limit) {
        const float *c = p.c;
        float *g = fetch(r, p.g, (size_t)n * cols);

        for (uint32_t i = 0; i < n; i++) {
                double diff = 0, norm = 0;
                bool places = true;
                for (size_t k = (size_t)i * cols; k < (size_t)(i + 1) * cols; k++) {
                        places = places && !isnan(c[k]) == !isnan(g[k]);
                        if (isnan(c[k]) || isnan(g[k]))
                                continue;
                        diff += ((double)g[k] - c[k]) * ((double)g[k] - c[k]);
                        norm += (double)c[k] * c[k];
                }
                diff = norm > 0 ? sqrt(diff / norm) : sqrt(diff);
                expect(r, places && diff <= limit, "%s, row %u: |gpu - cpu| / |cpu| = %.2e, limit %.0e%s", what, i, diff, limit,
                       places ? "" : "; numbers elsewhere");
        }
        free(g);
}

/* Logits that are infinite or no numbers: who is chosen, and with what weight, is the CPU's choice; a row's company has no part in it. */
static void wild_case(struct rig *r, const struct moe *t) {
        enum { ROWS = 12 };
        const float minus_nan = copysignf(NAN, -1);

        if (!mine(r, t->t))
                return;
        const uint32_t X = t->n_expert;
        float *hx = random_floats((size_t)ROWS * t->d, 3), *hr = random_floats((size_t)ROWS * X, 4), *hb = random_floats(65536, 5);
        struct matrix gate, up, down;
        char what[120];

        for (uint32_t e = 0; e < X; e++) { /* row 0 stays */
                const bool few = e == 2 || e == X - 3;
                float *l = hr + e;
                l[1 * X] = e == 0 || e == X - 1 ? NAN : l[1 * X];
                l[2 * X] = few ? l[2 * X] : NAN;
                l[3 * X] = NAN;
                l[4 * X] = -INFINITY;
                l[5 * X] = few ? INFINITY : l[5 * X];
                l[6 * X] = INFINITY;
                l[7 * X] = few ? l[7 * X] : -INFINITY;
                l[8 * X] = e % 2 ? minus_nan : l[8 * X];
                l[9 * X] *= 3e37f;
                l[10 * X] = e % 4 == 0 ? NAN : e % 4 == 1 ? -INFINITY : e % 4 == 2 ? INFINITY : l[10 * X];
                l[11 * X] = few ? NAN : -INFINITY;
        }
        if (matrix_new(r, t->t, t->ff, t->d, X, false, 1, &gate) < 0 || matrix_new(r, t->t, t->ff, t->d, X, false, 2, &up) < 0 ||
            matrix_new(r, t->t, t->d, t->ff, X, false, 3, &down) < 0)
                exit(70);
        struct pair bias = both(r, hb, 65536 * 4), route = both(r, hr, (size_t)ROWS * X * 4), y = both_poison(r, (size_t)ROWS * t->d);
        struct acts x = acts_new(r, hx, ROWS, t->d);
        snprintf(what, sizeof(what), "moe, %u of %u by wild logits, gating %d%s%s", t->n_used, X, (int)t->gating, t->select ? ", bias" : "",
                 t->groups ? ", groups" : "");
        run(r, t, &gate, &up, &down, bias, &x, route, y, 0, ROWS, 0, r->cpu);
        compare_wild(r, what, y, ROWS, t->d, r->exact ? 5e-6 : 3e-3);
        run(r, t, &gate, &up, &down, bias, &x, route, y, 0, ROWS, ROWS, NULL);
        compare_wild(r, what, y, ROWS, t->d, r->exact ? 5e-6 : 6e-2); /* weights that are not normed: small sums of large terms */
        float *d = fetch(r, y.g, (size_t)ROWS * t->d);
        for (uint32_t i = 0; i < ROWS; i++)
                run(r, t, &gate, &up, &down, bias, &x, route, y, i, 1, 1, NULL);
        float *one = fetch(r, y.g, (size_t)ROWS * t->d);
        expect(r, same(one, d, (size_t)ROWS * t->d), "%s: alone = in company", what);
        free(one);
        free(d);
        acts_free(r, &x);
        both_free(r, &bias);
        both_free(r, &route);
        both_free(r, &y);
        matrix_free(r, &gate);
        matrix_free(r, &up);
        matrix_free(r, &down);
        free(hx);
        free(hr);
        free(hb);
}

/* The router's product in a batch with its experts, which a device may do as one; of one expert it is no number. Rows of both roles. */
static void router_case(struct rig *r, const struct moe *t, uint32_t n, uint32_t n_d) {
        if (!mine(r, t->t))
                return;
        const uint32_t X = t->n_expert;
        float *hx = random_floats((size_t)n * t->d, 3), *hw = random_floats((size_t)X * t->d, 4), *hb = random_floats(65536, 5);
        struct matrix gate, up, down, router;
        char what[120];

        for (uint32_t c = 0; c < t->d; c++)
                hw[5 * t->d + c] = NAN;
        matrix_of(r, K_F32, X, t->d, 1, false, (const uint8_t *)hw, &router);
        if (matrix_new(r, t->t, t->ff, t->d, X, false, 1, &gate) < 0 || matrix_new(r, t->t, t->ff, t->d, X, false, 2, &up) < 0 ||
            matrix_new(r, t->t, t->d, t->ff, X, false, 3, &down) < 0)
                exit(70);
        struct pair bias = both(r, hb, 65536 * 4), route = both_poison(r, (size_t)n * X), y = both_poison(r, (size_t)n * t->d);
        struct acts x = acts_new(r, hx, n, t->d);
        snprintf(what, sizeof(what), "router and %u of %u, gating %d, n %u, %u of role D", t->n_used, X, (int)t->gating, n, n_d);
        for (int side = 0; side < 2; side++) {
                struct k_dev *dev = side ? r->gpu : r->cpu;
                const struct k_ops *o = dev->ops;
                size_t bytes = o->moe_scratch(n, t->n_used, t->d, t->ff, X);
                void *scratch = o->mem_alloc(dev, bytes);
                struct k_act xs = side ? x.g : x.c;
                struct k_batch bt = { .n = n, .n_d = n_d, .n_seq = 1 };
                struct k_linear_args l = { .x = &xs, .n_out = 1, .n_rows = n, .n_d = n_d };
                struct k_moe_args a = args_of(t, side, &gate, &up, &down, bias, route, y, 0, n, n_d);
                l.out[0].w = side ? &router.g : &router.c;
                l.out[0].y = side ? route.g : route.c;
                l.out[0].y_stride = X;
                a.x = &xs;
                a.scratch = scratch;
                a.scratch_bytes = bytes;
                if (o->batch_begin(dev, &bt) < 0 || o->linear(dev, &bt, &l) < 0 || o->moe(dev, &bt, &a) < 0 || o->batch_end(dev, &bt) < 0 || o->sync(dev) < 0)
                        expect(r, false, "%s on %s: %s", what, o->name, o->last_error(dev));
                o->mem_free(dev, scratch);
        }
        compare_wild(r, what, route, n, X, 1e-5);
        compare(r, what, y, n, t->d, t->d, r->exact ? 5e-6 : 4e-2);
        acts_free(r, &x);
        both_free(r, &bias);
        both_free(r, &route);
        both_free(r, &y);
        matrix_free(r, &router);
        matrix_free(r, &gate);
        matrix_free(r, &up);
        matrix_free(r, &down);
        free(hx);
        free(hw);
        free(hb);
}

/* P rows have the bits of the same experts in f16. One expert is chosen by every row, so it has several tiles of them. */
static void twins_case(struct rig *r, enum k_type t, uint32_t d, uint32_t ff, uint32_t n) {
        if (!mine(r, t))
                return;
        const struct moe c = { t, 24, 2, d, ff, K_GATE_SOFTMAX, false, true, false, true, 0, K_GLU_SILU };
        struct matrix m[3], twin[3];
        float *hx = random_floats((size_t)n * d, 3), *hr = random_floats((size_t)n * c.n_expert, 4), *hb = random_floats(65536, 5);

        for (uint32_t i = 0; i < n; i++)
                hr[i * c.n_expert + 3] += 10;
        for (uint32_t i = 0; i < 3; i++)
                matrix_twins(r, t, i == 2 ? d : ff, i == 2 ? ff : d, c.n_expert, false, i, &m[i], &twin[i]);
        struct pair bias = both(r, hb, 65536 * 4), route = both(r, hr, (size_t)n * c.n_expert * 4), y = both_poison(r, (size_t)n * d);
        struct acts x = acts_new(r, hx, n, d);
        run(r, &c, &m[0], &m[1], &m[2], bias, &x, route, y, 0, n, 0, NULL);
        float *a = fetch(r, y.g, (size_t)n * d);
        run(r, &c, &twin[0], &twin[1], &twin[2], bias, &x, route, y, 0, n, 0, NULL);
        float *b = fetch(r, y.g, (size_t)n * d);
        expect(r, memcmp(a, b, (size_t)n * d * 4) == 0, "moe %s, %u -> %u, n %u, role P: as f16 weights", k_type_name(t), d, ff, n);
        free(a);
        free(b);
        acts_free(r, &x);
        both_free(r, &bias);
        both_free(r, &route);
        both_free(r, &y);
        for (int i = 0; i < 3; i++) {
                matrix_free(r, &m[i]);
                matrix_free(r, &twin[i]);
        }
        free(hx);
        free(hr);
        free(hb);
}

static void head_case(struct rig *r, enum k_type t, uint32_t heads, uint32_t rows, uint32_t cols, uint32_t n) {
        if (!mine(r, t))
                return;
        struct matrix m;
        uint32_t tail = 6, xh = cols + tail, yh = rows + tail;
        float *hx = random_floats((size_t)n * heads * xh, 3);
        struct pair x = both(r, hx, (size_t)n * heads * xh * 4), y = both_poison(r, (size_t)n * heads * yh);
        struct k_batch b = { .n = n, .n_d = n };
        char what[80];

        matrix_new(r, t, rows, cols, heads, false, 5, &m);
        struct k_head_linear_args c = { .tail = tail, .x = x.c, .x_stride = (size_t)heads * xh, .x_head = xh, .w = &m.c, .y = y.c,
                                        .y_stride = (size_t)heads * yh, .y_head = yh, .n = n, .n_d = n }, g = c;
        g.x = x.g;
        g.w = &m.g;
        g.y = y.g;
        RUN(r, head_linear, &b, &b, &c, &g, "head product");
        snprintf(what, sizeof(what), "head product %s, %u heads [%u, %u], n %u", k_type_name(t), heads, rows, cols, n);
        compare(r, what, y, n, heads * yh, (size_t)heads * yh, r->exact || t == K_F32 || t == K_F16 || t == K_BF16 ? 5e-6 : 1.5e-2);
        both_free(r, &x);
        both_free(r, &y);
        matrix_free(r, &m);
        free(hx);
}

void check_moe(struct rig *r) {
        static const struct moe cases[] = {
                { K_F32, 8, 2, 64, 48, K_GATE_SOFTMAX, false, false, false, true, 0, K_GLU_SILU },
                { K_Q4_K, 16, 4, 512, 256, K_GATE_SOFTMAX, false, false, false, true, 0, K_GLU_SILU },
                { K_MXFP4, 8, 4, 96, 160, K_GATE_SOFTMAX_TOPK, false, true, false, false, 0, K_GLU_SWIGLU_OAI },
                { K_Q8_0, 32, 6, 256, 64, K_GATE_SIGMOID, false, false, true, true, 8, K_GLU_SILU },
                { K_Q5_K, 8, 2, 256, 256, K_GATE_SOFTMAX, true, false, false, true, 0, K_GLU_GELU_TANH },
                { K_Q6_K, 8, 3, 1536, 512, K_GATE_SOFTMAX, false, false, false, true, 0, K_GLU_SILU },
                { K_Q2_K, 6, 2, 2304, 768, K_GATE_SOFTMAX, false, true, false, true, 0, K_GLU_SILU },
                { K_IQ2_XS, 4, 2, 256, 256, K_GATE_SOFTMAX, false, true, false, true, 0, K_GLU_SILU },
                { K_F16, 4, 2, 64, 96, K_GATE_SOFTMAX, false, false, false, true, 0, K_GLU_SILU },
                { K_Q4_K, 96, 4, 512, 256, K_GATE_SOFTMAX, false, false, false, true, 0, K_GLU_SILU }, /* one to three rows an expert */
                { K_MXFP4, 512, 10, 64, 32, K_GATE_SOFTMAX, false, true, false, true, 0, K_GLU_SILU }, /* more than eight of a lane */
        };
        static const struct moe wild[] = {
                { K_Q8_0, 24, 4, 64, 64, K_GATE_SOFTMAX, false, false, false, true, 0, K_GLU_SILU },
                { K_Q8_0, 24, 4, 64, 64, K_GATE_SOFTMAX_TOPK, false, false, false, false, 0, K_GLU_SILU },
                { K_Q8_0, 24, 4, 64, 64, K_GATE_SIGMOID, false, false, true, true, 0, K_GLU_SILU },
                { K_Q8_0, 32, 6, 64, 64, K_GATE_SIGMOID, false, false, true, true, 8, K_GLU_SILU },
                { K_Q8_0, 300, 8, 64, 32, K_GATE_SOFTMAX, false, false, false, false, 0, K_GLU_SILU },
        };
        static const struct moe routed[] = {
                { K_Q8_0, 40, 4, 64, 64, K_GATE_SOFTMAX, false, false, false, true, 0, K_GLU_SILU },
                { K_Q8_0, 300, 8, 64, 32, K_GATE_SIGMOID, false, false, true, true, 4, K_GLU_SILU },
        };
        for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
                moe_case(r, &cases[i], 1, false);
                moe_case(r, &cases[i], 3, false);
                moe_case(r, &cases[i], r->tiny ? 6 : 23, false);
        }
        for (size_t i = 0; i < sizeof(wild) / sizeof(*wild); i++)
                wild_case(r, &wild[i]);
        for (size_t i = 0; i < sizeof(routed) / sizeof(*routed); i++) {
                router_case(r, &routed[i], 1, 1);
                router_case(r, &routed[i], 9, 6);
        }
        /* Experts of one row, of two, and of more than the eight of a job, in one launch; columns and middle ones that end within an image's block, too. */
        static const struct moe mixed[] = {
                { K_Q4_K, 10, 2, 1280, 768, K_GATE_SOFTMAX, false, false, false, true, 0, K_GLU_SILU },
                { K_MXFP4, 10, 2, 2304, 544, K_GATE_SOFTMAX_TOPK, false, true, false, false, 0, K_GLU_SWIGLU_OAI },
                { K_Q8_0, 11, 2, 320, 96, K_GATE_SOFTMAX, true, true, false, true, 0, K_GLU_SILU },
                { K_Q2_K, 10, 2, 512, 1280, K_GATE_SOFTMAX, false, false, false, true, 0, K_GLU_SILU },
                { K_Q6_K, 10, 2, 768, 256, K_GATE_SOFTMAX, false, false, false, true, 0, K_GLU_SILU },
                { K_F16, 10, 2, 264, 104, K_GATE_SOFTMAX, false, true, false, true, 0, K_GLU_SILU },
                { K_BF16, 11, 2, 52, 36, K_GATE_SOFTMAX, true, true, false, true, 0, K_GLU_SILU }, /* rows that don't begin at 16 bytes */
                { K_F32, 10, 2, 132, 260, K_GATE_SOFTMAX, false, false, false, true, 0, K_GLU_SILU },
        };
        for (size_t i = 0; i < sizeof(mixed) / sizeof(*mixed); i++)
                moe_case(r, &mixed[i], r->tiny ? 6 : 23, true);
        /* As many as there may be. */
        static const struct moe many = { K_Q8_0, 1024, 8, 32, 32, K_GATE_SIGMOID, false, false, true, true, 8, K_GLU_SILU };
        if (!r->tiny) {
                moe_case(r, &many, 1, false);
                moe_case(r, &many, 23, false);
        }
        /* Float experts of prompt rows: enough blocks for the widest of their products. */
        static const struct moe floats[] = {
                { K_F32, 128, 4, 64, 48, K_GATE_SOFTMAX, false, true, false, true, 0, K_GLU_SILU },
                { K_BF16, 12, 3, 136, 72, K_GATE_SOFTMAX, false, false, false, true, 0, K_GLU_SILU },
        };
        for (size_t i = 0; i < ELEMENTSOF(floats) && !r->tiny; i++)
                moe_case(r, &floats[i], 70, false);
        /* An expert larger than the room in which it is decoded. */
        static const struct moe large = { K_Q4_0, 2, 1, 8192, 4384, K_GATE_SOFTMAX, false, true, false, true, 0, K_GLU_SILU };
        if (!r->tiny)
                moe_case(r, &large, 5, false);
        if (!r->exact) {
                twins_case(r, K_MXFP4, 96, r->tiny ? 160 : 992, r->tiny ? 6 : 300);
                twins_case(r, K_Q4_K, 512, 256, r->tiny ? 6 : 200);
                twins_case(r, K_Q6_K, 256, 768, r->tiny ? 6 : 70);
        }
        /* The lattice formats: jobs of lists, of none, one and more than eight columns, beside P rows and by themselves. */
        static const struct moe lattice[] = {
                { K_IQ2_XXS, 10, 2, 512, 256, K_GATE_SOFTMAX, false, false, false, true, 0, K_GLU_SILU },
                { K_IQ2_XS, 10, 2, 1280, 512, K_GATE_SOFTMAX, true, false, false, true, 0, K_GLU_SILU },
                { K_IQ2_S, 10, 2, 512, 768, K_GATE_SOFTMAX, false, true, false, true, 0, K_GLU_SILU },
                { K_IQ3_XXS, 10, 2, 768, 256, K_GATE_SOFTMAX, true, true, false, true, 0, K_GLU_SILU },
                { K_IQ3_S, 96, 4, 512, 256, K_GATE_SOFTMAX, false, false, false, true, 0, K_GLU_SILU },
                { K_IQ1_S, 10, 2, 2304, 256, K_GATE_SOFTMAX, false, false, false, true, 0, K_GLU_SILU },
                { K_IQ1_M, 10, 2, 512, 256, K_GATE_SOFTMAX, true, false, false, true, 0, K_GLU_SILU },
        };
        static const uint32_t lattice_rows[] = { 1, 2, 8, 33 };
        for (size_t i = 0; i < ELEMENTSOF(lattice); i++) {
                for (size_t k = 0; k < ELEMENTSOF(lattice_rows) && (!r->tiny || k < 2); k++)
                        moe_case(r, &lattice[i], lattice_rows[k], false);
                if (lattice[i].n_expert == 10)
                        moe_case(r, &lattice[i], r->tiny ? 6 : 23, true);
                moe_case_of(r, &lattice[i], K_Q4_K, 3, false);
                head_case(r, lattice[i].t, 3, 33, 512, 1); /* matrices that begin at any even address */
                head_case(r, lattice[i].t, 3, 33, 256, 11);
                if (!r->exact)
                        twins_case(r, lattice[i].t, 256, 256, r->tiny ? 6 : 70);
        }
        moe_case_of(r, &cases[1], K_IQ2_XXS, 1, false); /* after products without lists */
        moe_case_of(r, &cases[1], K_IQ3_S, r->tiny ? 6 : 23, false);
        check_between_moe(r);
        head_case(r, K_F32, 4, 24, 40, 3);
        head_case(r, K_Q8_0, 8, 64, 128, 5);
        head_case(r, K_Q4_K, 4, 40, 256, 40);
        head_case(r, K_F16, 4, 33, 64, 2);
        head_case(r, K_BF16, 3, 17, 40, 9);
        head_case(r, K_F32, 5, 20, 18, 17);
        head_case(r, K_IQ3_S, 2, 16, 256, 2);
}
