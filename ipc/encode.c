/* SPDX-License-Identifier: Apache-2.0 */
#include <msgpack.h>
#include <string.h>

#include "ipc/check.h"
#include "ipc/schema.h"

static int write_buf(void *data, const char *p, size_t n) {
        return buf_append(data, p, n);
}

static void set_default(const struct schema_field *f, void *body) {
        void *at = field_at(f, body);

        switch (f->type) {
        case TYPE_flag: *(bool *)at = f->def.u != 0; break;
        case TYPE_u32: *(uint32_t *)at = (uint32_t)f->def.u; break;
        case TYPE_u64: *(uint64_t *)at = f->def.u; break;
        case TYPE_i64: *(int64_t *)at = f->def.i; break;
        case TYPE_f64: *(double *)at = f->def.d; break;
        case TYPE_str: case TYPE_text: case TYPE_bin: case TYPE_strs: case TYPE_list: break;
        }
}

void schema_init(const struct schema *s, int type, void *body) {
        const struct schema_desc *d = &s->descs[type];

        memset(body, 0, d->size);
        for (uint32_t i = 0; i < d->n_fields; i++)
                set_default(&d->fields[i], body);
}

/* True if the field goes on the wire. */
static bool is_set(const struct schema_field *f, const void *body) {
        const void *at = field_at(f, body);

        if (f->presence == REQUIRED || *field_has(f, body))
                return true;
        switch (f->type) {
        case TYPE_flag: return *(const bool *)at != (f->def.u != 0);
        case TYPE_u32: return *(const uint32_t *)at != f->def.u;
        case TYPE_u64: return *(const uint64_t *)at != f->def.u;
        case TYPE_i64: return *(const int64_t *)at != f->def.i;
        case TYPE_f64: return *(const double *)at != f->def.d;
        case TYPE_str: case TYPE_text: case TYPE_bin: return *(void *const *)at != NULL;
        case TYPE_strs: case TYPE_list: return *field_n(f, body) > 0;
        }
        return false;
}

static int pack_map(const struct schema *s, const struct schema_desc *d, const void *body, msgpack_packer *pk,
                    struct h_error *err);

static int pack_text(msgpack_packer *pk, const char *p, size_t n) {
        int r = msgpack_pack_str(pk, n);
        return r < 0 ? r : n ? msgpack_pack_str_body(pk, p, n) : 0;
}

/* The bytes of a text or bin; what is NULL is empty. */
static const char *field_bytes(const struct schema_field *f, const void *body, size_t *ret_n) {
        const char *p = *(const char *const *)field_at(f, body);

        *ret_n = !p ? 0 : *field_n(f, body) || f->type == TYPE_bin ? *field_n(f, body) : strlen(p);
        return p ? p : "";
}

/* One of a list of texts; its lengths follow the pointer, see SCHEMA_M_strs. */
static const char *field_text(const struct schema_field *f, const void *body, size_t i, size_t *ret_n) {
        const size_t *lens = ((size_t **)field_at(f, body))[1];
        const char *p = (*(const char ***)field_at(f, body))[i];

        *ret_n = lens ? lens[i] : strlen(p);
        return p;
}

static int check_value(const struct schema_field *f, const char *where, const void *body, struct h_error *err) {
        const void *at = field_at(f, body);
        const char *p;
        size_t n;
        int r;

        switch (f->type) {
        case TYPE_flag: return 0;
        case TYPE_str: case TYPE_text: case TYPE_bin:
                p = field_bytes(f, body, &n);
                return check_bytes(f, where, p, n, err);
        case TYPE_u32: return check_unsigned(f, where, *(const uint32_t *)at, err);
        case TYPE_u64: return check_unsigned(f, where, *(const uint64_t *)at, err);
        case TYPE_i64: return check_signed(f, where, *(const int64_t *)at, err);
        case TYPE_f64: return check_double(f, where, *(const double *)at, err);
        case TYPE_list: return check_count(f, where, *field_n(f, body), err);
        case TYPE_strs:
                r = check_count(f, where, *field_n(f, body), err);
                for (size_t i = 0; r >= 0 && i < *field_n(f, body); i++) {
                        p = field_text(f, body, i, &n);
                        r = check_text(where, p, n, err);
                }
                return r;
        }
        return -EINVAL;
}

