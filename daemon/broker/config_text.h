/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The text of hearth.conf: lines of "[section]", "key = value" (or "key: value"),
 * comments from '#' or ';' at a line's beginning or " ;" behind a value. A line
 * stands for itself, however long; blanks around its parts don't count.
 *
 * What can't be a configuration is an error with its place, never the defaults:
 * the defaults let everybody in, so a file that a full disk or an interrupted
 * write left empty or full of NUL bytes must not be taken for one.
 */

#include "base/buf.h"
#include "base/error.h"

#define CONFIG_MAX_BYTES (1u << 20)

/* The file's content, with a NUL behind it. Never waits: only a regular file will do. Errors name the file. */
int config_text_read(const char *path, char **ret, size_t *ret_n, struct h_error *err);

/*
 * Calls 'pair' for each key; its error, as the text's own, is then prefixed with
 * path and line. Changes the text.
 */
int config_text_parse(const char *path, char *text, size_t n,
                      int (*pair)(void *ud, const char *section, const char *key, const char *value), void *ud, struct h_error *err);
