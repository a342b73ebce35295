/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens an image: maps it read-only and checks all of its manifest before
 * anyone follows an offset in it. The image may come from another process, so
 * it is input like any file; when sealed, what was checked can't change.
 *
 * Invariants of an open image: rows are sorted by name (so unique), every
 * tensor lies inside the mapping, apart from the others, with the size that its
 * type, layout and shape need, and IMAGE_TAIL readable bytes after it.
 */
#include "engine/image.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/alloc.h"

#define SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

#define bad(err, fmt, ...) h_error_set(err, HEARTH_E_model_invalid, "model image: " fmt, ##__VA_ARGS__)

static int check_header(const struct eng_image *im, struct h_error *err) {
        const struct image_header *h = im->header;
        uint64_t rows_end, meta_end;

        if (memcmp(h->magic, IMAGE_MAGIC, 8) != 0)
                return bad(err, "offset 0: no model image, or one whose filling broke off");
        if (h->version != IMAGE_VERSION)
                return bad(err, "offset 8: layout version %u, this build has %u", h->version, IMAGE_VERSION);
        if (h->bytes > im->map_bytes)
                return h_error_counts(err, HEARTH_E_model_truncated, h->bytes, im->map_bytes,
                                      "model image: it has %zu bytes, its header says %llu", im->map_bytes,
                                      (unsigned long long)h->bytes);
        if (h->row_bytes != sizeof(struct image_row))
                return bad(err, "offset 92: rows of %u bytes, expected %zu", h->row_bytes, sizeof(struct image_row));
        if (h->rows_off < sizeof(*h) || h->rows_off % 8 != 0 ||
            __builtin_add_overflow(h->rows_off, (uint64_t)h->n_tensors * sizeof(struct image_row), &rows_end) ||
            rows_end > h->bytes)
                return bad(err, "the tensor table lies outside the image");
        if (h->meta_off < rows_end || __builtin_add_overflow(h->meta_off, h->meta_bytes, &meta_end) ||
            meta_end > h->bytes || h->data_off < meta_end)
                return bad(err, "the metadata lies outside the image");
        return 0;
}

/* 'end' is where the tensors seen so far may be followed, per row: rows are few, so overlap is checked by sorting. */
static int check_row(const struct eng_image *im, uint32_t i, const struct k_ops *ops, struct h_error *err) {
        const struct image_row *r = &im->rows[i];
        uint64_t n = 1, stride, bytes, end;

        if (memchr(r->name, 0, sizeof(r->name)) == NULL || r->name[0] == 0)
                return bad(err, "tensor %u has no valid name", i);
        if (i > 0 && strcmp(im->rows[i - 1].name, r->name) >= 0)
                return bad(err, "tensor %s: the table isn't sorted", r->name);
        if (r->type >= _K_TYPE_MAX || r->file_type >= _K_TYPE_MAX || r->layout >= _K_LAYOUT_MAX)
                return bad(err, "tensor %s: unknown type %u or layout %u", r->name, r->type, r->layout);
        if (r->n_dims == 0 || r->n_dims > GGUF_MAX_DIMS)
                return bad(err, "tensor %s: %u dimensions", r->name, r->n_dims);
        for (unsigned d = 0; d < GGUF_MAX_DIMS; d++)
                if (r->dim[d] == 0 || __builtin_mul_overflow(n, r->dim[d], &n))
                        return bad(err, "tensor %s: dimension %u is %llu", r->name, d,
                                   (unsigned long long)r->dim[d]);
        if (!image_row_bytes(r, ops, &stride, &bytes) || stride != r->stride || bytes != r->bytes)
                return bad(err, "tensor %s: %llu bytes don't fit its shape and layout", r->name,
                           (unsigned long long)r->bytes);
        if (r->offset % IMAGE_ALIGN != 0 || r->offset < im->header->data_off ||
            __builtin_add_overflow(r->offset, bytes, &end) || __builtin_add_overflow(end, (uint64_t)IMAGE_TAIL, &end) ||
            end > im->header->bytes)
                return bad(err, "tensor %s: offset %llu is outside the image or misaligned", r->name,
                           (unsigned long long)r->offset);
        return 0;
}

