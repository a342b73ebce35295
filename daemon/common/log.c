/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/common/log.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/shown.h"

static const struct { const char *name; enum log_level level; } levels[] = {
        { "error", LOG_LEVEL_ERROR }, { "warning", LOG_LEVEL_WARNING },
        { "info", LOG_LEVEL_INFO }, { "debug", LOG_LEVEL_DEBUG },
};

const char *log_level_name(enum log_level l) {
        for (size_t i = 0; i < ELEMENTSOF(levels); i++)
                if (levels[i].level == l)
                        return levels[i].name;
        return "none";
}

bool log_level_parse(const char *name, enum log_level *ret) {
        for (size_t i = 0; i < ELEMENTSOF(levels); i++)
                if (strcmp(levels[i].name, name) == 0) {
                        *ret = levels[i].level;
                        return true;
                }
        return false;
}

/*
 * One write per line, so that lines of several processes don't mix. Where nobody reads (a pipe, a stopped terminal, a journal that
 * stands still) a line is lost, not the daemon: what has room by poll() takes as much as a line without waiting.
 */
static void to_stderr(const struct log *l, enum log_level level, const char *message) {
        struct pollfd room = { .fd = STDERR_FILENO, .events = POLLOUT };
        char line[1200];
        int n = l->journal ? snprintf(line, sizeof(line) - 1, "<%d>%s", (int)level, message)
                           : snprintf(line, sizeof(line) - 1, "%s: %s", l->program, message);

        n = MIN(n, (int)sizeof(line) - 2);
        line[n++] = '\n';
        if (poll(&room, 1, 0) != 0) /* an error: then write() says what it is, and to nobody */
                (void)!write(STDERR_FILENO, line, (size_t)n);
}

static void emit(const struct log *l, enum log_level level, const char *const *fields, size_t n_fields, const char *fmt, va_list ap) {
        int saved = errno;
        char text[1100], message[sizeof(text)];

        if (vsnprintf(text, sizeof(text), fmt, ap) >= 0) {
                /* Text from outside must not forge further lines, nor steer who reads them. */
                shown_copy(text, strlen(text), SHOWN_LINE, message, sizeof(message));
                if (!log_journal_send(l, level, message, fields, n_fields))
                        to_stderr(l, level, message);
        }
        errno = saved;
}

void log_line(const struct log *l, enum log_level level, const char *fmt, ...) {
        va_list ap;

        if (level > l->level)
                return;
        va_start(ap, fmt);
        emit(l, level, NULL, 0, fmt, ap);
        va_end(ap);
}

void log_event(const struct log *l, enum log_level level, const char *const *fields, size_t n_fields, const char *fmt, ...) {
        va_list ap;

        if (level > l->level)
                return;
        va_start(ap, fmt);
        emit(l, level, fields, n_fields, fmt, ap);
        va_end(ap);
}
