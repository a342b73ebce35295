/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checking decoder. Order: scan (bounded, no allocation), msgpack-c into a
 * zone whose size the scan has bounded, then the table: every rule of schema.h
 * is enforced in decode_map() and decode_value(), for every message alike.
 */
#include <msgpack.h>
#include <string.h>

#include "base/alloc.h"
#include "ipc/arena.h"
#include "ipc/check.h"
#include "ipc/scan.h"
#include "ipc/schema.h"

static const char *const kind_names[] = { "request", "reply", "event", "error", "cancel", "item" };
static const char *const type_names[] = { "str", "str", "bin", "bool", "u32", "u64", "i64", "f64", "list of str", "list of maps" };

const char *schema_kind_name(enum schema_kind kind) {
        return (unsigned)kind < ELEMENTSOF(kind_names) ? kind_names[kind] : "?";
}

const char *schema_type_name(enum schema_type type) {
        return (unsigned)type < ELEMENTSOF(type_names) ? type_names[type] : "?";
}

static const char *object_name(const msgpack_object *o) {
        switch (o->type) {
        case MSGPACK_OBJECT_NIL: return "nil";
        case MSGPACK_OBJECT_BOOLEAN: return "a bool";
        case MSGPACK_OBJECT_POSITIVE_INTEGER: return "an integer";
        case MSGPACK_OBJECT_NEGATIVE_INTEGER: return "a negative integer";
        case MSGPACK_OBJECT_FLOAT32: case MSGPACK_OBJECT_FLOAT64: return "a float";
        case MSGPACK_OBJECT_STR: return "a str";
        case MSGPACK_OBJECT_ARRAY: return "an array";
        case MSGPACK_OBJECT_MAP: return "a map";
        case MSGPACK_OBJECT_BIN: return "bin";
        case MSGPACK_OBJECT_EXT: return "ext";
        }
        return "something else";
}

struct decoder {
        const struct schema *schema;
        struct schema_arena *arena;
        struct h_error *err;
        char where[160]; /* dotted path of the field at hand */
};

static int wrong_type(struct decoder *d, const struct schema_field *f, const msgpack_object *o) {
        return h_error_set(d->err, HEARTH_E_bad_request, "%s must be %s, not %s", d->where, schema_type_name(f->type),
                           object_name(o));
}

static bool is_uint(const msgpack_object *o) {
        return o->type == MSGPACK_OBJECT_POSITIVE_INTEGER;
}

static bool is_number(const msgpack_object *o) {
        return is_uint(o) || o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER || o->type == MSGPACK_OBJECT_FLOAT32 ||
               o->type == MSGPACK_OBJECT_FLOAT64;
}

static double as_double(const msgpack_object *o) {
        if (is_uint(o))
                return (double)o->via.u64;
        return o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER ? (double)o->via.i64 : o->via.f64;
}

/* A NUL-terminated copy in the arena. */
static char *copy_bytes(struct decoder *d, const void *p, size_t n) {
        char *c = schema_arena_alloc(d->arena, n + 1);
        if (c && n)
                memcpy(c, p, n);
        return c;
}

static int decode_map(struct decoder *d, int type, const msgpack_object *map, void *body);

static int decode_strs(struct decoder *d, const struct schema_field *f, const msgpack_object *o, void *body) {
        const msgpack_object *items = o->via.array.ptr;
        size_t n = o->via.array.size, *lens;
        char **list;
        int r;

        r = check_count(f, d->where, n, d->err);
        if (r < 0)
                return r;
        list = schema_arena_alloc(d->arena, n * sizeof(*list));
        lens = schema_arena_alloc(d->arena, n * sizeof(*lens));
        if (!list || !lens)
                return -ENOMEM;
        for (size_t i = 0; i < n; i++) {
                if (items[i].type != MSGPACK_OBJECT_STR)
                        return h_error_set(d->err, HEARTH_E_bad_request, "%s[%zu] must be str, not %s", d->where, i,
                                           object_name(&items[i]));
                r = check_text(d->where, items[i].via.str.ptr, items[i].via.str.size, d->err);
                if (r < 0)
                        return r;
                list[i] = copy_bytes(d, items[i].via.str.ptr, items[i].via.str.size);
                if (!list[i])
                        return -ENOMEM;
                lens[i] = items[i].via.str.size;
        }
        ((void **)field_at(f, body))[0] = list;
        ((void **)field_at(f, body))[1] = lens;
        *field_n(f, body) = n;
        return 0;
}

