/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader and the decoder of both protocols on arbitrary bytes. What was
 * accepted must encode again, and that again decode to the same bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "ipc/frame.h"
#include "ipc/wire.h"
#include "ipc/worker.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void one(const struct schema *s, const uint8_t *p, size_t n) {
        struct schema_msg m = {}, again = {};
        struct buf a = {}, b = {};
        struct schema_head head;
        struct h_error err = {};

        if (schema_decode(s, p, n, &m, &head, &err) < 0) {
                if (err.code == HEARTH_OK || m.body)
                        abort();
                return;
        }
        if (schema_encode(s, m.type, m.id, m.body, &a, &err) < 0 ||
            schema_decode(s, a.data + 4, a.len - 4, &again, NULL, &err) < 0 ||
            schema_encode(s, again.type, again.id, again.body, &b, &err) < 0 || a.len != b.len ||
            memcmp(a.data, b.data, a.len) != 0)
                abort();
        schema_msg_free(&m);
        schema_msg_free(&again);
        buf_free(&a);
        buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        struct frame_reader r;
        struct frame f;

        frame_reader_init(&r, 1u << 20, 4);
        /* In two pieces, cut where the input itself says. */
        size_t cut = size ? data[size - 1] % (size + 1) : 0;
        for (int piece = 0; piece < 2; piece++) {
                if (frame_reader_feed(&r, data + (piece ? cut : 0), piece ? size - cut : cut, NULL, 0) < 0)
                        abort();
                while (frame_reader_next(&r, &f, NULL) == 1) {
                        one(&wire_schema, f.p, f.n);
                        one(&wk_schema, f.p, f.n);
                }
        }
        frame_reader_done(&r);
        return 0;
}
