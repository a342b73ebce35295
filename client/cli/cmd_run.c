/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/alloc.h"
#include "client/cli/commands.h"

static const enum opt_id options[] = { O_model, O_system, O_raw, O_special, O_no_bos, O_json, O_tools, O_template_vars,
                                       CLI_SAMPLING_OPTIONS, CLI_COMMON_OPTIONS, O_END };

/* Is the only word a model or the prompt? The daemon knows its models. */
struct guess { struct cli *cli; bool done, is_model; int status; const char *word; };

static void on_models(void *ud, hearth_call *call, const struct hearth_result *r) {
        struct guess *g = ud;
        const char *near, **names;

        g->done = true;
        if (r->error) {
                g->status = cli_report(g->cli, r->error);
                return;
        }
        names = h_calloc(r->n_models + 1, sizeof(*names));
        if (!names) {
                g->status = cli_fail(g->cli, EX_OSERR, "out of memory");
                return;
        }
        for (size_t i = 0; i < r->n_models; i++) {
                names[i] = r->models[i]->name;
                if (strcmp(names[i], g->word) == 0)
                        g->is_model = true;
        }
        /* With text on stdin a misspelt model must not become an instruction. */
        near = cli_nearest(g->word, names, r->n_models);
        if (!g->is_model && near && !strchr(g->word, ' '))
                g->status = cli_fail(g->cli, EX_NOINPUT, "no model named \"%s\". Did you mean %s? (--model NAME or a second argument says what is what)",
                                     g->word, near);
        free(names);
}

static int guess_model(struct cli *c, const char *word, bool *ret) {
        static const struct hearth_events events = { .size = sizeof(events), .done = on_models };
        struct guess g = { .cli = c, .word = word };
        int r;

        *ret = cli_is_path(word) && !strchr(word, ' ');
        if (*ret)
                return 0;
        r = cli_connect(c, CLI_START);
        if (r)
                return r;
        r = hearth_models(c->client, &events, &g, NULL);
        if (r < 0)
                return cli_request_failed(c, r);
        r = cli_wait(c, &g.done);
        if (!r)
                r = g.status;
        *ret = g.is_model;
        return r;
}

static int add_words(struct buf *b, char **words, size_t n) {
        int r = 0;
        for (size_t i = 0; i < n && r == 0; i++) {
                if (i)
                        r = buf_putc(b, ' ');
                if (r == 0)
                        r = buf_puts(b, words[i]);
        }
        return r;
}

/* [MODEL] [PROMPT...] and stdin to a model's name and a prompt. */
static int gather(struct cli *c, const char **ret_model, struct buf *prompt) {
        struct buf input = {};
        size_t first = 0;
        bool piped = cli_stdin_has_data();
        int r;

        *ret_model = c->args.model;
        if (!*ret_model && c->n_words >= 2)
                *ret_model = c->words[first++];
        else if (!*ret_model && c->n_words == 1) {
                bool is_model;
                r = guess_model(c, c->words[0], &is_model);
                if (r)
                        return r;
                if (is_model)
                        *ret_model = c->words[first++];
        }
        if (add_words(prompt, c->words + first, c->n_words - first) < 0)
                return cli_fail(c, EX_DATAERR, "the prompt is too long for a request");
        if (piped || (prompt->len == 0 && !isatty(STDIN_FILENO))) {
                r = cli_read_file(c, "-", &input);
                if (r) {
                        buf_free(&input);
                        return r;
                }
                /* The instruction first: what it speaks of follows. */
                r = 0;
                if (input.len > 0 && prompt->len > 0)
                        r = buf_puts(prompt, "\n\n");
                if (r == 0)
                        r = buf_append(prompt, input.data, input.len);
                buf_free(&input);
                if (r < 0)
                        return cli_fail(c, EX_DATAERR, "the prompt is too long for a request");
        }
        if (prompt->len == 0)
                return cli_fail(c, EX_USAGE, "no prompt: give it as an argument, on standard input, or both. For a conversation: hearth chat");
        return 0;
}

static int run(struct cli *c) {
        struct cli_answer a = { .cli = c, .json = c->args.json, .newline_at_end = !c->args.raw };
        struct cli_generate_files files = {};
        struct cli_source source = {};
        struct hearth_generate g;
        struct buf prompt = { .limit = 15 << 20 };
        int r;

        if (c->args.raw && (c->args.system || c->args.tools || c->args.template_vars))
                return cli_fail(c, EX_USAGE, "--raw leaves the chat template out, so --system, --tools and --template-vars have no place");
        r = cli_fill_generate(c, &g, &files);
        if (!r)
                r = gather(c, &a.model, &prompt);
        if (!r)
                r = cli_open_source(c, a.model, &source);
        if (!r)
                r = cli_connect(c, CLI_START);
        if (!r) {
                g.model = source.src;
                g.kind = c->args.raw ? HEARTH_COMPLETE : HEARTH_CHAT;
                g.prompt = prompt.data;
                g.n_prompt = prompt.len;
                g.system = c->args.system;
                g.special = c->args.special;
                g.no_bos = c->args.no_bos;
                r = cli_answer(c, &g, &a);
        }
        cli_source_close(&source);
        cli_generate_files_free(&files);
        buf_free(&prompt);
        return r;
}

const struct cli_command cli_cmd_run = {
        .name = "run", .synopsis = "[MODEL] [PROMPT...]", .summary = "answer one prompt, streaming",
        .details = "The prompt is the argument, standard input, or both: first the argument, then what was piped in. "
                   "Without MODEL the daemon's default is taken. MODEL may be the path of a GGUF file.\n\n"
                   "  hearth run smollm2 \"Name three colours.\"\n"
                   "  git diff | hearth run smollm2 \"Write a commit message.\"",
        .options = options, .run = run, .models = true,
};
