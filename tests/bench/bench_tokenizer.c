/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time to open a vocabulary and to encode a megabyte, for ordinary text and for
 * text meant to be slow: runs of one character, of combining marks, of beginnings
 * of special tokens. Each figure is the best and the median of several runs, in processor time.
 *
 *   bench_tokenizer FILE.gguf [TEXT_FILE]
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "engine/gguf.h"
#include "engine/text/tokenizer.h"
#include "tests/bench/bench.h"

#define MEGABYTE ((size_t)1 << 20)
#define RUNS 7

static double now(void) {
        struct timespec t;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* one thread: what others do to the machine stays out of it */
        return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void bench(const struct tok *t, const char *name, const char *unit, size_t n_unit, const char *end) {
        struct buf b = { 0 };
        double ms[RUNS];
        size_t n_ids = 0;
        int r = 0;

        while (b.len + n_unit <= MEGABYTE && buf_append(&b, unit, n_unit) == 0)
                ;
        if (buf_puts(&b, end) < 0)
                return;
        for (unsigned i = 0; i < RUNS && r == 0; i++) {
                struct tok_ids ids = { 0 };
                double start = now();
                r = tok_encode(t, b.data, b.len, TOK_SPECIAL, &ids);
                ms[i] = now() - start;
                n_ids = ids.n;
                tok_ids_free(&ids);
        }
        if (r < 0)
                printf("%-26s error %d\n", name, r);
        else {
                qsort(ms, RUNS, sizeof(*ms), bench_compare);
                printf("%-26s %9zu bytes %8zu tokens  best %8.1f ms  median %8.1f ms\n", name, b.len, n_ids, ms[0],
                       ms[RUNS / 2]);
        }
        fflush(stdout);
        buf_free(&b);
}

int main(int argc, char **argv) {
        static const struct { const char *name, *unit, *end; } texts[] = {
                { "one letter", "a", "" },
                { "one capital", "A", "1" },
                { "spaces", " ", "x" },
                { "spaces, then CJK", " ", "\xe4\xb8\xad" },
                { "newlines", "\n", "" },
                { "spaces and newlines", "    \n", "x" },
                { "digits", "7", "" },
                { "less-than", "<", "" },
                { "<|", "<|", "" },
                { "<|im_star", "<|im_star", "" },
                { "combining marks", "\xcc\x81\xcc\xa7", "" },
                { "e, then combining marks", "e\xcc\x81\xcc\xa7\xcc\x82\xcc\xa3", "" },
                { "CJK", "\xe4\xb8\xad\xe6\x96\x87", "" },
                { "Hangul jamo", "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "" },
                { "emoji", "\xf0\x9f\x98\x80\xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd", "" },
                { "invalid bytes", "\xff\xfe\x80", "" },
                { "punctuation", "!?-=", "" },
                { "apostrophes", "'s're'", "" },
                { "letters and spaces", "a ", "" },
                { "alternating case", "aB", "" },
                { "NUL", "", "" },
        };
        struct buf file = { 0 }, text = { 0 };
        struct h_error err = { 0 };
        struct gguf *g = NULL;
        struct tok *t = NULL;
        double start, ms[RUNS];
        int r;

        if (argc < 2 || bench_read_file(argv[1], &file) < 0 || (argc > 2 && bench_read_file(argv[2], &text) < 0)) {
                fprintf(stderr, "usage: bench_tokenizer FILE.gguf [TEXT_FILE]\n");
                return 64;
        }
        r = gguf_parse(file.data, file.len, file.len, &g, &err);
        for (unsigned i = 0; i < RUNS && r == 0; i++) {
                t = tok_free(t);
                start = now();
                r = tok_open(g, &t, &err);
                ms[i] = now() - start;
        }
        if (r < 0 || !t) {
                fprintf(stderr, "%s: %s\n", hearth_code_name(err.code), err.message);
                return 1;
        }
        qsort(ms, RUNS, sizeof(*ms), bench_compare);
        printf("open: %u tokens, best %.1f ms, median %.1f ms\n", tok_n_vocab(t), ms[0], ms[RUNS / 2]);
        if (text.len > 0)
                bench(t, "text file, repeated", text.data, text.len, "");
        for (size_t i = 0; i < ELEMENTSOF(texts); i++)
                bench(t, texts[i].name, texts[i].unit, MAX(strlen(texts[i].unit), (size_t)1), texts[i].end);
        buf_free(&file);
        buf_free(&text);
        tok_free(t);
        gguf_free(g);
        return 0;
}
