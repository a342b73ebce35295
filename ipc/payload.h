/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A large text beside its message, in a sealed memfd: the message names the
 * field it belongs to (`payload`), the descriptor comes last. Sealed against
 * writing, growing and shrinking it is what it was when it was sent, however
 * often it is read: a replay reads the same, and nobody meets a hole in it.
 */

#include "ipc/schema.h"

#define PAYLOAD_MAX (UINT64_C(64) << 20)

/* The sender's: a new memfd with these bytes, sealed. -errno. */
int payload_make(const void *p, size_t n, int *ret_fd);
/* The receiver's, without reading it: is it one, and how large? */
int payload_check(int fd, uint64_t *ret_n, struct h_error *err);
/* The text field of that name; ret may be NULL. bad_request: there is none, or the text is there already. */
int payload_field(const struct schema *s, const struct schema_msg *m, const char *field, const struct schema_field **ret, struct h_error *err);
/* Reads it as the message's field of that name, which must be text and not be there yet. */
int payload_take(const struct schema *s, struct schema_msg *m, const char *field, int fd, struct h_error *err);
