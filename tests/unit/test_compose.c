/* SPDX-License-Identifier: Apache-2.0 */
/* What goes into a step. The engine is two functions of our own here: how long a sequence is, and a token's role. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/worker/compose.h"
#include "daemon/worker/prefix.h"

#define SLOTS 8u

struct eng_context { uint32_t len[SLOTS]; };

uint32_t eng_seq_len(const struct eng_context *c, eng_seq s) {
        return c->len[s.index];
}

uint32_t prefix_run(const struct task *t, uint32_t i, enum eng_role *ret) {
        *ret = i >= t->n_prompt ? ENG_ROLE_GENERATED : ENG_ROLE_PROMPT;
        return (i >= t->n_prompt ? (uint32_t)t->feed.n : t->n_prompt) - i;
}

struct bench {
        struct wmodel m;
        struct eng_context c;
        struct task t[SLOTS];
        struct wire_generate g[SLOTS];
        struct wire_embed e;
        size_t ends[2];
        uint32_t tokens[4096];
        struct eng_item items[SLOTS];
        struct task *in_step[SLOTS];
        uint32_t n;
};

static void setup(struct bench *b) {
        memset(b, 0, sizeof(*b));
        b->m.context = &b->c;
        b->m.slots = SLOTS;
        b->m.n_rows = 512 + SLOTS;
        b->m.info.can_generate = true;
        b->m.items = b->items;
        b->m.in_step = b->in_step;
        b->m.us_per_row = 1000; /* 20 rows beside a stream, 200 alone */
        b->m.us_decode = 5000;
        list_init(&b->m.tasks);
}

static struct task *add(struct bench *b, uint32_t uid, uint32_t n_prompt, uint32_t n_resume) {
        struct task *t = &b->t[b->n];

        t->seq.index = b->n;
        t->uid = uid;
        t->state = TASK_FEEDING;
        t->msg.type = WIRE_generate;
        t->msg.body = &b->g[b->n];
        t->n_prompt = n_prompt;
        t->feed = (struct tok_ids){ .ids = b->tokens, .n = n_prompt + n_resume };
        atomic_store(&t->credits, 100);
        list_append(&b->m.tasks, &t->link);
        b->n++;
        return t;
}

static struct task *decoding(struct bench *b, uint32_t uid) {
        struct task *t = add(b, uid, 10, 0);

        b->c.len[t->seq.index] = 10;
        t->state = TASK_DECODING;
        return t;
}

static uint32_t rows_of(const struct bench *b, const struct step_plan *p, const struct task *t, enum eng_role role) {
        uint32_t n = 0;

        for (size_t i = 0; i < p->n; i++)
                if (b->in_step[i] == t && b->items[i].role == role)
                        n += b->items[i].n;
        return n;
}

static void test_every_stream_is_in_every_step(void **state) {
        struct step_plan p;
        struct bench b;

        setup(&b);
        for (uint32_t i = 0; i < 6; i++)
                decoding(&b, i);
        add(&b, 7, 4000, 0);
        for (int step = 0; step < 20; step++) {
                compose_step(&b.m, &p);
                for (uint32_t i = 0; i < 6; i++)
                        assert_int_equal(rows_of(&b, &p, &b.t[i], ENG_ROLE_GENERATED), 1);
                assert_int_equal(p.generated, 6);
                assert_int_equal(p.prompt, 20); /* BESIDE_US / us_per_row */
                b.c.len[6] += p.prompt;
        }
}

static void test_who_may_not_send_is_left_out(void **state) {
        struct step_plan p;
        struct bench b;
        struct task *t;

        setup(&b);
        t = decoding(&b, 1);
        decoding(&b, 1);
        t->n_sent = 100;
        compose_step(&b.m, &p);
        assert_int_equal(p.n, 1);
        assert_ptr_equal(b.in_step[0], &b.t[1]);
        atomic_store(&t->credits, 101);
        compose_step(&b.m, &p);
        assert_int_equal(p.n, 2);
}

