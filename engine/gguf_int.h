/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the GGUF parser (gguf.c) and the typed reads (gguf_value.c) share. */

#include "engine/gguf.h"

extern const char *const gguf_type_names[_GGUF_TYPE_MAX];
extern const uint8_t gguf_type_bytes[_GGUF_TYPE_MAX]; /* 0: strings and arrays */

/* A little-endian number of 1 to 8 bytes, at any alignment. */
static inline uint64_t gguf_le(const uint8_t *p, unsigned bytes) {
        uint64_t v = 0;
        for (unsigned i = 0; i < bytes; i++)
                v |= (uint64_t)p[i] << (8 * i);
        return v;
}

/* The key as the user would see it in the file: "%s" replaced by the architecture. */
const char *gguf_shown_key(const struct gguf *g, const char *key, char buf[512]);
