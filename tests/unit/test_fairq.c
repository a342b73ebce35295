/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "daemon/broker/fairq.h"

struct entry {
        struct fairq_item it;
        unsigned user;
};

static void push(struct fairq *q, struct entry *e, unsigned user, unsigned client, uint32_t cost) {
        *e = (struct entry){ .user = user };
        assert_int_equal(fairq_push(q, user, client, &e->it, cost, false), 0);
}

static struct entry *pop(struct fairq *q) {
        struct fairq_item *it = fairq_pop(q, NULL, NULL);
        return it ? CONTAINER_OF(it, struct entry, it) : NULL;
}

static void test_first_come_within_a_client(void **state) {
        struct fairq q;
        struct entry e[4];

        fairq_init(&q);
        for (int i = 0; i < 4; i++)
                push(&q, &e[i], 1, 1, 10000 * (unsigned)(i + 1));
        for (int i = 0; i < 4; i++)
                assert_ptr_equal(pop(&q), &e[i]);
        assert_null(pop(&q));
        assert_int_equal(q.n, 0);
}

/* A user with a hundred requests gets no more than one with a few, whatever the order of arrival. */
static void test_users_share_evenly(void **state) {
        struct fairq q;
        struct entry many[100], few[10];
        unsigned got[3] = {};

        fairq_init(&q);
        for (int i = 0; i < 100; i++)
                push(&q, &many[i], 1, (unsigned)i % 7, 600);
        for (int i = 0; i < 10; i++)
                push(&q, &few[i], 2, 50, 600);
        for (int i = 0; i < 20; i++)
                got[pop(&q)->user]++;
        assert_in_range(got[2], 9, 10);
        while (pop(&q))
                ;
}

/* Cost counts: who asks for ten times the work gets a tenth as many turns. */
static void test_cost_is_work(void **state) {
        struct fairq q;
        struct entry big[50], small[200];
        uint64_t work[3] = {};
        struct entry *e;

        fairq_init(&q);
        for (int i = 0; i < 50; i++)
                push(&q, &big[i], 1, 1, 10000);
        for (int i = 0; i < 200; i++)
                push(&q, &small[i], 2, 1, 1000);
        for (int i = 0; i < 110; i++) {
                e = pop(&q);
                work[e->user] += e->user == 1 ? 10000 : 1000;
        }
        assert_in_range(work[1] * 100 / work[2], 70, 140);
        while (pop(&q))
                ;
}

/* Also between the clients of one user. */
static void test_clients_share_evenly(void **state) {
        struct fairq q;
        struct entry a[40], b[4];
        unsigned last = 0;

        fairq_init(&q);
        for (int i = 0; i < 40; i++)
                push(&q, &a[i], 1, 1, 500);
        for (int i = 0; i < 4; i++)
                push(&q, &b[i], 1, 2, 500);
        for (unsigned i = 0; i < 12; i++) {
                struct entry *e = pop(&q);
                if (e >= b && e < b + 4)
                        last = i;
        }
        assert_in_range(last, 5, 11);
        while (pop(&q))
                ;
}

static void test_front_and_remove(void **state) {
        struct fairq q;
        struct entry e[3];

        fairq_init(&q);
        push(&q, &e[0], 1, 1, 10);
        push(&q, &e[1], 1, 1, 10);
        e[2] = (struct entry){};
        assert_int_equal(fairq_push(&q, 1, 1, &e[2].it, 1 << 20, true), 0);
        assert_int_equal(fairq_position(&q, &e[2].it), 0);
        assert_int_equal(fairq_position(&q, &e[1].it), 2);
        fairq_remove(&q, &e[0].it);
        fairq_remove(&q, &e[0].it);
        assert_ptr_equal(pop(&q), &e[2]);
        assert_ptr_equal(pop(&q), &e[1]);
        assert_null(fairq_any(&q));
}

static bool not_user_one(void *ud, uint64_t user) {
        return user != 1;
}

/* Who has all his slots is passed over, and keeps his place. */
static void test_refused_users(void **state) {
        struct fairq q;
        struct entry e[3];
        struct fairq_item *it;

        fairq_init(&q);
        push(&q, &e[0], 1, 1, 10);
        push(&q, &e[1], 1, 1, 10);
        assert_null(fairq_pop(&q, not_user_one, NULL));
        push(&q, &e[2], 2, 9, 1 << 20);
        it = fairq_pop(&q, not_user_one, NULL);
        assert_ptr_equal(it, &e[2].it);
        assert_null(fairq_pop(&q, not_user_one, NULL));
        assert_ptr_equal(pop(&q), &e[0]);
        assert_ptr_equal(pop(&q), &e[1]);
}

/* What is told as a position is the order in which equal requests are served. */
static void test_position_is_the_order(void **state) {
        struct fairq q;
        struct entry e[12];
        size_t told[12];

        fairq_init(&q);
        for (int i = 0; i < 12; i++)
                push(&q, &e[i], (unsigned)(i % 3 == 0), (unsigned)i % 4, FAIRQ_QUANTUM);
        for (int i = 0; i < 12; i++)
                told[i] = fairq_position(&q, &e[i].it);
        for (size_t n = 0; n < 12; n++) {
                struct entry *got = pop(&q);
                size_t said = told[got - e];
                assert_in_range(said + 4, n, n + 8); /* an estimate: within a third of the queue */
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_first_come_within_a_client), cmocka_unit_test(test_users_share_evenly),
                cmocka_unit_test(test_cost_is_work), cmocka_unit_test(test_clients_share_evenly),
                cmocka_unit_test(test_front_and_remove), cmocka_unit_test(test_refused_users),
                cmocka_unit_test(test_position_is_the_order),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
