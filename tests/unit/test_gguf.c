/* SPDX-License-Identifier: Apache-2.0 */
/* The GGUF parser: what it reads, and every rule whose breach it must name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "tests/unit/make_gguf.h"

/* Parses an exact-size copy, so that a sanitizer sees one byte too far. */
static int parse(const struct buf *b, struct gguf **g, void **copy, struct h_error *err) {
        memset(err, 0, sizeof(*err));
        *copy = malloc(b->len ? b->len : 1);
        memcpy(*copy, b->data, b->len);
        *g = NULL;
        return gguf_parse(*copy, b->len, b->len, g, err);
}

static void refused(struct buf *b, enum hearth_code code, const char *part) {
        struct h_error err;
        struct gguf *g;
        void *copy;
        int r = parse(b, &g, &copy, &err);

        if (r != -EHEARTH || err.code != code || !strstr(err.message, part))
                print_error("r %d, code %s, message \"%s\"; expected %s with \"%s\"\n", r, hearth_code_name(err.code),
                            err.message, hearth_code_name(code), part);
        assert_int_equal(r, -EHEARTH);
        assert_int_equal(err.code, code);
        assert_non_null(strstr(err.message, part));
        assert_null(g);
        free(copy);
        buf_free(b);
}

static const uint64_t dim_32[1] = { 32 }, dim_64x2[2] = { 64, 2 };

/* A file with all kinds of values and two tensors. */
static void good(struct buf *b, uint32_t version) {
        static const float floats[3] = { 1, -2.5f, 3e10f };
        static const int32_t ints[4] = { 3, 0, -1, 7 };
        static const uint8_t bools[2] = { 1, 0 };
        const double d = 0.25;
        const int64_t neg = -5;
        const uint8_t yes = 1;
        struct buf strings = { 0 };

        put_header(b, version, 2, 12);
        kv_str(b, "general.architecture", "test");
        kv_u32(b, "test.block_count", 2);
        kv_raw(b, "test.f64", GGUF_F64, &d, 8);
        kv_raw(b, "test.neg", GGUF_I64, &neg, 8);
        kv_raw(b, "test.yes", GGUF_BOOL, &yes, 1);
        kv_array(b, "test.floats", GGUF_F32, 3, floats, sizeof(floats));
        kv_array(b, "test.ints", GGUF_I32, 4, ints, sizeof(ints));
        kv_array(b, "test.bools", GGUF_BOOL, 2, bools, sizeof(bools));
        kv_array(b, "test.heads", GGUF_U32, 2, "\x04\0\0\0\x08\0\0\0", 8);
        put_str(&strings, "one");
        put_str(&strings, "");
        put_str(&strings, "zw\xc3\xb6lf");
        kv_array(b, "test.strings", GGUF_STRING, 3, strings.data, strings.len);
        kv_u32(b, "general.alignment", 64);
        kv_raw(b, "test.u8", GGUF_U8, &yes, 1);
        tensor_info(b, "a.weight", 1, dim_32, 0, 0);
        tensor_info(b, "b.weight", 2, dim_64x2, 2, 128);
        pad(b, 64);
        for (int i = 0; i < 128 + 4 * 18; i++) /* to the last tensor's last byte */
                put(b, &yes, 1);
        buf_free(&strings);
}

