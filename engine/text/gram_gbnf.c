/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grammars in the GBNF notation: rules of literals, character classes, groups,
 * repetitions and references.
 *
 *   root  ::= "yes" | "no" reason?      # comment
 *   reason ::= ": " [^\n]{1,80}
 *
 * A rule is an automaton over code points in which a reference is an edge that
 * runs another rule. Refused: names without a rule, rules that can begin with
 * themselves (left recursion), rules that can never end.
 */
#include <ctype.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/text/gram_machine.h"

#define MAX_RULES 10000
#define MAX_NESTING 100
#define MAX_REPEAT 4096

struct rule { const char *name; size_t n; int line; bool defined; uint32_t start, end; bool nullable, productive; uint8_t mark; };
struct gbnf {
        struct t_ctx *c;
        struct nfa *nfa;
        const char *p;
        size_t n, at;
        unsigned depth;
        struct rule *rule;
        size_t n_rule, cap_rule;
};
struct frag { uint32_t in, out; };

static void blanks(struct gbnf *x) {
        while (x->at < x->n) {
                char ch = x->p[x->at];
                if (ch == '#') {
                        while (x->at < x->n && x->p[x->at] != '\n')
                                x->at++;
                        continue;
                }
                if (!isspace((unsigned char)ch))
                        return;
                x->c->line += ch == '\n';
                x->at++;
        }
}

static bool name_char(char ch) {
        return isalnum((unsigned char)ch) || ch == '-' || ch == '_';
}

static size_t name_len(const struct gbnf *x) {
        size_t n = 0;
        while (x->at + n < x->n && name_char(x->p[x->at + n]))
                n++;
        return n;
}

/* Does a rule's head, "name ::=", begin here? */
static bool head(struct gbnf *x) {
        size_t n = name_len(x), i = x->at + n;

        while (n && i < x->n && (x->p[i] == ' ' || x->p[i] == '\t'))
                i++;
        return n && x->n - i >= 3 && memcmp(x->p + i, "::=", 3) == 0;
}

static size_t rule_of(struct gbnf *x, const char *p, size_t n) {
        for (size_t i = 0; i < x->n_rule; i++)
                if (x->rule[i].n == n && memcmp(x->rule[i].name, p, n) == 0)
                        return i;
        if (x->n_rule >= MAX_RULES)
                t_fail(x->c, "the grammar has more than %d rules", MAX_RULES);
        x->rule = t_grow(x->c, x->rule, x->n_rule, &x->cap_rule, x->n_rule + 1, sizeof(*x->rule));
        x->rule[x->n_rule] = (struct rule){ .name = p, .n = n, .line = x->c->line };
        x->rule[x->n_rule].start = nfa_state(x->nfa);
        x->rule[x->n_rule].end = nfa_state(x->nfa);
        x->nfa->label[x->rule[x->n_rule].end] = (int32_t)x->n_rule;
        return x->n_rule++;
}

/* One character of a literal or class, escapes resolved. */
static uint32_t character(struct gbnf *x) {
        static const char from[] = "nrt\\\"[]-^", to[] = "\n\r\t\\\"[]-^";
        utf8proc_int32_t cp;
        utf8proc_ssize_t k;

        if (x->p[x->at] == '\\' && x->at + 1 < x->n) {
                char ch = x->p[x->at + 1];
                unsigned digits = ch == 'x' ? 2 : ch == 'u' ? 4 : ch == 'U' ? 8 : 0;
                const char *e = ch ? strchr(from, ch) : NULL;
                uint32_t v = 0;
                if (e) {
                        x->at += 2;
                        return (uint32_t)to[e - from];
                }
                if (!digits)
                        t_fail(x->c, "unknown escape '\\%c'", ch);
                x->at += 2;
                for (unsigned i = 0; i < digits; i++, x->at++) {
                        char h = x->at < x->n ? x->p[x->at] : 0;
                        if (!isxdigit((unsigned char)h))
                                t_fail(x->c, "'\\%c' needs %u hexadecimal digits", ch, digits);
                        v = v * 16 + (uint32_t)(isdigit((unsigned char)h) ? h - '0' : (h | 32) - 'a' + 10);
                }
                if (v > DFA_MAX_CP || (v >= 0xd800 && v < 0xe000))
                        t_fail(x->c, "U+%X is no character", v);
                return v;
        }
        k = utf8proc_iterate((const uint8_t *)x->p + x->at, (utf8proc_ssize_t)(x->n - x->at), &cp);
        if (k <= 0)
                t_fail(x->c, "the grammar is not valid UTF-8 at byte %zu", x->at);
        x->c->line += cp == '\n';
        x->at += (size_t)k;
        return (uint32_t)cp;
}

