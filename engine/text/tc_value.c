/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values in tool calls: where a JSON value ends, and literals of notations
 * that are not JSON. Depth is bounded; nothing here allocates but jansson.
 */
#include <ctype.h>

#include "base/alloc.h"
#include "engine/text/tc_int.h"
#include "engine/text/tok_unicode.h"

#define MAX_DEPTH 128

static size_t skip_ws(const char *p, size_t n, size_t i) {
        while (i < n && (p[i] == ' ' || p[i] == '\t' || p[i] == '\n' || p[i] == '\r'))
                i++;
        return i;
}

/* RFC 8259. i is on the opening quote. */
static enum tc_scan scan_string(const char *p, size_t n, size_t i, size_t *ret_end) {
        for (i++; i < n; i++) {
                if (p[i] == '"') {
                        *ret_end = i + 1;
                        return TC_WHOLE;
                }
                if ((unsigned char)p[i] < 0x20)
                        return TC_BROKEN;
                if (p[i] != '\\')
                        continue;
                if (++i == n)
                        return TC_PARTIAL;
                if (p[i] == 'u') {
                        for (int k = 0; k < 4; k++) {
                                if (++i == n)
                                        return TC_PARTIAL;
                                if (!isxdigit((unsigned char)p[i]))
                                        return TC_BROKEN;
                        }
                } else if (!strchr("\"\\/bfnrt", p[i]) || !p[i]) {
                        return TC_BROKEN;
                }
        }
        return TC_PARTIAL;
}

static enum tc_scan scan_scalar(const char *p, size_t n, size_t i, size_t *ret_end) {
        static const char *const words[] = { "true", "false", "null" };
        size_t k = i;

        for (size_t w = 0; w < ELEMENTSOF(words); w++) {
                size_t len = strlen(words[w]);
                if (p[i] != words[w][0])
                        continue;
                if (strncmp(p + i, words[w], MIN(len, n - i)) != 0)
                        return TC_BROKEN;
                *ret_end = i + len;
                return n - i >= len ? TC_WHOLE : TC_PARTIAL;
        }
        k += p[k] == '-';
        while (k < n && isdigit((unsigned char)p[k]))
                k++;
        if (k < n && k == i + (p[i] == '-'))
                return TC_BROKEN;
        if (k < n && p[k] == '.')
                for (k++; k < n && isdigit((unsigned char)p[k]);)
                        k++;
        if (k < n && (p[k] == 'e' || p[k] == 'E')) {
                k++;
                if (k < n && (p[k] == '+' || p[k] == '-'))
                        k++;
                while (k < n && isdigit((unsigned char)p[k]))
                        k++;
        }
        *ret_end = k;
        return k < n ? TC_WHOLE : TC_PARTIAL;
}

enum tc_scan tc_json_scan(const char *p, size_t n, size_t *ret_end) {
        char stack[MAX_DEPTH];
        size_t depth = 0, i = 0;
        bool want_value = true, want_key = false, may_close = false;

        for (;;) {
                enum tc_scan r = TC_WHOLE;

                i = skip_ws(p, n, i);
                if (i == n)
                        return TC_PARTIAL;
                if (want_key) {
                        if (p[i] == '}' && may_close)
                                goto closed;
                        if (p[i] != '"')
                                return TC_BROKEN;
                        r = scan_string(p, n, i, &i);
                        if (r != TC_WHOLE)
                                return r;
                        i = skip_ws(p, n, i);
                        if (i == n)
                                return TC_PARTIAL;
                        if (p[i++] != ':')
                                return TC_BROKEN;
                        want_key = false;
                        want_value = true;
                        may_close = false;
                        continue;
                }
                if (want_value) {
                        if (p[i] == ']' && may_close)
                                goto closed;
                        may_close = false;
                        if (p[i] == '{' || p[i] == '[') {
                                if (depth == MAX_DEPTH)
                                        return TC_BROKEN;
                                stack[depth++] = p[i];
                                want_key = p[i] == '{';
                                want_value = !want_key;
                                may_close = true;
                                i++;
                                continue;
                        }
                        r = p[i] == '"' ? scan_string(p, n, i, &i) : scan_scalar(p, n, i, &i);
                        if (r != TC_WHOLE)
                                return r;
                        want_value = false;
                } else if (p[i] == ',' && depth) {
                        want_key = stack[depth - 1] == '{';
                        want_value = !want_key;
                        i++;
                        continue;
                } else {
closed:
                        if (!depth || p[i] != (stack[depth - 1] == '{' ? '}' : ']'))
                                return TC_BROKEN;
                        depth--;
                        i++;
                        want_key = want_value = may_close = false;
                }
                if (depth == 0) {
                        *ret_end = i;
                        return TC_WHOLE;
                }
        }
}