static int offset_compare(const void *a, const void *b) {
        const struct image_row *x = *(const struct image_row *const *)a, *y = *(const struct image_row *const *)b;
        return (x->offset > y->offset) - (x->offset < y->offset);
}

static int check_rows(const struct eng_image *im, const struct k_ops *ops, struct h_error *err) {
        uint32_t n = im->header->n_tensors;
        _cleanup_(freep) const struct image_row **by_offset = h_new0(const struct image_row *, n);

        if (!by_offset)
                return h_error_from_errno(err, -ENOMEM, "model image");
        for (uint32_t i = 0; i < n; i++) {
                int r = check_row(im, i, ops, err);
                if (r < 0)
                        return r;
                by_offset[i] = &im->rows[i];
        }
        qsort(by_offset, n, sizeof(*by_offset), offset_compare);
        for (uint32_t i = 1; i < n; i++)
                if (by_offset[i]->offset < by_offset[i - 1]->offset + by_offset[i - 1]->bytes)
                        return bad(err, "tensors %s and %s overlap", by_offset[i - 1]->name, by_offset[i]->name);
        return 0;
}

const struct image_row *image_find(const struct eng_image *im, const char *name) {
        size_t lo = 0, hi = im->header->n_tensors;

        while (lo < hi) {
                size_t mid = lo + (hi - lo) / 2;
                int r = strcmp(name, im->rows[mid].name);
                if (r == 0)
                        return &im->rows[mid];
                if (r < 0)
                        hi = mid;
                else
                        lo = mid + 1;
        }
        return NULL;
}

static void copy_string(const struct gguf *g, const char *key, char *dst, size_t n) {
        struct gguf_str s = { 0 };
        size_t k;

        if (gguf_string(g, key, &s, NULL) < 0)
                s.n = 0;
        k = MIN(s.n, n - 1);
        for (size_t i = 0; i < k; i++)
                dst[i] = (unsigned char)s.p[i] < 32 ? ' ' : s.p[i];
        dst[k] = 0;
}

/* The types of the matrices by bytes: one name if it has nearly all, else the two largest. */
static void describe_types(const struct eng_image *im, char *dst, size_t n) {
        uint64_t bytes[_K_TYPE_MAX] = { 0 }, all = 0;
        unsigned a = 0, b = 0;

        for (uint32_t i = 0; i < im->header->n_tensors; i++)
                if (im->rows[i].n_dims > 1) {
                        bytes[im->rows[i].file_type] += im->rows[i].bytes;
                        all += im->rows[i].bytes;
                }
        for (unsigned t = 1; t < _K_TYPE_MAX; t++)
                if (bytes[t] > bytes[a])
                        a = t;
        b = a == 0;
        for (unsigned t = 0; t < _K_TYPE_MAX; t++)
                if (t != a && bytes[t] > bytes[b])
                        b = t;
        if (all == 0)
                snprintf(dst, n, "none");
        else if (bytes[b] > all / 20)
                snprintf(dst, n, "%s + %s", k_type_name((enum k_type)a), k_type_name((enum k_type)b));
        else
                snprintf(dst, n, "%s", k_type_name((enum k_type)a));
}

