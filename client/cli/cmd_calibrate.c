/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measuring the device. hearth-worker does it by itself, without a daemon: the
 * figures are of the machine, and a daemon at work would only disturb them.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "client/cli/commands.h"

static const enum opt_id options[] = { O_json, O_backend, O_threads, O_quick, O_profile_dir, O_help, O_END };

/* Where one's own daemon looks: options.c of hearthd has the same rule. Made if need be. */
static char *own_dir(struct cli *c) {
        char *dir = NULL;

        if (c->env.xdg_state_home && c->env.xdg_state_home[0] == '/') {
                if (asprintf(&dir, "%s/hearth", c->env.xdg_state_home) < 0)
                        return NULL;
        } else if (c->env.home && c->env.home[0] == '/') {
                if (asprintf(&dir, "%s/.local/state/hearth", c->env.home) < 0)
                        return NULL;
        } else
                return NULL;
        for (char *p = dir + 1; (p = strchr(p, '/')); *p++ = '/') {
                *p = 0;
                (void)mkdir(dir, 0700); /* one that can't be made is missed when the profile is written, with the reason */
        }
        (void)mkdir(dir, 0700);
        return dir;
}

static int run(struct cli *c) {
        _cleanup_(freep) char *own = NULL, *program = NULL;
        const char *argv[10], *dir = c->args.profile_dir;
        char threads[16];
        size_t n = 0;

        if (c->n_words)
                return cli_fail(c, EX_USAGE, "calibrate takes no words; `hearth calibrate --help` lists its options");
        if (c->args.backend && strcmp(c->args.backend, "cpu") != 0 && strcmp(c->args.backend, "cuda") != 0)
                return cli_fail(c, EX_USAGE, "--backend is cpu or cuda, not '%s'", c->args.backend);
        if (!dir) {
                dir = own = own_dir(c);
                if (!dir)
                        return cli_fail(c, EX_USAGE, "neither XDG_STATE_HOME nor HOME says where the profile goes; --profile-dir DIR does");
        }
        program = cli_find_program(c, "../daemon", HEARTH_LIBEXECDIR, "hearth-worker");
        if (!program)
                return cli_fail(c, EX_OSERR, "out of memory");
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
        argv[n++] = dir;
        argv[n] = NULL;
        cli_restore_signals(c);
        execv(program, (char **)argv);
        return cli_fail(c, EX_UNAVAILABLE, "%s: %s. It comes with the daemon; install it, or run hearth from the build folder", program,
                        strerror(errno));
}

const struct cli_command cli_cmd_calibrate = {
        .name = "calibrate", .synopsis = "", .summary = "measure the device and keep its profile",
        .details = "Measures how fast the card, or the processor, reads its memory, copies, and multiplies with weights of each type, prints the "
                   "table and writes it as card-profile-cuda.json or card-profile-cpu.json. A daemon that finds the profile expects a model's speed "
                   "by it (`hearth load` shows what is expected). It holds for one card, driver and build of hearth-worker; for another it is not "
                   "used, and the daemon's log says so. It changes no answer.\n\n"
                   "Every product is first compared with the weights decoded in full; one that is wrong ends it with an error, and nothing is "
                   "written.\n\n"
                   "It takes a minute or two and most of the machine, and needs some GB of the card's memory: run it while no model answers, since "
                   "other work makes the figures too low. The profile goes to $XDG_STATE_HOME/hearth or ~/.local/state/hearth, where one's own daemon "
                   "looks. For the system's:\n\n"
                   "  sudo hearth calibrate --profile-dir /var/lib/hearth",
        .options = options, .run = run,
};
