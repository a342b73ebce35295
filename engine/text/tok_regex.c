/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pattern -> syntax tree -> program of a few instructions (Thompson, CACM 1968;
 * priorities as in Pike's machine) -> table of states. A state is the ordered
 * list of threads a backtracking matcher would still try; one step with the
 * class of the next character gives the next list and says whether a match ends
 * before that character. Lookahead at one character is resolved in that step,
 * since its class is then known; the end of the part is a class of its own.
 *
 * Characters fall into classes: two characters that are in the same sets of the
 * pattern are the same to it. Sets are made of ranges and general categories,
 * so a class is a function of (interval between range ends, category).
 *
 * Patterns come from a table in this program, never from a file; limits here
 * guard the table, and a pattern past them is refused by name.
 */
#include "engine/text/tok_regex.h"

#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"
#include "engine/text/tok_unicode.h"

#define MAX_SETS 64         /* distinct character sets of a pattern */
#define MAX_ITEMS 512       /* ranges and categories of all sets */
#define MAX_NODES 512
#define MAX_PROG 4096
#define MAX_STATES 4096
#define MAX_CLASSES 96
#define N_CATEGORIES 30

struct item { uint32_t lo, hi, categories; }; /* a range, or lo > hi: categories */
struct set { uint16_t first, n; bool negated; int16_t and_set; };

enum node_kind { NODE_EMPTY, NODE_SET, NODE_CAT, NODE_ALT, NODE_REPEAT, NODE_LOOK };
struct node {
        enum node_kind kind;
        int a, b;     /* children; NODE_SET and NODE_LOOK: a is the set */
        int min, max; /* NODE_REPEAT; max -1: no end */
        bool negated; /* NODE_LOOK */
};

enum op { OP_SET, OP_LOOK, OP_NOT, OP_SPLIT, OP_JUMP, OP_MATCH };
struct instr { enum op op; uint16_t set, x, y; }; /* SPLIT prefers x */

struct rx {
        uint8_t ascii[128];
        uint32_t *cut; uint32_t n_cut;  /* interval i is cut[i] .. cut[i + 1] - 1; cut[0] = 0 */
        uint8_t *klass;                 /* [n_cut][N_CATEGORIES] */
        uint32_t n_classes;             /* the class of the end is n_classes */
        uint16_t *next;                 /* [n_states][n_classes + 1]: state << 1 | match ends here; state 0 is dead */
        uint32_t n_states;
};

struct compiler {
        const char *pattern, *p;
        bool fold;
        struct h_error *err;
        struct item items[MAX_ITEMS]; unsigned n_items;
        struct set sets[MAX_SETS]; unsigned n_sets;
        struct node nodes[MAX_NODES]; int n_nodes;
        struct instr prog[MAX_PROG]; unsigned n_prog;
        uint64_t signature[MAX_CLASSES]; unsigned n_classes;
        /* Subset construction. */
        uint16_t *lists; size_t n_lists, cap_lists; /* all states' threads, one after the other */
        struct { uint32_t off, n; } states[MAX_STATES]; unsigned n_states;
        uint16_t here[MAX_PROG], out[MAX_PROG]; unsigned n_here, n_out;
        uint32_t mark_here[MAX_PROG], mark_out[MAX_PROG], mark;
};

static int bad(struct compiler *c, const char *what) {
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

static int add_item(struct compiler *c, uint32_t lo, uint32_t hi, uint32_t mask) {
        if (c->n_items >= MAX_ITEMS)
                return bad(c, "too many ranges");
        c->items[c->n_items++] = (struct item){ lo, hi, mask };
        return 0;
}

static int add_ranges(struct compiler *c, const uint32_t (*r)[2], size_t n) {
        int e = 0;
        for (size_t i = 0; i < n && e == 0; i++)
                e = add_item(c, r[i][0], r[i][1], 0);
        return e;
}

/* Items from 'first' on become a set, or the equal set that is there already. Returns its index. */
static int add_set(struct compiler *c, unsigned first, bool negated, int and_set) {
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
                return bad(c, "too many sets");
        c->sets[c->n_sets] = (struct set){ (uint16_t)first, (uint16_t)n, negated, (int16_t)and_set };
        return (int)c->n_sets++;
}

static bool in_set(const struct compiler *c, int set, uint32_t cp, unsigned category) {
        const struct set *s = &c->sets[set];
        bool in = false;

        for (unsigned i = s->first; i < (unsigned)s->first + s->n && !in; i++) {
                const struct item *it = &c->items[i];
                in = it->lo <= it->hi ? cp >= it->lo && cp <= it->hi : (it->categories >> category & 1) != 0;
        }
        return in != s->negated && (s->and_set < 0 || in_set(c, s->and_set, cp, category));
}

/* After a backslash. A class adds items; a character is returned through ret_cp (else U8_INVALID). */
static int parse_escape(struct compiler *c, uint32_t *ret_cp, bool *ret_negated) {
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
                        return bad(c, "expected {hexadecimal}");
                c->p = end + 1;
                *ret_cp = (uint32_t)cp;
                return 0;
        }
        case 'p':
        case 'P': {
                const char *end = strchr(c->p, '}');
                if (*c->p != '{' || !end)
                        return bad(c, "expected {name}");
                const char *name = c->p + 1;
                size_t n = (size_t)(end - name);
                c->p = end + 1;
                if (n == 3 && memcmp(name, "Han", 3) == 0)
                        return add_ranges(c, han, ELEMENTSOF(han));
                for (size_t i = 0; i < ELEMENTSOF(categories); i++)
                        if (strlen(categories[i].name) == n && memcmp(categories[i].name, name, n) == 0)
                                return add_item(c, 1, 0, categories[i].mask);
                return bad(c, "unknown property");
        }
        }
        if (e == 0 || (e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z') || (e >= '0' && e <= '9'))
                return bad(c, "unknown escape");
        *ret_cp = (uint8_t)e;
        return 0;
}

static uint32_t next_char(struct compiler *c) {
        unsigned k;
        uint32_t cp = u8_next(c->p, strlen(c->p), &k);
        c->p += k;
        return cp;
}

/* After '['. Returns the set. */
static int parse_class(struct compiler *c) {
        struct item own[MAX_ITEMS / 4];
        unsigned first = c->n_items, n;
        int r, and_set = -1;
        bool negated = *c->p == '^', inner;

        c->p += negated;
        while (*c->p != ']') {
                uint32_t lo, hi;
                if (*c->p == 0)
                        return bad(c, "class without end");
                if (c->p[0] == '&' && c->p[1] == '&' && c->p[2] == '[') {
                        /* The inner set's items must not lie among ours: put ours aside. */
                        n = c->n_items - first;
                        if (n > ELEMENTSOF(own))
                                return bad(c, "too many ranges");
                        memcpy(own, &c->items[first], n * sizeof(*own));
                        c->n_items = first;
                        c->p += 3;
                        and_set = parse_class(c);
                        if (and_set < 0)
                                return and_set;
                        first = c->n_items;
                        if (first + n > MAX_ITEMS)
                                return bad(c, "too many ranges");
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
                                return bad(c, "negated class inside a class");
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
                                return bad(c, "bad range");
                }
                r = add_item(c, lo, hi, 0);
                if (r < 0)
                        return r;
        }
        c->p++;
        return add_set(c, first, negated, and_set);
}

/* ---- syntax tree -------------------------------------------------------- */

static int add_node(struct compiler *c, struct node n) {
        if (c->n_nodes >= MAX_NODES)
                return bad(c, "too long");
        c->nodes[c->n_nodes] = n;
        return c->n_nodes++;
}

static int parse_alternatives(struct compiler *c);

static int parse_set_atom(struct compiler *c) {
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

static int parse_group(struct compiler *c) {
        bool fold = c->fold;
        int r;

        if (c->p[0] == '?' && (c->p[1] == '=' || c->p[1] == '!')) {
                bool negated = c->p[1] == '!';
                c->p += 2;
                r = parse_set_atom(c);
                if (r < 0)
                        return r;
                if (*c->p++ != ')')
                        return bad(c, "a lookahead is one class");
                return add_node(c, (struct node){ .kind = NODE_LOOK, .a = c->nodes[r].a, .negated = negated });
        }
        if (strncmp(c->p, "?i:", 3) == 0) {
                c->fold = true;
                c->p += 3;
        } else if (strncmp(c->p, "?:", 2) == 0)
                c->p += 2;
        else if (*c->p == '?')
                return bad(c, "unknown group");
        r = parse_alternatives(c);
        c->fold = fold;
        if (r < 0)
                return r;
        return *c->p++ == ')' ? r : bad(c, "group without end");
}

static int parse_repeat(struct compiler *c, int atom) {
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
                        return bad(c, "bad repetition");
                c->p = end;
                break;
        }
        default: return atom;
        }
        c->p++;
        return add_node(c, (struct node){ .kind = NODE_REPEAT, .a = atom, .min = min, .max = max });
}

static int parse_sequence(struct compiler *c) {
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

static int parse_alternatives(struct compiler *c) {
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

/* ---- program ------------------------------------------------------------ */

static int emit(struct compiler *c, enum op op, int set) {
        if (c->n_prog >= MAX_PROG)
                return bad(c, "program too long");
        c->prog[c->n_prog] = (struct instr){ .op = op, .set = (uint16_t)set };
        return (int)c->n_prog++;
}

static int emit_node(struct compiler *c, int i) {
        const struct node *n = &c->nodes[i];
        int r = 0, split, jump;

        switch (n->kind) {
        case NODE_EMPTY: return 0;
        case NODE_SET: return emit(c, OP_SET, n->a);
        case NODE_LOOK: return emit(c, n->negated ? OP_NOT : OP_LOOK, n->a);
        case NODE_CAT:
                r = emit_node(c, n->a);
                return r < 0 ? r : emit_node(c, n->b);
        case NODE_ALT:
                split = emit(c, OP_SPLIT, 0);
                if (split < 0)
                        return split;
                c->prog[split].x = (uint16_t)c->n_prog;
                r = emit_node(c, n->a);
                jump = r < 0 ? r : emit(c, OP_JUMP, 0);
                if (jump < 0)
                        return jump;
                c->prog[split].y = (uint16_t)c->n_prog;
                r = emit_node(c, n->b);
                c->prog[jump].x = (uint16_t)c->n_prog;
                return r;
        case NODE_REPEAT:
                for (int k = 0; k < n->min && r >= 0; k++)
                        r = emit_node(c, n->a);
                if (r < 0)
                        return r;
                if (n->max < 0) {
                        split = emit(c, OP_SPLIT, 0);
                        if (split < 0)
                                return split;
                        c->prog[split].x = (uint16_t)c->n_prog;
                        r = emit_node(c, n->a);
                        jump = r < 0 ? r : emit(c, OP_JUMP, 0);
                        if (jump < 0)
                                return jump;
                        c->prog[jump].x = (uint16_t)split;
                        c->prog[split].y = (uint16_t)c->n_prog;
                        return 0;
                }
                /* x(x(x)?)?: each optional copy's way out is the end; until it is known, y links them. */
                uint16_t pending = UINT16_MAX;
                for (int k = n->min; k < n->max; k++) {
                        split = emit(c, OP_SPLIT, 0);
                        if (split < 0)
                                return split;
                        c->prog[split].x = (uint16_t)c->n_prog;
                        c->prog[split].y = pending;
                        pending = (uint16_t)split;
                        r = emit_node(c, n->a);
                        if (r < 0)
                                return r;
                }
                while (pending != UINT16_MAX) {
                        uint16_t before = c->prog[pending].y;
                        c->prog[pending].y = (uint16_t)c->n_prog;
                        pending = before;
                }
                return 0;
        }
        return bad(c, "unknown node");
}

/* ---- classes ------------------------------------------------------------ */

static int compare_u32(const void *a, const void *b) {
        uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
        return (x > y) - (x < y);
}

static uint32_t interval(const struct rx *r, uint32_t cp) {
        uint32_t lo = 0, hi = r->n_cut;
        while (hi - lo > 1) {
                uint32_t mid = (lo + hi) / 2;
                if (r->cut[mid] <= cp)
                        lo = mid;
                else
                        hi = mid;
        }
        return lo;
}

static int build_classes(struct compiler *c, struct rx *r) {
        uint32_t n = 0;

        r->cut = h_new0(uint32_t, 2 * (size_t)c->n_items + 1);
        if (!r->cut)
                return -ENOMEM;
        r->cut[n++] = 0;
        for (unsigned i = 0; i < c->n_items; i++)
                if (c->items[i].lo <= c->items[i].hi) {
                        r->cut[n++] = c->items[i].lo;
                        r->cut[n++] = c->items[i].hi + 1;
                }
        qsort(r->cut, n, sizeof(*r->cut), compare_u32);
        for (uint32_t i = 0; i < n; i++)
                if (i == 0 || r->cut[i] != r->cut[r->n_cut - 1])
                        r->cut[r->n_cut++] = r->cut[i];
        r->klass = h_new0(uint8_t, (size_t)r->n_cut * N_CATEGORIES);
        if (!r->klass)
                return -ENOMEM;
        for (uint32_t i = 0; i < r->n_cut; i++)
                for (unsigned g = 0; g < N_CATEGORIES; g++) {
                        uint64_t sig = 0;
                        unsigned k;
                        for (unsigned s = 0; s < c->n_sets; s++)
                                sig |= (uint64_t)in_set(c, (int)s, r->cut[i], g) << s;
                        for (k = 0; k < c->n_classes && c->signature[k] != sig; k++)
                                ;
                        if (k == c->n_classes) {
                                if (k >= MAX_CLASSES)
                                        return bad(c, "too many classes");
                                c->signature[c->n_classes++] = sig;
                        }
                        r->klass[i * N_CATEGORIES + g] = (uint8_t)k;
                }
        r->n_classes = c->n_classes;
        for (uint32_t cp = 0; cp < 128; cp++)
                r->ascii[cp] = r->klass[interval(r, cp) * N_CATEGORIES + (unsigned)utf8proc_category((utf8proc_int32_t)cp)];
        return 0;
}

/* ---- states ------------------------------------------------------------- */

static bool holds(const struct compiler *c, const struct instr *in, unsigned k) {
        bool member = k < c->n_classes && (c->signature[k] >> in->set & 1); /* the end is in no set */
        return member != (in->op == OP_NOT);
}

/* Appends the threads reachable from pc without reading. Lookaheads stay as threads unless the next class is known. */
static void follow(const struct compiler *c, unsigned pc, uint16_t *list, unsigned *n, uint32_t *mark, uint32_t stamp,
                   int next_class) {
        while (mark[pc] != stamp) {
                const struct instr *in = &c->prog[pc];
                mark[pc] = stamp;
                if (in->op == OP_JUMP)
                        pc = in->x;
                else if (in->op == OP_SPLIT) {
                        follow(c, in->x, list, n, mark, stamp, next_class);
                        pc = in->y;
                } else if ((in->op == OP_LOOK || in->op == OP_NOT) && next_class >= 0) {
                        if (!holds(c, in, (unsigned)next_class))
                                return;
                        pc++;
                } else {
                        list[(*n)++] = (uint16_t)pc;
                        return;
                }
        }
}

/* The state for c->out; new ones are added. */
static int intern(struct compiler *c) {
        for (unsigned i = 0; i < c->n_states; i++)
                if (c->states[i].n == c->n_out &&
                    memcmp(c->lists + c->states[i].off, c->out, c->n_out * sizeof(uint16_t)) == 0)
                        return (int)i;
        if (c->n_states >= MAX_STATES)
                return bad(c, "too many states");
        if (c->n_lists + c->n_out > c->cap_lists) {
                size_t cap = 2 * (c->n_lists + c->n_out) + 256;
                uint16_t *p = h_realloc(c->lists, cap * sizeof(*p));
                if (!p)
                        return -ENOMEM;
                c->lists = p;
                c->cap_lists = cap;
        }
        if (c->n_out) /* the dead state has no threads, and maybe no list yet */
                memcpy(c->lists + c->n_lists, c->out, c->n_out * sizeof(uint16_t));
        c->states[c->n_states].off = (uint32_t)c->n_lists;
        c->states[c->n_states].n = c->n_out;
        c->n_lists += c->n_out;
        return (int)c->n_states++;
}

/* One step of a state; returns the table entry. */
static int step(struct compiler *c, unsigned state, unsigned k) {
        bool matched = false;
        int r;

        c->mark++;
        c->n_here = c->n_out = 0;
        for (unsigned i = 0; i < c->states[state].n; i++)
                follow(c, c->lists[c->states[state].off + i], c->here, &c->n_here, c->mark_here, c->mark, (int)k);
        for (unsigned i = 0; i < c->n_here && !matched; i++) {
                const struct instr *in = &c->prog[c->here[i]];
                if (in->op == OP_MATCH)
                        matched = true; /* threads after it lose to it */
                else if (holds(c, in, k))
                        follow(c, c->here[i] + 1u, c->out, &c->n_out, c->mark_out, c->mark, -1);
        }
        r = intern(c);
        return r < 0 ? r : r << 1 | (matched ? 1 : 0);
}

static int build_states(struct compiler *c, struct rx *r) {
        size_t row = (size_t)c->n_classes + 1;
        int e;

        c->n_out = 0;
        e = intern(c); /* state 0: dead */
        if (e < 0)
                return e;
        c->mark++;
        follow(c, 0, c->out, &c->n_out, c->mark_out, c->mark, -1);
        e = intern(c); /* state 1: start */
        if (e < 0)
                return e;
        r->next = h_new0(uint16_t, MAX_STATES * row);
        if (!r->next)
                return -ENOMEM;
        for (unsigned s = 1; s < c->n_states; s++)
                for (unsigned k = 0; k < row; k++) {
                        e = step(c, s, k);
                        if (e < 0)
                                return e;
                        r->next[s * row + k] = (uint16_t)e;
                }
        r->n_states = c->n_states;
        uint16_t *fit = h_realloc(r->next, r->n_states * row * sizeof(*fit));
        if (fit)
                r->next = fit;
        return 0;
}

int rx_compile(const char *pattern, struct rx **ret, struct h_error *err) {
        _cleanup_(freep) struct compiler *c = h_calloc(1, sizeof(*c));
        struct rx *r = h_calloc(1, sizeof(*r));
        int e, root;

        if (!c || !r) {
                free(r);
                return -ENOMEM;
        }
        c->pattern = c->p = pattern;
        c->err = err;
        root = parse_alternatives(c);
        e = root < 0 ? root : *c->p ? bad(c, "unmatched )") : emit_node(c, root);
        if (e >= 0)
                e = emit(c, OP_MATCH, 0);
        if (e >= 0)
                e = build_classes(c, r);
        if (e >= 0)
                e = build_states(c, r);
        free(c->lists);
        if (e < 0) {
                rx_free(r);
                return e;
        }
        *ret = r;
        return 0;
}

struct rx *rx_free(struct rx *r) {
        if (r) {
                free(r->cut);
                free(r->klass);
                free(r->next);
                free(r);
        }
        return NULL;
}

uint32_t rx_states(const struct rx *r) {
        return r->n_states;
}

size_t rx_match(const struct rx *r, const char *p, size_t n) {
        size_t row = (size_t)r->n_classes + 1, pos = 0, last = 0;
        unsigned state = 1;

        while (state != 0) {
                unsigned k, len = 1, e;
                if (pos == n)
                        k = r->n_classes;
                else if ((uint8_t)p[pos] < 128)
                        k = r->ascii[(uint8_t)p[pos]];
                else {
                        uint32_t cp = u8_next(p + pos, n - pos, &len);
                        if (cp == U8_INVALID)
                                cp = 0xfffd;
                        k = r->klass[interval(r, cp) * N_CATEGORIES +
                                     (unsigned)utf8proc_category((utf8proc_int32_t)cp)];
                }
                e = r->next[state * row + k];
                if (e & 1)
                        last = pos;
                if (pos == n)
                        break;
                state = e >> 1;
                pos += len;
        }
        return last;
}