struct tc_slice tc_trim(struct tc_slice s) {
        while (s.n && isspace((unsigned char)*s.p)) {
                s.p++;
                s.n--;
        }
        while (s.n && isspace((unsigned char)s.p[s.n - 1]))
                s.n--;
        return s;
}

bool tc_is(struct tc_slice s, const char *lit) {
        return s.n == strlen(lit) && memcmp(s.p, lit, s.n) == 0;
}

ptrdiff_t tc_find(struct tc_slice s, const char *lit) {
        const char *p = s.n ? memmem(s.p, s.n, lit, strlen(lit)) : NULL;
        return p ? p - s.p : -1;
}

const char *tc_param_type(const json_t *tools, struct tc_slice fn, struct tc_slice param) {
        const json_t *t;
        size_t i;

        json_array_foreach(tools, i, t) {
                const json_t *f = json_object_get(t, "function"), *type;
                if (!f)
                        f = t;
                if (!json_is_string(json_object_get(f, "name")) || !tc_is(fn, json_string_value(json_object_get(f, "name"))))
                        continue;
                type = json_object_get(json_object_getn(json_object_get(json_object_get(f, "parameters"), "properties"),
                                                        param.p, param.n), "type");
                return json_string_value(type);
        }
        return NULL;
}

/* Any JSON value. An integer beyond 64 bits stays a number, the nearest real. */
static json_t *load(struct tc_slice s) {
        json_t *j = json_loadb(s.p, s.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);

        if (!j && s.n && (s.p[0] == '-' || isdigit((unsigned char)s.p[0])))
                j = json_loadb(s.p, s.n, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, NULL);
        return j;
}

json_t *tc_typed_value(const json_t *tools, struct tc_slice fn, struct tc_slice param, struct tc_slice raw) {
        const char *type = tc_param_type(tools, fn, param);
        struct tc_slice s = tc_trim(raw);
        json_t *j = NULL;

        if (!type || strcasecmp(type, "string") != 0) {
                j = load(s);
                if (!j && (tc_is(s, "True") || tc_is(s, "False")))
                        return json_boolean(s.p[0] == 'T');
                if (!j && tc_is(s, "None"))
                        return json_null();
                if (!j && s.n && (s.p[0] == '{' || s.p[0] == '[')) { /* as Python prints them */
                        size_t at = 0;
                        j = tc_literal(s, &at);
                        if (at != s.n) {
                                json_decref(j);
                                j = NULL;
                        }
                }
        }
        return j ? j : json_stringn(raw.p, raw.n);
}

/* ---- literals ---- */

static json_t *literal(struct tc_slice s, size_t *at, unsigned depth);

static size_t skip(struct tc_slice s, size_t i) {
        while (i < s.n && isspace((unsigned char)s.p[i]))
                i++;
        return i;
}

static bool at_lit(struct tc_slice s, size_t i, const char *lit) {
        size_t n = strlen(lit);
        return s.n - i >= n && memcmp(s.p + i, lit, n) == 0;
}

/* Text up to a long delimiter, taken as it is. */
static json_t *delimited(struct tc_slice s, size_t *at, const char *delim) {
        size_t from = *at + strlen(delim);
        ptrdiff_t end = from <= s.n ? tc_find(tc_slice(s.p + from, s.n - from), delim) : -1;

        if (end < 0)
                return NULL;
        *at = from + (size_t)end + strlen(delim);
        return json_stringn(s.p + from, (size_t)end);
}

