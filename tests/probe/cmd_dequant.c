/* SPDX-License-Identifier: Apache-2.0 */
/* dequant: a file of blocks of one type, decoded by the scalar reference. */
#include <string.h>

#include "base/alloc.h"
#include "kernels/types.h"
#include "probe.h"

int cmd_dequant(const struct options *o) {
        struct buf in = { 0 };
        enum k_type t;
        float *out;
        size_t n;
        FILE *f;
        int r;

        if (!o->type || !o->in || !o->out) {
                fprintf(stderr, "hearth-probe: --type, --in and --out are needed\n");
                return 64;
        }
        if (!k_type_parse(o->type, &t)) {
                fprintf(stderr, "hearth-probe: unknown type %s\n", o->type);
                return 65;
        }
        r = read_file(o->in, &in);
        if (r)
                return r;
        if (in.len == 0 || in.len % k_type_bytes(t) != 0) {
                fprintf(stderr, "hearth-probe: %s: %zu bytes are no whole blocks of %u\n", o->in, in.len,
                        k_type_bytes(t));
                buf_free(&in);
                return 65;
        }
        n = in.len / k_type_bytes(t) * k_type_block(t);
        out = h_malloc(n * sizeof(float));
        f = fopen(o->out, "wbe");
        if (out && f) {
                k_decode(t, in.data, out, n);
                r = fwrite(out, sizeof(float), n, f) == n ? 0 : 74;
        } else {
                r = 73;
        }
        if (f && fclose(f) != 0)
                r = 74;
        if (r)
                fprintf(stderr, "hearth-probe: writing %s failed\n", o->out);
        free(out);
        buf_free(&in);
        return r;
}
