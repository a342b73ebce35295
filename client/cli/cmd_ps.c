/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <pwd.h>
#include <string.h>

#include "client/cli/commands.h"

static const enum opt_id options[] = { O_json, CLI_COMMON_OPTIONS, O_END };

static void print_json(const struct hearth_request *q) {
        json_t *o = json_pack("{s:I, s:s, s:I, s:I, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:f, s:I, s:I}", "request",
                              (json_int_t)q->request, "client", q->client, "pid", (json_int_t)q->pid, "uid", (json_int_t)q->uid,
                              "user", q->user, "model", q->model, "phase", q->phase, "slot", (int)q->slot, "position",
                              (int)q->position, "n_prompt", (int)q->n_prompt, "n_cached", (int)q->n_cached, "n_generated",
                              (int)q->n_generated, "tokens_per_s", q->tokens_per_s, "age_ms", (json_int_t)q->age_ms, "wait_ms",
                              (json_int_t)q->wait_ms);

        cli_print_json(o, 0);
}

static void add_row(struct cli_table *t, const struct hearth_request *q) {
        bool prefill = strcmp(q->phase, "prefill") == 0, decode = strcmp(q->phase, "decode") == 0;
        char text[32], wait[16];

        cli_table_add(t, q->pid ? "%s (%u)" : "%s", *q->client ? q->client : "?", q->pid);
        const struct passwd *pw = *q->user ? NULL : getpwuid(q->uid);
        if (*q->user || pw)
                cli_table_add(t, "%s", *q->user ? q->user : pw->pw_name);
        else
                cli_table_add(t, "%u", q->uid);
        cli_table_add(t, "%s", *q->model ? q->model : "-");
        if (prefill || decode)
                cli_table_add(t, "%u", q->slot);
        else
                cli_table_add(t, "-");
        cli_table_add(t, "%s", q->phase);
        cli_human_count(prefill ? q->n_prompt : q->n_generated, text);
        cli_table_add(t, "%s", prefill || decode ? text : "-");
        cli_human_count((uint64_t)(q->tokens_per_s + 0.5), text);
        cli_table_add(t, "%s", q->tokens_per_s > 0 ? text : "-");
        if ((prefill || decode) && q->n_prompt > 0)
                cli_table_add(t, "%.0f%%", 100.0 * q->n_cached / q->n_prompt);
        else
                cli_table_add(t, "-");
        cli_human_time(q->age_ms, text);
        cli_table_add(t, "%s", text);
        cli_human_time(q->wait_ms, wait);
        if (q->position && q->wait_ms)
                cli_table_add(t, "(position %u, about %s)", q->position, wait);
        else if (q->position)
                cli_table_add(t, "(position %u)", q->position);
        else
                cli_table_add(t, "%s", "");
}

static int show(struct cli *c, const struct hearth_result *r) {
        static const char *const head[] = { "CLIENT", "USER", "MODEL", "SLOT", "PHASE", "TOKENS", "TOK/S", "CACHED", "AGE", "" };
        struct cli_table t = { .n_columns = ELEMENTSOF(head), .right = 7u << 5 | 1u << 8 };

        if (c->args.json) {
                for (size_t i = 0; i < r->n_requests; i++)
                        print_json(r->requests[i]);
                return 0;
        }
        for (size_t i = 0; i < ELEMENTSOF(head); i++)
                cli_table_add(&t, "%s", head[i]);
        for (size_t i = 0; i < r->n_requests; i++)
                add_row(&t, r->requests[i]);
        cli_table_print(c, &t);
        return 0;
}

static int run(struct cli *c) {
        return cli_simple_ask(c, "ps", CLI_NO_START, hearth_ps, show);
}

const struct cli_command cli_cmd_ps = {
        .name = "ps", .synopsis = "", .summary = "the requests that run and wait",
        .options = options, .run = run,
};