static struct frag frag_new(struct gbnf *x) {
        uint32_t in = nfa_state(x->nfa);
        return (struct frag){ in, nfa_state(x->nfa) };
}

static struct frag set_frag(struct gbnf *x, const struct nfa_set *s) {
        struct frag f = frag_new(x);
        nfa_add(x->nfa, f.in, NFA_SET, s, f.out);
        return f;
}

static struct frag one_char(struct gbnf *x, uint32_t cp) {
        struct nfa_set *s = t_alloc(x->c, sizeof(*s));
        nfa_set_add(x->c, s, cp, cp);
        return set_frag(x, s);
}

static struct frag empty(struct gbnf *x) {
        uint32_t s = nfa_state(x->nfa);
        return (struct frag){ s, s };
}

static struct frag join(struct gbnf *x, struct frag a, struct frag b) {
        nfa_add(x->nfa, a.out, NFA_EPS, NULL, b.in);
        return (struct frag){ a.in, b.out };
}

static struct frag alternatives(struct gbnf *x);

static struct frag atom(struct gbnf *x) {
        char ch = x->p[x->at];

        if (ch == '"') {
                struct frag f = empty(x);
                int line = x->c->line;
                x->at++;
                while (x->at < x->n && x->p[x->at] != '"')
                        f = join(x, f, one_char(x, character(x)));
                if (x->at >= x->n) {
                        x->c->line = line;
                        t_fail(x->c, "the literal that begins here has no end");
                }
                x->at++;
                return f;
        }
        if (ch == '[') {
                struct nfa_set *s = t_alloc(x->c, sizeof(*s));
                bool negated;
                x->at++;
                negated = x->at < x->n && x->p[x->at] == '^';
                x->at += negated;
                while (x->at < x->n && x->p[x->at] != ']') {
                        uint32_t lo = character(x), hi = lo;
                        if (x->at + 1 < x->n && x->p[x->at] == '-' && x->p[x->at + 1] != ']') {
                                x->at++;
                                hi = character(x);
                        }
                        if (hi < lo)
                                t_fail(x->c, "a range of a class is out of order");
                        nfa_set_add(x->c, s, lo, hi);
                }
                if (x->at >= x->n)
                        t_fail(x->c, "']' is missing");
                x->at++;
                nfa_set_normalize(s);
                if (negated)
                        s = nfa_set_complement(x->c, s);
                if (s->n == 0)
                        t_fail(x->c, "a class that no character is in");
                return set_frag(x, s);
        }
        if (ch == '.') {
                struct nfa_set *s = t_alloc(x->c, sizeof(*s));
                x->at++;
                nfa_set_add(x->c, s, 0, DFA_MAX_CP);
                return set_frag(x, s);
        }
        if (ch == '(') {
                struct frag f;
                x->at++;
                f = alternatives(x);
                blanks(x);
                if (x->at >= x->n || x->p[x->at] != ')')
                        t_fail(x->c, "')' is missing");
                x->at++;
                return f;
        }
        if (name_char(ch)) {
                size_t n = name_len(x), r = rule_of(x, x->p + x->at, n);
                struct frag f = frag_new(x);
                x->at += n;
                nfa_add(x->nfa, f.in, NFA_CALL, NULL, f.out);
                x->nfa->edge[x->nfa->n_edge - 1].rule = (uint32_t)r;
                return f;
        }
        t_fail(x->c, "unexpected '%c'", isprint((unsigned char)ch) ? ch : '?');
}

