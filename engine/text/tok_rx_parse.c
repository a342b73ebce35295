/* SPDX-License-Identifier: Apache-2.0 */
/* A pattern's text to its syntax tree. Equal character sets are one set, so that the table behind it has few classes. */
#include "engine/text/tok_rx_int.h"

#include <string.h>
#include <utf8proc.h>

#include "engine/text/tok_unicode.h"

int rx_bad(struct rx_compiler *c, const char *what) {
        return h_error_set(c->err, HEARTH_E_internal, "pattern \"%.80s\": %s at byte %zu", c->pattern, what,
                           (size_t)(c->p - c->pattern));
}

/* ---- sets --------------------------------------------------------------- */

#define CAT(x) (1u << UTF8PROC_CATEGORY_##x)
static const struct { const char *name; uint32_t mask; } categories[] = {
        { "L", CAT(LU) | CAT(LL) | CAT(LT) | CAT(LM) | CAT(LO) },
        { "M", CAT(MN) | CAT(MC) | CAT(ME) },
        { "N", CAT(ND) | CAT(NL) | CAT(NO) },
        { "P", CAT(PC) | CAT(PD) | CAT(PS) | CAT(PE) | CAT(PI) | CAT(PF) | CAT(PO) },
        { "S", CAT(SM) | CAT(SC) | CAT(SK) | CAT(SO) },
        { "Lu", CAT(LU) }, { "Ll", CAT(LL) }, { "Lt", CAT(LT) }, { "Lm", CAT(LM) }, { "Lo", CAT(LO) }, { "Nd", CAT(ND) },
};
/* White_Space (PropList.txt). */
static const uint32_t spaces[][2] = {
        { 0x9, 0xd }, { 0x20, 0x20 }, { 0x85, 0x85 }, { 0xa0, 0xa0 }, { 0x1680, 0x1680 }, { 0x2000, 0x200a },
        { 0x2028, 0x2029 }, { 0x202f, 0x202f }, { 0x205f, 0x205f }, { 0x3000, 0x3000 },
};
/* Script=Han (Scripts.txt, Unicode 15). */
static const uint32_t han[][2] = {
        { 0x2e80, 0x2e99 }, { 0x2e9b, 0x2ef3 }, { 0x2f00, 0x2fd5 }, { 0x3005, 0x3005 }, { 0x3007, 0x3007 },
        { 0x3021, 0x3029 }, { 0x3038, 0x303b }, { 0x3400, 0x4dbf }, { 0x4e00, 0x9fff }, { 0xf900, 0xfa6d },
        { 0xfa70, 0xfad9 }, { 0x16fe2, 0x16fe3 }, { 0x16ff0, 0x16ff1 }, { 0x20000, 0x2a6df }, { 0x2a700, 0x2b739 },
        { 0x2b740, 0x2b81d }, { 0x2b820, 0x2cea1 }, { 0x2ceb0, 0x2ebe0 }, { 0x2f800, 0x2fa1d }, { 0x30000, 0x3134a },
        { 0x31350, 0x323af },
};

static int add_item(struct rx_compiler *c, uint32_t lo, uint32_t hi, uint32_t mask) {
        if (c->n_items >= MAX_ITEMS)
                return rx_bad(c, "too many ranges");
        c->items[c->n_items++] = (struct item){ lo, hi, mask };
        return 0;
}

static int add_ranges(struct rx_compiler *c, const uint32_t (*r)[2], size_t n) {
        int e = 0;
        for (size_t i = 0; i < n && e == 0; i++)
                e = add_item(c, r[i][0], r[i][1], 0);
        return e;
}

/* Items from 'first' on become a set, or the equal set that is there already. Returns its index. */
static int add_set(struct rx_compiler *c, unsigned first, bool negated, int and_set) {
        unsigned n = c->n_items - first;

        for (unsigned i = 0; i < c->n_sets; i++) {
                struct set *s = &c->sets[i];
                if (s->n == n && s->negated == negated && s->and_set == and_set &&
                    memcmp(&c->items[s->first], &c->items[first], n * sizeof(struct item)) == 0) {
                        c->n_items = first;
                        return (int)i;
                }
        }
        if (c->n_sets >= MAX_SETS)
                return rx_bad(c, "too many sets");
        c->sets[c->n_sets] = (struct set){ (uint16_t)first, (uint16_t)n, negated, (int16_t)and_set };
        return (int)c->n_sets++;
}

