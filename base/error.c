/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <stdio.h>
#include <string.h>

#include "base/shown.h"

static const struct {
        const char *name, *doc;
        int exit;
} codes[_HEARTH_E_MAX] = {
        [HEARTH_OK] = { "ok", "no error", 0 },
#define HE(n, e, d) [HEARTH_E_##n] = { #n, d, e },
#include "base/errors.def"
#undef HE
};

/*
 * A message may quote a file's name or what a client sent. It stays UTF-8 (a
 * reply must be) and has no characters that a terminal would obey.
 */
static void make_text(struct h_error *err) {
        char text[sizeof(err->message)] = "";

        shown_copy(err->message, strlen(err->message), SHOWN_LINES, text, sizeof(text));
        memcpy(err->message, text, sizeof(text));
}

static int error_setv(struct h_error *err, enum hearth_code code, uint64_t needed, uint64_t available,
                      const char *fmt, va_list ap) {
        if (err && err->code == HEARTH_OK) {
                err->code = code;
                err->needed = needed;
                err->available = available;
                vsnprintf(err->message, sizeof(err->message), fmt, ap);
                make_text(err);
        }
        return -EHEARTH;
}

int h_error_set(struct h_error *err, enum hearth_code code, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        error_setv(err, code, 0, 0, fmt, ap);
        va_end(ap);
        return -EHEARTH;
}

int h_error_counts(struct h_error *err, enum hearth_code code, uint64_t needed, uint64_t available,
                   const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        error_setv(err, code, needed, available, fmt, ap);
        va_end(ap);
        return -EHEARTH;
}

int h_error_prefix(struct h_error *err, const char *fmt, ...) {
        char buf[sizeof(err->message)];
        va_list ap;
        int n;

        if (!err || err->code == HEARTH_OK)
                return -EHEARTH;
        va_start(ap, fmt);
        n = vsnprintf(buf, sizeof(buf), fmt, ap);
        va_end(ap);
        if (n > 0 && (size_t)n < sizeof(buf) - 3) {
                snprintf(buf + n, sizeof(buf) - (size_t)n, ": %.*s", (int)(sizeof(buf) - (size_t)n - 3),
                         err->message);
                memcpy(err->message, buf, sizeof(buf));
                make_text(err);
        }
        return -EHEARTH;
}

int h_error_from_errno(struct h_error *err, int r, const char *what) {
        if (r == -EHEARTH && err && err->code != HEARTH_OK)
                return r;
        if (r == -EHEARTH)
                return h_error_set(err, HEARTH_E_internal, "%s", what);
        return h_error_set(err, r == -ENOMEM ? HEARTH_E_no_memory : HEARTH_E_io, "%s: %s", what,
                           strerror(r < 0 ? -r : r));
}

const char *hearth_code_name(enum hearth_code code) {
        return (unsigned)code < _HEARTH_E_MAX ? codes[code].name : "internal";
}

enum hearth_code hearth_code_parse(const char *name) {
        for (unsigned i = 0; i < _HEARTH_E_MAX; i++)
                if (strcmp(codes[i].name, name) == 0)
                        return (enum hearth_code)i;
        return HEARTH_E_internal;
}

int hearth_code_exit(enum hearth_code code) {
        return (unsigned)code < _HEARTH_E_MAX ? codes[code].exit : 70;
}

const char *hearth_code_doc(enum hearth_code code) {
        return (unsigned)code < _HEARTH_E_MAX ? codes[code].doc : "unknown";
}
