/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Text of others (names of files, metadata, what a client calls itself), shown
 * to people. Control characters drive a terminal, and those of the bidirectional
 * algorithm (Unicode's Bidi_Control) and its line separators let a row read
 * as another: such are written out, as are bytes that are no UTF-8.
 */

#include <stdio.h>

#include "base/types.h"

enum shown_kind { SHOWN_PLAIN, SHOWN_CONTROL, SHOWN_LAYOUT, SHOWN_BROKEN };

/* What stands at p, of n > 0 bytes; *ret_len: how many of them it is. */
enum shown_kind shown_next(const char *p, size_t n, size_t *ret_len);
/* Is there nothing but plain characters? */
bool shown_plain(const char *p, size_t n);

enum shown_how {
        SHOWN_LINE,  /* \n, \t, and \xNN for each byte of the others */
        SHOWN_LINES, /* the same, but newlines and tabs stay */
        SHOWN_JSON,  /* JSON as it was made: \uNNNN, which is the same JSON */
};
/* At most 'max' bytes of p, whole characters; returns how many. */
size_t shown_write(FILE *f, const char *p, size_t n, size_t max, enum shown_how how);
/* The same as a string, cut where 'size' ends. Four times n and one more is always enough. */
void shown_copy(const char *p, size_t n, enum shown_how how, char *ret, size_t size);
