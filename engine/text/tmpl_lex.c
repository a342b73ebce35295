/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Source to tokens, with the white-space rules chat templates are written for
 * (Jinja 3.1 with trim_blocks and lstrip_blocks): line ends become \n, one
 * trailing line end is dropped; a block or comment swallows the line end after
 * it and the blanks before it on its line; '-' swallows all white space on its
 * side, '+' switches the rule off.
 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <utf8proc.h>

#include "engine/text/tmpl_int.h"

struct lexer {
        struct t_ctx *c;
        const char *p;
        size_t n, at;
        int line;
        bool line_start; /* the token before ended with a line end */
        struct t_token *tok;
        size_t n_tok, cap;
        char stack[T_MAX_DEPTH]; /* open brackets */
        size_t n_stack;
};

static struct t_token *push(struct lexer *l, enum t_tok kind) {
        l->tok = t_grow(l->c, l->tok, l->n_tok, &l->cap, l->n_tok + 1, sizeof(*l->tok));
        l->tok[l->n_tok] = (struct t_token){ .kind = kind, .line = l->line };
        return &l->tok[l->n_tok++];
}

static bool at_lit(const struct lexer *l, size_t at, const char *s) {
        size_t n = strlen(s);
        return l->n - at >= n && memcmp(l->p + at, s, n) == 0;
}

static void advance(struct lexer *l, size_t n) {
        for (size_t i = 0; i < n; i++)
                l->line += l->p[l->at + i] == '\n';
        if (n)
                l->line_start = l->p[l->at + n - 1] == '\n';
        l->at += n;
}

static size_t space_len(const struct lexer *l, size_t at) {
        size_t i = at;
        int32_t cp;
        while (i < l->n) {
                size_t k = t_cp(l->p + i, l->n - i, &cp);
                if (!t_is_space(cp))
                        break;
                i += k;
        }
        return i - at;
}

/* Emits the text [from, to) in front of a tag that opens with 'sign' ('-', '+' or 0). */
static void push_text(struct lexer *l, size_t from, size_t to, char sign, bool lstrip) {
        const struct t_str all = { .p = l->p + from, .n = to - from };
        size_t n = all.n;
        bool was_start = l->line_start;

        l->c->line = l->line;
        if (sign == '-') {
                n = t_strip(l->c, &all, NULL, 2)->n;
        } else if (sign != '+' && lstrip) {
                size_t bol = n;
                while (bol > 0 && all.p[bol - 1] != '\n')
                        bol--;
                if ((bol > 0 || was_start) && t_strip(l->c, &(struct t_str){ .p = all.p + bol, .n = n - bol }, NULL, 1)->n == 0)
                        n = bol;
        }
        if (n)
                push(l, K_TEXT)->val = t_strv(t_str_new(l->c, all.p, n, T_TRUSTED));
        advance(l, to - from);
}

/* After a tag's end: what it swallows of the text behind. */
static void after_tag(struct lexer *l, char sign, bool trim) {
        if (sign == '-')
                advance(l, space_len(l, l->at));
        else if (trim && sign != '+' && l->at < l->n && l->p[l->at] == '\n')
                advance(l, 1);
}

static void comment(struct lexer *l) {
        size_t at = l->at + 2, start;
        char sign = 0;

        if (at < l->n && (l->p[at] == '-' || l->p[at] == '+'))
                at++;
        start = at;
        while (at < l->n && !at_lit(l, at, "#}"))
                at++;
        if (at >= l->n)
                t_fail(l->c, "the comment that begins here has no end: '#}' is missing");
        if (at > start && (l->p[at - 1] == '-' || l->p[at - 1] == '+'))
                sign = l->p[at - 1];
        advance(l, at + 2 - l->at);
        after_tag(l, sign, true);
}

