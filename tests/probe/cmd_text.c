/* SPDX-License-Identifier: Apache-2.0 */
/* tokenize, detokenize, perplexity, generate: text in or out. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/sample.h"
#include "probe.h"

struct job {
        const struct options *o;
        const struct tok *tok;
};

static int line_error(const char *what, const char *line, size_t n) {
        fprintf(stderr, "hearth-probe: %s: %.*s\n", what, (int)MIN(n, (size_t)80), line);
        return 65;
}

static int hex_value(char c) {
        if (c >= '0' && c <= '9')
                return c - '0';
        c |= 32;
        return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* In place; the number of bytes, or -1. */
static ssize_t unhex(char *s, size_t n) {
        if (n % 2)
                return -1;
        for (size_t i = 0; i < n / 2; i++) {
                int a = hex_value(s[2 * i]), b = hex_value(s[2 * i + 1]);
                if (a < 0 || b < 0)
                        return -1;
                s[i] = (char)(a << 4 | b);
        }
        return (ssize_t)(n / 2);
}

/* ---- tokenize ------------------------------------------------------------------ */

static int tokenize_line(void *ud, const char *line, size_t n) {
        struct job *j = ud;
        json_t *root = json_loadb(line, n, 0, NULL);
        const json_t *hex = json_object_get(root, "hex");
        struct tok_ids ids = { 0 };
        char *text = NULL;
        ssize_t len = -1;
        int r = 0;

        if (json_is_string(hex)) {
                text = h_memdup(json_string_value(hex), json_string_length(hex) + 1);
                len = text ? unhex(text, json_string_length(hex)) : -1;
        }
        if (len < 0)
                r = line_error("a line must be {\"hex\": \"...\"}", line, n);
        else if (tok_encode(j->tok, text, (size_t)len, j->o->no_special ? 0 : TOK_SPECIAL, &ids) < 0)
                r = line_error("can't be tokenized", line, n);
        if (r == 0) {
                putchar('[');
                for (size_t i = 0; i < ids.n; i++)
                        printf("%s%u", i ? ", " : "", ids.ids[i]);
                puts("]");
        }
        tok_ids_free(&ids);
        free(text);
        json_decref(root);
        return r;
}

/* ---- detokenize ------------------------------------------------------------------ */

static int detokenize_line(void *ud, const char *line, size_t n) {
        struct job *j = ud;
        json_t *root = json_loadb(line, n, 0, NULL);
        const json_t *ids = json_object_get(root, "ids");
        struct buf out = { 0 };
        int r = 0;

        /* The tokens' own bytes, which may be cut inside a character; text for people goes through tok_stream. */
        if (!json_is_array(ids))
                r = line_error("a line must be {\"ids\": [...]}", line, n);
        for (size_t i = 0; r == 0 && i < json_array_size(ids); i++) {
                json_int_t id = json_integer_value(json_array_get(ids, i));
                size_t len = 0;
                const char *p = id >= 0 && id < tok_n_vocab(j->tok) ? tok_piece(j->tok, (uint32_t)id, &len) : NULL;
                if (id < 0 || id >= tok_n_vocab(j->tok))
                        r = line_error("an id is outside the vocabulary", line, n);
                else if (buf_append(&out, p, len) < 0)
                        r = 71;
        }
        if (r == 0) {
                printf("{\"hex\": \"");
                for (size_t i = 0; i < out.len; i++)
                        printf("%02x", (unsigned char)out.data[i]);
                puts("\"}");
        }
        buf_free(&out);
        json_decref(root);
        return r;
}

static int with_tokenizer(const struct options *o, int (*fn)(void *ud, const char *line, size_t n)) {
        struct probe p = { 0 };
        struct job j = { .o = o };
        int r = probe_open_text(o, &p, &j.tok);

        if (r == 0)
                r = for_each_line(o->jsonl, fn, &j);
        probe_close_text(&p, j.tok);
        return r;
}

int cmd_tokenize(const struct options *o) {
        return with_tokenizer(o, tokenize_line);
}

int cmd_detokenize(const struct options *o) {
        return with_tokenizer(o, detokenize_line);
}

/* ---- perplexity -------------------------------------------------------------------- */

struct score {
        const uint32_t *ids; /* of the window */
        uint32_t n, n_vocab;
        double nll;
        uint64_t scored;
};

/* Natural logarithm of the probability given to the token that came. */
static int score_row(void *ud, uint32_t pos, const float *logits) {
        struct score *s = ud;
        float max;

        if (pos + 1 >= s->n)
                return 0;
        max = vec_max(logits, s->n_vocab);
        s->nll += sample_norm(max, vec_mass(logits, s->n_vocab, max, 1, NULL)) - (double)logits[s->ids[pos + 1]];
        s->scored++;
        return 0;
}

