/* SPDX-License-Identifier: Apache-2.0 */
/* Encoder and checking decoder, over every row of both tables and over hand-made hostile frames. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <msgpack.h>

#include "base/alloc.h"
#include "ipc/scan.h"
#include "ipc/wire.h"
#include "ipc/worker.h"
#include "ipc/sample.h"

static int write_buf(void *data, const char *p, size_t n) {
        return buf_append(data, p, n);
}

/* A message under construction by hand. */
struct raw {
        struct buf b;
        msgpack_packer pk;
};

static void raw_begin(struct raw *m, unsigned kind, const char *method, unsigned n_fields) {
        m->b = (struct buf){};
        msgpack_packer_init(&m->pk, &m->b, write_buf);
        msgpack_pack_array(&m->pk, 4);
        msgpack_pack_uint8(&m->pk, (uint8_t)kind);
        msgpack_pack_uint32(&m->pk, 7);
        msgpack_pack_str(&m->pk, strlen(method));
        msgpack_pack_str_body(&m->pk, method, strlen(method));
        msgpack_pack_map(&m->pk, n_fields);
}

static void raw_str(struct raw *m, const char *s) {
        msgpack_pack_str(&m->pk, strlen(s));
        msgpack_pack_str_body(&m->pk, s, strlen(s));
}

/* Decodes and frees the message; returns the code refused with, HEARTH_OK if it was taken. */
static enum hearth_code raw_end(struct raw *m, struct h_error *err, struct schema_msg *ret) {
        struct schema_head head;
        struct schema_msg msg = {};
        int r;

        *err = (struct h_error){};
        r = schema_decode(&wire_schema, m->b.data, m->b.len, &msg, &head, err);
        buf_free(&m->b);
        if (r < 0) {
                assert_int_equal(r, -EHEARTH);
                assert_null(msg.body);
                assert_int_not_equal(err->code, HEARTH_OK);
                return err->code;
        }
        assert_int_equal(head.id, 7);
        if (ret)
                *ret = msg;
        else
                schema_msg_free(&msg);
        return HEARTH_OK;
}

static void expect(struct raw *m, enum hearth_code code, const char *fragment) {
        struct h_error err;
        enum hearth_code got = raw_end(m, &err, NULL);

        if (got != code || (fragment && !strstr(err.message, fragment)))
                fail_msg("expected %s with '%s', got %s: %s", hearth_code_name(code), fragment, hearth_code_name(got), err.message);
}

/* Every message of a table, with few and with all fields: encode, decode, encode again, the same bytes. */
static void round_trip(const struct schema *s) {
        for (int type = 0; type < (int)s->n_descs; type++)
                for (int full = 0; full < 2; full++) {
                        struct schema_arena *arena = NULL;
                        struct buf a = {}, b = {};
                        struct schema_msg m = {};
                        struct h_error err = {};
                        void *body;

                        if (s->descs[type].kind == KIND_ITEM)
                                continue;
                        body = schema_sample(s, type, full, &arena);
                        if (schema_encode(s, type, 42, body, &a, &err) < 0 ||
                            schema_decode(s, a.data + 4, a.len - 4, &m, NULL, &err) < 0)
                                fail_msg("%s: %s", s->descs[type].ident, err.message);
                        assert_int_equal(m.type, type);
                        assert_int_equal(m.id, 42);
                        assert_int_equal(schema_encode(s, type, 42, m.body, &b, &err), 0);
                        assert_int_equal(a.len, b.len);
                        assert_memory_equal(a.data, b.data, a.len);
                        schema_msg_free(&m);
                        schema_sample_free(arena);
                        buf_free(&a);
                        buf_free(&b);
                }
}

static void test_round_trip(void **state) {
        round_trip(&wire_schema);
        round_trip(&wk_schema);
}

/* The tables themselves: bounds that their C types can hold, unique names, room for "must". */
static void check_table(const struct schema *s) {
        for (uint32_t i = 0; i < s->n_descs; i++) {
                const struct schema_desc *d = &s->descs[i];
                for (uint32_t k = 0; k < i; k++)
                        assert_false(s->descs[k].kind == d->kind && strcmp(s->descs[k].name, d->name) == 0);
                for (uint32_t k = 0; k < d->n_fields; k++) {
                        const struct schema_field *f = &d->fields[k];
                        assert_string_not_equal(f->name, "must");
                        for (uint32_t j = 0; j < k; j++)
                                assert_string_not_equal(f->name, d->fields[j].name);
                        if (f->type == TYPE_u32)
                                assert_true(f->max.u <= UINT32_MAX);
                        if (f->type == TYPE_f64)
                                assert_true(f->min.d <= f->max.d && f->def.d >= f->min.d && f->def.d <= f->max.d);
                        else if (f->type == TYPE_i64)
                                assert_true(f->min.i <= f->max.i);
                        else
                                assert_true(f->min.u <= f->max.u);
                        if (f->type == TYPE_strs || f->type == TYPE_list)
                                assert_true(f->max.u < s->max_elements);
                        if (f->type == TYPE_list)
                                assert_int_equal(s->descs[f->sub].kind, KIND_ITEM);
                }
        }
}

