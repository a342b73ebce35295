/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the halves of the pattern compiler share: tok_rx_parse.c makes the syntax tree
 * and its character sets, tok_regex.c the table.
 */
#pragma once

#include "engine/text/tok_regex.h"

#define MAX_SETS 64         /* distinct character sets of a pattern */
#define MAX_ITEMS 512       /* ranges and categories of all sets */
#define MAX_NODES 512
#define MAX_PROG 4096
#define MAX_STATES 4096
#define MAX_CLASSES 96
#define N_CATEGORIES 30     /* general categories of Unicode */

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

struct rx_compiler {
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

/* Parses c->pattern whole. Returns the root's index, or an error that names the place. */
int rx_parse(struct rx_compiler *c);
int rx_bad(struct rx_compiler *c, const char *what);
/* Whether a character, whose general category is known, is in a set of the pattern. */
bool rx_in_set(const struct rx_compiler *c, int set, uint32_t cp, unsigned category);