/* What can be said from metadata alone; a model that opens refines it. Wrong types count as absent here. */
static void fill_info(struct eng_image *im) {
        struct eng_model_info *f = &im->info;
        const struct gguf_kv *tokens = gguf_find(im->g, "tokenizer.ggml.tokens");
        const struct image_row *embd = image_find(im, "token_embd.weight");
        uint32_t pooling = 0, nextn = 0;
        bool causal = true;

        copy_string(im->g, "general.name", f->name, sizeof(f->name));
        copy_string(im->g, "general.architecture", f->arch, sizeof(f->arch));
        describe_types(im, f->type, sizeof(f->type));
        f->n_params = im->header->n_params;
        f->bytes = im->header->bytes - im->header->data_off;
        (void)gguf_u32(im->g, "%s.context_length", 0, &f->n_ctx_train, NULL);
        (void)gguf_u32(im->g, "%s.block_count", 0, &f->n_layer, NULL);
        (void)gguf_u32(im->g, "%s.embedding_length", 0, &f->n_embd, NULL);
        (void)gguf_u32(im->g, "%s.pooling_type", 0, &pooling, NULL);
        (void)gguf_u32(im->g, "%s.nextn_predict_layers", 0, &nextn, NULL);
        (void)gguf_bool(im->g, "%s.attention.causal", true, &causal, NULL);
        f->n_vocab = embd ? (uint32_t)embd->dim[1] : tokens ? (uint32_t)MIN(tokens->n, (uint64_t)UINT32_MAX) : 0;
        f->can_generate = causal && !strstr(f->arch, "bert") && !strstr(f->arch, "embedding");
        f->can_embed = !f->can_generate || pooling != 0;
        f->has_mtp = nextn > 0;
        for (uint32_t i = 0; i < im->header->n_tensors; i++)
                f->has_recurrent_state |= strstr(im->rows[i].name, ".ssm_") || strstr(im->rows[i].name, ".shortconv.");
        f->has_template = gguf_find(im->g, "tokenizer.chat_template") != NULL;
        f->has_fim = gguf_find(im->g, "tokenizer.ggml.fim_pre_token_id") ||
                     gguf_find(im->g, "tokenizer.ggml.prefix_token_id");
}

static int open_mapped(struct eng_image *im, struct h_error *err) {
        const struct k_ops *ops;
        int r;

        im->header = (const struct image_header *)im->map;
        r = check_header(im, err);
        if (r < 0)
                return r;
        im->rows = (const struct image_row *)(im->map + im->header->rows_off);
        r = image_backend((enum eng_backend)im->header->backend, &ops, err);
        if (r < 0)
                return r;
        r = check_rows(im, ops, err);
        if (r < 0)
                return r;
        r = gguf_parse(im->map + im->header->meta_off, im->header->meta_bytes, im->header->meta_bytes, &im->g, err);
        if (r < 0)
                return r == -EAGAIN ? bad(err, "the metadata is cut off") : h_error_prefix(err, "model image");
        if (im->g->n_tensors != 0)
                return bad(err, "the metadata names tensors of its own");
        fill_info(im);
        return 0;
}

int eng_image_open(int fd, bool require_seals, struct eng_image **ret, struct h_error *err) {
        struct eng_image *im;
        struct stat st;
        void *map;
        int r;

        if (require_seals) {
                int seals = fcntl(fd, F_GET_SEALS);
                if (seals < 0 || (seals & SEALS) != SEALS)
                        return bad(err, "it isn't sealed against writing, shrinking and growing (seals %#x)",
                                   seals < 0 ? 0 : seals);
        }
        if (fstat(fd, &st) < 0)
                return h_error_from_errno(err, -errno, "model image");
        if (!S_ISREG(st.st_mode) || st.st_size < (off_t)IMAGE_PAGE)
                return bad(err, "%lld bytes are too few", (long long)st.st_size);
        im = h_new0(struct eng_image, 1);
        if (!im)
                return h_error_from_errno(err, -ENOMEM, "model image");
        map = fault_hit(FAULT_MMAP) ? MAP_FAILED : mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) {
                free(im);
                return h_error_set(err, HEARTH_E_no_memory, "model image: mapping %lld bytes failed",
                                   (long long)st.st_size);
        }
        im->map = map;
        im->map_bytes = (size_t)st.st_size;
        im->dev = st.st_dev;
        im->ino = st.st_ino;
        r = open_mapped(im, err);
        if (r < 0) {
                eng_image_close(im);
                return r;
        }
        *ret = im;
        return 0;
}

struct eng_image *eng_image_close(struct eng_image *im) {
        if (!im)
                return NULL;
        gguf_free(im->g);
        image_unpin(im);
        if (im->map)
                munmap((void *)im->map, im->map_bytes);
        free(im);
        return NULL;
}

void eng_image_file(const struct eng_image *im, dev_t *ret_dev, ino_t *ret_ino) {
        *ret_dev = im->dev;
        *ret_ino = im->ino;
}

const uint8_t *eng_image_hash(const struct eng_image *im) {
        return im->header->hash;
}

void eng_image_info(const struct eng_image *im, struct eng_model_info *ret) {
        *ret = im->info;
}
