/* SPDX-License-Identifier: Apache-2.0 */
/* Public requests to wire messages. */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "client/client.h"

/* The caller's struct, whatever its age: fields he doesn't know keep the defaults. */
#define COPY_SIZED(to, from) memcpy((to), (from), MIN((from)->size, sizeof(*(to))))

#define SET_SOURCE(w, src) do {                 \
                (w).model = (src)->name;        \
                (w).n_fds = (src)->n_fds;       \
        } while (0)

static const struct hearth_source no_source;

static const struct hearth_source *source_or_default(const struct hearth_source *s) {
        return s ? s : &no_source;
}

void hearth_generate_init(struct hearth_generate *g, size_t size) {
        struct hearth_generate d = { .size = size, .temperature = -1, .top_p = -1, .min_p = -1, .top_k = -1, .penalty_last = -1 };
        memset(g, 0, size);
        memcpy(g, &d, MIN(size, sizeof(d)));
}

void hearth_load_init(struct hearth_load *l, size_t size) {
        struct hearth_load d = { .size = size };
        memset(l, 0, size);
        memcpy(l, &d, MIN(size, sizeof(d)));
}

static const char *const kinds[] = { [HEARTH_COMPLETE] = "complete", [HEARTH_CHAT] = "chat", [HEARTH_FIM] = "fim" };

static int refuse_range(hearth_client *c, const char *field, int64_t v) {
        struct h_error e = {};
        h_error_set(&e, HEARTH_E_bad_request, "generate.%s is %lld, out of range", field, (long long)v);
        return client_refuse(c, &e);
}

int hearth_generate(hearth_client *c, const struct hearth_generate *user, const struct hearth_events *ev, void *ud,
                    hearth_call **ret) {
        struct hearth_generate g;
        struct wire_generate w;

        hearth_generate_init(&g, sizeof(g));
        COPY_SIZED(&g, user);
        if ((unsigned)g.kind >= ELEMENTSOF(kinds))
                return refuse_range(c, "kind", g.kind);
        if (g.top_k > UINT32_MAX)
                return refuse_range(c, "top_k", g.top_k);
        if (g.penalty_last > UINT32_MAX)
                return refuse_range(c, "penalty_last", g.penalty_last);
        wire_init_generate(&w);
        SET_SOURCE(w, &g.model);
        w.kind = kinds[g.kind];
        w.prompt = g.prompt;
        w.n_prompt = g.n_prompt;
        w.prompt_ids = g.prompt_ids;
        w.n_prompt_ids = g.n_prompt_ids * sizeof(uint32_t);
        w.messages = g.messages;
        w.tools = g.tools;
        w.template_vars = g.template_vars;
        w.system = g.system;
        w.prefix = g.prefix;
        w.suffix = g.suffix;
        w.max_tokens = g.max_tokens;
        if (g.temperature >= 0)
                w.temperature = g.temperature;
        if (g.top_p >= 0)
                w.top_p = g.top_p;
        if (g.min_p >= 0)
                w.min_p = g.min_p;
        if (g.top_k >= 0)
                w.top_k = (uint32_t)g.top_k;
        if (g.penalty_last >= 0)
                w.penalty_last = (uint32_t)g.penalty_last;
        if (g.repeat_penalty > 0)
                w.repeat_penalty = g.repeat_penalty;
        w.presence_penalty = g.presence_penalty;
        w.frequency_penalty = g.frequency_penalty;
        if (g.n_bias > 0) {
                w.bias_ids = g.bias_ids;
                w.bias_values = g.bias_values;
                w.n_bias_ids = w.n_bias_values = g.n_bias * sizeof(uint32_t);
        }
        w.seed = g.seed;
        w.stop = (const char **)g.stop;
        w.n_stop = g.n_stop;
        w.logprobs = g.logprobs;
        w.deadline_ms = g.deadline_ms;
        w.supersedes = g.supersedes;
        w.json_schema = g.json_schema;
        w.grammar = g.grammar;
        w.credits = g.credits;
        w.special = g.special;
        w.no_bos = g.no_bos;
        w.prewarm = g.prewarm;
        w.exact = g.exact;
        return client_request(c, WIRE_generate, &w, g.model.fds, g.model.n_fds, ev, ud, ret);
}

