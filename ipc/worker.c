/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/worker.h"

#define SCHEMA_ID(ident) WK_##ident
#define SCHEMA_STRUCT(ident) wk_##ident
#define SCHEMA_FILE "ipc/worker.def"
#include "ipc/schema-table.inc"

/* The worker is not trusted either: it has seen model files. Frames may be larger, since the broker adds its own fields. */
const struct schema wk_schema = {
        .name = "worker", .descs = descs, .n_descs = ELEMENTSOF(descs),
        .max_frame = 32u << 20, .max_depth = 16, .max_elements = 1u << 17,
};
