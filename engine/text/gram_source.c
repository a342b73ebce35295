/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A schema's text as JSON. Whole numbers beyond 64 bits (ids, bounds) are reals
 * in the document, as jansson has no others, and their digits are kept beside
 * it. To that end such a text is read twice: with ".0" behind each of them, and
 * with each in quotes. What is a string there and a real here is one of them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "engine/text/gram_schema.h"

static bool is_digit(char c) {
        return c >= '0' && c <= '9';
}

/* Is a whole number, 'n' bytes of sign and digits, beyond what json_int_t holds? */
static bool too_large(const char *p, size_t n) {
        static const char most[] = "9223372036854775807", least[] = "9223372036854775808";
        bool neg = *p == '-';

        p += neg;
        n -= neg;
        return n > sizeof(most) - 1 || (n == sizeof(most) - 1 && memcmp(p, neg ? least : most, n) > 0);
}

/* The text with 'before' and 'after' around each of those numbers. */
static int mark(const char *p, size_t n, const char *before, const char *after, struct buf *ret) {
        size_t copied = 0;
        int r = 0;

        for (size_t i = 0; i < n && r == 0;) {
                size_t from = i;

                if (p[i] == '"') {
                        for (i++; i < n && p[i] != '"'; i++)
                                i += p[i] == '\\';
                        i++;
                        continue;
                }
                if (p[i] != '-' && !is_digit(p[i])) {
                        i++;
                        continue;
                }
                for (i++; i < n && is_digit(p[i]); i++)
                        ;
                if (i < n && (p[i] == '.' || p[i] == 'e' || p[i] == 'E')) { /* a real: its exponent is none of them */
                        while (i < n && (is_digit(p[i]) || strchr(".eE+-", p[i])))
                                i++;
                        continue;
                }
                if (!too_large(p + from, i - from))
                        continue;
                r = buf_append(ret, p + copied, from - copied);
                r = r < 0 ? r : buf_puts(ret, before);
                r = r < 0 ? r : buf_append(ret, p + from, i - from);
                r = r < 0 ? r : buf_puts(ret, after);
                copied = i;
        }
        return r < 0 ? r : buf_append(ret, p + copied, n - copied);
}

static int collect(struct gs_source *s, const json_t *j, const json_t *marked) {
        const json_t *v;
        const char *key;
        size_t i;
        int r = 0;

        if (json_is_real(j) && json_is_string(marked)) {
                if ((s->n_big & (s->n_big - 1)) == 0) { /* there is room for as many as the next power of two */
                        struct gs_big *more = h_realloc(s->big, MAX(2 * s->n_big, (size_t)1) * sizeof(*more));
                        if (!more)
                                return -ENOMEM;
                        s->big = more;
                }
                s->big[s->n_big++] = (struct gs_big){ j, json_string_value(marked), json_string_length(marked) };
        }
        json_object_foreach((json_t *)j, key, v)
                if ((r = collect(s, v, json_object_get(marked, key))) < 0)
                        return r;
        json_array_foreach(j, i, v)
                if ((r = collect(s, v, json_array_get(marked, i))) < 0)
                        return r;
        return 0;
}

static int by_pointer(const void *x, const void *y) {
        uintptr_t a = (uintptr_t)((const struct gs_big *)x)->number, b = (uintptr_t)((const struct gs_big *)y)->number;
        return (a > b) - (a < b);
}

int gs_source_read(struct gs_source *s, const char *text, size_t n, json_error_t *ret_error) {
        _cleanup_(buf_free) struct buf reals = {}, strings = {};
        int r;

        *s = (struct gs_source){ .doc = json_loadb(text, n, JSON_DECODE_ANY, ret_error) };
        if (s->doc || json_error_code(ret_error) != json_error_numeric_overflow)
                return s->doc ? 0 : -EBADMSG;
        if ((r = mark(text, n, "", ".0", &reals)) < 0 || (r = mark(text, n, "\"", "\"", &strings)) < 0)
                return r;
        s->doc = json_loadb(reals.data, reals.len, JSON_DECODE_ANY, ret_error);
        s->marked = s->doc ? json_loadb(strings.data, strings.len, JSON_DECODE_ANY, ret_error) : NULL;
        if (!s->marked)
                return -EBADMSG;
        r = collect(s, s->doc, s->marked);
        if (s->n_big)
                qsort(s->big, s->n_big, sizeof(*s->big), by_pointer);
        return r;
}

const struct gs_big *gs_source_big(const struct gs_source *s, const json_t *number) {
        return s->n_big ? bsearch(&(struct gs_big){ .number = number }, s->big, s->n_big, sizeof(*s->big), by_pointer) : NULL;
}

void gs_source_free(struct gs_source *s) {
        json_decref(s->doc);
        json_decref(s->marked);
        free(s->big);
        *s = (struct gs_source){};
}