static bool counts(struct gbnf *x, size_t *ret_min, size_t *ret_max) {
        size_t v[2] = { 0, 0 };
        bool comma = false, second = false;

        for (x->at++; x->at < x->n && x->p[x->at] != '}'; x->at++) {
                char ch = x->p[x->at];
                if (ch == ',' && !comma) {
                        comma = true;
                } else if (isdigit((unsigned char)ch)) {
                        v[comma] = v[comma] * 10 + (size_t)(ch - '0');
                        second = comma;
                        if (v[comma] > MAX_REPEAT)
                                t_fail(x->c, "a repetition is over %d", MAX_REPEAT);
                } else if (!isspace((unsigned char)ch)) {
                        return false;
                }
        }
        if (x->at++ >= x->n)
                return false;
        *ret_min = v[0];
        *ret_max = !comma ? v[0] : second ? v[1] : SIZE_MAX;
        return *ret_min <= *ret_max;
}

static struct frag repeated(struct gbnf *x) {
        size_t start = x->at, min = 1, max = 1, after;
        uint32_t end;
        int line = x->c->line;
        struct frag f = atom(x), r;
        char ch;

        blanks(x);
        ch = x->at < x->n ? x->p[x->at] : 0;
        if (ch == '*' || ch == '+' || ch == '?') {
                x->at++;
                min = ch == '+';
                max = ch == '?' ? 1 : SIZE_MAX;
        } else if (ch == '{') {
                if (!counts(x, &min, &max))
                        t_fail(x->c, "a repetition is not {m}, {m,} or {m,n}");
        } else {
                return f;
        }
        after = x->at;
        r = empty(x);
        end = nfa_state(x->nfa);
        for (size_t i = 0; i < (max == SIZE_MAX ? min + 1 : max); i++) { /* the atom is read again for each copy */
                struct frag one = f;
                if (i > 0) {
                        int keep = x->c->line;
                        x->at = start;
                        x->c->line = line;
                        one = atom(x);
                        x->c->line = keep;
                }
                if (max == SIZE_MAX && i == min)
                        nfa_add(x->nfa, one.out, NFA_EPS, NULL, one.in);
                if (i >= min) /* leaving out one leaves out all behind it */
                        nfa_add(x->nfa, r.out, NFA_EPS, NULL, end);
                r = join(x, r, one);
        }
        nfa_add(x->nfa, r.out, NFA_EPS, NULL, end);
        x->at = after;
        return (struct frag){ r.in, end };
}

static struct frag sequence(struct gbnf *x) {
        struct frag f = empty(x);

        for (;;) {
                blanks(x);
                if (x->at >= x->n || x->p[x->at] == '|' || x->p[x->at] == ')' || head(x))
                        return f;
                f = join(x, f, repeated(x));
        }
}

static struct frag alternatives(struct gbnf *x) {
        struct frag f = frag_new(x);

        if (++x->depth > MAX_NESTING)
                t_fail(x->c, "the grammar is nested more than %d deep", MAX_NESTING);
        for (;;) {
                struct frag s = sequence(x);
                nfa_add(x->nfa, f.in, NFA_EPS, NULL, s.in);
                nfa_add(x->nfa, s.out, NFA_EPS, NULL, f.out);
                if (x->at >= x->n || x->p[x->at] != '|')
                        break;
                x->at++;
        }
        x->depth--;
        return f;
}

/* ---- what all rules together must be ---- */

/* Can the rule's end be reached from its start by edges that 'ok' rules allow? */
static bool reaches(struct gbnf *x, const struct rule *r, bool empty_only, uint8_t *mark, uint32_t *stack) {
        size_t n = 0;

        memset(mark, 0, x->nfa->n_state);
        stack[n++] = r->start;
        mark[r->start] = 1;
        while (n) {
                uint32_t s = stack[--n];
                if (s == r->end)
                        return true;
                for (uint32_t e = x->nfa->first[s]; e; e = x->nfa->edge[e - 1].next) {
                        const struct nfa_edge *y = &x->nfa->edge[e - 1];
                        bool ok = y->kind == NFA_EPS || (y->kind == NFA_SET && !empty_only) ||
                                  (y->kind == NFA_CALL && (empty_only ? x->rule[y->rule].nullable : x->rule[y->rule].productive));
                        if (ok && !mark[y->to]) {
                                mark[y->to] = 1;
                                stack[n++] = y->to;
                        }
                }
        }
        return false;
}

