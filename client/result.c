/* SPDX-License-Identifier: Apache-2.0 */
/* Wire messages to what callbacks are given. Scratch memory comes from the message's own arena and goes with it. */
#include <errno.h>

#include "client/client.h"
#include "ipc/arena.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "bin fields are little-endian arrays and are handed to the caller in place"
#endif

int reply_of(int request) {
        switch (request) {
        case WIRE_hello: return WIRE_hello_reply;
        case WIRE_ping: return WIRE_ping_reply;
        case WIRE_generate: return WIRE_generate_reply;
        case WIRE_resume: return WIRE_resume_reply;
        case WIRE_credit: return WIRE_credit_reply;
        case WIRE_tokenize: return WIRE_tokenize_reply;
        case WIRE_detokenize: return WIRE_detokenize_reply;
        case WIRE_embed: return WIRE_embed_reply;
        case WIRE_load: return WIRE_load_reply;
        case WIRE_unload: return WIRE_unload_reply;
        case WIRE_models: return WIRE_models_reply;
        case WIRE_ps: return WIRE_ps_reply;
        case WIRE_status: return WIRE_status_reply;
        case WIRE_metrics: return WIRE_metrics_reply;
        }
        return -1;
}

static const char *str(const char *s) {
        return s ? s : "";
}

static void done(hearth_call *call, const struct hearth_result *r) {
        if (call->events.done)
                call->events.done(call->ud, call, r);
}

void call_deliver_error(hearth_call *call, const struct hearth_error *e) {
        struct hearth_result r = { .error = e };
        done(call, &r);
}

/* Its connection is gone, and with it the daemon's answer. */
void call_deliver_cancelled(hearth_call *call) {
        struct hearth_generated g = { .finish = "cancelled" };
        struct kept_error kept;
        struct h_error e = {};

        if (call->request == WIRE_generate || call->request == WIRE_resume) {
                if (call->kept) {
                        g.n_generated = (uint32_t)(call->kept->ids.len / sizeof(uint32_t));
                        g.seed = call->kept->seed;
                }
                done(call, &(struct hearth_result){ .generated = &g });
                return;
        }
        h_error_set(&e, HEARTH_E_cancelled, "cancelled by the client");
        kept_error_set(&kept, &e);
        call_deliver_error(call, &kept.pub);
}

static int deliver_tokens(hearth_call *call, const struct schema_msg *m) {
        const struct wire_tokens *w = m->body;
        struct hearth_tokens t = { .text = str(w->text), .n_text = w->n_text, .reasoning = str(w->reasoning),
                                   .n_reasoning = w->n_reasoning, .ids = w->ids, .n_ids = w->n_ids / sizeof(uint32_t) };
        struct hearth_top *top = NULL;

        /* Lists that are shorter than the ids are not handed out: a caller may index them. */
        if (w->logprobs && w->n_logprobs / sizeof(float) == t.n_ids)
                t.logprobs = w->logprobs;
        if (w->n_top > 0 && w->n_top == t.n_ids) {
                top = schema_arena_alloc(m->arena, w->n_top * sizeof(*top));
                if (!top)
                        return -ENOMEM;
                for (size_t i = 0; i < w->n_top; i++) {
                        const struct wire_top_logprobs *p = &w->top[i];
                        size_t n = MIN(p->n_ids / sizeof(uint32_t), p->n_logprobs / sizeof(float));
                        top[i] = (struct hearth_top){ .ids = p->ids, .logprobs = p->logprobs, .n = n,
                                                      .texts = p->n_texts == n ? p->texts : NULL };
                }
                t.top = top;
        }
        call->events.tokens(call->ud, call, &t);
        return 0;
}

int call_deliver_event(hearth_call *call, const struct schema_msg *m) {
        const struct hearth_events *ev = &call->events;

        switch (m->type) {
        case WIRE_progress:
                if (ev->progress) {
                        const struct wire_progress *w = m->body;
                        struct hearth_progress p = { .stage = w->stage, .model = str(w->model), .done = w->done, .total = w->total };
                        ev->progress(call->ud, call, &p);
                }
                break;
        case WIRE_queued:
                if (ev->queued)
                        ev->queued(call->ud, call, ((const struct wire_queued *)m->body)->position);
                break;
        case WIRE_accepted:
                if (ev->accepted) {
                        const struct wire_accepted *w = m->body;
                        struct hearth_accepted a = { .request = w->request, .seed = w->seed, .model = w->model, .slot = w->slot,
                                                     .n_prompt = w->n_prompt, .n_cached = w->n_cached,
                                                     .reused_generated = w->reused_generated, .cache_miss = w->cache_miss,
                                                     .identity = str(w->identity), .roles = w->roles,
                                                     .n_roles = w->n_roles / sizeof(uint32_t) };
                        ev->accepted(call->ud, call, &a);
                }
                break;
        case WIRE_tokens:
                return ev->tokens ? deliver_tokens(call, m) : 0;
        case WIRE_paused:
                if (ev->paused) {
                        const struct wire_paused *w = m->body;
                        ev->paused(call->ud, call, str(w->reason), w->changed);
                }
                break;
        }
        return 0;
}

