/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives the tokenizer for tests written in Python: opens the vocabulary of a
 * GGUF file, then answers one JSON object a line on standard input with one on
 * standard output.
 *
 *   {"encode": HEX, "flags": N}         {"ids": [...]}
 *   {"decode": [IDS], "flags": N}       {"pieces": [HEX...], "text": HEX}
 *   {"split": HEX, "pre": NAME}         {"words": [HEX...]}: what the pre-tokenizer NAME makes of the text
 *   {"info": true}                      {"n_vocab": N, "special": [...], "eog": [...], "first": ID, "last": ID}
 *
 * An error of a request is {"error": N}. A file that can't be used ends the
 * program with status 1 and the error's code and message on standard error.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "engine/text/tok_internal.h"

static char *read_file(const char *path, size_t *ret_n) {
        FILE *f = fopen(path, "rb");
        struct buf b = { 0 };
        char chunk[65536];
        size_t k;

        if (!f)
                return NULL;
        while ((k = fread(chunk, 1, sizeof(chunk), f)) > 0)
                if (buf_append(&b, chunk, k) < 0)
                        break;
        fclose(f);
        *ret_n = b.len;
        return buf_steal(&b);
}

static json_t *hex(const char *p, size_t n) {
        struct buf b = { 0 };
        json_t *j;

        for (size_t i = 0; i < n; i++)
                buf_printf(&b, "%02x", (uint8_t)p[i]);
        j = json_string(b.data ? b.data : "");
        buf_free(&b);
        return j;
}

static void unhex(const char *s, struct buf *b) {
        unsigned v;
        for (; sscanf(s, "%2x", &v) == 1; s += 2)
                buf_putc(b, (char)v);
}

static json_t *encode(const struct tok *t, const char *text, unsigned flags) {
        struct buf b = { 0 };
        struct tok_ids ids = { 0 };
        json_t *list = json_array();
        int r;

        unhex(text, &b);
        r = tok_encode(t, b.data ? b.data : "", b.len, flags, &ids);
        for (size_t i = 0; i < ids.n; i++)
                json_array_append_new(list, json_integer(ids.ids[i]));
        tok_ids_free(&ids);
        buf_free(&b);
        return r < 0 ? json_pack("{si so}", "error", r, "ids", list) : json_pack("{so}", "ids", list);
}

static json_t *decode(const struct tok *t, const json_t *ids, unsigned flags) {
        json_t *pieces = json_array(), *text, *id;
        struct tok_stream s;
        struct buf out = { 0 };
        size_t i, n;
        int r = 0;

        tok_stream_init(&s, t, flags);
        json_array_foreach((json_t *)ids, i, id) {
                const char *p = tok_piece(t, (uint32_t)json_integer_value(id), &n);
                json_array_append_new(pieces, hex(p ? p : "", n));
                if (r == 0)
                        r = tok_stream_push(&s, (uint32_t)json_integer_value(id), &out);
        }
        if (r == 0)
                r = tok_stream_flush(&s, &out);
        text = hex(out.data ? out.data : "", out.len);
        buf_free(&out);
        return r < 0 ? json_pack("{si so so}", "error", r, "pieces", pieces, "text", text)
                     : json_pack("{so so}", "pieces", pieces, "text", text);
}

static int add_word(void *words, const char *p, size_t n) {
        return json_array_append_new(words, hex(p, n));
}

static json_t *split(const char *text, const char *name) {
        struct tok_pre pre = { 0 };
        struct h_error err = { 0 };
        struct buf b = { 0 };
        json_t *words = json_array();
        int r = tok_pre_open(&pre, name, strlen(name), &err);

        unhex(text, &b);
        if (r == 0)
                r = tok_pre_split(&pre, b.data ? b.data : "", b.len, add_word, words);
        tok_pre_free(&pre);
        buf_free(&b);
        return r < 0 ? json_pack("{si ss so}", "error", r, "message", err.message, "words", words)
                     : json_pack("{so}", "words", words);
}

static json_t *info(const struct tok *t) {
        json_t *special = json_array(), *eog = json_array();

        for (unsigned i = 0; i < _TOK_ID_MAX; i++)
                json_array_append_new(special, json_integer(tok_special_id(t, (enum tok_special)i)));
        for (uint32_t i = 0; i < tok_n_vocab(t); i++)
                if (tok_is_eog(t, i))
                        json_array_append_new(eog, json_integer(i));
        return json_pack("{sI so so sI sI}", "n_vocab", (json_int_t)tok_n_vocab(t), "special", special, "eog", eog,
                         "first", (json_int_t)t->first_id, "last", (json_int_t)t->last_id);
}

int main(int argc, char **argv) {
        struct h_error err = { 0 };
        struct gguf *g = NULL;
        struct tok *t = NULL;
        size_t n, cap = 0;
        char *file, *line = NULL;
        int r;

        if (argc != 2 || !(file = read_file(argv[1], &n))) {
                fprintf(stderr, "usage: tok_serve FILE.gguf\n");
                return 64;
        }
        r = gguf_parse(file, n, n, &g, &err);
        if (r == 0)
                r = tok_open(g, &t, &err);
        gguf_free(g);
        free(file);
        if (r < 0 || !t) {
                fprintf(stderr, "%d %s: %s\n", r, hearth_code_name(err.code), err.message);
                return 1;
        }
        while (getline(&line, &cap, stdin) > 0) {
                json_t *q = json_loads(line, 0, NULL), *a;
                unsigned flags = (unsigned)json_integer_value(json_object_get(q, "flags"));
                if (json_object_get(q, "encode"))
                        a = encode(t, json_string_value(json_object_get(q, "encode")), flags);
                else if (json_object_get(q, "split"))
                        a = split(json_string_value(json_object_get(q, "split")), json_string_value(json_object_get(q, "pre")));
                else if (json_object_get(q, "decode"))
                        a = decode(t, json_object_get(q, "decode"), flags);
                else
                        a = info(t);
                json_dumpf(a, stdout, JSON_COMPACT);
                putchar('\n');
                fflush(stdout);
                json_decref(a);
                json_decref(q);
        }
        free(line);
        tok_free(t);
        return 0;
}
