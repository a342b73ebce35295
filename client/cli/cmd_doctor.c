/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is wrong on this machine, and how to mend it. Looks from outside only: the
 * socket, the daemon's own status, its limits under /proc, the device nodes.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "client/cli/commands.h"
#include "ipc/sockpath.h"

static const enum opt_id options[] = { O_socket, O_help, O_END };

struct doctor {
        struct cli *cli;
        unsigned faults;
        bool done, answered;
        uint32_t pid, worker_pid;
        bool on_gpu;
};

static void line(struct doctor *d, bool good, const char *subject, const char *fmt, ...) _printf_(4, 5);
static void line(struct doctor *d, bool good, const char *subject, const char *fmt, ...) {
        bool colour = d->cli->out_tty && d->cli->colour;
        char text[900];
        va_list ap;

        va_start(ap, fmt);
        vsnprintf(text, sizeof(text), fmt, ap);
        va_end(ap);
        printf("%s%s%s %-10s ", colour ? (good ? "\x1b[32m" : "\x1b[31m") : "", good ? "✓" : "✗", colour ? "\x1b[0m" : "", subject);
        cli_write_text(d->cli, stdout, text, strlen(text));
        putchar('\n');
        d->faults += !good;
}

static void advice(const char *text) {
        printf("             %s\n", text);
}

/* First line of a small file that begins with 'key' (NULL: any), the rest of it in 'ret'. */
static bool file_line(const char *path, const char *key, char *ret, size_t n) {
        FILE *f = fopen(path, "re");
        char l[512];
        bool found = false;

        while (f && !found && fgets(l, sizeof(l), f)) {
                size_t k = key ? strlen(key) : 0;
                if (key && strncmp(l, key, k) != 0)
                        continue;
                while (l[k] == ' ' || l[k] == '\t')
                        k++;
                snprintf(ret, n, "%s", l + k);
                ret[strcspn(ret, "\n")] = 0;
                found = true;
        }
        if (f)
                fclose(f);
        return found;
}

static void on_status(void *ud, hearth_call *call, const struct hearth_result *r) {
        struct doctor *d = ud;
        const struct hearth_status *st = r->status;
        char up[16], used[16], budget[16];

        d->done = true;
        if (!st) {
                line(d, false, "daemon", "%s", r->error ? r->error->message : "no status");
                return;
        }
        d->answered = true;
        d->pid = st->pid;
        d->worker_pid = st->worker_pid;
        d->on_gpu = strstr(st->device, "cuda") || strstr(st->device, "NVIDIA");
        cli_human_time(st->uptime_ms, up);
        line(d, true, "socket", "%s, daemon %s up %s", d->cli->socket, st->daemon, up);
        if (strcmp(st->daemon, HEARTH_VERSION) != 0) {
                line(d, false, "version", "the daemon is %s, this program %s", st->daemon, HEARTH_VERSION);
                advice("it was upgraded while it ran; fix: systemctl --user restart hearthd, or end it: it starts again by itself");
        }
        if (strcmp(st->worker, "failed") == 0) {
                line(d, false, "worker", "it failed; restarted %u times", st->worker_restarts);
                advice("the daemon's log says why: journalctl --user -u hearthd, or hearthd.log beside the socket");
        } else
                line(d, true, "worker", "%s%s%s", *st->worker ? st->worker : "unknown", *st->device ? " on " : "", st->device);
        cli_human_bytes(st->host_bytes, used);
        cli_human_bytes(st->host_budget, budget);
        line(d, true, "memory", "%s held%s%s, %u models resident", used, st->host_budget ? " of " : "", st->host_budget ? budget : "",
             st->models_resident);
}

static void on_models(void *ud, hearth_call *call, const struct hearth_result *r) {
        struct doctor *d = ud;
        unsigned failed = 0;

        d->done = true;
        if (r->error) {
                line(d, false, "models", "%s", r->error->message);
                return;
        }
        for (size_t i = 0; i < r->n_models; i++)
                if (strcmp(r->models[i]->where, "failed") == 0) {
                        line(d, false, "models", "%s: %s", r->models[i]->name, r->models[i]->note);
                        failed++;
                }
        if (r->n_models == 0) {
                line(d, false, "models", "the daemon knows none");
                advice("fix: put GGUF files into ~/.local/share/hearth/models, or name a file: hearth run ./model.gguf");
        } else if (failed < r->n_models)
                line(d, true, "models", "%zu can be used", r->n_models - failed);
}

