/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A vocabulary for tests of grammars, in place of the engine's tokenizer: the
 * 256 bytes, an end token (id 256), a control token whose text must never be
 * taken for text (257), then pieces of several bytes, some of which end in the
 * middle of a character. Include in one C file of a program that does not link
 * the tokenizer.
 */
#include <string.h>

#include "engine/text/tokenizer.h"

enum { FAKE_EOG = 256, FAKE_CONTROL = 257, FAKE_FIRST = 258 };

static const char *const fake_pieces[] = {
        "\"", "\": ", "\", \"", "\":", "{\"", "\"}", "},", "}, {", "[", "]", "[]", "{}", "], ", ", ", ",\n", "\n  ", "    ", " ",
        "true", "false", "null", "name", "id", "value", "a", "ab", "abc", "hello", " world", "0", "1", "12", "123", "00", ".5", ".0",
        "e+", "e-0", "-", "-1", "2024-", "-01", "\\", "\\n", "\\u00", "\\u", "e9", "d83d", "\\ude00", "é", "\xc3", "\xa9", "€", "😀",
        "\xf0\x9f", "\x98\x80", "@", ".com", "://", "x", "xx", "xxxxxxxx", "\t", "\"\"", "\",", "\"],", "tr", "ue", "nul", "l,",
};

struct tok { int unused; };

uint32_t tok_n_vocab(const struct tok *t) {
        return FAKE_FIRST + (uint32_t)ELEMENTSOF(fake_pieces);
}

const char *tok_piece(const struct tok *t, uint32_t id, size_t *ret_n) {
        static char bytes[256];
        if (id < 256) {
                bytes[id] = (char)id;
                *ret_n = 1;
                return &bytes[id];
        }
        if (id < FAKE_FIRST) {
                *ret_n = 1;
                return id == FAKE_EOG ? "}" : "\"";
        }
        *ret_n = strlen(fake_pieces[id - FAKE_FIRST]);
        return fake_pieces[id - FAKE_FIRST];
}

enum tok_kind tok_kind(const struct tok *t, uint32_t id) {
        return id < 256 ? TOK_BYTE : id < FAKE_FIRST ? TOK_CONTROL : TOK_NORMAL;
}

bool tok_is_eog(const struct tok *t, uint32_t id) {
        return id == FAKE_EOG;
}
