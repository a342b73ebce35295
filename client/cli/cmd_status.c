/* SPDX-License-Identifier: Apache-2.0 */
/* status and version. */
#include <jansson.h>
#include <math.h>

#include "client/cli/commands.h"
#include "ipc/wire.h"

static const enum opt_id status_options[] = { O_json, CLI_COMMON_OPTIONS, O_END };
static const enum opt_id version_options[] = { O_socket, O_help, O_END };

static void print_json(const struct hearth_status *st) {
        json_t *o = json_pack("{s:s, s:I, s:I, s:I, s:s, s:s, s:I, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s}", "daemon", st->daemon,
                              "protocol", (json_int_t)st->protocol, "pid", (json_int_t)st->pid, "uptime_ms", (json_int_t)st->uptime_ms,
                              "socket", st->socket, "worker", st->worker, "worker_pid", (json_int_t)st->worker_pid,
                              "worker_restarts", (json_int_t)st->worker_restarts, "device", st->device, "clients",
                              (json_int_t)st->clients, "running", (json_int_t)st->running, "waiting", (json_int_t)st->waiting,
                              "models_resident", (json_int_t)st->models_resident, "host_bytes", (json_int_t)st->host_bytes,
                              "host_budget", (json_int_t)st->host_budget, "device_bytes", (json_int_t)st->device_bytes,
                              "device_budget", (json_int_t)st->device_budget, "worker_end", st->worker_end);
        json_t *metrics = json_object();

        for (size_t i = 0; i < st->n_metrics; i++) {
                double v = st->metrics[i].value;
                json_object_set_new(metrics, st->metrics[i].name, v >= 0 && v < 9e15 && v == floor(v) ? json_integer((json_int_t)v) : json_real(v));
        }
        json_object_set_new(o, "metrics", metrics);
        cli_print_json(o, 0);
}

static void print_memory(const char *name, uint64_t used, uint64_t budget) {
        char a[16], b[16];

        cli_human_bytes(used, a);
        cli_human_bytes(budget, b);
        if (used || budget)
                printf("%-9s %s%s%s\n", name, a, budget ? " of " : "", budget ? b : "");
}

static void print_text(const char *before, const char *text) {
        fputs(before, stdout);
        cli_write_clean(stdout, text);
}

static int show_status(struct cli *c, const struct hearth_result *r) {
        const struct hearth_status *st = r->status;
        char up[16];

        if (c->args.json) {
                print_json(st);
                return 0;
        }
        cli_human_time(st->uptime_ms, up);
        print_text("daemon    ", st->daemon);
        printf(", process %u, up %s\n", st->pid, up);
        print_text("socket    ", *st->socket ? st->socket : c->socket);
        print_text("\nworker    ", *st->worker ? st->worker : "unknown");
        if (st->worker_pid)
                printf(", process %u", st->worker_pid);
        if (st->worker_restarts)
                printf(", restarted %u times", st->worker_restarts);
        if (*st->worker_end)
                print_text("; the last one ", st->worker_end);
        if (*st->device)
                print_text("\ndevice    ", st->device);
        printf("\nclients   %u\n", st->clients);
        printf("requests  %u running, %u waiting\n", st->running, st->waiting);
        printf("models    %u resident\n", st->models_resident);
        print_memory("memory", st->host_bytes, st->host_budget);
        print_memory("on device", st->device_bytes, st->device_budget);
        return 0;
}

static int run_status(struct cli *c) {
        return cli_simple_ask(c, "status", CLI_NO_START, hearth_status, show_status);
}

static int run_version(struct cli *c) {
        char *path = NULL;

        printf("hearth %s, protocol %u\n", HEARTH_VERSION, WIRE_VERSION);
        /* The daemon's too, if one runs; none is no fault here. */
        if (hearth_socket_path(c->args.socket ? c->args.socket : c->env.hearth_socket, c->env.xdg_runtime_dir, &path) == 0 &&
            hearth_connect(path, "version", &c->client) == 0) {
                while (!hearth_client_get_daemon_version(c->client) && hearth_client_wait(c->client, UINT64_MAX) > 0)
                        ;
                if (hearth_client_get_daemon_version(c->client)) {
                        print_text("daemon ", hearth_client_get_daemon_version(c->client));
                        print_text(" at ", path);
                        putchar('\n');
                } else if (hearth_client_get_error(c->client)) {
                        print_text("daemon at ", path);
                        print_text(": ", hearth_client_get_error(c->client)->message);
                        putchar('\n');
                }
        }
        free(path);
        return cli_flush(c);
}

const struct cli_command cli_cmd_status = {
        .name = "status", .synopsis = "", .summary = "the daemon's health",
        .details = "With --json one object, described by docs/status.schema.json: its members stay, new ones may be added. Answered at once, also "
                   "while models load.",
        .options = status_options, .run = run_status,
};
const struct cli_command cli_cmd_version = {
        .name = "version", .synopsis = "", .summary = "versions of this program and of the daemon",
        .options = version_options, .run = run_version,
};
