/* SPDX-License-Identifier: Apache-2.0 */
/* The sampler against a plain one that sorts, and its promises. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/sample.h"

static uint64_t rng = 88172645463325252u;

static uint64_t next(void) {
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        return rng;
}

static float uniform(void) {
        return (float)(next() >> 40) / (float)(1 << 24);
}

static void fill(float *x, uint32_t n, bool ties) {
        for (uint32_t i = 0; i < n; i++) {
                x[i] = (uniform() + uniform() + uniform() + uniform() - 2) * 6;
                if (ties)
                        x[i] = roundf(x[i]);
        }
}

/* ---- the plain sampler -------------------------------------------------------- */

static const float *order_by;

static int order(const void *a, const void *b) {
        uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
        if (order_by[i] != order_by[j])
                return order_by[i] > order_by[j] ? -1 : 1;
        return i < j ? -1 : i > j;
}

static int ascending(const void *a, const void *b) {
        uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
        return i < j ? -1 : i > j;
}

/* Also says how close the draw was to another outcome: rounding may decide below that. */
static uint32_t plain(const float *logits, uint32_t n, const struct eng_sampling *s, const uint32_t *history,
                      uint32_t n_history, uint32_t pos, double *ret_margin) {
        float *x = malloc(n * sizeof(float));
        uint32_t *id = malloc(n * sizeof(uint32_t)), k = n, back = s->penalty_last ? s->penalty_last : n_history, r = ENG_NO_TOKEN;
        double max, total = 0, mass = 0, u = sample_uniform(s->seed, pos);

        memcpy(x, logits, n * sizeof(float));
        for (uint32_t i = 0; i < n; i++) {
                uint32_t count = 0;
                for (uint32_t j = n_history > back ? n_history - back : 0; j < n_history; j++)
                        count += history[j] == i;
                if (count && s->repeat_penalty != 1 && s->repeat_penalty > 0)
                        x[i] = x[i] > 0 ? x[i] / s->repeat_penalty : x[i] * s->repeat_penalty;
                if (count)
                        x[i] -= s->presence_penalty + s->frequency_penalty * (float)count;
                for (size_t b = 0; b < s->n_bias; b++)
                        if (s->bias[b].token == i)
                                x[i] += s->bias[b].bias;
                if (s->mask && !(s->mask[i / 64] >> (i % 64) & 1))
                        x[i] = -INFINITY;
                id[i] = i;
        }
        order_by = x;
        qsort(id, n, sizeof(*id), order);
        max = x[id[0]];
        *ret_margin = 1;
        if (!(s->temperature > 0)) {
                r = id[0];
                goto done;
        }
        if (s->top_k && s->top_k < k)
                k = s->top_k;
        for (uint32_t i = 0; i < k; i++)
                total += exp(x[id[i]] - max);
        if (s->top_p > 0 && s->top_p < 1)
                for (uint32_t i = 0; i < k; i++) {
                        mass += exp(x[id[i]] - max) / total;
                        *ret_margin = fmin(*ret_margin, fabs(mass - (double)s->top_p));
                        if (mass >= (double)s->top_p) {
                                k = i + 1;
                                break;
                        }
                }
        for (uint32_t i = 1; i < k && s->min_p > 0; i++) {
                *ret_margin = fmin(*ret_margin, fabs(exp(x[id[i]] - max) - (double)s->min_p));
                if (exp(x[id[i]] - max) < (double)s->min_p)
                        k = i;
        }
        qsort(id, k, sizeof(*id), ascending);
        total = 0;
        for (uint32_t i = 0; i < k; i++)
                total += exp((x[id[i]] - max) / (double)s->temperature);
        mass = 0;
        for (uint32_t i = 0; i < k; i++) {
                mass += exp((x[id[i]] - max) / (double)s->temperature) / total;
                *ret_margin = fmin(*ret_margin, fabs(mass - u));
                if (mass > u && r == ENG_NO_TOKEN)
                        r = id[i];
        }
done:
        free(x);
        free(id);
        return r;
}

