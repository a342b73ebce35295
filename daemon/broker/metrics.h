/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Figures for monitoring, as Prometheus' text format 0.0.4. Only numbers, and names of models that the asker may use. */

#include "base/buf.h"
#include "base/error.h"

/* Upper bounds in ms; one more bucket for the rest. */
#define METRICS_BOUNDS { 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 300000 }
#define METRICS_N_BOUNDS 14

struct histogram {
        uint64_t n[METRICS_N_BOUNDS + 1], count, sum_ms;
};

struct metrics {
        struct histogram queue, first_token, request;
        uint64_t late_max_ms;
};

struct server;
struct request;
struct session;
struct schema_msg;
struct frame;

void metrics_count_end(struct metrics *mt, const struct request *rq, uint64_t now);
int metrics_text(const struct server *s, uint32_t uid, struct buf *b);
int report_metrics(struct session *se, struct schema_msg *m, struct frame *f, struct h_error *err);

struct metrics_doc { const char *name, *type, *doc; bool by_model; };
size_t metrics_docs(const struct metrics_doc **ret);
