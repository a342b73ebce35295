/* SPDX-License-Identifier: Apache-2.0 */
/* load and unload. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "client/cli/commands.h"

static const enum opt_id load_options[] = { O_context, O_slots, O_kv, O_gpu_layers, O_vram_budget, O_pin, CLI_COMMON_OPTIONS, O_END };
static const enum opt_id unload_options[] = { O_force, CLI_COMMON_OPTIONS, O_END };

/* What happened is for people, so on stderr; and only where one is likely to look. */
static int show_loaded(struct cli *c, const struct hearth_result *r) {
        const struct hearth_loaded *l = r->loaded;
        char bytes[16], time[16];

        if (!c->err_tty)
                return 0;
        cli_human_bytes(l->bytes, bytes);
        cli_human_time(l->load_us / 1000, time);
        cli_write_clean(stderr, l->model);
        if (l->load_us == 0)
                fputs(" was loaded already", stderr);
        else
                fprintf(stderr, " is loaded: %s in %s%s", bytes, time, l->cached ? ", nothing read from disk" : "");
        fprintf(stderr, ", context %u, %u %s\n", l->n_ctx, l->slots, l->slots == 1 ? "slot" : "slots");
        if (*l->placement) {
                cli_write_clean(stderr, l->placement);
                fputc('\n', stderr);
        }
        return 0;
}

/* "12GiB", "800M", "16000000000". */
static bool parse_size(const char *s, uint64_t *ret) {
        static const struct { const char *name; uint64_t factor; } units[] = {
                { "", 1 }, { "K", 1 << 10 }, { "KiB", 1 << 10 }, { "M", 1 << 20 }, { "MiB", 1 << 20 }, { "G", 1 << 30 }, { "GiB", 1 << 30 },
                { "kB", 1000 }, { "MB", 1000000 }, { "GB", 1000000000 },
        };
        char *end;
        uint64_t v;

        if (*s < '0' || *s > '9')
                return false;
        errno = 0;
        v = strtoull(s, &end, 10);
        while (*end == ' ')
                end++;
        for (size_t i = 0; errno == 0 && i < ELEMENTSOF(units); i++)
                if (strcmp(end, units[i].name) == 0)
                        return !__builtin_mul_overflow(v, units[i].factor, ret) && *ret > 0;
        return false;
}

static int run_load(struct cli *c) {
        struct cli_simple s = { .cli = c, .show = show_loaded };
        struct cli_source source = {};
        struct hearth_load l;
        int r;

        if (c->n_words != 1)
                return cli_fail(c, EX_USAGE, "load takes one model: a name from `hearth models`, or the path of a GGUF file");
        hearth_load_init(&l, sizeof(l));
        l.n_ctx = c->args.context;
        l.slots = c->args.slots;
        l.kv = c->args.kv;
        l.pin = c->args.pin;
        if (c->args.has_gpu_layers)
                l.gpu_layers = c->args.gpu_layers == 0 ? -1 : (int32_t)MIN(c->args.gpu_layers, (uint32_t)INT32_MAX);
        if (c->args.vram_budget && !parse_size(c->args.vram_budget, &l.vram_budget))
                return cli_fail(c, EX_USAGE, "--vram-budget is a size like 12GiB or 800M, not \"%s\"", c->args.vram_budget);
        r = cli_open_source(c, c->words[0], &source);
        if (!r)
                r = cli_connect(c, CLI_START);
        l.model = source.src;
        c->started_us = cli_now_us();
        if (!r)
                r = cli_simple_wait(c, &s, hearth_load(c->client, &l, &cli_simple_events, &s, &c->current));
        cli_source_close(&source);
        return r;
}

static int show_unloaded(struct cli *c, const struct hearth_result *r) {
        char bytes[16];

        cli_human_bytes(r->freed_bytes, bytes);
        if (c->err_tty) {
                cli_write_clean(stderr, c->words[0]);
                fprintf(stderr, " is unloaded: %s given back\n", bytes);
        }
        return 0;
}

static int run_unload(struct cli *c) {
        struct cli_simple s = { .cli = c, .show = show_unloaded };
        _cleanup_(freep) char *path = NULL;
        int r;

        if (c->n_words != 1)
                return cli_fail(c, EX_USAGE, "unload takes one model's name; `hearth models` lists them");
        /* As cli_open_source() named it when it was loaded. A file that is gone meanwhile is named as it was given. */
        if (cli_is_path(c->words[0]))
                path = realpath(c->words[0], NULL);
        r = cli_connect(c, CLI_NO_START);
        return r ? r : cli_simple_wait(c, &s, hearth_unload(c->client, path ? path : c->words[0], c->args.force, &cli_simple_events, &s, &c->current));
}

const struct cli_command cli_cmd_load = {
        .name = "load", .synopsis = "MODEL", .summary = "make a model resident",
        .options = load_options, .run = run_load, .models = true,
};
const struct cli_command cli_cmd_unload = {
        .name = "unload", .synopsis = "MODEL", .summary = "give a model's memory back",
        .options = unload_options, .run = run_unload, .models = true,
};
