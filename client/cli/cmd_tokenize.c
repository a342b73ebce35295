/* SPDX-License-Identifier: Apache-2.0 */
/* tokenize, detokenize and embed. */
#include <ctype.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "base/alloc.h"
#include "base/shown.h"
#include "client/cli/commands.h"

static const enum opt_id tokenize_options[] = { O_model, O_special, O_bos, O_json, CLI_COMMON_OPTIONS, O_END };
static const enum opt_id detokenize_options[] = { O_model, O_special, CLI_COMMON_OPTIONS, O_END };
static const enum opt_id embed_options[] = { O_model, O_not_normalized, O_json, CLI_COMMON_OPTIONS, O_END };

/* The text of the words, or of standard input if there are none. */
static int words_or_stdin(struct cli *c, size_t first, struct buf *ret) {
        int r = 0;

        if (first >= c->n_words)
                return cli_read_file(c, "-", ret);
        for (size_t i = first; i < c->n_words && r == 0; i++) {
                if (i > first)
                        r = buf_putc(ret, ' ');
                if (r == 0)
                        r = buf_puts(ret, c->words[i]);
        }
        return r < 0 ? cli_fail(c, EX_OSERR, "out of memory") : 0;
}

static int show_ids(struct cli *c, const struct hearth_result *r) {
        const struct hearth_ids *ids = r->ids;

        if (!c->args.json) {
                for (size_t i = 0; i < ids->n; i++)
                        printf("%s%u", i ? " " : "", ids->ids[i]);
                putchar('\n');
                return 0;
        }
        putchar('[');
        for (size_t i = 0; i < ids->n; i++) {
                if (ids->n_pieces == ids->n) {
                        json_t *s = json_string(ids->pieces[i]);
                        char *text = json_dumps(s, JSON_ENCODE_ANY);
                        printf("%s{\"id\":%u,\"text\":", i ? "," : "", ids->ids[i]);
                        if (text)
                                shown_write(stdout, text, strlen(text), SIZE_MAX, SHOWN_JSON);
                        fputs(text ? "}" : "null}", stdout);
                        free(text);
                        json_decref(s);
                } else
                        printf("%s{\"id\":%u}", i ? "," : "", ids->ids[i]);
        }
        puts("]");
        return 0;
}

static int run_tokenize(struct cli *c) {
        struct cli_simple s = { .cli = c, .show = show_ids };
        struct cli_source source = {};
        struct buf text = {};
        size_t first = 0;
        const char *model = c->args.model;
        int r;

        if (!model && c->n_words > 0)
                model = c->words[first++];
        r = words_or_stdin(c, first, &text);
        if (!r)
                r = cli_open_source(c, model, &source);
        if (!r)
                r = cli_connect(c, CLI_START);
        if (!r)
                r = cli_simple_wait(c, &s, hearth_tokenize(c->client, &source.src, text.data ? text.data : "", text.len,
                                                           (c->args.special ? HEARTH_SPECIAL : 0) | (c->args.bos ? HEARTH_BOS : 0),
                                                           &cli_simple_events, &s, &c->current));
        cli_source_close(&source);
        buf_free(&text);
        return r;
}

static int parse_ids(struct cli *c, const char *text, struct buf *ret) {
        while (*text) {
                char *end;
                unsigned long long v;
                uint32_t id;

                if (isspace((unsigned char)*text) || *text == ',' || *text == '[' || *text == ']') {
                        text++;
                        continue;
                }
                v = strtoull(text, &end, 10);
                if (!isdigit((unsigned char)*text) || v > UINT32_MAX)
                        return cli_fail(c, EX_DATAERR, "'%.20s' is no token id; numbers separated by blanks or commas are expected", text);
                id = (uint32_t)v;
                if (buf_append(ret, &id, sizeof(id)) < 0)
                        return cli_fail(c, EX_OSERR, "out of memory");
                text = end;
        }
        return 0;
}

static int show_bytes(struct cli *c, const struct hearth_result *r) {
        cli_write_text(c, stdout, r->bytes->data, r->bytes->n);
        if (c->out_tty)
                putchar('\n');
        return 0;
}

