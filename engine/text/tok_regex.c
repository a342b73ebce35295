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
#include "engine/text/tok_rx_int.h"

#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"
#include "engine/text/tok_unicode.h"

struct rx {
        uint8_t ascii[128];
        uint32_t *cut; uint32_t n_cut;  /* interval i is cut[i] .. cut[i + 1] - 1; cut[0] = 0 */
        uint8_t *klass;                 /* [n_cut][N_CATEGORIES] */
        uint32_t n_classes;             /* the class of the end is n_classes */
        uint16_t *next;                 /* [n_states][n_classes + 1]: state << 1 | match ends here; state 0 is dead */
        uint32_t n_states;
};

/* ---- program ------------------------------------------------------------ */

static int emit(struct rx_compiler *c, enum op op, int set) {
        if (c->n_prog >= MAX_PROG)
                return rx_bad(c, "program too long");
        c->prog[c->n_prog] = (struct instr){ .op = op, .set = (uint16_t)set };
        return (int)c->n_prog++;
}

static int emit_node(struct rx_compiler *c, int i);

/* A split whose first way is the node with a jump behind it, the second what follows. Returns the jump, whose target is not set. */
static int emit_split(struct rx_compiler *c, int node, int *ret_split) {
        int split = emit(c, OP_SPLIT, 0), r, jump;

        if (split < 0)
                return split;
        c->prog[split].x = (uint16_t)c->n_prog;
        r = emit_node(c, node);
        jump = r < 0 ? r : emit(c, OP_JUMP, 0);
        if (jump < 0)
                return jump;
        c->prog[split].y = (uint16_t)c->n_prog;
        *ret_split = split;
        return jump;
}

static int emit_node(struct rx_compiler *c, int i) {
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
                jump = emit_split(c, n->a, &split);
                if (jump < 0)
                        return jump;
                r = emit_node(c, n->b);
                c->prog[jump].x = (uint16_t)c->n_prog;
                return r;
        case NODE_REPEAT:
                for (int k = 0; k < n->min && r >= 0; k++)
                        r = emit_node(c, n->a);
                if (r < 0)
                        return r;
                if (n->max < 0) {
                        jump = emit_split(c, n->a, &split);
                        if (jump < 0)
                                return jump;
                        c->prog[jump].x = (uint16_t)split;
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
        return rx_bad(c, "unknown node");
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

static int build_classes(struct rx_compiler *c, struct rx *r) {
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
                                sig |= (uint64_t)rx_in_set(c, (int)s, r->cut[i], g) << s;
                        for (k = 0; k < c->n_classes && c->signature[k] != sig; k++)
                                ;
                        if (k == c->n_classes) {
                                if (k >= MAX_CLASSES)
                                        return rx_bad(c, "too many classes");
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

static bool holds(const struct rx_compiler *c, const struct instr *in, unsigned k) {
        bool member = k < c->n_classes && (c->signature[k] >> in->set & 1); /* the end is in no set */
        return member != (in->op == OP_NOT);
}

/* Appends the threads reachable from pc without reading. Lookaheads stay as threads unless the next class is known. */
static void follow(const struct rx_compiler *c, unsigned pc, uint16_t *list, unsigned *n, uint32_t *mark, uint32_t stamp,
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
static int intern(struct rx_compiler *c) {
        for (unsigned i = 0; i < c->n_states; i++)
                if (c->states[i].n == c->n_out &&
                    memcmp(c->lists + c->states[i].off, c->out, c->n_out * sizeof(uint16_t)) == 0)
                        return (int)i;
        if (c->n_states >= MAX_STATES)
                return rx_bad(c, "too many states");
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
static int step(struct rx_compiler *c, unsigned state, unsigned k) {
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

static int build_states(struct rx_compiler *c, struct rx *r) {
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
        _cleanup_(freep) struct rx_compiler *c = h_calloc(1, sizeof(*c));
        struct rx *r = h_calloc(1, sizeof(*r));
        int e, root;

        if (!c || !r) {
                free(r);
                return -ENOMEM;
        }
        c->pattern = c->p = pattern;
        c->err = err;
        root = rx_parse(c);
        e = root < 0 ? root : emit_node(c, root);
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
