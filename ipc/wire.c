/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/wire.h"

#include <string.h>

#include "base/utf8.h"

#define SCHEMA_ID(ident) WIRE_##ident
#define SCHEMA_STRUCT(ident) wire_##ident
#define SCHEMA_FILE "ipc/wire.def"
#include "ipc/schema-table.inc"

const struct schema wire_schema = {
        .name = "wire", .descs = descs, .n_descs = ELEMENTSOF(descs),
        .max_frame = WIRE_MAX_FRAME, .max_depth = 16, .max_elements = WIRE_MAX_VALUES,
};

int wire_check_version(uint32_t theirs, const char *who, struct h_error *err) {
        if (theirs == WIRE_VERSION)
                return 0;
        return h_error_counts(err, HEARTH_E_version, WIRE_VERSION, theirs,
                              "%s speaks protocol version %u, this side speaks %u; install matching versions", who,
                              theirs, WIRE_VERSION);
}

int wire_encode_failure(struct buf *out, uint32_t id, const struct h_error *e) {
        struct wire_error w;

        wire_init_error(&w);
        w.code = hearth_code_name(e->code);
        w.message = e->message;
        /* vsnprintf may have cut a character in two; what is left out is not missed. */
        w.n_message = strnlen(e->message, sizeof(e->message));
        if (!utf8_valid(e->message, w.n_message, &w.n_message) && w.n_message == 0)
                w.message = "";
        w.needed = e->needed;
        w.available = e->available;
        w.retry_after_ms = e->retry_after_ms;
        return wire_encode_error(out, id, &w, NULL);
}

void wire_failure_to_error(const struct wire_error *w, struct h_error *err) {
        enum hearth_code code = hearth_code_parse(w->code);

        *err = (struct h_error){};
        if (code == HEARTH_E_internal && strcmp(w->code, "internal") != 0)
                h_error_counts(err, code, w->needed, w->available, "%s (%s)", w->message, w->code);
        else
                h_error_counts(err, code == HEARTH_OK ? HEARTH_E_internal : code, w->needed, w->available, "%s", w->message);
}