static void test_tables(void **state) {
        check_table(&wire_schema);
        check_table(&wk_schema);
}

static void test_defaults(void **state) {
        struct schema_msg msg = {};
        struct wire_generate *g;
        struct h_error err;
        struct raw m;

        raw_begin(&m, KIND_REQUEST, "generate", 2);
        raw_str(&m, "temperature");
        msgpack_pack_uint8(&m.pk, 2); /* an integer where a double is expected */
        raw_str(&m, "prompt");
        raw_str(&m, "hi");
        assert_int_equal(raw_end(&m, &err, &msg), HEARTH_OK);
        g = msg.body;
        assert_true(g->temperature == 2.0 && g->has_temperature);
        assert_true(g->top_p == 0.95 && !g->has_top_p);
        assert_int_equal(g->top_k, 40);
        assert_string_equal(g->prompt, "hi");
        assert_int_equal(g->n_prompt, 2);
        assert_null(g->model);
        schema_msg_free(&msg);
        schema_msg_free(&msg);
}

static void test_refusals(void **state) {
        struct raw m;

        raw_begin(&m, KIND_REQUEST, "hello", 0);
        expect(&m, HEARTH_E_bad_request, "hello.version is missing");

        raw_begin(&m, KIND_REQUEST, "hello", 2);
        raw_str(&m, "version");
        msgpack_pack_uint8(&m.pk, 1);
        raw_str(&m, "version");
        msgpack_pack_uint8(&m.pk, 1);
        expect(&m, HEARTH_E_bad_request, "hello.version is there twice");

        raw_begin(&m, KIND_REQUEST, "hello", 1);
        raw_str(&m, "version");
        raw_str(&m, "1");
        expect(&m, HEARTH_E_bad_request, "hello.version must be u32, not a str");

        raw_begin(&m, KIND_REQUEST, "hello", 1);
        raw_str(&m, "version");
        msgpack_pack_double(&m.pk, 1.0);
        expect(&m, HEARTH_E_bad_request, "must be u32, not a float");

        raw_begin(&m, KIND_REQUEST, "hello", 1);
        raw_str(&m, "version");
        msgpack_pack_int8(&m.pk, -1);
        expect(&m, HEARTH_E_bad_request, "hello.version is -1");

        raw_begin(&m, KIND_REQUEST, "hello", 1);
        raw_str(&m, "version");
        msgpack_pack_uint64(&m.pk, (uint64_t)UINT32_MAX + 1);
        expect(&m, HEARTH_E_bad_request, "hello.version is 4294967296");

        raw_begin(&m, KIND_REQUEST, "generate", 1);
        raw_str(&m, "temperature");
        msgpack_pack_double(&m.pk, NAN);
        expect(&m, HEARTH_E_bad_request, "generate.temperature is not a finite number");

        raw_begin(&m, KIND_REQUEST, "generate", 1);
        raw_str(&m, "top_p");
        msgpack_pack_float(&m.pk, 1.5f);
        expect(&m, HEARTH_E_bad_request, "generate.top_p is 1.5, but must be 0 to 1");

        raw_begin(&m, KIND_REQUEST, "generate", 1);
        raw_str(&m, "prompt");
        raw_str(&m, "caf\xc3(");
        expect(&m, HEARTH_E_bad_utf8, "generate.prompt is not valid UTF-8: byte 0xc3 at offset 3");

        raw_begin(&m, KIND_REQUEST, "generate", 1);
        raw_str(&m, "prompt");
        raw_str(&m, "\xed\xa0\x80"); /* a surrogate */
        expect(&m, HEARTH_E_bad_utf8, "offset 0");

        raw_begin(&m, KIND_REQUEST, "generate", 1);
        raw_str(&m, "model");
        msgpack_pack_str(&m.pk, 3);
        msgpack_pack_str_body(&m.pk, "a\0b", 3);
        expect(&m, HEARTH_E_bad_request, "generate.model contains a NUL byte");

        raw_begin(&m, KIND_REQUEST, "generate", 1);
        raw_str(&m, "stop");
        msgpack_pack_array(&m.pk, 2);
        raw_str(&m, "a");
        msgpack_pack_nil(&m.pk);
        expect(&m, HEARTH_E_bad_request, "generate.stop[1] must be str, not nil");

        raw_begin(&m, KIND_REQUEST, "generate", 1);
        raw_str(&m, "stop");
        msgpack_pack_array(&m.pk, 65);
        for (int i = 0; i < 65; i++)
                raw_str(&m, "x");
        expect(&m, HEARTH_E_bad_request, "generate.stop has 65 entries, but must have 0 to 64");

        raw_begin(&m, KIND_REPLY, "models", 1);
        raw_str(&m, "models");
        msgpack_pack_array(&m.pk, 1);
        msgpack_pack_map(&m.pk, 1);
        raw_str(&m, "name");
        raw_str(&m, "x");
        expect(&m, HEARTH_E_bad_request, "models.models[0].where is missing");

        raw_begin(&m, KIND_REQUEST, "generat", 0);
        expect(&m, HEARTH_E_unknown_method, "no request is called 'generat'; known: hello, ping, generate");

        /* An event is no request. */
        raw_begin(&m, KIND_REQUEST, "tokens", 0);
        expect(&m, HEARTH_E_unknown_method, "'tokens'");

        raw_begin(&m, 9, "ping", 0);
        expect(&m, HEARTH_E_protocol, "[kind 0..4");
}

