/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a host sleeps that waits for a device beside it: never for the length
 * of a step of another kind, and not for that of its own last sleep. The device
 * here is a clock of its own and a time at which it will be done.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>
#include <time.h>

#include "engine/context.h"

#define MS 1000000u
#define PROMPT_NS (300u * MS)
#define STEP_NS (20u * MS)
#define BOUND_NS (150u * MS)       /* on a busy machine a look comes late; a wrong sleep is that of a prompt */
#define CLOCK_NS 1234567890123456u /* the device's clock, ahead of ours */

static uint64_t done_ns, asked_ns;

static void sleep_until(uint64_t ns) {
        struct timespec ts = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) != 0)
                ;
}

static int event_wait(struct k_dev *d, void *event) {
        (void)d;
        (void)event;
        sleep_until(done_ns);
        return 0;
}

static int sample_wait(struct k_dev *d, const struct k_sample_out *out, uint32_t n, uint64_t stamp, uint64_t after_ns) {
        struct k_sample_out *o = (struct k_sample_out *)out;
        uint64_t woken = beside_now() + after_ns;

        (void)d;
        asked_ns = after_ns;
        sleep_until(MAX(woken, done_ns));
        o[n - 1].ns = done_ns + CLOCK_NS;
        o[n - 1].stamp = stamp;
        return 0;
}

static const struct k_ops ops = { .event_wait = event_wait, .sample_wait = sample_wait };

/* One step that takes so long from 'begun' on. */
static void step(struct eng_context *c, uint64_t begun, uint64_t takes, bool prompt) {
        struct k_sample_out out = { 0 };
        struct flight f = { .n = 1, .n_sample = 1, .out = &out, .stamp = 7, .begun_ns = begun, .prompt = prompt };

        done_ns = begun + takes;
        asked_ns = 0;
        assert_int_equal(beside_wait(c, &f), 0);
        assert_true(beside_now() >= done_ns);
}

/* Each begun when the last one is over, as with a grammar: a prompt's time isn't slept, before generated rows or after. */
static void test_alone(void **state) {
        struct k_dev dev = { .ops = &ops };
        struct eng_context c = { .dev = &dev };

        for (int turn = 0; turn < 2; turn++) {
                step(&c, beside_now(), PROMPT_NS, true);
                assert_int_equal(asked_ns, 0);
                for (int i = 0; i < 8; i++) {
                        step(&c, beside_now(), STEP_NS, false);
                        assert_true(asked_ns < BOUND_NS);
                        assert_true(c.beside.step_ns < BOUND_NS);
                }
        }
}

/* One late look, and the sleeps are again as long as the steps. */
static void test_late(void **state) {
        struct k_dev dev = { .ops = &ops };
        struct eng_context c = { .dev = &dev };

        for (int i = 0; i < 3; i++)
                step(&c, beside_now(), STEP_NS, false);
        c.beside.step_ns = PROMPT_NS;
        step(&c, beside_now(), STEP_NS, false);
        assert_true(asked_ns > BOUND_NS);
        step(&c, beside_now(), STEP_NS, false);
        assert_true(asked_ns < BOUND_NS);
}

/* Each begun before the last one was seen to be over. */
static void test_behind(void **state) {
        struct k_dev dev = { .ops = &ops };
        struct eng_context c = { .dev = &dev };
        uint64_t at = beside_now(), begun = at;

        step(&c, begun, STEP_NS, false);
        for (int i = 0; i < 8; i++) {
                uint64_t next = c.beside.finished_ns - 1;

                step(&c, next, done_ns + STEP_NS - next, false);
                assert_true(asked_ns < BOUND_NS);
                assert_in_range(c.beside.step_ns, STEP_NS, STEP_NS);
        }
}

/* After a pause nobody knows how far the clocks went apart: the first step is looked for, not slept for. */
static void test_pause(void **state) {
        struct k_dev dev = { .ops = &ops };
        struct eng_context c = { .dev = &dev };

        for (int i = 0; i < 3; i++)
                step(&c, beside_now(), STEP_NS, false);
        assert_true(asked_ns > 0);
        c.beside.finished_ns -= 2000000000u;
        step(&c, beside_now(), STEP_NS, false);
        assert_int_equal(asked_ns, 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_alone),
                cmocka_unit_test(test_late),
                cmocka_unit_test(test_behind),
                cmocka_unit_test(test_pause),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
