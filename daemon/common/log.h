/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One line per event on stderr. Under systemd (JOURNAL_STREAM) each line
 * carries a <priority> prefix, which the journal turns into PRIORITY=; on a
 * terminal it carries the program's name. The caller owns the struct; there is
 * no global logger, so that tests and the worker's threads can hold their own.
 */

#include "base/types.h"

enum log_level { LOG_LEVEL_ERROR = 3, LOG_LEVEL_WARNING = 4, LOG_LEVEL_INFO = 6, LOG_LEVEL_DEBUG = 7 };

struct log {
        enum log_level level; /* lines above it are dropped */
        const char *program;
        bool journal;
};

bool log_level_parse(const char *name, enum log_level *ret); /* error, warning, info, debug */
void log_line(const struct log *l, enum log_level level, const char *fmt, ...) _printf_(3, 4);

#define log_error(l, ...) log_line((l), LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(l, ...) log_line((l), LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(l, ...) log_line((l), LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(l, ...) log_line((l), LOG_LEVEL_DEBUG, __VA_ARGS__)
