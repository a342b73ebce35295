/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choosing among variants with made-up clocks and results: nothing is timed before
 * all were checked, what differs is never chosen, what is not surely faster isn't
 * either, and the table finds the nearest shape and nothing too far.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/types.h"
#include "kernels/tune.h"

/* ---- the choice ---- */

struct fake {
        uint32_t n;
        int fate[K_TUNE_VARIANTS];
        double s[K_TUNE_VARIANTS][K_TUNE_ROUNDS]; /* what each round will take */
        uint32_t checked, timed[K_TUNE_VARIANTS];
        uint32_t order[K_TUNE_VARIANTS * K_TUNE_ROUNDS], n_order;
        uint32_t fail_at;                         /* the so many-th round fails; 0: none */
};

static int fake_check(void *ud, uint32_t v) {
        struct fake *f = ud;

        assert_int_equal(v, f->checked++); /* each once, the plain one first */
        assert_int_equal(f->n_order, 0);
        return f->fate[v];
}

static int fake_time(void *ud, uint32_t v, double *ret_s) {
        struct fake *f = ud;

        assert_int_equal(f->checked, f->n);
        assert_int_equal(f->fate[v], K_TUNE_TIMED);
        f->order[f->n_order++] = v;
        if (f->n_order == f->fail_at)
                return -EIO;
        *ret_s = f->s[v][f->timed[v]++];
        return 0;
}

static struct fake fake(uint32_t n, const double *seconds) {
        struct fake f = { .n = n };

        for (uint32_t v = 0; v < n; v++)
                for (uint32_t i = 0; i < K_TUNE_ROUNDS; i++)
                        f.s[v][i] = seconds[v];
        return f;
}

static int choose(struct fake *f, uint32_t rounds, struct k_tune_result *ret) {
        const struct k_tune_run run = { .n = f->n, .rounds = rounds, .ud = f, .check = fake_check, .time = fake_time };
        return k_tune_choose(&run, ret);
}

static uint32_t chosen(struct fake f) {
        struct k_tune_result res;

        assert_int_equal(choose(&f, K_TUNE_ROUNDS, &res), 0);
        return res.variant;
}
#define CHOSEN(...) chosen(fake(sizeof((double[]){ __VA_ARGS__ }) / sizeof(double), (double[]){ __VA_ARGS__ }))

static void test_fastest(void **state) {
        (void)state;
        assert_int_equal(CHOSEN(1.0), 0);
        assert_int_equal(CHOSEN(1.0, 0.5), 1);
        assert_int_equal(CHOSEN(1.0, 0.5, 0.4, 0.7), 2);
        assert_int_equal(CHOSEN(0.3, 0.5, 0.4), 0);
        assert_int_equal(CHOSEN(1.0, 0.985), 0);        /* within the margin: plain */
        assert_int_equal(CHOSEN(1.0, 0.97), 1);
        assert_int_equal(CHOSEN(1.0, 0.505, 0.5), 1);   /* a tie of two: the lower number */
        assert_int_equal(CHOSEN(1.0, 0.55, 0.5), 2);
        assert_int_equal(CHOSEN(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.9), 7);
}

/* A median is not enough: it must have been faster nearly always. */
static void test_significance(void **state) {
        struct fake f = fake(2, (double[]){ 1.0, 0.9 });

        (void)state;
        f.s[1][3] = 5; /* one outlier, either way, changes nothing */
        assert_int_equal(chosen(f), 1);
        f.s[1][6] = 5;
        assert_int_equal(chosen(f), 0);
        f = fake(2, (double[]){ 1.0, 1.0 });
        f.s[1][0] = 0.01;
        assert_int_equal(chosen(f), 0);
        f = fake(2, (double[]){ 1.0, 0.9 }); /* both drift by more than they differ: the rounds tell them apart */
        for (int i = 0; i < K_TUNE_ROUNDS; i++)
                for (int v = 0; v < 2; v++)
                        f.s[v][i] *= 1 + 0.1 * i;
        assert_int_equal(chosen(f), 1);
}

