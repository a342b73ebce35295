/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the tokenizer's files share. A struct tok is built by tok_open.c, never
 * changes afterwards and owns everything in it; nothing points into the GGUF.
 * An encode call owns a struct tok_work (scratch that grows and is reused from
 * word to word), so that one tok serves any number of threads.
 *
 * Every part keeps its cost near-linear in the text: the pre-tokenizer is a
 * DFA, merges go through a heap, matching walks tries whose depth is bounded by
 * the longest token, and token lengths are bounded at open.
 */

#include "base/alloc.h"
#include "base/buf.h"
#include "engine/gguf.h"
#include "engine/text/tok_regex.h"
#include "engine/text/tok_unicode.h"
#include "engine/text/tokenizer.h"

#define TOK_MAX_VOCAB (1u << 22)     /* tokens; the largest published vocabularies have about 2^18 */
#define TOK_MAX_MERGES (1u << 23)
#define TOK_MAX_TOKEN 65535u         /* bytes of one token */
#define TOK_MAX_SPECIAL 1024u        /* bytes of a token that is matched as text (control, user-defined) */
#define TOK_MAX_PIECE 256u           /* bytes of a unigram piece; trainers make 16 characters at most */
#define TOK_MAX_VOCAB_TEXT ((size_t)64 << 20) /* bytes of all tokens: bounds the tries, about 20 times that */
#define TOK_MAX_TEXT ((size_t)256 << 20)      /* bytes encoded at once */
#define TOK_NONE UINT32_MAX
#define TOK_SPACE "\xe2\x96\x81"     /* U+2581, SentencePiece's visible space */

enum tok_model {
        TOK_BPE,        /* merges by rank: byte alphabet, or raw characters with byte tokens */
        TOK_SPM,        /* merges by score over characters (SentencePiece BPE) */
        TOK_UNIGRAM,    /* best path by score (SentencePiece unigram) */
        TOK_WORDPIECE,  /* longest match first, word by word (BERT) */
};

/* ---- strings: many byte strings in one block (tok_vocab.c) -------------- */
struct tok_strings {
        char *data;
        uint32_t *off; /* [n + 1] */
        uint32_t n;
};
static inline struct gguf_str tok_str(const struct tok_strings *s, uint32_t i) {
        return (struct gguf_str){ s->data + s->off[i], s->off[i + 1] - s->off[i] };
}
void tok_strings_free(struct tok_strings *s);

/* ---- text -> id (tok_vocab.c) ------------------------------------------- */
struct tok_slot { uint32_t id1, tag; }; /* id + 1, 0 is empty; upper half of the hash, so that a miss reads no text */
struct tok_map {
        struct tok_slot *slot;
        uint32_t mask;
        uint64_t seed;  /* random: a vocabulary can't be written to collide */
};
int tok_map_init(struct tok_map *m, uint32_t n);
/* Keeps the first id of equal texts. */
void tok_map_add(struct tok_map *m, const struct tok_strings *s, uint32_t id);
uint32_t tok_map_find(const struct tok_map *m, const struct tok_strings *s, const char *p, size_t n);
void tok_map_free(struct tok_map *m);

/* ---- byte trie: which tokens begin at a place (tok_trie.c) -------------- */
struct tok_trie {
        uint32_t n_nodes;
        uint32_t *first;  /* [n_nodes + 1] children of a node are first[i] .. first[i + 1]; BFS order */
        uint8_t *label;   /* [n_nodes] byte that leads to the node */
        uint32_t *value;  /* [n_nodes] id or TOK_NONE */
        uint32_t root[256]; /* child of the root by byte, 0: none */
};
/* ids: which strings; among equal texts the first in 'ids' wins. Empty strings are left out. */
int tok_trie_build(struct tok_trie *t, const struct tok_strings *s, const uint32_t *ids, uint32_t n);
void tok_trie_free(struct tok_trie *t);
uint32_t tok_trie_step(const struct tok_trie *t, uint32_t node, uint8_t c); /* node 0 is the root; 0: no such child */
/* Longest entry at p; returns its length (0: none) and sets *ret_id. */
size_t tok_trie_longest(const struct tok_trie *t, const char *p, size_t n, uint32_t *ret_id);

