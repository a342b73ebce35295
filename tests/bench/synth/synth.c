/* SPDX-License-Identifier: Apache-2.0 */
/* The file: its head in memory, its data made when read. See synth.h. */
#include "tests/bench/synth/synth.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

enum { ALIGN = 32, HEAD_MAX = 8 << 20, TENSORS_MAX = 16384 };

struct bytes { uint8_t *p; size_t n, cap; };

struct synth {
        const char *arch;
        struct bytes kv, head;
        uint64_t n_kv, data_bytes, seed;
        struct synth_tensor *tensor; /* by offset */
        size_t n_tensors, cap_tensors;
        struct synth_facts facts;
        int failed;
        char why[256];
};

void synth_fail(struct synth *s, const char *fmt, ...) {
        va_list ap;

        if (s->failed)
                return;
        s->failed = -EINVAL;
        va_start(ap, fmt);
        vsnprintf(s->why, sizeof(s->why), fmt, ap);
        va_end(ap);
}

static void put(struct synth *s, struct bytes *b, const void *src, size_t n) {
        if (s->failed)
                return;
        if (b->n + n > b->cap) {
                size_t cap = (b->n + n) * 2;
                uint8_t *p = cap <= HEAD_MAX ? h_realloc(b->p, cap) : NULL;
                if (!p) {
                        synth_fail(s, "out of memory for the file's head");
                        return;
                }
                b->p = p;
                b->cap = cap;
        }
        memcpy(b->p + b->n, src, n);
        b->n += n;
}
static void put32(struct synth *s, struct bytes *b, uint32_t v) { put(s, b, &v, 4); }
static void put64(struct synth *s, struct bytes *b, uint64_t v) { put(s, b, &v, 8); }
static void put_text(struct synth *s, struct bytes *b, const char *t) {
        put64(s, b, strlen(t));
        put(s, b, t, strlen(t));
}

/* ---- metadata ------------------------------------------------------------------ */

static void key(struct synth *s, const char *name, uint32_t type) {
        char full[160];

        snprintf(full, sizeof(full), "%s%s", *name == '.' ? s->arch : "", name);
        put_text(s, &s->kv, full);
        put32(s, &s->kv, type);
        s->n_kv++;
}

void synth_u32(struct synth *s, const char *name, uint32_t v) {
        key(s, name, 4);
        put32(s, &s->kv, v);
}

void synth_f32(struct synth *s, const char *name, float v) {
        key(s, name, 6);
        put(s, &s->kv, &v, 4);
}

void synth_str(struct synth *s, const char *name, const char *v) {
        key(s, name, 8);
        put_text(s, &s->kv, v);
}

void synth_i32s(struct synth *s, const char *name, const int32_t *v, uint32_t n) {
        key(s, name, 9);
        put32(s, &s->kv, 5);
        put64(s, &s->kv, n);
        put(s, &s->kv, v, n * sizeof(*v));
}

void synth_bools(struct synth *s, const char *name, const bool *v, uint32_t n) {
        key(s, name, 9);
        put32(s, &s->kv, 7);
        put64(s, &s->kv, n);
        for (uint32_t i = 0; i < n; i++)
                put(s, &s->kv, v[i] ? "\1" : "\0", 1);
}

void synth_set_arch(struct synth *s, const char *arch) { s->arch = arch; }

