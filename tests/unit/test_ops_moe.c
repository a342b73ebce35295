/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts and per-head products against double references: every gating, biases
 * that choose, groups, fused and separate gate and up, per-expert scales; and
 * the bits of a row whoever shares its experts.
 */
#include "ops_test.h"

struct moe_case {
        const char *name;
        uint32_t n_expert, n_used, d, ff;
        enum k_gating gating;
        bool norm, select, bias, fused, scales;
        enum k_glu act;
        uint32_t n_group, n_group_used;
        float scale;
};

static const struct moe_case cases[] = {
        { "softmax", 8, 2, 48, 32, K_GATE_SOFTMAX, true, false, false, false, false, K_GLU_SILU, 0, 0, 1 },
        { "not normed", 6, 3, 33, 17, K_GATE_SOFTMAX, false, false, false, false, false, K_GLU_SILU, 0, 0, 1 },
        { "sigmoid", 16, 4, 64, 20, K_GATE_SIGMOID, true, true, false, false, false, K_GLU_SILU, 0, 0, 2.5f },
        { "groups", 16, 4, 16, 16, K_GATE_SIGMOID, true, true, false, false, false, K_GLU_SILU, 4, 2, 2.5f },
        { "top-k", 6, 2, 32, 32, K_GATE_SOFTMAX_TOPK, false, false, true, false, false, K_GLU_SWIGLU_OAI, 0, 0, 1 },
        { "fused", 5, 5, 24, 40, K_GATE_SOFTMAX, true, false, false, true, true, K_GLU_GELU_TANH, 0, 0, 1 },
        { "one", 1, 1, 8, 8, K_GATE_SOFTMAX, true, false, false, false, false, K_GLU_SILU, 0, 0, 1 },
};

struct experts {
        float *gate, *up, *down, *gate_b, *up_b, *down_b, *select, *scale;
        struct k_weight wg, wu, wd;
};

static struct k_weight stack(const float *w, uint32_t n, uint32_t rows, uint32_t cols, const float *scale) {
        return (struct k_weight){ .type = K_F32, .layout = K_LAYOUT_FILE, .rows = rows, .cols = cols, .n_expert = n,
                                  .expert_stride = (size_t)rows * cols * sizeof(float), .data = w, .scale = scale };
}

static void experts_init(struct experts *e, const struct moe_case *c) {
        size_t X = c->n_expert;

        e->gate = randoms(X * c->ff * c->d, 0.4);
        e->up = randoms(X * 2 * c->ff * c->d, 0.4);
        e->down = randoms(X * c->d * c->ff, 0.4);
        e->gate_b = randoms(X * c->ff, 0.5);
        e->up_b = randoms(X * c->ff, 0.5);
        e->down_b = randoms(X * c->d, 0.5);
        e->select = randoms(X, 0.5);
        e->scale = randoms(X, 2);
        e->wg = stack(e->gate, c->n_expert, c->ff, c->d, NULL);
        e->wu = stack(e->up, c->n_expert, c->fused ? 2 * c->ff : c->ff, c->d, NULL);
        e->wd = stack(e->down, c->n_expert, c->d, c->ff, c->scales ? e->scale : NULL);
}

static void experts_free(struct experts *e) {
        free(e->gate);
        free(e->up);
        free(e->down);
        free(e->gate_b);
        free(e->up_b);
        free(e->down_b);
        free(e->select);
        free(e->scale);
}

static double activated(const struct moe_case *c, double g, double u) {
        if (c->act == K_GLU_SWIGLU_OAI) {
                g = fmin(g, 7);
                return g * sigmoid(1.702 * g) * (fmax(fmin(u, 7), -7) + 1);
        }
        if (c->act == K_GLU_GELU_TANH)
                return 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u;
        return g * sigmoid(g) * u;
}

static double dot(const float *w, const float *x, uint32_t n) {
        double s = 0;

        for (uint32_t i = 0; i < n; i++)
                s += (double)w[i] * (double)x[i];
        return s;
}

