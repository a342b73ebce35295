/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokenizer beyond vectors: what vocabularies are refused and how, special
 * parsing, added ids, streams, failing allocations, text meant to be slow.
 * (Vectors: tests/oracle/test_tokenizer_vectors.py.)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "base/alloc.h"
#include "engine/text/tok_internal.h"
#include "make_gguf.h"

/* ---- a vocabulary to bend ------------------------------------------------- */

#define MAX_TOKENS 600
struct vocab {
        const char *model, *pre;
        const char *tokens[MAX_TOKENS];
        int32_t types[MAX_TOKENS];
        float scores[MAX_TOKENS];
        uint32_t n, n_types, n_scores; /* n_types, n_scores: as written; 0 leaves the key out */
        const char *merges[32];
        uint32_t n_merges;
        bool no_merges, no_tokens;
        const char *id_key;
        uint32_t id;
        enum gguf_type types_elem;
        char text[256][8];
};

static uint32_t add(struct vocab *v, const char *text, int32_t type) {
        v->tokens[v->n] = text;
        v->types[v->n] = type;
        v->scores[v->n] = -(float)v->n;
        v->n_types = v->n_scores = v->n + 1;
        return v->n++;
}

/* 256 bytes of the alphabet, a few merges and added tokens. */
static void byte_level(struct vocab *v) {
        static const char *const words[] = { "he", "ll", "hell", "hello", "\xc4\xa0w" };
        static const char *const merges[] = { "h e", "l l", "he ll", "hell o", "\xc4\xa0 w" };

        memset(v, 0, sizeof(*v));
        v->model = "gpt2";
        v->pre = "gpt-2";
        v->types_elem = GGUF_I32;
        for (unsigned i = 0; i < 256; i++) {
                v->text[i][u8_put(tok_alphabet_char((uint8_t)i), v->text[i])] = 0;
                add(v, v->text[i], TOK_NORMAL);
        }
        for (size_t i = 0; i < ELEMENTSOF(words); i++)
                add(v, words[i], TOK_NORMAL);
        for (size_t i = 0; i < ELEMENTSOF(merges); i++)
                v->merges[v->n_merges++] = merges[i];
        add(v, "<|end|>", TOK_CONTROL);        /* 261 */
        add(v, "<|endoftext|>", TOK_CONTROL);  /* 262 */
        add(v, "<tool>", TOK_USER);            /* 263 */
        add(v, "<|end", TOK_USER);             /* 264 */
        add(v, "[PAD265]", TOK_UNUSED);        /* 265 */
}

static void characters(struct vocab *v, const char *model) {
        static const char *const words[] = { "\xe2\x96\x81", "a", "b", "ab", "\xe2\x96\x81" "a", "\xe2\x96\x81" "ab", "c" };

        memset(v, 0, sizeof(*v));
        v->model = model;
        v->types_elem = GGUF_I32;
        add(v, "<unk>", TOK_UNKNOWN);
        add(v, "<s>", TOK_CONTROL);
        add(v, "</s>", TOK_CONTROL);
        for (size_t i = 0; i < ELEMENTSOF(words); i++)
                add(v, words[i], TOK_NORMAL);
}

static void write_vocab(const struct vocab *v, struct buf *b) {
        uint64_t n_kv = 1 + (v->pre != NULL) + !v->no_tokens + (v->n_types > 0) + (v->n_scores > 0) +
                        (v->n_merges > 0 && !v->no_merges) + (v->id_key != NULL);

        put_header(b, 3, 0, n_kv);
        kv_str(b, "tokenizer.ggml.model", v->model);
        if (v->pre)
                kv_str(b, "tokenizer.ggml.pre", v->pre);
        if (!v->no_tokens) {
                struct buf a = { 0 };
                for (uint32_t i = 0; i < v->n; i++)
                        put_str(&a, v->tokens[i]);
                kv_array(b, "tokenizer.ggml.tokens", GGUF_STRING, v->n, a.data, a.len);
                buf_free(&a);
        }
        if (v->n_types)
                kv_array(b, "tokenizer.ggml.token_type", v->types_elem, v->n_types, v->types, v->n_types * sizeof(int32_t));
        if (v->n_scores)
                kv_array(b, "tokenizer.ggml.scores", GGUF_F32, v->n_scores, v->scores, v->n_scores * sizeof(float));
        if (v->n_merges > 0 && !v->no_merges) {
                struct buf a = { 0 };
                for (uint32_t i = 0; i < v->n_merges; i++)
                        put_str(&a, v->merges[i]);
                kv_array(b, "tokenizer.ggml.merges", GGUF_STRING, v->n_merges, a.data, a.len);
                buf_free(&a);
        }
        if (v->id_key)
                kv_u32(b, v->id_key, v->id);
        pad(b, 32);
}

