/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The public protocol: structs wire_*, ids WIRE_*, wrappers wire_init_*, wire_encode_*. Rows: wire.def. */

#include "ipc/schema.h"

#define WIRE_VERSION 1u
#define WIRE_MAX_FRAME (16u << 20)
#define WIRE_MAX_VALUES (1u << 16) /* in one frame: a map's keys and values, a list's entries, and these themselves */
#define WIRE_MAX_FDS 128u    /* with one frame: the parts of a split model */

#define SCHEMA_ID(ident) WIRE_##ident
#define SCHEMA_STRUCT(ident) wire_##ident
#define SCHEMA_FN(verb, ident) wire_##verb##_##ident
#define SCHEMA_VAR wire_schema
#define SCHEMA_FILE "ipc/wire.def"
#include "ipc/schema-decl.inc"
#undef SCHEMA_ID
#undef SCHEMA_STRUCT
#undef SCHEMA_VAR
#undef SCHEMA_FILE

/* HEARTH_E_version, naming both versions, unless they are the same. 'who' is "the client" or "the daemon". */
int wire_check_version(uint32_t theirs, const char *who, struct h_error *err);
/* Appends an error frame for request 'id' (0: the connection). */
int wire_encode_failure(struct buf *out, uint32_t id, const struct h_error *e);
/* The error a frame carried, as ours; a code this build does not know becomes internal with the name kept in the message. */
void wire_failure_to_error(const struct wire_error *w, struct h_error *err);
