/* SPDX-License-Identifier: Apache-2.0 */
/* Digests from Python's hashlib.blake2b(digest_size=32), in one piece and in many. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/blake2b.h"

static void test_known(void **state) {
        static const struct { size_t n; uint8_t digest[BLAKE2B_DIGEST]; } known[] = {
#include "tests/unit/blake2b_known.h"
        };
        uint8_t in[1024], got[BLAKE2B_DIGEST];

        for (size_t i = 0; i < sizeof(in); i++)
                in[i] = (uint8_t)(i * 7 + (i >> 3));
        for (size_t k = 0; k < ELEMENTSOF(known); k++)
                for (size_t piece = 1; piece < 300; piece += 37) {
                        struct blake2b s;
                        blake2b_init(&s);
                        for (size_t at = 0; at < known[k].n; at += piece)
                                blake2b_update(&s, in + at, MIN(piece, known[k].n - at));
                        blake2b_final(&s, got);
                        assert_memory_equal(got, known[k].digest, BLAKE2B_DIGEST);
                }
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_known) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
