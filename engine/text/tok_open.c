/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a vocabulary from GGUF metadata (keys: the ggml project's docs/gguf.md,
 * "Tokenizer") and checks it: arrays of the right type and length, merges whose
 * parts and results are tokens, ids in range. What is wrong is refused with the
 * key, what was expected and what was found. After this nothing is checked again.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "engine/text/tok_internal.h"

#define K "tokenizer.ggml."

static uint32_t le32(const uint8_t *p) {
        return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

#define invalid(err, ...) h_error_set(err, HEARTH_E_model_invalid, __VA_ARGS__)

/* An array of that element type, or NULL with *ret 0 if it is absent. */
static int find_array(const struct gguf *g, const char *key, enum gguf_type elem, const char *what,
                      const struct gguf_kv **ret, struct h_error *err) {
        const struct gguf_kv *kv = gguf_find(g, key);

        if (kv && (kv->type != GGUF_ARRAY || kv->elem != elem))
                return invalid(err, "%s: expected an array of %s", key, what);
        *ret = kv;
        return 0;
}

static int wrong_length(struct h_error *err, const char *key, uint64_t found, uint64_t expected) {
        return h_error_counts(err, HEARTH_E_model_invalid, expected, found,
                              "%s: %llu entries, expected %llu, as many as " K "tokens has", key,
                              (unsigned long long)found, (unsigned long long)expected);
}

/* ---- texts -------------------------------------------------------------- */

static int read_texts(struct tok *t, const struct gguf_kv *kv, struct h_error *err) {
        size_t total = 0;

        if (kv->n == 0)
                return invalid(err, K "tokens: the vocabulary is empty");
        if (kv->n > TOK_MAX_VOCAB)
                return h_error_counts(err, HEARTH_E_model_invalid, kv->n, TOK_MAX_VOCAB,
                                      K "tokens: %llu tokens, at most %u are supported", (unsigned long long)kv->n,
                                      TOK_MAX_VOCAB);
        t->n_vocab = (uint32_t)kv->n;
        for (uint32_t i = 0; i < t->n_vocab; i++) {
                if (kv->strings[i].n > TOK_MAX_TOKEN)
                        return invalid(err, K "tokens: token %u has %zu bytes, at most %u are supported", i,
                                       kv->strings[i].n, TOK_MAX_TOKEN);
                total += kv->strings[i].n;
                t->max_len = MAX(t->max_len, (uint32_t)kv->strings[i].n);
        }
        if (total > TOK_MAX_VOCAB_TEXT)
                return invalid(err, K "tokens: %zu bytes of text, at most %zu are supported", total, TOK_MAX_VOCAB_TEXT);
        t->text.off = h_new0(uint32_t, (size_t)t->n_vocab + 1);
        t->text.data = h_malloc(total);
        if (!t->text.off || !t->text.data)
                return -ENOMEM;
        t->text.n = t->n_vocab;
        for (uint32_t i = 0, at = 0; i < t->n_vocab; i++) {
                if (kv->strings[i].n)
                        memcpy(t->text.data + at, kv->strings[i].p, kv->strings[i].n);
                at += (uint32_t)kv->strings[i].n;
                t->text.off[i + 1] = at;
        }
        return 0;
}

/* "<0x0A>": the byte, else -1. */
static int byte_of(struct gguf_str s) {
        int v = 0;

        if (s.n != 6 || memcmp(s.p, "<0x", 3) != 0 || s.p[5] != '>')
                return -1;
        for (unsigned i = 3; i < 5; i++) {
                char c = s.p[i];
                int d = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
                if (d < 0)
                        return -1;
                v = v * 16 + d;
        }
        return v;
}

static int read_kinds(struct tok *t, const struct gguf *g, struct h_error *err) {
        const struct gguf_kv *kv = NULL;
        int r = find_array(g, K "token_type", GGUF_I32, "i32", &kv, err);

        if (r < 0)
                return r;
        if (kv && kv->n != t->n_vocab)
                return wrong_length(err, K "token_type", kv->n, t->n_vocab);
        t->kind = h_new0(uint8_t, t->n_vocab);
        if (!t->kind)
                return -ENOMEM;
        for (uint32_t i = 0; i < t->n_vocab; i++) {
                int32_t v = TOK_NORMAL;
                if (kv) {
                        v = (int32_t)le32(kv->data + 4 * (size_t)i);
                        if (v < 0 || v > TOK_BYTE)
                                return invalid(err, K "token_type: token %u has type %d, expected 1 to %d", i, v, TOK_BYTE);
                        if (v == 0) /* "undefined" in the format; converters write it for plain entries */
                                v = TOK_NORMAL;
                } else if ((t->model == TOK_SPM || t->model == TOK_UNIGRAM) && byte_of(tok_str(&t->text, i)) >= 0)
                        v = TOK_BYTE;
                if (v == TOK_BYTE && byte_of(tok_str(&t->text, i)) < 0)
                        return invalid(err, K "token_type: token %u is a byte token, but its text is not of the form <0xNN>", i);
                t->kind[i] = (uint8_t)v;
        }
        return 0;
}

static int read_scores(struct tok *t, const struct gguf *g, struct h_error *err) {
        const struct gguf_kv *kv = NULL;
        int r = find_array(g, K "scores", GGUF_F32, "f32", &kv, err);

        if (r < 0)
                return r;
        if (!kv)
                return invalid(err, K "scores: missing, this kind of vocabulary needs one score per token");
        if (kv->n != t->n_vocab)
                return wrong_length(err, K "scores", kv->n, t->n_vocab);
        t->score = h_new0(float, t->n_vocab);
        if (!t->score)
                return -ENOMEM;
        for (uint32_t i = 0; i < t->n_vocab; i++) {
                uint32_t bits = le32(kv->data + 4 * (size_t)i);
                memcpy(&t->score[i], &bits, 4);
                if (!isfinite(t->score[i]))
                        return invalid(err, K "scores: the score of token %u is not a finite number", i);
        }
        return 0;
}

/* ---- what tokens print --------------------------------------------------- */

static int put_unescaped(struct buf *b, struct gguf_str s) {
        int r = 0;

        for (size_t i = 0; i < s.n && r == 0;) {
                if (s.n - i >= 3 && memcmp(s.p + i, TOK_SPACE, 3) == 0) {
                        r = buf_putc(b, ' ');
                        i += 3;
                } else
                        r = buf_putc(b, s.p[i++]);
        }
        return r;
}

/* Text in the byte alphabet as bytes; text with any other character stays as it is. */
static int put_alphabet(struct buf *b, struct gguf_str s) {
        size_t len = b->len;
        unsigned k;
        int r = 0;

        for (size_t i = 0; i < s.n && r == 0; i += k) {
                uint32_t cp = u8_next(s.p + i, s.n - i, &k);
                int byte = tok_alphabet_byte(cp);
                if (byte < 0) {
                        b->len = len;
                        return buf_append(b, s.p, s.n);
                }
                r = buf_putc(b, (char)byte);
        }
        return r;
}

static int put_piece(const struct tok *t, struct buf *b, uint32_t id) {
        struct gguf_str s = tok_str(&t->text, id);
        bool raw = t->model == TOK_BPE && !(t->pre.flags & PRE_RAW);
        int r;

        switch ((enum tok_kind)t->kind[id]) {
        case TOK_UNUSED: return 0;
        case TOK_BYTE: return buf_putc(b, (char)byte_of(s));
        case TOK_CONTROL:
        case TOK_UNKNOWN: return buf_append(b, s.p, s.n);
        case TOK_USER: return raw || t->model == TOK_WORDPIECE ? buf_append(b, s.p, s.n) : put_unescaped(b, s);
        case TOK_NORMAL: break;
        }
        if (raw)
                return put_alphabet(b, s);
        if (t->model != TOK_WORDPIECE || !t->hash_suffix)
                return put_unescaped(b, s);
        if (s.n > 2 && memcmp(s.p, "##", 2) == 0)
                return buf_append(b, s.p + 2, s.n - 2);
        r = buf_putc(b, ' ');
        return r < 0 ? r : buf_append(b, s.p, s.n);
}

static int build_pieces(struct tok *t) {
        struct buf b = { .limit = 2 * TOK_MAX_VOCAB_TEXT };
        int r = buf_reserve(&b, t->text.off[t->n_vocab] + (size_t)64);

        t->piece.off = h_new0(uint32_t, (size_t)t->n_vocab + 1);
        if (!t->piece.off)
                r = -ENOMEM;
        for (uint32_t i = 0; i < t->n_vocab && r == 0; i++) {
                r = put_piece(t, &b, i);
                t->piece.off[i + 1] = (uint32_t)b.len;
        }
        t->piece.n = t->n_vocab;
        t->piece.data = buf_steal(&b);
        return r;
}

/* ---- lookup -------------------------------------------------------------- */

static int build_map(struct tok *t) {
        int r = tok_map_init(&t->map, t->n_vocab);

        if (r < 0)
                return r;
        for (unsigned pass = 0; pass < 2; pass++)
                for (uint32_t i = 0; i < t->n_vocab; i++)
                        if ((t->kind[i] == TOK_NORMAL) == (pass == 0))
                                tok_map_add(&t->map, &t->text, i);
        for (unsigned i = 0; i < 256; i++) {
                char c[4];
                t->byte_id[i] = TOK_NONE;
                if (t->model == TOK_BPE && !(t->pre.flags & PRE_RAW))
                        t->byte_id[i] = tok_ordinary(t, c, u8_put(tok_alphabet_char((uint8_t)i), c));
        }
        for (uint32_t i = 0; i < t->n_vocab; i++)
                if (t->kind[i] == TOK_BYTE) {
                        int byte = byte_of(tok_str(&t->text, i));
                        if (t->byte_id[byte] == TOK_NONE)
                                t->byte_id[byte] = i;
                }
        return 0;
}

/* Tries of the tokens that are matched as text. */
static int build_special(struct tok *t, struct h_error *err) {
        _cleanup_(freep) uint32_t *ids = h_new0(uint32_t, t->n_vocab);
        uint32_t n = 0;
        int r;

        if (!ids)
                return -ENOMEM;
        for (unsigned pass = 0; pass < 2; pass++) {
                if (pass == 1) {
                        r = tok_trie_build(&t->user, &t->piece, ids, n);
                        if (r < 0)
                                return r;
                }
                for (uint32_t i = 0; i < t->n_vocab; i++) {
                        struct gguf_str s = tok_str(&t->piece, i);
                        if (pass == 0 ? t->kind[i] != TOK_USER : t->kind[i] != TOK_CONTROL && t->kind[i] != TOK_UNKNOWN)
                                continue;
                        if (s.n > TOK_MAX_SPECIAL)
                                return invalid(err, K "tokens: token %u is matched as text and has %zu bytes, at most %u are supported",
                                               i, s.n, TOK_MAX_SPECIAL);
                        ids[n++] = i;
                        if (s.n > 0)
                                t->special_first[(uint8_t)s.p[0]] = true;
                        if (s.n > 0 && pass == 0)
                                t->user_first[(uint8_t)s.p[0]] = true;
                }
        }
        return tok_trie_build(&t->special, &t->piece, ids, n);
}

/* ---- per model ------------------------------------------------------------ */

static void find_word_borders(struct tok *t) {
        for (uint32_t i = 0; i < t->n_vocab; i++) {
                struct gguf_str s = tok_str(&t->text, i);
                if (t->kind[i] != TOK_NORMAL && t->kind[i] != TOK_USER && t->kind[i] != TOK_UNUSED)
                        continue;
                for (size_t k = 1; k + 3 <= s.n; k++)
                        if (memcmp(s.p + k, TOK_SPACE, 3) == 0)
                                t->joins_space[(uint8_t)s.p[k - 1]] = true;
        }
}

static uint32_t part_of_merge(const struct tok *t, const char *p, size_t n) {
        return tok_map_find(&t->map, &t->text, p, n);
}

static int read_merges(struct tok *t, const struct gguf *g, struct h_error *err) {
        struct buf joined = { 0 };
        const struct gguf_kv *kv = NULL;
        int r = find_array(g, K "merges", GGUF_STRING, "strings", &kv, err);

        if (r < 0)
                return r;
        if (!kv)
                return invalid(err, K "merges: missing, a vocabulary of this kind needs them");
        if (kv->n > TOK_MAX_MERGES)
                return h_error_counts(err, HEARTH_E_model_invalid, kv->n, TOK_MAX_MERGES,
                                      K "merges: %llu merges, at most %u are supported", (unsigned long long)kv->n,
                                      TOK_MAX_MERGES);
        r = tok_pairs_init(&t->pairs, (uint32_t)kv->n);
        for (uint32_t i = 0; i < kv->n && r == 0; i++) {
                struct gguf_str s = kv->strings[i];
                /* A part has at least one byte, and may begin with a space in raw vocabularies. */
                const char *space = s.n > 2 ? memchr(s.p + 1, ' ', s.n - 2) : NULL;
                uint32_t left, right, result;
                size_t n;

                if (!space) {
                        r = invalid(err, K "merges: merge %u, \"%.*s\", is not two parts with a space between", i,
                                    (int)MIN(s.n, (size_t)80), s.p);
                        break;
                }
                n = (size_t)(space - s.p);
                left = part_of_merge(t, s.p, n);
                right = part_of_merge(t, space + 1, s.n - n - 1);
                buf_clear(&joined);
                r = buf_append(&joined, s.p, n);
                if (r == 0)
                        r = buf_append(&joined, space + 1, s.n - n - 1);
                if (r < 0)
                        break;
                result = part_of_merge(t, joined.data, joined.len);
                if (left == TOK_NONE || right == TOK_NONE || result == TOK_NONE) {
                        r = invalid(err, K "merges: merge %u, \"%.*s\": its %s is not in " K "tokens", i,
                                    (int)MIN(s.n, (size_t)80), s.p,
                                    left == TOK_NONE ? "first part" : right == TOK_NONE ? "second part" : "result");
                        break;
                }
                /* Ordinary text never becomes a control token, whatever the merges say. */
                if (t->kind[result] != TOK_CONTROL && t->kind[result] != TOK_UNUSED)
                        tok_pairs_add(&t->pairs, left, right, i, result);
        }
        buf_free(&joined);
        return r;
}

static int by_score(const void *a, const void *b, void *userdata) {
        const float *score = userdata;
        uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

        return score[i] != score[j] ? (score[i] < score[j]) - (score[i] > score[j]) : (i > j) - (i < j);
}

/* Tokens of equal score have equal priority: then the leftmost pair comes first. */
static int build_order(struct tok *t) {
        _cleanup_(freep) uint32_t *ids = h_new0(uint32_t, t->n_vocab);

        t->order = h_new0(uint32_t, t->n_vocab);
        if (!ids || !t->order)
                return -ENOMEM;
        for (uint32_t i = 0; i < t->n_vocab; i++)
                ids[i] = i;
        qsort_r(ids, t->n_vocab, sizeof(*ids), by_score, t->score);
        for (uint32_t i = 0, rank = 0; i < t->n_vocab; i++) {
                if (i > 0 && t->score[ids[i]] != t->score[ids[i - 1]])
                        rank++;
                t->order[ids[i]] = rank;
        }
        return 0;
}

/* The trie of ordinary tokens, and for unigram the score of an unknown character. */
static int build_ordinary_trie(struct tok *t, struct h_error *err) {
        _cleanup_(freep) uint32_t *ids = h_new0(uint32_t, t->n_vocab);
        uint32_t n = 0;
        float min = 0;

        if (!ids)
                return -ENOMEM;
        for (uint32_t i = 0; i < t->n_vocab; i++)
                if (t->kind[i] == TOK_NORMAL) {
                        if (t->model == TOK_UNIGRAM && tok_str(&t->text, i).n > TOK_MAX_PIECE)
                                return invalid(err, K "tokens: token %u has %zu bytes, at most %u are supported in a unigram vocabulary",
                                               i, tok_str(&t->text, i).n, TOK_MAX_PIECE);
                        if (t->score && (n == 0 || t->score[i] < min))
                                min = t->score[i];
                        ids[n++] = i;
                }
        t->unk_score = (double)min - 10.0;
        return tok_trie_build(&t->pieces, &t->text, ids, n);
}

static int read_charsmap(struct tok *t, const struct gguf *g, struct h_error *err) {
        const char *key = K "precompiled_charsmap";
        const struct gguf_kv *kv = gguf_find(g, key);

        if (!kv)
                return 0;
        if (kv->type != GGUF_ARRAY || (kv->elem != GGUF_U8 && kv->elem != GGUF_I8))
                return invalid(err, "%s: expected an array of bytes", key);
        return tok_charsmap_open(&t->charsmap, kv->data, kv->n, err);
}

/* BERT vocabularies: which spelling, and whether text loses its case. */
static int read_wordpiece(struct tok *t, const struct gguf *g, struct h_error *err) {
        uint32_t words = 0, hashes = 0;
        bool upper = false;
        int r;

        for (uint32_t i = 0; i < t->n_vocab; i++) {
                struct gguf_str s = tok_str(&t->text, i);
                if (t->kind[i] != TOK_NORMAL || (s.n > 2 && s.p[0] == '[' && s.p[s.n - 1] == ']'))
                        continue;
                words += s.n > 3 && memcmp(s.p, TOK_SPACE, 3) == 0;
                hashes += s.n > 2 && memcmp(s.p, "##", 2) == 0;
                for (size_t k = 0; k < s.n; k++)
                        upper |= s.p[k] >= 'A' && s.p[k] <= 'Z';
        }
        t->hash_suffix = hashes > words;
        /* A vocabulary with capital letters was made from text that kept them. */
        t->lowercase = !upper;
        r = gguf_bool(g, K "normalizer.lowercase", t->lowercase, &t->lowercase, err);
        if (r == 0)
                r = gguf_bool(g, K "normalizer.strip_accents", t->lowercase, &t->strip_accents, err);
        return r;
}

static int read_model(struct tok *t, const struct gguf *g, struct gguf_str name, struct h_error *err) {
        static const struct { const char *name; enum tok_model model; } models[] = {
                { "gpt2", TOK_BPE }, { "gemma4", TOK_BPE }, { "llama", TOK_SPM }, { "t5", TOK_UNIGRAM }, { "bert", TOK_WORDPIECE },
        };
        struct gguf_str pre;
        size_t i;
        int r;

        for (i = 0; i < ELEMENTSOF(models); i++)
                if (strlen(models[i].name) == name.n && memcmp(models[i].name, name.p, name.n) == 0)
                        break;
        if (i == ELEMENTSOF(models))
                return h_error_set(err, HEARTH_E_unknown_tokenizer,
                                   K "model: unknown kind of vocabulary \"%.*s\"; known: gpt2 gemma4 llama t5 bert none",
                                   (int)MIN(name.n, (size_t)64), name.p);
        t->model = models[i].model;
        if (t->model != TOK_BPE)
                return 0;
        r = gguf_string(g, K "pre", &pre, err);
        if (r < 0)
                return r;
        if (strcmp(models[i].name, "gemma4") == 0)
                pre = (struct gguf_str){ "gemma4", 6 };
        else if (!pre.p) /* files from before the key existed */
                pre = (struct gguf_str){ "default", 7 };
        return tok_pre_open(&t->pre, pre.p, pre.n, err);
}

static int open_into(struct tok *t, const struct gguf *g, struct gguf_str model, struct h_error *err) {
        const struct gguf_kv *tokens = NULL;
        int r = read_model(t, g, model, err);

        if (r < 0)
                return r;
        r = find_array(g, K "tokens", GGUF_STRING, "strings", &tokens, err);
        if (r < 0)
                return r;
        if (!tokens)
                return invalid(err, K "tokens: missing, " K "model is \"%.*s\"", (int)MIN(model.n, (size_t)64), model.p);
        r = read_texts(t, tokens, err);
        if (r == 0)
                r = read_kinds(t, g, err);
        if (r == 0 && (t->model == TOK_SPM || t->model == TOK_UNIGRAM))
                r = read_scores(t, g, err);
        if (r == 0 && t->model == TOK_WORDPIECE)
                r = read_wordpiece(t, g, err);
        t->add_space_prefix = t->model == TOK_SPM || t->model == TOK_UNIGRAM;
        if (r == 0 && t->add_space_prefix)
                r = gguf_bool(g, K "add_space_prefix", true, &t->add_space_prefix, err);
        if (r == 0 && t->model != TOK_BPE)
                r = gguf_bool(g, K "remove_extra_whitespaces", false, &t->remove_extra_whitespaces, err);
        if (r == 0)
                r = build_pieces(t);
        if (r == 0)
                r = build_map(t);
        if (r == 0)
                r = build_special(t, err);
        if (r == 0 && (t->model == TOK_SPM || t->model == TOK_UNIGRAM))
                r = read_charsmap(t, g, err);
        if (r == 0)
                find_word_borders(t);
        if (r == 0 && t->model == TOK_BPE)
                r = read_merges(t, g, err);
        if (r == 0 && t->model == TOK_SPM)
                r = build_order(t);
        if (r == 0 && (t->model == TOK_UNIGRAM || t->model == TOK_WORDPIECE))
                r = build_ordinary_trie(t, err);
        return r < 0 ? r : tok_read_ids(t, g, err);
}

int tok_open(const struct gguf *g, struct tok **ret, struct h_error *err) {
        struct gguf_str model;
        struct tok *t;
        int r = gguf_string(g, K "model", &model, err);

        if (r < 0)
                return r;
        if (!model.p)
                return h_error_set(err, HEARTH_E_unknown_tokenizer,
                                   K "model: missing; a file without a vocabulary says \"none\"");
        if ((model.n == 4 && memcmp(model.p, "none", 4) == 0) || (model.n == 8 && memcmp(model.p, "no_vocab", 8) == 0)) {
                *ret = NULL;
                return 0;
        }
        t = h_new0(struct tok, 1);
        if (!t)
                return -ENOMEM;
        r = open_into(t, g, model, err);
        if (r < 0) {
                tok_free(t);
                return r;
        }
        *ret = t;
        return 0;
}

struct tok *tok_free(struct tok *t) {
        if (!t)
                return NULL;
        tok_strings_free(&t->text);
        tok_strings_free(&t->piece);
        tok_map_free(&t->map);
        tok_trie_free(&t->special);
        tok_trie_free(&t->user);
        tok_trie_free(&t->pieces);
        tok_pre_free(&t->pre);
        tok_charsmap_free(&t->charsmap);
        free(t->pairs.slot);
        free(t->kind);
        free(t->score);
        free(t->order);
        free(t->eog);
        free(t);
        return NULL;
}