static int open_vocab(const struct vocab *v, struct tok **ret, struct h_error *err) {
        struct buf b = { 0 };
        struct gguf *g = NULL;
        int r;

        write_vocab(v, &b);
        assert_int_equal(gguf_parse(b.data, b.len, b.len, &g, err), 0);
        r = tok_open(g, ret, err);
        gguf_free(g);
        buf_free(&b);
        return r;
}

static struct tok *open_good(const struct vocab *v) {
        struct h_error err = { 0 };
        struct tok *t = NULL;
        int r = open_vocab(v, &t, &err);

        if (r < 0)
                print_error("%s\n", err.message);
        assert_int_equal(r, 0);
        assert_non_null(t);
        return t;
}

static void refused(const struct vocab *v, enum hearth_code code, const char *says) {
        struct h_error err = { 0 };
        struct tok *t = NULL;

        assert_int_equal(open_vocab(v, &t, &err), -EHEARTH);
        assert_null(t);
        if (err.code != code || !strstr(err.message, says))
                print_error("%s: %s\n  expected \"%s\"\n", hearth_code_name(err.code), err.message, says);
        assert_int_equal(err.code, code);
        assert_non_null(strstr(err.message, says));
}

static void check_ids(const struct tok *t, const char *text, size_t n, unsigned flags, const uint32_t *want, size_t n_want) {
        struct tok_ids ids = { 0 };

        assert_int_equal(tok_encode(t, text, n, flags, &ids), 0);
        for (size_t i = 0; i < ids.n && ids.n != n_want; i++)
                print_error("%u ", ids.ids[i]);
        assert_int_equal(ids.n, n_want);
        for (size_t i = 0; i < n_want; i++)
                assert_int_equal(ids.ids[i], want[i]);
        tok_ids_free(&ids);
}
#define CHECK(t, text, flags, ...) do { \
                const uint32_t want[] = { __VA_ARGS__ }; \
                check_ids(t, text, sizeof(text) - 1, flags, want, ELEMENTSOF(want)); \
        } while (0)

/* ---- refusals --------------------------------------------------------------- */

