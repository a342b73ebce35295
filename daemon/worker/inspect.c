/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --inspect [--json] [--verify] FILE: what a GGUF file says it is. Reads its
 * metadata only, unless --verify asks for a look at every weight.
 * Text from the file is printed escaped: it must not steer a terminal.
 */
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/shown.h"
#include "base/utf8.h"
#include "daemon/worker/worker.h"
#include "engine/engine.h"
#include "engine/gguf.h"

#define FIRST_READ (1u << 20)
#define MAX_METADATA (1u << 30)
#define SHOWN_ITEMS 4u
#define SHOWN_TEXT 200u

static int read_metadata(int fd, uint64_t size, uint8_t **ret_mem, struct gguf **ret, struct h_error *err) {
        uint8_t *mem = NULL, *more;
        size_t have = 0, want = FIRST_READ;
        int r;

        for (;;) {
                want = (size_t)MIN((uint64_t)want, size);
                more = h_realloc(mem, want + 1);
                if (!more) {
                        free(mem);
                        return -ENOMEM;
                }
                mem = more;
                while (have < want) {
                        ssize_t n = pread(fd, mem + have, want - have, (off_t)have);
                        if (n < 0 && errno == EINTR)
                                continue;
                        if (n < 0) {
                                free(mem);
                                return h_error_set(err, HEARTH_E_io, "reading failed at byte %zu: %s", have, strerror(errno));
                        }
                        if (n == 0)
                                break;
                        have += (size_t)n;
                }
                r = gguf_parse(mem, have, size, ret, err);
                if (r != -EAGAIN) {
                        if (r < 0)
                                free(mem);
                        else
                                *ret_mem = mem;
                        return r;
                }
                if (have == size || want >= MAX_METADATA) {
                        free(mem);
                        return h_error_counts(err, HEARTH_E_model_truncated, have + 1, size,
                                              "the file ends within its metadata, at byte %llu", (unsigned long long)size);
                }
                want = MIN(want * 4, (size_t)MAX_METADATA);
        }
}

/* ---- values ---- */

static uint64_t load(const uint8_t *p, unsigned n) {
        uint64_t v = 0;
        for (unsigned i = 0; i < n; i++)
                v |= (uint64_t)p[i] << (8 * i);
        return v;
}

static unsigned width(enum gguf_type t) {
        switch (t) {
        case GGUF_U8: case GGUF_I8: case GGUF_BOOL: return 1;
        case GGUF_U16: case GGUF_I16: return 2;
        case GGUF_U32: case GGUF_I32: case GGUF_F32: return 4;
        case GGUF_U64: case GGUF_I64: case GGUF_F64: return 8;
        case GGUF_STRING: case GGUF_ARRAY: case _GGUF_TYPE_MAX: break;
        }
        return 0;
}

static json_t *text_value(struct gguf_str s, size_t max) {
        size_t n = MIN(s.n, max), valid = n;

        if (utf8_valid(s.p, n, &valid))
                return json_stringn(s.p, n);
        return json_stringn(s.p, valid); /* up to the first bad byte */
}

static json_t *scalar(enum gguf_type t, const uint8_t *p) {
        uint64_t v = load(p, width(t));
        float f;
        double d;

        switch (t) {
        case GGUF_U8: case GGUF_U16: case GGUF_U32: case GGUF_U64: return json_integer((json_int_t)v);
        case GGUF_I8: return json_integer((int8_t)v);
        case GGUF_I16: return json_integer((int16_t)v);
        case GGUF_I32: return json_integer((int32_t)v);
        case GGUF_I64: return json_integer((json_int_t)v);
        case GGUF_BOOL: return json_boolean(v != 0);
        case GGUF_F32: {
                uint32_t u = (uint32_t)v;
                memcpy(&f, &u, 4);
                return json_real(f); /* NULL for NaN and infinity */
        }
        case GGUF_F64:
                memcpy(&d, &v, 8);
                return json_real(d);
        case GGUF_STRING: case GGUF_ARRAY: case _GGUF_TYPE_MAX: break;
        }
        return NULL;
}

