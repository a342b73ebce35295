/* SPDX-License-Identifier: Apache-2.0 */
/*
 * WordPiece as BERT uses it (Devlin et al. 2018; the rules of the "BertNormalizer"
 * and "BertPreTokenizer" of tokenizer.json files): control characters go, white
 * space separates words, punctuation and Chinese characters are words of their
 * own; uncased vocabularies also lose accents (NFD without Mn) and case. A word
 * is then taken from the left, the longest token first; if any place has none,
 * or the word has more than 100 characters, the whole word is one unknown token.
 *
 * GGUF files store a word's first piece as U+2581 + text and continuations as
 * plain text; files with BERT's own spelling ("##" before continuations) work too.
 */
#include <errno.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/text/tok_internal.h"

#define MAX_WORD_CHARS 100u

/* The blocks that BERT's tokenizer calls Chinese characters. */
static bool is_chinese(uint32_t cp) {
        return (cp >= 0x4e00 && cp <= 0x9fff) || (cp >= 0x3400 && cp <= 0x4dbf) || (cp >= 0xf900 && cp <= 0xfaff) ||
               (cp >= 0x20000 && cp <= 0x2a6df) || (cp >= 0x2a700 && cp <= 0x2b73f) ||
               (cp >= 0x2b740 && cp <= 0x2b81f) || (cp >= 0x2b820 && cp <= 0x2ceaf) ||
               (cp >= 0x2f800 && cp <= 0x2fa1f);
}

static bool is_punctuation(uint32_t cp, utf8proc_category_t g) {
        if (cp < 0x80)
                return (cp >= 33 && cp <= 47) || (cp >= 58 && cp <= 64) || (cp >= 91 && cp <= 96) ||
                       (cp >= 123 && cp <= 126);
        return g >= UTF8PROC_CATEGORY_PC && g <= UTF8PROC_CATEGORY_PO;
}

/* Cc, Cf, Cs, Co; unassigned code points stay. */
static bool is_control(utf8proc_category_t g) {
        return g >= UTF8PROC_CATEGORY_CC && g <= UTF8PROC_CATEGORY_CO;
}

/* Encodes the word in w->word and empties it. */
static int end_word(const struct tok *t, struct tok_work *w, uint32_t *n_chars) {
        size_t first = w->out->n, n = w->word.len, i = 0;
        const char *p = w->word.data;
        uint32_t chars = *n_chars, start = 0, id;
        int64_t unk = t->special_id[TOK_ID_UNK];
        int r = 0;

        *n_chars = 0;
        if (n == 0)
                return 0;
        if (chars > MAX_WORD_CHARS)
                goto unknown;
        if (!t->hash_suffix) /* the trie's node after U+2581 */
                for (unsigned k = 0; k < 3; k++) {
                        start = tok_trie_step(&t->pieces, start, (uint8_t)TOK_SPACE[k]);
                        if (start == 0)
                                goto unknown;
                }
        while (i < n && r == 0) {
                uint32_t node = start;
                size_t best = 0, end = n;
                /* Within a word the text's own U+2581 must not find the tokens that begin a word. */
                if (!t->hash_suffix && i > 0 && n - i > 3 && memcmp(p + i, TOK_SPACE, 3) == 0)
                        end = i + 3;
                for (size_t k = i; k < end; k++) {
                        node = tok_trie_step(&t->pieces, node, (uint8_t)p[k]);
                        if (node == 0)
                                break;
                        if (t->pieces.value[node] != TOK_NONE) {
                                best = k + 1 - i;
                                id = t->pieces.value[node];
                        }
                }
                if (best == 0)
                        goto unknown;
                r = tok_ids_push(w->out, id);
                i += best;
                start = 0;
                if (t->hash_suffix) {
                        start = tok_trie_step(&t->pieces, 0, '#');
                        start = start ? tok_trie_step(&t->pieces, start, '#') : 0;
                        if (start == 0 && i < n)
                                goto unknown;
                }
        }
        buf_clear(&w->word);
        return r;

unknown:
        buf_clear(&w->word);
        w->out->n = first;
        return unk < 0 ? -EILSEQ : tok_ids_push(w->out, (uint32_t)unk);
}

static int put(struct buf *b, uint32_t cp) {
        char c[4];
        return buf_append(b, c, u8_put(cp, c));
}

/* One character after cleaning: what it adds to the word. */
static int add_char(const struct tok *t, struct tok_work *w, uint32_t cp, uint32_t *n_chars) {
        utf8proc_category_t g = utf8proc_category((utf8proc_int32_t)cp);
        bool alone;
        int r = 0;

        if (t->strip_accents && g == UTF8PROC_CATEGORY_MN)
                return 0;
        if (t->lowercase && cp == 0x130 && !t->strip_accents) { /* the one letter whose lower case is two */
                r = put(&w->word, 'i');
                *n_chars += r == 0;
                cp = 0x307;
        } else if (t->lowercase)
                cp = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
        alone = is_punctuation(cp, g);
        if (alone && r == 0)
                r = end_word(t, w, n_chars);
        if (r == 0)
                r = put(&w->word, cp);
        ++*n_chars;
        if (alone && r == 0)
                r = end_word(t, w, n_chars);
        return r;
}

int tok_encode_wordpiece(const struct tok *t, struct tok_work *w, const char *p, size_t n) {
        uint32_t n_chars = 0;
        size_t n_steps = 0;
        int r = 0;

        buf_clear(&w->word);
        for (size_t i = 0; i < n && r == 0;) {
                utf8proc_int32_t parts[32];
                utf8proc_ssize_t n_parts = 1;
                unsigned k;
                int last = 0;
                bool chinese;
                uint32_t cp = u8_next(p + i, n - i, &k);

                i += k;
                if (n_steps++ % 64 == 63 && (r = tok_work_check(w)) < 0)
                        break;
                if (cp == 0 || cp == 0xfffd || cp == U8_INVALID)
                        continue;
                if (u8_is_space(cp) && cp != 0x0b && cp != 0x0c && cp != 0x85) {
                        r = end_word(t, w, &n_chars);
                        continue;
                }
                if (is_control(utf8proc_category((utf8proc_int32_t)cp)))
                        continue;
                parts[0] = (utf8proc_int32_t)cp;
                chinese = is_chinese(cp);
                if (chinese)
                        r = end_word(t, w, &n_chars);
                if (t->strip_accents) {
                        n_parts = utf8proc_decompose_char((utf8proc_int32_t)cp, parts, ELEMENTSOF(parts),
                                                          UTF8PROC_DECOMPOSE, &last);
                        if (n_parts < 0 || n_parts > (utf8proc_ssize_t)ELEMENTSOF(parts))
                                return -EINVAL;
                }
                for (utf8proc_ssize_t j = 0; j < n_parts && r == 0; j++)
                        r = add_char(t, w, (uint32_t)parts[j], &n_chars);
                if (chinese && r == 0)
                        r = end_word(t, w, &n_chars);
        }
        return r < 0 ? r : end_word(t, w, &n_chars);
}