static void test_refused(void **state) {
        struct vocab v;
        enum hearth_code invalid = HEARTH_E_model_invalid;

        byte_level(&v);
        v.no_tokens = true;
        refused(&v, invalid, "tokenizer.ggml.tokens: missing");
        byte_level(&v);
        v.n = 0;
        refused(&v, invalid, "tokenizer.ggml.tokens: the vocabulary is empty");
        byte_level(&v);
        v.n_types--;
        refused(&v, invalid, "tokenizer.ggml.token_type: 265 entries, expected 266");
        v.n_types += 2;
        refused(&v, invalid, "tokenizer.ggml.token_type: 267 entries, expected 266");
        byte_level(&v);
        v.types_elem = GGUF_F32;
        refused(&v, invalid, "tokenizer.ggml.token_type: expected an array of i32");
        byte_level(&v);
        v.types[7] = 9;
        refused(&v, invalid, "tokenizer.ggml.token_type: token 7 has type 9, expected 1 to 6");
        byte_level(&v);
        v.types[7] = -1;
        refused(&v, invalid, "token 7 has type -1");
        byte_level(&v);
        v.types[7] = TOK_BYTE;
        refused(&v, invalid, "token 7 is a byte token");
        byte_level(&v);
        v.no_merges = true;
        refused(&v, invalid, "tokenizer.ggml.merges: missing");
        byte_level(&v);
        v.merges[1] = "ll";
        refused(&v, invalid, "tokenizer.ggml.merges: merge 1, \"ll\", is not two parts");
        v.merges[1] = "ll ";
        refused(&v, invalid, "merge 1, \"ll \", is not two parts");
        v.merges[1] = "";
        refused(&v, invalid, "merge 1, \"\", is not two parts");
        v.merges[1] = "q2 l";
        refused(&v, invalid, "merge 1, \"q2 l\": its first part is not in tokenizer.ggml.tokens");
        v.merges[1] = "l q2";
        refused(&v, invalid, "its second part is not in");
        v.merges[1] = "q l";
        refused(&v, invalid, "its result is not in");
        byte_level(&v);
        v.pre = "no-such-rule";
        refused(&v, HEARTH_E_unknown_tokenizer, "unknown pre-tokenizer \"no-such-rule\"; known: default gpt-2");
        refused(&v, HEARTH_E_unknown_tokenizer, " whitespace"); /* the whole list fits */
        v.model = "rwkv";
        refused(&v, HEARTH_E_unknown_tokenizer, "unknown kind of vocabulary \"rwkv\"; known: gpt2");
        byte_level(&v);
        v.id = 266;
        static const char *const keys[] = { "bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "cls", "mask",
                                            "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep" };
        for (size_t i = 0; i < ELEMENTSOF(keys); i++) {
                char key[64], says[128];
                snprintf(key, sizeof(key), "tokenizer.ggml.%s_token_id", keys[i]);
                snprintf(says, sizeof(says), "%s: token 266 is out of range, the vocabulary has 266 tokens", key);
                v.id_key = key;
                refused(&v, invalid, says);
        }
        characters(&v, "llama");
        v.n_scores = 0;
        refused(&v, invalid, "tokenizer.ggml.scores: missing");
        v.n_scores = 3;
        refused(&v, invalid, "tokenizer.ggml.scores: 3 entries, expected 10");
        characters(&v, "t5");
        v.scores[4] = __builtin_nanf("");
        refused(&v, invalid, "tokenizer.ggml.scores: the score of token 4 is not a finite number");
}

static void test_no_vocabulary(void **state) {
        struct vocab v = { .model = "none", .no_tokens = true };
        struct h_error err = { 0 };
        struct tok *t = (struct tok *)&v;

        assert_int_equal(open_vocab(&v, &t, &err), 0);
        assert_null(t);
}

/* ---- encoding ----------------------------------------------------------------- */

static void test_special(void **state) {
        struct vocab v;
        struct tok *t;

        byte_level(&v);
        t = open_good(&v);
        CHECK(t, "hello w", 0, 259, 260);
        CHECK(t, "hello<|end|>", TOK_SPECIAL, 259, 261);
        CHECK(t, "<|endoftext|><|end", TOK_SPECIAL, 262, 264);
        CHECK(t, "<|endo", TOK_SPECIAL, 264, 'o');
        /* Off: the user-defined "<|end" still matches, the control token never does. */
        CHECK(t, "<|end|>", 0, 264, '|', '>');
        CHECK(t, "<tool><tool", 0, 263, '<', 't', 'o', 'o', 'l');
        CHECK(t, "[PAD265]", TOK_SPECIAL, '[', 'P', 'A', 'D', '2', '6', '5', ']');
        CHECK(t, "\xff\xc3", 0, 0xff, 0xc3);
        check_ids(t, "", 0, TOK_SPECIAL | TOK_BOS | TOK_EOS, NULL, 0);
        assert_int_equal(tok_special_id(t, TOK_ID_BOS), -1);
        /* By text, since no key names it; a control token of a known text ends the generation. */
        assert_int_equal(tok_special_id(t, TOK_ID_EOT), 261);
        assert_true(tok_is_eog(t, 261));
        assert_true(tok_is_eog(t, 262));
        assert_false(tok_is_eog(t, 263));
        assert_false(tok_is_eog(t, UINT32_MAX));
        tok_free(t);

        /* Harmony: <|end|> closes a message only. */
        add(&v, "<|return|>", TOK_CONTROL);
        add(&v, "<|call|>", TOK_CONTROL);
        t = open_good(&v);
        assert_false(tok_is_eog(t, 261));
        assert_true(tok_is_eog(t, 266));
        assert_int_equal(tok_special_id(t, TOK_ID_EOT), 262);
        tok_free(t);

        /* An ordinary token is not special because of its text. */
        byte_level(&v);
        v.types[261] = v.types[262] = TOK_NORMAL;
        t = open_good(&v);
        assert_int_equal(tok_special_id(t, TOK_ID_EOT), -1);
        assert_false(tok_is_eog(t, 261));
        CHECK(t, "<|end|>", TOK_SPECIAL, 264, '|', '>');
        tok_free(t);
}

