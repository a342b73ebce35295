/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Regular expressions for pre-tokenizers: the patterns that tokenizer.json
 * files hold, compiled into a deterministic automaton. Leftmost-first like the
 * backtracking engines the patterns were written for, but each attempt reads a
 * byte once.
 *
 * Syntax: literals, \r \n \t \x{HEX} \s \S \d \p{L} \p{Lu} ... \p{Han} \P{..}, [..] with
 * ranges, negation and &&[..], (..) (?:..) (?i:..) (ASCII letters), | ? * + {m} {m,n},
 * lookahead of one character class (?=c) (?!c), $ (end of the part).
 */

#include "base/error.h"

struct rx;

int rx_compile(const char *pattern, struct rx **ret, struct h_error *err);
struct rx *rx_free(struct rx *r);
/* Length of the match at p, 0 if there is none. An invalid UTF-8 byte counts as one character U+FFFD. */
size_t rx_match(const struct rx *r, const char *p, size_t n);
/* For tests: size of the automaton. */
uint32_t rx_states(const struct rx *r);
