/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Typed reads of a parsed GGUF's keys. Integers of any width are taken where the
 * value fits; anything else is an error that names the key, what was expected
 * and what was found.
 */
#include <string.h>

#include "engine/gguf_int.h"

static int wrong_type(const struct gguf *g, const char *key, const struct gguf_kv *kv, const char *expected,
                      struct h_error *err) {
        char buf[512];
        return h_error_set(err, HEARTH_E_model_invalid, "key %s: %s expected, found %s%s",
                           gguf_shown_key(g, key, buf), expected, kv->type == GGUF_ARRAY ? "array of " : "",
                           gguf_type_names[kv->type == GGUF_ARRAY ? kv->elem : kv->type]);
}

static bool is_int(enum gguf_type t) {
        return t == GGUF_U8 || t == GGUF_I8 || t == GGUF_U16 || t == GGUF_I16 || t == GGUF_U32 || t == GGUF_I32 ||
               t == GGUF_U64 || t == GGUF_I64;
}

/* Element i as a signed integer; false for u64 above INT64_MAX. */
static bool int_at(enum gguf_type t, const uint8_t *data, uint64_t i, int64_t *ret) {
        unsigned w = gguf_type_bytes[t];
        uint64_t v = gguf_le(data + i * w, w);

        switch (t) {
        case GGUF_I8: *ret = (int8_t)v; return true;
        case GGUF_I16: *ret = (int16_t)v; return true;
        case GGUF_I32: *ret = (int32_t)v; return true;
        default: *ret = (int64_t)v; return t == GGUF_I64 || v <= INT64_MAX;
        }
}

static int u32_at(const struct gguf *g, const char *key, const struct gguf_kv *kv, enum gguf_type type, uint64_t i,
                  uint32_t *ret, struct h_error *err) {
        char buf[512];
        int64_t v;

        if (!is_int(type))
                return wrong_type(g, key, kv, "an integer", err);
        if (!int_at(type, kv->data, i, &v) || v < 0 || v > UINT32_MAX)
                return h_error_set(err, HEARTH_E_model_invalid, "key %s: value %lld is outside 0..2^32-1",
                                   gguf_shown_key(g, key, buf), (long long)v);
        *ret = (uint32_t)v;
        return 0;
}

static int missing(const struct gguf *g, const char *key, struct h_error *err) {
        char buf[512];
        return h_error_set(err, HEARTH_E_model_invalid, "key %s is missing", gguf_shown_key(g, key, buf));
}

int gguf_u32(const struct gguf *g, const char *key, uint32_t def, uint32_t *ret, struct h_error *err) {
        const struct gguf_kv *kv = gguf_find(g, key);
        if (!kv) {
                *ret = def;
                return 0;
        }
        if (kv->type == GGUF_ARRAY)
                return wrong_type(g, key, kv, "an integer", err);
        return u32_at(g, key, kv, kv->type, 0, ret, err);
}

int gguf_u32_req(const struct gguf *g, const char *key, uint32_t *ret, struct h_error *err) {
        if (!gguf_find(g, key))
                return missing(g, key, err);
        return gguf_u32(g, key, 0, ret, err);
}

static float f32_at(enum gguf_type type, const uint8_t *data, uint64_t i) {
        if (type == GGUF_F64) {
                uint64_t u = gguf_le(data + 8 * i, 8);
                double d;
                memcpy(&d, &u, 8);
                return (float)d;
        }
        uint32_t u = (uint32_t)gguf_le(data + 4 * i, 4);
        float f;
        memcpy(&f, &u, 4);
        return f;
}

static int check_finite(const struct gguf *g, const char *key, float v, struct h_error *err) {
        char buf[512];
        if (__builtin_isfinite(v))
                return 0;
        return h_error_set(err, HEARTH_E_model_invalid, "key %s: the value is no finite number",
                           gguf_shown_key(g, key, buf));
}

int gguf_f32(const struct gguf *g, const char *key, float def, float *ret, struct h_error *err) {
        const struct gguf_kv *kv = gguf_find(g, key);
        float v = def;
        int64_t i;

        if (!kv) {
                *ret = def;
                return 0;
        }
        if (kv->type == GGUF_F32 || kv->type == GGUF_F64)
                v = f32_at(kv->type, kv->data, 0);
        else if (is_int(kv->type) && int_at(kv->type, kv->data, 0, &i))
                v = (float)i;
        else
                return wrong_type(g, key, kv, "a number", err);
        if (check_finite(g, key, v, err) < 0)
                return -EHEARTH;
        *ret = v;
        return 0;
}

