/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/config_text.h"

#include <ctype.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/utf8.h"

static const char *kind_of(mode_t mode) {
        return S_ISDIR(mode) ? "a directory" : S_ISFIFO(mode) ? "a pipe" : S_ISSOCK(mode) ? "a socket" : "a device";
}

int config_text_read(const char *path, char **ret, size_t *ret_n, struct h_error *err) {
        _cleanup_(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        _cleanup_(buf_free) struct buf text = {};
        struct stat st;
        int r;

        if (fd < 0 || fstat(fd, &st) < 0)
                return h_error_set(err, HEARTH_E_io, "%s: %s", path, strerror(errno));
        if (!S_ISREG(st.st_mode))
                return h_error_set(err, HEARTH_E_io, "%s: it is %s; the configuration is a regular file", path, kind_of(st.st_mode));
        if (st.st_size > CONFIG_MAX_BYTES)
                return h_error_set(err, HEARTH_E_bad_request, "%s: it has %lld bytes, a configuration at most %u", path,
                                   (long long)st.st_size, CONFIG_MAX_BYTES);
        /* One byte more than it may have, so that one which grows meanwhile is noticed. */
        r = buf_read_fd(&text, fd, CONFIG_MAX_BYTES + 1);
        if (r == -ENOMEM)
                return r;
        if (r < 0)
                return h_error_set(err, HEARTH_E_io, "%s: %s", path, strerror(-r));
        if (text.len > CONFIG_MAX_BYTES)
                return h_error_set(err, HEARTH_E_bad_request, "%s: it has more than %u bytes", path, CONFIG_MAX_BYTES);
        if (text.len == 0)
                return h_error_set(err, HEARTH_E_bad_request, "%s: it is empty, as an interrupted write leaves it; for the defaults remove "
                                   "it, or write a comment (#) into it", path);
        *ret_n = text.len;
        *ret = buf_steal(&text);
        return 0;
}

/* Are there bytes that no text has? */
static int check_line(const char *p, size_t n, struct h_error *err) {
        size_t at;

        for (size_t i = 0; i < n; i++)
                if (((unsigned char)p[i] < 0x20 && p[i] != '\t') || p[i] == 0x7f)
                        return h_error_set(err, HEARTH_E_bad_request, "byte %zu of the line is 0x%02x, a control character: is the file damaged?",
                                           i + 1, (unsigned char)p[i]);
        if (!utf8_valid(p, n, &at))
                return h_error_set(err, HEARTH_E_bad_request, "byte %zu of the line is 0x%02x, which is not UTF-8 text", at + 1,
                                   (unsigned char)p[at]);
        return 0;
}

/* Without the blanks around it. */
static char *strip(char *p) {
        char *end;

        while (*p == ' ' || *p == '\t')
                p++;
        end = p + strlen(p);
        while (end > p && (end[-1] == ' ' || end[-1] == '\t'))
                *--end = 0;
        return p;
}

/* A comment behind something begins with a blank and ';'. */
static void cut_comment(char *p) {
        for (char *q = p; *q; q++)
                if (*q == ';' && (q == p || q[-1] == ' ' || q[-1] == '\t')) {
                        *q = 0;
                        return;
                }
}

static int take_line(char *line, char **section, int (*pair)(void *ud, const char *section, const char *key, const char *value),
                     void *ud, struct h_error *err) {
        char *p = strip(line), *sep;

        if (!*p || *p == '#' || *p == ';')
                return 0;
        if (*p == '[') {
                sep = strchr(p, ']');
                if (!sep)
                        return h_error_set(err, HEARTH_E_bad_request, "a section's name ends with ], as in [limits]");
                *sep++ = 0;
                cut_comment(sep);
                sep = strip(sep);
                if (*sep && *sep != '#')
                        return h_error_set(err, HEARTH_E_bad_request, "behind [%s] nothing may stand: a key has a line of its own", p + 1);
                *section = strip(p + 1);
                return 0;
        }
        sep = strpbrk(p, "=:");
        if (!sep)
                return h_error_set(err, HEARTH_E_bad_request, "expected [section] or key = value");
        *sep++ = 0;
        cut_comment(sep);
        return pair(ud, *section, strip(p), strip(sep));
}

int config_text_parse(const char *path, char *text, size_t n,
                      int (*pair)(void *ud, const char *section, const char *key, const char *value), void *ud, struct h_error *err) {
        static char none[] = "";
        char *section = none;
        size_t at = n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0; /* a byte order mark */

        for (unsigned line = 1; at < n; line++) {
                char *p = text + at, *end = memchr(p, '\n', n - at);
                size_t len = end ? (size_t)(end - p) : n - at;
                int r;

                at += len + 1;
                if (len && p[len - 1] == '\r')
                        len--;
                r = check_line(p, len, err);
                if (r == 0) {
                        p[len] = 0;
                        r = take_line(p, &section, pair, ud, err);
                }
                if (r == -EHEARTH)
                        return h_error_prefix(err, "%s:%u", path, line);
                if (r < 0)
                        return r;
        }
        return 0;
}