static void test_reads(void **state) {
        for (uint32_t version = 2; version <= 3; version++) {
                struct buf b = { 0 };
                struct h_error err;
                struct gguf *g;
                struct gguf_str s;
                uint32_t u, per[2];
                int32_t i32[4];
                float f, fs[3];
                bool y, ys[2];
                void *copy;

                good(&b, version);
                assert_int_equal(parse(&b, &g, &copy, &err), 0);
                assert_int_equal(g->version, version);
                assert_int_equal(g->n_kv, 12);
                assert_int_equal(g->n_tensors, 2);
                assert_int_equal(g->alignment, 64);
                assert_int_equal(g->data_offset % 64, 0);
                assert_int_equal(gguf_string(g, "general.architecture", &s, &err), 0);
                assert_memory_equal(s.p, "test", 4);
                assert_int_equal(gguf_u32_req(g, "%s.block_count", &u, &err), 0);
                assert_int_equal(u, 2);
                assert_int_equal(gguf_u32(g, "%s.u8", 9, &u, &err), 0);
                assert_int_equal(u, 1);
                assert_int_equal(gguf_u32(g, "%s.absent", 9, &u, &err), 0);
                assert_int_equal(u, 9);
                assert_int_equal(gguf_f32(g, "test.f64", 0, &f, &err), 0);
                assert_true(f == 0.25f);
                assert_int_equal(gguf_f32(g, "test.neg", 0, &f, &err), 0);
                assert_true(f == -5.0f);
                assert_int_equal(gguf_bool(g, "test.yes", false, &y, &err), 0);
                assert_true(y);
                assert_int_equal(gguf_f32_array(g, "test.floats", 3, fs, &u, &err), 0);
                assert_int_equal(u, 3);
                assert_true(fs[1] == -2.5f);
                assert_int_equal(gguf_i32_array(g, "test.ints", 4, i32, &u, &err), 0);
                assert_int_equal(i32[2], -1);
                assert_int_equal(gguf_u32_per_layer(g, "test.heads", 2, per, &err), 1);
                assert_int_equal(per[1], 8);
                assert_int_equal(gguf_u32_per_layer(g, "test.block_count", 2, per, &err), 1);
                assert_int_equal(per[1], 2);
                assert_int_equal(gguf_u32_per_layer(g, "test.absent", 2, per, &err), 0);
                assert_int_equal(gguf_bool_per_layer(g, "test.bools", 2, ys, &err), 1);
                assert_true(ys[0] && !ys[1]);
                assert_int_equal(gguf_find(g, "test.strings")->n, 3);
                assert_int_equal(gguf_find(g, "test.strings")->strings[2].n, 6);
                assert_int_equal(gguf_find_tensor(g, "b.weight")->bytes, 4 * 18);
                assert_int_equal(gguf_find_tensor(g, "b.weight")->offset, g->data_offset + 128);
                assert_int_equal(gguf_find_tensor(g, "a.weight")->dim[3], 1);
                assert_null(gguf_find_tensor(g, "c.weight"));
                gguf_free(g);
                free(copy);
                buf_free(&b);
        }
}

/* Wrong types and ranges name the key. */
static void test_typed_reads(void **state) {
        struct buf b = { 0 };
        struct h_error err;
        struct gguf *g;
        uint32_t u = 77, per[3];
        float fs[2];
        bool y;
        void *copy;

        good(&b, 3);
        assert_int_equal(parse(&b, &g, &copy, &err), 0);
#define NAMES(call, text) \
        do { \
                memset(&err, 0, sizeof(err)); \
                assert_int_equal(call, -EHEARTH); \
                assert_int_equal(err.code, HEARTH_E_model_invalid); \
                assert_non_null(strstr(err.message, text)); \
        } while (0)
        NAMES(gguf_u32(g, "general.architecture", 0, &u, &err), "general.architecture");
        NAMES(gguf_u32(g, "%s.neg", 0, &u, &err), "test.neg");
        NAMES(gguf_u32(g, "test.floats", 0, &u, &err), "array of f32");
        NAMES(gguf_u32_req(g, "%s.absent", &u, &err), "test.absent is missing");
        NAMES(gguf_bool(g, "test.u8", false, &y, &err), "a bool expected, found u8");
        NAMES(gguf_f32_array(g, "test.floats", 2, fs, &u, &err), "at most 2");
        NAMES(gguf_u32_per_layer(g, "test.heads", 3, per, &err), "3 values expected, found 2");
        assert_int_equal(u, 77);
#undef NAMES
        gguf_free(g);
        free(copy);
        buf_free(&b);
}

