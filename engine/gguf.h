/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * GGUF v2/v3, parsed once into typed rows from an in-memory copy of the
 * metadata. Nothing past this file sees file offsets unchecked. Input is
 * hostile: every count is checked against the bytes really there before
 * anything is allocated; every error names the offset and the rule broken.
 */

#include "base/error.h"
#include "kernels/types.h"

enum gguf_type {
        GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL,
        GGUF_STRING, GGUF_ARRAY, GGUF_U64, GGUF_I64, GGUF_F64, _GGUF_TYPE_MAX
};

struct gguf_str { const char *p; size_t n; }; /* not NUL-terminated, may hold any bytes */

struct gguf_kv {
        struct gguf_str key;
        enum gguf_type type;
        enum gguf_type elem;   /* of an array */
        uint64_t n;            /* array length */
        const uint8_t *data;   /* value bytes, little-endian, unaligned */
        struct gguf_str *strings; /* arrays of strings: n entries */
};

#define GGUF_MAX_DIMS 4
struct gguf_tensor {
        struct gguf_str name;
        enum k_type type;
        uint32_t n_dims;
        uint64_t dim[GGUF_MAX_DIMS]; /* dim[0] is the row length (inputs); unused are 1 */
        uint64_t offset;             /* absolute, in its file */
        uint64_t bytes;
        uint32_t part;               /* which file of a split model */
};

struct gguf {
        uint32_t version;
        uint64_t alignment, data_offset, file_size;
        uint64_t kv_offset, kv_end;  /* where the keys' bytes are */
        struct gguf_kv *kv; size_t n_kv;
        struct gguf_tensor *tensors; size_t n_tensors;
};

/* 'mem' holds the file's beginning (at least up to data_offset); it must outlive the result. file_size bounds tensors.
 * -EAGAIN (err untouched): more bytes of the beginning are needed than the n given. */
int gguf_parse(const void *mem, size_t n, uint64_t file_size, struct gguf **ret, struct h_error *err);
struct gguf *gguf_free(struct gguf *g);

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name);
/*
 * Typed reads. Integers of any width are accepted where they fit; 'def' when the
 * key is absent; a wrong type or range is an error that names the key.
 * _req: absent is an error too. Keys may contain one %s, replaced by the architecture.
 */
int gguf_u32(const struct gguf *g, const char *key, uint32_t def, uint32_t *ret, struct h_error *err);
int gguf_u32_req(const struct gguf *g, const char *key, uint32_t *ret, struct h_error *err);
int gguf_f32(const struct gguf *g, const char *key, float def, float *ret, struct h_error *err);
int gguf_bool(const struct gguf *g, const char *key, bool def, bool *ret, struct h_error *err);
int gguf_string(const struct gguf *g, const char *key, struct gguf_str *ret, struct h_error *err); /* absent: n = 0, p = NULL */
/* A scalar, repeated, or an array of exactly n. Returns 1 if present, 0 if absent (ret untouched). */
int gguf_u32_per_layer(const struct gguf *g, const char *key, uint32_t n, uint32_t *ret, struct h_error *err);
int gguf_bool_per_layer(const struct gguf *g, const char *key, uint32_t n, bool *ret, struct h_error *err);
int gguf_f32_array(const struct gguf *g, const char *key, uint32_t max, float *ret, uint32_t *ret_n, struct h_error *err);
int gguf_i32_array(const struct gguf *g, const char *key, uint32_t max, int32_t *ret, uint32_t *ret_n, struct h_error *err);
