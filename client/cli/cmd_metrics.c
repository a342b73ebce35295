/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/commands.h"

static const enum opt_id options[] = { CLI_COMMON_OPTIONS, O_END };

static int show(struct cli *c, const struct hearth_result *r) {
        fwrite(r->bytes->data, 1, r->bytes->n, stdout);
        return 0;
}

static int run(struct cli *c) {
        return cli_simple_ask(c, "metrics", CLI_NO_START, hearth_metrics, show);
}

const struct cli_command cli_cmd_metrics = {
        .name = "metrics", .synopsis = "", .summary = "the daemon's figures in Prometheus' text format",
        .details = "For a collector that reads files:\n"
                   "  hearth metrics >/var/lib/prometheus/node-exporter/hearth.prom\n"
                   "Names and meanings are in docs/metrics.md; they stay the same from version to version.",
        .options = options, .run = run,
};
