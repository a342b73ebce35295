/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a context keeps on a device that works beside its host, and the graphs of
 * its plain steps: one new token for each of n sequences, sampled there. They are
 * made one at a time by eng_context_warm(), before the context serves, so that
 * no step waits for one to be made; what has none runs op by op.
 *
 * A graph's launches depend on the largest position that it must reach, so there
 * is one for each of a few lengths, each four times the one before.
 */
#include <string.h>
#include <time.h>

#include "engine/context.h"
#include "engine/sample.h"

#define FIRST_LENGTH 1024u
#define MAX_LAYER_OPS 24u /* launches of a layer, upwards */
#define EARLY_NS 60000u   /* a sleep's end before that of a step alone: its token is waited for */
#define LATE_NS 30000u    /* and behind that of a step with another one behind it: one look finds it done */
#define DRIFT 10000u      /* the clocks drift by less than one part of these */
#define MAX_SLEEP_NS 1000000000u
#define IDLE_NS 1000000000u /* after that long they are compared anew */

static uint64_t up256(uint64_t n) {
        return (n + 255) & ~(uint64_t)255;
}

uint64_t beside_bytes(const struct eng_model *m, const struct context_plan *p, uint64_t *ret_scratch_at) {
        const struct k_ops *ops = m->d->k->ops;
        uint64_t at;

        if (!ops->sample || !p->n_out)
                return 0;
        /* Limits are checked: no product here comes near 2^64. */
        at = up256((uint64_t)p->n_seq * sizeof(uint32_t)) + up256((uint64_t)p->n_seq * p->l.n_ctx * sizeof(uint32_t));
        if (ret_scratch_at)
                *ret_scratch_at = at;
        return at + ops->sample_scratch(p->l.n_places, m->desc->n_vocab);
}

static void shapes(const struct eng_model *m, const struct eng_limits *l, struct beside *b) {
        uint32_t n_ctx = l->n_ctx;

        if (m->desc->pooling != ENG_POOL_NONE)
                return;
        b->n_width = MIN(MIN(l->n_places, l->n_outputs), MAX_WIDTH);
        for (uint64_t at = FIRST_LENGTH; b->n_length < MAX_LENGTHS; at *= 4) {
                b->length[b->n_length++] = (uint32_t)MIN(at, (uint64_t)n_ctx);
                if (at >= n_ctx)
                        return;
        }
        b->length[b->n_length - 1] = n_ctx;
}

uint64_t beside_graph_bytes(const struct eng_model *m, const struct context_plan *p) {
        const struct k_ops *ops = m->d->k->ops;
        struct beside b = { 0 };
        uint32_t n_ops = (m->desc->n_layer + 2) * MAX_LAYER_OPS * (m->desc->n_altup ? 2 : 1); /* several streams: about as much again */

        if (!ops->sample || !p->n_out)
                return 0;
        shapes(m, &p->l, &b);
        return (uint64_t)b.n_width * b.n_length * ops->graph_bytes(m->d->k, NULL, n_ops);
}

int beside_open(struct eng_context *c, const struct context_plan *p) {
        const struct k_ops *ops = c->dev->ops;
        struct beside *b = &c->beside;
        uint64_t scratch_at = 0, bytes = beside_bytes(c->m, p, &scratch_at);
        int r;

        if (bytes == 0)
                return 0;
        b->mem = ops->mem_alloc(c->dev, bytes);
        b->out = ops->host_alloc(c->dev, p->pinned);
        if (!b->mem || !b->out)
                return -ENOMEM;
        r = ops->zero(c->dev, b->mem, scratch_at);
        if (r < 0)
                return r;
        b->sampled = b->mem;
        b->history = (uint32_t *)((uint8_t *)b->mem + up256((uint64_t)c->n_seq * sizeof(uint32_t)));
        b->scratch = (uint8_t *)b->mem + scratch_at;
        for (uint32_t i = 0; i < MAX_FLIGHT; i++) {
                c->flight[i].out = b->out + (size_t)i * c->l.n_places;
                r = ops->event_new(c->dev, &c->flight[i].event);
                if (r < 0)
                        return r;
        }
        shapes(c->m, &c->l, b);
        c->async = true;
        return 0;
}

void beside_close(struct eng_context *c) {
        const struct k_ops *ops = c->dev->ops;
        struct beside *b = &c->beside;

        for (uint32_t i = 0; b->graph && i < b->n_made; i++)
                if (b->graph[i])
                        ops->graph_free(c->dev, b->graph[i]);
        for (uint32_t i = 0; i < MAX_FLIGHT; i++)
                if (c->flight[i].event)
                        ops->event_free(c->dev, c->flight[i].event);
        if (b->mem)
                ops->mem_free(c->dev, b->mem);
        if (b->out)
                ops->host_free(c->dev, b->out);
}

