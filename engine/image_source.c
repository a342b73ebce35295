/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a model's files: their beginnings (metadata) into memory, the rest on
 * demand. Only pread, never a mapping: a file that shrinks or fails gives an
 * error, not a signal.
 *
 * Split models: the first file says "part split.no of split.count"; every other
 * part must say the same of itself, and together they must hold
 * split.tensors.count tensors, none twice.
 */
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "engine/image.h"

#define FIRST_READ ((size_t)1 << 20)
#define MAX_PARTS 1024u

static const char *source_name(const struct image_source *s) {
        return s->src->name ? s->src->name : "model";
}

/* "name" or "name (part 2 of 3)" before the message. */
static int prefix(const struct image_source *s, uint32_t part, struct h_error *err) {
        if (s->n_parts > 1)
                return h_error_prefix(err, "%s (part %u of %u)", source_name(s), part + 1, s->n_parts);
        return h_error_prefix(err, "%s", source_name(s));
}

static ssize_t read_some(const struct eng_source *src, int fd, void *buf, size_t n, uint64_t off) {
        ssize_t r;

        if (fault_hit(FAULT_READ)) {
                errno = EIO;
                return -1;
        }
        do
                r = src->pread ? src->pread(src->ud, fd, buf, n, off) : pread(fd, buf, n, (off_t)off);
        while (r < 0 && errno == EINTR);
        return r;
}

int image_source_read(const struct image_source *s, uint32_t part, void *buf, size_t n, uint64_t off,
                      struct h_error *err) {
        const struct image_part *p = &s->part[part];
        uint8_t *at = buf;

        while (n > 0) {
                ssize_t r = read_some(s->src, p->fd, at, MIN(n, (size_t)64 << 20), off);
                if (r < 0) {
                        h_error_set(err, HEARTH_E_io, "reading %zu bytes at offset %llu: %s", n,
                                    (unsigned long long)off, strerror(errno));
                        return prefix(s, part, err);
                }
                if (r == 0) {
                        h_error_counts(err, HEARTH_E_model_truncated, off + n, off,
                                       "the file ended at offset %llu while it was read; it had %llu bytes",
                                       (unsigned long long)off, (unsigned long long)p->size);
                        return prefix(s, part, err);
                }
                at += r;
                off += (uint64_t)r;
                n -= (size_t)r;
        }
        return 0;
}

static int part_stat(struct image_part *p, int fd) {
        struct stat st;

        if (fstat(fd, &st) < 0)
                return -errno;
        p->dev = st.st_dev;
        p->ino = st.st_ino;
        p->size = (uint64_t)st.st_size;
        p->mtime = st.st_mtim;
        p->ctime = st.st_ctim;
        return S_ISREG(st.st_mode) ? 0 : -EISDIR;
}

int image_source_unchanged(const struct image_source *s, struct h_error *err) {
        for (uint32_t i = 0; i < s->n_parts; i++) {
                const struct image_part *p = &s->part[i];
                struct image_part now = { 0 };
                int r = part_stat(&now, p->fd);

                if (r < 0)
                        return h_error_from_errno(err, r, source_name(s));
                if (now.dev != p->dev || now.ino != p->ino || now.size != p->size ||
                    memcmp(&now.mtime, &p->mtime, sizeof(now.mtime)) != 0 ||
                    memcmp(&now.ctime, &p->ctime, sizeof(now.ctime)) != 0) {
                        h_error_counts(err, HEARTH_E_model_changed, p->size, now.size,
                                       "the file changed while it was read (%llu bytes before, %llu now); load it "
                                       "again when it is complete", (unsigned long long)p->size,
                                       (unsigned long long)now.size);
                        return prefix(s, i, err);
                }
        }
        return 0;
}

/* Reads and parses a file's beginning, doubling until all of it is there. */
static int part_open(struct image_source *s, uint32_t i, int fd, struct h_error *err) {
        struct image_part *p = &s->part[i];
        size_t n = FIRST_READ;
        int r;

        p->fd = fd;
        r = part_stat(p, fd);
        if (r == -EISDIR) {
                h_error_set(err, HEARTH_E_model_invalid, "not a regular file");
                return prefix(s, i, err);
        }
        if (r < 0)
                return h_error_from_errno(err, r, source_name(s));
        for (;;) {
                uint8_t *mem;
                size_t have = p->mem_bytes;

                n = (size_t)MIN((uint64_t)n, p->size);
                mem = h_realloc(p->mem, n);
                if (!mem)
                        return h_error_from_errno(err, -ENOMEM, source_name(s));
                p->mem = mem;
                r = image_source_read(s, i, mem + have, n - have, have, err);
                if (r < 0)
                        return r;
                p->mem_bytes = n;
                r = gguf_parse(mem, n, p->size, &p->g, err);
                if (r != -EAGAIN)
                        return r < 0 ? prefix(s, i, err) : 0;
                if (n == p->size)
                        return h_error_set(err, HEARTH_E_internal, "%s: the parser wants more than the file",
                                           source_name(s));
                n *= 2;
        }
}

struct split {
        uint32_t no, count, tensors;
};

static int part_split(const struct image_part *p, struct split *ret, struct h_error *err) {
        int r;
        if ((r = gguf_u32(p->g, "split.no", 0, &ret->no, err)) < 0 ||
            (r = gguf_u32(p->g, "split.count", 1, &ret->count, err)) < 0 ||
            (r = gguf_u32(p->g, "split.tensors.count", 0, &ret->tensors, err)) < 0)
                return r;
        if (ret->count == 0 || ret->count > MAX_PARTS)
                return h_error_set(err, HEARTH_E_model_invalid, "key split.count is %u; 1..%u are allowed",
                                   ret->count, MAX_PARTS);
        return 0;
}

