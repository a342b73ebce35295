/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is wrong on this machine, and how to mend it. Looks from outside only: the
 * socket, the daemon's own status, its files, its limits under /proc, the device
 * nodes. The looks themselves are in doctor_*.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "client/cli/commands.h"
#include "client/cli/doctor.h"
#include "ipc/sockpath.h"

/* Set by the build: the CUDA release it was made with, and the least driver that release runs on; empty and 0 without CUDA. */
#ifndef HEARTH_CUDA_VERSION
#define HEARTH_CUDA_VERSION ""
#define HEARTH_CUDA_DRIVER 0
#endif

static const enum opt_id options[] = { O_json, O_socket, O_help, O_END };

struct visit {
        struct doctor doctor; /* first */
        struct cli *cli;
        unsigned faults;
        bool done;
};

static void print_json(const struct finding *f) {
        static const char *const levels[] = { "good", "note", "fault" };

        cli_print_json(json_pack("{s:s, s:s, s:s, s:s}", "level", levels[f->level], "subject", f->subject, "text", f->text, "advice", f->advice), 0);
}

static void tell(void *ud, const struct finding *f) {
        static const char *const marks[] = { "✓", "·", "✗" }, *const colours[] = { "\x1b[32m", "\x1b[33m", "\x1b[31m" };
        struct visit *v = ud;
        bool colour = v->cli->out_tty && v->cli->colour;

        v->faults += f->level == FINDING_FAULT;
        if (v->cli->args.json) {
                print_json(f);
                return;
        }
        printf("%s%s%s %-10s ", colour ? colours[f->level] : "", marks[f->level], colour ? "\x1b[0m" : "", f->subject);
        cli_write_clean(stdout, f->text);
        putchar('\n');
        if (f->advice[0]) {
                printf("             ");
                cli_write_clean(stdout, f->advice);
                putchar('\n');
        }
}

static void on_status(void *ud, hearth_call *call, const struct hearth_result *r) {
        struct visit *v = ud;
        struct doctor *d = &v->doctor;
        const struct hearth_status *st = r->status;
        char up[16], used[16], budget[16];

        v->done = true;
        if (!st) {
                doctor_tell(d, FINDING_FAULT, "daemon", "", "%s", r->error ? r->error->message : "no status");
                return;
        }
        d->answered = true;
        d->pid = st->pid;
        d->worker_pid = st->worker_pid;
        d->host_budget = st->host_budget;
        d->on_gpu = strstr(st->device, "cuda") || strstr(st->device, "NVIDIA");
        cli_human_time(st->uptime_ms, up);
        doctor_tell(d, FINDING_GOOD, "socket", "", "%s, daemon %s up %s", v->cli->socket, st->daemon, up);
        if (strcmp(st->daemon, HEARTH_VERSION) != 0)
                doctor_tell(d, FINDING_FAULT, "version", "it was upgraded while it ran; fix: systemctl --user restart hearthd, or end it: it starts again "
                            "by itself", "the daemon is %s, this program %s", st->daemon, HEARTH_VERSION);
        if (strcmp(st->worker, "failed") == 0)
                doctor_tell(d, FINDING_FAULT, "worker", "the daemon's log says why: journalctl -u hearthd (--user), or hearthd.log beside the socket",
                            "it failed; restarted %u times%s%s", st->worker_restarts, *st->worker_end ? "; the last one " : "", st->worker_end);
        else if (st->worker_restarts)
                doctor_tell(d, FINDING_NOTE, "worker", "the daemon's log says why: journalctl -u hearthd (--user), or hearthd.log beside the socket",
                            "%s%s%s; it ended and was replaced %u times%s%s", st->worker, *st->device ? " on " : "", st->device,
                            st->worker_restarts, *st->worker_end ? "; the last one " : "", st->worker_end);
        else
                doctor_tell(d, FINDING_GOOD, "worker", "", "%s%s%s", *st->worker ? st->worker : "unknown", *st->device ? " on " : "", st->device);
        cli_human_bytes(st->host_bytes, used);
        cli_human_bytes(st->host_budget, budget);
        doctor_tell(d, FINDING_GOOD, "memory", "", "%s held%s%s, %u models resident", used, st->host_budget ? " of " : "",
                    st->host_budget ? budget : "", st->models_resident);
}

static void on_models(void *ud, hearth_call *call, const struct hearth_result *r) {
        struct visit *v = ud;
        struct doctor *d = &v->doctor;
        size_t failed = 0;

        v->done = true;
        if (r->error) {
                doctor_tell(d, FINDING_FAULT, "models", "", "%s", r->error->message);
                return;
        }
        for (size_t i = 0; i < r->n_models; i++)
                if (strcmp(r->models[i]->where, "failed") == 0) {
                        doctor_tell(d, FINDING_FAULT, "models", "", "%s: %s", r->models[i]->name, r->models[i]->note);
                        failed++;
                }
        if (r->n_models == 0)
                doctor_tell(d, FINDING_FAULT, "models", "fix: put GGUF files into one of its directories, or name a file: hearth run ./model.gguf",
                            "the daemon knows none");
        else if (failed < r->n_models)
                doctor_tell(d, FINDING_GOOD, "models", "", "%zu can be named; a model's content is checked when it is loaded: hearth inspect --verify NAME",
                            r->n_models - failed);
        doctor_disk(d, r->dirs, r->n_dirs);
}