/* {% raw %} ... {% endraw %}; false if the block at l->at is another one. */
static bool is_word_block(const struct lexer *l, size_t at, const char *word, char *ret_open, char *ret_close, size_t *ret_end) {
        *ret_open = *ret_close = 0;
        at += 2;
        if (at < l->n && (l->p[at] == '-' || l->p[at] == '+'))
                *ret_open = l->p[at++];
        at += space_len(l, at);
        if (!at_lit(l, at, word))
                return false;
        at += strlen(word);
        at += space_len(l, at);
        if (at < l->n && (l->p[at] == '-' || l->p[at] == '+'))
                *ret_close = l->p[at++];
        if (!at_lit(l, at, "%}"))
                return false;
        *ret_end = at + 2;
        return true;
}

static bool raw_block(struct lexer *l) {
        char open, close;
        size_t end, at;

        if (!is_word_block(l, l->at, "raw", &open, &close, &end) || close == '+')
                return false;
        l->c->line = l->line;
        advance(l, end - l->at);
        if (close == '-')
                advance(l, space_len(l, l->at));
        for (at = l->at; at < l->n; at++) {
                if (!at_lit(l, at, "{%") || !is_word_block(l, at, "endraw", &open, &close, &end))
                        continue;
                push_text(l, l->at, at, open, true);
                advance(l, end - l->at);
                after_tag(l, close, true);
                return true;
        }
        t_fail(l->c, "'{%% raw %%}' begins here and has no '{%% endraw %%}'");
}

static void put_cp(struct t_sb *b, uint32_t cp) {
        utf8proc_uint8_t u[4];
        utf8proc_ssize_t n;

        if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff))
                t_fail(b->c, "a string holds an escape of U+%X, which is not a character", cp);
        n = utf8proc_encode_char((utf8proc_int32_t)cp, u);
        t_sb_put(b, (const char *)u, (size_t)n, T_TRUSTED);
}

static bool hex(const char *p, size_t n, uint32_t *ret) {
        uint32_t v = 0;
        for (size_t i = 0; i < n; i++) {
                if (!isxdigit((unsigned char)p[i]))
                        return false;
                v = v * 16 + (uint32_t)(isdigit((unsigned char)p[i]) ? p[i] - '0' : (p[i] | 32) - 'a' + 10);
        }
        *ret = v;
        return true;
}

/* A quoted string with Python's escapes; l->at is on the quote. */
static void string(struct lexer *l) {
        static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
        char quote = l->p[l->at];
        size_t i = l->at + 1;
        struct t_token *t;
        struct t_sb b;

        l->c->line = l->line;
        t_sb_init(&b, l->c);
        while (i < l->n && l->p[i] != quote) {
                size_t left = l->n - i, w;
                const char *e;
                uint32_t cp;
                char x;

                if (l->p[i] != '\\') {
                        t_sb_put(&b, l->p + i++, 1, T_TRUSTED);
                        continue;
                }
                if (left < 2)
                        break;
                x = l->p[i + 1];
                e = x ? strchr(from, x) : NULL;
                w = x == 'x' ? 2 : x == 'u' ? 4 : x == 'U' ? 8 : 0;
                if (e) {
                        t_sb_put(&b, &to[e - from], 1, T_TRUSTED);
                        i += 2;
                } else if (x == '\n') { /* a line continued */
                        i += 2;
                } else if (w) {
                        if (left < 2 + w || !hex(l->p + i + 2, w, &cp))
                                t_fail(l->c, "a string holds a broken \\%c escape: %zu hex digits are expected", x, w);
                        put_cp(&b, cp);
                        i += 2 + w;
                } else if (x >= '0' && x <= '7') {
                        for (i++, cp = 0, w = 0; w < 3 && i < l->n && l->p[i] >= '0' && l->p[i] <= '7'; w++)
                                cp = cp * 8 + (uint32_t)(l->p[i++] - '0');
                        put_cp(&b, cp);
                } else if (x == 'N') {
                        t_fail(l->c, "a string holds a \\N{...} escape, which is not supported: write the character itself");
                } else { /* unknown escapes stay */
                        t_sb_put(&b, l->p + i, 1, T_TRUSTED);
                        i++;
                }
        }
        if (i >= l->n)
                t_fail(l->c, "the string that begins here has no end: %c is missing", quote);
        t = push(l, K_STRING);
        t->val = t_strv(t_sb_done(&b));
        advance(l, i + 1 - l->at);
}

