/* SPDX-License-Identifier: Apache-2.0 */
/* Whose job is next: what one owner queues, and what takes long, is not what others wait for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/types.h"
#include "daemon/worker/jobs.h"

/* What the jobs report: in which order they began. A gate holds some until it is opened. */
struct record {
        pthread_mutex_t lock;
        pthread_cond_t some;
        unsigned order[32], n;
        bool open;
};

struct entry {
        struct job job;
        struct record *to;
        unsigned number;
        bool gated;
};

static void run(struct job *j) {
        struct entry *e = CONTAINER_OF(j, struct entry, job);
        struct record *r = e->to;

        pthread_mutex_lock(&r->lock);
        r->order[r->n++] = e->number;
        pthread_cond_broadcast(&r->some);
        while (e->gated && !r->open)
                pthread_cond_wait(&r->some, &r->lock);
        pthread_mutex_unlock(&r->lock);
}

static void wait_for(struct record *r, unsigned n) {
        pthread_mutex_lock(&r->lock);
        while (r->n < n)
                pthread_cond_wait(&r->some, &r->lock);
        pthread_mutex_unlock(&r->lock);
}

static void open_gate(struct record *r) {
        pthread_mutex_lock(&r->lock);
        r->open = true;
        pthread_cond_broadcast(&r->some);
        pthread_mutex_unlock(&r->lock);
}

static void push(struct jobs *q, struct record *r, struct entry *e, unsigned number, uint32_t owner, bool lengthy, bool gated) {
        *e = (struct entry){ .job = { .run = run, .owner = owner, .lengthy = lengthy }, .to = r, .number = number, .gated = gated };
        jobs_push(q, &e->job);
}

static void test_owners_take_turns(void **state) {
        static const unsigned want[] = { 0, 4, 7, 1, 5, 2, 6, 3 };
        struct record r = { .lock = PTHREAD_MUTEX_INITIALIZER, .some = PTHREAD_COND_INITIALIZER };
        struct entry e[8];
        struct jobs q;

        assert_int_equal(jobs_start(&q, 1, 1, "test", 0), 0);
        push(&q, &r, &e[0], 0, 1, false, true);
        wait_for(&r, 1);
        for (unsigned i = 1; i < 4; i++)
                push(&q, &r, &e[i], i, 1, false, false);
        for (unsigned i = 4; i < 7; i++)
                push(&q, &r, &e[i], i, 2, false, false);
        push(&q, &r, &e[7], 7, 3, false, false);
        open_gate(&r);
        jobs_stop(&q);
        assert_int_equal(r.n, 8);
        for (unsigned i = 0; i < 8; i++)
                assert_int_equal(r.order[i], want[i]);
}

static void test_without_owners(void **state) {
        struct record r = { .lock = PTHREAD_MUTEX_INITIALIZER, .some = PTHREAD_COND_INITIALIZER };
        struct entry e[8];
        struct jobs q;

        assert_int_equal(jobs_start(&q, 1, 1, "test", 0), 0);
        for (unsigned i = 0; i < 8; i++)
                push(&q, &r, &e[i], i, 0, false, i == 0);
        open_gate(&r);
        jobs_stop(&q);
        for (unsigned i = 0; i < 8; i++)
                assert_int_equal(r.order[i], i);
}

/* Two threads, three lengthy jobs of two owners that do not end: a short one of anybody is done all the same. */
static void test_lengthy_leave_a_thread(void **state) {
        struct record r = { .lock = PTHREAD_MUTEX_INITIALIZER, .some = PTHREAD_COND_INITIALIZER };
        struct entry e[6];
        struct jobs q;

        assert_int_equal(jobs_start(&q, 2, 2, "test", 0), 0);
        push(&q, &r, &e[0], 0, 1, true, true);
        push(&q, &r, &e[1], 1, 2, true, true);
        push(&q, &r, &e[2], 2, 1, true, true);
        wait_for(&r, 1);
        push(&q, &r, &e[3], 3, 3, false, false);
        push(&q, &r, &e[4], 4, 1, false, false);
        wait_for(&r, 3);
        for (unsigned i = 0; i < 3; i++)
                assert_true(r.order[i] == 0 || r.order[i] >= 3);
        open_gate(&r);
        wait_for(&r, 5);
        jobs_stop(&q);
        assert_int_equal(r.n, 5);
        assert_int_equal(r.order[3], 1);
}

/* Three threads, of which one owner has two at most: his jobs do not end, and another's is done all the same. */
static void test_no_owner_has_all(void **state) {
        struct record r = { .lock = PTHREAD_MUTEX_INITIALIZER, .some = PTHREAD_COND_INITIALIZER };
        struct entry e[8];
        struct jobs q;

        assert_int_equal(jobs_start(&q, 3, 2, "test", 0), 0);
        for (unsigned i = 0; i < 4; i++)
                push(&q, &r, &e[i], i, 1, false, true);
        wait_for(&r, 2);
        for (unsigned i = 4; i < 6; i++) { /* while his third and fourth wait, though a thread is free */
                push(&q, &r, &e[i], i, 2, false, false);
                wait_for(&r, i - 1);
                assert_int_equal(r.order[i - 2], i);
        }
        push(&q, &r, &e[6], 6, 2, true, true);
        push(&q, &r, &e[7], 7, 3, false, false);
        open_gate(&r);
        jobs_stop(&q);
        assert_int_equal(r.n, 8);
}

/* The last thread does what is left, one after the other. */
static void test_stop_runs_what_is_left(void **state) {
        struct record r = { .lock = PTHREAD_MUTEX_INITIALIZER, .some = PTHREAD_COND_INITIALIZER };
        struct entry e[9];
        struct jobs q;

        for (unsigned owned = 1; owned <= 2; owned++) {
                r.n = 0;
                assert_int_equal(jobs_start(&q, 2, owned, "test", 0), 0);
                for (unsigned i = 0; i < 9; i++)
                        push(&q, &r, &e[i], i, i % 3, owned == 2, false);
                jobs_stop(&q);
                assert_int_equal(r.n, 9);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_owners_take_turns), cmocka_unit_test(test_without_owners),
                cmocka_unit_test(test_lengthy_leave_a_thread), cmocka_unit_test(test_no_owner_has_all), cmocka_unit_test(test_stop_runs_what_is_left),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