static int pack_value(const struct schema *s, const struct schema_field *f, const void *body, msgpack_packer *pk, struct h_error *err) {
        const void *at = field_at(f, body);
        const char *p;
        size_t n;
        int r;

        switch (f->type) {
        case TYPE_flag: return *(const bool *)at ? msgpack_pack_true(pk) : msgpack_pack_false(pk);
        case TYPE_str: case TYPE_text:
                p = field_bytes(f, body, &n);
                return pack_text(pk, p, n);
        case TYPE_bin:
                p = field_bytes(f, body, &n);
                r = msgpack_pack_bin(pk, n);
                return r < 0 ? r : n ? msgpack_pack_bin_body(pk, p, n) : 0;
        case TYPE_u32: return msgpack_pack_uint32(pk, *(const uint32_t *)at);
        case TYPE_u64: return msgpack_pack_uint64(pk, *(const uint64_t *)at);
        case TYPE_i64: return msgpack_pack_int64(pk, *(const int64_t *)at);
        case TYPE_f64: return msgpack_pack_double(pk, *(const double *)at);
        case TYPE_strs:
                r = msgpack_pack_array(pk, *field_n(f, body));
                for (size_t i = 0; r >= 0 && i < *field_n(f, body); i++) {
                        p = field_text(f, body, i, &n);
                        r = pack_text(pk, p, n);
                }
                return r;
        case TYPE_list:
                r = msgpack_pack_array(pk, *field_n(f, body));
                for (size_t i = 0; r >= 0 && i < *field_n(f, body); i++)
                        r = pack_map(s, &s->descs[f->sub], *(const char *const *)at + i * s->descs[f->sub].size, pk, err);
                return r;
        }
        return -EINVAL;
}

/* A field's full name is only made for who reads of its fault: messages go out with every token. */
static int pack_field(const struct schema *s, const struct schema_desc *d, const struct schema_field *f, const void *body,
                      msgpack_packer *pk, struct h_error *err) {
        char where[128];
        int r = check_value(f, "", body, NULL);

        if (r < 0) {
                snprintf(where, sizeof(where), "%s.%s", d->name, f->name);
                return check_value(f, where, body, err);
        }
        r = pack_text(pk, f->name, strlen(f->name));
        return r < 0 ? r : pack_value(s, f, body, pk, err);
}

static int pack_map(const struct schema *s, const struct schema_desc *d, const void *body, msgpack_packer *pk,
                    struct h_error *err) {
        uint32_t n = 0;
        int r;

        for (uint32_t i = 0; i < d->n_fields; i++)
                n += is_set(&d->fields[i], body);
        r = msgpack_pack_map(pk, n);
        for (uint32_t i = 0; r >= 0 && i < d->n_fields; i++)
                if (is_set(&d->fields[i], body))
                        r = pack_field(s, d, &d->fields[i], body, pk, err);
        return r;
}

int schema_encode(const struct schema *s, int type, uint32_t id, const void *body, struct buf *out, struct h_error *err) {
        const struct schema_desc *d = &s->descs[type];
        size_t start = out->len, n;
        msgpack_packer pk;
        uint8_t length[4] = {};
        int r;

        msgpack_packer_init(&pk, out, write_buf);
        r = buf_append(out, length, sizeof(length));
        if (r >= 0)
                r = msgpack_pack_array(&pk, 4);
        if (r >= 0)
                r = msgpack_pack_uint8(&pk, (uint8_t)d->kind);
        if (r >= 0)
                r = msgpack_pack_uint32(&pk, id);
        if (r >= 0)
                r = pack_text(&pk, d->name, strlen(d->name));
        if (r >= 0)
                r = pack_map(s, d, body, &pk, err);
        n = out->len - start - sizeof(length);
        if (r >= 0 && n > s->max_frame)
                r = h_error_counts(err, HEARTH_E_too_large, n, s->max_frame,
                                   "the %s message has %zu bytes; a frame may have %u", d->name, n, s->max_frame);
        if (r < 0) {
                out->len = start;
                if (out->data)
                        out->data[start] = 0;
                return r == -EHEARTH ? r : h_error_from_errno(err, r, "encoding a message");
        }
        for (unsigned i = 0; i < 4; i++)
                out->data[start + i] = (char)(n >> (8 * i));
        return 0;
}