static void test_missing_bytes(void **state) {
        struct vocab v;
        struct tok *t;
        struct tok_ids ids = { 0 };

        byte_level(&v);
        v.tokens['x'] = "xyz"; /* no token for the byte any more */
        v.id_key = "tokenizer.ggml.unknown_token_id";
        v.id = 262;
        t = open_good(&v);
        CHECK(t, "hellox", 0, 259); /* never a control token instead */
        tok_free(t);

        characters(&v, "llama");
        t = open_good(&v);
        CHECK(t, "ab zz b", 0, 8, 3, 0, 3, 5); /* a run of unknown characters is one unknown token */
        CHECK(t, "ab", TOK_BOS | TOK_EOS, 1, 8);
        tok_free(t);
        v.types[0] = TOK_UNUSED;
        t = open_good(&v);
        assert_int_equal(tok_encode(t, "z", 1, 0, &ids), -EILSEQ);
        assert_int_equal(ids.n, 0);
        tok_ids_free(&ids);
        tok_free(t);
}

static void test_unused_apart(void **state) {
        struct vocab v;
        struct tok *t;

        characters(&v, "llama");
        v.scores[8] = v.scores[6] = 0; /* "▁ab" and "ab" merge first */
        v.types[6] = v.types[8] = TOK_UNUSED;
        t = open_good(&v);
        CHECK(t, "ab", 0, 3, 4, 5); /* ▁ + (a b) */
        v.scores[6] = -9;
        tok_free(t);
        t = open_good(&v);
        CHECK(t, "ab", 0, 7, 5); /* (▁a) b */
        tok_free(t);
        characters(&v, "t5");
        v.types[8] = TOK_UNUSED;
        t = open_good(&v);
        CHECK(t, "ab", 0, 3, 6);
        check_ids(t, "", 0, 0, NULL, 0);
        CHECK(t, "", TOK_EOS, 2);
        tok_free(t);
}

/* Every rule of the table compiles and keeps all bytes of any text (but for the one that drops white space). */
static int add_length(void *userdata, const char *p, size_t n) {
        const char **at = userdata;
        assert_ptr_equal(*at, p);
        *at += n;
        return 0;
}

static void test_rules(void **state) {
        const char text[] = "Hello, W\xc3\xb6rld's 12345 \xff\xe4\xb8\xad\xe6\x96\x87\r\n\n   x  \t\xcc\x81!!?/ \xf0\x9f\x98\x80 z ";
        unsigned n = 0;

        for (unsigned i = 0; tok_pre_names(i); i++) {
                char names[256];
                snprintf(names, sizeof(names), "%s", tok_pre_names(i));
                for (char *save = NULL, *name = strtok_r(names, " ", &save); name; name = strtok_r(NULL, " ", &save)) {
                        struct tok_pre p = { 0 };
                        struct h_error err = { 0 };
                        const char *at = text;
                        int r = tok_pre_open(&p, name, strlen(name), &err);
                        if (r < 0)
                                print_error("%s: %s\n", name, err.message);
                        assert_int_equal(r, 0);
                        if (!(p.flags & PRE_DROP_GAPS)) {
                                assert_int_equal(tok_pre_split(&p, text, sizeof(text) - 1, add_length, &at), 0);
                                assert_ptr_equal(at, text + sizeof(text) - 1);
                        }
                        tok_pre_free(&p);
                        n++;
                }
        }
        assert_true(n > 60);
}

