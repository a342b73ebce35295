/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GGUF parser (format: the ggml project's docs/gguf.md). Versions 2 and 3,
 * little-endian.
 *
 * Invariants
 * - A cursor never passes 'n', the bytes in memory. What is missing in memory
 *   but may be in the file is -EAGAIN; what is past the end of the file is
 *   model_truncated. So the caller can read the beginning in growing pieces.
 * - Before anything is allocated for a count, count * smallest encoding must
 *   fit what is left of the file: memory is at most a small multiple of bytes
 *   really there.
 * - A gguf that was returned has unique keys, unique tensor names, and tensors
 *   that are aligned, inside the file and apart from each other.
 *
 * Ownership: keys, names and values point into the caller's bytes; the arrays
 * are ours. Lookups are a binary search over sorted indices.
 */
#include "engine/gguf.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/gguf_int.h"

#define MAX_METADATA ((uint64_t)1 << 30) /* bytes before the tensors */
#define MAX_KV 65536u
#define MAX_TENSORS 262144u
#define MAX_KEY 65535u
#define MAX_NAME 127u /* the format says 64; some writers pass it */
#define MAX_ALIGNMENT (1u << 20)
#define MAX_DIM ((uint64_t)1 << 40)

struct index {
        struct gguf_str key;
        uint32_t i;
};

struct parsed {
        struct gguf g; /* first: what the caller holds */
        struct index *kv, *tensors;
};

struct cursor {
        const uint8_t *p;
        size_t n, pos;
        uint64_t file_size;
        struct h_error *err;
};

const char *const gguf_type_names[_GGUF_TYPE_MAX] = {
        "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64",
};
const uint8_t gguf_type_bytes[_GGUF_TYPE_MAX] = {
        [GGUF_U8] = 1, [GGUF_I8] = 1, [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
        [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

/* ---- cursor ------------------------------------------------------------ */

#define bad(c, fmt, ...) \
        h_error_set((c)->err, HEARTH_E_model_invalid, "offset %zu: " fmt, (c)->pos, ##__VA_ARGS__)

/* Makes sure 'need' more bytes are in memory. */
static int want(struct cursor *c, uint64_t need, const char *what) {
        uint64_t end;

        if (__builtin_add_overflow((uint64_t)c->pos, need, &end) || end > c->file_size)
                return h_error_counts(c->err, HEARTH_E_model_truncated, c->pos + MIN(need, UINT64_MAX - c->pos),
                                      c->file_size, "offset %zu: %s needs %llu bytes, the file ends after %llu",
                                      c->pos, what, (unsigned long long)need,
                                      (unsigned long long)(c->file_size - MIN((uint64_t)c->pos, c->file_size)));
        if (end > MAX_METADATA)
                return bad(c, "%s passes the limit of %llu bytes of metadata", what,
                           (unsigned long long)MAX_METADATA);
        if (end > c->n)
                return -EAGAIN;
        return 0;
}

static int read_u32(struct cursor *c, uint32_t *ret, const char *what) {
        int r = want(c, 4, what);
        if (r < 0)
                return r;
        *ret = (uint32_t)gguf_le(c->p + c->pos, 4);
        c->pos += 4;
        return 0;
}

static int read_u64(struct cursor *c, uint64_t *ret, const char *what) {
        int r = want(c, 8, what);
        if (r < 0)
                return r;
        *ret = gguf_le(c->p + c->pos, 8);
        c->pos += 8;
        return 0;
}

static int read_string(struct cursor *c, uint64_t max, struct gguf_str *ret, const char *what) {
        uint64_t n;
        int r = read_u64(c, &n, what);
        if (r < 0)
                return r;
        if (n > max) {
                c->pos -= 8;
                return bad(c, "%s has %llu bytes, at most %llu are allowed", what, (unsigned long long)n,
                           (unsigned long long)max);
        }
        r = want(c, n, what);
        if (r < 0)
                return r;
        ret->p = (const char *)c->p + c->pos;
        ret->n = (size_t)n;
        c->pos += n;
        return 0;
}

/* A name for messages: printable ASCII, bounded. */
static const char *show(struct gguf_str s, char buf[72]) {
        size_t n = MIN(s.n, (size_t)64);
        for (size_t i = 0; i < n; i++)
                buf[i] = s.p[i] > 32 && s.p[i] < 127 ? s.p[i] : '?';
        memcpy(buf + n, s.n > n ? "..." : "", s.n > n ? 4 : 1);
        return buf;
}

/* ---- key-value pairs --------------------------------------------------- */

static int parse_array(struct cursor *c, struct gguf_kv *kv) {
        char name[72];
        uint32_t elem;
        uint64_t n;
        unsigned width;
        int r;

        r = read_u32(c, &elem, "an array's element type");
        if (r < 0)
                return r;
        if (elem >= _GGUF_TYPE_MAX || elem == GGUF_ARRAY)
                return bad(c, "key %s: array of type %u; known element types are 0..12 without 9 (arrays of "
                           "arrays)", show(kv->key, name), elem);
        r = read_u64(c, &n, "an array's length");
        if (r < 0)
                return r;
        width = elem == GGUF_STRING ? 8 : gguf_type_bytes[elem];
        if (n > (c->file_size - c->pos) / width)
                return h_error_counts(c->err, HEARTH_E_model_truncated, n, (c->file_size - c->pos) / width,
                                      "offset %zu: key %s: array of %llu %s, the file has room for %llu", c->pos,
                                      show(kv->key, name), (unsigned long long)n, gguf_type_names[elem],
                                      (unsigned long long)((c->file_size - c->pos) / width));
        kv->elem = (enum gguf_type)elem;
        kv->n = n;
        r = want(c, n * width, "an array");
        if (r < 0)
                return r;
        kv->data = c->p + c->pos;
        if (elem != GGUF_STRING) {
                c->pos += n * width;
                return 0;
        }
        kv->strings = h_new0(struct gguf_str, n);
        if (!kv->strings)
                return -ENOMEM;
        for (uint64_t i = 0; i < n; i++) {
                r = read_string(c, MAX_METADATA, &kv->strings[i], "a string of an array");
                if (r < 0)
                        return r;
        }
        return 0;
}

static int parse_kv(struct cursor *c, struct gguf_kv *kv) {
        char name[72];
        uint32_t type;
        int r;

        r = read_string(c, MAX_KEY, &kv->key, "a key");
        if (r < 0)
                return r;
        if (kv->key.n == 0)
                return bad(c, "empty key");
        r = read_u32(c, &type, "a value's type");
        if (r < 0)
                return r;
        if (type >= _GGUF_TYPE_MAX)
                return bad(c, "key %s: value type %u is unknown (0..12)", show(kv->key, name), type);
        kv->type = (enum gguf_type)type;
        if (type == GGUF_ARRAY)
                return parse_array(c, kv);
        kv->n = 1;
        if (type == GGUF_STRING) {
                struct gguf_str s;
                r = read_string(c, MAX_METADATA, &s, "a string");
                if (r < 0)
                        return r;
                kv->data = (const uint8_t *)s.p;
                kv->n = s.n; /* of a string: its bytes */
                return 0;
        }
        r = want(c, gguf_type_bytes[type], "a value");
        if (r < 0)
                return r;
        kv->data = c->p + c->pos;
        if (type == GGUF_BOOL && kv->data[0] > 1)
                return bad(c, "key %s: bool with value %u", show(kv->key, name), kv->data[0]);
        c->pos += gguf_type_bytes[type];
        return 0;
}

/* ---- tensors ----------------------------------------------------------- */

static int parse_tensor(struct cursor *c, struct gguf_tensor *t) {
        char name[72];
        uint32_t type;
        uint64_t rows = 1;
        size_t row;
        int r;

        r = read_string(c, MAX_NAME, &t->name, "a tensor's name");
        if (r < 0)
                return r;
        if (t->name.n == 0 || memchr(t->name.p, 0, t->name.n))
                return bad(c, "tensor name is empty or holds a NUL byte");
        r = read_u32(c, &t->n_dims, "a tensor's dimension count");
        if (r < 0)
                return r;
        if (t->n_dims == 0 || t->n_dims > GGUF_MAX_DIMS)
                return bad(c, "tensor %s: %u dimensions, 1..%u are allowed", show(t->name, name), t->n_dims,
                           GGUF_MAX_DIMS);
        for (unsigned i = 0; i < GGUF_MAX_DIMS; i++)
                t->dim[i] = 1;
        for (unsigned i = 0; i < t->n_dims; i++) {
                r = read_u64(c, &t->dim[i], "a tensor's dimension");
                if (r < 0)
                        return r;
                if (t->dim[i] == 0 || t->dim[i] > MAX_DIM)
                        return bad(c, "tensor %s: dimension %u is %llu, 1..2^40 are allowed", show(t->name, name),
                                   i, (unsigned long long)t->dim[i]);
        }
        r = read_u32(c, &type, "a tensor's type");
        if (r < 0)
                return r;
        if (!k_type_from_gguf(type, &t->type))
                return h_error_set(c->err, HEARTH_E_unknown_type,
                                   "offset %zu: tensor %s has type %u, which this build does not know", c->pos,
                                   show(t->name, name), type);
        r = read_u64(c, &t->offset, "a tensor's offset");
        if (r < 0)
                return r;
        if (t->dim[0] % k_type_block(t->type) != 0)
                return bad(c, "tensor %s: rows of %llu weights are no multiple of %s's block of %u",
                           show(t->name, name), (unsigned long long)t->dim[0], k_type_name(t->type),
                           k_type_block(t->type));
        if (!k_type_row_bytes(t->type, t->dim[0], &row))
                return bad(c, "tensor %s: the row size overflows", show(t->name, name));
        for (unsigned i = 1; i < GGUF_MAX_DIMS; i++)
                if (__builtin_mul_overflow(rows, t->dim[i], &rows))
                        return bad(c, "tensor %s: the number of rows overflows", show(t->name, name));
        if (__builtin_mul_overflow(rows, (uint64_t)row, &t->bytes))
                return bad(c, "tensor %s: the size overflows", show(t->name, name));
        return 0;
}

/* Makes offsets absolute and checks that they are aligned and inside the file. */
static int place_tensors(struct cursor *c, struct gguf *g) {
        char name[72];

        for (size_t i = 0; i < g->n_tensors; i++) {
                struct gguf_tensor *t = &g->tensors[i];
                uint64_t end;

                if (t->offset % g->alignment != 0)
                        return h_error_set(c->err, HEARTH_E_model_invalid,
                                           "tensor %s: offset %llu is no multiple of the alignment %llu",
                                           show(t->name, name), (unsigned long long)t->offset,
                                           (unsigned long long)g->alignment);
                if (__builtin_add_overflow(t->offset, g->data_offset, &t->offset) ||
                    __builtin_add_overflow(t->offset, t->bytes, &end))
                        return h_error_set(c->err, HEARTH_E_model_invalid, "tensor %s: offset %llu overflows",
                                           show(t->name, name), (unsigned long long)t->offset);
                if (end > c->file_size)
                        return h_error_counts(c->err, HEARTH_E_model_truncated, end, c->file_size,
                                              "tensor %s ends at offset %llu, the file has %llu bytes",
                                              show(t->name, name), (unsigned long long)end,
                                              (unsigned long long)c->file_size);
        }
        return 0;
}

/* ---- indices ----------------------------------------------------------- */

static int str_compare(struct gguf_str a, struct gguf_str b) {
        int r = memcmp(a.p, b.p, MIN(a.n, b.n));
        return r ? r : (a.n > b.n) - (a.n < b.n);
}

static int index_compare(const void *a, const void *b) {
        return str_compare(((const struct index *)a)->key, ((const struct index *)b)->key);
}

static const struct index *index_find(const struct index *x, size_t n, struct gguf_str key) {
        size_t lo = 0, hi = n;
        while (lo < hi) {
                size_t mid = lo + (hi - lo) / 2;
                int r = str_compare(key, x[mid].key);
                if (r == 0)
                        return &x[mid];
                if (r < 0)
                        hi = mid;
                else
                        lo = mid + 1;
        }
        return NULL;
}

/* Sorts and refuses duplicates. */
static int index_finish(struct index *x, size_t n, const char *what, struct h_error *err) {
        char name[72];

        qsort(x, n, sizeof(*x), index_compare);
        for (size_t i = 1; i < n; i++)
                if (str_compare(x[i - 1].key, x[i].key) == 0)
                        return h_error_set(err, HEARTH_E_model_invalid, "%s %s appears twice (entries %u and %u)",
                                           what, show(x[i].key, name), MIN(x[i - 1].i, x[i].i),
                                           MAX(x[i - 1].i, x[i].i));
        return 0;
}

struct span {
        uint64_t offset, end;
        uint32_t i;
};

static int span_compare(const void *a, const void *b) {
        const struct span *x = a, *y = b;
        return (x->offset > y->offset) - (x->offset < y->offset);
}

static int check_overlap(const struct gguf *g, struct h_error *err) {
        _cleanup_(freep) struct span *s = h_new0(struct span, g->n_tensors);
        char a[72], b[72];

        if (!s)
                return -ENOMEM;
        for (size_t i = 0; i < g->n_tensors; i++)
                s[i] = (struct span){ g->tensors[i].offset, g->tensors[i].offset + g->tensors[i].bytes, (uint32_t)i };
        qsort(s, g->n_tensors, sizeof(*s), span_compare);
        for (size_t i = 1; i < g->n_tensors; i++)
                if (s[i].offset < s[i - 1].end)
                        return h_error_set(err, HEARTH_E_model_invalid,
                                           "tensors %s and %s overlap at offset %llu",
                                           show(g->tensors[s[i - 1].i].name, a), show(g->tensors[s[i].i].name, b),
                                           (unsigned long long)s[i].offset);
        return 0;
}

/* ---- the file ---------------------------------------------------------- */

/* 'least': the fewest bytes one of them takes. */
static int check_count(struct cursor *c, uint64_t n, uint64_t max, uint64_t least, const char *what) {
        if (n > max)
                return bad(c, "%llu %s; at most %llu are allowed", (unsigned long long)n, what,
                           (unsigned long long)max);
        if (n > (c->file_size - c->pos) / least)
                return h_error_counts(c->err, HEARTH_E_model_truncated, n, (c->file_size - c->pos) / least,
                                      "offset %zu: %llu %s, the file has room for %llu", c->pos,
                                      (unsigned long long)n, what,
                                      (unsigned long long)((c->file_size - c->pos) / least));
        return 0;
}

static int parse_header(struct cursor *c, struct gguf *g, uint64_t *ret_kv, uint64_t *ret_tensors) {
        int r;

        r = want(c, 4, "the magic");
        if (r < 0)
                return r;
        if (memcmp(c->p, "GGUF", 4) != 0)
                return bad(c, "not a GGUF file: it begins with %02x %02x %02x %02x, not \"GGUF\"", c->p[0],
                           c->p[1], c->p[2], c->p[3]);
        c->pos = 4;
        r = read_u32(c, &g->version, "the version");
        if (r < 0)
                return r;
        c->pos = 4;
        if ((g->version & 0xffff) == 0)
                return bad(c, "a big-endian GGUF file; convert it to little-endian");
        if (g->version < 2 || g->version > 3)
                return bad(c, "GGUF version %u; versions 2 and 3 are known", g->version);
        c->pos = 8;
        r = read_u64(c, ret_tensors, "the tensor count");
        if (r < 0)
                return r;
        r = check_count(c, *ret_tensors, MAX_TENSORS, 33, "tensors");
        if (r < 0)
                return r;
        r = read_u64(c, ret_kv, "the key count");
        if (r < 0)
                return r;
        return check_count(c, *ret_kv, MAX_KV, 13, "keys");
}

static int parse_alignment(struct parsed *p, struct h_error *err) {
        uint32_t a;
        int r = gguf_u32(&p->g, "general.alignment", 32, &a, err);
        if (r < 0)
                return r;
        if (a == 0 || (a & (a - 1)) != 0 || a > MAX_ALIGNMENT)
                return h_error_set(err, HEARTH_E_model_invalid,
                                   "key general.alignment is %u; it must be a power of two up to %u", a,
                                   MAX_ALIGNMENT);
        p->g.alignment = a;
        return 0;
}

static int parse_all(struct cursor *c, struct parsed *p) {
        struct gguf *g = &p->g;
        uint64_t n_kv, n_tensors, data;
        int r;

        r = parse_header(c, g, &n_kv, &n_tensors);
        if (r < 0)
                return r;
        g->kv_offset = c->pos;
        /* Counts become lengths only as entries are filled: gguf_free() may run at any point. */
        g->kv = h_new0(struct gguf_kv, n_kv);
        p->kv = h_new0(struct index, n_kv);
        if (!g->kv || !p->kv)
                return -ENOMEM;
        for (uint64_t i = 0; i < n_kv; i++) {
                g->n_kv = i + 1;
                r = parse_kv(c, &g->kv[i]);
                if (r < 0)
                        return r;
                p->kv[i] = (struct index){ g->kv[i].key, (uint32_t)i };
        }
        g->kv_end = c->pos;
        r = index_finish(p->kv, g->n_kv, "key", c->err);
        if (r < 0)
                return r;
        r = parse_alignment(p, c->err);
        if (r < 0)
                return r;

        g->tensors = h_new0(struct gguf_tensor, n_tensors);
        p->tensors = h_new0(struct index, n_tensors);
        if (!g->tensors || !p->tensors)
                return -ENOMEM;
        for (uint64_t i = 0; i < n_tensors; i++) {
                r = parse_tensor(c, &g->tensors[i]);
                if (r < 0)
                        return r;
                p->tensors[i] = (struct index){ g->tensors[i].name, (uint32_t)i };
                g->n_tensors = i + 1;
        }
        r = index_finish(p->tensors, g->n_tensors, "tensor", c->err);
        if (r < 0)
                return r;

        data = ((uint64_t)c->pos + g->alignment - 1) & ~(g->alignment - 1);
        g->data_offset = data;
        g->file_size = c->file_size;
        r = place_tensors(c, g);
        if (r < 0)
                return r;
        return check_overlap(g, c->err);
}

int gguf_parse(const void *mem, size_t n, uint64_t file_size, struct gguf **ret, struct h_error *err) {
        struct cursor c = { .p = mem, .n = (size_t)MIN((uint64_t)n, file_size), .file_size = file_size, .err = err };
        struct parsed *p = h_new0(struct parsed, 1);
        int r;

        if (!p)
                return h_error_from_errno(err, -ENOMEM, "reading a model's metadata");
        r = parse_all(&c, p);
        if (r < 0) {
                gguf_free(&p->g);
                return r == -EAGAIN ? r : h_error_from_errno(err, r, "reading a model's metadata");
        }
        *ret = &p->g;
        return 0;
}

struct gguf *gguf_free(struct gguf *g) {
        struct parsed *p;

        if (!g)
                return NULL;
        p = CONTAINER_OF(g, struct parsed, g);
        for (size_t i = 0; g->kv && i < g->n_kv; i++)
                free(g->kv[i].strings);
        free(g->kv);
        free(g->tensors);
        free(p->kv);
        free(p->tensors);
        free(p);
        return NULL;
}

/* ---- lookups ----------------------------------------------------------- */

static const struct gguf_kv *find(const struct gguf *g, struct gguf_str key) {
        const struct parsed *p = CONTAINER_OF(g, const struct parsed, g);
        const struct index *x = index_find(p->kv, g->n_kv, key);
        return x ? &g->kv[x->i] : NULL;
}

/*
 * Replaces a "%s" in 'key' by general.architecture. False if the result would
 * be too long or the file names no architecture (then nothing can be found).
 */
static bool expand(const struct gguf *g, const char *key, char buf[512], struct gguf_str *ret) {
        const char *at = strstr(key, "%s");
        const struct gguf_kv *arch;
        size_t head, tail;

        if (!at) {
                *ret = (struct gguf_str){ key, strlen(key) };
                return true;
        }
        arch = find(g, (struct gguf_str){ "general.architecture", 20 });
        head = (size_t)(at - key);
        tail = strlen(at + 2);
        if (!arch || arch->type != GGUF_STRING || arch->n > 128 || head + arch->n + tail >= 512)
                return false;
        memcpy(buf, key, head);
        memcpy(buf + head, arch->data, arch->n);
        memcpy(buf + head + arch->n, at + 2, tail);
        buf[head + arch->n + tail] = 0;
        *ret = (struct gguf_str){ buf, head + arch->n + tail };
        return true;
}

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key) {
        struct gguf_str k;
        char buf[512];
        return expand(g, key, buf, &k) ? find(g, k) : NULL;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name) {
        const struct parsed *p = CONTAINER_OF(g, const struct parsed, g);
        const struct index *x = index_find(p->tensors, g->n_tensors, (struct gguf_str){ name, strlen(name) });
        return x ? &g->tensors[x->i] : NULL;
}

const char *gguf_shown_key(const struct gguf *g, const char *key, char buf[512]) {
        struct gguf_str k;
        return expand(g, key, buf, &k) && k.p == buf ? buf : key;
}
