/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jinja's filters that know HTML: striptags (markupsafe's) and urlize. Where
 * Python searches a text from its beginning again and again, one pass finds the
 * same here: templates are given texts of any size. What is put in place of
 * several bytes is trusted only if all of them are.
 */
#include <utf8proc.h>

#include "engine/text/tmpl_int.h"

#define FILTER(name) static struct t_val name(struct t_run *r, struct t_val in, const struct t_val *b, const struct t_args *a)

/* ---- character references ---- */

static const struct reference { const char *name, *text; } references[] = {
#include "engine/html5.inc"
};

/* "copy", or "copy;" */
static const char *named(const char *p, size_t n) {
        size_t lo = 0, hi = ELEMENTSOF(references);

        while (lo < hi) {
                size_t mid = (lo + hi) / 2, k = strlen(references[mid].name);
                int c = memcmp(p, references[mid].name, MIN(n, k));
                if (c == 0 && n == k)
                        return references[mid].text;
                if (c < 0 || (c == 0 && n < k))
                        hi = mid;
                else
                        lo = mid + 1;
        }
        return NULL;
}

static void put_over(struct t_sb *sb, const char *p, size_t n, const struct t_str *s, size_t off, size_t len) {
        bool trusted = s->trust == T_TRUSTED;

        if (s->trust == T_MIXED)
                trusted = !memchr(s->mark + off, T_UNTRUSTED, len);
        t_sb_put(sb, p, n, trusted ? T_TRUSTED : T_UNTRUSTED);
}

/* HTML's rules for numbers that name no character, or one of Windows' code page 1252. */
static void put_number(struct t_sb *sb, uint32_t v, const struct t_str *s, size_t off, size_t len) {
        static const uint16_t latin[32] = { 0x20ac, 0x81, 0x201a, 0x192, 0x201e, 0x2026, 0x2020, 0x2021, 0x2c6, 0x2030, 0x160, 0x2039, 0x152, 0x8d,
                0x17d, 0x8f, 0x90, 0x2018, 0x2019, 0x201c, 0x201d, 0x2022, 0x2013, 0x2014, 0x2dc, 0x2122, 0x161, 0x203a, 0x153, 0x9d, 0x17e, 0x178 };
        utf8proc_uint8_t u[4];

        if (v >= 0x80 && v < 0xa0)
                v = latin[v - 0x80];
        else if (v == 0 || v > 0x10ffff || (v >= 0xd800 && v < 0xe000))
                v = 0xfffd;
        else if (v < 9 || v == 0xb || (v >= 0xe && v < 0x20) || v == 0x7f || (v >= 0xfdd0 && v < 0xfdf0) || (v & 0xfffe) == 0xfffe)
                return;
        put_over(sb, (const char *)u, (size_t)utf8proc_encode_char((utf8proc_int32_t)v, u), s, off, len);
}