/* The last prompt token yields a token: it waits for the right to send it. */
static void test_the_last_prompt_token_waits_for_credit(void **state) {
        struct step_plan p;
        struct bench b;
        struct task *t;

        setup(&b);
        t = add(&b, 1, 50, 0);
        atomic_store(&t->credits, 0);
        compose_step(&b.m, &p);
        assert_int_equal(p.prompt, 49);
        assert_int_equal(b.items[0].want, ENG_WANT_NONE);
        b.c.len[0] = 49;
        compose_step(&b.m, &p);
        assert_int_equal(p.n, 0);
        atomic_store(&t->credits, 1);
        compose_step(&b.m, &p);
        assert_int_equal(p.prompt, 1);
        assert_int_equal(b.items[0].want, ENG_WANT_SAMPLE);
        assert_ptr_equal(b.items[0].tokens, b.tokens + 49);
}

/* With a token in flight: the next is fed without being known, as long as it is certain that there is a next one. */
static void test_ahead(void **state) {
        struct step_plan p;
        struct bench b;
        struct task *t;

        setup(&b);
        t = decoding(&b, 1);
        t->model = &b.m;
        t->max_tokens = UINT32_MAX;
        b.m.n_ctx = 1000;
        assert_false(compose_ahead(&b.m)); /* nothing is in flight */
        b.m.n_begun = 1;
        assert_true(compose_ahead(&b.m));
        compose_step(&b.m, &p);
        assert_ptr_equal(b.items[0].tokens, &t->next);
        t->in_flight = 1;
        compose_step(&b.m, &p);
        assert_int_equal(p.n, 1);
        assert_null(b.items[0].tokens);
        assert_int_equal(b.items[0].want, ENG_WANT_SAMPLE);

        t->n_generated = 4; /* the one in flight is the last one allowed */
        t->max_tokens = 5;
        compose_step(&b.m, &p);
        assert_int_equal(p.n, 0);
        t->max_tokens = 6;
        compose_step(&b.m, &p);
        assert_int_equal(p.n, 1);
        b.m.n_ctx = 14; /* 10 of the prompt, 4, and the one in flight could not be fed */
        compose_step(&b.m, &p);
        assert_int_equal(p.n, 0);
        b.m.n_ctx = 15;
        compose_step(&b.m, &p);
        assert_int_equal(p.n, 1);
        t->n_sent = 99; /* its credit is the last one */
        compose_step(&b.m, &p);
        assert_int_equal(p.n, 0);
        t->n_sent = 0;

        b.m.begun[0].plan.prompt = 1;
        assert_false(compose_ahead(&b.m));
        b.m.begun[0].plan.prompt = 0;
        atomic_store(&t->cancel, "cancelled");
        assert_false(compose_ahead(&b.m));
        atomic_store(&t->cancel, NULL);
        add(&b, 2, 50, 0); /* a prompt */
        assert_false(compose_ahead(&b.m));
        b.t[1].state = TASK_DECODING;
        assert_true(compose_ahead(&b.m));
        b.m.n_begun = 2;
        assert_false(compose_ahead(&b.m));
}

/* Users share evenly, then their requests: three prompts of one don't outweigh one of another. */
static void test_shares(void **state) {
        uint64_t rows[4] = {};
        struct step_plan p;
        struct bench b;

        setup(&b);
        for (int i = 0; i < 3; i++)
                add(&b, 1, 4000, 0);
        add(&b, 2, 4000, 0);
        for (int step = 0; step < 8; step++) {
                compose_step(&b.m, &p);
                assert_int_equal(p.prompt, 200);
                for (int i = 0; i < 4; i++) {
                        uint32_t n = rows_of(&b, &p, &b.t[i], ENG_ROLE_PROMPT);
                        rows[i] += n;
                        b.c.len[i] += n;
                }
        }
        assert_in_range(rows[3], 750, 850);
        for (int i = 0; i < 3; i++)
                assert_in_range(rows[i], 200, 340);
}