bool rx_in_set(const struct rx_compiler *c, int set, uint32_t cp, unsigned category) {
        const struct set *s = &c->sets[set];
        bool in = false;

        for (unsigned i = s->first; i < (unsigned)s->first + s->n && !in; i++) {
                const struct item *it = &c->items[i];
                in = it->lo <= it->hi ? cp >= it->lo && cp <= it->hi : (it->categories >> category & 1) != 0;
        }
        return in != s->negated && (s->and_set < 0 || rx_in_set(c, s->and_set, cp, category));
}

/* After a backslash. A class adds items; a character is returned through ret_cp (else U8_INVALID). */
static int parse_escape(struct rx_compiler *c, uint32_t *ret_cp, bool *ret_negated) {
        char e = *c->p;

        *ret_cp = U8_INVALID;
        *ret_negated = e == 'S' || e == 'P';
        c->p += e != 0;
        switch (e) {
        case 'r': *ret_cp = '\r'; return 0;
        case 'n': *ret_cp = '\n'; return 0;
        case 't': *ret_cp = '\t'; return 0;
        case 's':
        case 'S': return add_ranges(c, spaces, ELEMENTSOF(spaces));
        case 'd': return add_item(c, 1, 0, CAT(ND));
        case 'x': {
                char *end;
                unsigned long cp = *c->p == '{' ? strtoul(c->p + 1, &end, 16) : U8_INVALID;
                if (cp > 0x10ffff || *end != '}')
                        return rx_bad(c, "expected {hexadecimal}");
                c->p = end + 1;
                *ret_cp = (uint32_t)cp;
                return 0;
        }
        case 'p':
        case 'P': {
                const char *end = strchr(c->p, '}');
                if (*c->p != '{' || !end)
                        return rx_bad(c, "expected {name}");
                const char *name = c->p + 1;
                size_t n = (size_t)(end - name);
                c->p = end + 1;
                if (n == 3 && memcmp(name, "Han", 3) == 0)
                        return add_ranges(c, han, ELEMENTSOF(han));
                for (size_t i = 0; i < ELEMENTSOF(categories); i++)
                        if (strlen(categories[i].name) == n && memcmp(categories[i].name, name, n) == 0)
                                return add_item(c, 1, 0, categories[i].mask);
                return rx_bad(c, "unknown property");
        }
        }
        if (e == 0 || (e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z') || (e >= '0' && e <= '9'))
                return rx_bad(c, "unknown escape");
        *ret_cp = (uint8_t)e;
        return 0;
}

static uint32_t next_char(struct rx_compiler *c) {
        unsigned k;
        uint32_t cp = u8_next(c->p, strlen(c->p), &k);
        c->p += k;
        return cp;
}

/* After '['. Returns the set. */
static int parse_class(struct rx_compiler *c) {
        struct item own[MAX_ITEMS / 4];
        unsigned first = c->n_items, n;
        int r, and_set = -1;
        bool negated = *c->p == '^', inner;

        c->p += negated;
        while (*c->p != ']') {
                uint32_t lo, hi;
                if (*c->p == 0)
                        return rx_bad(c, "class without end");
                if (c->p[0] == '&' && c->p[1] == '&' && c->p[2] == '[') {
                        /* The inner set's items must not lie among ours: put ours aside. */
                        n = c->n_items - first;
                        if (n > ELEMENTSOF(own))
                                return rx_bad(c, "too many ranges");
                        memcpy(own, &c->items[first], n * sizeof(*own));
                        c->n_items = first;
                        c->p += 3;
                        and_set = parse_class(c);
                        if (and_set < 0)
                                return and_set;
                        first = c->n_items;
                        if (first + n > MAX_ITEMS)
                                return rx_bad(c, "too many ranges");
                        memcpy(&c->items[first], own, n * sizeof(*own));
                        c->n_items = first + n;
                        continue;
                }
                lo = next_char(c);
                if (lo == '\\') {
                        r = parse_escape(c, &lo, &inner);
                        if (r < 0)
                                return r;
                        if (inner)
                                return rx_bad(c, "negated class inside a class");
                        if (lo == U8_INVALID)
                                continue;
                }
                hi = lo;
                if (c->p[0] == '-' && c->p[1] != ']') {
                        c->p++;
                        hi = next_char(c);
                        if (hi == '\\') {
                                r = parse_escape(c, &hi, &inner);
                                if (r < 0)
                                        return r;
                        }
                        if (hi == U8_INVALID || hi < lo)
                                return rx_bad(c, "bad range");
                }
                r = add_item(c, lo, hi, 0);
                if (r < 0)
                        return r;
        }
        c->p++;
        return add_set(c, first, negated, and_set);
}

/* ---- syntax tree -------------------------------------------------------- */

static int add_node(struct rx_compiler *c, struct node n) {
        if (c->n_nodes >= MAX_NODES)
                return rx_bad(c, "too long");
        c->nodes[c->n_nodes] = n;
        return c->n_nodes++;
}

static int parse_alternatives(struct rx_compiler *c);

static int parse_set_atom(struct rx_compiler *c) {
        unsigned first = c->n_items;
        uint32_t cp = next_char(c);
        bool negated = false;
        int r = 0;

        if (cp == '[') {
                r = parse_class(c);
                if (r < 0)
                        return r;
                return add_node(c, (struct node){ .kind = NODE_SET, .a = r });
        }
        if (cp == '\\') {
                r = parse_escape(c, &cp, &negated);
                if (r < 0)
                        return r;
        }
        if (cp != U8_INVALID) {
                r = add_item(c, cp, cp, 0);
                if (r == 0 && c->fold && cp < 128 && ((cp | 32) >= 'a' && (cp | 32) <= 'z'))
                        r = add_item(c, cp ^ 32, cp ^ 32, 0);
        }
        if (r < 0)
                return r;
        r = add_set(c, first, negated, -1);
        return r < 0 ? r : add_node(c, (struct node){ .kind = NODE_SET, .a = r });
}

static int parse_group(struct rx_compiler *c) {
        bool fold = c->fold;
        int r;

        if (c->p[0] == '?' && (c->p[1] == '=' || c->p[1] == '!')) {
                bool negated = c->p[1] == '!';
                c->p += 2;
                r = parse_set_atom(c);
                if (r < 0)
                        return r;
                if (*c->p++ != ')')
                        return rx_bad(c, "a lookahead is one class");
                return add_node(c, (struct node){ .kind = NODE_LOOK, .a = c->nodes[r].a, .negated = negated });
        }
        if (strncmp(c->p, "?i:", 3) == 0) {
                c->fold = true;
                c->p += 3;
        } else if (strncmp(c->p, "?:", 2) == 0)
                c->p += 2;
        else if (*c->p == '?')
                return rx_bad(c, "unknown group");
        r = parse_alternatives(c);
        c->fold = fold;
        if (r < 0)
                return r;
        return *c->p++ == ')' ? r : rx_bad(c, "group without end");
}

static int parse_repeat(struct rx_compiler *c, int atom) {
        int min = 0, max = -1;

        switch (*c->p) {
        case '?': max = 1; break;
        case '*': break;
        case '+': min = 1; break;
        case '{': {
                char *end;
                min = max = (int)strtol(c->p + 1, &end, 10);
                if (*end == ',')
                        max = (int)strtol(end + 1, &end, 10);
                if (*end != '}' || min < 0 || max < min || max > 512)
                        return rx_bad(c, "bad repetition");
                c->p = end;
                break;
        }
        default: return atom;
        }
        c->p++;
        return add_node(c, (struct node){ .kind = NODE_REPEAT, .a = atom, .min = min, .max = max });
}

static int parse_sequence(struct rx_compiler *c) {
        int seq = -1;

        while (*c->p && *c->p != '|' && *c->p != ')') {
                int r;
                if (*c->p == '(') {
                        c->p++;
                        r = parse_group(c);
                } else if (*c->p == '$') { /* not before any character */
                        c->p++;
                        unsigned first = c->n_items;
                        r = add_item(c, 0, 0x10ffff, 0);
                        if (r == 0)
                                r = add_set(c, first, false, -1);
                        if (r >= 0)
                                r = add_node(c, (struct node){ .kind = NODE_LOOK, .a = r, .negated = true });
                } else
                        r = parse_set_atom(c);
                if (r >= 0)
                        r = parse_repeat(c, r);
                if (r >= 0 && seq >= 0)
                        r = add_node(c, (struct node){ .kind = NODE_CAT, .a = seq, .b = r });
                if (r < 0)
                        return r;
                seq = r;
        }
        return seq >= 0 ? seq : add_node(c, (struct node){ .kind = NODE_EMPTY });
}

static int parse_alternatives(struct rx_compiler *c) {
        int a = parse_sequence(c);

        while (a >= 0 && *c->p == '|') {
                c->p++;
                int b = parse_sequence(c);
                if (b < 0)
                        return b;
                a = add_node(c, (struct node){ .kind = NODE_ALT, .a = a, .b = b });
        }
        return a;
}

int rx_parse(struct rx_compiler *c) {
        int root = parse_alternatives(c);

        return root < 0 ? root : *c->p ? rx_bad(c, "unmatched )") : root;
}
