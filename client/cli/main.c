/* SPDX-License-Identifier: Apache-2.0 */
/* The only place that reads the environment; finds the command, sets up the terminal and signals, runs it. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/stdfds.h"
#include "client/cli/cli.h"

static char *directory_of_self(void) {
        char path[PATH_MAX];
        ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
        char *slash;

        if (n <= 0)
                return NULL;
        path[n] = 0;
        slash = strrchr(path, '/');
        if (!slash)
                return NULL;
        *slash = 0;
        return h_strdup(path);
}

static int setup(struct cli *c) {
        c->env = (struct cli_env){ .hearth_socket = getenv("HEARTH_SOCKET"), .xdg_runtime_dir = getenv("XDG_RUNTIME_DIR"),
                                   .xdg_state_home = getenv("XDG_STATE_HOME"), .home = getenv("HOME"),
                                   .no_color = getenv("NO_COLOR"), .term = getenv("TERM") };
        c->out_tty = isatty(STDOUT_FILENO);
        c->err_tty = isatty(STDERR_FILENO);
        c->colour = c->err_tty && !(c->env.no_color && *c->env.no_color) && c->env.term && strcmp(c->env.term, "dumb") != 0;
        c->self_dir = directory_of_self();
        signal(SIGPIPE, SIG_IGN); /* a broken stdout shows as EPIPE: the request is cancelled, then we end */
        sigemptyset(&c->signals);
        sigaddset(&c->signals, SIGINT);
        sigaddset(&c->signals, SIGTERM);
        c->signal_fd = signalfd(-1, &c->signals, SFD_CLOEXEC | SFD_NONBLOCK);
        return c->signal_fd < 0 ? cli_fail(c, EX_OSERR, "signalfd: %s", strerror(errno)) : 0;
}

static const struct cli_command *find_command(const char *name) {
        for (const struct cli_command *const *cmd = cli_commands; *cmd; cmd++)
                if (strcmp((*cmd)->name, name) == 0)
                        return *cmd;
        return NULL;
}

static int unknown_command(struct cli *c, const char *word) {
        const char *names[32], *near;
        size_t n = 0;

        for (const struct cli_command *const *cmd = cli_commands; *cmd && n < ELEMENTSOF(names); cmd++)
                names[n++] = (*cmd)->name;
        near = cli_nearest(word, names, n);
        if (near)
                return cli_fail(c, EX_USAGE, "no command named '%s'. Did you mean %s?", word, near);
        return cli_fail(c, EX_USAGE, "no command named '%s'. All of them: hearth --help. To ask a model: hearth run \"...\"", word);
}

static int run(struct cli *c, int argc, char **argv) {
        int r;

        if (argc < 2) {
                cli_print_overview(stderr);
                return EX_USAGE;
        }
        if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
                c->command = argc > 2 ? find_command(argv[2]) : NULL;
                if (argc > 2 && !c->command)
                        return unknown_command(c, argv[2]);
                if (c->command)
                        cli_print_help(c->command, stdout);
                else
                        cli_print_overview(stdout);
                return cli_flush(c);
        }
        c->command = find_command(strcmp(argv[1], "--version") == 0 ? "version" : argv[1]);
        if (!c->command)
                return unknown_command(c, argv[1]);
        r = cli_parse(c, argc - 2, argv + 2);
        if (r)
                return r;
        if (c->args.help) {
                cli_print_help(c->command, stdout);
                return cli_flush(c);
        }
        return c->command->run(c);
}

int main(int argc, char **argv) {
        struct cli c = { .signal_fd = -1 };
        int r;

        standard_fds_open();
        r = setup(&c);
        if (!r)
                r = run(&c, argc, argv);
        cli_progress_clear(&c);
        hearth_client_unref(c.client);
        fd_close(c.signal_fd);
        free(c.self_dir);
        free(c.socket);
        return r;
}
