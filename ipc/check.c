/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/check.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/utf8.h"

int check_unsigned(const struct schema_field *f, const char *where, uint64_t v, struct h_error *err) {
        if (v < f->min.u || v > f->max.u)
                return h_error_set(err, HEARTH_E_bad_request, "%s is %" PRIu64 ", but must be %" PRIu64 " to %" PRIu64,
                                   where, v, f->min.u, f->max.u);
        return 0;
}

int check_signed(const struct schema_field *f, const char *where, int64_t v, struct h_error *err) {
        if (v < f->min.i || v > f->max.i)
                return h_error_set(err, HEARTH_E_bad_request, "%s is %" PRIi64 ", but must be %" PRIi64 " to %" PRIi64,
                                   where, v, f->min.i, f->max.i);
        return 0;
}

int check_double(const struct schema_field *f, const char *where, double v, struct h_error *err) {
        if (!isfinite(v))
                return h_error_set(err, HEARTH_E_bad_request, "%s is not a finite number", where);
        if (v < f->min.d || v > f->max.d)
                return h_error_set(err, HEARTH_E_bad_request, "%s is %g, but must be %g to %g", where, v, f->min.d, f->max.d);
        return 0;
}

int check_text(const char *where, const char *p, size_t n, struct h_error *err) {
        size_t at;

        if (!utf8_valid(p, n, &at))
                return h_error_set(err, HEARTH_E_bad_utf8, "%s is not valid UTF-8: byte 0x%02x at offset %zu", where,
                                   (unsigned char)p[at], at);
        return 0;
}

int check_bytes(const struct schema_field *f, const char *where, const char *p, size_t n, struct h_error *err) {
        int r;

        if (n < f->min.u || n > f->max.u)
                return h_error_counts(err, HEARTH_E_bad_request, n, f->max.u,
                                      "%s has %zu bytes, but must have %" PRIu64 " to %" PRIu64, where, n, f->min.u, f->max.u);
        if (f->type == TYPE_bin)
                return 0;
        r = check_text(where, p, n, err);
        if (r < 0)
                return r;
        if (f->type == TYPE_str && memchr(p, 0, n))
                return h_error_set(err, HEARTH_E_bad_request, "%s contains a NUL byte", where);
        return 0;
}

int check_count(const struct schema_field *f, const char *where, size_t n, struct h_error *err) {
        if (n < f->min.u || n > f->max.u)
                return h_error_counts(err, HEARTH_E_bad_request, n, f->max.u,
                                      "%s has %zu entries, but must have %" PRIu64 " to %" PRIu64, where, n, f->min.u, f->max.u);
        return 0;
}
