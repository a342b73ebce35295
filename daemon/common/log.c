/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/common/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool log_level_parse(const char *name, enum log_level *ret) {
        static const struct { const char *name; enum log_level level; } levels[] = {
                { "error", LOG_LEVEL_ERROR }, { "warning", LOG_LEVEL_WARNING },
                { "info", LOG_LEVEL_INFO }, { "debug", LOG_LEVEL_DEBUG },
        };

        for (size_t i = 0; i < ELEMENTSOF(levels); i++)
                if (strcmp(levels[i].name, name) == 0) {
                        *ret = levels[i].level;
                        return true;
                }
        return false;
}

void log_line(const struct log *l, enum log_level level, const char *fmt, ...) {
        char line[1024];
        int n, m, saved = errno;
        va_list ap;

        if (level > l->level)
                return;
        n = l->journal ? snprintf(line, sizeof(line), "<%d>", (int)level)
                       : snprintf(line, sizeof(line), "%s: ", l->program);
        va_start(ap, fmt);
        m = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
        va_end(ap);
        if (m < 0)
                return;
        n = MIN(n + m, (int)sizeof(line) - 2);
        /* Text from outside must not forge further lines. */
        for (int i = 0; i < n; i++)
                if ((unsigned char)line[i] < ' ')
                        line[i] = '?';
        line[n++] = '\n';
        /* One write per line, so that lines of several processes don't mix; a full pipe loses a line, not the daemon. */
        if (write(STDERR_FILENO, line, (size_t)n) < 0)
                errno = saved;
        errno = saved;
}