static void check_socket(struct doctor *d) {
        struct cli *c = d->cli;
        struct stat st;
        int r;

        r = hearth_connect(c->socket, "hearth doctor", &c->client);
        if (r == 0)
                return;
        if (r == -ECONNREFUSED)
                line(d, false, "socket", "%s is there, but nobody listens: a daemon ended without tidying up", c->socket);
        else if (r == -EACCES)
                line(d, false, "socket", "%s: no permission for user %u", c->socket, (unsigned)geteuid());
        else if (r == -ENOENT)
                line(d, false, "socket", "%s is not there: no daemon runs", c->socket);
        else
                line(d, false, "socket", "%s: %s", c->socket, strerror(-r));
        if (r == -EACCES && stat(c->socket, &st) == 0)
                advice("fix: join the group that owns it (ls -l shows it), then log in again");
        else if (strcmp(c->socket, SOCKPATH_SYSTEM) == 0)
                advice("fix: sudo systemctl start hearthd.socket");
        else if (r == -ECONNREFUSED || r == -ENOENT)
                advice("fix: hearth models (starts one), or: systemctl --user start hearthd.socket");
}

static void ask(struct doctor *d, int r) {
        d->done = false;
        if (r < 0 || cli_wait(d->cli, &d->done))
                line(d, false, "daemon", "it does not answer");
}

/* The limits that the daemon itself runs under. */
static void check_limits(struct doctor *d) {
        char path[64], text[512], group[600], bytes[16];

        snprintf(path, sizeof(path), "/proc/%u/limits", d->worker_pid ? d->worker_pid : d->pid);
        if (d->on_gpu && file_line(path, "Max locked memory", text, sizeof(text)) && strncmp(text, "unlimited", 9) != 0) {
                line(d, false, "pinning", "locked memory is limited to %.*s bytes", (int)strcspn(text, " "), text);
                advice("uploads will run at half speed; fix: LimitMEMLOCK=infinity in the unit (the shipped one has it)");
        }
        if (file_line(path, "Max open files", text, sizeof(text)) && strtoull(text, NULL, 10) < 256)
                line(d, false, "files", "only %.*s open files are allowed; each client takes one", (int)strcspn(text, " "), text);
        snprintf(path, sizeof(path), "/proc/%u/cgroup", d->pid);
        if (file_line(path, "0::", text, sizeof(text))) {
                snprintf(group, sizeof(group), "/sys/fs/cgroup%s/memory.max", text);
                if (file_line(group, NULL, text, sizeof(text)) && strcmp(text, "max") != 0) {
                        cli_human_bytes(strtoull(text, NULL, 10), bytes);
                        line(d, true, "cgroup", "memory is limited to %s by %s", bytes, group);
                }
        }
}

static void check_gpu(struct doctor *d) {
        char driver[256];
        int fd;

        if (!file_line("/proc/driver/nvidia/version", "NVRM version:", driver, sizeof(driver))) {
                if (access("/dev/nvidia0", F_OK) == 0) {
                        line(d, false, "gpu", "/dev/nvidia0 is there, but no driver is loaded");
                        advice("fix: sudo modprobe nvidia nvidia_uvm");
                } else
                        line(d, true, "gpu", "none here; models run on the CPU");
                return;
        }
        for (size_t i = 0; i < 3; i++) {
                static const char *const nodes[] = { "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm" };
                fd = open(nodes[i], O_RDWR | O_CLOEXEC);
                if (fd < 0) {
                        line(d, false, "gpu", "%s: %s", nodes[i], strerror(errno));
                        advice(errno == ENOENT ? "fix: sudo modprobe nvidia_uvm (the unit asks for it at start)" :
                                                 "fix: the user needs the group that owns the device nodes (often video or render)");
                        return;
                }
                close(fd);
        }
        if (d->answered && d->worker_pid && !d->on_gpu) {
                line(d, false, "gpu", "a driver is there (%s), but the daemon computes on the CPU", driver);
                advice("its log says why: no CUDA in this build, too old a driver, or [worker] backend = cpu in hearth.conf");
        } else
                line(d, true, "gpu", "%s", driver);
}

static int run(struct cli *c) {
        static const struct hearth_events status_events = { .size = sizeof(status_events), .done = on_status };
        static const struct hearth_events models_events = { .size = sizeof(models_events), .done = on_models };
        struct doctor d = { .cli = c };
        int r;

        if (c->n_words)
                return cli_fail(c, EX_USAGE, "doctor takes no arguments");
        r = hearth_socket_path(c->args.socket ? c->args.socket : c->env.hearth_socket, c->env.xdg_runtime_dir, &c->socket);
        if (r < 0) {
                line(&d, false, "socket", "the directory of this user's socket in /tmp belongs to someone else, or is open to others");
                advice("fix: remove it, or set XDG_RUNTIME_DIR to a directory of your own");
                return EX_CONFIG;
        }
        check_socket(&d);
        if (c->client)
                ask(&d, hearth_status(c->client, &status_events, &d, NULL));
        if (d.answered) {
                ask(&d, hearth_models(c->client, &models_events, &d, NULL));
                check_limits(&d);
        }
        check_gpu(&d);
        r = cli_flush(c);
        return r ? r : d.faults ? EX_CONFIG : 0;
}

const struct cli_command cli_cmd_doctor = {
        .name = "doctor", .synopsis = "", .summary = "find what is wrong on this machine, and how to mend it",
        .details = "Exit status 78 if something is wrong. Starts no daemon.", .options = options, .run = run,
};