static int final_error(hearth_call *call, const struct schema_msg *m) {
        const struct wire_error *w = m->body;
        struct h_error e = {};
        struct hearth_error pub;

        wire_failure_to_error(w, &e);
        pub = (struct hearth_error){ .code = hearth_code_name(e.code), .message = e.message, .needed = e.needed,
                                     .available = e.available, .exit_status = hearth_code_exit(e.code),
                                     .retry_after_ms = w->retry_after_ms, .field = w->field,
                                     .nearest = w->nearest, .n_nearest = w->n_nearest,
                                     .holders = w->holders, .n_holders = w->n_holders };
        call_deliver_error(call, &pub);
        return 0;
}

static int final_generated(hearth_call *call, const struct schema_msg *m, const struct wire_generate_reply *w) {
        struct hearth_generated g = { .finish = w->finish, .stop_string = w->stop_string, .n_prompt = w->n_prompt,
                                      .n_cached = w->n_cached, .n_generated = w->n_generated, .n_drafted = w->n_drafted,
                                      .n_accepted = w->n_accepted, .queue_us = w->queue_us, .prefill_us = w->prefill_us,
                                      .first_token_us = w->first_token_us, .decode_us = w->decode_us, .seed = w->seed,
                                      .n_tool_calls = w->n_tool_calls, .changed = w->changed };
        struct hearth_tool_call *calls = schema_arena_alloc(m->arena, w->n_tool_calls * sizeof(*calls));

        if (!calls)
                return -ENOMEM;
        for (size_t i = 0; i < w->n_tool_calls; i++)
                calls[i] = (struct hearth_tool_call){ .id = str(w->tool_calls[i].id), .name = w->tool_calls[i].name,
                                                      .arguments = w->tool_calls[i].arguments };
        g.tool_calls = calls;
        done(call, &(struct hearth_result){ .generated = &g });
        return 0;
}

static int final_models(hearth_call *call, const struct schema_msg *m) {
        const struct wire_models_reply *w = m->body;
        struct hearth_model *list = schema_arena_alloc(m->arena, w->n_models * sizeof(*list));
        const struct hearth_model **pointers = schema_arena_alloc(m->arena, w->n_models * sizeof(*pointers));

        if (!list || !pointers)
                return -ENOMEM;
        for (size_t i = 0; i < w->n_models; i++) {
                const struct wire_model_info *p = &w->models[i];
                list[i] = (struct hearth_model){
                        .name = p->name, .where = p->where, .type = str(p->type), .arch = str(p->arch), .hash = str(p->hash),
                        .note = str(p->note), .bytes = p->bytes, .n_params = p->n_params, .idle_ms = p->idle_ms,
                        .n_ctx = p->n_ctx, .n_ctx_train = p->n_ctx_train, .slots = p->slots, .in_use = p->in_use,
                        .n_parts = p->n_parts, .pinned = p->pinned, .is_default = p->is_default,
                        .can_embed = p->can_embed, .can_chat = p->can_chat, .placement = str(p->placement),
                        .device_bytes = p->device_bytes };
                pointers[i] = &list[i];
        }
        done(call, &(struct hearth_result){ .models = pointers, .n_models = w->n_models,
                                             .dirs = w->dirs, .n_dirs = w->n_dirs, .more = w->more });
        return 0;
}

static int final_requests(hearth_call *call, const struct schema_msg *m) {
        const struct wire_ps_reply *w = m->body;
        struct hearth_request *list = schema_arena_alloc(m->arena, w->n_requests * sizeof(*list));
        const struct hearth_request **pointers = schema_arena_alloc(m->arena, w->n_requests * sizeof(*pointers));

        if (!list || !pointers)
                return -ENOMEM;
        for (size_t i = 0; i < w->n_requests; i++) {
                const struct wire_ps_entry *p = &w->requests[i];
                list[i] = (struct hearth_request){
                        .request = p->request, .client = str(p->client), .user = str(p->user), .model = str(p->model),
                        .phase = p->phase, .pid = p->pid, .uid = p->uid, .slot = p->slot, .position = p->position,
                        .n_prompt = p->n_prompt, .n_cached = p->n_cached, .n_generated = p->n_generated,
                        .tokens_per_s = p->tokens_per_s, .age_ms = p->age_ms, .wait_ms = p->wait_ms };
                pointers[i] = &list[i];
        }
        done(call, &(struct hearth_result){ .requests = pointers, .n_requests = w->n_requests, .more = w->more });
        return 0;
}

