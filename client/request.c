/* SPDX-License-Identifier: Apache-2.0 */
/* Public requests to wire messages. */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "client/client.h"
#include "ipc/payload.h"

#define LARGE_TEXT (1u << 20)

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

/* ret_g: the caller's struct with all fields of this version; w points into what it points to. */
static int fill_generate(hearth_client *c, const struct hearth_generate *user, struct hearth_generate *ret_g, struct wire_generate *ret) {
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
        *ret_g = g;
        *ret = w;
        return 0;
}

/*
 * A large text goes in a sealed memfd beside the message: it is not copied
 * through the socket, and what follows on the connection need not wait for it.
 * *fds (the model's, and one more) is the caller's to free; its last one to close.
 */
struct beside { int *fds; uint32_t n_fds; int payload; };

static void beside_done(struct beside *b) {
        fd_close(b->payload);
        free(b->fds);
}

static int put_beside(struct wire_generate *w, const struct hearth_source *model, struct beside *b) {
        const struct { const char *name, **text; size_t *n; } texts[] = {
                { "prompt", &w->prompt, &w->n_prompt }, { "messages", &w->messages, &w->n_messages }, { "system", &w->system, &w->n_system },
                { "prefix", &w->prefix, &w->n_prefix }, { "suffix", &w->suffix, &w->n_suffix }, { "tools", &w->tools, &w->n_tools },
        };
        size_t largest = 0, n = 0;
        int r;

        *b = (struct beside){ .payload = -1 };
        for (size_t i = 0; i < ELEMENTSOF(texts); i++) {
                size_t k = *texts[i].text ? *texts[i].n ? *texts[i].n : strlen(*texts[i].text) : 0;
                if (k > n) {
                        n = k;
                        largest = i;
                }
        }
        if (n < LARGE_TEXT || n > PAYLOAD_MAX || model->n_fds >= WIRE_MAX_FDS)
                return 0; /* what is too large for the daemon it says itself */
        b->fds = h_new0(int, model->n_fds + 1);
        if (!b->fds)
                return -ENOMEM;
        r = payload_make(*texts[largest].text, n, &b->payload);
        if (r < 0) { /* no memfd to be had: as any other text */
                beside_done(b);
                *b = (struct beside){ .payload = -1 };
                return r == -ENOMEM ? r : 0;
        }
        if (model->n_fds)
                memcpy(b->fds, model->fds, model->n_fds * sizeof(int));
        b->fds[model->n_fds] = b->payload;
        b->n_fds = model->n_fds + 1;
        *texts[largest].text = NULL;
        *texts[largest].n = 0;
        w->payload = texts[largest].name;
        return 0;
}

/* What a resume needs besides the message. */
static void keep_limits(hearth_call *call, const struct hearth_generate *g) {
        if (!call->kept)
                return;
        call->kept->credits = g->credits;
        call->kept->has_credits = g->credits > 0;
        call->kept->deadline_ms = g->deadline_ms;
}

int hearth_generate(hearth_client *c, const struct hearth_generate *user, const struct hearth_events *ev, void *ud,
                    hearth_call **ret) {
        struct hearth_generate g;
        struct wire_generate w;
        struct beside b = { .payload = -1 };
        hearth_call *call;
        int r = fill_generate(c, user, &g, &w);

        if (r == 0)
                r = put_beside(&w, &g.model, &b);
        if (r == 0)
                r = client_request(c, WIRE_generate, &w, b.fds ? b.fds : g.model.fds, b.fds ? b.n_fds : g.model.n_fds, ev, ud, &call);
        beside_done(&b);
        if (r < 0)
                return r;
        keep_limits(call, &g);
        if (ret)
                *ret = call;
        return 0;
}

void hearth_resume_init(struct hearth_resume *f, size_t size) {
        struct hearth_resume d = { .size = size };
        memset(f, 0, size);
        memcpy(f, &d, MIN(size, sizeof(d)));
}

/* As a call that was accepted on an earlier connection, which may have been another program's. */
static int fill_kept(hearth_client *c, hearth_call *call, const struct hearth_resume *f) {
        _cleanup_(buf_free) struct buf b = {};
        struct h_error err = {};
        struct hearth_generate g;
        struct wire_generate w;
        struct kept_call *k;
        struct beside beside = { .payload = -1 };
        int r = fill_generate(c, f->generate, &g, &w);

        if (r == 0)
                r = put_beside(&w, &g.model, &beside);
        if (r == 0)
                r = wire_encode_generate(&b, call->id, &w, &err);
        if (r == 0)
                r = reconnect_keep(call, &b, beside.fds ? beside.fds : g.model.fds, beside.fds ? beside.n_fds : g.model.n_fds);
        beside_done(&beside);
        if (r == -EHEARTH)
                return err.code == HEARTH_E_no_memory ? -ENOMEM : client_refuse(c, &err);
        if (r < 0)
                return r;
        keep_limits(call, &g);
        k = call->kept;
        k->accepted = true;
        k->request = f->request;
        k->seed = f->seed;
        if ((f->model && !(k->model = h_strdup(f->model))) || (f->identity && !(k->identity = h_strdup(f->identity))))
                return -ENOMEM;
        r = buf_append(&k->roles, f->roles, f->n_roles * sizeof(uint32_t));
        return r < 0 ? r : buf_append(&k->ids, f->ids, f->n_ids * sizeof(uint32_t));
}

int hearth_resume(hearth_client *c, const struct hearth_resume *user, const struct hearth_events *ev, void *ud, hearth_call **ret) {
        struct h_error err = {};
        struct hearth_resume f;
        hearth_call *call;
        int r;

        hearth_resume_init(&f, sizeof(f));
        COPY_SIZED(&f, user);
        c->has_refusal = false;
        if (c->fd < 0 && !c->re.down)
                return -ENOTCONN;
        call = client_new_call(c, WIRE_resume, ev, ud);
        if (!call)
                return -ENOMEM;
        r = fill_kept(c, call, &f);
        if (r == 0 && c->re.lost_us)
                call->kept->resend = true;
        else if (r == 0)
                r = reconnect_send_resume(call, &err);
        if (r == -EHEARTH)
                r = client_refuse(c, &err);
        if (r < 0) {
                client_free_call(call);
                return r;
        }
        if (!c->re.on)
                call->kept = kept_free(call->kept);
        client_add_call(c, call);
        if (ret)
                *ret = call;
        return 0;
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
        w.gpu_layers = l.gpu_layers > 0 ? (uint32_t)l.gpu_layers : l.gpu_layers < 0 ? 0 : UINT32_MAX;
        w.vram_budget = l.vram_budget;
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
WITHOUT_FIELDS(metrics)
WITHOUT_FIELDS(ping)

int hearth_call_credit(hearth_call *call, uint32_t n) {
        struct wire_credit w;
        int r = 0;

        wire_init_credit(&w);
        w.request = call->id;
        w.n = n;
        /* Without a connection it is enough to know of it: the resume says how many there are. */
        if (!call->client->re.lost_us || !call->kept)
                r = client_request(call->client, WIRE_credit, &w, NULL, 0, NULL, NULL, NULL);
        if (r == 0 && call->kept && __builtin_add_overflow(call->kept->credits, (uint64_t)n, &call->kept->credits))
                call->kept->credits = UINT64_MAX;
        return r;
}