static int windows(const struct options *o, struct probe *p, const struct tok_ids *ids) {
        uint32_t n_windows = (uint32_t)(ids->n / o->window), chunk = o->chunk ? o->chunk : 256;
        struct eng_limits l = { .n_places = 1, .n_ctx = o->window, .n_rows = MAX(chunk, 2u), .n_outputs = chunk, .kv = o->kv };
        struct score s = { .n = o->window, .n_vocab = eng_model_info(p->model)->n_vocab };
        int r = probe_context(p, &l);

        if (o->n_windows)
                n_windows = MIN(n_windows, o->n_windows);
        for (uint32_t w = 0; r == 0 && w < n_windows; w++) {
                eng_seq seq;
                s.ids = ids->ids + (size_t)w * o->window;
                if (eng_seq_new(p->context, &seq) < 0)
                        return 70;
                r = feed(p, o, seq, s.ids, o->window, ENG_ROLE_PROMPT, true, score_row, &s);
                eng_seq_free(p->context, seq);
        }
        if (r)
                return r;
        if (s.scored == 0) {
                fprintf(stderr, "hearth-probe: the text has %zu tokens, a window takes %u\n", ids->n, o->window);
                return 65;
        }
        printf("{\"perplexity\": %.6f, \"nll\": %.8f, \"tokens\": %llu, \"windows\": %u}\n", exp(s.nll / (double)s.scored),
               s.nll / (double)s.scored, (unsigned long long)s.scored, n_windows);
        return 0;
}

int cmd_perplexity(const struct options *o) {
        struct probe p = { 0 };
        struct buf text = { 0 };
        struct tok_ids ids = { 0 };
        int r;

        if (!o->text_file || o->window < 2) {
                fprintf(stderr, "hearth-probe: --text-file and a --window of 2 or more are needed\n");
                return 64;
        }
        r = read_file(o->text_file, &text);
        if (r == 0)
                r = probe_open(o, &p);
        if (r == 0) {
                const struct tok *t = eng_model_tokenizer(p.model);
                if (!t || tok_encode(t, text.data ? text.data : "", text.len, 0, &ids) < 0) {
                        fprintf(stderr, "hearth-probe: the text can't be tokenized by this model\n");
                        r = 65;
                } else {
                        r = windows(o, &p, &ids);
                }
                probe_close(&p);
        }
        tok_ids_free(&ids);
        buf_free(&text);
        return r;
}

/* ---- generate ------------------------------------------------------------------------ */

static int continue_text(const struct options *o, struct probe *p, const struct tok *t, const struct tok_ids *ids) {
        struct eng_limits l = { .n_places = 1, .n_ctx = (uint32_t)ids->n + o->n, .kv = o->kv };
        struct greedy k = { .n_vocab = eng_model_info(p->model)->n_vocab };
        struct tok_stream s;
        struct buf out = { 0 };
        eng_seq seq;
        int r = probe_context(p, &l);

        if (r || eng_seq_new(p->context, &seq) < 0)
                return r ? r : 70;
        tok_stream_init(&s, t, 0);
        r = feed(p, o, seq, ids->ids, (uint32_t)ids->n, ENG_ROLE_PROMPT, false, greedy_take, &k);
        for (uint32_t i = 0; r == 0 && i + 1 < o->n && !tok_is_eog(t, k.id); i++) {
                uint32_t id = k.id;
                if (tok_stream_push(&s, id, &out) < 0)
                        r = 71;
                fwrite(out.data, 1, out.len, stdout);
                buf_clear(&out);
                if (r == 0)
                        r = feed(p, o, seq, &id, 1, ENG_ROLE_GENERATED, false, greedy_take, &k);
        }
        if (tok_stream_flush(&s, &out) >= 0 && out.len)
                fwrite(out.data, 1, out.len, stdout);
        putchar('\n');
        buf_free(&out);
        return r;
}

int cmd_generate(const struct options *o) {
        struct probe p = { 0 };
        struct tok_ids ids = { 0 };
        int r;

        if (!o->in) {
                fprintf(stderr, "hearth-probe: --in is missing\n");
                return 64;
        }
        r = probe_open(o, &p);
        if (r == 0) {
                const struct tok *t = eng_model_tokenizer(p.model);
                if (!t || tok_encode(t, o->in, strlen(o->in), TOK_BOS | (o->no_special ? 0 : TOK_SPECIAL), &ids) < 0 ||
                    ids.n == 0) {
                        fprintf(stderr, "hearth-probe: the text can't be tokenized by this model\n");
                        r = 65;
                } else {
                        r = continue_text(o, &p, t, &ids);
                }
                probe_close(&p);
        }
        tok_ids_free(&ids);
        return r;
}