static json_t *value_of(const struct gguf_kv *kv, size_t max_items, size_t max_text) {
        json_t *a, *v;

        if (kv->type == GGUF_STRING)
                return text_value(kv->strings ? kv->strings[0] : (struct gguf_str){ (const char *)kv->data, kv->n }, max_text);
        if (kv->type != GGUF_ARRAY) {
                v = scalar(kv->type, kv->data);
                return v ? v : json_null();
        }
        a = json_array();
        for (uint64_t i = 0; a && i < kv->n && i < max_items; i++) {
                if (kv->elem == GGUF_STRING)
                        v = text_value(kv->strings[i], max_text);
                else
                        v = scalar(kv->elem, kv->data + i * width(kv->elem));
                json_array_append_new(a, v ? v : json_null());
        }
        return a;
}

/* ---- output ---- */

static void print_some(const char *p, size_t n, size_t max) {
        if (shown_write(stdout, p, n, max, SHOWN_LINE) < n)
                printf("… (%zu bytes)", n);
}

/* The end of a line on stderr: a message may quote the file. */
static void say(const char *message) {
        shown_write(stderr, message, strlen(message), SIZE_MAX, SHOWN_LINES);
        fputc('\n', stderr);
}

struct type_sum { uint64_t n, weights, bytes; };

static void sum_types(const struct gguf *g, struct type_sum sums[_K_TYPE_MAX], uint64_t *ret_weights) {
        *ret_weights = 0;
        for (size_t i = 0; i < g->n_tensors; i++) {
                const struct gguf_tensor *t = &g->tensors[i];
                uint64_t n = t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3];

                sums[t->type].n++;
                sums[t->type].weights += n;
                sums[t->type].bytes += t->bytes;
                *ret_weights += n;
        }
}

static void print_human(const char *path, const struct gguf *g, const struct type_sum *sums, uint64_t weights) {
        print_some(path, strlen(path), SIZE_MAX);
        printf(": GGUF version %u, %llu bytes, %zu tensors, %llu weights\n\nmetadata\n", g->version,
               (unsigned long long)g->file_size, g->n_tensors, (unsigned long long)weights);
        for (size_t i = 0; i < g->n_kv; i++) {
                const struct gguf_kv *kv = &g->kv[i];
                json_t *v = value_of(kv, SHOWN_ITEMS, SHOWN_TEXT + 1);
                char *s = v && !json_is_string(v) ? json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9)) : NULL;

                fputs("  ", stdout);
                print_some(kv->key.p, kv->key.n, 256);
                fputs(" = ", stdout);
                if (json_is_string(v))
                        print_some(json_string_value(v), json_string_length(v), SHOWN_TEXT);
                else if (s)
                        print_some(s, strlen(s), 4 * SHOWN_TEXT);
                if (kv->type == GGUF_ARRAY && kv->n > SHOWN_ITEMS)
                        printf(" … (%llu)", (unsigned long long)kv->n);
                putchar('\n');
                free(s);
                json_decref(v);
        }
        puts("\ntensors by type");
        for (unsigned t = 0; t < _K_TYPE_MAX; t++)
                if (sums[t].n)
                        printf("  %-8s %6llu tensors %15llu weights %15llu bytes\n", k_type_name((enum k_type)t),
                               (unsigned long long)sums[t].n, (unsigned long long)sums[t].weights,
                               (unsigned long long)sums[t].bytes);
        puts("\ntensors");
        for (size_t i = 0; i < g->n_tensors; i++) {
                const struct gguf_tensor *t = &g->tensors[i];

                fputs("  ", stdout);
                print_some(t->name.p, t->name.n, 256);
                printf("  %s  [", k_type_name(t->type));
                for (uint32_t d = 0; d < t->n_dims; d++)
                        printf("%s%llu", d ? ", " : "", (unsigned long long)t->dim[d]);
                printf("]  %llu bytes\n", (unsigned long long)t->bytes);
        }
}