static void reference(const struct moe_case *c, const struct experts *e, const float *x, const float *logits, double *y) {
        double prob[16], choice[16], sum = 0, max = -INFINITY, w[16], h[64];
        uint32_t id[16];

        for (uint32_t i = 0; i < c->n_expert; i++)
                max = fmax(max, (double)logits[i]);
        for (uint32_t i = 0; i < c->n_expert; i++)
                sum += exp((double)logits[i] - max);
        for (uint32_t i = 0; i < c->n_expert; i++) {
                prob[i] = c->gating == K_GATE_SOFTMAX   ? exp((double)logits[i] - max) / sum
                          : c->gating == K_GATE_SIGMOID ? sigmoid((double)logits[i])
                                                        : (double)logits[i];
                choice[i] = prob[i] + (c->select ? (double)e->select[i] : 0);
        }
        if (c->n_group) { /* groups by the sum of their two best */
                uint32_t per = c->n_expert / c->n_group;
                double score[16];

                for (uint32_t g = 0; g < c->n_group; g++) {
                        score[g] = -INFINITY;
                        for (uint32_t i = g * per; i < (g + 1) * per; i++)
                                for (uint32_t j = g * per; j < i; j++)
                                        score[g] = fmax(score[g], choice[i] + choice[j]);
                }
                for (uint32_t g = 0; g < c->n_group; g++) {
                        uint32_t better = 0;
                        for (uint32_t o = 0; o < c->n_group; o++)
                                better += score[o] > score[g];
                        for (uint32_t i = g * per; better >= c->n_group_used && i < (g + 1) * per; i++)
                                choice[i] = -INFINITY;
                }
        }
        for (uint32_t k = 0; k < c->n_used; k++) {
                id[k] = 0;
                for (uint32_t i = 1; i < c->n_expert; i++)
                        if (choice[i] > choice[id[k]])
                                id[k] = i;
                choice[id[k]] = -INFINITY;
                w[k] = prob[id[k]];
        }
        sum = 0;
        for (uint32_t k = 0; k < c->n_used; k++)
                sum += c->gating == K_GATE_SOFTMAX_TOPK ? (w[k] = exp(w[k] - max)) : w[k];
        for (uint32_t i = 0; i < c->d; i++)
                y[i] = 0;
        for (uint32_t k = 0; k < c->n_used; k++) {
                size_t ex = id[k];
                double f = (c->norm || c->gating == K_GATE_SOFTMAX_TOPK ? w[k] / sum : w[k]) * (double)c->scale;

                for (uint32_t r = 0; r < c->ff; r++) {
                        double g, u;

                        if (c->fused) {
                                g = dot(e->up + (ex * 2 * c->ff + r) * c->d, x, c->d);
                                u = dot(e->up + (ex * 2 * c->ff + c->ff + r) * c->d, x, c->d);
                        } else {
                                g = dot(e->gate + (ex * c->ff + r) * c->d, x, c->d) + (c->bias ? (double)e->gate_b[ex * c->ff + r] : 0);
                                u = dot(e->up + (ex * c->ff + r) * c->d, x, c->d) + (c->bias ? (double)e->up_b[ex * c->ff + r] : 0);
                        }
                        h[r] = activated(c, g, u);
                }
                for (uint32_t i = 0; i < c->d; i++) {
                        double o = 0;

                        for (uint32_t r = 0; r < c->ff; r++)
                                o += (double)e->down[(ex * c->d + i) * c->ff + r] * h[r];
                        if (c->scales)
                                o *= (double)e->scale[ex];
                        y[i] += f * (o + (c->bias ? (double)e->down_b[ex * c->d + i] : 0));
                }
        }
}

