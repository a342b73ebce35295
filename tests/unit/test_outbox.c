/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's outbox: nothing is lost, and the control thread is woken as often as it must be and no more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "daemon/worker/outbox.h"

/* Wake-ups since the last look. */
static uint64_t woken(struct outbox *o) {
        uint64_t n = 0;

        return read(o->wake, &n, sizeof(n)) == sizeof(n) ? n : 0;
}

static void push(struct outbox *o, const char *text) {
        struct buf b = {};

        assert_int_equal(buf_puts(&b, text), 0);
        outbox_push(o, &b);
        assert_int_equal(b.len, 0);
        buf_free(&b);
}

static void takes(struct outbox *o, const char *text) {
        struct buf b = {};

        assert_true(outbox_take(o, &b));
        assert_int_equal(b.len, strlen(text));
        if (b.len)
                assert_memory_equal(b.data, text, b.len);
        buf_free(&b);
}

static void test_plain(void **state) {
        struct outbox o;

        (void)state;
        assert_int_equal(outbox_init(&o), 0);
        assert_int_equal(woken(&o), 0);
        push(&o, "a");
        push(&o, "b");
        assert_int_equal(woken(&o), 1); /* there was something already */
        takes(&o, "ab");
        push(&o, "c");
        assert_int_equal(woken(&o), 1);
        outbox_poke(&o);
        assert_int_equal(woken(&o), 1);
        takes(&o, "c");
        takes(&o, "");
        outbox_done(&o);
}

static void test_held(void **state) {
        struct outbox o;

        (void)state;
        assert_int_equal(outbox_init(&o), 0);
        outbox_hold(&o);
        outbox_release(&o);
        assert_int_equal(woken(&o), 0); /* for nothing */
        outbox_hold(&o);
        push(&o, "a");
        outbox_poke(&o);
        assert_int_equal(woken(&o), 0);
        takes(&o, "a"); /* by a control thread that was awake */
        push(&o, "b");
        push(&o, "c");
        assert_int_equal(woken(&o), 0);
        outbox_release(&o);
        assert_int_equal(woken(&o), 1);
        takes(&o, "bc");
        push(&o, "d"); /* as before */
        assert_int_equal(woken(&o), 1);
        outbox_hold(&o);
        push(&o, "e"); /* the wake-up for d stands */
        outbox_release(&o);
        takes(&o, "de");
        outbox_hold(&o);
        outbox_poke(&o); /* a request has ended: no message, but a reason */
        outbox_release(&o);
        assert_int_equal(woken(&o), 1);
        outbox_done(&o);
}

/* What is lost is said at once, held or not. */
static void test_lost(void **state) {
        struct buf b = {}, ret = {};
        struct outbox o;

        (void)state;
        assert_int_equal(outbox_init(&o), 0);
        assert_int_equal(buf_puts(&b, "lost"), 0);
        outbox_hold(&o);
        fault_arm(FAULT_ALLOC, 1);
        outbox_push(&o, &b);
        fault_arm(FAULT_ALLOC, 0);
        assert_int_equal(woken(&o), 1);
        assert_false(outbox_take(&o, &ret));
        outbox_release(&o);
        outbox_done(&o);
        assert_int_equal(outbox_init(&o), 0);
        outbox_fail(&o);
        assert_int_equal(woken(&o), 1);
        assert_false(outbox_take(&o, &ret));
        outbox_done(&o);
        buf_free(&b);
        buf_free(&ret);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_plain), cmocka_unit_test(test_held), cmocka_unit_test(test_lost) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
