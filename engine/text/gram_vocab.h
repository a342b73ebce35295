/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "engine/text/gram_machine.h"

#define GRAMMAR_MAX_TOKEN 512 /* longer tokens are never allowed */

struct vocab_node {
        uint32_t child, next;  /* first child, next sibling; 0: none */
        uint32_t lo, own, hi;  /* ids[lo, own) end here, ids[own, hi) further down */
        uint8_t byte;
        bool plain;            /* every token from here down is plain */
};
struct grammar_vocab {
        const struct tok *tok;
        uint32_t n_vocab, max_chars;
        size_t words;
        struct vocab_node *node; size_t n_node;
        uint32_t *ids;         /* usable tokens, sorted by bytes */
        uint64_t *eog;
        uint32_t *plain;       /* tokens that are whole ordinary characters, by their number of them */
        uint32_t *plain_upto;  /* [max_chars + 1]: how many of those have at most so many characters */
        uint64_t *plain_mask;  /* all of them */
};