static void left_calls(struct gbnf *x, size_t rule, uint8_t *mark, uint32_t *stack, unsigned depth) {
        struct rule *r = &x->rule[rule];
        size_t n = 0, n_calls = 0, cap = 0;
        uint32_t *calls = NULL;

        if (r->mark == 2)
                return;
        x->c->line = r->line;
        if (r->mark == 1)
                t_fail(x->c, "rule '%.*s' can begin with itself (left recursion): write it as a repetition", (int)r->n, r->name);
        if (depth > 2000)
                t_fail(x->c, "rules refer to each other more than 2000 deep");
        r->mark = 1;
        memset(mark, 0, x->nfa->n_state);
        stack[n++] = r->start;
        mark[r->start] = 1;
        while (n) {
                uint32_t s = stack[--n];
                for (uint32_t e = x->nfa->first[s]; e; e = x->nfa->edge[e - 1].next) {
                        const struct nfa_edge *y = &x->nfa->edge[e - 1];
                        if (y->kind == NFA_CALL) {
                                calls = t_grow(x->c, calls, n_calls, &cap, n_calls + 1, sizeof(*calls));
                                calls[n_calls++] = y->rule;
                        }
                        if ((y->kind == NFA_EPS || (y->kind == NFA_CALL && x->rule[y->rule].nullable)) && !mark[y->to]) {
                                mark[y->to] = 1;
                                stack[n++] = y->to;
                        }
                }
        }
        for (size_t i = 0; i < n_calls; i++)
                left_calls(x, calls[i], mark, stack, depth + 1);
        r->mark = 2;
}

static void check(struct gbnf *x) {
        uint8_t *mark = t_alloc(x->c, x->nfa->n_state);
        uint32_t *stack = t_array(x->c, x->nfa->n_state + 1, sizeof(*stack));

        for (size_t i = 0; i < x->n_rule; i++)
                if (!x->rule[i].defined) {
                        x->c->line = x->rule[i].line;
                        t_fail(x->c, "there is no rule '%.*s'", (int)x->rule[i].n, x->rule[i].name);
                }
        for (int pass = 0; pass < 2; pass++)
                for (bool again = true; again;) {
                        again = false;
                        for (size_t i = 0; i < x->n_rule; i++) {
                                bool *flag = pass ? &x->rule[i].productive : &x->rule[i].nullable;
                                if (!*flag && reaches(x, &x->rule[i], !pass, mark, stack))
                                        *flag = again = true;
                        }
                }
        for (size_t i = 0; i < x->n_rule; i++)
                if (!x->rule[i].productive) {
                        x->c->line = x->rule[i].line;
                        t_fail(x->c, "rule '%.*s' can never end", (int)x->rule[i].n, x->rule[i].name);
                }
        for (size_t i = 0; i < x->n_rule; i++)
                left_calls(x, i, mark, stack, 0);
}

