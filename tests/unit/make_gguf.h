/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Writes small GGUF files into a buffer, good ones and broken ones. */

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "engine/gguf.h"

static inline void put(struct buf *b, const void *p, size_t n) {
        if (buf_append(b, p, n) < 0)
                abort();
}

static inline void put_u32(struct buf *b, uint32_t v) {
        put(b, &v, 4);
}

static inline void put_u64(struct buf *b, uint64_t v) {
        put(b, &v, 8);
}

static inline void put_str(struct buf *b, const char *s) {
        put_u64(b, strlen(s));
        put(b, s, strlen(s));
}

static inline void put_header(struct buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv) {
        put(b, "GGUF", 4);
        put_u32(b, version);
        put_u64(b, n_tensors);
        put_u64(b, n_kv);
}

static inline void kv_str(struct buf *b, const char *key, const char *value) {
        put_str(b, key);
        put_u32(b, GGUF_STRING);
        put_str(b, value);
}

static inline void kv_u32(struct buf *b, const char *key, uint32_t value) {
        put_str(b, key);
        put_u32(b, GGUF_U32);
        put_u32(b, value);
}

static inline void kv_raw(struct buf *b, const char *key, enum gguf_type type, const void *value, size_t n) {
        put_str(b, key);
        put_u32(b, type);
        put(b, value, n);
}

static inline void kv_array(struct buf *b, const char *key, enum gguf_type elem, uint64_t n, const void *data, size_t bytes) {
        put_str(b, key);
        put_u32(b, GGUF_ARRAY);
        put_u32(b, elem);
        put_u64(b, n);
        put(b, data, bytes);
}

/* Offset is relative to the data, as in the file. type: the file's id. */
static inline void tensor_info(struct buf *b, const char *name, uint32_t n_dims, const uint64_t *dim, uint32_t type,
                               uint64_t offset) {
        put_str(b, name);
        put_u32(b, n_dims);
        for (uint32_t i = 0; i < n_dims; i++)
                put_u64(b, dim[i]);
        put_u32(b, type);
        put_u64(b, offset);
}

static inline void pad(struct buf *b, size_t align) {
        static const char zero[4096];
        if (b->len % align)
                put(b, zero, align - b->len % align);
}