static void test_unknown_keys(void **state) {
        struct h_error err;
        struct raw m;

        raw_begin(&m, KIND_REQUEST, "ping", 2);
        raw_str(&m, "colour");
        msgpack_pack_map(&m.pk, 1);
        raw_str(&m, "any");
        msgpack_pack_nil(&m.pk);
        raw_str(&m, "must");
        msgpack_pack_array(&m.pk, 0);
        assert_int_equal(raw_end(&m, &err, NULL), HEARTH_OK);

        raw_begin(&m, KIND_REQUEST, "ping", 2);
        raw_str(&m, "colour");
        msgpack_pack_nil(&m.pk);
        raw_str(&m, "must");
        msgpack_pack_array(&m.pk, 1);
        raw_str(&m, "colour");
        expect(&m, HEARTH_E_bad_request, "ping.colour is not known to this version");

        raw_begin(&m, KIND_REQUEST, "hello", 2);
        raw_str(&m, "version");
        msgpack_pack_uint8(&m.pk, 1);
        raw_str(&m, "must");
        msgpack_pack_array(&m.pk, 1);
        raw_str(&m, "version");
        assert_int_equal(raw_end(&m, &err, NULL), HEARTH_OK);

        raw_begin(&m, KIND_REQUEST, "ping", 1);
        raw_str(&m, "must");
        raw_str(&m, "version");
        expect(&m, HEARTH_E_bad_request, "ping.must must be a list of str");
}

static void scan(const char *bytes, size_t n, enum hearth_code code) {
        struct h_error err = {};
        int r = msgpack_scan(bytes, n, 16, 1000, &err);

        if (code == HEARTH_OK)
                assert_int_equal(r, 0);
        else if (r != -EHEARTH || err.code != code)
                fail_msg("expected %s, got %d %s", hearth_code_name(code), r, err.message);
}
#define SCAN(bytes, code) scan(bytes, sizeof(bytes) - 1, code)

