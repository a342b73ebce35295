/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <string.h>

#include "client/cli/commands.h"

static const enum opt_id options[] = { O_json, O_names, CLI_COMMON_OPTIONS, O_END };

static void print_json(const struct hearth_model *m) {
        json_t *o = json_pack("{s:s, s:s, s:I, s:s, s:s, s:I, s:i, s:i, s:i, s:i, s:I, s:b, s:b, s:b, s:b, s:i, s:s, s:s, s:s, s:I}",
                              "name", m->name, "where", m->where, "bytes", (json_int_t)m->bytes, "type", m->type, "arch", m->arch,
                              "n_params", (json_int_t)m->n_params, "n_ctx", (int)m->n_ctx, "n_ctx_train", (int)m->n_ctx_train,
                              "slots", (int)m->slots, "in_use", (int)m->in_use, "idle_ms", (json_int_t)m->idle_ms,
                              "pinned", m->pinned, "default", m->is_default, "can_embed", m->can_embed, "can_chat", m->can_chat,
                              "n_parts", (int)m->n_parts, "hash", m->hash, "note", m->note,
                              "placement", m->placement, "device_bytes", (json_int_t)m->device_bytes);

        cli_print_json(o, 0);
}

static const char *where(const struct hearth_model *m) {
        if (strcmp(m->where, "disk") == 0)
                return "on disk";
        return m->where;
}

static void add_context(struct cli_table *t, uint32_t n) {
        if (n == 0)
                cli_table_add(t, "-");
        else if (n % 1024 == 0)
                cli_table_add(t, "%uk", n / 1024);
        else
                cli_table_add(t, "%u", n);
}

static void add_row(struct cli_table *t, const struct hearth_model *m) {
        bool loaded = m->slots > 0;
        char text[32];

        cli_table_add(t, "%s%s", m->name, m->is_default ? " *" : "");
        cli_human_bytes(m->bytes, text);
        cli_table_add(t, "%s", m->bytes ? text : "-");
        cli_table_add(t, "%s", *m->type ? m->type : "-");
        cli_table_add(t, "%s%s", where(m), m->pinned ? ", pinned" : "");
        add_context(t, m->n_ctx ? m->n_ctx : m->n_ctx_train);
        if (loaded)
                cli_table_add(t, "%u", m->slots);
        else
                cli_table_add(t, "-");
        cli_human_time(m->idle_ms, text);
        cli_table_add(t, "%s", !loaded ? "-" : m->in_use ? "in use" : text);
        cli_table_add(t, "%s%s%s", m->placement, *m->placement && *m->note ? "; " : "", m->note);
}

static int show(struct cli *c, const struct hearth_result *r) {
        static const char *const head[] = { "NAME", "SIZE", "TYPE", "WHERE", "CONTEXT", "SLOTS", "IDLE", "" };
        struct cli_table t = { .n_columns = ELEMENTSOF(head), .right = 1u << 1 };

        for (size_t i = 0; i < r->n_models; i++)
                if (c->args.names) {
                        cli_write_clean(stdout, r->models[i]->name);
                        putchar('\n');
                } else if (c->args.json)
                        print_json(r->models[i]);
        if (c->args.names || c->args.json)
                return 0;
        if (r->n_models == 0) {
                fprintf(stderr, "hearth: the daemon knows no model. Put GGUF files into its model directory "
                                "(~/.local/share/hearth/models), or name a file: hearth run ./model.gguf\n");
                return 0;
        }
        for (size_t i = 0; i < ELEMENTSOF(head); i++)
                cli_table_add(&t, "%s", head[i]);
        for (size_t i = 0; i < r->n_models; i++)
                add_row(&t, r->models[i]);
        cli_table_print(c, &t);
        return 0;
}

static int run(struct cli *c) {
        return cli_simple_ask(c, "models", CLI_START, hearth_models, show);
}

const struct cli_command cli_cmd_models = {
        .name = "models", .synopsis = "", .summary = "the models that can be named, and where they are",
        .details = "* marks the one taken when none is named.", .options = options, .run = run,
};