/* Random parameters of all kinds: the same token wherever rounding can't decide. */
static void test_against_plain(void **state) {
        uint32_t compared = 0;

        for (unsigned round = 0; round < 3000; round++) {
                uint32_t n = 2 + (uint32_t)(next() % 3000), history[40], got, want;
                float *x = malloc(n * sizeof(float));
                uint64_t *mask = calloc((n + 63) / 64, 8);
                struct eng_bias bias[3];
                struct eng_sampling s = { .temperature = next() % 8 ? 0.1f + 2 * uniform() : 0, .repeat_penalty = 1, .seed = next() };
                struct eng_result res;
                double margin;

                fill(x, n, round % 4 == 0);
                for (unsigned i = 0; i < 40; i++)
                        history[i] = (uint32_t)(next() % n);
                if (next() % 2)
                        s.top_k = 1 + (uint32_t)(next() % (n + 10));
                if (next() % 2)
                        s.top_p = 0.05f + uniform();
                if (next() % 3 == 0)
                        s.min_p = uniform() * 0.3f;
                if (next() % 3 == 0) {
                        s.repeat_penalty = 0.5f + uniform() * 2;
                        s.presence_penalty = uniform() - 0.5f;
                        s.frequency_penalty = uniform() - 0.5f;
                        s.penalty_last = (uint32_t)(next() % 60);
                }
                if (next() % 4 == 0) {
                        s.bias = bias;
                        s.n_bias = 3;
                        for (unsigned i = 0; i < 3; i++)
                                bias[i] = (struct eng_bias){ (uint32_t)(next() % n), 10 * uniform() - 5 };
                }
                if (next() % 4 == 0) {
                        s.mask = mask;
                        for (uint32_t i = 0; i < (n + 63) / 64; i++)
                                mask[i] = next() & next();
                        mask[(n - 1) / 64] |= (uint64_t)1 << ((n - 1) % 64);
                }
                want = plain(x, n, &s, history, 40, round, &margin);
                got = eng_sample(x, n, &s, history, 40, round, &res);
                assert_int_equal(got, res.token);
                if (margin > 2e-6 * sqrt(n)) {
                        if (got != want)
                                print_error("round %u: n %u T %g k %u p %g min %g: got %u, want %u, margin %g\n", round, n,
                                            (double)s.temperature, s.top_k, (double)s.top_p, (double)s.min_p, got, want, margin);
                        assert_int_equal(got, want);
                        compared++;
                }
                if (s.mask)
                        assert_true(mask[got / 64] >> (got % 64) & 1);
                free(x);
                free(mask);
        }
        assert_true(compared > 2000);
}

static void test_greedy_ties(void **state) {
        for (uint32_t n = 1; n < 200; n++) {
                float *x = malloc(n * sizeof(float));
                struct eng_sampling s = { .repeat_penalty = 1 };
                uint32_t first = (uint32_t)(next() % n);

                for (uint32_t i = 0; i < n; i++)
                        x[i] = i < first ? -1 : i % 2 == first % 2 ? 3 : 2;
                assert_int_equal(eng_sample(x, n, &s, NULL, 0, 0, NULL), first);
                x[first] = NAN; /* never chosen, never contagious */
                if (first + 2 < n)
                        assert_int_equal(eng_sample(x, n, &s, NULL, 0, 0, NULL), first + 2);
                free(x);
        }
}

static void test_nothing_allowed(void **state) {
        float x[70] = { 0 };
        uint64_t mask[2] = { 0 };
        struct eng_sampling s = { .temperature = 1, .mask = mask };
        struct eng_result r;

        assert_int_equal(eng_sample(x, 70, &s, NULL, 0, 0, &r), ENG_NO_TOKEN);
        mask[1] = 1u << 5;
        for (uint32_t pos = 0; pos < 100; pos++)
                assert_int_equal(eng_sample(x, 70, &s, NULL, 0, pos, &r), 69);
}

/* Frequencies follow the probabilities; noise depends on seed and position. */
static void test_distribution(void **state) {
        static const float p[5] = { 0.4f, 0.3f, 0.15f, 0.1f, 0.05f };
        float x[5];
        uint32_t count[5] = { 0 }, same = 0;
        struct eng_sampling a = { .temperature = 1, .seed = 7 }, b = { .temperature = 1, .seed = 8 };

        for (unsigned i = 0; i < 5; i++)
                x[i] = logf(p[i]) + 3;
        for (uint32_t pos = 0; pos < 40000; pos++) {
                uint32_t t = eng_sample(x, 5, &a, NULL, 0, pos, NULL);
                assert_int_equal(t, eng_sample(x, 5, &a, NULL, 0, pos, NULL));
                same += t == eng_sample(x, 5, &b, NULL, 0, pos, NULL);
                count[t]++;
        }
        for (unsigned i = 0; i < 5; i++)
                assert_true(fabs((double)count[i] / 40000 - (double)p[i]) < 0.012); /* 5 sigma */
        assert_true(same < 40000 * 0.32); /* sum of p^2 is 0.285 */
}

