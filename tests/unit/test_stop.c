/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/worker/stop.h"

#define MAX_STOPS 4

static struct stop_list list(const char **text, size_t len[MAX_STOPS], size_t n) {
        for (size_t i = 0; i < n; i++)
                len[i] = strlen(text[i]);
        return (struct stop_list){ .text = text, .len = len, .n = n };
}

/* Feeds text in pieces of k bytes as the engine does; what comes out, and which string ended it. */
static int feed(const struct stop_list *l, const char *text, size_t k, char out[256]) {
        struct buf held = {};
        size_t n = strlen(text), o = 0;
        int match = -1;

        for (size_t i = 0; i < n && match < 0; i += k) {
                size_t give;

                assert_int_equal(buf_append(&held, text + i, MIN(k, n - i)), 0);
                give = stop_scan(l, held.data, held.len, &match);
                memcpy(out + o, held.data, give);
                o += give;
                buf_consume(&held, give);
        }
        if (match < 0) { /* the end: what was held comes out */
                memcpy(out + o, held.data, held.len);
                o += held.len;
        }
        out[o] = 0;
        buf_free(&held);
        return match;
}

struct row {
        const char *stops[MAX_STOPS], *text, *out;
        int match;
};

/* The result is the same however the text is cut. */
static void test_any_split(void **state) {
        static const struct row rows[] = {
                { { "END" }, "one two END three", "one two ", 0 },
                { { "END" }, "one EN two", "one EN two", -1 },
                { { "END" }, "one EN", "one EN", -1 },
                { { "aab" }, "xaaab", "xa", 0 },
                { { "abcd", "bc" }, "xabcd", "x", 0 },
                { { "abcd", "bc" }, "xabce", "xa", 1 },
                { { "\n\n", "\nUser:" }, "hi\nUser: me", "hi", 1 },
                { { "\n\n", "\nUser:" }, "a\nb\n\nc", "a\nb", 0 },
                { { "aa", "aab" }, "xaab", "x", 1 },
                { { "x" }, "x", "", 0 },
                { { "\xc3\xa9" }, "caf\xc3\xa9!", "caf", 0 },
        };

        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                const struct row *r = &rows[i];
                const char *stops[MAX_STOPS];
                size_t len[MAX_STOPS], n = 0;
                struct stop_list l;
                char out[256];

                for (; n < MAX_STOPS && r->stops[n]; n++)
                        stops[n] = r->stops[n];
                l = list(stops, len, n);
                for (size_t k = 1; k <= strlen(r->text); k++) {
                        int match = feed(&l, r->text, k, out);

                        /* Of two that begin at one place the shorter may be complete first; the text is the same. */
                        if (strcmp(r->stops[0], "aa") == 0)
                                assert_true(match >= 0);
                        else
                                assert_int_equal(match, r->match);
                        assert_string_equal(out, r->out);
                }
        }
}

static void test_none(void **state) {
        struct stop_list l = {};
        int match;

        assert_int_equal(stop_scan(&l, "text", 4, &match), 4);
        assert_int_equal(match, -1);
        assert_int_equal(stop_scan(&l, "", 0, &match), 0);
}

/* Nothing that could still become a stop string goes out, and nothing else is kept. */
static void test_holds_only_what_it_must(void **state) {
        const char *stops[] = { "abab", "bx" };
        size_t len[MAX_STOPS];
        struct stop_list l = list(stops, len, 2);
        int match;

        assert_int_equal(stop_scan(&l, "zab", 3, &match), 1);
        assert_int_equal(stop_scan(&l, "zaba", 4, &match), 1);
        assert_int_equal(stop_scan(&l, "zabac", 5, &match), 5);
        assert_int_equal(stop_scan(&l, "zb", 2, &match), 1);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_any_split), cmocka_unit_test(test_none), cmocka_unit_test(test_holds_only_what_it_must),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
