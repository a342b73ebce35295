/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Tokenizers as GGUF stores them: byte-level BPE ("gpt2"), SentencePiece BPE and
 * unigram ("llama", "t5"...), WordPiece ("bert"). Immutable after open; safe to
 * share between threads. Time is bounded: near-linear in the text, whatever it holds.
 */

#include "base/buf.h"
#include "base/error.h"

struct gguf;
struct tok;

int tok_open(const struct gguf *g, struct tok **ret, struct h_error *err); /* *ret NULL: vocabulary "none" */
struct tok *tok_free(struct tok *t);

enum { TOK_SPECIAL = 1,   /* text of control tokens becomes the control token; without it only user-defined ones match */
       TOK_BOS = 2,       /* add BOS/CLS if the model's metadata says so */
       TOK_EOS = 4,       /* add EOS/SEP if the model's metadata says so */
       TOK_CONTINUE = 8 }; /* streams only: text came before, so a first leading space is kept */

struct tok_ids { uint32_t *ids; size_t n, cap; }; /* zero-initialize; tok_ids_free() */
void tok_ids_free(struct tok_ids *v);
int tok_ids_push(struct tok_ids *v, uint32_t id);

/*
 * Appends the ids of n bytes of text (any bytes; invalid UTF-8 is encoded bytewise where the vocabulary can).
 * -EILSEQ: a character that the vocabulary has neither tokens, bytes nor an unknown token for (a byte-level vocabulary
 * leaves such a byte out); -E2BIG: over 256 MiB.
 */
int tok_encode(const struct tok *t, const char *text, size_t n, unsigned flags, struct tok_ids *out);
/*
 * One text of several spans: where a span has TOK_SPECIAL, and only within it,
 * control tokens may be written. Between special tokens the text is encoded as a
 * whole, so spans change nothing else. 'flags': TOK_BOS, TOK_EOS.
 */
struct tok_span { size_t len; unsigned flags; };
int tok_encode_spans(const struct tok *t, const char *text, const struct tok_span *spans, size_t n_spans, unsigned flags,
                     struct tok_ids *out);
/*
 * The same, given up as soon as more than max_ids are certain to come out, or when stop says so: nobody should wait for
 * a text that can't be used. -ENOSPC: too many, at_least is how many there are at least; -ECANCELED. What comes to an
 * end is exactly what tok_encode_spans() gives.
 */
struct tok_bounds {
        size_t max_ids;               /* in *out, with those that were there */
        bool (*stop)(void *userdata); /* NULL: never */
        void *userdata;
        size_t at_least;
};
int tok_encode_bounded(const struct tok *t, const char *text, const struct tok_span *spans, size_t n_spans, unsigned flags,
                       struct tok_bounds *bounds, struct tok_ids *out);

/* Bytes of one token as text; NULL for ids that print nothing. Special tokens give their text. Not NUL-terminated. */
const char *tok_piece(const struct tok *t, uint32_t id, size_t *ret_n);

enum tok_kind { TOK_NORMAL = 1, TOK_UNKNOWN, TOK_CONTROL, TOK_USER, TOK_UNUSED, TOK_BYTE };
enum tok_kind tok_kind(const struct tok *t, uint32_t id);
uint32_t tok_n_vocab(const struct tok *t);
bool tok_is_eog(const struct tok *t, uint32_t id); /* ends the generation */

enum tok_special { TOK_ID_BOS, TOK_ID_EOS, TOK_ID_EOT, TOK_ID_UNK, TOK_ID_SEP, TOK_ID_PAD, TOK_ID_CLS, TOK_ID_MASK,
                   TOK_ID_FIM_PRE, TOK_ID_FIM_SUF, TOK_ID_FIM_MID, TOK_ID_FIM_PAD, TOK_ID_FIM_REP, TOK_ID_FIM_SEP, _TOK_ID_MAX };
int64_t tok_special_id(const struct tok *t, enum tok_special which); /* -1: none */

/*
 * Streaming detokenization: feed ids, take out complete UTF-8. Bytes of an
 * unfinished character are held back; what can never become valid comes out as
 * U+FFFD (maximal invalid part each). flush gives what is left. TOK_SPECIAL in
 * flags: control tokens print their text; otherwise they are left out.
 */
struct tok_stream {
        const struct tok *tok;
        unsigned flags;
        uint8_t tail[4]; uint8_t n_tail;
        bool started; /* SentencePiece drops the first leading space */
};
void tok_stream_init(struct tok_stream *s, const struct tok *t, unsigned flags);
int tok_stream_push(struct tok_stream *s, uint32_t id, struct buf *out);
int tok_stream_flush(struct tok_stream *s, struct buf *out);