/* ---- merging (tok_merge.c) ---------------------------------------------- */
struct tok_symbol {
        uint32_t pos, len;   /* bytes of the word */
        uint32_t id;         /* token, or TOK_NONE: a character that is no token */
        uint32_t prev, next; /* TOK_NONE at the ends; len 0: merged away */
        uint32_t rank;       /* of merging with next; TOK_NONE: can't */
        uint32_t result;     /* token of that merge */
        uint32_t split;      /* unused token: how it came about, index into tok_work.split; else TOK_NONE */
};
struct tok_part { uint32_t id, pos, len, split; };
struct tok_split { struct tok_part left, right; };
struct tok_work {
        struct tok_symbol *sym; size_t n_sym, cap_sym;
        uint64_t *heap; size_t n_heap, cap_heap; /* rank << 32 | symbol */
        struct tok_split *split; size_t n_split, cap_split;
        struct tok_part *rest; size_t n_rest, cap_rest; /* a stack */
        struct buf text, word;
        size_t out_part; /* where the ids of this part begin */
        struct tok_ids *out;
        struct tok_bounds *bounds; /* NULL: none */
        uint32_t n_checks;
};
/* Is it worth going on? Cheap: once a word, or TOK_CHECK_EVERY bytes where there are none. 0, -ENOSPC, -ECANCELED. */
int tok_work_check(struct tok_work *w);
/* The same before n bytes that all become tokens: they are at least n / longest many. */
int tok_work_check_text(const struct tok *t, struct tok_work *w, size_t n);
#define TOK_CHECK_EVERY 16384u
static inline bool tok_work_due(size_t i) {
        return i % TOK_CHECK_EVERY == TOK_CHECK_EVERY - 1;
}
void tok_work_free(struct tok_work *w);
int tok_work_symbol(struct tok_work *w, uint32_t pos, uint32_t len, uint32_t id);
int tok_work_rest(struct tok_work *w, struct tok_part part);
/* Merges w->sym in place until nothing can be merged. 'text' is what pos and len refer to. */
int tok_merge(const struct tok *t, struct tok_work *w, const char *text);

struct tok_pair { uint32_t left, right, rank, result; }; /* left TOK_NONE: empty slot */
struct tok_pairs { struct tok_pair *slot; uint32_t mask; uint64_t seed; };
int tok_pairs_init(struct tok_pairs *p, uint32_t n);
void tok_pairs_add(struct tok_pairs *p, uint32_t left, uint32_t right, uint32_t rank, uint32_t result);
const struct tok_pair *tok_pairs_find(const struct tok_pairs *p, uint32_t left, uint32_t right);

/* ---- pre-tokenizers (tok_pre.c) ----------------------------------------- */
enum { PRE_IGNORE_MERGES = 1, /* a word that is a token is taken whole */
       PRE_ADD_BOS = 2, PRE_ADD_BOS_EOS = 4, /* where the file doesn't say */
       PRE_NFC = 8,
       PRE_RAW = 16,            /* merges over characters, not over the byte alphabet */
       PRE_ESCAPE_SPACE = 32,   /* spaces become U+2581 first */
       PRE_DROP_GAPS = 64 };    /* what no pattern matches is left out */
#define PRE_MAX_STEPS 6
struct tok_pre {
        unsigned flags;
        unsigned n_steps;
        struct { int kind; struct rx *rx; } step[PRE_MAX_STEPS];
};
/* unknown_tokenizer with the list of names. */
int tok_pre_open(struct tok_pre *p, const char *name, size_t n, struct h_error *err);
void tok_pre_free(struct tok_pre *p);
typedef int (*tok_word_fn)(void *userdata, const char *p, size_t n);
int tok_pre_split(const struct tok_pre *p, const char *text, size_t n, tok_word_fn fn, void *userdata);
/* For tests: the i-th group of names ("gpt-2 phi-2 ..."); NULL past the end. */
const char *tok_pre_names(unsigned i);

/* ---- SentencePiece's character map (tok_charsmap.c) --------------------- */
struct tok_charsmap {
        uint32_t *unit; uint32_t n_units; /* Darts double array */
        char *text; uint32_t n_text;      /* NUL-terminated replacements */
};
int tok_charsmap_open(struct tok_charsmap *c, const uint8_t *p, size_t n, struct h_error *err);
void tok_charsmap_free(struct tok_charsmap *c);
/* Normalizes the piece at p: bytes eaten (>= 1), replacement in *ret_p, *ret_n. */
size_t tok_charsmap_next(const struct tok_charsmap *c, const char *p, size_t n, const char **ret_p, size_t *ret_n);

