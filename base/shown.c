/* SPDX-License-Identifier: Apache-2.0 */
#include "base/shown.h"

#include <string.h>

#include "base/utf8.h"

/* The code point of a well-formed character of 'len' bytes. */
static uint32_t code_of(const unsigned char *p, size_t len) {
        uint32_t c = len == 1 ? p[0] : p[0] & (0x7fu >> len);

        for (size_t i = 1; i < len; i++)
                c = c << 6 | (p[i] & 0x3f);
        return c;
}

enum shown_kind shown_next(const char *p, size_t n, size_t *ret_len) {
        const unsigned char *u = (const unsigned char *)p;
        size_t len = u[0] < 0x80 ? 1 : u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : 4;
        uint32_t c;

        if (len > n || (len > 1 && !utf8_valid(p, len, NULL))) {
                *ret_len = 1;
                return SHOWN_BROKEN;
        }
        *ret_len = len;
        c = code_of(u, len);
        if (c < 0x20 || (c >= 0x7f && c < 0xa0))
                return SHOWN_CONTROL;
        return c == 0x061c || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) ? SHOWN_LAYOUT
                                                                                                                        : SHOWN_PLAIN;
}

bool shown_plain(const char *p, size_t n) {
        for (size_t i = 0, len; i < n; i += len)
                if (shown_next(p + i, n - i, &len) != SHOWN_PLAIN)
                        return false;
        return true;
}

/* One character as it is shown; returns the bytes of it. */
static size_t put(char ret[24], const char *p, size_t len, enum shown_kind kind, enum shown_how how) {
        bool space = *p == '\n' || *p == '\t';
        size_t at = 0;

        if (kind == SHOWN_PLAIN || (space && how != SHOWN_LINE)) {
                memcpy(ret, p, len);
                return len;
        }
        if (how == SHOWN_JSON)
                return (size_t)snprintf(ret, 24, "\\u%04x", kind == SHOWN_BROKEN ? 0xfffd : code_of((const unsigned char *)p, len));
        if (space)
                return (size_t)snprintf(ret, 24, *p == '\n' ? "\\n" : "\\t");
        for (size_t i = 0; i < len; i++)
                at += (size_t)snprintf(ret + at, 24 - at, "\\x%02x", (unsigned char)p[i]);
        return at;
}

size_t shown_write(FILE *f, const char *p, size_t n, size_t max, enum shown_how how) {
        char out[24];
        size_t i = 0, len;

        for (; i < n; i += len) {
                enum shown_kind kind = shown_next(p + i, n - i, &len);

                if (i + len > max)
                        break;
                fwrite(out, 1, put(out, p + i, len, kind, how), f);
        }
        return i;
}

void shown_copy(const char *p, size_t n, enum shown_how how, char *ret, size_t size) {
        char out[24];
        size_t at = 0;

        for (size_t i = 0, len; i < n; i += len) {
                enum shown_kind kind = shown_next(p + i, n - i, &len);
                size_t m = put(out, p + i, len, kind, how);

                if (at + m >= size)
                        break;
                memcpy(ret + at, out, m);
                at += m;
        }
        ret[at] = 0;
}