static void test_patterns(void **state) {
        static const struct { const char *pattern, *text; size_t len; } rows[] = {
                { "a|ab", "ab", 1 }, { "ab|a", "ab", 2 }, { "a*", "aaab", 3 }, { "(ab)+", "ababa", 4 }, { "a{2,3}", "aaaa", 3 },
                { "(a{1,2}b){2}", "aabab", 5 }, { "(a{1,2}b){2}", "aabaaab", 0 }, { "(?i:x)y", "Xy", 2 }, { "(?i:x)y", "XY", 0 },
                { "\\s+(?!\\S)", "   x", 2 }, { "\\s+(?!\\S)", "   ", 3 }, { "a$", "a", 1 }, { "a$", "ab", 0 },
                { "a(?=b)", "ab", 1 }, { "a(?=b)", "ac", 0 }, { "a(?=b)", "a", 0 }, { "[^a-c]+", "xyzb", 3 },
                { "[\\p{L}&&[^\\p{Han}]]+", "ab\xe4\xb8\xad", 2 }, { "\\x{4E2D}", "\xe4\xb8\xad", 3 },
                { "(?:ab|a)(?:bc|c)?", "abc", 3 }, { "(a|b)*c|.?", "ab", 0 },
        };
        static const char *const wrong[] = { "(a", "a)", "[a", "\\q", "\\p{Xx}", "a{3,1}", "(?<a)", "(?=ab)", "[\\S]" };
        struct rx *rx;

        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                struct h_error err = { 0 };
                assert_int_equal(rx_compile(rows[i].pattern, &rx, &err), 0);
                if (rx_match(rx, rows[i].text, strlen(rows[i].text)) != rows[i].len)
                        print_error("%s on %s\n", rows[i].pattern, rows[i].text);
                assert_int_equal(rx_match(rx, rows[i].text, strlen(rows[i].text)), rows[i].len);
                rx_free(rx);
        }
        for (size_t i = 0; i < ELEMENTSOF(wrong); i++) {
                struct h_error err = { 0 };
                assert_int_equal(rx_compile(wrong[i], &rx, &err), -EHEARTH);
                assert_non_null(strstr(err.message, "pattern"));
        }
}

static void test_nfc(void **state) {
        static const struct { const char *in, *out; } rows[] = {
                { "e\xcc\x81", "\xc3\xa9" }, { "a\xcc\xa3\xcc\x82", "\xe1\xba\xad" }, { "a\xcc\x82\xcc\xa3", "\xe1\xba\xad" },
                { "x e\xcc\x81y", "x \xc3\xa9y" }, { "\xe2\x84\xab", "\xc3\x85" }, { "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81" },
                { "e\xff\xcc\x81", "e\xff\xcc\x81" }, { "\xcc\x81", "\xcc\x81" }, { "plain", "plain" }, { "", "" },
                { "\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc" }, /* a composition exclusion */
        };
        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                struct buf b = { 0 };
                assert_int_equal(u8_nfc(rows[i].in, strlen(rows[i].in), &b), 0);
                assert_string_equal(b.data ? b.data : "", rows[i].out);
                buf_free(&b);
        }
}

/* ---- streams ------------------------------------------------------------------ */

static void stream_bytes(const struct tok *t, const char *p, size_t n, struct buf *out) {
        struct tok_stream s;

        tok_stream_init(&s, t, 0);
        for (size_t i = 0; i < n; i++) {
                assert_int_equal(tok_stream_push(&s, (uint8_t)p[i], out), 0); /* byte tokens have their byte's id */
                for (size_t k = 0; k < out->len;) { /* nothing broken so far */
                        int len = u8_scan((const uint8_t *)out->data + k, out->len - k);
                        assert_true(len > 0);
                        k += (size_t)len;
                }
        }
        assert_int_equal(tok_stream_flush(&s, out), 0);
}