static void test_scan(void **state) {
        char nested[4096], many[3 + 2000];

        SCAN("", HEARTH_E_protocol);
        SCAN("\xc0", HEARTH_OK);
        SCAN("\xc0\xc0", HEARTH_E_protocol);
        SCAN("\xdd\xff\xff\xff\xff", HEARTH_E_protocol); /* 64 GiB in msgpack-c 4.0.0 */
        SCAN("\xdf\xff\xff\xff\xff", HEARTH_E_protocol);
        SCAN("\xdf\x80\x00\x00\x01\xa1x\xc0", HEARTH_E_protocol); /* 2 * count wraps in 32 bits */
        SCAN("\xdb\xff\xff\xff\xff""abc", HEARTH_E_protocol);
        SCAN("\xc6\x00\x00\x00\x04""abc", HEARTH_E_protocol);
        SCAN("\xda\x00", HEARTH_E_protocol);
        SCAN("\xcb\x00\x00", HEARTH_E_protocol);
        SCAN("\xc1", HEARTH_E_protocol);
        SCAN("\xc7\x00\x01", HEARTH_E_protocol); /* ext */
        SCAN("\xd4\x01\x01", HEARTH_E_protocol);
        SCAN("\x81\x01\x02", HEARTH_E_protocol); /* key that is no string */
        SCAN("\x81\xa1x\x02", HEARTH_OK);
        SCAN("\x82\xa1x\x90\xa1y\x80", HEARTH_OK);
        SCAN("\x92\x81\xa1x\x91\x01\xca\x00\x00\x00\x00", HEARTH_OK);
        memset(nested, 0x91, sizeof(nested));
        nested[sizeof(nested) - 1] = (char)0xc0;
        scan(nested, sizeof(nested), HEARTH_E_too_large);
        scan(nested + sizeof(nested) - 17, 17, HEARTH_OK);
        scan(nested + sizeof(nested) - 18, 18, HEARTH_E_too_large);
        memset(many, 0xc0, sizeof(many));
        memcpy(many, "\xdc\x07\xd0", 3);
        scan(many, sizeof(many), HEARTH_E_too_large);
}

/* What we send is held to the same bounds. */
static void test_encode_refuses(void **state) {
        struct wire_generate g;
        struct h_error err = {};
        struct buf b = {};

        wire_init_generate(&g);
        g.temperature = -1;
        assert_int_equal(wire_encode_generate(&b, 1, &g, &err), -EHEARTH);
        assert_string_equal(err.message, "generate.temperature is -1, but must be 0 to 100");
        assert_int_equal(b.len, 0);
        wire_init_generate(&g);
        err = (struct h_error){};
        g.prompt = "a\xff";
        assert_int_equal(wire_encode_generate(&b, 1, &g, &err), -EHEARTH);
        assert_int_equal(err.code, HEARTH_E_bad_utf8);
        buf_free(&b);
}

static void test_no_memory(void **state) {
        struct schema_arena *arena = NULL;
        struct buf a = {};
        struct h_error err = {};
        void *body = schema_sample(&wire_schema, WIRE_models_reply, true, &arena);

        assert_int_equal(schema_encode(&wire_schema, WIRE_models_reply, 1, body, &a, &err), 0);
        for (uint64_t nth = 1;; nth++) {
                struct schema_msg m = {};
                int r;
                err = (struct h_error){};
                fault_arm(FAULT_ALLOC, nth);
                r = schema_decode(&wire_schema, a.data + 4, a.len - 4, &m, NULL, &err);
                fault_arm(FAULT_ALLOC, 0);
                schema_msg_free(&m);
                if (r == 0)
                        break;
                assert_int_equal(err.code, HEARTH_E_no_memory);
                assert_true(nth < 1000);
        }
        schema_sample_free(arena);
        buf_free(&a);
}

static void test_failure(void **state) {
        struct h_error e = {}, back = {};
        struct schema_msg m = {};
        struct buf b = {};

        assert_int_equal(wire_check_version(WIRE_VERSION, "the client", &e), 0);
        assert_int_equal(wire_check_version(WIRE_VERSION + 1, "the client", &e), -EHEARTH);
        assert_int_equal(e.code, HEARTH_E_version);
        assert_non_null(strstr(e.message, "version 2, this side speaks 1"));
        assert_int_equal(wire_encode_failure(&b, 3, &e), 0);
        assert_int_equal(schema_decode(&wire_schema, b.data + 4, b.len - 4, &m, NULL, &back), 0);
        assert_int_equal(m.kind, KIND_ERROR);
        wire_failure_to_error(m.body, &back);
        assert_int_equal(back.code, HEARTH_E_version);
        assert_string_equal(back.message, e.message);
        assert_int_equal(back.available, WIRE_VERSION + 1);
        schema_msg_free(&m);
        buf_free(&b);

        /* A message cut within a character is still sent. */
        e = (struct h_error){ .code = HEARTH_E_io };
        memset(e.message, 'x', sizeof(e.message) - 2);
        e.message[sizeof(e.message) - 2] = (char)0xc3;
        assert_int_equal(wire_encode_failure(&b, 3, &e), 0);
        buf_free(&b);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_round_trip), cmocka_unit_test(test_tables), cmocka_unit_test(test_defaults),
                cmocka_unit_test(test_refusals), cmocka_unit_test(test_unknown_keys), cmocka_unit_test(test_scan),
                cmocka_unit_test(test_encode_refuses), cmocka_unit_test(test_no_memory), cmocka_unit_test(test_failure),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
