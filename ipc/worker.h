/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The protocol between broker and worker: structs wk_*, ids WK_*, wrappers wk_init_*, wk_encode_*. Rows: worker.def. */

#include "ipc/schema.h"

#define SCHEMA_ID(ident) WK_##ident
#define SCHEMA_STRUCT(ident) wk_##ident
#define SCHEMA_FN(verb, ident) wk_##verb##_##ident
#define SCHEMA_VAR wk_schema
#define SCHEMA_FILE "ipc/worker.def"
#include "ipc/schema-decl.inc"
#undef SCHEMA_ID
#undef SCHEMA_STRUCT
#undef SCHEMA_VAR
#undef SCHEMA_FILE
