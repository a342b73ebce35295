/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reaching a daemon: connect, or start one for this user and wait for its socket.
 * The daemon outlives this program: a session of its own, no terminal, its
 * messages in hearthd.log beside the socket. Two programs may start one at the
 * same time; the daemon's own lock leaves one of them, and both connect to it.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "client/cli/cli.h"
#include "ipc/sockpath.h"

enum { START_TIMEOUT_US = 10000000, START_POLL_US = 5000, AFTER_EXIT_US = 500000, PATIENCE_US = 2000000,
       GIVE_UP_US = 10000000, START_AGAIN_US = 700000 };

static char *join(const char *a, const char *b, const char *name) {
        size_t n = strlen(a) + strlen(b) + strlen(name) + 3;
        char *p = h_malloc(n);
        if (p)
                snprintf(p, n, "%s%s%s/%s", a, *b ? "/" : "", b, name);
        return p;
}

char *cli_find_program(struct cli *c, const char *build_dir, const char *installed_dir, const char *name) {
        char *p;

        if (c->self_dir) {
                p = join(c->self_dir, build_dir, name);
                if (!p || access(p, X_OK) == 0)
                        return p;
                free(p);
                p = join(c->self_dir, "", name);
                if (!p || access(p, X_OK) == 0)
                        return p;
                free(p);
        }
        return join(installed_dir, "", name);
}

static char *log_path(const char *socket) {
        const char *slash = strrchr(socket, '/');
        char *p = NULL;
        if (!slash || asprintf(&p, "%.*s/hearthd.log", (int)(slash - socket), socket) < 0)
                return NULL;
        return p;
}

/* Makes the socket's directory, with the checks that the shared /tmp needs. 0 or exit status. */
static int make_socket_dir(struct cli *c) {
        _cleanup_(freep) char *path = NULL;
        struct h_error err = {};
        int r;

        if (c->args.socket || (c->env.hearth_socket && *c->env.hearth_socket))
                return 0; /* a place of the user's own choice: the daemon says if it does not like it */
        r = sockpath_user(c->env.xdg_runtime_dir, SOCKPATH_CREATE_DIR, &path, &err);
        if (r == -EHEARTH)
                return cli_fail(c, hearth_code_exit(err.code), "%s", err.message);
        return r < 0 ? cli_fail(c, EX_OSERR, "%s", strerror(-r)) : 0;
}

/* Where the daemon's messages go; in memory if they can't go beside the socket, so that a failure can still be told. */
static int open_log(const char *path) {
        int fd = path ? open(path, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600) : -1;

        if (fd < 0) {
                fd = memfd_create("hearthd.log", MFD_CLOEXEC);
                if (fd >= 0)
                        (void)fcntl(fd, F_SETFL, O_APPEND);
        }
        return fd;
}

static void run_daemon(const char *program, const char *socket, int log) {
        sigset_t none;
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);

        if (setsid() < 0 || null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(log >= 0 ? log : null, 2) < 0)
                _exit(EX_OSERR);
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        signal(SIGPIPE, SIG_DFL);
        if (chdir("/") < 0)
                _exit(EX_OSERR);
        execl(program, program, "--user", "--socket", socket, (char *)NULL);
        dprintf(2, "%s: %s\n", program, strerror(errno));
        _exit(EX_UNAVAILABLE);
}

/* The last line the daemon wrote, without its end. */
static void last_line(int log, char *ret, size_t n) {
        struct buf b = {};
        char *line;

        ret[0] = 0;
        if (log >= 0 && lseek(log, 0, SEEK_SET) == 0 && cli_read_fd(log, &b) == 0 && b.len > 0) {
                while (b.len > 0 && b.data[b.len - 1] == '\n')
                        b.data[--b.len] = 0;
                line = strrchr(b.data, '\n');
                snprintf(ret, n, "%s", line ? line + 1 : b.data);
        }
        buf_free(&b);
}

static bool nobody_there(int r) {
        return r == -ENOENT || r == -ECONNREFUSED;
}

/* `hearth ps` shows who asks. */
static int open_connection(struct cli *c) {
        char name[40];
        snprintf(name, sizeof(name), "hearth %.30s", c->command->name);
        return hearth_connect(c->socket, name, &c->client);
}

/* A daemon that restarts is waited for, and what was asked goes on. */
static int survive(struct cli *c) {
        struct hearth_reconnect r;

        hearth_reconnect_init(&r, sizeof(r));
        r.give_up_usec = GIVE_UP_US;
        return hearth_client_set_reconnect(c->client, &r);
}