/* Pieces of a dump end between characters: they are a string's runs, or punctuation. */
static int write_json(const char *p, size_t n, void *f) {
        return shown_write(f, p, n, SIZE_MAX, SHOWN_JSON) == n && !ferror(f) ? 0 : -1;
}

static int print_json(const char *path, const struct gguf *g, const struct type_sum *sums, uint64_t weights) {
        json_t *root = json_object(), *meta = json_object(), *types = json_object(), *tensors = json_array();
        int r;

        json_object_set_new(root, "file", json_string(path));
        json_object_set_new(root, "version", json_integer(g->version));
        json_object_set_new(root, "bytes", json_integer((json_int_t)g->file_size));
        json_object_set_new(root, "n_tensors", json_integer((json_int_t)g->n_tensors));
        json_object_set_new(root, "n_weights", json_integer((json_int_t)weights));
        for (size_t i = 0; i < g->n_kv; i++) {
                char *key = h_strndup(g->kv[i].key.p, g->kv[i].key.n);
                if (key)
                        json_object_set_new(meta, key, value_of(&g->kv[i], SIZE_MAX, SIZE_MAX));
                free(key);
        }
        for (unsigned t = 0; t < _K_TYPE_MAX; t++)
                if (sums[t].n)
                        json_object_set_new(types, k_type_name((enum k_type)t),
                                            json_pack("{s:I, s:I, s:I}", "tensors", (json_int_t)sums[t].n, "weights",
                                                      (json_int_t)sums[t].weights, "bytes", (json_int_t)sums[t].bytes));
        for (size_t i = 0; i < g->n_tensors; i++) {
                const struct gguf_tensor *t = &g->tensors[i];
                json_t *o = json_object(), *shape = json_array();

                for (uint32_t d = 0; d < t->n_dims; d++)
                        json_array_append_new(shape, json_integer((json_int_t)t->dim[d]));
                json_object_set_new(o, "name", text_value(t->name, SIZE_MAX));
                json_object_set_new(o, "type", json_string(k_type_name(t->type)));
                json_object_set_new(o, "shape", shape);
                json_object_set_new(o, "bytes", json_integer((json_int_t)t->bytes));
                json_array_append_new(tensors, o);
        }
        json_object_set_new(root, "metadata", meta);
        json_object_set_new(root, "types", types);
        json_object_set_new(root, "tensors", tensors);
        r = json_dump_callback(root, write_json, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
        putchar('\n');
        json_decref(root);
        return r;
}

/* The parts beside the first one, opened before this process gives up opening files; for one that can't be: -errno. */
#define MAX_PARTS 1024u
#define MARK "-00001-of-"
struct parts { const char *first; uint32_t n; int *fd; };

/* The first one's name with another number. */
static int part_path(const char *first, uint32_t part, char *ret, size_t size) {
        const char *mark = strstr(first, MARK);
        size_t n = strlen(first);

        ret[0] = 0;
        if (!mark || n >= size)
                return -ENAMETOOLONG;
        memcpy(ret, first, n + 1);
        part++;
        for (char *digit = ret + (mark - first) + 5; *digit != '-'; digit--, part /= 10)
                *digit = (char)('0' + part % 10);
        return 0;
}

static int open_parts(const char *first, struct parts *ret) {
        const char *mark = strstr(first, MARK);
        char path[4096];
        unsigned n = 0;

        *ret = (struct parts){ .first = first };
        if (!mark || sscanf(mark + strlen(MARK), "%5u", &n) != 1 || n > MAX_PARTS)
                return 0;
        ret->fd = h_new0(int, n);
        if (!ret->fd)
                return -ENOMEM;
        for (ret->n = 0; ret->n < n; ret->n++) {
                int r = part_path(first, ret->n, path, sizeof(path));
                int fd = r < 0 ? r : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
                ret->fd[ret->n] = fd >= 0 || r < 0 ? fd : -errno;
        }
        return 0;
}

static int open_part(void *ud, uint32_t part, uint32_t n_parts, int *ret_fd, struct h_error *err) {
        struct parts *p = ud;
        char path[4096];

        if (p->n != n_parts || part >= p->n)
                return h_error_set(err, HEARTH_E_model_invalid,
                                   "%s is part 1 of %u, but its name has no \"-00001-of-%05u\" to find the others by", p->first,
                                   n_parts, n_parts);
        if (p->fd[part] < 0) {
                (void)part_path(p->first, part, path, sizeof(path));
                return h_error_set(err, HEARTH_E_model_not_found, "part %u of %u: %s: %s", part + 1, n_parts, path, strerror(-p->fd[part]));
        }
        *ret_fd = fcntl(p->fd[part], F_DUPFD_CLOEXEC, 0); /* asked for twice: to be verified, and whether the engine runs it */
        return *ret_fd < 0 ? -errno : 0;
}

static void close_parts(struct parts *p) {
        for (uint32_t i = 0; i < p->n; i++)
                if (p->fd[i] >= 0)
                        close(p->fd[i]);
        free(p->fd);
}

/* Not an error: a file may be looked at without being run. */
static void say_if_it_runs(const struct eng_source *src) {
        struct eng_image_options o = { .backend = ENG_CPU };
        struct h_error err = {};
        int r = eng_image_check(src, &o, NULL, &err);

        if (r < 0)
                h_error_from_errno(&err, r, src->name);
        fputs(r < 0 ? "the engine can't run it: " : "the engine can run it", stderr);
        say(r < 0 ? err.message : "");
}

static int check_weights(const char *program, const char *path, int fd, struct parts *parts) {
        struct eng_source src = { .fds = &fd, .n_fds = 1, .name = path, .open_part = open_part, .ud = parts };
        struct h_error err = {};
        int r = eng_source_verify(&src, NULL, &err);

        if (r < 0) {
                h_error_from_errno(&err, r, path);
                fprintf(stderr, "%s: ", program);
                say(err.message);
                return hearth_code_exit(err.code);
        }
        fprintf(stderr, "every weight is finite\n");
        say_if_it_runs(&src);
        return 0;
}

int worker_inspect(const struct log *log, const char *path, bool json, bool verify) {
        _cleanup_(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        struct type_sum sums[_K_TYPE_MAX] = {};
        struct parts parts = {};
        struct h_error err = {};
        struct gguf *g = NULL;
        uint8_t *mem = NULL;
        uint64_t weights;
        struct stat st;
        int r;

        if (fd < 0 || fstat(fd, &st) < 0)
                r = h_error_set(&err, HEARTH_E_model_not_found, "%s", strerror(errno));
        else if (!S_ISREG(st.st_mode))
                r = h_error_set(&err, HEARTH_E_model_not_found, "not a regular file");
        else if ((r = verify ? open_parts(path, &parts) : 0) == 0 &&
                 (r = sandbox_enter(SANDBOX_INSPECT, SANDBOX_AUTO, &(struct sandbox_bounds){ .memfd = -1 }, log, false, &err)) == 0)
                r = read_metadata(fd, (uint64_t)st.st_size, &mem, &g, &err);
        if (r < 0) {
                h_error_from_errno(&err, r, "reading");
                fprintf(stderr, "%s: ", log->program);
                shown_write(stderr, path, strlen(path), SIZE_MAX, SHOWN_LINE);
                fputs(": ", stderr);
                say(err.message);
                close_parts(&parts);
                return hearth_code_exit(err.code);
        }
        sum_types(g, sums, &weights);
        if (json)
                r = print_json(path, g, sums, weights);
        else
                print_human(path, g, sums, weights);
        gguf_free(g);
        free(mem);
        r = r != 0 || fflush(stdout) != 0 ? 74 : verify ? check_weights(log->program, path, fd, &parts) : 0;
        close_parts(&parts);
        return r;
}