static void test_fewer_rounds(void **state) {
        struct fake f = fake(2, (double[]){ 1.0, 0.9 });
        struct k_tune_result res;

        (void)state;
        assert_int_equal(choose(&f, 3, &res), 0);
        assert_int_equal(res.variant, 1);
        assert_int_equal(f.n_order, 6);
        f = fake(2, (double[]){ 1.0, 0.9 });
        f.s[1][1] = 2;
        assert_int_equal(choose(&f, 3, &res), 0);
        assert_int_equal(res.variant, 0);
        f = fake(2, (double[]){ 1.0, 0.9 });
        assert_int_equal(choose(&f, 0, &res), -EINVAL);
        assert_int_equal(choose(&f, 2, &res), -EINVAL);
        assert_int_equal(choose(&f, K_TUNE_ROUNDS + 2, &res), -EINVAL);
        f.n = 0;
        assert_int_equal(choose(&f, 3, &res), -EINVAL);
        f.n = K_TUNE_VARIANTS + 1;
        assert_int_equal(choose(&f, 3, &res), -EINVAL);
}

/* However fast it is. */
static void test_match_before_time(void **state) {
        struct fake f = fake(4, (double[]){ 1.0, 0.01, 0.02, 0.8 });
        struct k_tune_result res;

        (void)state;
        f.fate[1] = K_TUNE_DIFFERS;
        f.fate[2] = K_TUNE_CANT;
        assert_int_equal(choose(&f, K_TUNE_ROUNDS, &res), 0);
        assert_int_equal(res.variant, 3);
        assert_int_equal(res.of[0].fate, K_TUNE_TIMED);
        assert_int_equal(res.of[1].fate, K_TUNE_DIFFERS);
        assert_int_equal(res.of[2].fate, K_TUNE_CANT);
        assert_int_equal(f.timed[1] + f.timed[2], 0);
        assert_int_equal(f.n_order, 2 * K_TUNE_ROUNDS);
        f = fake(2, (double[]){ 1.0, 0.1 });
        f.fate[1] = K_TUNE_DIFFERS;
        assert_int_equal(chosen(f), 0);
}

static void untouched(struct fake f, int want) {
        struct k_tune_result res, was;

        memset(&res, 0x5a, sizeof(res));
        was = res;
        assert_int_equal(choose(&f, K_TUNE_ROUNDS, &res), want);
        assert_memory_equal(&res, &was, sizeof(res));
}

static void test_failures(void **state) {
        const double s[] = { 1.0, 0.5 };
        struct fake f = fake(2, s);

        (void)state;
        f.fate[0] = K_TUNE_DIFFERS; /* the plain one is wrong: no table, whatever the others are */
        untouched(f, -EBADMSG);
        f.fate[0] = K_TUNE_CANT;
        untouched(f, -EBADMSG);
        f.fate[0] = -EIO;
        untouched(f, -EIO);
        f = fake(2, s);
        f.fate[1] = -EIO;
        untouched(f, -EIO);
        for (uint32_t i = 1; i <= 2 * K_TUNE_ROUNDS; i++) {
                f = fake(2, s);
                f.fail_at = i;
                untouched(f, -EIO);
        }
        f = fake(2, (double[]){ 1.0, 0 });
        untouched(f, -EDOM);
        f = fake(2, (double[]){ NAN, 1 });
        untouched(f, -EDOM);
}

/* Each once a round, and none always behind the same one. */
static void test_interleaved(void **state) {
        struct fake f = fake(3, (double[]){ 1.0, 1.1, 1.2 });
        bool behind[3][3] = { { false } };
        struct k_tune_result res;

        (void)state;
        assert_int_equal(choose(&f, K_TUNE_ROUNDS, &res), 0);
        for (uint32_t i = 0; i < f.n_order; i += 3)
                assert_int_equal(1u << f.order[i] | 1u << f.order[i + 1] | 1u << f.order[i + 2], 7);
        for (uint32_t i = 1; i < f.n_order; i++)
                behind[f.order[i - 1]][f.order[i]] = true;
        for (int v = 0; v < 3; v++)
                assert_true(behind[(v + 1) % 3][v] && behind[(v + 2) % 3][v]);
        assert_true(res.of[0].median == 1.0 && res.of[2].least == 1.2 && res.of[2].most == 1.2);
}

/* ---- the table ---- */

static struct k_tune_choice row(enum k_type t, uint32_t rows, uint32_t cols, uint32_t batch, uint32_t variant) {
        return (struct k_tune_choice){ { K_TUNE_LINEAR, t, rows, cols, batch }, variant };
}