static int decode_list(struct decoder *d, const struct schema_field *f, const msgpack_object *o, void *body) {
        const struct schema_desc *item = &d->schema->descs[f->sub];
        const msgpack_object *items = o->via.array.ptr;
        size_t n = o->via.array.size, end = strlen(d->where), bytes;
        char *list;
        int r;

        r = check_count(f, d->where, n, d->err);
        if (r < 0)
                return r;
        if (!size_mul(n, item->size, &bytes))
                return -ENOMEM;
        list = schema_arena_alloc(d->arena, bytes);
        if (!list)
                return -ENOMEM;
        for (size_t i = 0; i < n; i++) {
                snprintf(d->where + end, sizeof(d->where) - end, "[%zu]", i);
                if (items[i].type != MSGPACK_OBJECT_MAP)
                        return h_error_set(d->err, HEARTH_E_bad_request, "%s must be a map, not %s", d->where,
                                           object_name(&items[i]));
                r = decode_map(d, f->sub, &items[i], list + i * item->size);
                if (r < 0)
                        return r;
        }
        d->where[end] = 0;
        *(void **)field_at(f, body) = list;
        *field_n(f, body) = n;
        return 0;
}

static int decode_value(struct decoder *d, const struct schema_field *f, const msgpack_object *o, void *body) {
        void *at = field_at(f, body);
        int r = 0;

        switch (f->type) {
        case TYPE_str: case TYPE_text: case TYPE_bin: {
                bool bin = f->type == TYPE_bin;
                const char *p;
                size_t n;
                if (o->type != (bin ? MSGPACK_OBJECT_BIN : MSGPACK_OBJECT_STR))
                        return wrong_type(d, f, o);
                p = bin ? o->via.bin.ptr : o->via.str.ptr;
                n = bin ? o->via.bin.size : o->via.str.size;
                r = check_bytes(f, d->where, p, n, d->err);
                if (r < 0)
                        return r;
                *(void **)at = copy_bytes(d, p, n);
                if (!*(void **)at)
                        return -ENOMEM;
                *field_n(f, body) = n;
                return 0;
        }
        case TYPE_flag:
                if (o->type != MSGPACK_OBJECT_BOOLEAN)
                        return wrong_type(d, f, o);
                *(bool *)at = o->via.boolean;
                return 0;
        case TYPE_u32: case TYPE_u64:
                if (o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
                        return h_error_set(d->err, HEARTH_E_bad_request, "%s is %lld, but must not be negative", d->where,
                                           (long long)o->via.i64);
                if (!is_uint(o))
                        return wrong_type(d, f, o);
                r = check_unsigned(f, d->where, o->via.u64, d->err);
                if (r < 0)
                        return r;
                if (f->type == TYPE_u32)
                        *(uint32_t *)at = (uint32_t)o->via.u64; /* max is at most UINT32_MAX: test_ipc_schema checks the tables */
                else
                        *(uint64_t *)at = o->via.u64;
                return 0;
        case TYPE_i64:
                if (!is_uint(o) && o->type != MSGPACK_OBJECT_NEGATIVE_INTEGER)
                        return wrong_type(d, f, o);
                if (is_uint(o) && o->via.u64 > INT64_MAX)
                        return h_error_set(d->err, HEARTH_E_bad_request, "%s is %llu, beyond a signed 64-bit integer",
                                           d->where, (unsigned long long)o->via.u64);
                r = check_signed(f, d->where, o->via.i64, d->err);
                if (r < 0)
                        return r;
                *(int64_t *)at = o->via.i64;
                return 0;
        case TYPE_f64:
                if (!is_number(o))
                        return wrong_type(d, f, o);
                r = check_double(f, d->where, as_double(o), d->err);
                if (r < 0)
                        return r;
                *(double *)at = as_double(o);
                return 0;
        case TYPE_strs: case TYPE_list:
                if (o->type != MSGPACK_OBJECT_ARRAY)
                        return wrong_type(d, f, o);
                return f->type == TYPE_strs ? decode_strs(d, f, o, body) : decode_list(d, f, o, body);
        }
        return -EINVAL;
}

static bool same(const msgpack_object *key, const char *name) {
        size_t n = strlen(name);
        return key->via.str.size == n && memcmp(key->via.str.ptr, name, n) == 0;
}

static const struct schema_field *find_field(const struct schema_desc *desc, const msgpack_object *key) {
        for (uint32_t i = 0; i < desc->n_fields; i++)
                if (same(key, desc->fields[i].name))
                        return &desc->fields[i];
        return NULL;
}

/* Keys come from outside: shown only as far as they are short printable ASCII. */
static int unknown_must(struct decoder *d, const msgpack_object *key) {
        char shown[40];
        size_t n = MIN((size_t)key->via.str.size, sizeof(shown) - 1);

        for (size_t i = 0; i < n; i++)
                shown[i] = key->via.str.ptr[i] >= 0x20 && key->via.str.ptr[i] < 0x7f ? key->via.str.ptr[i] : '?';
        shown[n] = 0;
        return h_error_set(d->err, HEARTH_E_bad_request,
                           "%s.%s is not known to this version, and the sender's 'must' list insists on it", d->where, shown);
}

static int check_must(struct decoder *d, const struct schema_desc *desc, const msgpack_object *list) {
        if (list->type != MSGPACK_OBJECT_ARRAY)
                return h_error_set(d->err, HEARTH_E_bad_request, "%s.must must be a list of str, not %s", d->where,
                                   object_name(list));
        for (uint32_t i = 0; i < list->via.array.size; i++) {
                const msgpack_object *key = &list->via.array.ptr[i];
                if (key->type != MSGPACK_OBJECT_STR)
                        return h_error_set(d->err, HEARTH_E_bad_request, "%s.must[%u] must be str, not %s", d->where, i,
                                           object_name(key));
                if (!find_field(desc, key))
                        return unknown_must(d, key);
        }
        return 0;
}

/* 'where' holds the map's own path on entry and on success. */
static int decode_map(struct decoder *d, int type, const msgpack_object *map, void *body) {
        const struct schema_desc *desc = &d->schema->descs[type];
        size_t end = strlen(d->where);
        const msgpack_object *must = NULL;
        int r;

        schema_init(d->schema, type, body);
        for (uint32_t i = 0; i < map->via.map.size; i++) {
                const msgpack_object_kv *kv = &map->via.map.ptr[i];
                const struct schema_field *f = find_field(desc, &kv->key);

                if (!f) {
                        if (same(&kv->key, "must")) {
                                if (must)
                                        return h_error_set(d->err, HEARTH_E_bad_request, "%s.must is there twice", d->where);
                                must = &kv->val;
                        }
                        continue;
                }
                snprintf(d->where + end, sizeof(d->where) - end, ".%s", f->name);
                if (*field_has(f, body))
                        return h_error_set(d->err, HEARTH_E_bad_request, "%s is there twice", d->where);
                r = decode_value(d, f, &kv->val, body);
                if (r < 0)
                        return r;
                *field_has(f, body) = true;
                d->where[end] = 0;
        }
        if (must) {
                r = check_must(d, desc, must);
                if (r < 0)
                        return r;
        }
        for (uint32_t i = 0; i < desc->n_fields; i++)
                if (desc->fields[i].presence == REQUIRED && !*field_has(&desc->fields[i], body))
                        return h_error_set(d->err, HEARTH_E_bad_request, "%s.%s is missing", d->where, desc->fields[i].name);
        return 0;
}

static int unknown_method(const struct schema *s, enum schema_kind kind, const msgpack_object *name, struct h_error *err) {
        char shown[40], known[360] = "";
        size_t n = MIN((size_t)name->via.str.size, sizeof(shown) - 1), at = 0;

        for (size_t i = 0; i < n; i++)
                shown[i] = name->via.str.ptr[i] >= 0x20 && name->via.str.ptr[i] < 0x7f ? name->via.str.ptr[i] : '?';
        shown[n] = 0;
        for (uint32_t i = 0; i < s->n_descs && at < sizeof(known) - 32; i++)
                if (s->descs[i].kind == kind)
                        at += (size_t)snprintf(known + at, sizeof(known) - at, "%s%s", at ? ", " : "", s->descs[i].name);
        return h_error_set(err, HEARTH_E_unknown_method, "no %s is called '%s'; known: %s", schema_kind_name(kind), shown, known);
}

static int decode_root(struct decoder *d, const msgpack_object *o, size_t n, struct schema_msg *ret, struct schema_head *head) {
        const struct schema *s = d->schema;
        const msgpack_object *part = o->via.array.ptr;
        struct schema_msg m = { .type = -1 };
        int r;

        if (o->type != MSGPACK_OBJECT_ARRAY || o->via.array.size != 4 || !is_uint(&part[0]) ||
            part[0].via.u64 >= _KIND_WIRE_MAX || !is_uint(&part[1]) || part[1].via.u64 > UINT32_MAX ||
            part[2].type != MSGPACK_OBJECT_STR || part[3].type != MSGPACK_OBJECT_MAP)
                return h_error_set(d->err, HEARTH_E_protocol,
                                   "a message must be [kind 0..%d, id u32, method str, fields map]", _KIND_WIRE_MAX - 1);
        m.kind = (enum schema_kind)part[0].via.u64;
        m.id = (uint32_t)part[1].via.u64;
        if (head)
                *head = (struct schema_head){ .valid = true, .kind = m.kind, .id = m.id };
        for (uint32_t i = 0; i < s->n_descs; i++)
                if (s->descs[i].kind == m.kind && same(&part[2], s->descs[i].name)) {
                        m.type = (int)i;
                        break;
                }
        if (m.type < 0)
                return unknown_method(s, m.kind, &part[2], d->err);

        /* Copies take about the frame's size; lists and alignment may take further blocks. */
        r = schema_arena_new(s->descs[m.type].size + MIN(n, (size_t)64 << 10) + 64, &d->arena);
        if (r < 0)
                return r;
        m.arena = d->arena;
        m.body = schema_arena_alloc(d->arena, s->descs[m.type].size);
        snprintf(d->where, sizeof(d->where), "%s", s->descs[m.type].name);
        r = decode_map(d, m.type, &part[3], m.body);
        if (r < 0) {
                d->arena = schema_arena_free(d->arena);
                return r;
        }
        *ret = m;
        return 0;
}

int schema_decode(const struct schema *s, const void *p, size_t n, struct schema_msg *ret, struct schema_head *ret_head,
                  struct h_error *err) {
        struct decoder d = { .schema = s, .err = err };
        msgpack_unpacked u;
        size_t off = 0;
        int r;

        if (ret_head)
                *ret_head = (struct schema_head){};
        if (n > s->max_frame)
                return h_error_counts(err, HEARTH_E_too_large, n, s->max_frame, "a frame of %zu bytes; at most %u", n,
                                      s->max_frame);
        r = msgpack_scan(p, n, s->max_depth, s->max_elements, err);
        if (r < 0)
                return r;
        msgpack_unpacked_init(&u);
        switch (msgpack_unpack_next(&u, p, n, &off)) {
        case MSGPACK_UNPACK_SUCCESS:
                r = decode_root(&d, &u.data, n, ret, ret_head);
                break;
        case MSGPACK_UNPACK_NOMEM_ERROR:
                r = -ENOMEM;
                break;
        case MSGPACK_UNPACK_EXTRA_BYTES: case MSGPACK_UNPACK_CONTINUE: case MSGPACK_UNPACK_PARSE_ERROR:
                r = h_error_set(err, HEARTH_E_protocol, "not msgpack");
                break;
        }
        msgpack_unpacked_destroy(&u);
        return r < 0 && r != -EHEARTH ? h_error_from_errno(err, r, "decoding a message") : r;
}

void schema_msg_free(struct schema_msg *m) {
        schema_arena_free(m->arena);
        *m = (struct schema_msg){ .type = -1 };
}

size_t schema_msg_bytes(const struct schema_msg *m) {
        return schema_arena_bytes(m->arena);
}