/* A short newcomer beside a long prompt and streams is done within a few steps. */
static void test_a_short_prompt_is_not_starved(void **state) {
        struct step_plan p;
        struct bench b;
        int steps = 0;

        setup(&b);
        decoding(&b, 1);
        add(&b, 1, 4000, 0);
        add(&b, 2, 25, 0);
        while (b.c.len[2] < 25) {
                compose_step(&b.m, &p);
                b.c.len[1] += rows_of(&b, &p, &b.t[1], ENG_ROLE_PROMPT);
                b.c.len[2] += rows_of(&b, &p, &b.t[2], ENG_ROLE_PROMPT);
                steps++;
        }
        assert_in_range(steps, 1, 4);
        assert_true(b.c.len[1] > 0);
}

/* A replay's tokens are generated ones: never in one item with prompt tokens, and no more in a step than slots. */
static void test_replays(void **state) {
        struct step_plan p;
        struct bench b;

        setup(&b);
        add(&b, 1, 30, 50);
        atomic_store(&b.t[0].credits, 60);
        decoding(&b, 1);
        compose_step(&b.m, &p);
        assert_int_equal(rows_of(&b, &p, &b.t[0], ENG_ROLE_PROMPT), 20);
        b.c.len[0] = 30;
        while (b.c.len[0] < 80) {
                uint32_t n;

                compose_step(&b.m, &p);
                n = rows_of(&b, &p, &b.t[0], ENG_ROLE_GENERATED);
                assert_in_range(p.generated, 1, SLOTS);
                assert_int_equal(rows_of(&b, &p, &b.t[0], ENG_ROLE_PROMPT), 0);
                assert_true(n > 0);
                b.c.len[0] += n;
        }
        assert_int_equal(b.items[1].want, ENG_WANT_SAMPLE);
}

/* An encoder's text goes in one piece, however long that takes. */
static void test_encoders_take_whole_texts(void **state) {
        struct step_plan p;
        struct bench b;
        struct task *t;

        setup(&b);
        b.m.info.can_generate = false;
        t = add(&b, 1, 0, 0);
        t->msg.type = WIRE_embed;
        t->msg.body = &b.e;
        b.ends[0] = 400;
        b.ends[1] = 410;
        t->ends = b.ends;
        t->n_ends = 2;
        compose_step(&b.m, &p);
        assert_int_equal(p.prompt, 400);
        assert_int_equal(b.items[0].want, ENG_WANT_EMBEDDING);
        t->text = 1;
        compose_step(&b.m, &p);
        assert_int_equal(p.prompt, 10);
        assert_ptr_equal(b.items[0].tokens, b.tokens + 400);
}

static void test_learning(void **state) {
        struct step_plan decode = { .n = 1, .generated = 3 }, both = { .n = 2, .generated = 3, .prompt = 100 };
        struct bench b;

        setup(&b);
        b.m.us_decode = b.m.us_per_row = 0;
        for (int i = 0; i < 50; i++)
                compose_learn(&b.m, &decode, 8000);
        assert_in_range((int)b.m.us_decode, 7900, 8100);
        for (int i = 0; i < 50; i++)
                compose_learn(&b.m, &both, 8000 + 100 * 300);
        assert_in_range((int)b.m.us_per_row, 295, 305);
        compose_learn(&b.m, &both, 10); /* faster than the decode alone: no negative cost */
        assert_true(b.m.us_per_row > 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_every_stream_is_in_every_step), cmocka_unit_test(test_who_may_not_send_is_left_out),
                cmocka_unit_test(test_the_last_prompt_token_waits_for_credit), cmocka_unit_test(test_shares),
                cmocka_unit_test(test_a_short_prompt_is_not_starved), cmocka_unit_test(test_replays),
                cmocka_unit_test(test_encoders_take_whole_texts), cmocka_unit_test(test_learning), cmocka_unit_test(test_ahead),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
