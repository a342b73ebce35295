/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/cli.h"

static void on_progress(void *ud, hearth_call *call, const struct hearth_progress *p) {
        struct cli_simple *s = ud;
        cli_progress(s->cli, "loading", p->model, p->done, p->total);
}

static void on_done(void *ud, hearth_call *call, const struct hearth_result *r) {
        struct cli_simple *s = ud;

        cli_progress_clear(s->cli);
        s->cli->current = NULL;
        s->done = true;
        if (r->error && s->cli->interrupted)
                s->status = CLI_EXIT_INTERRUPTED;
        else if (r->error)
                s->status = cli_report(s->cli, r->error);
        else
                s->status = s->show ? s->show(s->cli, r) : 0;
        if (!r->error && r->more)
                fprintf(stderr, "hearth: %u more are not shown: the daemon's answer has no room for them\n", r->more);
}

const struct hearth_events cli_simple_events = { .size = sizeof(cli_simple_events), .progress = on_progress, .done = on_done };

int cli_simple_wait(struct cli *c, struct cli_simple *s, int r) {
        if (r < 0)
                return cli_request_failed(c, r);
        r = cli_wait(c, &s->done);
        if (r)
                return r;
        r = cli_flush(c);
        return s->status ? s->status : r;
}

int cli_simple_ask(struct cli *c, const char *name, enum cli_start start, cli_ask_fn *ask,
                   int (*show)(struct cli *c, const struct hearth_result *r)) {
        struct cli_simple s = { .cli = c, .show = show };
        int r;

        if (c->n_words)
                return cli_fail(c, EX_USAGE, "%s takes no arguments", name);
        r = cli_connect(c, start);
        return r ? r : cli_simple_wait(c, &s, ask(c->client, &cli_simple_events, &s, &c->current));
}