static void check_socket(struct visit *v) {
        struct doctor *d = &v->doctor;
        struct cli *c = v->cli;
        bool system = strcmp(c->socket, SOCKPATH_SYSTEM) == 0;
        int r = hearth_connect(c->socket, "hearth doctor", &c->client);

        switch (r) {
        case 0:
                return;
        case -ECONNREFUSED:
                doctor_refused(d, c->socket, system);
                break;
        case -ENOENT:
                doctor_tell(d, FINDING_FAULT, "socket", system ? "fix: sudo systemctl enable --now hearthd.socket" :
                            "fix: hearth models (starts one), or: systemctl --user start hearthd.socket",
                            "%s is not there: no daemon runs", c->socket);
                break;
        case -EACCES:
                doctor_no_permission(d, c->socket);
                break;
        case -ENAMETOOLONG:
                doctor_tell(d, FINDING_FAULT, "socket", "fix: set HEARTH_SOCKET or XDG_RUNTIME_DIR to a shorter path",
                            "its path has %zu bytes, at most %zu are possible: %s", strlen(c->socket),
                            sizeof(((struct sockaddr_un *)0)->sun_path) - 1, c->socket);
                break;
        default:
                doctor_tell(d, FINDING_FAULT, "socket", "", "%s: %s", c->socket, strerror(-r));
        }
}

static void ask(struct visit *v, int r) {
        const struct hearth_error *e;

        v->done = false;
        if (r < 0 || cli_wait(v->cli, &v->done)) {
                e = hearth_client_get_error(v->cli->client);
                doctor_tell(&v->doctor, FINDING_FAULT, "daemon", "", "%s", e ? e->message : "it does not answer");
        }
}

/* Would a daemon start with the configuration that is there? It says so itself. */
static void check_configuration(struct visit *v, bool system) {
        _cleanup_(freep) char *program = cli_find_program(v->cli, "../daemon", HEARTH_BINDIR, "hearthd");
        char text[1200] = "";
        int fds[2], status;
        ssize_t n;
        pid_t pid;

        if (!program || access(program, X_OK) < 0) {
                doctor_tell(&v->doctor, FINDING_FAULT, "program", "fix: install the daemon beside this program", "%s is not there",
                            program ? program : "hearthd");
                return;
        }
        if (pipe2(fds, O_CLOEXEC) < 0)
                return;
        pid = fork();
        if (pid == 0) {
                dup2(fds[1], 1);
                dup2(fds[1], 2);
                execl(program, program, system ? "--system" : "--user", "--check-config", (char *)NULL);
                _exit(127);
        }
        close(fds[1]);
        n = pid > 0 ? read(fds[0], text, sizeof(text) - 1) : -1; /* one line, written at once */
        close(fds[0]);
        if (pid < 0 || waitpid(pid, &status, 0) != pid || n <= 0)
                return;
        text[n] = 0;
        text[strcspn(text, "\n")] = 0;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
                doctor_tell(&v->doctor, FINDING_GOOD, "config", "", "%s", text);
        else
                doctor_tell(&v->doctor, FINDING_FAULT, "config", "the daemon does not start with it, and keeps the old one on a reload", "%s", text);
}

static int run(struct cli *c) {
        static const struct hearth_events status_events = { .size = sizeof(status_events), .done = on_status };
        static const struct hearth_events models_events = { .size = sizeof(models_events), .done = on_models };
        struct visit v = { .doctor = { .root = "", .tell = tell, .ud = &v, .euid = (uint32_t)geteuid(),
                                       .cuda = HEARTH_CUDA_VERSION, .cuda_driver = HEARTH_CUDA_DRIVER }, .cli = c };
        struct doctor *d = &v.doctor;
        int r;

        if (c->n_words)
                return cli_fail(c, EX_USAGE, "doctor takes no arguments");
        r = hearth_socket_path(c->args.socket ? c->args.socket : c->env.hearth_socket, c->env.xdg_runtime_dir, &c->socket);
        if (r < 0) {
                doctor_tell(d, FINDING_FAULT, "socket", "fix: remove it, or set XDG_RUNTIME_DIR to a directory of your own",
                            "the directory of this user's socket in /tmp belongs to someone else, or is open to others");
                return EX_CONFIG;
        }
        check_socket(&v);
        if (c->client)
                ask(&v, hearth_status(c->client, &status_events, &v, NULL));
        if (d->answered)
                ask(&v, hearth_models(c->client, &models_events, &v, NULL));
        doctor_socket_dir(d, c->socket);
        doctor_stale(d, c->socket);
        check_configuration(&v, strcmp(c->socket, SOCKPATH_SYSTEM) == 0);
        doctor_limits(d);
        doctor_cgroup(d);
        doctor_gpu(d);
        doctor_memory(d);
        doctor_sandbox(d);
        r = cli_flush(c);
        return r ? r : v.faults ? EX_CONFIG : 0;
}

const struct cli_command cli_cmd_doctor = {
        .name = "doctor", .synopsis = "", .summary = "find what is wrong on this machine, and how to mend it",
        .details = "Looks at the socket and who may use it, what an earlier daemon left, the configuration, the daemon's limits (locked memory, open "
                   "files, control groups), the GPU's driver and device nodes, disk, huge pages and what can lock processes in. Exit status 78 if "
                   "something is wrong (✗); what is worth knowing only (·) counts for nothing. Starts no daemon. With --json one object a line: "
                   "level (good, note, fault), subject, text, advice.",
        .options = options, .run = run,
};
