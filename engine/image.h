/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The image of a model, inside the engine: one flat, position-independent file.
 *
 *   header (4096 bytes) | rows, sorted by name | metadata | tensors
 *
 * Metadata is a GGUF beginning with the first part's keys, byte for byte, and no
 * tensors, so that one bounded parser serves files and images. Tensors begin at
 * multiples of IMAGE_ALIGN; at least IMAGE_TAIL readable bytes follow the last.
 * All integers little-endian. An image is untrusted input for who opens it.
 */

#include "engine/engine.h"
#include "engine/gguf.h"
#include "kernels/kernels.h"

#define IMAGE_MAGIC "HEARTHIM"
#define IMAGE_VERSION 1u /* of this layout and of the backends' repacks */
#define IMAGE_ALIGN 256u
#define IMAGE_TAIL 256u
#define IMAGE_PAGE 4096u
#define IMAGE_NAME 128u
#define IMAGE_HASH 32u

struct image_header {
        char magic[8];
        uint32_t version, backend; /* enum eng_backend */
        uint8_t hash[IMAGE_HASH];
        uint64_t bytes;            /* the whole image */
        uint64_t rows_off, meta_off, meta_bytes, data_off;
        uint32_t n_tensors, row_bytes;
        uint64_t n_params;
};

/* One tensor. Matrices of one shape stacked along dim[2], dim[3] are n_expert matrices, 'stride' bytes apart. */
struct image_row {
        char name[IMAGE_NAME];     /* NUL-terminated */
        uint32_t type, layout;     /* enum k_type, enum k_layout */
        uint32_t file_type;        /* the type in the source; differs from 'type' for decoded vectors */
        uint32_t n_dims;
        uint64_t dim[GGUF_MAX_DIMS];
        uint64_t offset, bytes, stride;
};

_Static_assert(sizeof(struct image_header) == 104, "the header has no holes");
_Static_assert(sizeof(struct image_row) == 200, "a row has no holes");

/* ---- source: the files, their metadata, counted reads -------------------- */

struct image_part {
        int fd;
        bool own_fd;
        dev_t dev;
        ino_t ino;
        uint64_t size;
        struct timespec mtime, ctime;
        uint8_t *mem; /* the beginning of the file, up to its tensors */
        size_t mem_bytes;
        struct gguf *g;
};

struct image_source {
        const struct eng_source *src;
        struct image_part *part;
        uint32_t n_parts;
        uint64_t n_tensors;
};

int image_source_open(const struct eng_source *src, struct image_source *ret, struct h_error *err);
void image_source_close(struct image_source *s);
/* Exactly n bytes or an error; from several threads at once only if the source allows it. */
int image_source_read(const struct image_source *s, uint32_t part, void *buf, size_t n, uint64_t off,
                      struct h_error *err);
/* model_changed if any file isn't what it was when opened. */
int image_source_unchanged(const struct image_source *s, struct h_error *err);

/* ---- layout -------------------------------------------------------------- */

struct image_tensor_plan {
        struct image_row row;
        const struct gguf_tensor *src; /* src->part says the file */
        bool decode;                   /* to float32 */
};

struct image_plan {
        struct image_header header;
        struct image_tensor_plan *tensor; /* [header.n_tensors], in the order of the files */
        uint32_t *by_name;                /* indices into 'tensor', sorted by name */
        const struct k_ops *ops;
};

/* The backend's table, or an error if it isn't in this build. */
int image_backend(enum eng_backend backend, const struct k_ops **ret, struct h_error *err);
int image_plan_make(const struct image_source *s, enum eng_backend backend, struct image_plan *ret,
                    struct h_error *err);
void image_plan_free(struct image_plan *p);
/* Rows and columns of one matrix of a tensor, and how many are stacked. */
void image_row_shape(const struct image_row *r, uint64_t *ret_rows, uint64_t *ret_cols, uint64_t *ret_n);
/* Bytes of one matrix and the whole tensor; false: no such layout, or overflow. */
bool image_row_bytes(const struct image_row *r, const struct k_ops *ops, uint64_t *ret_stride, uint64_t *ret_bytes);

/* ---- an open image ------------------------------------------------------- */

/* The mapping's pages that are pinned for a device: from its start on (upload.c). Undone before it is unmapped. */
struct image_pins {
        struct k_dev *dev;
        size_t bytes;
};

struct eng_image {
        const uint8_t *map;
        size_t map_bytes;
        const struct image_header *header;
        const struct image_row *rows;
        struct gguf *g; /* keys only */
        struct eng_model_info info;
        struct image_pins pins;
        dev_t dev;
        ino_t ino;
};

void image_unpin(struct eng_image *im); /* upload.c */
const struct image_row *image_find(const struct eng_image *im, const char *name);
static inline const void *image_data(const struct eng_image *im, const struct image_row *r) {
        return im->map + r->offset;
}

/* Memory this process could still take: MemAvailable, and what its cgroups leave. */
int host_memory(uint64_t *ret_total, uint64_t *ret_free);