static void test_logprobs(void **state) {
        enum { N = 4999 };
        float *x = malloc(N * sizeof(float));
        struct eng_sampling s = { .temperature = 0.7f, .n_top = 20, .repeat_penalty = 1.5f, .top_k = 3 };
        uint32_t history[2] = { 5, 6 };
        struct eng_result r;
        double sum = 0;

        for (unsigned round = 0; round < 20; round++) {
                fill(x, N, round % 2);
                sum = 0;
                for (uint32_t i = 0; i < N; i++)
                        sum += exp((double)x[i]);
                eng_sample(x, N, &s, history, 2, round, &r);
                assert_true(fabs((double)r.logprob - ((double)x[r.token] - log(sum))) < 1e-5);
                assert_int_equal(r.n_top, 20);
                for (uint32_t i = 0; i < 20; i++) {
                        uint32_t better = 0;
                        for (uint32_t j = 0; j < N; j++)
                                better += x[j] > x[r.top[i].token] || (x[j] == x[r.top[i].token] && j < r.top[i].token);
                        assert_int_equal(better, i);
                        assert_true(fabs((double)r.top[i].logprob - ((double)x[r.top[i].token] - log(sum))) < 1e-5);
                }
        }
        free(x);
}

static void test_exp(void **state) {
        for (unsigned i = 0; i < 100000; i++) {
                float v = -86 * uniform(), e = vec_exp(v);
                assert_true(fabs((double)e / exp((double)v) - 1) < 3e-7);
        }
        assert_true(vec_exp(0) == 1);
        assert_true(vec_exp(-INFINITY) == 0 && vec_exp(NAN) == 0);
}

/* Masses add up the same in any order and however many at once, and are what they stand for. */
static void test_masses(void **state) {
        for (unsigned round = 0; round < 300; round++) {
                uint32_t n = 1 + (uint32_t)(next() % 5000);
                float *x = malloc(n * sizeof(float)), max, scale = 0.2f + 3 * uniform();
                uint64_t sum = 0, *block = malloc(DIV_ROUND_UP(n, SAMPLE_BLOCK) * sizeof(*block)), whole;
                double exact = 0;

                fill(x, n, round % 3 == 0);
                if (round % 5 == 0) {
                        x[next() % n] = NAN;
                        x[next() % n] = -INFINITY;
                }
                max = vec_max(x, n);
                for (uint32_t i = n; i-- > 0;) {
                        uint64_t w = vec_weight((x[i] - max) * scale);
                        assert_true(w == (uint64_t)llrint((double)vec_exp((x[i] - max) * scale) * (double)MASS_ONE));
                        sum += w;
                        exact += x[i] >= -INFINITY ? exp((x[i] - max) * (double)scale) : 0;
                }
                whole = vec_mass(x, n, max, scale, block);
                assert_true(whole == sum);
                for (uint32_t b = 0; b < DIV_ROUND_UP(n, SAMPLE_BLOCK); b++)
                        whole -= block[b];
                assert_true(whole == 0);
                if (n > 1 && max > -INFINITY)
                        assert_true(fabs((double)sum / (double)MASS_ONE / exact - 1) < 1e-5);
                free(x);
                free(block);
        }
        assert_true(vec_weight(0) == MASS_ONE && vec_weight(NAN) == 0 && vec_weight(-INFINITY) == 0);
        for (unsigned i = 0; i < 1000; i++) { /* a target lies below the mass */
                uint64_t mass = 1 + next() % (MASS_ONE * 1000), noise = next() >> 11;
                double want = (double)mass * (((double)noise + 0.5) * 0x1p-53);
                assert_true(sample_target(mass, noise) < mass);
                assert_true(fabs((double)sample_target(mass, noise) - want) <= 1 + want * 1e-12);
        }
        assert_true(sample_target(MASS_ONE, ((uint64_t)1 << 53) - 1) == MASS_ONE - 1 && sample_target(MASS_ONE, 0) == 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_against_plain), cmocka_unit_test(test_greedy_ties),
                cmocka_unit_test(test_nothing_allowed), cmocka_unit_test(test_distribution),
                cmocka_unit_test(test_logprobs), cmocka_unit_test(test_exp), cmocka_unit_test(test_masses),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