static void test_streams(void **state) {
        static const struct { const char *in, *out; } rows[] = {
                { "a\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80z", "a\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80z" },
                { "\xe4\xb8", "\xef\xbf\xbd" }, { "\xe4\xb8z", "\xef\xbf\xbdz" }, { "\xf0\x9f\x98", "\xef\xbf\xbd" },
                { "\xf0\x9f\xe4\xb8\xad", "\xef\xbf\xbd\xe4\xb8\xad" }, { "\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd" },
                { "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" }, /* a surrogate: no part of it can begin a character */
                { "\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd" }, { "\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
                { "\xe4\xb8\xff", "\xef\xbf\xbd\xef\xbf\xbd" }, { "\xc3\xc3\xa9", "\xef\xbf\xbd\xc3\xa9" },
        };
        struct vocab v;
        struct tok *t;
        struct tok_stream s;
        struct buf b = { 0 };

        byte_level(&v);
        t = open_good(&v);
        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                stream_bytes(t, rows[i].in, strlen(rows[i].in), &b);
                assert_string_equal(b.data, rows[i].out);
                buf_clear(&b);
        }
        tok_stream_init(&s, t, 0);
        assert_int_equal(tok_stream_push(&s, 261, &b), 0);
        assert_int_equal(tok_stream_push(&s, 263, &b), 0);
        assert_int_equal(tok_stream_push(&s, 265, &b), 0);
        assert_int_equal(tok_stream_push(&s, 266, &b), -EINVAL);
        assert_string_equal(b.data, "<tool>");
        tok_stream_init(&s, t, TOK_SPECIAL);
        assert_int_equal(tok_stream_push(&s, 261, &b), 0);
        assert_string_equal(b.data, "<tool><|end|>");
        tok_free(t);

        characters(&v, "llama");
        t = open_good(&v);
        buf_clear(&b);
        tok_stream_init(&s, t, 0);
        for (unsigned i = 0; i < 2; i++)
                assert_int_equal(tok_stream_push(&s, 8, &b), 0);
        assert_string_equal(b.data, "ab ab");
        buf_clear(&b);
        tok_stream_init(&s, t, TOK_CONTINUE);
        assert_int_equal(tok_stream_push(&s, 8, &b), 0);
        assert_string_equal(b.data, " ab");
        tok_free(t);
        buf_free(&b);
}

/* ---- failures, hostile text ------------------------------------------------------ */

/* Each allocation fails once: the error comes back, nothing leaks (AddressSanitizer), what there was stays. */
static void test_allocations(void **state) {
        static const char *const models[] = { "gpt2", "llama", "t5" };
        static const char text[] = "abe\xcc\x81 hello<tool>aabcabacbabcbabcabcbabcbabcb";

        for (size_t m = 0; m < ELEMENTSOF(models); m++) {
                bool done = false;
                for (uint64_t nth = 1; !done; nth++) {
                        struct h_error err = { 0 };
                        struct vocab v;
                        struct tok *t = NULL;
                        struct tok_ids ids = { 0 };
                        struct gguf *g = NULL;
                        struct buf b = { 0 };
                        int r;

                        if (m == 0)
                                byte_level(&v);
                        else
                                characters(&v, models[m]);
                        if (m == 0)
                                v.pre = "qwen2"; /* with NFC */
                        write_vocab(&v, &b);
                        assert_int_equal(gguf_parse(b.data, b.len, b.len, &g, &err), 0);
                        fault_arm(FAULT_ALLOC, nth);
                        r = tok_open(g, &t, &err);
                        if (r == 0) {
                                r = tok_encode(t, text, sizeof(text) - 1, TOK_SPECIAL, &ids);
                                assert_true(r == 0 || ids.n == 0);
                        }
                        done = fault_count(FAULT_ALLOC) < nth;
                        fault_arm(FAULT_ALLOC, 0);
                        assert_true(r == 0 || (r == -ENOMEM && !done)); /* giving back spare room may fail unnoticed */
                        tok_ids_free(&ids);
                        tok_free(t);
                        gguf_free(g);
                        buf_free(&b);
                }
        }
}

/* A quarter of a megabyte of each: quadratic cost would pass the test's time limit by orders of magnitude. */
static void test_hostile_text(void **state) {
        static const char *const units[] = { "a", " ", "\n", "<", "<|", "<|endofte", "\xcc\x81\xcc\xa7", "\xe4\xb8\xad", "\xf0\x9f\x98\x80", "l",
                                             "\xff", "7", "    \n", "\xcc\xa7\xcc\x81\xcc\xa3" };
        static const char *const pres[] = { "qwen2", "gpt-4o", "deepseek-llm", "bloom", "superbpe", "gemma4", NULL };
        struct vocab v;

        for (size_t p = 0; p < ELEMENTSOF(pres); p++) {
                struct tok *t;
                if (pres[p])
                        byte_level(&v);
                else
                        characters(&v, "t5");
                v.pre = pres[p];
                t = open_good(&v);
                for (size_t u = 0; u < ELEMENTSOF(units); u++) {
                        struct buf b = { 0 };
                        struct tok_ids ids = { 0 };
                        int r;
                        while (b.len < (size_t)1 << 18)
                                assert_int_equal(buf_puts(&b, units[u]), 0);
                        assert_int_equal(buf_puts(&b, "x"), 0);
                        r = tok_encode(t, b.data, b.len, TOK_SPECIAL, &ids);
                        assert_true(r == 0 || r == -EILSEQ);
                        tok_ids_free(&ids);
                        buf_free(&b);
                }
                tok_free(t);
        }
}