static bool hex_digits(struct tc_slice s, size_t at, unsigned n, uint32_t *ret) {
        uint32_t v = 0;

        if (at > s.n || s.n - at < n)
                return false;
        for (unsigned i = 0; i < n; i++) {
                int c = tolower((unsigned char)s.p[at + i]);
                if (!isxdigit(c))
                        return false;
                v = v << 4 | (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
        }
        *ret = v;
        return true;
}

/* The escape \xHH, \uHHHH (also as a surrogate pair) or \UHHHHHHHH whose letter is at i: its bytes, or 0 if it is none. */
static unsigned unicode_escape(struct tc_slice s, size_t *i, char out[4]) {
        unsigned n = s.p[*i] == 'x' ? 2 : s.p[*i] == 'u' ? 4 : s.p[*i] == 'U' ? 8 : 0;
        uint32_t cp, low;

        if (n == 0 || !hex_digits(s, *i + 1, n, &cp) || cp > 0x10ffff)
                return 0;
        *i += n;
        if (cp >= 0xd800 && cp < 0xdc00 && s.n - *i > 2 && s.p[*i + 1] == '\\' && s.p[*i + 2] == 'u' &&
            hex_digits(s, *i + 3, 4, &low) && low >= 0xdc00 && low < 0xe000) {
                cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
                *i += 6;
        }
        if (cp >= 0xd800 && cp < 0xe000) /* half a pair */
                cp = 0xfffd;
        return u8_put(cp, out);
}

static json_t *quoted(struct tc_slice s, size_t *at) {
        char q = s.p[*at], *text = h_malloc(s.n + 1);
        size_t n = 0, i = *at + 1;
        json_t *j = NULL;

        if (!text)
                return NULL;
        for (; i < s.n && s.p[i] != q; i++) {
                static const char from[] = "nrtbf", to[] = "\n\r\t\b\f";
                const char *e;
                unsigned len;
                char u[4];
                if (s.p[i] != '\\' || i + 1 == s.n) {
                        text[n++] = s.p[i];
                        continue;
                }
                i++;
                e = strchr(from, s.p[i]);
                len = unicode_escape(s, &i, u);
                if (len) {
                        memcpy(text + n, u, len);
                        n += len;
                } else {
                        text[n++] = e && *e ? to[e - from] : s.p[i];
                }
        }
        if (i < s.n) {
                j = json_stringn(text, n);
                *at = i + 1;
        }
        free(text);
        return j;
}

static json_t *dict(struct tc_slice s, size_t *at, unsigned depth) {
        json_t *o = json_object();
        size_t i = skip(s, *at + 1);

        while (o && i < s.n && s.p[i] != '}') {
                json_t *key = NULL, *v;
                if (s.p[i] == '"' || s.p[i] == '\'' || at_lit(s, i, "<|\"|>") || at_lit(s, i, "<escape>")) {
                        key = literal(s, &i, depth + 1);
                } else {
                        size_t from = i;
                        while (i < s.n && s.p[i] != ':' && s.p[i] != '}' && s.p[i] != ',')
                                i++;
                        struct tc_slice k = tc_trim(tc_slice(s.p + from, i - from));
                        key = json_stringn(k.p, k.n);
                }
                i = skip(s, i);
                if (!json_is_string(key) || i >= s.n || s.p[i] != ':') {
                        json_decref(key);
                        goto broken;
                }
                i = skip(s, i + 1);
                v = literal(s, &i, depth + 1);
                if (!v || json_object_setn_new(o, json_string_value(key), json_string_length(key), v) < 0) {
                        json_decref(key);
                        goto broken;
                }
                json_decref(key);
                i = skip(s, i);
                if (i < s.n && s.p[i] == ',')
                        i = skip(s, i + 1);
                else if (i >= s.n || s.p[i] != '}')
                        goto broken;
        }
        if (o && i < s.n) {
                *at = i + 1;
                return o;
        }
broken:
        json_decref(o);
        return NULL;
}

static json_t *list(struct tc_slice s, size_t *at, unsigned depth) {
        char close = s.p[*at] == '[' ? ']' : ')';
        json_t *a = json_array();
        size_t i = skip(s, *at + 1);

        while (a && i < s.n && s.p[i] != close) {
                json_t *v = literal(s, &i, depth + 1);
                if (!v || json_array_append_new(a, v) < 0)
                        goto broken;
                i = skip(s, i);
                if (i < s.n && s.p[i] == ',')
                        i = skip(s, i + 1);
                else if (i >= s.n || s.p[i] != close)
                        goto broken;
        }
        if (a && i < s.n) {
                *at = i + 1;
                return a;
        }
broken:
        json_decref(a);
        return NULL;
}

static json_t *literal(struct tc_slice s, size_t *at, unsigned depth) {
        struct tc_slice word;
        size_t i = *at;
        json_t *j;

        if (depth > MAX_DEPTH || i >= s.n)
                return NULL;
        if (at_lit(s, i, "<|\"|>"))
                return delimited(s, at, "<|\"|>");
        if (at_lit(s, i, "<escape>"))
                return delimited(s, at, "<escape>");
        if (s.p[i] == '"' || s.p[i] == '\'')
                return quoted(s, at);
        if (s.p[i] == '{')
                return dict(s, at, depth);
        if (s.p[i] == '[' || s.p[i] == '(')
                return list(s, at, depth);
        while (i < s.n && !strchr(",]})", s.p[i]) && s.p[i])
                i++;
        word = tc_trim(tc_slice(s.p + *at, i - *at));
        *at = i;
        if (word.n == 0)
                return NULL;
        if (tc_is(word, "True") || tc_is(word, "False"))
                return json_boolean(word.p[0] == 'T');
        if (tc_is(word, "None"))
                return json_null();
        j = load(word);
        return j ? j : json_stringn(word.p, word.n);
}

json_t *tc_literal(struct tc_slice s, size_t *at) {
        return literal(s, at, 0);
}