/* Digits of a base with single underscores between them, from i; returns where they end. */
static size_t digits(const struct lexer *l, size_t i, int base) {
        size_t start = i;

        for (; i < l->n; i++) {
                unsigned char ch = (unsigned char)l->p[i];
                if (ch == '_' && i > start && i + 1 < l->n && isxdigit((unsigned char)l->p[i + 1]))
                        continue;
                if (base == 16 ? !isxdigit(ch) : !isdigit(ch))
                        break;
        }
        return i;
}

/* is_index: behind a dot, where x.0.1 means x[0][1] and no fraction follows. */
static void number(struct lexer *l, bool is_index) {
        size_t i = l->at, end, n = 0;
        char text[64], *stop;
        int base = 10;
        bool is_float = false;
        struct t_token *t;

        l->c->line = l->line;
        if (l->p[i] == '0' && i + 1 < l->n && l->p[i + 1] && strchr("xXoObB", l->p[i + 1])) {
                base = (l->p[i + 1] | 32) == 'x' ? 16 : (l->p[i + 1] | 32) == 'o' ? 8 : 2;
                i += 2;
        }
        end = digits(l, i, base);
        if (base == 10 && !is_index) {
                size_t k;
                if (end + 1 < l->n && l->p[end] == '.' && isdigit((unsigned char)l->p[end + 1])) {
                        is_float = true;
                        end = digits(l, end + 1, 10);
                }
                if (end < l->n && (l->p[end] | 32) == 'e') {
                        k = end + 1;
                        if (k < l->n && (l->p[k] == '+' || l->p[k] == '-'))
                                k++;
                        if (k < l->n && isdigit((unsigned char)l->p[k])) {
                                is_float = true;
                                end = digits(l, k, 10);
                        }
                }
        }
        for (; i < end; i++) {
                if (n >= sizeof(text) - 1)
                        t_fail(l->c, "a number has more than %zu digits", sizeof(text) - 1);
                if (l->p[i] != '_')
                        text[n++] = l->p[i];
        }
        text[n] = 0;
        t = push(l, is_float ? K_FLOAT : K_INT);
        errno = 0;
        t->val = is_float ? t_float(strtod(text, &stop)) : t_int(strtoll(text, &stop, base));
        if (n == 0 || *stop || (!is_float && errno))
                t_fail(l->c, "bad number '%.*s' (integers have 64 bits)", (int)(end - l->at), l->p + l->at);
        advance(l, end - l->at);
}

static void op(struct lexer *l) {
        static const char two[][3] = { "//", "**", "==", "!=", ">=", "<=" };
        char ch = l->p[l->at];
        struct t_token *t;
        size_t n = 1;

        l->c->line = l->line;
        for (size_t i = 0; i < ELEMENTSOF(two); i++)
                if (at_lit(l, l->at, two[i]))
                        n = 2;
        if (n == 1 && (!ch || !strchr("+-/*%~[](){}><=.:|,", ch)))
                t_fail(l->c, "unexpected character '%.*s'", (int)t_cp(l->p + l->at, l->n - l->at, &(int32_t){ 0 }), l->p + l->at);
        if (strchr("([{", ch)) {
                if (l->n_stack == sizeof(l->stack))
                        t_fail(l->c, "brackets are nested more than %d deep", T_MAX_DEPTH);
                l->stack[l->n_stack++] = ch;
        } else if (strchr(")]}", ch)) {
                char want = ch == ')' ? '(' : ch == ']' ? '[' : '{';
                if (l->n_stack == 0 || l->stack[l->n_stack - 1] != want)
                        t_fail(l->c, "unexpected '%c'", ch);
                l->n_stack--;
        }
        t = push(l, K_OP);
        memcpy(t->op, l->p + l->at, n);
        advance(l, n);
}