static void test_table(void **state) {
        static struct k_tune_table t, was;
        const struct k_tune_choice c[] = { row(K_Q8_0, 4096, 4096, 8, 3), row(K_Q4_0, 14336, 4096, 1, 2), row(K_Q4_0, 4096, 4096, 1, 1),
                                           row(K_Q4_0, 4096, 4096, 8, 4), { { K_TUNE_EXPERTS, K_Q4_0, 4096, 4096, 1 }, 5 } };
        struct k_tune_choice bad[2];

        (void)state;
        assert_int_equal(k_tune_find(&t, K_TUNE_LINEAR, K_Q4_0, 4096, 4096, 1), 0);
        assert_int_equal(k_tune_table_set(&t, c, ELEMENTSOF(c)), 0);
        assert_int_equal(k_tune_find(&t, K_TUNE_LINEAR, K_Q4_0, 4096, 4096, 1), 1);
        assert_int_equal(k_tune_find(&t, K_TUNE_LINEAR, K_Q4_0, 14336, 4096, 1), 2);
        assert_int_equal(k_tune_find(&t, K_TUNE_LINEAR, K_Q4_0, 5120, 4096, 1), 1);  /* nearest */
        assert_int_equal(k_tune_find(&t, K_TUNE_LINEAR, K_Q4_0, 11008, 4096, 1), 2);
        assert_int_equal(k_tune_find(&t, K_TUNE_LINEAR, K_Q4_0, 4096, 8192, 1), 1);
        assert_int_equal(k_tune_find(&t, K_TUNE_LINEAR, K_Q4_0, 4096, 8193, 1), 0);  /* too far */
        assert_int_equal(k_tune_find(&t, K_TUNE_LINEAR, K_Q4_0, 2047, 4096, 1), 0);
        assert_int_equal(k_tune_find(&t, K_TUNE_LINEAR, K_Q4_0, 4096, 4096, 2), 0);  /* bucket of 4: not timed */
        assert_int_equal(k_tune_find(&t, K_TUNE_LINEAR, K_Q4_0, 4096, 4096, 5), 4);
        assert_int_equal(k_tune_find(&t, K_TUNE_LINEAR, K_Q8_0, 4096, 4096, 8), 3);
        assert_int_equal(k_tune_find(&t, K_TUNE_LINEAR, K_Q8_0, 4096, 4096, 9), 0);
        assert_int_equal(k_tune_find(&t, K_TUNE_EXPERTS, K_Q4_0, 4096, 4096, 1), 5);
        assert_int_equal(k_tune_find(&t, K_TUNE_LINEAR, K_Q4_0, 4096, 4096, 0), 0);
        assert_int_equal(k_tune_find(&t, K_TUNE_LINEAR, K_Q4_0, 0, 4096, 1), 0);
        assert_int_equal(k_tune_find(&t, K_TUNE_LINEAR, K_Q4_0, 4096, 4096, 65), 0);
        /* what is refused changes nothing */
        was = t;
        assert_int_equal(k_tune_table_set(&t, c, K_TUNE_MAX + 1), -E2BIG);
        bad[0] = bad[1] = c[0];
        bad[1].variant = 0;
        assert_int_equal(k_tune_table_set(&t, bad, 2), -EINVAL); /* the same key twice */
        bad[0].key.batch = 7;
        assert_int_equal(k_tune_table_set(&t, bad, 1), -EINVAL);
        bad[0] = c[0];
        bad[0].variant = K_TUNE_VARIANTS;
        assert_int_equal(k_tune_table_set(&t, bad, 1), -EINVAL);
        bad[0] = c[0];
        bad[0].key.rows = 0;
        assert_int_equal(k_tune_table_set(&t, bad, 1), -EINVAL);
        assert_memory_equal(&t, &was, sizeof(t));
        assert_int_equal(k_tune_table_set(&t, NULL, 0), 0);
        assert_int_equal(k_tune_find(&t, K_TUNE_LINEAR, K_Q4_0, 4096, 4096, 1), 0);
}

static void test_names(void **state) {
        enum k_tune_family f;

        (void)state;
        for (unsigned i = 0; i < _K_TUNE_FAMILY_MAX; i++) {
                assert_true(k_tune_family_parse(k_tune_family_name((enum k_tune_family)i), &f));
                assert_int_equal(f, i);
        }
        assert_false(k_tune_family_parse("", &f));
        assert_int_equal(k_tune_bucket(0), 0);
        assert_int_equal(k_tune_bucket(1), 1);
        assert_int_equal(k_tune_bucket(2), 4);
        assert_int_equal(k_tune_bucket(33), 64);
        assert_int_equal(k_tune_bucket(65), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_fastest), cmocka_unit_test(test_significance), cmocka_unit_test(test_fewer_rounds),
                cmocka_unit_test(test_match_before_time), cmocka_unit_test(test_failures), cmocka_unit_test(test_interleaved),
                cmocka_unit_test(test_table), cmocka_unit_test(test_names),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