int hearth_resume(hearth_client *c, uint64_t request, uint64_t seed, const uint32_t *ids, size_t n_ids,
                  const struct hearth_events *ev, void *ud, hearth_call **ret) {
        struct wire_resume w;

        wire_init_resume(&w);
        w.request = request;
        w.seed = seed;
        w.ids = ids;
        w.n_ids = n_ids * sizeof(uint32_t);
        return client_request(c, WIRE_resume, &w, NULL, 0, ev, ud, ret);
}

int hearth_tokenize(hearth_client *c, const struct hearth_source *model, const char *text, size_t n_text, unsigned flags,
                    const struct hearth_events *ev, void *ud, hearth_call **ret) {
        const struct hearth_source *src = source_or_default(model);
        struct wire_tokenize w;

        wire_init_tokenize(&w);
        SET_SOURCE(w, src);
        w.text = text;
        w.n_text = n_text;
        w.special = flags & HEARTH_SPECIAL;
        w.bos = flags & HEARTH_BOS;
        return client_request(c, WIRE_tokenize, &w, src->fds, src->n_fds, ev, ud, ret);
}

int hearth_detokenize(hearth_client *c, const struct hearth_source *model, const uint32_t *ids, size_t n_ids, unsigned flags,
                      const struct hearth_events *ev, void *ud, hearth_call **ret) {
        const struct hearth_source *src = source_or_default(model);
        struct wire_detokenize w;

        wire_init_detokenize(&w);
        SET_SOURCE(w, src);
        w.ids = ids;
        w.n_ids = n_ids * sizeof(uint32_t);
        w.special = flags & HEARTH_SPECIAL;
        return client_request(c, WIRE_detokenize, &w, src->fds, src->n_fds, ev, ud, ret);
}

int hearth_embed(hearth_client *c, const struct hearth_source *model, const char *const *texts, size_t n_texts, unsigned flags,
                 const struct hearth_events *ev, void *ud, hearth_call **ret) {
        const struct hearth_source *src = source_or_default(model);
        struct wire_embed w;

        wire_init_embed(&w);
        SET_SOURCE(w, src);
        w.texts = (const char **)texts;
        w.n_texts = n_texts;
        w.normalize = !(flags & HEARTH_NOT_NORMALIZED);
        return client_request(c, WIRE_embed, &w, src->fds, src->n_fds, ev, ud, ret);
}

int hearth_load(hearth_client *c, const struct hearth_load *user, const struct hearth_events *ev, void *ud, hearth_call **ret) {
        struct hearth_load l;
        struct wire_load w;

        hearth_load_init(&l, sizeof(l));
        COPY_SIZED(&l, user);
        wire_init_load(&w);
        SET_SOURCE(w, &l.model);
        w.n_ctx = l.n_ctx;
        w.slots = l.slots;
        w.kv = l.kv;
        w.pin = l.pin;
        return client_request(c, WIRE_load, &w, l.model.fds, l.model.n_fds, ev, ud, ret);
}

int hearth_unload(hearth_client *c, const char *model, bool force, const struct hearth_events *ev, void *ud, hearth_call **ret) {
        struct wire_unload w;

        wire_init_unload(&w);
        w.model = model;
        w.force = force;
        return client_request(c, WIRE_unload, &w, NULL, 0, ev, ud, ret);
}

#define WITHOUT_FIELDS(name)                                                                                    \
        int hearth_##name(hearth_client *c, const struct hearth_events *ev, void *ud, hearth_call **ret) {      \
                struct wire_##name w;                                                                           \
                wire_init_##name(&w);                                                                           \
                return client_request(c, WIRE_##name, &w, NULL, 0, ev, ud, ret);                                \
        }
WITHOUT_FIELDS(models)
WITHOUT_FIELDS(ps)
WITHOUT_FIELDS(status)
WITHOUT_FIELDS(ping)

int hearth_call_credit(hearth_call *call, uint32_t n) {
        struct wire_credit w;

        wire_init_credit(&w);
        w.request = call->id;
        w.n = n;
        return client_request(call->client, WIRE_credit, &w, NULL, 0, NULL, NULL, NULL);
}