static int run_detokenize(struct cli *c) {
        struct cli_simple s = { .cli = c, .show = show_bytes };
        struct cli_source source = {};
        struct buf text = {}, ids = {};
        size_t first = 0;
        const char *model = c->args.model;
        int r;

        if (!model && c->n_words > 0)
                model = c->words[first++];
        r = words_or_stdin(c, first, &text);
        if (!r)
                r = parse_ids(c, text.data ? text.data : "", &ids);
        if (!r)
                r = cli_open_source(c, model, &source);
        if (!r)
                r = cli_connect(c, CLI_START);
        if (!r)
                r = cli_simple_wait(c, &s, hearth_detokenize(c->client, &source.src, (const uint32_t *)(void *)ids.data, ids.len / 4,
                                                             c->args.special ? HEARTH_SPECIAL : 0, &cli_simple_events, &s, &c->current));
        cli_source_close(&source);
        buf_free(&text);
        buf_free(&ids);
        return r;
}

/* One vector a line: JSON arrays, or numbers separated by blanks. */
static int show_vectors(struct cli *c, const struct hearth_result *r) {
        const struct hearth_vectors *v = r->vectors;

        for (uint32_t i = 0; i < v->n; i++) {
                const float *row = v->values + (size_t)i * v->dim;
                if (c->args.json)
                        putchar('[');
                for (uint32_t k = 0; k < v->dim; k++)
                        printf("%s%.9g", k == 0 ? "" : c->args.json ? "," : " ", (double)row[k]);
                puts(c->args.json ? "]" : "");
        }
        return 0;
}

static int run_embed(struct cli *c) {
        struct cli_simple s = { .cli = c, .show = show_vectors };
        struct cli_source source = {};
        struct buf text = {};
        const char **texts = NULL;
        size_t first = 0, n = 0;
        const char *model = c->args.model;
        int r = 0;

        if (!model && c->n_words > 0)
                model = c->words[first++];
        if (first < c->n_words) {
                texts = (const char **)(c->words + first);
                n = c->n_words - first;
        } else {
                r = cli_read_file(c, "-", &text); /* one text a line */
                if (!r && text.len > 0) {
                        size_t lines = 1, at = 0;
                        for (size_t i = 0; i < text.len; i++)
                                lines += text.data[i] == '\n';
                        texts = h_calloc(lines, sizeof(*texts));
                        if (!texts)
                                r = cli_fail(c, EX_OSERR, "out of memory");
                        while (!r && at < text.len) {
                                char *end = memchr(text.data + at, '\n', text.len - at);
                                texts[n++] = text.data + at;
                                at = end ? (size_t)(end - text.data) + 1 : text.len;
                                if (end)
                                        *end = 0;
                        }
                }
        }
        if (!r && n == 0)
                r = cli_fail(c, EX_USAGE, "no text: give texts as arguments, or one a line on standard input");
        if (!r)
                r = cli_open_source(c, model, &source);
        if (!r)
                r = cli_connect(c, CLI_START);
        if (!r)
                r = cli_simple_wait(c, &s, hearth_embed(c->client, &source.src, texts, n,
                                                        c->args.not_normalized ? HEARTH_NOT_NORMALIZED : 0, &cli_simple_events, &s,
                                                        &c->current));
        if (text.data)
                free(texts);
        cli_source_close(&source);
        buf_free(&text);
        return r;
}

const struct cli_command cli_cmd_tokenize = {
        .name = "tokenize", .synopsis = "MODEL [TEXT...]", .summary = "text to token ids",
        .details = "Without TEXT standard input is read. With --model all arguments are text.",
        .options = tokenize_options, .run = run_tokenize, .models = true,
};
const struct cli_command cli_cmd_detokenize = {
        .name = "detokenize", .synopsis = "MODEL [ID...]", .summary = "token ids to text",
        .details = "Without IDs standard input is read.", .options = detokenize_options, .run = run_detokenize, .models = true,
};
const struct cli_command cli_cmd_embed = {
        .name = "embed", .synopsis = "MODEL [TEXT...]", .summary = "texts to vectors, one a line",
        .details = "Each argument is a text; without arguments each line of standard input is one.",
        .options = embed_options, .run = run_embed, .models = true,
};
