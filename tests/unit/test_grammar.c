/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grammars with a small vocabulary of their own: masks against trying every
 * token, states that refuse and stay as they were, long outputs, failing
 * allocations. What schemas mean is tested against jsonschema in Python.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>

#include "tests/oracle/fake_tok.h"

#include "base/alloc.h"
#include "base/error.h"
#include "engine/text/grammar.h"

#define WORDS 16

static struct grammar *from_schema(const char *s) {
        struct h_error err = { 0 };
        struct grammar *g = NULL;
        if (grammar_from_json_schema(s, strlen(s), &g, &err) < 0)
                fail_msg("%s: %s", s, err.message);
        return g;
}

static struct grammar_vocab *vocab(void) {
        struct grammar_vocab *v = NULL;
        assert_int_equal(grammar_vocab_new(NULL, &v, NULL), 0);
        return v;
}

static uint64_t next(uint64_t *s) {
        *s ^= *s << 13;
        *s ^= *s >> 7;
        *s ^= *s << 17;
        return *s;
}

static bool bit(const uint64_t *m, uint32_t i) {
        return m[i / 64] >> (i % 64) & 1;
}

/* A state that has taken these tokens. */
static struct grammar_state *replay(const struct grammar *g, const struct grammar_vocab *v, const uint32_t *ids, size_t n) {
        struct grammar_state *s = NULL;
        assert_int_equal(grammar_state_new(g, v, &s), 0);
        for (size_t i = 0; i < n; i++)
                assert_int_equal(grammar_state_accept(s, ids[i]), 0);
        return s;
}

/* Random walks; at each step, the mask must say exactly which tokens a fresh state would take. */
static void check_masks(const struct grammar *g, uint64_t seed) {
        struct grammar_vocab *v = vocab();
        uint32_t n_vocab = tok_n_vocab(NULL), ids[20];
        uint64_t mask[WORDS] = { 0 }, again[WORDS], rng = seed;

        for (int walk = 0; walk < 3; walk++) {
                struct grammar_state *s = replay(g, v, NULL, 0);
                for (size_t n = 0; n < ELEMENTSOF(ids); n++) {
                        size_t allowed = 0, pick;
                        assert_int_equal(grammar_state_mask(s, mask), 0);
                        for (uint32_t id = 0; id < n_vocab; id++) {
                                struct grammar_state *t = replay(g, v, ids, n);
                                int r = grammar_state_accept(t, id);
                                assert_true(r == 0 || r == -EINVAL);
                                if ((r == 0) != bit(mask, id))
                                        fail_msg("token %u after %zu: mask says %d, accepting it %d", id, n, bit(mask, id), r);
                                if (r < 0) { /* unchanged: still the same mask */
                                        assert_int_equal(grammar_state_mask(t, again), 0);
                                        if (id % 16 == 0)
                                                assert_memory_equal(again, mask, DIV_ROUND_UP(n_vocab, 64) * 8);
                                }
                                allowed += bit(mask, id);
                                grammar_state_free(t);
                        }
                        assert_true(allowed > 0);
                        assert_int_equal(bit(mask, FAKE_EOG), grammar_state_done(s));
                        assert_false(bit(mask, FAKE_CONTROL));
                        pick = next(&rng) % allowed;
                        for (uint32_t id = 0; id < n_vocab; id++)
                                if (bit(mask, id) && pick-- == 0)
                                        ids[n] = id;
                        assert_int_equal(grammar_state_accept(s, ids[n]), 0);
                        if (ids[n] == FAKE_EOG) { /* nothing but the end after the end */
                                assert_int_equal(grammar_state_mask(s, mask), 0);
                                for (uint32_t id = 0; id < n_vocab; id++)
                                        assert_int_equal(bit(mask, id), id == FAKE_EOG);
                                break;
                        }
                }
                grammar_state_free(s);
        }
        grammar_vocab_free(v);
}

