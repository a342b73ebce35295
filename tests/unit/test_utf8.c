/* SPDX-License-Identifier: Apache-2.0 */
/* Against the definition: a sequence is valid if it is what some scalar value encodes to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/shown.h"
#include "base/utf8.h"

static size_t encode(uint32_t c, char *out) {
        if (c < 0x80) {
                out[0] = (char)c;
                return 1;
        }
        if (c < 0x800) {
                out[0] = (char)(0xc0 | c >> 6);
                out[1] = (char)(0x80 | (c & 63));
                return 2;
        }
        if (c < 0x10000) {
                out[0] = (char)(0xe0 | c >> 12);
                out[1] = (char)(0x80 | (c >> 6 & 63));
                out[2] = (char)(0x80 | (c & 63));
                return 3;
        }
        out[0] = (char)(0xf0 | c >> 18);
        out[1] = (char)(0x80 | (c >> 12 & 63));
        out[2] = (char)(0x80 | (c >> 6 & 63));
        out[3] = (char)(0x80 | (c & 63));
        return 4;
}

static bool scalar(uint32_t c) {
        return c <= 0x10ffff && !(c >= 0xd800 && c <= 0xdfff);
}

/* Every value of 21 bits, alone and behind text whose length moves it over the word-wise steps. */
static void test_every_value(void **state) {
        char b[32];

        for (uint32_t c = 0; c < 1u << 21; c++) {
                size_t lead = c % 11, n = encode(c, b + lead), at = 99;
                memset(b, 'x', lead);
                if (utf8_valid(b, lead + n, &at) != scalar(c))
                        fail_msg("U+%04X", c);
                if (!scalar(c))
                        assert_int_equal(at, lead);
                /* Cut short it is never valid. */
                if (n > 1)
                        assert_false(utf8_valid(b, lead + n - 1, NULL));
        }
}

/* Every pair of bytes, and every first three bytes of which the first is a lead byte: valid only if some value encodes to it. */
static void test_every_start(void **state) {
        static uint8_t known2[65536 / 8], known3[(1 << 24) / 8];
        char b[4];

        for (uint32_t c = 0x80; c < 0x10000; c++)
                if (scalar(c)) {
                        size_t n = encode(c, b);
                        uint32_t key = (uint32_t)(uint8_t)b[0] << 8 | (uint8_t)b[1];
                        if (n == 2)
                                known2[key / 8] |= (uint8_t)(1 << key % 8);
                        else {
                                key = key << 8 | (uint8_t)b[2];
                                known3[key / 8] |= (uint8_t)(1 << key % 8);
                        }
                }
        for (uint32_t k = 0x8000; k < 0x10000; k++) {
                b[0] = (char)(k >> 8);
                b[1] = (char)k;
                if (utf8_valid(b, 2, NULL) != !!(known2[k / 8] & 1 << k % 8))
                        fail_msg("%04x", k);
        }
        for (uint32_t k = 0xe00000; k < 0xf00000; k++) {
                b[0] = (char)(k >> 16);
                b[1] = (char)(k >> 8);
                b[2] = (char)k;
                if (utf8_valid(b, 3, NULL) != !!(known3[k / 8] & 1 << k % 8))
                        fail_msg("%06x", k);
        }
}

static void test_offsets(void **state) {
        static const struct { const char *text; size_t n; size_t at; } bad[] = {
                { "\xff", 1, 0 }, { "abcdefgh\x80", 9, 8 }, { "abcdefghijk\xc3", 12, 11 }, { "\xc3\xa9\xc0\xaf", 4, 2 },
                { "0123456\xf0\x9f\x98", 10, 7 }, { "\xf5\x80\x80\x80", 4, 0 } };

        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                size_t at = 1000;
                assert_false(utf8_valid(bad[i].text, bad[i].n, &at));
                assert_int_equal(at, bad[i].at);
        }
        assert_true(utf8_valid("", 0, NULL));
        assert_true(utf8_valid(NULL, 0, NULL));
}

