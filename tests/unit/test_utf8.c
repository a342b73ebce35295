/* SPDX-License-Identifier: Apache-2.0 */
/* Against the definition: a sequence is valid if it is what some scalar value encodes to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

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

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_every_value), cmocka_unit_test(test_every_start),
                                            cmocka_unit_test(test_offsets) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
