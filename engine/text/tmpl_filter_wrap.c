/* SPDX-License-Identifier: Apache-2.0 */
/* Jinja's filters that break lines: wordwrap, as Python's textwrap does it, and pprint, as its pprint. */
#include <utf8proc.h>

#include "engine/text/tmpl_int.h"

#define FILTER(name) static struct t_val name(struct t_run *r, struct t_val in, const struct t_val *b, const struct t_args *a)

/* ---- wordwrap ---- */

struct line { const struct t_str *s; int32_t *cp; size_t *off; size_t n; }; /* off[n]: the end */
struct chunk { size_t from, n; };
struct wrapping { int64_t width; bool break_long, hyphens, split_hyphens; const struct t_str *end; };

/* What textwrap calls white space: ASCII's alone. */
static bool blank(const struct line *l, size_t i) {
        return l->cp[i] == ' ' || (l->cp[i] >= 9 && l->cp[i] <= 13);
}

static bool letter(const struct line *l, size_t i) {
        return i < l->n && t_is_word(l->cp[i]) && utf8proc_category(l->cp[i]) != UTF8PROC_CATEGORY_ND;
}

static bool punctuated(const struct line *l, size_t i) {
        int32_t cp = l->cp[i];
        return t_is_word(cp) || (cp < 0x80 && cp && strchr("!\"'&.,?", cp));
}

/* Two dashes or more from i on, behind a word, with a word behind them; *ret_end: where that begins. */
static bool dash(const struct line *l, size_t i, size_t *ret_end) {
        size_t k = i;

        if (i == 0 || l->cp[i] != '-' || !punctuated(l, i - 1))
                return false;
        while (k < l->n && l->cp[k] == '-')
                k++;
        *ret_end = k;
        return k - i >= 2 && k < l->n && t_is_word(l->cp[k]);
}

/* May a word be split behind the hyphen at i? */
static bool hyphen(const struct line *l, size_t i) {
        bool before = (i >= 2 && letter(l, i - 1) && letter(l, i - 2)) ||
                      (i >= 3 && letter(l, i - 1) && l->cp[i - 2] == '-' && letter(l, i - 3));

        return l->cp[i] == '-' && before && letter(l, i + 1) && (letter(l, i + 2) || (i + 2 < l->n && l->cp[i + 2] == '-' && letter(l, i + 3)));
}

/* The end of the chunk that begins at i. */
static size_t chunk_end(const struct line *l, size_t i, bool hyphens) {
        size_t end = i;

        if (blank(l, i)) {
                while (end < l->n && blank(l, end))
                        end++;
                return end;
        }
        if (!hyphens) {
                while (end < l->n && !blank(l, end))
                        end++;
                return end;
        }
        if (dash(l, i, &end))
                return end;
        for (size_t k = i + 1, other; k < l->n; k++) {
                if (hyphen(l, k))
                        return k + 1;
                if (blank(l, k) || dash(l, k, &other))
                        return k;
        }
        return l->n;
}

static bool is_space(const struct line *l, const struct chunk *c) {
        for (size_t i = 0; i < c->n; i++)
                if (!t_is_space(l->cp[c->from + i]))
                        return false;
        return true;
}

/* How much of a chunk that is too long for any line goes onto this one: to its last hyphen there, if that is no mere dash. */
static size_t cut(const struct line *l, const struct chunk *c, size_t room, bool hyphens) {
        size_t i = room;

        while (hyphens && i > 0 && l->cp[c->from + i - 1] != '-')
                i--;
        for (size_t k = 0; i > 1 && k < i - 1; k++)
                if (l->cp[c->from + k] != '-')
                        return i;
        return room;
}

static void wrap_line(struct t_run *r, struct t_sb *sb, const struct line *l, const struct wrapping *w) {
        struct chunk *c = t_array(&r->c, l->n + 1, sizeof(*c));
        const size_t width = (size_t)w->width;
        size_t n = 0, at = 0, lines = 0;

        for (size_t i = 0; i < l->n; i += c[n++].n)
                c[n] = (struct chunk){ i, chunk_end(l, i, w->split_hyphens) - i };
        while (at < n) {
                struct chunk last = { 0 }; /* on the line */
                size_t len = 0, from, to;

                if (lines && is_space(l, &c[at]) && ++at == n)
                        break;
                from = to = c[at].from;
                while (at < n && len + c[at].n <= width) {
                        last = c[at++];
                        len += last.n;
                        to = last.from + last.n;
                }
                if (at < n && c[at].n > width && (w->break_long || len == 0)) {
                        last = (struct chunk){ c[at].from, w->break_long ? cut(l, &c[at], width - len, w->hyphens) : c[at].n };
                        to = last.from + last.n;
                        c[at].from += last.n;
                        c[at].n -= last.n;
                        at += c[at].n == 0;
                }
                if (is_space(l, &last)) /* also the nothing of a long one that had no room */
                        to = MAX(last.from, from);
                if (to == from)
                        continue;
                if (lines++)
                        t_sb_str(sb, w->end);
                t_sb_sub(sb, l->s, l->off[from], l->off[to] - l->off[from]);
        }
}

