/* SPDX-License-Identifier: Apache-2.0 */
/* The pool: every task once, waking from sleep, failures at start, no processor time while idle. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "kernels/cpu/pool.h"

struct count {
        _Atomic uint32_t done[1000];
        uint32_t n_workers;
        _Atomic uint32_t bad;
};

static void task(void *arg, uint32_t i, uint32_t worker) {
        struct count *c = arg;
        atomic_fetch_add(&c->done[i], 1);
        if (worker >= c->n_workers)
                atomic_fetch_add(&c->bad, 1);
}

static void test_each_once(void **state) {
        static struct count c;
        struct k_pool *pool = NULL;

        (void)state;
        for (uint32_t workers = 1; workers <= 5; workers++) {
                assert_int_equal(k_pool_new(workers, &pool), 0);
                assert_int_equal(k_pool_workers(pool), workers);
                c.n_workers = workers;
                for (uint32_t round = 0; round < 400; round++) {
                        uint32_t n = round % 7 == 0 ? 1000 : round % 9;
                        memset((void *)c.done, 0, sizeof(c.done));
                        k_pool_run(pool, task, &c, n);
                        for (uint32_t i = 0; i < 1000; i++)
                                assert_int_equal(c.done[i], i < n);
                        if (round % 100 == 99) { /* long enough to fall asleep */
                                struct timespec ts = { 0, 5000000 };
                                nanosleep(&ts, NULL);
                        }
                }
                assert_int_equal(c.bad, 0);
                pool = k_pool_free(pool);
                assert_null(pool);
        }
}

static void test_no_memory(void **state) {
        struct k_pool *pool = (void *)8;
        (void)state;
        for (uint64_t nth = 1; nth <= 2; nth++) {
                fault_arm(FAULT_ALLOC, nth);
                assert_int_equal(k_pool_new(2, &pool), -ENOMEM);
                assert_ptr_equal(pool, (void *)8);
        }
        fault_arm(FAULT_ALLOC, 0);
}

/* Processor time of the process over 200 ms of idleness, against what one spinning thread would use. */
static void test_idle(void **state) {
        struct k_pool *pool = NULL;
        static struct count c = { .n_workers = 3 };
        struct timespec ts = { 0, 50000000 };

        (void)state;
        assert_int_equal(k_pool_new(3, &pool), 0);
        k_pool_run(pool, task, &c, 100);
        nanosleep(&ts, NULL);
        clock_t before = clock();
        ts.tv_nsec = 200000000;
        nanosleep(&ts, NULL);
        assert_true(clock() - before < CLOCKS_PER_SEC / 20);
        k_pool_free(pool);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_each_once),
                cmocka_unit_test(test_no_memory),
                cmocka_unit_test(test_idle),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