/*
 * Is the daemon at the other end started exactly as run_daemon() does? Another one (other options, another program, a
 * service manager that holds the socket) would be replaced by one that has other models, in the way of its own return.
 */
static bool started_as_here(struct cli *c) {
        _cleanup_(freep) char *program = cli_find_program(c, "../daemon", HEARTH_BINDIR, "hearthd");
        const char *want[] = { program, "--user", "--socket", c->socket };
        _cleanup_(buf_free) struct buf line = { .limit = 64 << 10 };
        _cleanup_(fd_closep) int fd = -1;
        struct ucred peer;
        socklen_t n = sizeof(peer);
        char path[40];
        size_t at = 0;

        if (!program || getsockopt(hearth_client_get_fd(c->client), SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0 || peer.uid != geteuid())
                return false;
        snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)peer.pid);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || cli_read_fd(fd, &line) != 0)
                return false;
        for (size_t i = 0; i < ELEMENTSOF(want); i++) {
                size_t k = strlen(want[i]) + 1;
                if (line.len - at < k || memcmp(line.data + at, want[i], k) != 0)
                        return false;
                at += k;
        }
        return at == line.len;
}

/*
 * It went away and does not come back by itself: nothing restarts a daemon that
 * was started here. If another one serves meanwhile, its lock ends this one.
 */
static void start_again(struct cli *c) {
        _cleanup_(freep) char *program = cli_find_program(c, "../daemon", HEARTH_BINDIR, "hearthd");
        _cleanup_(freep) char *log_name = log_path(c->socket);
        _cleanup_(fd_closep) int log = program ? open_log(log_name) : -1;

        c->started_again = true;
        if (program && fork() == 0)
                run_daemon(program, c->socket, log);
}

static void mind_connection(struct cli *c) {
        if (hearth_client_get_fd(c->client) >= 0)
                c->lost_us = 0;
        else if (!c->lost_us)
                c->lost_us = cli_now_us();
        else if (c->may_restart && !c->started_again && cli_now_us() - c->lost_us >= START_AGAIN_US)
                start_again(c);
}

static int start_daemon(struct cli *c) {
        _cleanup_(freep) char *program = cli_find_program(c, "../daemon", HEARTH_BINDIR, "hearthd");
        _cleanup_(freep) char *log_name = log_path(c->socket);
        _cleanup_(fd_closep) int log = -1;
        uint64_t start = cli_now_us(), exited = 0;
        char line[400];
        pid_t pid;
        int r;

        if (!program)
                return cli_fail(c, EX_OSERR, "out of memory");
        r = make_socket_dir(c);
        if (r)
                return r;
        log = open_log(log_name);
        pid = fork();
        if (pid < 0)
                return cli_fail(c, EX_OSERR, "starting %s: %s", program, strerror(errno));
        if (pid == 0)
                run_daemon(program, c->socket, log);
        c->started_us = start;
        do {
                int status;
                r = open_connection(c);
                if (!nobody_there(r))
                        break;
                if (!exited && waitpid(pid, &status, WNOHANG) == pid)
                        exited = cli_now_us(); /* perhaps another one serves already: a moment more */
                cli_progress(c, "starting", "a daemon", 0, 0);
                poll(NULL, 0, START_POLL_US / 1000);
        } while (cli_now_us() - start < START_TIMEOUT_US && (!exited || cli_now_us() - exited < AFTER_EXIT_US));
        cli_progress_clear(c);
        if (!nobody_there(r))
                return 0;
        last_line(log, line, sizeof(line));
        if (exited)
                return cli_fail(c, EX_UNAVAILABLE, "%s did not start%s%s", program, line[0] ? ": " : "", line);
        return cli_fail(c, EX_UNAVAILABLE, "%s was started but does not listen at %s after %d s. Its messages: %s", program,
                        c->socket, START_TIMEOUT_US / 1000000, log_name ? log_name : "none");
}