static bool stops(void *ud) {
        unsigned *n = ud;
        return (*n)-- == 0;
}

/* What fits is what it is without bounds; what does not is refused with a count that is true. */
static void check_bounds(const struct tok *t, const char *p, size_t n) {
        const struct tok_span span = { .len = n };
        struct tok_ids all = { 0 }, ids = { 0 };
        unsigned left = 0;
        struct tok_bounds b = { .stop = stops, .userdata = &left };

        if (tok_encode(t, p, n, 0, &all) == 0) {
                b = (struct tok_bounds){ .max_ids = all.n };
                assert_int_equal(tok_encode_bounded(t, p, &span, 1, 0, &b, &ids), 0);
                assert_int_equal(ids.n, all.n);
                assert_memory_equal(ids.ids, all.ids, all.n * sizeof(uint32_t));
                for (size_t max = 0; max < all.n; max = max * 3 + 1) {
                        b = (struct tok_bounds){ .max_ids = all.n + max };
                        assert_int_equal(tok_encode_bounded(t, p, &span, 1, 0, &b, &ids), -ENOSPC); /* behind those that are there */
                        assert_int_equal(ids.n, all.n);
                        assert_true(b.at_least > b.max_ids && b.at_least <= 2 * all.n);
                }
        }
        ids.n = 0;
        b = (struct tok_bounds){ .max_ids = SIZE_MAX, .stop = stops, .userdata = &left };
        assert_int_equal(tok_encode_bounded(t, p, &span, 1, 0, &b, &ids), -ECANCELED);
        assert_int_equal(ids.n, 0);
        tok_ids_free(&all);
        tok_ids_free(&ids);
}

static void test_bounds(void **state) {
        static const char *const units[] = { "a", " ", "ab c", "he\n", "hello", "<tool>", "\xcc\x81\xcc\xa7", "\xe4\xb8\xad", "\xff", "7", "l" };
        static const char *const vocabs[] = { "qwen2", "gpt-2", "deepseek-llm", "gemma4", "whitespace", "llama", "t5" };
        struct vocab v;

        for (size_t k = 0; k < ELEMENTSOF(vocabs); k++) {
                struct tok *t;
                if (k < 5) {
                        byte_level(&v);
                        v.pre = vocabs[k];
                } else
                        characters(&v, vocabs[k]);
                t = open_good(&v);
                for (size_t u = 0; u < ELEMENTSOF(units); u++) {
                        struct buf b = { 0 };
                        while (b.len < (size_t)1 << 15)
                                assert_int_equal(buf_puts(&b, units[u]), 0);
                        check_bounds(t, b.data, b.len);
                        buf_free(&b);
                }
                tok_free(t);
        }
}

/* One word of the largest size: its length alone says that it can't fit, before there is a symbol for each of its bytes. */
static void test_bounds_early(void **state) {
        size_t n = (size_t)64 << 20;
        char *p = calloc(1, n);
        struct tok_bounds b = { .max_ids = 4096 };
        struct tok_ids ids = { 0 };
        struct vocab v;
        struct tok *t;

        assert_non_null(p);
        byte_level(&v);
        t = open_good(&v);
        assert_int_equal(tok_encode_bounded(t, p, &(struct tok_span){ .len = n }, 1, 0, &b, &ids), -ENOSPC);
        assert_true(b.at_least >= n / 16 && b.at_least <= n);
        assert_null(ids.ids);
        tok_free(t);
        free(p);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_refused), cmocka_unit_test(test_no_vocabulary), cmocka_unit_test(test_special),
                cmocka_unit_test(test_missing_bytes), cmocka_unit_test(test_unused_apart), cmocka_unit_test(test_rules),
                cmocka_unit_test(test_patterns), cmocka_unit_test(test_nfc), cmocka_unit_test(test_streams),
                cmocka_unit_test(test_allocations), cmocka_unit_test(test_hostile_text),
                cmocka_unit_test(test_bounds), cmocka_unit_test(test_bounds_early),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