/* Every shorter beginning asks for more or says truncated, and never reads past it. */
static void test_prefixes(void **state) {
        struct buf b = { 0 };

        good(&b, 3);
        for (size_t n = 0; n < b.len; n++) {
                struct h_error err = { 0 };
                struct gguf *g = NULL;
                void *copy = malloc(n ? n : 1);
                int r;

                memcpy(copy, b.data, n);
                r = gguf_parse(copy, n, b.len, &g, &err);
                assert_true(r == -EAGAIN || r == 0);
                assert_int_equal(err.code, HEARTH_OK);
                gguf_free(g);
                r = gguf_parse(copy, n, n, &g, &err);
                assert_int_equal(r, -EHEARTH);
                assert_int_equal(err.code, HEARTH_E_model_truncated);
                free(copy);
        }
        buf_free(&b);
}

static void test_headers(void **state) {
        struct buf b = { 0 };

        put(&b, "GGML....................", 24);
        refused(&b, HEARTH_E_model_invalid, "offset 0: not a GGUF file");
        put_header(&b, 1, 0, 0);
        refused(&b, HEARTH_E_model_invalid, "version 1");
        put_header(&b, 4, 0, 0);
        refused(&b, HEARTH_E_model_invalid, "version 4");
        put_header(&b, 0x03000000, 0, 0);
        refused(&b, HEARTH_E_model_invalid, "big-endian");
        put_header(&b, 3, UINT64_MAX, 0);
        refused(&b, HEARTH_E_model_invalid, "18446744073709551615 tensors");
        put_header(&b, 3, 0, 1u << 20);
        refused(&b, HEARTH_E_model_invalid, "1048576 keys");
}

static void test_values(void **state) {
        struct buf b = { 0 };

        put_header(&b, 3, 0, 1);
        put_u64(&b, UINT64_MAX); /* the key's length */
        put(&b, "xxxxxxxx", 8);
        refused(&b, HEARTH_E_model_invalid, "a key has 18446744073709551615 bytes");
        put_header(&b, 3, 0, 1);
        put_str(&b, "k");
        put_u32(&b, 13);
        put_u32(&b, 0);
        refused(&b, HEARTH_E_model_invalid, "key k: value type 13");
        put_header(&b, 3, 0, 1);
        kv_raw(&b, "k", GGUF_BOOL, "\x02\0", 2);
        refused(&b, HEARTH_E_model_invalid, "bool with value 2");
        put_header(&b, 3, 0, 1);
        kv_array(&b, "k", GGUF_ARRAY, 1, "xxxxxxxxxxxx", 12);
        refused(&b, HEARTH_E_model_invalid, "arrays of arrays");
        put_header(&b, 3, 0, 1);
        kv_array(&b, "k", GGUF_STRING, UINT64_MAX / 8 + 2, "xxxxxxxx", 8); /* times 8 wraps to a small number */
        refused(&b, HEARTH_E_model_truncated, "the file has room for 1");
        put_header(&b, 3, 0, 1);
        kv_array(&b, "k", GGUF_U64, (uint64_t)1 << 40, "xxxxxxxx", 8);
        refused(&b, HEARTH_E_model_truncated, "key k");
        put_header(&b, 3, 0, 2);
        kv_u32(&b, "twice", 1);
        kv_u32(&b, "twice", 2);
        refused(&b, HEARTH_E_model_invalid, "key twice appears twice");
        put_header(&b, 3, 0, 1);
        kv_u32(&b, "general.alignment", 48);
        refused(&b, HEARTH_E_model_invalid, "general.alignment is 48");
        put_header(&b, 3, 0, 1);
        kv_str(&b, "general.alignment", "64");
        refused(&b, HEARTH_E_model_invalid, "general.alignment");
}

static void tensors(struct buf *b, uint64_t n) {
        put_header(b, 3, n, 0);
}

