/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One line per event. Under systemd it goes to the journal with its fields
 * (journal.c); where that can't take it, and in programs that did not open it,
 * to stderr with a <priority> prefix, which the journal turns into PRIORITY=. On
 * a terminal a line carries the program's name. Nothing here waits.
 *
 * The caller owns the struct; there is no global logger, so that tests and the
 * worker's threads can hold their own.
 */

#include "base/types.h"

enum log_level { LOG_LEVEL_ERROR = 3, LOG_LEVEL_WARNING = 4, LOG_LEVEL_INFO = 6, LOG_LEVEL_DEBUG = 7 };

struct log {
        enum log_level level; /* lines above it are dropped */
        const char *program;
        bool journal;         /* stderr is the journal's */
        int journal_fd;       /* 0 or less: none */
        const char *journal_path;
};

#define LOG_JOURNAL_SOCKET "/run/systemd/journal/socket"

bool log_level_parse(const char *name, enum log_level *ret); /* error, warning, info, debug */
const char *log_level_name(enum log_level l);
/* Is stderr what $JOURNAL_STREAM says (NULL: unset)? */
bool log_stream_is_journal(const char *journal_stream);
/* path is not copied. */
int log_journal_open(struct log *l, const char *path);
void log_journal_close(struct log *l);

void log_line(const struct log *l, enum log_level level, const char *fmt, ...) _printf_(3, 4);
/* With fields: "HEARTH_UID=1000", ... They are seen in the journal only. */
void log_event(const struct log *l, enum log_level level, const char *const *fields, size_t n_fields, const char *fmt, ...) _printf_(5, 6);
/* Internal. False: it did not take it. */
bool log_journal_send(const struct log *l, enum log_level level, const char *message, const char *const *fields, size_t n_fields);

#define log_error(l, ...) log_line((l), LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(l, ...) log_line((l), LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(l, ...) log_line((l), LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(l, ...) log_line((l), LOG_LEVEL_DEBUG, __VA_ARGS__)
