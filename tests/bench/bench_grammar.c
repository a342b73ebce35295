/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a mask costs with a real vocabulary: an answer is read token by token
 * under a schema or grammar, and before each token the mask is asked for, with
 * and without a limit of tokens. Processor time, microseconds: median, 95%, the
 * most, the mean; and the time to compile.
 *
 *   bench_grammar FILE.gguf
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "engine/gguf.h"
#include "engine/text/grammar.h"
#include "tests/bench/bench.h"

#define MOST 4096

static double now(void) {
        struct timespec t;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
        return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void bench(const struct tok *t, const struct grammar_vocab *v, const char *name, bool gbnf, const char *src, const char *answer, uint64_t left) {
        size_t words = DIV_ROUND_UP((size_t)tok_n_vocab(t), 64), n = 0;
        _cleanup_(freep) uint64_t *mask = h_new0(uint64_t, words);
        struct grammar *g = NULL;
        struct grammar_state *s = NULL;
        struct tok_ids ids = { 0 };
        struct h_error err = { 0 };
        static double us[MOST];
        double compile = now(), sum = 0;
        int r = mask ? 0 : -ENOMEM;

        if (r == 0)
                r = gbnf ? grammar_from_gbnf(src, strlen(src), &g, &err) : grammar_from_json_schema(src, strlen(src), &g, &err);
        compile = now() - compile;
        if (r == 0)
                r = grammar_state_new(g, v, &s);
        if (r == 0)
                r = tok_encode(t, answer, strlen(answer), 0, &ids);
        for (size_t i = 0; r == 0 && i < ids.n && n < MOST; i++) {
                double start = now();
                r = grammar_state_mask_within(s, &(struct grammar_limit){ .left = left ? left - i : 0 }, mask);
                us[n++] = now() - start;
                sum += us[n - 1];
                if (r == 0 && !(mask[ids.ids[i] / 64] >> (ids.ids[i] % 64) & 1))
                        r = -EINVAL;
                if (r == 0)
                        r = grammar_state_accept(s, ids.ids[i]);
        }
        if (r < 0 || n == 0) {
                printf("%-26s error %d after %zu tokens: %s\n", name, r, n, err.message);
        } else {
                qsort(us, n, sizeof(*us), bench_compare);
                printf("%-26s %-8s %4zu masks  median %7.0f  95%% %7.0f  most %7.0f  mean %7.0f us;  compiled in %.0f us\n", name,
                       left ? "limited" : "", n, us[n / 2], us[n * 95 / 100], us[n - 1], sum / (double)n, compile);
        }
        fflush(stdout);
        grammar_state_free(s);
        grammar_free(g);
        tok_ids_free(&ids);
}

int main(int argc, char **argv) {
        static const struct { const char *name; bool gbnf; const char *src, *answer; } cases[] = {
                { "any JSON", false, "{}", "{\"title\": \"A walk in the park\", \"tags\": [\"green\", \"quiet\"], \"count\": 12.5, \"more\": {\"a\": null, \"b\": [true, false]}}" },
                { "a record", false,
                  "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 60}, \"age\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 150},"
                  "\"email\": {\"type\": \"string\", \"format\": \"email\"}, \"born\": {\"type\": \"string\", \"format\": \"date\"},"
                  "\"hobbies\": {\"type\": \"array\", \"items\": {\"type\": \"string\"}, \"maxItems\": 8}}, \"required\": [\"name\", \"age\", \"hobbies\"], \"additionalProperties\": false}",
                  "{\"name\": \"Ada Lovelace, Countess\", \"age\": 36, \"born\": \"1815-12-10\", \"email\": \"ada@analytical.example.org\", \"hobbies\": [\"mathematics\", \"playing the harp\", \"riding\"]}" },
                { "an enum of tools", false,
                  "{\"anyOf\": [{\"type\": \"object\", \"properties\": {\"tool\": {\"const\": \"search\"}, \"query\": {\"type\": \"string\"}, \"n\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 50}}, \"required\": [\"tool\", \"query\"]},"
                  "{\"type\": \"object\", \"properties\": {\"tool\": {\"const\": \"open\"}, \"url\": {\"type\": \"string\", \"format\": \"uri\"}}, \"required\": [\"tool\", \"url\"]},"
                  "{\"type\": \"object\", \"properties\": {\"tool\": {\"const\": \"answer\"}, \"text\": {\"type\": \"string\"}}, \"required\": [\"tool\", \"text\"]}]}",
                  "{\"tool\": \"open\", \"url\": \"https://www.example.org/a/long/path?with=query&and=more#here\"}" },
                { "long text under a pattern", false, "{\"type\": \"string\", \"pattern\": \"^[A-Z][a-z ,.]*\\\\.$\"}",
                  "\"The quick brown fox jumps over the lazy dog, and then it sleeps for a long while in the shade of the tree.\"" },
                { "a list in GBNF", true, "root ::= item+\nitem ::= \"- \" [^\\n]+ \"\\n\"", "- the first thing to do\n- another one, a little longer than the first\n- last\n" },
        };
        _cleanup_(buf_free) struct buf file = { 0 };
        struct grammar_vocab *v = NULL;
        struct gguf *g = NULL;
        struct tok *t = NULL;
        struct h_error err = { 0 };
        double start;
        int r;

        if (argc != 2) {
                fprintf(stderr, "usage: bench_grammar FILE.gguf\n");
                return 64;
        }
        r = bench_read_file(argv[1], &file);
        if (r == 0)
                r = gguf_parse((const uint8_t *)file.data, file.len, file.len, &g, &err);
        if (r == 0)
                r = tok_open(g, &t, &err);
        start = now();
        if (r == 0)
                r = grammar_vocab_new(t, &v, &err);
        if (r < 0) {
                fprintf(stderr, "%s: %s\n", argv[1], err.code ? err.message : strerror(-r));
                return 66;
        }
        printf("%u tokens; their tree made in %.0f us\n", tok_n_vocab(t), now() - start);
        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                for (uint64_t left = 0; left <= 4000; left += 4000)
                        bench(t, v, cases[i].name, cases[i].gbnf, cases[i].src, cases[i].answer, left);
        grammar_vocab_free(v);
        tok_free(t);
        gguf_free(g);
        return 0;
}