void gbnf_parse(struct grammar *g, const char *src, size_t n) {
        struct gbnf x = { .c = &g->c, .nfa = &g->nfa, .p = src, .n = n };
        size_t root;

        g->is_gbnf = true;
        g->c.line = 1;
        nfa_init(&g->nfa, &g->c);
        nfa_state(&g->nfa);
        for (blanks(&x); x.at < n; blanks(&x)) {
                size_t len = name_len(&x), r;
                struct frag f;
                if (!head(&x))
                        t_fail(x.c, "a rule is expected here: name ::= ...");
                r = rule_of(&x, x.p + x.at, len);
                if (x.rule[r].defined)
                        t_fail(x.c, "rule '%.*s' is there twice", (int)len, x.p + x.at);
                x.rule[r].defined = true;
                x.rule[r].line = x.c->line;
                x.at += len;
                while (x.p[x.at] != ':')
                        x.at++;
                x.at += 3;
                f = alternatives(&x);
                nfa_add(x.nfa, x.rule[r].start, NFA_EPS, NULL, f.in);
                nfa_add(x.nfa, f.out, NFA_EPS, NULL, x.rule[r].end);
                if (x.at < n && x.p[x.at] == ')')
                        t_fail(x.c, "unexpected ')'");
        }
        x.c->line = 1;
        root = x.n_rule;
        for (size_t i = 0; i < x.n_rule; i++)
                if (x.rule[i].n == 4 && memcmp(x.rule[i].name, "root", 4) == 0)
                        root = i;
        if (root == x.n_rule)
                t_fail(x.c, "there is no rule 'root'");
        check(&x);
        g->rule_start = t_array(&g->c, x.n_rule, sizeof(*g->rule_start));
        for (size_t i = 0; i < x.n_rule; i++)
                g->rule_start[i] = x.rule[i].start;
        g->root = x.rule[root].start;
        g->c.line = 0;
}

/* ---- running ---- */

/* The places that wait for a character and can be reached from 'state' without one. */
static void follow(struct gm_out *out, uint32_t state, uint32_t parent, struct gm_out *seen, unsigned depth) {
        const struct nfa *nfa = &out->m->g->nfa;
        struct gm_node n = { .kind = GM_NFA, .parent = parent, .q = state };
        uint32_t id = gm_intern(out->m, &n);
        size_t before = seen->n;
        bool waits = false;

        if (id == GM_NONE || out->m->error)
                return;
        gm_add(seen, id);
        if (seen->n == before)
                return; /* been here */
        if (depth > 2000) {
                out->m->error = -E2BIG;
                return;
        }
        if (nfa->label[state] >= 0) { /* the rule's end: on with whoever called it */
                const struct gm_node up = out->m->node[parent];
                if (up.kind == GM_DONE)
                        gm_add(out, parent);
                else
                        follow(out, up.q, up.parent, seen, depth + 1);
        }
        for (uint32_t e = nfa->first[state]; e && !out->m->error; e = nfa->edge[e - 1].next) {
                const struct nfa_edge *x = &nfa->edge[e - 1];
                if (x->kind == NFA_SET) {
                        waits = true;
                } else if (x->kind == NFA_CALL) {
                        struct gm_node back = { .kind = GM_NFA, .parent = parent, .q = x->to };
                        uint32_t ret = gm_intern(out->m, &back);
                        if (ret != GM_NONE)
                                follow(out, out->m->g->rule_start[x->rule], ret, seen, depth + 1);
                } else {
                        follow(out, x->to, parent, seen, depth + 1);
                }
        }
        if (waits)
                gm_add(out, id);
}

void gm_nfa_add(struct gm_out *out, uint32_t state, uint32_t parent) {
        struct gm_out seen = { .m = out->m };
        follow(out, state, parent, &seen, 0);
}

void gm_nfa_step(struct gm_out *out, uint32_t id, uint8_t b) {
        const struct nfa *nfa = &out->m->g->nfa;
        struct gm_node n = out->m->node[id];
        struct ch_range r[3];
        size_t n_r = 0;
        enum ch_result res;

        if (n.kind != GM_NFA)
                return;
        res = ch_utf8(&n.sub, b, r, &n_r);
        if (res != CH_PART && res != CH_WHOLE)
                return;
        for (uint32_t e = nfa->first[n.q]; e; e = nfa->edge[e - 1].next) {
                const struct nfa_edge *x = &nfa->edge[e - 1];
                bool hit = false;
                if (x->kind != NFA_SET)
                        continue;
                for (size_t i = 0; i < n_r; i++)
                        for (size_t k = 0; k < x->set->n && !hit; k++)
                                hit = x->set->r[k].lo <= r[i].hi && x->set->r[k].hi >= r[i].lo;
                if (!hit)
                        continue;
                if (res == CH_PART)
                        gm_push(out, &n);
                else
                        gm_nfa_add(out, x->to, n.parent);
        }
}