/* ---- the tokenizer ------------------------------------------------------ */
struct tok {
        enum tok_model model;
        uint32_t n_vocab;
        struct tok_strings text;   /* as in the file */
        struct tok_strings piece;  /* what each token prints; also what special tokens are matched as */
        uint8_t *kind;             /* enum tok_kind */
        float *score;              /* TOK_SPM, TOK_UNIGRAM */
        struct tok_map map;        /* of text; ordinary tokens win over special ones of equal text */
        uint32_t byte_id[256];     /* token of a byte: alphabet character or <0xNN>; TOK_NONE */

        struct tok_trie special, user; /* of piece: control, unknown and user-defined; user-defined only */
        bool special_first[256], user_first[256]; /* bytes that begin one */
        int64_t special_id[_TOK_ID_MAX];
        uint64_t *eog;
        int64_t first_id, last_id; /* added with TOK_BOS, TOK_EOS; -1: nothing */

        bool add_space_prefix, remove_extra_whitespaces;
        struct tok_pre pre;        /* TOK_BPE */
        struct tok_pairs pairs;    /* TOK_BPE */
        uint32_t *order;           /* TOK_SPM: merge priority of each token, 0 best */
        bool joins_space[256];     /* TOK_SPM, raw BPE: some token has U+2581 after this byte */
        uint32_t max_len;          /* longest token, bytes */
        struct tok_trie pieces;    /* of text: TOK_UNIGRAM, TOK_WORDPIECE */
        double unk_score;          /* TOK_UNIGRAM */
        struct tok_charsmap charsmap;
        bool lowercase, strip_accents; /* TOK_WORDPIECE */
        bool hash_suffix;          /* TOK_WORDPIECE: continuations are "##x", not words "U+2581 x" */
};

/* The token that ordinary text p may become, or TOK_NONE. */
static inline uint32_t tok_ordinary(const struct tok *t, const char *p, size_t n) {
        uint32_t id = tok_map_find(&t->map, &t->text, p, n);
        if (id == TOK_NONE || t->kind[id] == TOK_NORMAL || t->kind[id] == TOK_USER)
                return id;
        return t->kind[id] == TOK_UNUSED && t->model == TOK_SPM ? id : TOK_NONE;
}

/* One part of the text between special tokens; ids go to w->out. */
int tok_encode_bpe(const struct tok *t, struct tok_work *w, const char *p, size_t n);
int tok_encode_spm(const struct tok *t, struct tok_work *w, const char *p, size_t n);
int tok_encode_unigram(const struct tok *t, struct tok_work *w, const char *p, size_t n);
int tok_encode_wordpiece(const struct tok *t, struct tok_work *w, const char *p, size_t n);
/* A character that is no token: its byte tokens, else unknown; -EILSEQ if the vocabulary has neither. */
int tok_emit_bytes(const struct tok *t, struct tok_work *w, const char *p, size_t n);
/* SentencePiece's normalization of a part, into w->text. */
int tok_normalize_sp(const struct tok *t, struct tok_work *w, const char *p, size_t n);
/* Appends p with each space as U+2581. */
int tok_escape_spaces(struct buf *out, const char *p, size_t n);
/* Bytes up to where the next word may begin without a token reaching across. */
size_t tok_word_end(const struct tok *t, const char *p, size_t n);
/* Symbols of the characters of p, merged; then their ids. */
int tok_encode_chars(const struct tok *t, struct tok_work *w, const char *p, size_t n);
int tok_emit_symbols(const struct tok *t, struct tok_work *w, const char *p);
/* Byte of a code point of the byte-level alphabet, -1 if it is not in it; and back. */
int tok_alphabet_byte(uint32_t cp);
uint32_t tok_alphabet_char(uint8_t byte);
/* Fills the special ids, the end-of-generation set and what is added at the ends (tok_ids.c). */
int tok_read_ids(struct tok *t, const struct gguf *g, struct h_error *err);