/* The result is the caller's. */
static float *run(struct k_dev *dev, const struct moe_case *c, const struct experts *e, const float *x, const float *logits, uint32_t n) {
        size_t bytes = dev->ops->moe_scratch(n, c->n_used, c->d, c->ff, c->n_expert);
        void *scratch = dev->ops->mem_alloc(dev, bytes);
        float *y = floats((size_t)n * c->d);
        struct k_act ax = { .f = (float *)(uintptr_t)x, .cols = c->d };
        struct seqs s;

        seqs_init(&s, 1);
        memset(scratch, 0xff, bytes);
        assert_int_equal(dev->ops->moe(dev, &s.b, &(struct k_moe_args){
                .x = &ax, .router = logits, .router_stride = c->n_expert, .select_bias = c->select ? e->select : NULL,
                .n_expert = c->n_expert, .n_used = c->n_used, .n_group = c->n_group, .n_group_used = c->n_group_used,
                .gating = c->gating, .norm_weights = c->norm, .weight_scale = c->scale, .gate = c->fused ? NULL : &e->wg, .up = &e->wu,
                .down = &e->wd, .gate_b = c->bias ? e->gate_b : NULL, .up_b = c->bias ? e->up_b : NULL,
                .down_b = c->bias ? e->down_b : NULL, .act = c->act, .alpha = 1.702f, .limit = 7, .scratch = scratch,
                .scratch_bytes = bytes, .y = y, .y_stride = c->d, .n = n, .n_d = 0 }), 0);
        dev->ops->mem_free(dev, scratch);
        return y;
}

static void test_moe(void **state) {
        FOR_EACH_DEVICE(dev)
                for (size_t k = 0; k < ELEMENTSOF(cases); k++) {
                        const struct moe_case *c = &cases[k];
                        uint32_t n = 61;
                        float *x = randoms((size_t)n * c->d, 1), *logits = randoms((size_t)n * c->n_expert, 2), *y, *one;
                        struct experts e;
                        double ref[64];

                        experts_init(&e, c);
                        y = run(dev, c, &e, x, logits, n);
                        for (uint32_t i = 0; i < n; i++) {
                                reference(c, &e, x + (size_t)i * c->d, logits + (size_t)i * c->n_expert, ref);
                                all_near(c->name, y + (size_t)i * c->d, ref, c->d, 1e-5);
                        }
                        for (uint32_t i = 0; i < n; i += 7) { /* alone: the same bits */
                                one = run(dev, c, &e, x + (size_t)i * c->d, logits + (size_t)i * c->n_expert, 1);
                                assert_memory_equal(one, y + (size_t)i * c->d, c->d * sizeof(float));
                                done(one, c->d);
                        }
                        done(y, (size_t)n * c->d);
                        done(x, (size_t)n * c->d);
                        done(logits, (size_t)n * c->n_expert);
                        experts_free(&e);
                }
}

