/* SPDX-License-Identifier: Apache-2.0 */
/* Names, sizes, conversions, and decoding against values from another implementation. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/quant/codes.h"
#include "kernels/types.h"

static uint32_t bits_of(float f) {
        uint32_t u;
        memcpy(&u, &f, 4);
        return u;
}

static void test_names(void **state) {
        enum k_type t;
        (void)state;
        for (unsigned i = 0; i < _K_TYPE_MAX; i++) {
                assert_true(k_type_parse(k_type_name((enum k_type)i), &t));
                assert_int_equal(t, i);
                assert_true(k_type_from_gguf(k_type_gguf((enum k_type)i), &t));
                assert_int_equal(t, i);
        }
        t = K_Q6_K;
        assert_true(k_type_parse("q4_k", &t) && t == K_Q4_K);
        assert_false(k_type_parse("Q4_2", &t));
        assert_false(k_type_parse("", &t));
        assert_false(k_type_from_gguf(4, &t));
        assert_false(k_type_from_gguf(UINT32_MAX, &t));
        assert_int_equal(t, K_Q4_K);
}

static void test_row_bytes(void **state) {
        size_t n = 7;
        (void)state;
        assert_true(k_type_row_bytes(K_Q4_0, 64, &n));
        assert_int_equal(n, 36);
        assert_true(k_type_row_bytes(K_F32, 3, &n));
        assert_int_equal(n, 12);
        assert_false(k_type_row_bytes(K_Q4_0, 33, &n));
        assert_false(k_type_row_bytes(K_F32, UINT64_MAX / 2, &n));
        assert_int_equal(n, 12);
}

/* Rounds by comparing with both neighbours: slow, and independent of the code under test. */
static uint16_t nearest_f16(float f) {
        uint16_t best = 0;
        double err = INFINITY;
        for (unsigned h = 0; h <= 0x7c00; h++) {
                double v = h == 0x7c00 ? 65536.0 : (double)k_f16_to_f32((uint16_t)h), e = fabs(v - fabs((double)f));
                if (e < err || (e == err && h % 2 == 0)) {
                        err = e;
                        best = (uint16_t)h;
                }
        }
        return best | (signbit(f) ? 0x8000 : 0);
}

static void test_f16(void **state) {
        static const float some[] = { 0, -0.0f, 1, 65504, 65519, 65520, 65535, -65536, 1e30f, 6.1e-5f, 5.96e-8f, 2.98e-8f,
                                      2.99e-8f, 1e-10f, 0.333333f, 1.00048828125f, 1.00146484375f, 2049, 2051, 6.1035e-5f };
        (void)state;
        for (unsigned h = 0; h < 0x10000; h++) {
                unsigned e = h >> 10 & 31, man = h & 0x3ff;
                float f = k_f16_to_f32((uint16_t)h);
                if (e == 31 && man) {
                        assert_true(isnan(f));
                        assert_true(isnan(k_f16_to_f32(k_f32_to_f16(f))));
                        continue;
                }
                double want = e == 31 ? INFINITY : e ? ldexp(1024.0 + man, (int)e - 25) : ldexp(man, -24);
                assert_true((double)fabsf(f) == want && !!signbit(f) == (h >> 15));
                assert_int_equal(k_f32_to_f16(f), h);
        }
        for (unsigned i = 0; i < ELEMENTSOF(some); i++)
                assert_int_equal(k_f32_to_f16(some[i]), nearest_f16(some[i]));
        assert_int_equal(k_f32_to_f16(INFINITY), 0x7c00);
}

static void test_bf16(void **state) {
        (void)state;
        assert_int_equal(k_f32_to_bf16(1.0f), 0x3f80);
        assert_int_equal(k_f32_to_bf16(1.00390625f), 0x3f80); /* tie to even */
        assert_int_equal(k_f32_to_bf16(1.01171875f), 0x3f82);
        assert_int_equal(k_f32_to_bf16(-INFINITY), 0xff80);
        assert_true(isnan(k_bf16_to_f32(k_f32_to_bf16(NAN))));
        for (unsigned h = 0; h < 0x10000; h++)
                if (!isnan(k_bf16_to_f32((uint16_t)h)))
                        assert_int_equal(k_f32_to_bf16(k_bf16_to_f32((uint16_t)h)), h);
}

static size_t slurp(const char *dir, const char *type, const char *suffix, void *buf, size_t max) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/%s%s", dir, type, suffix);
        FILE *f = fopen(path, "rbe");
        if (!f)
                return 0;
        size_t n = fread(buf, 1, max, f);
        fclose(f);
        return n;
}