int cli_connect(struct cli *c, enum cli_start start) {
        const char *wanted = c->args.socket ? c->args.socket : c->env.hearth_socket;
        int r;

        if (c->client)
                return 0;
        r = hearth_socket_path(wanted, c->env.xdg_runtime_dir, &c->socket);
        if (r == -EPERM)
                return cli_fail(c, EX_NOPERM, "/tmp/hearth-%u is not this user's alone. Remove it, or set HEARTH_SOCKET",
                                (unsigned)geteuid());
        if (r < 0)
                return cli_fail(c, EX_OSERR, "%s", strerror(-r));
        r = open_connection(c);
        c->may_start = start == CLI_START && !c->args.no_start && strcmp(c->socket, SOCKPATH_SYSTEM) != 0;
        if (nobody_there(r) && c->may_start) {
                r = start_daemon(c);
                if (r)
                        return r;
        }
        /* A place that was named is whoever's who named it: a daemon that was there is waited for, not replaced. */
        c->may_restart = c->client && c->may_start && !(wanted && *wanted) && started_as_here(c);
        if (c->client)
                return survive(c) < 0 ? cli_fail(c, EX_OSERR, "out of memory") : 0;
        if (nobody_there(r) && wanted && *wanted)
                return cli_fail(c, EX_UNAVAILABLE, "no daemon at %s. Start it: hearthd --user --socket %s &", c->socket, c->socket);
        if (nobody_there(r) && strcmp(c->socket, SOCKPATH_SYSTEM) == 0)
                return cli_fail(c, EX_UNAVAILABLE, "no daemon at %s. Start it: sudo systemctl start hearthd.socket", c->socket);
        if (nobody_there(r))
                return cli_fail(c, EX_UNAVAILABLE,
                                "no daemon at %s. Start it: systemctl --user start hearthd.socket, or: hearthd --user &", c->socket);
        if (r == -EACCES)
                return cli_fail(c, EX_NOPERM, "no permission to use %s. Its directory or group says who may: ls -l %s", c->socket,
                                c->socket);
        if (r == -ENAMETOOLONG)
                return cli_fail(c, EX_USAGE, "the socket's path has %zu bytes, but at most %zu are possible: %.60s...; set HEARTH_SOCKET "
                                "(or XDG_RUNTIME_DIR) to a shorter one", strlen(c->socket),
                                sizeof(((struct sockaddr_un *)0)->sun_path) - 1, c->socket);
        if (r == -EAGAIN)
                return cli_fail(c, EX_TEMPFAIL, "the daemon at %s does not accept connections at the moment", c->socket);
        return cli_fail(c, EX_UNAVAILABLE, "connecting to %s: %s", c->socket, strerror(-r));
}

/*
 * Ctrl-C once: the request ends, its final answer is awaited. Twice: now; in a
 * conversation only if the first one had no effect for a while.
 */
static void take_signal(struct cli *c) {
        struct signalfd_siginfo si;

        if (read(c->signal_fd, &si, sizeof(si)) != sizeof(si))
                return;
        if (c->interrupted && c->conversation && cli_now_us() - c->interrupted_us < PATIENCE_US)
                return;
        if (c->interrupted || !c->current) {
                cli_progress_clear(c);
                fflush(stdout);
                _exit(CLI_EXIT_INTERRUPTED);
        }
        c->interrupted = true;
        c->interrupted_us = cli_now_us();
        (void)hearth_call_cancel(c->current);
}

static int loop(struct cli *c, const bool *done) {
        while (!*done) {
                struct pollfd p[2] = { { .fd = hearth_client_get_fd(c->client), .events = (short)hearth_client_get_events(c->client) },
                                       { .fd = c->signal_fd, .events = POLLIN } };
                uint64_t usec;
                int r;

                hearth_client_get_timeout(c->client, &usec);
                r = poll(p, 2, usec == UINT64_MAX ? -1 : (int)((usec + 999) / 1000));
                if (r < 0 && errno != EINTR)
                        return cli_fail(c, EX_OSERR, "poll: %s", strerror(errno));
                if (p[1].revents)
                        take_signal(c);
                r = hearth_client_dispatch(c->client);
                mind_connection(c);
                if (r < 0 && !*done) {
                        const struct hearth_error *e = hearth_client_get_error(c->client);
                        return e ? cli_report(c, e) : cli_fail(c, EX_UNAVAILABLE, "the connection is over");
                }
        }
        return 0;
}

/*
 * Signals are taken by the loop while it runs and have their usual effect
 * elsewhere: a program that waits for standard input must still end on Ctrl-C.
 */
int cli_wait(struct cli *c, const bool *done) {
        sigset_t old;
        int r;

        if (!c->started_us)
                c->started_us = cli_now_us();
        sigprocmask(SIG_BLOCK, &c->signals, &old);
        r = loop(c, done);
        sigprocmask(SIG_SETMASK, &old, NULL);
        return r;
}

int cli_request_failed(struct cli *c, int r) {
        const struct hearth_error *e = hearth_client_get_refusal(c->client);

        if (r == -EINVAL && e)
                return cli_report(c, e);
        e = hearth_client_get_error(c->client);
        if (e)
                return cli_report(c, e);
        return cli_fail(c, EX_OSERR, "the request can't be sent: %s", strerror(-r));
}

void cli_restore_signals(struct cli *c) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        signal(SIGPIPE, SIG_DFL);
}