static int final_status(hearth_call *call, const struct schema_msg *m) {
        const struct wire_status_reply *w = m->body;
        struct hearth_metric *metrics = schema_arena_alloc(m->arena, w->n_metrics * sizeof(*metrics));
        struct hearth_status s = {
                .daemon = w->daemon, .socket = str(w->socket), .worker = str(w->worker), .device = str(w->device),
                .protocol = w->protocol, .pid = w->pid, .worker_pid = w->worker_pid, .worker_restarts = w->worker_restarts,
                .clients = w->clients, .running = w->running, .waiting = w->waiting, .models_resident = w->models_resident,
                .uptime_ms = w->uptime_ms, .host_bytes = w->host_bytes, .host_budget = w->host_budget,
                .device_bytes = w->device_bytes, .device_budget = w->device_budget, .metrics = metrics, .n_metrics = w->n_metrics,
                .worker_end = str(w->worker_end) };

        if (!metrics)
                return -ENOMEM;
        for (size_t i = 0; i < w->n_metrics; i++)
                metrics[i] = (struct hearth_metric){ .name = w->metrics[i].name, .value = w->metrics[i].value };
        done(call, &(struct hearth_result){ .status = &s });
        return 0;
}

static int final_vectors(hearth_call *call, const struct schema_msg *m) {
        const struct wire_embed_reply *w = m->body;
        struct hearth_vectors v = { .values = w->vectors, .n = w->n, .dim = w->dim, .n_tokens = w->n_tokens };
        size_t n;

        if (!size_mul(w->n, w->dim, &n) || !size_mul(n, sizeof(float), &n) || n != w->n_vectors)
                return -EBADMSG;
        done(call, &(struct hearth_result){ .vectors = &v });
        return 0;
}

static int deliver_final(hearth_call *call, const struct schema_msg *m) {
        switch (m->type) {
        case WIRE_error:
                return final_error(call, m);
        case WIRE_generate_reply:
                return final_generated(call, m, m->body);
        case WIRE_resume_reply: {
                const struct wire_resume_reply *w = m->body;
                struct wire_generate_reply g;

                wire_init_generate_reply(&g);
                g.finish = w->finish;
                g.stop_string = w->stop_string;
                g.n_prompt = w->n_prompt;
                g.n_cached = w->n_cached;
                g.n_generated = w->n_generated;
                g.n_drafted = w->n_drafted;
                g.n_accepted = w->n_accepted;
                g.queue_us = w->queue_us;
                g.prefill_us = w->prefill_us;
                g.first_token_us = w->first_token_us;
                g.decode_us = w->decode_us;
                g.seed = w->seed;
                g.changed = w->changed;
                g.tool_calls = w->tool_calls;
                g.n_tool_calls = w->n_tool_calls;
                return final_generated(call, m, &g);
        }
        case WIRE_tokenize_reply: {
                const struct wire_tokenize_reply *w = m->body;
                struct hearth_ids ids = { .ids = w->ids, .n = w->n_ids / sizeof(uint32_t), .pieces = w->pieces, .n_pieces = w->n_pieces };
                done(call, &(struct hearth_result){ .ids = &ids });
                return 0;
        }
        case WIRE_detokenize_reply: {
                const struct wire_detokenize_reply *w = m->body;
                struct hearth_bytes b = { .data = w->bytes, .n = w->n_bytes };
                done(call, &(struct hearth_result){ .bytes = &b });
                return 0;
        }
        case WIRE_metrics_reply: {
                const struct wire_metrics_reply *w = m->body;
                struct hearth_bytes b = { .data = w->text, .n = w->n_text };
                done(call, &(struct hearth_result){ .bytes = &b });
                return 0;
        }
        case WIRE_embed_reply:
                return final_vectors(call, m);
        case WIRE_load_reply: {
                const struct wire_load_reply *w = m->body;
                struct hearth_loaded l = { .model = w->model, .n_ctx = w->n_ctx, .slots = w->slots, .bytes = w->bytes,
                                           .load_us = w->load_us, .cached = w->cached, .placement = str(w->placement),
                                           .n_layers = w->n_layers, .gpu_layers = w->gpu_layers, .device_bytes = w->device_bytes,
                                           .host_weights = w->host_weights };
                done(call, &(struct hearth_result){ .loaded = &l });
                return 0;
        }
        case WIRE_unload_reply:
                done(call, &(struct hearth_result){ .freed_bytes = ((const struct wire_unload_reply *)m->body)->bytes });
                return 0;
        case WIRE_models_reply:
                return final_models(call, m);
        case WIRE_ps_reply:
                return final_requests(call, m);
        case WIRE_status_reply:
                return final_status(call, m);
        default: /* replies without content: ping, credit */
                done(call, &(struct hearth_result){});
                return 0;
        }
}

int call_deliver_final(hearth_call *call, const struct schema_msg *m) {
        struct kept_error kept;
        struct h_error e = {};
        int r = deliver_final(call, m);

        if (r == 0)
                return 0;
        /* 'done' comes in any case. */
        if (r == -EBADMSG)
                h_error_set(&e, HEARTH_E_protocol, "the daemon's reply to '%s' has sizes that don't fit together",
                            wire_schema.descs[call->request].name);
        else
                h_error_from_errno(&e, r, "receiving a reply");
        kept_error_set(&kept, &e);
        call_deliver_error(call, &kept.pub);
        return 0;
}