static unsigned check_decode(const char *dir, const char *kind) {
        static uint8_t blocks[32768];
        static float want[8192], got[8192];
        unsigned checked = 0;
        char suffix[32];

        for (unsigned t = 0; t < _K_TYPE_MAX; t++) {
                const char *name = k_type_name((enum k_type)t);
                size_t row;

                snprintf(suffix, sizeof(suffix), "%s.bin", kind);
                size_t bytes = slurp(dir, name, suffix, blocks, sizeof(blocks));
                snprintf(suffix, sizeof(suffix), "%s.f32", kind);
                size_t n = slurp(dir, name, suffix, want, sizeof(want)) / 4;
                if (!bytes)
                        continue;
                assert_true(k_type_row_bytes((enum k_type)t, n, &row));
                assert_int_equal(row, bytes);
                memset(got, 0xa5, sizeof(got));
                k_decode((enum k_type)t, blocks, got, n);
                for (size_t i = 0; i < n; i++)
                        if (bits_of(got[i]) != bits_of(want[i]))
                                fail_msg("%s%s: weight %zu is %.9g, expected %.9g", name, kind, i, (double)got[i], (double)want[i]);
                for (size_t i = n; i < n + 16 && i < ELEMENTSOF(got); i++)
                        assert_int_equal(bits_of(got[i]), 0xa5a5a5a5);
                checked++;
        }
        return checked;
}

static void test_decode(void **state) {
        (void)state;
        assert_int_equal(check_decode(TEST_DATA "/quant", ".rand"), _K_TYPE_MAX - 2); /* all but F32 and I32 */
}

static void test_decode_shared(void **state) {
        char dir[4000];
        const char *shared = getenv("HEARTH_SHARED");
        (void)state;
        snprintf(dir, sizeof(dir), "%s/oracle/quant", shared ? shared : TEST_SHARED);
        if (access(dir, R_OK) < 0)
                skip(); /* the larger vectors are not part of the repository */
        assert_int_equal(check_decode(dir, ""), _K_TYPE_MAX - 2);
}

static void test_encode(void **state) {
        static const enum k_type types[] = { K_F32, K_F16, K_BF16, K_Q8_0, K_Q4_0 };
        static const float step[] = { 0, 1e-3f, 8e-3f, 1 / 127.0f, 1 / 8.0f }; /* of the largest magnitude */
        float x[64], y[64];
        uint8_t blocks[256];
        uint32_t seed = 1;

        (void)state;
        for (unsigned k = 0; k < ELEMENTSOF(types); k++)
                for (unsigned round = 0; round < 50; round++) {
                        float max = 0;
                        for (unsigned i = 0; i < 64; i++) {
                                seed = seed * 1664525 + 1013904223;
                                x[i] = round == 0 ? 0 : ldexpf((float)(int32_t)seed, -31 + (int)round % 7);
                        }
                        memset(blocks, 0xa5, sizeof(blocks));
                        assert_true(k_encode(types[k], x, blocks, 64));
                        k_decode(types[k], blocks, y, 64);
                        for (unsigned b = 0; b < 64; b += 32) {
                                max = 0;
                                for (unsigned i = b; i < b + 32; i++)
                                        max = fmaxf(max, fabsf(x[i]));
                                for (unsigned i = b; i < b + 32; i++)
                                        assert_true(fabsf(x[i] - y[i]) <= max * step[k] * 1.01f);
                        }
                        size_t row;
                        assert_true(k_type_row_bytes(types[k], 64, &row));
                        for (size_t i = row; i < row + 16 && i < sizeof(blocks); i++)
                                assert_int_equal(blocks[i], 0xa5);
                }
        assert_false(k_encode(K_Q4_K, x, blocks, 0));
        x[3] = NAN;
        assert_true(k_encode(K_Q8_0, x, blocks, 64)); /* no undefined conversion */
        assert_true(k_encode(K_Q4_0, x, blocks, 64));
}

/* center and bits bound what unsigned kernels see. */
static void test_code_bounds(void **state) {
        uint8_t block[256];
        struct k_codes c;
        uint32_t seed = 7;
        (void)state;
        for (unsigned t = 0; t < _K_TYPE_MAX; t++) {
                const struct k_codes_traits *tr = k_codes_traits((enum k_type)t);
                if (tr->kind == K_CODES_NONE)
                        continue;
                for (unsigned round = 0; round < 200; round++) {
                        for (unsigned i = 0; i < sizeof(block); i++) {
                                seed = seed * 1664525 + 1013904223;
                                block[i] = (uint8_t)(seed >> 24);
                        }
                        k_codes_get((enum k_type)t, block, &c);
                        for (unsigned i = 0; i < k_type_block((enum k_type)t); i++) {
                                int u = c.q[i] + tr->center;
                                assert_in_range(u, 0, (1 << tr->bits) - 1);
                        }
                }
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_names),       cmocka_unit_test(test_row_bytes), cmocka_unit_test(test_f16),
                cmocka_unit_test(test_bf16),        cmocka_unit_test(test_decode),    cmocka_unit_test(test_decode_shared),
                cmocka_unit_test(test_encode),      cmocka_unit_test(test_code_bounds),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
