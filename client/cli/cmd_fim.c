/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/commands.h"

static const enum opt_id options[] = { O_model, O_suffix, O_suffix_file, O_json, CLI_SAMPLING_OPTIONS, CLI_COMMON_OPTIONS, O_END };

static int run(struct cli *c) {
        struct cli_answer a = { .cli = c, .json = c->args.json };
        struct cli_generate_files files = {};
        struct cli_source source = {};
        struct hearth_generate g;
        struct buf prefix = {}, suffix = {};
        int r;

        a.model = c->args.model;
        if (!a.model && c->n_words > 0)
                a.model = c->words[0];
        if (c->n_words > (c->args.model ? 1u : 2u))
                return cli_fail(c, EX_USAGE, "fim takes a model and at most one file; see hearth fim --help");
        r = cli_fill_generate(c, &g, &files);
        if (!r)
                r = cli_read_file(c, c->n_words > (c->args.model ? 0u : 1u) ? c->words[c->n_words - 1] : "-", &prefix);
        if (!r && c->args.suffix_file)
                r = cli_read_file(c, c->args.suffix_file, &suffix);
        if (!r)
                r = cli_open_source(c, a.model, &source);
        if (!r)
                r = cli_connect(c, CLI_START);
        if (!r) {
                g.model = source.src;
                g.kind = HEARTH_FIM;
                g.exact = true; /* as run */
                g.prefix = prefix.data ? prefix.data : "";
                g.suffix = suffix.data ? suffix.data : c->args.suffix ? c->args.suffix : "";
                r = cli_answer(c, &g, &a);
        }
        cli_source_close(&source);
        cli_generate_files_free(&files);
        buf_free(&prefix);
        buf_free(&suffix);
        return r;
}

const struct cli_command cli_cmd_fim = {
        .name = "fim", .synopsis = "[MODEL] [FILE]", .summary = "fill in the middle: what belongs between two texts",
        .details = "FILE (default: standard input) is the text before the gap; --suffix or --suffix-file gives the text after it. "
                   "The model must know fill-in-the-middle tokens.",
        .options = options, .run = run, .models = true,
};