static void test_masks(void **state) {
        static const char *const schemas[] = {
                "{}",
                "{\"type\": \"string\", \"pattern\": \"^(é|a|😀)+$\", \"maxLength\": 4}",
                "{\"type\": \"string\", \"minLength\": 3, \"maxLength\": 9}",
                ("{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\"}, \"id\": {\"type\": \"integer\", \"minimum\": 5, "
                 "\"maximum\": 130}}, \"required\": [\"id\"], \"additionalProperties\": false}"),
                "{\"type\": \"array\", \"items\": {\"type\": \"number\", \"minimum\": 0.5, \"maximum\": 12}, \"minItems\": 1, \"maxItems\": 3}",
                "{\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"string\", \"enum\": [\"abc\", \"hello world\"]}, {\"type\": \"null\"}]}",
        };
        struct grammar *g = NULL;
        static const char gbnf[] = "root ::= (\"ab\" | \"abc\" | [0-9]+ | \"\\u00e9\") (\", \" root)?";

        for (size_t i = 0; i < ELEMENTSOF(schemas); i++) {
                g = from_schema(schemas[i]);
                check_masks(g, i + 1);
                grammar_free(g);
        }
        assert_int_equal(grammar_from_gbnf(gbnf, strlen(gbnf), &g, NULL), 0);
        check_masks(g, 99);
        grammar_free(g);
}

/* An output of many values: the machine drops what it no longer needs. */
static void test_long_output(void **state) {
        struct grammar *g = from_schema("{\"type\": \"array\", \"items\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\", "
                                        "\"minimum\": 0, \"maximum\": 99999}}, \"required\": [\"a\"], \"additionalProperties\": false}}");
        struct grammar_vocab *v = vocab();
        struct grammar_state *s = NULL;
        uint64_t mask[WORDS];
        char text[64];

        assert_int_equal(grammar_state_new(g, v, &s), 0);
        assert_int_equal(grammar_state_accept_bytes(s, "[", 1), 0);
        for (int i = 0; i < 20000; i++) {
                int n = snprintf(text, sizeof(text), "%s{\"a\": %d}", i ? ", " : "", i);
                assert_int_equal(grammar_state_accept_bytes(s, text, (size_t)n), 0);
                if (i % 1000 == 0)
                        assert_int_equal(grammar_state_mask(s, mask), 0);
        }
        assert_int_equal(grammar_state_accept_bytes(s, ", {\"a\": 100000}", 15), -EINVAL);
        assert_int_equal(grammar_state_accept_bytes(s, "]", 1), 0);
        assert_true(grammar_state_done(s));
        grammar_state_free(s);
        grammar_vocab_free(v);
        grammar_free(g);
}

/* White space is bounded, nesting is bounded, and both end in refusal, not in trouble. */
static void test_bounds(void **state) {
        struct grammar *g = from_schema("{}");
        struct grammar_vocab *v = vocab();
        struct grammar_state *s = NULL;
        int n = 0;

        assert_int_equal(grammar_state_new(g, v, &s), 0);
        while (grammar_state_accept_bytes(s, " ", 1) == 0)
                n++;
        assert_int_equal(n, 32);
        for (n = 0; grammar_state_accept_bytes(s, "[", 1) == 0; n++)
                ;
        assert_int_equal(n, 128);
        assert_int_equal(grammar_state_accept_bytes(s, "1", 1), 0);
        for (; n > 0; n--)
                assert_int_equal(grammar_state_accept_bytes(s, "]", 1), 0);
        assert_true(grammar_state_done(s));
        assert_int_equal(grammar_state_accept_bytes(s, " \n", 2), 0);
        assert_int_equal(grammar_state_accept_bytes(s, " ", 1), -EINVAL);
        grammar_state_free(s);
        assert_int_equal(grammar_state_new(g, v, &s), 0);
        assert_int_equal(grammar_state_accept_bytes(s, "\r\n \r\n  ", 7), 0);
        assert_int_equal(grammar_state_accept_bytes(s, "\n", 1), -EINVAL);
        assert_int_equal(grammar_state_accept_bytes(s, "[\n\n1", 4), 0);
        grammar_state_free(s);
        grammar_vocab_free(v);
        grammar_free(g);
}

static bool after_three(void *ud) {
        return ++*(int *)ud == 3;
}