FILTER(f_wordwrap) {
        struct wrapping w = { .width = t_arg_int(r, "wordwrap: width", b[0], 79), .break_long = t_arg_bool(b[1], true), .hyphens = t_arg_bool(b[3], true),
                              .split_hyphens = b[3].kind == V_ABSENT || (b[3].kind == V_BOOL && b[3].b) };
        struct t_list *l;
        struct t_sb sb;

        if (in.kind != V_STR)
                t_fail(&r->c, "wordwrap of %s, which is not a string", t_type_name(in));
        w.end = b[2].kind == V_ABSENT || b[2].kind == V_NONE ? t_str_lit(&r->c, "\n") : t_arg_str(r, "wordwrap: wrapstring", b[2]);
        l = t_lines(r, in.s, false);
        t_step(r, in.s->n);
        t_sb_init(&sb, &r->c);
        for (size_t i = 0; i < l->n; i++) {
                const struct t_str *s = l->v[i].s;
                struct line line = { .s = s, .cp = t_array(&r->c, s->n + 1, sizeof(*line.cp)), .off = t_array(&r->c, s->n + 1, sizeof(*line.off)) };

                if (w.width <= 0)
                        t_fail(&r->c, "wordwrap: invalid width %lld (must be > 0)", (long long)w.width);
                for (size_t k = 0; k < s->n; line.n++) {
                        line.off[line.n] = k;
                        k += t_cp(s->p + k, s->n - k, &line.cp[line.n]);
                }
                line.off[line.n] = s->n;
                if (i)
                        t_sb_str(&sb, w.end);
                wrap_line(r, &sb, &line, &w);
        }
        return t_strv(t_sb_done(&sb));
}

/* ---- pprint ---- */

enum { WIDTH = 80 };

/* The order that pprint sorts keys by: what can't be compared goes by its type's name. */
static bool key_less(struct t_run *r, struct t_val x, struct t_val y) {
        if ((t_is_num(x) && t_is_num(y)) || (x.kind == V_STR && y.kind == V_STR))
                return t_cmp(r, "<", x, y) < 0;
        if (x.kind == V_TUPLE && y.kind == V_TUPLE) {
                for (size_t i = 0; i < MIN(x.l->n, y.l->n); i++)
                        if (!t_eq(r, x.l->v[i], y.l->v[i]))
                                return key_less(r, x.l->v[i], y.l->v[i]);
                return x.l->n < y.l->n;
        }
        return strcmp(t_type_name(x), t_type_name(y)) < 0;
}

/* A dict's entries by key: an insertion sort in runs would do for the few that there are, a merge sort does for all. */
static const struct t_entry **sorted(struct t_run *r, const struct t_dict *d) {
        const struct t_entry **e = t_array(&r->c, d->n + 1, sizeof(*e)), **other = t_array(&r->c, d->n + 1, sizeof(*other)), **swap;
        size_t n = 0;

        for (size_t i = 0; i < d->used; i++)
                if (!d->e[i].dead)
                        e[n++] = &d->e[i];
        t_step(r, n);
        for (size_t w = 1; w < n; w *= 2) {
                for (size_t lo = 0; lo < n; lo += 2 * w) {
                        size_t mid = MIN(lo + w, n), hi = MIN(lo + 2 * w, n), i = lo, k = mid;
                        for (size_t at = lo; at < hi; at++)
                                other[at] = i < mid && (k == hi || !key_less(r, e[k]->k, e[i]->k)) ? e[i++] : e[k++];
                }
                swap = e;
                e = other;
                other = swap;
        }
        return e;
}

/* On one line. */
static void put_flat(struct t_run *r, struct t_sb *sb, struct t_val v) {
        if (v.kind != V_LIST && v.kind != V_TUPLE && v.kind != V_DICT) {
                t_repr(r, sb, v);
                return;
        }
        t_enter(r);
        t_step(r, 1);
        t_sb_lit(sb, v.kind == V_LIST ? "[" : v.kind == V_TUPLE ? "(" : "{");
        if (v.kind == V_DICT) {
                const struct t_entry **e = sorted(r, v.d);
                for (size_t i = 0; i < v.d->n; i++) {
                        t_sb_lit(sb, i ? ", " : "");
                        put_flat(r, sb, e[i]->k);
                        t_sb_lit(sb, ": ");
                        put_flat(r, sb, e[i]->v);
                }
        } else {
                for (size_t i = 0; i < v.l->n; i++) {
                        t_sb_lit(sb, i ? ", " : "");
                        put_flat(r, sb, v.l->v[i]);
                }
        }
        t_sb_lit(sb, v.kind == V_LIST ? "]" : v.kind == V_DICT ? "}" : v.l->n == 1 ? ",)" : ")");
        t_leave(r);
}