uint64_t beside_now(void) {
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/*
 * Sleeps until the step should be done. Behind another step that is one step's
 * time after that one by the device's clock, which 'offset_ns' brings to ours:
 * the least difference seen, let go of slowly because clocks drift. How long a
 * step took is told by that clock too, so that waking late doesn't make the next
 * sleep longer. Steps with prompt rows, each of another length, end by their
 * event: the driver's wait costs more, but there are few of them.
 */
int beside_wait(struct eng_context *c, struct flight *f) {
        const struct k_ops *ops = c->dev->ops;
        struct beside *b = &c->beside;
        bool behind = f->begun_ns < b->finished_ns && b->device_ns, anew = !behind && f->begun_ns - b->finished_ns > IDLE_NS;
        uint64_t now, end, ns, least, after = 0;
        int r = 0;

        if (f->n_sample == 0 || f->prompt)
                r = ops->event_wait(c->dev, f->event);
        if (r < 0 || f->n_sample == 0)
                return r;
        now = beside_now();
        end = (behind ? b->device_ns + b->offset_ns + LATE_NS : f->begun_ns - EARLY_NS) + b->step_ns;
        if (!f->prompt && !anew && end > now && end - now < MAX_SLEEP_NS)
                after = end - now;
        r = ops->sample_wait(c->dev, f->out, f->n_sample, f->stamp, after);
        if (r < 0)
                return r;
        now = beside_now();
        ns = f->out[f->n_sample - 1].ns;
        least = b->offset_ns + (now - b->finished_ns) / DRIFT;
        b->offset_ns = !anew && (int64_t)(least - (now - ns)) < 0 ? least : now - ns;
        if (!f->prompt) {
                int64_t took = (int64_t)(behind && ns > b->device_ns ? ns - b->device_ns : ns + b->offset_ns - f->begun_ns);
                b->step_ns = (uint64_t)MAX(took, (int64_t)0);
        }
        b->finished_ns = now;
        b->device_ns = ns;
        return 0;
}

void *beside_graph(const struct eng_context *c, uint32_t n, uint32_t pos) {
        const struct beside *b = &c->beside;

        if (n == 0 || n > b->n_width)
                return NULL;
        for (uint32_t i = 0; i < b->n_length; i++)
                if (pos < b->length[i])
                        return b->graph[(size_t)i * b->n_width + n - 1];
        return NULL;
}

/* A step of that shape; its content is never read. */
static int take_down(struct eng_context *c, uint32_t n, uint32_t length, void **ret) {
        const struct k_ops *ops = c->dev->ops;
        const struct eng_sampling s = { .repeat_penalty = 1 };
        struct step st;
        int r, end;

        step_empty(c, &st, n);
        for (uint32_t i = 0; i < n; i++) {
                c->a.token[i] = 0;
                c->a.pos[i] = (int32_t)length - 1;
                c->a.seq[i] = i;
                c->a.state_in[i] = c->a.state_out[i] = 0;
                c->a.state_zero[i] = 0;
                c->a.out_rows[i] = i;
                c->beside.place[i] = i;
                sample_row(c, &s, i, i, length, 0, &c->flight[0].out[i], &c->beside.rows[i]);
        }
        st.b.n = st.b.n_d = st.io.n_out = st.io.n_out_d = n;
        r = ops->graph_begin(c->dev, &st.b);
        if (r >= 0)
                r = eng_forward_run(c->forward, &st.io);
        if (r >= 0)
                r = ops->sample(c->dev, &st.b, &(struct k_sample_args){ .logits = c->logits, .n_vocab = c->m->desc->n_vocab,
                                                                         .rows = c->beside.rows, .n = n, .scratch = c->beside.scratch });
        end = ops->graph_end(c->dev, &st.b, r >= 0 ? ret : NULL);
        return r < 0 ? r : end;
}

int eng_context_warm(struct eng_context *c, struct h_error *err) {
        struct beside *b = &c->beside;
        int r;

        if (b->n_made == b->n_width * b->n_length)
                return 0;
        if (c->n_flight)
                return h_error_set(err, HEARTH_E_busy, "a step is in flight");
        r = take_down(c, b->n_made % b->n_width + 1, b->length[b->n_made / b->n_width], &b->graph[b->n_made]);
        if (r == -ENOTSUP) { /* this model's steps can't be taken down: all run op by op */
                for (uint32_t i = 0; i < b->n_made; i++)
                        c->dev->ops->graph_free(c->dev, b->graph[i]);
                b->graph_bytes = b->n_made = b->n_width = 0;
                return 0;
        }
        if (r < 0) {
                const char *why = c->dev->ops->last_error(c->dev);
                return r == -ENOMEM ? h_error_set(err, HEARTH_E_model_no_memory, "graph %u of %u: no memory", b->n_made + 1,
                                                  b->n_width * b->n_length)
                                    : h_error_set(err, HEARTH_E_device_lost, "making a step's graph failed: %s", why);
        }
        b->graph_bytes += c->dev->ops->graph_bytes(c->dev, b->graph[b->n_made++], 0);
        return b->n_made < b->n_width * b->n_length;
}