/* ---- shown.h ---- */

/* Every code point by the rule of its kind; each survives a copy that is long enough, whatever is done to it. */
static void test_shown_kinds(void **state) {
        for (uint32_t c = 1; c <= 0x10ffff; c++) {
                bool control = c < 0x20 || (c >= 0x7f && c <= 0x9f);
                bool layout = c == 0x61c || c == 0x200e || c == 0x200f || (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0x2028 || c == 0x2029;
                char text[5] = "", copy[32], want[32] = "";
                size_t n = 0, len;

                if (c >= 0xd800 && c <= 0xdfff)
                        continue;
                if (c < 0x80)
                        text[n++] = (char)c;
                else {
                        unsigned more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;

                        text[n++] = (char)((0xff00 >> (more + 1) & 0xff) | c >> (6 * more));
                        while (more-- > 0)
                                text[n++] = (char)(0x80 | (c >> (6 * more) & 0x3f));
                }
                assert_int_equal(shown_next(text, n, &len), control ? SHOWN_CONTROL : layout ? SHOWN_LAYOUT : SHOWN_PLAIN);
                assert_int_equal(len, n);
                assert_int_equal(shown_plain(text, n), !control && !layout);
                shown_copy(text, n, SHOWN_LINE, copy, sizeof(copy));
                if (c == '\n' || c == '\t')
                        strcpy(want, c == '\n' ? "\\n" : "\\t");
                else
                        for (size_t i = 0; i < n; i++)
                                snprintf(want + strlen(want), sizeof(want) - strlen(want), control || layout ? "\\x%02x" : "%c",
                                         control || layout ? (unsigned char)text[i] : text[i]);
                assert_string_equal(copy, want);
        }
}

static void test_shown_bounds(void **state) {
        char out[64], *mem = NULL;
        size_t n, len;
        FILE *f;

        /* Broken: byte by byte, and what follows is whole again. */
        shown_copy("a\xff\xc3(\xe2\x80", 6, SHOWN_LINE, out, sizeof(out));
        assert_string_equal(out, "a\\xff\\xc3(\\xe2\\x80");
        assert_int_equal(shown_next("\xed\xa0\x80", 3, &len), SHOWN_BROKEN); /* a surrogate */
        assert_int_equal(len, 1);
        assert_int_equal(shown_next("\0", 1, &len), SHOWN_CONTROL);
        shown_copy("\0x", 2, SHOWN_LINE, out, sizeof(out));
        assert_string_equal(out, "\\x00x");
        /* No half escape, no half character. */
        shown_copy("ab\x1b", 3, SHOWN_LINE, out, 6);
        assert_string_equal(out, "ab");
        shown_copy("ab\xc3\xa9", 4, SHOWN_LINE, out, 4);
        assert_string_equal(out, "ab");
        shown_copy("", 0, SHOWN_LINE, out, 1);
        assert_string_equal(out, "");
        /* Lines keep what makes them lines; JSON its own escapes. */
        shown_copy("a\n\tb\r", 5, SHOWN_LINES, out, sizeof(out));
        assert_string_equal(out, "a\n\tb\\x0d");
        shown_copy("\"\\n\xe2\x80\xa8\x7f\"", 8, SHOWN_JSON, out, sizeof(out));
        assert_string_equal(out, "\"\\n\\u2028\\u007f\"");
        f = open_memstream(&mem, &n);
        assert_int_equal(shown_write(f, "ab\xc3\xa9", 4, 3, SHOWN_LINE), 2);
        assert_int_equal(shown_write(f, "ab\xc3\xa9", 4, 4, SHOWN_LINE), 4);
        fclose(f);
        assert_string_equal(mem, "abab\xc3\xa9");
        free(mem);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_every_value), cmocka_unit_test(test_every_start),
                                            cmocka_unit_test(test_offsets), cmocka_unit_test(test_shown_kinds), cmocka_unit_test(test_shown_bounds) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