/* A logit that is no number is chosen last, whatever its index; where a softmax is taken, it weighs nothing beside numbers. */
static void test_no_numbers(void **state) {
        static const struct moe_case gatings[] = {
                { "softmax", 16, 4, 24, 16, K_GATE_SOFTMAX, true, false, false, false, false, K_GLU_SILU, 0, 0, 1 },
                { "top-k", 16, 4, 24, 16, K_GATE_SOFTMAX_TOPK, false, false, false, false, false, K_GLU_SILU, 0, 0, 1 },
                { "sigmoid", 16, 4, 24, 16, K_GATE_SIGMOID, true, false, false, false, false, K_GLU_SILU, 0, 0, 1 },
                { "groups", 16, 4, 24, 16, K_GATE_SIGMOID, true, false, false, false, false, K_GLU_SILU, 4, 2, 2.5f },
                { "groups, softmax", 16, 4, 24, 16, K_GATE_SOFTMAX, true, false, false, false, false, K_GLU_SILU, 4, 3, 1 },
                { "all of them", 5, 5, 24, 16, K_GATE_SOFTMAX_TOPK, false, false, false, false, false, K_GLU_SILU, 0, 0, 1 },
                { "one", 1, 1, 24, 16, K_GATE_SOFTMAX, true, false, false, false, false, K_GLU_SILU, 0, 0, 1 },
        };
        enum { ROWS = 4 };

        FOR_EACH_DEVICE(dev)
                for (size_t k = 0; k < ELEMENTSOF(gatings); k++) {
                        const struct moe_case *c = &gatings[k];
                        uint32_t X = c->n_expert;
                        float *x = randoms((size_t)ROWS * c->d, 1), *bad = randoms((size_t)ROWS * X, 2), *good = floats((size_t)ROWS * X), *y, *want;
                        struct experts e;

                        experts_init(&e, c);
                        memcpy(good, bad, (size_t)ROWS * X * sizeof(float));
                        for (uint32_t i = 0; i < X; i++) {
                                bad[i] = i == 0 || i == 7 ? NAN : bad[i];
                                good[i] = i == 0 || i == 7 ? -1e30f : good[i];
                                bad[X + i] = i < 12 ? copysignf(NAN, -1) : bad[X + i];
                                good[X + i] = i < 12 ? -1e30f : good[X + i];
                                bad[2 * X + i] = NAN;
                                good[2 * X + i] = i < c->n_used ? 0 : -1e30f;
                                bad[3 * X + i] = i == 3 || i == 9 ? INFINITY : bad[3 * X + i];
                                good[3 * X + i] = i == 3 || i == 9 ? 1e4f : good[3 * X + i];
                        }
                        y = run(dev, c, &e, x, bad, ROWS);
                        want = run(dev, c, &e, x, good, ROWS);
                        for (uint32_t i = 0; i < ROWS * c->d; i++)
                                if (c->gating == K_GATE_SIGMOID && i / c->d == 2)
                                        assert_true(isnan(y[i])); /* nothing but NaN, and no softmax */
                                else
                                        near(c->name, i, (double)y[i], (double)want[i], 1e-6);
                        done(y, (size_t)ROWS * c->d);
                        done(want, (size_t)ROWS * c->d);
                        done(x, (size_t)ROWS * c->d);
                        done(bad, (size_t)ROWS * X);
                        done(good, (size_t)ROWS * X);
                        experts_free(&e);
                }
}

static void test_head_linear(void **state) {
        static const struct { uint32_t heads, in, out, tail; } shapes[] = {
                { 4, 32, 64, 16 }, { 1, 5, 7, 0 }, { 70, 9, 3, 2 }, { 16, 64, 24, 0 },
        };
        struct seqs s;

        seqs_init(&s, 1);
        FOR_EACH_DEVICE(dev)
                for (size_t k = 0; k < ELEMENTSOF(shapes); k++) {
                        uint32_t H = shapes[k].heads, in = shapes[k].in, out = shapes[k].out, tail = shapes[k].tail, n = 11;
                        size_t xs = (size_t)H * (in + tail), ys = (size_t)H * (out + tail);
                        float *w = randoms((size_t)H * in * out, 1), *x = randoms(n * xs, 1), *y = floats(n * ys);
                        struct k_weight kw = stack(w, H, out, in, NULL);

                        assert_int_equal(dev->ops->head_linear(dev, &s.b, &(struct k_head_linear_args){
                                .tail = tail, .x = x, .x_stride = xs, .x_head = in + tail, .w = &kw, .y = y, .y_stride = ys,
                                .y_head = out + tail, .n = n }), 0);
                        for (uint32_t i = 0; i < n; i++)
                                for (uint32_t h = 0; h < H; h++) {
                                        const float *xh = x + i * xs + (size_t)h * (in + tail), *yh = y + i * ys + (size_t)h * (out + tail);

                                        for (uint32_t r = 0; r < out; r++)
                                                near("head", r, (double)yh[r], dot(w + ((size_t)h * out + r) * in, xh, in), 1e-5);
                                        assert_memory_equal(yh + out, xh + in, tail * sizeof(float));
                                }
                        done(w, (size_t)H * in * out);
                        done(x, n * xs);
                        done(y, n * ys);
                }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_moe),
                cmocka_unit_test(test_no_numbers),
                cmocka_unit_test(test_head_linear),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
