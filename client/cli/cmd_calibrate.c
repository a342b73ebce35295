/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measuring the device. hearth-worker does it by itself, without a daemon: the
 * figures are of the machine, and a daemon at work would only disturb them.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "client/cli/commands.h"

static const enum opt_id options[] = { O_json, O_backend, O_threads, O_types, O_quick, O_profile_dir, O_help, O_END };

static int run(struct cli *c) {
        _cleanup_(freep) char *own = NULL;
        const char *argv[12], *dir = c->args.profile_dir;
        char threads[16];
        size_t n = 0;

        if (c->n_words)
                return cli_fail(c, EX_USAGE, "calibrate takes no words; `hearth calibrate --help` lists its options");
        if (c->args.backend && strcmp(c->args.backend, "cpu") != 0 && strcmp(c->args.backend, "cuda") != 0)
                return cli_fail(c, EX_USAGE, "--backend is cpu or cuda, not '%s'", c->args.backend);
        if (dir && !*dir)
                return cli_fail(c, EX_USAGE, "--profile-dir takes a directory, not ''");
        if (dir && dir[0] == '-') { /* the worker would take it for an option */
                if (asprintf(&own, "./%s", dir) < 0)
                        return cli_fail(c, EX_OSERR, "out of memory");
                dir = own;
        }
        if (!dir) {
                dir = own = cli_state_dir(c); /* options.c of hearthd has the same rule */
                if (!dir)
                        return cli_fail(c, EX_USAGE, "neither XDG_STATE_HOME nor HOME says where the profile goes; --profile-dir DIR does");
        }
        argv[n++] = "hearth"; /* its messages are ours */
        argv[n++] = "--calibrate";
        if (c->args.json)
                argv[n++] = "--json";
        if (c->args.quick)
                argv[n++] = "--quick";
        if (c->args.backend) {
                argv[n++] = "--backend";
                argv[n++] = c->args.backend;
        }
        if (c->args.has_threads) {
                snprintf(threads, sizeof(threads), "%u", c->args.threads);
                argv[n++] = "--threads";
                argv[n++] = threads;
        }
        if (c->args.types) {
                argv[n++] = "--types";
                argv[n++] = c->args.types;
        }
        argv[n++] = dir;
        argv[n] = NULL;
        return cli_exec_worker(c, argv);
}

const struct cli_command cli_cmd_calibrate = {
        .name = "calibrate", .synopsis = "", .summary = "measure the device and keep its profile",
        .details = "Measures how fast the card, or the processor, reads its memory, copies, and multiplies with weights of each type, prints the "
                   "table and writes it as card-profile-cuda.json or card-profile-cpu.json. A daemon that finds the profile expects a model's speed "
                   "by it (`hearth load` shows what is expected). It holds for one card, driver and build of hearth-worker; for another it is not "
                   "used, and the daemon's log says so. It changes no answer: where there are several ways to launch a product, those that give "
                   "the same bits are timed, each after its result was compared, and the profile says which one is used.\n\n"
                   "Every product is first compared with the weights decoded in full; one that is wrong ends it with an error, and nothing is "
                   "written.\n\n"
                   "It takes a few minutes and most of the machine, and needs some GB of the card's memory: run it while no model answers, since "
                   "other work makes the figures too low. --types measures only those that your models have (`hearth inspect` lists them); of others "
                   "nothing is expected then, and they are launched the plain way. The profile goes to $XDG_STATE_HOME/hearth or ~/.local/state/hearth, where one's own daemon "
                   "looks. For the system's:\n\n"
                   "  sudo hearth calibrate --profile-dir /var/lib/hearth",
        .options = options, .run = run,
};
