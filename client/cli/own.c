/* SPDX-License-Identifier: Apache-2.0 */
/* What is this installation's and this user's own: the worker program, and the folder that outlives a run. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "client/cli/cli.h"

char *cli_state_dir(struct cli *c) {
        char *dir = NULL;

        if (c->env.xdg_state_home && c->env.xdg_state_home[0] == '/') {
                if (asprintf(&dir, "%s/hearth", c->env.xdg_state_home) < 0)
                        return NULL;
        } else if (c->env.home && c->env.home[0] == '/') {
                if (asprintf(&dir, "%s/.local/state/hearth", c->env.home) < 0)
                        return NULL;
        } else
                return NULL;
        /* One that can't be made is missed where something is written into it, with the reason. */
        for (char *p = dir + 1; (p = strchr(p, '/')); *p++ = '/') {
                *p = 0;
                (void)mkdir(dir, 0700);
        }
        (void)mkdir(dir, 0700);
        return dir;
}

int cli_exec_worker(struct cli *c, const char *const *argv) {
        _cleanup_(freep) char *program = cli_find_program(c, "../daemon", HEARTH_LIBEXECDIR, "hearth-worker");

        if (!program)
                return cli_fail(c, EX_OSERR, "out of memory");
        cli_restore_signals(c);
        execv(program, (char **)argv);
        return cli_fail(c, EX_UNAVAILABLE, "%s: %s. It comes with the daemon; install it, or run hearth from the build folder", program,
                        strerror(errno));
}
