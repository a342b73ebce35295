/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "client/cli/commands.h"

static const enum opt_id options[] = { O_model, O_system, O_raw, O_special, O_no_bos, O_json, O_tools, O_template_vars,
                                       CLI_SAMPLING_OPTIONS, CLI_COMMON_OPTIONS, O_END };

/* Is the only word a model or the prompt? The daemon knows its models. */
static int guess_model(struct cli *c, struct cli_models *models, const char *word, bool *ret) {
        const char *near;
        int r;

        *ret = cli_is_path(word) && !strchr(word, ' ');
        if (*ret)
                return 0;
        r = cli_models_fetch(c, models);
        if (r)
                return r;
        *ret = cli_models_has(models, word);
        /* With text on stdin a misspelt model must not become an instruction. */
        near = cli_nearest(word, (const char *const *)models->names, models->n);
        if (!*ret && near && !strchr(word, ' '))
                return cli_fail(c, EX_NOINPUT, "no model named \"%s\". Did you mean %s? (--model NAME or a second argument says what is what)",
                                word, near);
        return 0;
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
static int gather(struct cli *c, struct cli_models *models, const char **ret_model, struct buf *prompt) {
        struct buf input = {};
        size_t first = 0;
        bool piped = cli_stdin_has_data();
        int r;

        *ret_model = c->args.model;
        if (!*ret_model && c->n_words >= 2)
                *ret_model = c->words[first++];
        else if (!*ret_model && c->n_words == 1) {
                bool is_model;
                r = guess_model(c, models, c->words[0], &is_model);
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
        return *ret_model ? 0 : cli_pick_model(c, models, ret_model);
}

static int run(struct cli *c) {
        struct cli_answer a = { .cli = c, .json = c->args.json, .newline_at_end = !c->args.raw };
        struct cli_generate_files files = {};
        struct cli_source source = {};
        struct cli_models models = {};
        struct hearth_generate g;
        struct buf prompt = { .limit = 15 << 20 };
        int r;

        if (c->args.raw && (c->args.system || c->args.tools || c->args.template_vars))
                return cli_fail(c, EX_USAGE, "--raw leaves the chat template out, so --system, --tools and --template-vars have no place");
        r = cli_fill_generate(c, &g, &files);
        if (!r)
                r = gather(c, &models, &a.model, &prompt);
        if (!r)
                r = cli_open_source(c, a.model, &source);
        if (!r)
                r = cli_connect(c, CLI_START);
        if (!r) {
                g.model = source.src;
                g.kind = c->args.raw ? HEARTH_COMPLETE : HEARTH_CHAT;
                g.exact = true; /* one question, one answer: it may not depend on what was answered before */
                g.prompt = prompt.data;
                g.n_prompt = prompt.len;
                g.system = c->args.system;
                g.special = c->args.special;
                g.no_bos = c->args.no_bos;
                r = cli_answer(c, &g, &a);
        }
        cli_source_close(&source);
        cli_generate_files_free(&files);
        cli_models_free(&models);
        buf_free(&prompt);
        return r;
}

const struct cli_command cli_cmd_run = {
        .name = "run", .synopsis = "[MODEL] [PROMPT...]", .summary = "answer one prompt, streaming",
        .details = "The prompt is the argument, standard input, or both: first the argument, then what was piped in. "
                   "Without MODEL the only model there is, or the daemon's default, is taken. MODEL may be the path of a GGUF file.\n\n"
                   "  hearth run smollm2 \"Name three colours.\"\n"
                   "  git diff | hearth run smollm2 \"Write a commit message.\"",
        .options = options, .run = run, .models = true,
};