static int digit(char ch, bool hex) {
        char low = ch | 32;
        return ch >= '0' && ch <= '9' ? ch - '0' : hex && low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

/* Bytes of the reference at 'at' (an '&'), put as what it stands for; 0: it is none. */
static size_t reference(struct t_sb *sb, const struct t_str *s, size_t at) {
        const char *p = s->p + at;
        size_t n = s->n - at, len = 1;

        if (n > 1 && p[1] == '#') {
                bool hex = n > 2 && (p[2] | 32) == 'x';
                size_t from = len = hex ? 3 : 2;
                uint32_t v = 0;
                for (; len < n && digit(p[len], hex) >= 0; len++)
                        v = v > 0x10ffff ? v : v * (hex ? 16 : 10) + (uint32_t)digit(p[len], hex);
                if (len == from)
                        return 0;
                len += len < n && p[len] == ';';
                put_number(sb, v, s, at, len);
                return len;
        }
        for (unsigned cps = 0; len < n && cps < 32 && p[len] && !strchr("\t\n\f <&#;", p[len]); cps++) {
                int32_t cp;
                len += t_cp(p + len, n - len, &cp);
        }
        if (len == 1)
                return 0;
        len += len < n && p[len] == ';';
        for (size_t k = len; k > 2; k--) { /* the longest that is one; what is behind it stays */
                const char *text = named(p + 1, k - 1);
                if (!text)
                        continue;
                put_over(sb, text, strlen(text), s, at, k);
                t_sb_sub(sb, s, at + k, len - k);
                return len;
        }
        return 0;
}

static const struct t_str *unescape(struct t_run *r, const struct t_str *s) {
        struct t_sb sb;

        t_sb_init(&sb, &r->c);
        for (size_t i = 0; i < s->n;) {
                size_t k = s->p[i] == '&' ? reference(&sb, s, i) : 0;
                if (k == 0) {
                        const char *next = memchr(s->p + i + 1, '&', s->n - i - 1);
                        k = next ? (size_t)(next - s->p) - i : s->n - i;
                        t_sb_sub(&sb, s, i, k);
                }
                i += k;
        }
        return t_sb_done(&sb);
}

/* ---- striptags ---- */

/*
 * Without what lies between 'open' and 'close', which may overlap by all of
 * 'open' but its first bytes. Taking one away may join the pieces of another
 * 'open': that is why the output is looked at.
 */
static const struct t_str *without(struct t_run *r, const struct t_str *s, const char *open, const char *close, size_t overlap) {
        const size_t n_open = strlen(open), n_close = strlen(close);
        struct t_sb sb;
        size_t i = 0;

        t_sb_init(&sb, &r->c);
        while (i < s->n) {
                char joined[8];
                const char *end = NULL;
                size_t next;

                t_sb_sub(&sb, s, i, 1);
                i++;
                if (sb.n < n_open || memcmp(sb.p + sb.n - n_open, open, n_open) != 0)
                        continue;
                /* its last bytes may be the first of 'close' */
                for (size_t k = overlap; k > 0 && !end; k--) {
                        memcpy(joined, open + n_open - k, k);
                        if (k < n_close && s->n - i >= n_close - k && memcmp(joined, close, k) == 0 && memcmp(s->p + i, close + k, n_close - k) == 0)
                                end = s->p + i - k;
                }
                if (!end)
                        end = memmem(s->p + i, s->n - i, close, n_close);
                if (!end)
                        break;
                next = (size_t)(end - s->p) + n_close;
                sb.n -= n_open;
                i = next;
        }
        t_sb_sub(&sb, s, i, s->n - i);
        return t_sb_done(&sb);
}

FILTER(f_striptags) {
        const struct t_str *s = t_to_str(r, in);
        bool between = false;
        struct t_sb sb;

        t_step(r, s->n / 2);
        s = without(r, s, "<!--", "-->", 2);
        s = without(r, s, "<", ">", 0);
        t_sb_init(&sb, &r->c);
        for (size_t i = 0, k; i < s->n; i += k) { /* white space: one blank, none at the ends */
                int32_t cp;
                k = t_cp(s->p + i, s->n - i, &cp);
                if (t_is_space(cp)) {
                        between = true;
                        continue;
                }
                if (between && sb.n)
                        t_sb_as(&sb, " ", 1, s, i - 1);
                between = false;
                t_sb_sub(&sb, s, i, k);
        }
        return t_strv(unescape(r, t_sb_done(&sb)));
}

/* ---- urlize ---- */

/* A part of a text as code points. */
struct word { const int32_t *cp; size_t n; };

/* As Python's re does it with IGNORECASE: four letters beyond ASCII are a to z, too. */
static int32_t fold(int32_t cp) {
        return cp >= 'A' && cp <= 'Z' ? cp | 32 : cp == 0x17f ? 's' : cp == 0x212a ? 'k' : cp == 0x130 || cp == 0x131 ? 'i' : cp;
}

static bool is_w(int32_t cp) { return t_is_word(cp); }
static bool is_d(int32_t cp) { return utf8proc_category(cp) == UTF8PROC_CATEGORY_ND; }
static bool is_letter(int32_t cp) { return fold(cp) >= 'a' && fold(cp) <= 'z'; }
static bool is_label(int32_t cp) { return is_w(cp) || cp == '%' || cp == '-'; }
static bool is_idna(int32_t cp) { return is_w(cp) || cp == '%'; }
static bool is_domain(int32_t cp) { return is_w(cp) || cp == '.' || cp == '-'; }

static bool all(struct word w, size_t least, size_t most, bool (*is)(int32_t)) {
        if (w.n < least || w.n > most)
                return false;
        for (size_t i = 0; i < w.n; i++)
                if (!is(w.cp[i]))
                        return false;
        return true;
}

static struct word part(struct word w, size_t from, size_t to) {
        return (struct word){ w.cp + from, to - from };
}

static size_t find_cp(struct word w, size_t from, int32_t cp) {
        while (from < w.n && w.cp[from] != cp)
                from++;
        return from;
}

static bool begins(struct word w, const char *with, bool any_case) {
        size_t i = 0;

        for (; with[i]; i++)
                if (i >= w.n || (any_case ? fold(w.cp[i]) : w.cp[i]) != with[i])
                        return false;
        return true;
}

/* Names with dots between them, each of 'least' to 'most' characters; *ret_last: the last one, which is not looked at. */
static bool labels(struct word w, size_t least, size_t most, size_t *ret_n, struct word *ret_last) {
        size_t from = 0, n = 0;

        for (size_t dot; (dot = find_cp(w, from, '.')) < w.n; from = dot + 1, n++)
                if (!all(part(w, from, dot), least, most, is_label))
                        return false;
        *ret_n = n;
        *ret_last = part(w, from, w.n);
        return true;
}

static bool is_ipv4(struct word w) {
        for (unsigned k = 0; k < 4; k++) {
                size_t end = find_cp(w, 0, '.');
                if ((end < w.n) != (k < 3) || !all(part(w, 0, end), 1, 3, is_d))
                        return false;
                w = part(w, MIN(end + 1, w.n), w.n);
        }
        return true;
}

/* What is between the brackets: groups of up to four digits, two that end with a colon, then one to six where it may be missing. */
static bool is_ipv6(struct word w) {
        size_t at = 0, groups = 0;

        for (; groups < 8 && (groups < 3 || at < w.n); groups++) {
                for (unsigned k = 0; k < 4 && at < w.n && (is_d(w.cp[at]) || (fold(w.cp[at]) >= 'a' && fold(w.cp[at]) <= 'f')); k++)
                        at++;
                if (at < w.n && w.cp[at] == ':')
                        at++;
                else if (groups < 2)
                        return false;
        }
        return at == w.n;
}

static bool is_host(struct word w, bool scheme, bool www) {
        static const char *const tops[] = { "com", "net", "int", "edu", "gov", "org", "info", "mil" };
        struct word rest = www ? part(w, 4, w.n) : w, top;
        size_t n;

        if ((scheme || www) && labels(rest, 1, SIZE_MAX, &n, &top) &&
            (all(top, 2, 63, is_letter) || (begins(top, "xn--", true) && all(part(top, 4, top.n), 2, 59, is_idna))))
                return true;
        if (!scheme && labels(w, 2, 63, &n, &top) && n > 0)
                for (size_t i = 0; i < ELEMENTSOF(tops); i++)
                        if (top.n == strlen(tops[i]) && begins(top, tops[i], true))
                                return true;
        return scheme && is_ipv4(w);
}

static bool is_http(struct word w) {
        size_t scheme = begins(w, "http://", true) ? 7 : begins(w, "https://", true) ? 8 : 0, end, colon;
        bool www = !scheme && begins(w, "www.", true);

        w = part(w, scheme, w.n);
        for (end = 0; end < w.n && w.cp[end] != '/' && w.cp[end] != '?' && w.cp[end] != '#';)
                end++;
        w = part(w, 0, end);
        if (scheme && w.n && w.cp[0] == '[') {
                size_t close = find_cp(w, 0, ']');
                if (close == w.n || !is_ipv6(part(w, 1, close)))
                        return false;
                w = part(w, close + 1, w.n);
                return w.n == 0 || (w.cp[0] == ':' && all(part(w, 1, w.n), 1, 5, is_d));
        }
        colon = find_cp(w, 0, ':');
        return (colon == w.n || all(part(w, colon + 1, w.n), 1, 5, is_d)) && is_host(part(w, 0, colon), scheme > 0, www);
}

static bool is_email(struct word w) {
        size_t at = w.n, dot = w.n;

        while (at > 0 && w.cp[at - 1] != '@')
                at--;
        while (dot > at && w.cp[dot - 1] != '.')
                dot--;
        return at > 1 && dot > at + 1 && is_w(w.cp[at]) && all(part(w, at, dot), 1, SIZE_MAX, is_domain) && all(part(w, dot, w.n), 1, SIZE_MAX, is_w);
}

static bool ends(const char *p, size_t from, size_t to, const char *with) {
        size_t n = strlen(with);
        return to - from >= n && memcmp(p + to - n, with, n) == 0;
}

static size_t count(const char *p, size_t from, size_t to, const char *what) {
        size_t n = 0, k = strlen(what);

        for (const char *q; (q = memmem(p + from, to - from, what, k)); from = (size_t)(q - p) + k)
                n++;
        return n;
}

struct link { const struct t_str *attributes; int64_t trim; bool trims; struct t_list *schemes; };

/* <a href="PREFIX + MIDDLE">SHOWN</a> */
static void put_link(struct t_sb *sb, const char *prefix, const struct t_str *middle, const struct t_str *attributes, const struct t_str *shown,
                     const char *more) {
        t_sb_lit(sb, "<a href=\"");
        t_sb_lit(sb, prefix);
        t_sb_str(sb, middle);
        t_sb_lit(sb, "\"");
        if (attributes)
                t_sb_str(sb, attributes);
        t_sb_lit(sb, ">");
        t_sb_str(sb, shown);
        t_sb_lit(sb, more);
        t_sb_lit(sb, "</a>");
}

static void put_middle(struct t_run *r, struct t_sb *sb, const struct t_str *s, const struct link *l) {
        int32_t *cps = t_array(&r->c, s->n + 1, sizeof(*cps));
        struct word w = { .cp = cps };
        size_t at;

        for (size_t i = 0; i < s->n; w.n++)
                i += t_cp(s->p + i, s->n - i, &cps[w.n]);
        t_step(r, w.n / 4);
        if (is_http(w)) {
                int64_t most = l->trim < 0 ? MAX((int64_t)w.n + l->trim, 0) : l->trim;
                bool cut = l->trims && (int64_t)w.n > l->trim;
                const struct t_str *shown = cut ? t_str_sub(&r->c, s, 0, t_cp_off(s, (size_t)most)) : s;
                put_link(sb, begins(w, "https://", false) || begins(w, "http://", false) ? "" : "https://", s, l->attributes, shown, cut ? "..." : "");
                return;
        }
        if (begins(w, "mailto:", false) && is_email(part(w, 7, w.n))) {
                put_link(sb, "", s, NULL, t_str_sub(&r->c, s, 7, s->n - 7), "");
                return;
        }
        at = find_cp(w, 0, '@');
        if (at > 0 && at < w.n && !begins(w, "www.", false) && find_cp(w, 0, ':') == w.n && is_email(w)) {
                put_link(sb, "mailto:", s, NULL, s, "");
                return;
        }
        for (size_t i = 0; l->schemes && i < l->schemes->n; i++)
                if (s->n > l->schemes->v[i].s->n && t_str_starts(s, l->schemes->v[i].s)) {
                        put_link(sb, "", s, l->attributes, s, "");
                        return; /* what it has become begins with no other scheme */
                }
        t_sb_str(sb, s);
}

/* Brackets around a word and stops behind it are not of its address, unless they balance others in it. */
static void put_word(struct t_run *r, struct t_sb *sb, const struct t_str *s, const struct link *l) {
        static const char *const pairs[][2] = { { "(", ")" }, { "<", ">" }, { "&lt;", "&gt;" } };
        const char *p = s->p;
        size_t head = 0, tail = s->n;

        for (size_t k; head < s->n; head += k) {
                k = p[head] == '(' || p[head] == '<' ? 1 : s->n - head >= 4 && memcmp(p + head, "&lt;", 4) == 0 ? 4 : 0;
                if (k == 0)
                        break;
        }
        for (size_t k; tail > head; tail -= k) {
                k = strchr(")>.,", p[tail - 1]) && p[tail - 1] ? 1 : ends(p, head, tail, "&gt;") ? 4 : 0;
                if (k == 0)
                        break;
        }
        for (size_t i = 0; i < ELEMENTSOF(pairs); i++) {
                size_t opened = count(p, head, tail, pairs[i][0]), n = MIN(opened, count(p, tail, s->n, pairs[i][1]));
                if (opened <= count(p, head, tail, pairs[i][1]))
                        continue;
                for (; n > 0; n--) {
                        const char *q = memmem(p + tail, s->n - tail, pairs[i][1], strlen(pairs[i][1]));
                        tail = (size_t)(q - p) + strlen(pairs[i][1]);
                }
        }
        t_sb_sub(sb, s, 0, head);
        put_middle(r, sb, t_str_sub(&r->c, s, head, tail - head), l);
        t_sb_sub(sb, s, tail, s->n - tail);
}

/* rel's words and those that always are there, sorted, each once. */
static void relations(struct t_run *r, struct t_sb *sb, struct t_val rel, bool nofollow) {
        struct t_list *words = t_list_new(&r->c, 0);
        const struct t_str *s = t_truth(rel) ? t_arg_str(r, "urlize: rel", rel) : t_str_lit(&r->c, "");
        size_t from = SIZE_MAX;

        for (size_t i = 0; i <= s->n;) {
                int32_t cp = ' ';
                size_t k = i < s->n ? t_cp(s->p + i, s->n - i, &cp) : 1;
                if (!t_is_space(cp))
                        from = MIN(from, i);
                else if (from != SIZE_MAX) {
                        t_list_push(&r->c, words, t_strv(t_str_sub(&r->c, s, from, i - from)));
                        from = SIZE_MAX;
                }
                i += k;
        }
        t_list_push(&r->c, words, t_strv(t_str_lit(&r->c, "noopener")));
        if (nofollow)
                t_list_push(&r->c, words, t_strv(t_str_lit(&r->c, "nofollow")));
        t_sort(r, words, words->v, false);
        for (size_t i = 0; i < words->n; i++) {
                if (i && t_str_eq(words->v[i].s, words->v[i - 1].s))
                        continue;
                if (i)
                        t_sb_lit(sb, " ");
                t_sb_str(sb, t_escape(&r->c, words->v[i].s));
        }
}

/* [\w.+-]{2,}:/{0,2} */
static bool is_scheme(const struct t_str *s) {
        size_t n = s->n, at = 0, cps = 0;

        for (int k = 0; k < 2 && n && s->p[n - 1] == '/'; k++)
                n--;
        if (n == 0 || s->p[n - 1] != ':')
                return false;
        for (n--; at < n; cps++) {
                int32_t cp;
                at += t_cp(s->p + at, n - at, &cp);
                if (!is_w(cp) && cp != '.' && cp != '+' && cp != '-')
                        return false;
        }
        return cps >= 2;
}

FILTER(f_urlize) {
        const struct t_str *s = t_escape(&r->c, t_to_str(r, in));
        struct link l = { .trims = b[0].kind != V_ABSENT && b[0].kind != V_NONE };
        struct t_sb sb;

        l.trim = l.trims ? t_arg_int(r, "urlize: trim_url_limit", b[0], 0) : 0;
        t_sb_init(&sb, &r->c);
        t_sb_lit(&sb, " rel=\"");
        relations(r, &sb, b[3].kind == V_ABSENT ? t_none() : b[3], t_arg_bool(b[1], false));
        t_sb_lit(&sb, "\"");
        if (b[2].kind != V_ABSENT && t_truth(b[2])) {
                t_sb_lit(&sb, " target=\"");
                t_sb_str(&sb, t_escape(&r->c, t_to_str(r, b[2])));
                t_sb_lit(&sb, "\"");
        }
        l.attributes = t_sb_done(&sb);
        if (b[4].kind != V_ABSENT && b[4].kind != V_NONE) {
                l.schemes = t_to_list(r, b[4]);
                for (size_t i = 0; i < l.schemes->n; i++) {
                        const struct t_str *scheme = t_arg_str(r, "urlize: a scheme", l.schemes->v[i]);
                        if (!is_scheme(scheme))
                                t_fail(&r->c, "urlize: '%.*s' is not a valid URI scheme prefix", (int)MIN(scheme->n, (size_t)60), scheme->p);
                }
        }
        t_step(r, s->n / 2);
        t_sb_init(&sb, &r->c);
        for (size_t i = 0, from = 0; i <= s->n;) {
                int32_t cp = ' ';
                size_t k = i < s->n ? t_cp(s->p + i, s->n - i, &cp) : 1;
                if (t_is_space(cp)) {
                        if (i > from)
                                put_word(r, &sb, t_str_sub(&r->c, s, from, i - from), &l);
                        if (i < s->n)
                                t_sb_sub(&sb, s, i, k);
                        from = i + k;
                }
                i += k;
        }
        return t_strv(t_sb_done(&sb));
}

const struct t_filter t_filters_html[] = {
        { "striptags", "", f_striptags },
        { "urlize", "trim_url_limit nofollow target rel extra_schemes", f_urlize },
        { NULL, NULL, NULL },
};
