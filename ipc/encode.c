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

static int pack_strs(const struct schema_field *f, const char *where, const void *body, msgpack_packer *pk, struct h_error *err) {
        const char **list = *(const char ***)field_at(f, body);
        const size_t *lens = ((size_t **)field_at(f, body))[1]; /* len_ follows the pointer, see SCHEMA_M_strs */
        size_t n = *field_n(f, body);
        int r;

        r = check_count(f, where, n, err);
        if (r < 0)
                return r;
        r = msgpack_pack_array(pk, n);
        for (size_t i = 0; r >= 0 && i < n; i++) {
                size_t len = lens ? lens[i] : strlen(list[i]);
                r = check_text(where, list[i], len, err);
                if (r < 0)
                        return r;
                r = pack_text(pk, list[i], len);
        }
        return r;
}

static int pack_field(const struct schema *s, const struct schema_desc *d, const struct schema_field *f, const void *body,
                      msgpack_packer *pk, struct h_error *err) {
        const void *at = field_at(f, body);
        char where[128];
        int r;

        snprintf(where, sizeof(where), "%s.%s", d->name, f->name);
        r = pack_text(pk, f->name, strlen(f->name));
        if (r < 0)
                return r;
        switch (f->type) {
        case TYPE_str: case TYPE_text: case TYPE_bin: {
                const char *p = *(const char *const *)at;
                size_t n = *field_n(f, body);
                if (!p)
                        n = 0, p = "";
                else if (n == 0 && f->type != TYPE_bin)
                        n = strlen(p);
                r = check_bytes(f, where, p, n, err);
                if (r < 0)
                        return r;
                if (f->type != TYPE_bin)
                        return pack_text(pk, p, n);
                r = msgpack_pack_bin(pk, n);
                return r < 0 ? r : n ? msgpack_pack_bin_body(pk, p, n) : 0;
        }
        case TYPE_flag:
                return *(const bool *)at ? msgpack_pack_true(pk) : msgpack_pack_false(pk);
        case TYPE_u32:
                r = check_unsigned(f, where, *(const uint32_t *)at, err);
                return r < 0 ? r : msgpack_pack_uint32(pk, *(const uint32_t *)at);
        case TYPE_u64:
                r = check_unsigned(f, where, *(const uint64_t *)at, err);
                return r < 0 ? r : msgpack_pack_uint64(pk, *(const uint64_t *)at);
        case TYPE_i64:
                r = check_signed(f, where, *(const int64_t *)at, err);
                return r < 0 ? r : msgpack_pack_int64(pk, *(const int64_t *)at);
        case TYPE_f64:
                r = check_double(f, where, *(const double *)at, err);
                return r < 0 ? r : msgpack_pack_double(pk, *(const double *)at);
        case TYPE_strs:
                return pack_strs(f, where, body, pk, err);
        case TYPE_list: {
                const struct schema_desc *item = &s->descs[f->sub];
                const char *items = *(char *const *)at;
                size_t n = *field_n(f, body);
                r = check_count(f, where, n, err);
                if (r < 0)
                        return r;
                r = msgpack_pack_array(pk, n);
                for (size_t i = 0; r >= 0 && i < n; i++)
                        r = pack_map(s, item, items + i * item->size, pk, err);
                return r;
        }
        }
        return -EINVAL;
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