/* A mask given up for its cost or by its owner changes nothing: asked for anew, it is what it would have been. */
static void test_limits(void **state) {
        char src[8000] = "root ::= [^#]*";
        struct grammar *g = NULL;
        struct grammar_vocab *v = vocab();
        struct grammar_state *s = NULL, *t = NULL;
        uint64_t want[WORDS], mask[WORDS];
        int asked = 0;

        for (int i = 0; i < 200; i++)
                strcat(src, " | [^#]*");
        assert_int_equal(grammar_from_gbnf(src, strlen(src), &g, NULL), 0);
        assert_int_equal(grammar_state_new(g, v, &s), 0);
        assert_int_equal(grammar_state_new(g, v, &t), 0);
        assert_int_equal(grammar_state_mask(t, want), 0);
        for (uint64_t work = 1; work <= 4096; work *= 8)
                assert_int_equal(grammar_state_mask_within(s, &(struct grammar_limit){ .work = work }, mask), -EAGAIN);
        assert_int_equal(grammar_state_mask_within(s, &(struct grammar_limit){ .stopped = after_three, .ud = &asked }, mask), -ECANCELED);
        assert_int_equal(asked, 3);
        assert_int_equal(grammar_state_mask_within(s, &(struct grammar_limit){ .work = UINT64_C(1) << 40 }, mask), 0);
        assert_memory_equal(mask, want, sizeof(mask));
        assert_int_equal(grammar_state_accept_bytes(s, "abc", 3), 0);
        grammar_state_free(s);
        grammar_state_free(t);
        grammar_vocab_free(v);
        grammar_free(g);
}

/* Surrogates are no characters: an answer that held one would be no UTF-8. */
static void test_gbnf_escapes(void **state) {
        static const struct { const char *src; bool good; } rows[] = {
                { "root ::= \"\\u00e9\"", true }, { "root ::= [\\ue000-\\uf8ff]", true }, { "root ::= \"\\U0010ffff\"", true },
                { "root ::= \"\\ud83d\"", false }, { "root ::= [a\\udfff]", false }, { "root ::= \"\\U00110000\"", false },
        };

        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                struct h_error err = {};
                struct grammar *g = NULL;
                int r = grammar_from_gbnf(rows[i].src, strlen(rows[i].src), &g, &err);

                assert_int_equal(r == 0, rows[i].good);
                assert_true(rows[i].good || strstr(err.message, "is no character"));
                grammar_free(g);
        }
}

static void test_large_schemas_end(void **state) {
        static const char *const schemas[] = {
                "{\"type\": \"string\", \"pattern\": \"(a|b)*a(a|b){18}$\"}",
                "{\"type\": \"string\", \"pattern\": \"((a{1000}){1000}){1000}\"}",
                "{\"type\": \"string\", \"pattern\": \"((((((((((a*)*)*)*)*)*)*)*)*)*)*\", \"maxLength\": 100000}",
                "{\"type\": \"string\", \"pattern\": \"^a\", \"minLength\": 4000000000}",
        };
        for (size_t i = 0; i < ELEMENTSOF(schemas); i++) {
                struct h_error err = { 0 };
                struct grammar *g = NULL;
                int r = grammar_from_json_schema(schemas[i], strlen(schemas[i]), &g, &err);
                if (r < 0) {
                        assert_int_equal(r, -EHEARTH);
                        assert_int_equal(err.code, HEARTH_E_grammar_invalid);
                }
                grammar_free(g);
        }
}

static void test_alloc_failures(void **state) {
        static const char src[] = "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"number\", \"minimum\": 1}}, \"minProperties\": 1}";
        bool worked = false;

        for (uint64_t nth = 1; nth < 2000 && !worked; nth++) {
                struct grammar *g = NULL;
                struct grammar_vocab *v = NULL;
                struct grammar_state *s = NULL;
                uint64_t mask[WORDS];
                int r;

                fault_arm(FAULT_ALLOC, nth);
                r = grammar_from_json_schema(src, strlen(src), &g, NULL);
                if (r == 0)
                        r = grammar_vocab_new(NULL, &v, NULL);
                if (r == 0)
                        r = grammar_state_new(g, v, &s);
                if (r == 0)
                        r = grammar_state_mask(s, mask);
                if (r == 0)
                        r = grammar_state_accept_bytes(s, "{\"a\": 12, \"bc\": [", 17);
                if (r == 0)
                        r = grammar_state_mask(s, mask);
                worked = fault_count(FAULT_ALLOC) < nth;
                fault_arm(FAULT_ALLOC, 0);
                /* caching a mask may fail quietly; everything else is reported */
                assert_true(r == 0 || r == -ENOMEM);
                grammar_state_free(s);
                grammar_vocab_free(v);
                grammar_free(g);
        }
        assert_true(worked);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_masks),  cmocka_unit_test(test_long_output), cmocka_unit_test(test_bounds),
                cmocka_unit_test(test_limits),
                cmocka_unit_test(test_gbnf_escapes),
                cmocka_unit_test(test_large_schemas_end), cmocka_unit_test(test_alloc_failures),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