static const struct t_str *flat(struct t_run *r, struct t_val v) {
        struct t_sb sb;

        t_sb_init(&sb, &r->c);
        put_flat(r, &sb, v);
        return t_sb_done(&sb);
}

static void new_line(struct t_sb *sb, int64_t indent) {
        t_sb_lit(sb, "\n");
        for (int64_t i = 0; i < indent; i++)
                t_sb_lit(sb, " ");
}

static int64_t repr_length(struct t_run *r, const struct t_str *s) {
        return (int64_t)t_cp_len(flat(r, t_strv(s)));
}

/* The pieces of a line of text: words with the white space behind them, as many as fit. */
static void put_pieces(struct t_run *r, struct t_list *pieces, const struct t_str *line, int64_t width, int64_t last_width) {
        size_t from = 0, at = 0;

        while (at < line->n) {
                size_t end = at, k;
                int32_t cp;
                bool space = false;

                for (; end < line->n; end += k) {
                        k = t_cp(line->p + end, line->n - end, &cp);
                        if (space && !t_is_space(cp))
                                break;
                        space = t_is_space(cp);
                }
                t_step(r, 1 + (end - from) / 4);
                if (repr_length(r, t_str_sub(&r->c, line, from, end - from)) > (end == line->n ? last_width : width)) {
                        if (at > from)
                                t_list_push(&r->c, pieces, t_strv(t_str_sub(&r->c, line, from, at - from)));
                        from = at;
                }
                at = end;
        }
        if (at > from)
                t_list_push(&r->c, pieces, t_strv(t_str_sub(&r->c, line, from, at - from)));
}

static void put_text(struct t_run *r, struct t_sb *sb, const struct t_str *s, int64_t indent, int64_t allowance, bool top) {
        struct t_list *lines = t_lines(r, s, true), *pieces = t_list_new(&r->c, 0);
        int64_t width;

        indent += top;
        allowance += top;
        width = WIDTH - indent;
        for (size_t i = 0; i < lines->n; i++) {
                int64_t most = width - (i + 1 == lines->n ? allowance : 0);
                if (repr_length(r, lines->v[i].s) <= most)
                        t_list_push(&r->c, pieces, lines->v[i]);
                else
                        put_pieces(r, pieces, lines->v[i].s, width, most);
        }
        if (top && pieces->n > 1)
                t_sb_lit(sb, "(");
        for (size_t i = 0; i < pieces->n; i++) {
                if (i)
                        new_line(sb, indent);
                t_repr(r, sb, pieces->v[i]);
        }
        if (top && pieces->n > 1)
                t_sb_lit(sb, ")");
}

/* allowance: columns that what follows on the last line takes. */
static void put_pretty(struct t_run *r, struct t_sb *sb, struct t_val v, int64_t indent, int64_t allowance, unsigned level) {
        const struct t_str *line = flat(r, v);
        size_t n = v.kind == V_DICT ? v.d->n : v.kind == V_LIST || v.kind == V_TUPLE ? v.l->n : 0;
        const struct t_entry **e;

        t_step(r, line->n / 8);
        if ((int64_t)t_cp_len(line) <= WIDTH - indent - allowance || (n == 0 && (v.kind != V_STR || v.s->n == 0 || v.s->markup))) {
                t_sb_str(sb, line);
                return;
        }
        if (v.kind == V_STR) {
                put_text(r, sb, v.s, indent, allowance, level == 0);
                return;
        }
        t_enter(r);
        t_sb_lit(sb, v.kind == V_LIST ? "[" : v.kind == V_TUPLE ? "(" : "{");
        e = v.kind == V_DICT ? sorted(r, v.d) : NULL;
        indent++;
        allowance += v.kind == V_TUPLE && n == 1 ? 2 : 1;
        for (size_t i = 0; i < n; i++) {
                int64_t after = i + 1 == n ? allowance : 1, wide = 0;
                if (i) {
                        t_sb_lit(sb, ",");
                        new_line(sb, indent);
                }
                if (e) {
                        const struct t_str *key = flat(r, e[i]->k);
                        t_sb_str(sb, key);
                        t_sb_lit(sb, ": ");
                        wide = (int64_t)t_cp_len(key) + 2;
                }
                put_pretty(r, sb, e ? e[i]->v : v.l->v[i], indent + wide, after, level + 1);
        }
        t_sb_lit(sb, v.kind == V_LIST ? "]" : v.kind == V_DICT ? "}" : n == 1 ? ",)" : ")");
        t_leave(r);
}

FILTER(f_pprint) {
        struct t_sb sb;

        t_sb_init(&sb, &r->c);
        put_pretty(r, &sb, in, 0, 0, 0);
        return t_strv(t_sb_done(&sb));
}

const struct t_filter t_filters_wrap[] = {
        { "pprint", "", f_pprint },
        { "wordwrap", "width break_long_words wrapstring break_on_hyphens", f_wordwrap },
        { NULL, NULL, NULL },
};
