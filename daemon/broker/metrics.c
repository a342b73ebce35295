/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/metrics.h"

#include <stdio.h>
#include <string.h>

#include "daemon/broker/model.h"
#include "daemon/broker/request.h"
#include "daemon/broker/version.h"

static const uint32_t bounds[METRICS_N_BOUNDS] = METRICS_BOUNDS;

size_t metrics_docs(const struct metrics_doc **ret) {
        static const struct metrics_doc docs[] = {
                { "build_info", "gauge", "1, with the label version", false },
#define METRIC(name, type, value, doc) { #name, #type, doc, false },
#define MODEL_METRIC(name, type, value, doc) { #name, #type, doc, true },
#define HISTOGRAM(name, member, doc) { #name, "histogram", doc, false },
#include "daemon/broker/metrics.def"
#undef METRIC
#undef MODEL_METRIC
#undef HISTOGRAM
        };

        *ret = docs;
        return ELEMENTSOF(docs);
}

static void observe(struct histogram *h, uint64_t ms) {
        size_t i = 0;

        while (i < METRICS_N_BOUNDS && ms > bounds[i])
                i++;
        h->n[i]++;
        h->count++;
        h->sum_ms += ms;
}

void metrics_count_end(struct metrics *mt, const struct request *rq, uint64_t now) {
        if (rq->type != WIRE_generate)
                return;
        if (rq->started_ms)
                observe(&mt->queue, rq->started_ms - rq->arrived_ms);
        if (rq->first_ms)
                observe(&mt->first_token, rq->first_ms - rq->arrived_ms);
        observe(&mt->request, now - rq->arrived_ms);
}

/* ---- values ---- */

static uint32_t running(const struct server *s) {
        uint32_t n = 0;

        list_foreach(rq, &s->requests, struct request, link)
                n += rq->state == REQUEST_RUNNING;
        return n;
}

static uint32_t resident(const struct server *s) {
        uint32_t n = 0;

        list_foreach(m, &s->models, struct model, link)
                n += m->state == MODEL_READY;
        return n;
}

static uint64_t on_device(const struct server *s) {
        uint64_t n = 0;

        list_foreach(m, &s->models, struct model, link)
                n += m->device_bytes;
        return n;
}

/* ---- the text ---- */

static int head(struct buf *b, const char *name, const char *type, const char *doc) {
        return buf_printf(b, "# HELP hearth_%s %s\n# TYPE hearth_%s %s\n", name, doc, name, type);
}

/* Within a label's value: backslash, quote and newline are escaped. */
static int label(struct buf *b, const char *s) {
        int r = 0;

        for (; *s && r == 0; s++)
                r = *s == '\\' ? buf_puts(b, "\\\\") : *s == '"' ? buf_puts(b, "\\\"") : *s == '\n' ? buf_puts(b, "\\n") : buf_putc(b, *s);
        return r;
}

static int of_model(struct buf *b, const char *metric, const char *name, double value) {
        int r = buf_printf(b, "hearth_%s{model=\"", metric);

        if (r == 0)
                r = label(b, name);
        return r < 0 ? r : buf_printf(b, "\"} %.15g\n", value);
}

static int histogram(struct buf *b, const char *name, const struct histogram *h) {
        uint64_t sum = 0;
        int r = 0;

        for (size_t i = 0; i < METRICS_N_BOUNDS && r == 0; i++) {
                sum += h->n[i];
                r = buf_printf(b, "hearth_%s_bucket{le=\"%g\"} %llu\n", name, bounds[i] / 1000.0, (unsigned long long)sum);
        }
        if (r == 0)
                r = buf_printf(b, "hearth_%s_bucket{le=\"+Inf\"} %llu\nhearth_%s_sum %.3f\nhearth_%s_count %llu\n", name,
                               (unsigned long long)h->count, name, (double)h->sum_ms / 1000, name, (unsigned long long)h->count);
        return r;
}

int metrics_text(const struct server *s, uint32_t uid, struct buf *b) {
        int r = head(b, "build_info", "gauge", "1, with the label version");

        if (r == 0)
                r = buf_printf(b, "hearth_build_info{version=\"%s\"} 1\n", DAEMON_VERSION);
#define METRIC(name, type, value, doc)                                                  \
        if (r == 0)                                                                     \
                r = head(b, #name, #type, doc);                                         \
        if (r == 0)                                                                     \
                r = buf_printf(b, "hearth_%s %.15g\n", #name, (double)(value));
#define MODEL_METRIC(name, type, value, doc)                                            \
        if (r == 0)                                                                     \
                r = head(b, #name, #type, doc);                                         \
        list_foreach(m, &s->models, struct model, link) {                               \
                const char *shown = m->dead ? NULL : model_name_for(m, uid);            \
                if (shown && r == 0)                                                    \
                        r = of_model(b, #name, shown, (double)(value));                 \
        }
#define HISTOGRAM(name, member, doc)                                                    \
        if (r == 0)                                                                     \
                r = head(b, #name, "histogram", doc);                                   \
        if (r == 0)                                                                     \
                r = histogram(b, #name, &s->metrics.member);
#include "daemon/broker/metrics.def"
#undef METRIC
#undef MODEL_METRIC
#undef HISTOGRAM
        return r;
}

int report_metrics(struct session *se, struct schema_msg *m, struct frame *f, struct h_error *err) {
        _cleanup_(buf_free) struct buf text = {}, out = {};
        struct wire_metrics_reply reply;
        int r = metrics_text(se->server, se->user->uid, &text);

        if (r < 0)
                return r;
        wire_init_metrics_reply(&reply);
        reply.text = text.data;
        reply.n_text = text.len;
        r = wire_encode_metrics_reply(&out, m->id, &reply, err);
        if (r == 0)
                session_send(se, &out);
        return r;
}