static bool name_char(int32_t cp, bool first) {
        utf8proc_category_t cat;

        if (cp < 0x80)
                return isalpha(cp) || cp == '_' || (!first && isdigit(cp));
        cat = utf8proc_category(cp);
        return (cat >= UTF8PROC_CATEGORY_LU && cat <= UTF8PROC_CATEGORY_LO) || cat == UTF8PROC_CATEGORY_NL ||
               (!first && (cat == UTF8PROC_CATEGORY_MN || cat == UTF8PROC_CATEGORY_MC || cat == UTF8PROC_CATEGORY_ND));
}

/* The inside of {{ }} or {% %}, its end included. */
static void inside(struct lexer *l, const char *close, enum t_tok end_kind, bool trim) {
        int begin = l->line;

        l->n_stack = 0;
        for (;;) {
                int32_t cp;
                size_t k, n;

                advance(l, space_len(l, l->at));
                if (l->at >= l->n) {
                        l->c->line = begin;
                        t_fail(l->c, "the tag that begins here has no end: '%s' is missing", close);
                }
                if (l->n_stack == 0) {
                        char sign = l->p[l->at];
                        bool signed_end = (sign == '-' || (sign == '+' && trim)) && at_lit(l, l->at + 1, close);
                        if (signed_end || at_lit(l, l->at, close)) {
                                push(l, end_kind);
                                advance(l, signed_end ? 3 : 2);
                                after_tag(l, signed_end ? sign : 0, trim);
                                return;
                        }
                }
                k = t_cp(l->p + l->at, l->n - l->at, &cp);
                if (cp == '\'' || cp == '"') {
                        string(l);
                } else if (cp < 0x80 && isdigit(cp)) {
                        number(l, l->tok[l->n_tok - 1].kind == K_OP && strcmp(l->tok[l->n_tok - 1].op, ".") == 0);
                } else if (name_char(cp, true)) {
                        for (n = 0; l->at + n < l->n; n += k) {
                                k = t_cp(l->p + l->at + n, l->n - l->at - n, &cp);
                                if (!name_char(cp, false))
                                        break;
                        }
                        push(l, K_NAME)->val = t_strv(t_str_new(l->c, l->p + l->at, n, T_TRUSTED));
                        advance(l, n);
                } else {
                        op(l);
                }
        }
}

/* Line ends to \n, one trailing one dropped. */
static const char *normalize(struct t_ctx *c, const char *src, size_t n, size_t *ret_n) {
        char *p = t_alloc(c, n + 1);
        size_t k = 0;

        for (size_t i = 0; i < n; i++) {
                if (src[i] == '\r') {
                        p[k++] = '\n';
                        if (i + 1 < n && src[i + 1] == '\n')
                                i++;
                } else {
                        p[k++] = src[i];
                }
        }
        if (k && p[k - 1] == '\n')
                k--;
        *ret_n = k;
        return p;
}

struct t_token *t_lex(struct t_ctx *c, const char *src, size_t n, size_t *ret_n) {
        struct lexer l = { .c = c, .line = 1, .line_start = true };

        c->line = 1;
        l.p = normalize(c, src, n, &l.n);
        while (l.at < l.n) {
                size_t open = l.at;
                char kind, sign = 0;

                while (open < l.n && !(l.p[open] == '{' && open + 1 < l.n && strchr("{%#", l.p[open + 1]) && l.p[open + 1]))
                        open++;
                if (open >= l.n) {
                        push_text(&l, l.at, l.n, '+', false);
                        break;
                }
                kind = l.p[open + 1];
                if (open + 2 < l.n && (l.p[open + 2] == '-' || l.p[open + 2] == '+'))
                        sign = l.p[open + 2];
                push_text(&l, l.at, open, sign, kind != '{');
                c->line = l.line;
                if (kind == '#') {
                        comment(&l);
                } else if (kind == '{') {
                        push(&l, K_VAR_BEGIN);
                        advance(&l, sign ? 3 : 2);
                        inside(&l, "}}", K_VAR_END, false);
                } else if (!raw_block(&l)) {
                        push(&l, K_BLOCK_BEGIN);
                        advance(&l, sign ? 3 : 2);
                        inside(&l, "%}", K_BLOCK_END, true);
                }
        }
        push(&l, K_EOF);
        *ret_n = l.n_tok;
        return l.tok;
}
