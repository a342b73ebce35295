/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a model's file holds. The file is untrusted input, so the parser runs in
 * hearth-worker, which has no request's text and no right this user lacks.
 */
#include <glob.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "client/cli/commands.h"

static const enum opt_id options[] = { O_verify, O_json, CLI_COMMON_OPTIONS, O_END };

struct lookup {
        struct cli *cli;
        const char *name;
        char *path;
        bool done;
        int status;
};

/* Of a split model its first part. */
static char *find_in(const char *dir, const char *name) {
        glob_t g = {};
        char *path = NULL, *pattern = NULL;

        if (asprintf(&path, "%s/%s.gguf", dir, name) < 0)
                return NULL;
        if (access(path, F_OK) == 0)
                return path;
        free(path);
        path = NULL;
        if (!strpbrk(name, "*?[\\") && asprintf(&pattern, "%s/%s-00001-of-[0-9][0-9][0-9][0-9][0-9].gguf", dir, name) >= 0 &&
            glob(pattern, 0, NULL, &g) == 0)
                path = h_strdup(g.gl_pathv[0]);
        globfree(&g);
        free(pattern);
        return path;
}

static void on_models(void *ud, hearth_call *call, const struct hearth_result *r) {
        struct lookup *l = ud;

        l->done = true;
        if (r->error) {
                l->status = cli_report(l->cli, r->error);
                return;
        }
        for (size_t i = 0; !l->path && i < r->n_dirs; i++)
                l->path = find_in(r->dirs[i], l->name);
        if (!l->path)
                l->status = cli_fail(l->cli, EX_NOINPUT, "%s is no file, and no model of that name lies in the daemon's folders; "
                                     "`hearth models` lists them", l->name);
}

/* A name of the daemon's registry, as `hearth load` takes it: the file is found by what the daemon says and read by us. */
static int path_of(struct cli *c, const char *name, char **ret) {
        static const struct hearth_events events = { .size = sizeof(events), .done = on_models };
        struct lookup l = { .cli = c, .name = name };
        int r = cli_connect(c, CLI_START);

        if (r)
                return r;
        r = hearth_models(c->client, &events, &l, NULL);
        if (r < 0)
                return cli_request_failed(c, r);
        r = cli_wait(c, &l.done);
        if (!r)
                r = l.status;
        if (r)
                free(l.path);
        else
                *ret = l.path;
        return r;
}

static int run(struct cli *c) {
        _cleanup_(freep) char *found = NULL;
        const char *argv[6], *path;
        size_t n = 0;
        int r;

        if (c->n_words != 1)
                return cli_fail(c, EX_USAGE, "inspect takes one model: a name from `hearth models`, or the path of a GGUF file");
        path = c->words[0];
        if (!cli_is_path(path) && access(path, F_OK) < 0) {
                r = path_of(c, path, &found);
                if (r)
                        return r;
                path = found;
        }
        argv[n++] = "hearth"; /* its messages are ours */
        argv[n++] = "--inspect";
        if (c->args.verify)
                argv[n++] = "--verify";
        if (c->args.json)
                argv[n++] = "--json";
        argv[n++] = path;
        argv[n] = NULL;
        return cli_exec_worker(c, argv);
}

const struct cli_command cli_cmd_inspect = {
        .name = "inspect", .synopsis = "MODEL", .summary = "a GGUF file's metadata and tensors",
        .options = options, .run = run, .models = true,
};
