/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Typed errors. Two tiers: a function returns 0 or a negative errno for faults
 * its caller merely passes on, or -EHEARTH with 'err' filled in for what a user
 * should read: a code from errors.def and a sentence that names the thing, what
 * was expected, what was found and the next step. 'needed'/'available' carry
 * counts or bytes where the code has them, else 0.
 */

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>

#include "base/types.h"

enum hearth_code {
        HEARTH_OK = 0,
#define HE(name, exit, doc) HEARTH_E_##name,
#include "base/errors.def"
#undef HE
        _HEARTH_E_MAX,
};

#define EHEARTH 4095 /* not an errno: "see err" */

struct h_error {
        enum hearth_code code;
        uint64_t needed, available;
        uint64_t retry_after_ms; /* 0: not said */
        char message[1016]; /* room for a list of what is known */
};

/* Fills *err (may be NULL) and returns -EHEARTH. The first error set wins. */
int h_error_set(struct h_error *err, enum hearth_code code, const char *fmt, ...) _printf_(3, 4);
/* As above, with counts. */
int h_error_counts(struct h_error *err, enum hearth_code code, uint64_t needed, uint64_t available,
                   const char *fmt, ...) _printf_(5, 6);
/* Puts "prefix: " before the message already there; returns -EHEARTH. */
int h_error_prefix(struct h_error *err, const char *fmt, ...) _printf_(2, 3);
/* If r is a plain negative errno, turns it into a typed error ("what: strerror"); returns -EHEARTH. */
int h_error_from_errno(struct h_error *err, int r, const char *what);

const char *hearth_code_name(enum hearth_code code);    /* "unknown_model"; never NULL */
enum hearth_code hearth_code_parse(const char *name);   /* HEARTH_E_internal for an unknown name */
int hearth_code_exit(enum hearth_code code);            /* CLI exit status */
const char *hearth_code_doc(enum hearth_code code);