static void data(struct buf *b, size_t n) {
        pad(b, 32);
        for (size_t i = 0; i < n; i++)
                buf_putc(b, 'x');
}

static void test_tensors(void **state) {
        static const uint64_t zero[1] = { 0 }, odd[1] = { 33 }, five[5] = { 1, 1, 1, 1, 1 };
        static const uint64_t huge[4] = { 1u << 31, 1u << 31, 1u << 31, 2 };
        struct buf b = { 0 };

        tensors(&b, 1);
        tensor_info(&b, "t", 1, zero, 0, 0);
        data(&b, 128);
        refused(&b, HEARTH_E_model_invalid, "dimension 0 is 0");
        tensors(&b, 1);
        tensor_info(&b, "t", 5, five, 0, 0);
        data(&b, 128);
        refused(&b, HEARTH_E_model_invalid, "5 dimensions");
        tensors(&b, 1);
        tensor_info(&b, "t", 1, odd, 2, 0);
        data(&b, 128);
        refused(&b, HEARTH_E_model_invalid, "no multiple of Q4_0's block of 32");
        tensors(&b, 1);
        tensor_info(&b, "t", 1, dim_32, 4, 0);
        data(&b, 128);
        refused(&b, HEARTH_E_unknown_type, "tensor t has type 4");
        tensors(&b, 1);
        tensor_info(&b, "t", 4, huge, 0, 0);
        data(&b, 128);
        refused(&b, HEARTH_E_model_invalid, "overflows");
        tensors(&b, 1);
        tensor_info(&b, "t", 1, dim_32, 0, 16);
        data(&b, 160);
        refused(&b, HEARTH_E_model_invalid, "offset 16 is no multiple");
        tensors(&b, 1);
        tensor_info(&b, "t", 1, dim_32, 0, UINT64_MAX - 31);
        data(&b, 128);
        refused(&b, HEARTH_E_model_invalid, "overflows");
        tensors(&b, 1);
        tensor_info(&b, "t", 1, dim_32, 0, 32);
        data(&b, 128);
        refused(&b, HEARTH_E_model_truncated, "tensor t ends at offset");
        tensors(&b, 2);
        tensor_info(&b, "t", 1, dim_32, 0, 0);
        tensor_info(&b, "t", 1, dim_32, 0, 128);
        data(&b, 256);
        refused(&b, HEARTH_E_model_invalid, "tensor t appears twice");
        tensors(&b, 2);
        tensor_info(&b, "t", 1, dim_32, 0, 0);
        tensor_info(&b, "u", 1, dim_32, 0, 96);
        data(&b, 256);
        refused(&b, HEARTH_E_model_invalid, "tensors t and u overlap");
        tensors(&b, 1);
        tensor_info(&b, "", 1, dim_32, 0, 0);
        data(&b, 128);
        refused(&b, HEARTH_E_model_invalid, "name");
}

/* Any allocation may fail: an error, nothing leaked (the sanitizer tells), nothing returned. */
static void test_no_memory(void **state) {
        struct buf b = { 0 };

        good(&b, 3);
        for (uint64_t nth = 1;; nth++) {
                struct h_error err = { 0 };
                struct gguf *g = NULL;
                int r;

                fault_arm(FAULT_ALLOC, nth);
                r = gguf_parse(b.data, b.len, b.len, &g, &err);
                fault_arm(FAULT_ALLOC, 0);
                if (r == 0) {
                        gguf_free(g);
                        assert_true(nth > 5);
                        break;
                }
                assert_int_equal(r, -EHEARTH);
                assert_int_equal(err.code, HEARTH_E_no_memory);
                assert_null(g);
        }
        buf_free(&b);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_reads), cmocka_unit_test(test_typed_reads), cmocka_unit_test(test_prefixes),
                cmocka_unit_test(test_headers), cmocka_unit_test(test_values), cmocka_unit_test(test_tensors),
                cmocka_unit_test(test_no_memory),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
