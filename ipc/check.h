/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The bounds of a field, checked in one place for what is sent and for what is received. */

#include "ipc/schema.h"

/* 'where' names the field for people: "generate.temperature". All return 0 or -EHEARTH (bad_request, bad_utf8). */
int check_unsigned(const struct schema_field *f, const char *where, uint64_t v, struct h_error *err);
int check_signed(const struct schema_field *f, const char *where, int64_t v, struct h_error *err);
int check_double(const struct schema_field *f, const char *where, double v, struct h_error *err);
int check_bytes(const struct schema_field *f, const char *where, const char *p, size_t n, struct h_error *err);
int check_count(const struct schema_field *f, const char *where, size_t n, struct h_error *err);
int check_text(const char *where, const char *p, size_t n, struct h_error *err);

/* Access to a field within a struct. */
static inline void *field_at(const struct schema_field *f, const void *body) {
        return (char *)body + f->off;
}
static inline size_t *field_n(const struct schema_field *f, const void *body) {
        return (size_t *)((char *)body + f->off_n);
}
static inline bool *field_has(const struct schema_field *f, const void *body) {
        return (bool *)((char *)body + f->off_has);
}
