/* SPDX-License-Identifier: Apache-2.0 */
/* Which model is meant: by a word that may be a model or a prompt, or by none at all. */
#include <string.h>

#include "base/alloc.h"
#include "client/cli/cli.h"

struct fetch {
        struct cli *cli;
        struct cli_models *list;
        bool done;
        int status;
};

static void on_models(void *ud, hearth_call *call, const struct hearth_result *r) {
        struct fetch *f = ud;
        struct cli_models *l = f->list;

        f->done = true;
        if (r->error) {
                f->status = cli_report(f->cli, r->error);
                return;
        }
        l->names = h_calloc(r->n_models + 1, sizeof(*l->names));
        for (size_t i = 0; l->names && i < r->n_models; i++) {
                l->names[l->n] = h_strdup(r->models[i]->name);
                if (!l->names[l->n])
                        break;
                l->n++;
                l->has_default |= r->models[i]->is_default || r->models[i]->slots > 0;
        }
        if (!l->names || l->n < r->n_models)
                f->status = cli_fail(f->cli, EX_OSERR, "out of memory");
}

int cli_models_fetch(struct cli *c, struct cli_models *ret) {
        static const struct hearth_events events = { .size = sizeof(events), .done = on_models };
        struct fetch f = { .cli = c, .list = ret };
        int r;

        if (ret->names)
                return 0;
        r = cli_connect(c, CLI_START);
        if (r)
                return r;
        r = hearth_models(c->client, &events, &f, NULL);
        if (r < 0)
                return cli_request_failed(c, r);
        r = cli_wait(c, &f.done);
        return r ? r : f.status;
}

void cli_models_free(struct cli_models *l) {
        for (size_t i = 0; i < l->n; i++)
                free(l->names[i]);
        free(l->names);
        *l = (struct cli_models){};
}

bool cli_models_has(const struct cli_models *l, const char *name) {
        for (size_t i = 0; i < l->n; i++)
                if (strcmp(l->names[i], name) == 0)
                        return true;
        return false;
}

int cli_pick_model(struct cli *c, struct cli_models *l, const char **ret) {
        char text[400] = "";
        size_t at = 0;
        int r = cli_models_fetch(c, l);

        if (r)
                return r;
        if (l->n == 0)
                return cli_fail(c, EX_NOINPUT, "the daemon knows no model. Put GGUF files into its model directory "
                                "(~/.local/share/hearth/models), or name a file: hearth %s ./model.gguf", c->command->name);
        if (l->n == 1)
                *ret = l->names[0];
        if (l->n == 1 || l->has_default)
                return 0;
        for (size_t i = 0; i < l->n && at < sizeof(text) - 80; i++)
                at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%.60s", i ? ", " : "", l->names[i]);
        return cli_fail(c, EX_USAGE, "several models are there, and none is loaded: name one of %s", text);
}