int gguf_bool(const struct gguf *g, const char *key, bool def, bool *ret, struct h_error *err) {
        const struct gguf_kv *kv = gguf_find(g, key);
        if (!kv) {
                *ret = def;
                return 0;
        }
        if (kv->type != GGUF_BOOL)
                return wrong_type(g, key, kv, "a bool", err);
        *ret = kv->data[0];
        return 0;
}

int gguf_string(const struct gguf *g, const char *key, struct gguf_str *ret, struct h_error *err) {
        const struct gguf_kv *kv = gguf_find(g, key);
        if (!kv) {
                *ret = (struct gguf_str){ NULL, 0 };
                return 0;
        }
        if (kv->type != GGUF_STRING)
                return wrong_type(g, key, kv, "a string", err);
        *ret = (struct gguf_str){ (const char *)kv->data, (size_t)kv->n };
        return 0;
}

static int wrong_length(const struct gguf *g, const char *key, const struct gguf_kv *kv, const char *rule,
                        uint64_t n, struct h_error *err) {
        char buf[512];
        return h_error_counts(err, HEARTH_E_model_invalid, n, kv->n, "key %s: array of %s%llu values expected, found %llu",
                              gguf_shown_key(g, key, buf), rule, (unsigned long long)n, (unsigned long long)kv->n);
}

int gguf_u32_per_layer(const struct gguf *g, const char *key, uint32_t n, uint32_t *ret, struct h_error *err) {
        const struct gguf_kv *kv = gguf_find(g, key);
        bool array;

        if (!kv)
                return 0;
        array = kv->type == GGUF_ARRAY;
        if (array && kv->n != n)
                return wrong_length(g, key, kv, "", n, err);
        for (uint32_t i = 0; i < n; i++) {
                int r = u32_at(g, key, kv, array ? kv->elem : kv->type, array ? i : 0, &ret[i], err);
                if (r < 0)
                        return r;
        }
        return 1;
}

int gguf_bool_per_layer(const struct gguf *g, const char *key, uint32_t n, bool *ret, struct h_error *err) {
        const struct gguf_kv *kv = gguf_find(g, key);
        bool array;

        if (!kv)
                return 0;
        array = kv->type == GGUF_ARRAY;
        if ((array ? kv->elem : kv->type) != GGUF_BOOL) {
                /* Some writers store flags as integers 0 and 1. */
                for (uint32_t i = 0; i < n; i++) {
                        uint32_t v;
                        int r;
                        if (array && kv->n != n)
                                return wrong_length(g, key, kv, "", n, err);
                        r = u32_at(g, key, kv, array ? kv->elem : kv->type, array ? i : 0, &v, err);
                        if (r < 0)
                                return r;
                        if (v > 1)
                                return wrong_type(g, key, kv, "bools", err);
                        ret[i] = v;
                }
                return 1;
        }
        if (array && kv->n != n)
                return wrong_length(g, key, kv, "", n, err);
        for (uint32_t i = 0; i < n; i++)
                ret[i] = kv->data[array ? i : 0] != 0;
        return 1;
}

int gguf_f32_array(const struct gguf *g, const char *key, uint32_t max, float *ret, uint32_t *ret_n,
                   struct h_error *err) {
        const struct gguf_kv *kv = gguf_find(g, key);

        if (!kv) {
                *ret_n = 0;
                return 0;
        }
        if (kv->type != GGUF_ARRAY || (kv->elem != GGUF_F32 && kv->elem != GGUF_F64))
                return wrong_type(g, key, kv, "an array of floats", err);
        if (kv->n > max)
                return wrong_length(g, key, kv, "at most ", max, err);
        for (uint32_t i = 0; i < kv->n; i++)
                ret[i] = f32_at(kv->elem, kv->data, i);
        *ret_n = (uint32_t)kv->n;
        return 0;
}

int gguf_i32_array(const struct gguf *g, const char *key, uint32_t max, int32_t *ret, uint32_t *ret_n,
                   struct h_error *err) {
        const struct gguf_kv *kv = gguf_find(g, key);
        char buf[512];

        if (!kv) {
                *ret_n = 0;
                return 0;
        }
        if (kv->type != GGUF_ARRAY || !is_int(kv->elem))
                return wrong_type(g, key, kv, "an array of integers", err);
        if (kv->n > max)
                return wrong_length(g, key, kv, "at most ", max, err);
        for (uint32_t i = 0; i < kv->n; i++) {
                int64_t v;
                if (!int_at(kv->elem, kv->data, i, &v) || v < INT32_MIN || v > INT32_MAX)
                        return h_error_set(err, HEARTH_E_model_invalid, "key %s: value %llu is outside 32 bits",
                                           gguf_shown_key(g, key, buf), (unsigned long long)i);
                ret[i] = (int32_t)v;
        }
        *ret_n = (uint32_t)kv->n;
        return 0;
}
