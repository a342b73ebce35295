/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a model's file holds. The file is untrusted input, so the parser runs in
 * hearth-worker, which has no request's text and no right this user lacks.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/commands.h"

static const enum opt_id options[] = { O_verify, O_json, O_help, O_END };

static int run(struct cli *c) {
        const char *argv[6];
        char *program;
        size_t n = 0;

        if (c->n_words != 1)
                return cli_fail(c, EX_USAGE, "inspect takes one GGUF file");
        program = cli_find_program(c, "../daemon", HEARTH_LIBEXECDIR, "hearth-worker");
        if (!program)
                return cli_fail(c, EX_OSERR, "out of memory");
        argv[n++] = program;
        argv[n++] = "--inspect";
        if (c->args.verify)
                argv[n++] = "--verify";
        if (c->args.json)
                argv[n++] = "--json";
        argv[n++] = c->words[0];
        argv[n] = NULL;
        cli_restore_signals(c);
        execv(program, (char **)argv);
        cli_fail(c, EX_UNAVAILABLE, "%s: %s. It comes with the daemon; install it, or run hearth from the build folder", program,
                 strerror(errno));
        free(program);
        return EX_UNAVAILABLE;
}

const struct cli_command cli_cmd_inspect = {
        .name = "inspect", .synopsis = "FILE", .summary = "a GGUF file's metadata and tensors",
        .options = options, .run = run,
};
