/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Messages as tables. A protocol is a .def file of rows (wire.def: clients and
 * daemon; worker.def: broker and worker). From the same rows derive the C
 * structs and typed wrappers (schema-decl.inc), the field tables
 * (schema-table.inc), the encoder and the checking decoder (codec.c), the
 * documentation (protocol-doc.c) and the fuzz seeds.
 *
 * On the wire a message is one frame (frame.h) that holds the msgpack array
 *   [kind, id, method, {field: value, ...}]
 *
 * Rules of decoding, enforced in one place, the field always named:
 *  - unknown keys are skipped, unless the key "must" (a list of strings) names them;
 *  - a duplicate key, a missing required key, a wrong type, a value out of its
 *    bounds, text that is not UTF-8 are refused;
 *  - nothing is allocated for what a header merely claims: the whole frame was
 *    scanned, its depth and elements counted, before msgpack-c sees it.
 *
 * Ownership: a decoded message (struct schema_msg) owns one arena with
 * everything its struct points to; the frame's bytes may go at once. Strings are
 * NUL-terminated copies, bin is aligned to 8.
 */

#include "base/buf.h"
#include "base/error.h"
#include "base/types.h"

enum schema_kind { KIND_REQUEST, KIND_REPLY, KIND_EVENT, KIND_ERROR, KIND_CANCEL, _KIND_WIRE_MAX, KIND_ITEM = _KIND_WIRE_MAX };

enum schema_type {
        TYPE_str,  /* UTF-8 without NUL bytes: names, ids */
        TYPE_text, /* UTF-8, any */
        TYPE_bin,
        TYPE_flag, /* msgpack bool */
        TYPE_u32,
        TYPE_u64,
        TYPE_i64,
        TYPE_f64,  /* any msgpack number; never NaN or infinite */
        TYPE_strs, /* array of str as TYPE_text */
        TYPE_list, /* array of maps, each of them an ITEM message */
};

enum schema_presence { OPTIONAL, REQUIRED };

union schema_bound { uint64_t u; int64_t i; double d; };

/* min and max bound the value of numbers, bytes of str, text and bin, the count of strs and list. */
struct schema_field {
        const char *name, *doc;
        enum schema_type type;
        enum schema_presence presence;
        union schema_bound def, min, max;
        uint32_t off, off_n, off_has; /* off_n: 0 if the type has no count */
        int sub;                      /* TYPE_list: message of the items */
};

struct schema_desc {
        const char *ident; /* C name: struct wire_<ident> */
        const char *name;  /* in the method slot */
        const char *doc;
        enum schema_kind kind;
        uint32_t size;
        const struct schema_field *fields;
        uint32_t n_fields;
};

struct schema {
        const char *name;
        const struct schema_desc *descs;
        uint32_t n_descs;
        uint32_t max_frame, max_depth, max_elements;
};

struct schema_arena;

struct schema_msg {
        enum schema_kind kind;
        uint32_t id;
        int type;   /* index into the schema: WIRE_generate, ... */
        void *body; /* struct wire_<ident>, defaults filled in */
        struct schema_arena *arena;
};

/* What was understood of a message even if it was refused, so that the refusal can carry its id. */
struct schema_head {
        bool valid;
        enum schema_kind kind;
        uint32_t id;
};

/* Fills the struct with the table's defaults, everything else zero. */
void schema_init(const struct schema *s, int type, void *body);

/*
 * Appends one whole frame to 'out' (unchanged on failure). A field is sent if it
 * is required, its has_ flag is set, its pointer is not NULL or its number is not
 * the default: start from schema_init(). Text with n_ 0 is taken up to its NUL.
 * Values are checked against the same bounds as on receipt: -EHEARTH bad_request.
 */
int schema_encode(const struct schema *s, int type, uint32_t id, const void *body, struct buf *out, struct h_error *err);

/*
 * Decodes the payload of one frame (without the length). ret_head (may be NULL)
 * is filled also on failure. -EHEARTH: protocol (not a message at all: hang up),
 * bad_request, bad_utf8, unknown_method, too_large (refuse and go on).
 */
int schema_decode(const struct schema *s, const void *p, size_t n, struct schema_msg *ret, struct schema_head *ret_head,
                  struct h_error *err);
void schema_msg_free(struct schema_msg *m); /* idempotent; leaves it zeroed */
size_t schema_msg_bytes(const struct schema_msg *m); /* memory held, for accounting */

const char *schema_kind_name(enum schema_kind kind);
const char *schema_type_name(enum schema_type type);