void synth_add(struct synth *s, const char *name, const struct synth_type *type, enum synth_init init, enum synth_use use, uint64_t a,
               uint64_t b, uint64_t c) {
        struct synth_tensor *t;

        if (s->failed)
                return;
        if (a % type->block) {
                synth_fail(s, "%s: a row of %" PRIu64 " is no whole number of %s's blocks of %u", name, a, type->name, type->block);
                return;
        }
        if (s->n_tensors == s->cap_tensors) {
                size_t cap = s->cap_tensors ? s->cap_tensors * 2 : 256;
                t = cap <= TENSORS_MAX ? h_realloc(s->tensor, cap * sizeof(*t)) : NULL;
                if (!t) {
                        synth_fail(s, "out of memory for %zu tensors", cap);
                        return;
                }
                s->tensor = t;
                s->cap_tensors = cap;
        }
        t = &s->tensor[s->n_tensors++];
        *t = (struct synth_tensor){ .type = type, .init = init, .use = use, .n_dims = c ? 3 : b ? 2 : 1, .ne = { a, b ? b : 1, c ? c : 1 },
                                    .offset = s->data_bytes };
        snprintf(t->name, sizeof(t->name), "%s", name);
        t->bytes = t->ne[0] / type->block * type->bytes * t->ne[1] * t->ne[2];
        s->data_bytes += (t->bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* ---- open -------------------------------------------------------------------------- */

static void build_head(struct synth *s) {
        struct bytes *h = &s->head;

        put(s, h, "GGUF", 4);
        put32(s, h, 3);
        put64(s, h, s->n_tensors);
        put64(s, h, s->n_kv);
        put(s, h, s->kv.p, s->kv.n);
        for (size_t i = 0; i < s->n_tensors; i++) {
                const struct synth_tensor *t = &s->tensor[i];
                put_text(s, h, t->name);
                put32(s, h, t->n_dims);
                put(s, h, t->ne, t->n_dims * sizeof(*t->ne));
                put32(s, h, t->type->id);
                put64(s, h, t->offset);
        }
        while (!s->failed && h->n % ALIGN)
                put(s, h, "", 1);
}

static bool number(const char *text, const char *name, uint64_t *ret) {
        size_t n = strlen(name);
        char *end;

        if (strncmp(text, name, n) != 0)
                return false;
        errno = 0;
        *ret = strtoull(text + n, &end, 10);
        return errno == 0 && *end == 0 && end > text + n && text[n] != '-';
}

int synth_open(const char *spec, struct synth **ret, char why[256]) {
        struct synth *s = h_calloc(1, sizeof(*s));
        char text[200], *save = NULL, *model, *type, *option;
        uint64_t layers = 0;
        uint32_t used = 0, experts = 0;
        const struct synth_type *t;
        bool tiny = false;
        int r;

        if (!s)
                return -ENOMEM;
        s->seed = 1;
        snprintf(text, sizeof(text), "%s", spec);
        model = strtok_r(text, ":", &save);
        type = strtok_r(NULL, ":", &save);
        t = type ? synth_type_find(type) : NULL;
        if (!model || !t)
                synth_fail(s, "\"%s\": expected MODEL:TYPE, with a type such as q4_k", spec);
        while (!s->failed && (option = strtok_r(NULL, ":", &save))) {
                if (strcmp(option, "tiny") == 0)
                        tiny = true;
                else if (!number(option, "layers=", &layers) && !number(option, "seed=", &s->seed))
                        synth_fail(s, "\"%s\": unknown option (known: layers=N, seed=N, tiny)", option);
        }
        if (!s->failed)
                synth_describe(s, model, t, (uint32_t)(layers > 1000 ? 1000 : layers), tiny, &used, &experts);
        if (!s->failed)
                build_head(s);
        if (s->failed) {
                r = s->failed;
                snprintf(why, 256, "%s", s->why);
                synth_close(s);
                return r;
        }
        snprintf(s->facts.model, sizeof(s->facts.model), "%s", model);
        snprintf(s->facts.type, sizeof(s->facts.type), "%s", type);
        s->facts.n_tensors = (uint32_t)s->n_tensors;
        s->facts.file = s->head.n + s->data_bytes;
        for (size_t i = 0; i < s->n_tensors; i++) {
                const struct synth_tensor *x = &s->tensor[i];
                s->facts.total += x->bytes;
                s->facts.by_use[x->use] += x->bytes;
                if (strcmp(x->name, "token_embd.weight") == 0)
                        s->facts.n_vocab = (uint32_t)x->ne[1];
                if (strstr(x->name, ".attn_norm.weight"))
                        s->facts.n_layers++;
        }
        s->facts.decode = s->facts.by_use[SYNTH_DENSE] + (experts ? s->facts.by_use[SYNTH_EXPERT] / experts * used : 0);
        *ret = s;
        return 0;
}

struct synth *synth_close(struct synth *s) {
        if (!s)
                return NULL;
        free(s->kv.p);
        free(s->head.p);
        free(s->tensor);
        free(s);
        return NULL;
}

const struct synth_facts *synth_facts(const struct synth *s) { return &s->facts; }

void synth_facts_json(const struct synth_facts *f, FILE *to) {
        fprintf(to, "{\"model\": \"%s\", \"type\": \"%s\", \"layers\": %u, \"tensors\": %u, \"vocab\": %u, \"file\": %" PRIu64
                ", \"total\": %" PRIu64 ", \"row\": %" PRIu64 ", \"dense\": %" PRIu64 ", \"expert\": %" PRIu64 ", \"draft\": %" PRIu64 ", \"decode\": %" PRIu64 "}\n",
                f->model, f->type, f->n_layers, f->n_tensors, f->n_vocab, f->file, f->total, f->by_use[SYNTH_ROW],
                f->by_use[SYNTH_DENSE], f->by_use[SYNTH_EXPERT], f->by_use[SYNTH_DRAFT], f->decode);
}

/* ---- read ------------------------------------------------------------------------------ */

/* The last tensor that begins at or before 'at'. */
static size_t find(const struct synth *s, uint64_t at) {
        size_t lo = 0, hi = s->n_tensors;

        while (hi - lo > 1) {
                size_t mid = (lo + hi) / 2;
                if (s->tensor[mid].offset <= at)
                        lo = mid;
                else
                        hi = mid;
        }
        return lo;
}

/* Up to n bytes from 'at' of the data, within one chunk of one tensor or the gap behind it. */
static size_t read_piece(const struct synth *s, uint8_t *to, size_t n, uint64_t at) {
        size_t i = find(s, at);
        const struct synth_tensor *t = &s->tensor[i];
        uint64_t in = at - t->offset, per = synth_chunk_blocks(t->type), chunk, blocks;
        uint8_t buf[SYNTH_CHUNK];
        size_t have, skip;

        if (in >= t->bytes) { /* padding up to the next */
                uint64_t end = i + 1 < s->n_tensors ? s->tensor[i + 1].offset : s->data_bytes;
                have = end - at < n ? (size_t)(end - at) : n;
                memset(to, 0, have);
                return have;
        }
        chunk = in / (per * t->type->bytes);
        blocks = t->bytes / t->type->bytes - chunk * per;
        if (blocks > per)
                blocks = per;
        skip = (size_t)(in - chunk * per * t->type->bytes);
        have = (size_t)blocks * t->type->bytes - skip;
        if (skip == 0 && n >= have) {
                synth_fill(t, chunk, blocks, to, s->seed, i);
                return have;
        }
        synth_fill(t, chunk, blocks, buf, s->seed, i);
        if (have > n)
                have = n;
        memcpy(to, buf + skip, have);
        return have;
}

ssize_t synth_read(const struct synth *s, void *buf, size_t n, uint64_t off) {
        uint8_t *to = buf;
        size_t done = 0;

        if (off >= s->facts.file)
                return 0;
        if (n > s->facts.file - off)
                n = (size_t)(s->facts.file - off);
        if (off < s->head.n) {
                done = s->head.n - off < n ? (size_t)(s->head.n - off) : n;
                memcpy(to, s->head.p + off, done);
        }
        while (done < n)
                done += read_piece(s, to + done, n - done, off + done - s->head.n);
        return (ssize_t)done;
}