static int missing_part(struct image_source *s, uint32_t part, struct h_error *err) {
        return h_error_counts(err, HEARTH_E_model_not_found, s->n_parts, part,
                              "%s: part %u of %u is missing; put all parts of the split model in one folder",
                              source_name(s), part + 1, s->n_parts);
}

static int other_parts(struct image_source *s, const struct split *first, struct h_error *err) {
        for (uint32_t i = 1; i < first->count; i++) {
                struct split sp;
                int r, fd;

                if (i < s->src->n_fds) {
                        fd = s->src->fds[i];
                } else if (s->src->open_part) {
                        r = s->src->open_part(s->src->ud, i, first->count, &fd, err);
                        if (r < 0)
                                return err && err->code != HEARTH_OK ? r : missing_part(s, i, err);
                        s->part[i].own_fd = true;
                } else {
                        return missing_part(s, i, err);
                }
                r = part_open(s, i, fd, err);
                if (r < 0)
                        return r;
                r = part_split(&s->part[i], &sp, err);
                if (r < 0)
                        return prefix(s, i, err);
                if (sp.no != i || sp.count != first->count || sp.tensors != first->tensors) {
                        h_error_set(err, HEARTH_E_model_invalid,
                                    "foreign part: it says it is part %u of %u of a model of %u tensors; the first "
                                    "part is of a model of %u", sp.no + 1, sp.count, sp.tensors, first->tensors);
                        return prefix(s, i, err);
                }
        }
        return 0;
}

/* The parts don't add up: one that has what an earlier one has is of another model or of another cut of this one. */
static int wrong_count(const struct image_source *s, uint32_t expected, struct h_error *err) {
        for (uint32_t i = 1; i < s->n_parts; i++)
                for (size_t j = 0; j < s->part[i].g->n_tensors; j++) {
                        const struct gguf_str *name = &s->part[i].g->tensors[j].name;
                        char text[IMAGE_NAME];

                        if (name->n >= sizeof(text))
                                continue;
                        memcpy(text, name->p, name->n);
                        text[name->n] = 0;
                        for (uint32_t k = 0; k < i; k++)
                                if (gguf_find_tensor(s->part[k].g, text)) {
                                        h_error_counts(err, HEARTH_E_model_invalid, expected, s->n_tensors,
                                                       "foreign part, or part %u is: both hold tensor %s; the parts hold %llu tensors, "
                                                       "key split.tensors.count says %u", k + 1, text,
                                                       (unsigned long long)s->n_tensors, expected);
                                        return prefix(s, i, err);
                                }
                }
        return h_error_counts(err, HEARTH_E_model_invalid, expected, s->n_tensors,
                              "%s: its %u parts hold %llu tensors, key split.tensors.count says %u",
                              source_name(s), s->n_parts, (unsigned long long)s->n_tensors, expected);
}

static int open_all(struct image_source *s, struct h_error *err) {
        struct image_part *parts;
        struct split first;
        int r;

        s->n_parts = 1;
        s->part = h_new0(struct image_part, 1);
        if (!s->part)
                return h_error_from_errno(err, -ENOMEM, source_name(s));
        r = part_open(s, 0, s->src->fds[0], err);
        if (r < 0)
                return r;
        r = part_split(&s->part[0], &first, err);
        if (r < 0)
                return prefix(s, 0, err);
        if (first.no != 0)
                return h_error_set(err, HEARTH_E_model_invalid,
                                   "%s is part %u of %u of a split model; name its first part instead",
                                   source_name(s), first.no + 1, first.count);
        if (s->src->n_fds > first.count)
                return h_error_set(err, HEARTH_E_model_invalid, "%s: %zu files were given, the model has %u",
                                   source_name(s), s->src->n_fds, first.count);
        parts = h_realloc(s->part, first.count * sizeof(*parts));
        if (!parts)
                return h_error_from_errno(err, -ENOMEM, source_name(s));
        memset(parts + 1, 0, (first.count - 1) * sizeof(*parts));
        for (uint32_t i = 1; i < first.count; i++)
                parts[i].fd = -1;
        s->part = parts;
        s->n_parts = first.count;
        r = other_parts(s, &first, err);
        if (r < 0)
                return r;
        for (uint32_t i = 0; i < s->n_parts; i++) {
                for (size_t j = 0; j < s->part[i].g->n_tensors; j++)
                        s->part[i].g->tensors[j].part = i;
                s->n_tensors += s->part[i].g->n_tensors;
        }
        if (s->n_parts > 1 && s->n_tensors != first.tensors)
                return wrong_count(s, first.tensors, err);
        return 0;
}

int image_source_open(const struct eng_source *src, struct image_source *ret, struct h_error *err) {
        struct image_source s = { .src = src };
        int r;

        if (src->n_fds == 0)
                return h_error_set(err, HEARTH_E_model_not_found, "%s: no file given", source_name(&s));
        r = open_all(&s, err);
        if (r < 0) {
                image_source_close(&s);
                return r;
        }
        *ret = s;
        return 0;
}

void image_source_close(struct image_source *s) {
        for (uint32_t i = 0; s->part && i < s->n_parts; i++) {
                gguf_free(s->part[i].g);
                free(s->part[i].mem);
                if (s->part[i].own_fd)
                        fd_close(s->part[i].fd);
        }
        free(s->part);
        memset(s, 0, sizeof(*s));
}
