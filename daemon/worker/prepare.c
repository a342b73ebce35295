/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a client's message to token ids and sampling parameters; and the
 * requests that need no engine at all. Every refusal happens here, before a
 * token is evaluated. Text of users and tools never becomes a control token:
 * only the template's own text may (and a prompt whose sender says so).
 */
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "daemon/worker/reply.h"
#include "daemon/worker/worker.h"
#include "engine/text/template.h"
#include "ipc/payload.h"

struct task *task_ref(struct task *t) {
        atomic_fetch_add(&t->refs, 1);
        return t;
}

struct task *task_unref(struct task *t) {
        if (!t || atomic_fetch_sub(&t->refs, 1) != 1)
                return NULL;
        schema_msg_free(&t->msg);
        fd_close(t->payload);
        tok_ids_free(&t->feed);
        free(t->name);
        free(t->identity);
        free(t->resume);
        free(t->runs);
        free(t->ends);
        free(t->bias);
        free(t->mask);
        free(t->roles);
        free(t->vectors);
        buf_free(&t->held);
        buf_free(&t->reasoning);
        toolcall_out_free(&t->parsed);
        task_free_calls(t);
        toolcall_parser_free(t->parser);
        json_decref(t->tools);
        grammar_state_free(t->grammar_state);
        grammar_free(t->grammar);
        atomic_fetch_sub(&t->model->n_tasks, 1);
        engine_wake(t->worker); /* its model may close now */
        wmodel_unref(t->model);
        free(t);
        return NULL;
}

void task_free_calls(struct task *t) {
        for (size_t i = 0; i < t->n_calls; i++) {
                free(t->calls[i].id);
                free(t->calls[i].name);
                free(t->calls[i].args);
        }
        free(t->calls);
        t->calls = NULL;
        t->n_calls = 0;
}

static int need_tokenizer(const struct task *t, struct h_error *err) {
        if (t->model->tok)
                return 0;
        return h_error_set(err, HEARTH_E_unsupported, "%s has no vocabulary: only prompt_ids can be used with it", t->name);
}

#define COUNTED_BYTES (64u << 10) /* a text up to this length is counted to its end, so that the message says what would fit */

static bool unwanted(void *ud) {
        const struct task *t = ud;
        return atomic_load(&t->cancel) || atomic_load(&t->model->closing);
}

/* 'most': ids that can be used, with those in out; SIZE_MAX: any number. 'what': of the request. */
static int encode_spans(struct task *t, const char *what, const char *text, const struct tok_span *spans, size_t n_spans, size_t n,
                        unsigned flags, size_t most, struct tok_ids *out, struct h_error *err) {
        struct tok_bounds bounds = { .max_ids = n > COUNTED_BYTES ? most : SIZE_MAX, .stop = unwanted, .userdata = t };
        int r = tok_encode_bounded(t->model->tok, text, spans, n_spans, flags, &bounds, out);

        if (r == -EILSEQ)
                return h_error_set(err, HEARTH_E_bad_request, "the text has a character that %s's vocabulary can't write", t->name);
        if (r == -ENOSPC)
                return h_error_counts(err, HEARTH_E_prompt_too_long, bounds.at_least - (most - t->model->n_ctx), t->model->n_ctx,
                                      "%s has at least %zu tokens; %s is loaded with a context of %u (the model allows %u). Nothing was cut",
                                      what, bounds.at_least - (most - t->model->n_ctx), t->name, t->model->n_ctx, t->model->info.n_ctx_train);
        return r;
}

static int encode(struct task *t, const char *text, size_t n, unsigned flags, struct h_error *err) {
        return encode_spans(t, "the prompt", text, &(struct tok_span){ .len = n, .flags = flags }, 1, n, flags, t->model->n_ctx, &t->feed, err);
}

/* u32le ids from a client, each checked against the vocabulary. */
static int take_ids(const struct task *t, const void *p, size_t n, const char *field, struct tok_ids *out, struct h_error *err) {
        if (n % 4)
                return h_error_set(err, HEARTH_E_bad_request, "%s has %zu bytes, not a multiple of 4", field, n);
        for (size_t i = 0; i < n / 4; i++) {
                uint32_t id;
                int r;

                memcpy(&id, (const char *)p + 4 * i, 4);
                if (id >= t->model->info.n_vocab)
                        return h_error_counts(err, HEARTH_E_bad_request, id, t->model->info.n_vocab,
                                              "%s[%zu] is %u, the vocabulary of %s has %u tokens", field, i, id, t->name,
                                              t->model->info.n_vocab);
                r = tok_ids_push(out, id);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* ---- chat ---- */

static json_t *message(const char *role, const char *text, size_t n) {
        return json_pack("{s:s, s:o}", "role", role, "content", json_stringn(text, n));
}

static int parse_json(const char *field, const char *text, size_t n, json_type want, json_t **ret, struct h_error *err) {
        json_error_t e;
        json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);

        if (!j)
                return h_error_set(err, HEARTH_E_bad_request, "%s is no JSON: line %d, column %d: %s", field, e.line, e.column, e.text);
        if (json_typeof(j) != want) {
                json_decref(j);
                return h_error_set(err, HEARTH_E_bad_request, "%s must be a JSON %s", field, want == JSON_ARRAY ? "array" : "object");
        }
        *ret = j;
        return 0;
}

static void add_special(const struct tok *tok, json_t *vars, const char *name, enum tok_special which) {
        int64_t id = tok_special_id(tok, which);
        size_t n = 0;
        const char *p = id >= 0 ? tok_piece(tok, (uint32_t)id, &n) : NULL;

        json_object_set_new(vars, name, p ? json_stringn(p, n) : json_string(""));
}

/* What the daemon gives to every template: a client's variable of that name would replace the conversation itself. */
static int check_vars(const json_t *vars, struct h_error *err) {
        static const struct { const char *name, *instead; } reserved[] = {
                { "messages", "send the conversation in messages" }, { "tools", "send them in tools" },
                { "bos_token", "it is the vocabulary's" }, { "eos_token", "it is the vocabulary's" },
                { "raise_exception", "it is a function of every template" }, { "strftime_now", "it is a function of every template" },
                { "cycler", "it is a function of every template" }, { "dict", "it is a function of every template" },
                { "joiner", "it is a function of every template" }, { "namespace", "it is a function of every template" },
                { "range", "it is a function of every template" },
        };

        for (size_t i = 0; i < ELEMENTSOF(reserved); i++)
                if (json_object_get(vars, reserved[i].name))
                        return h_error_set(err, HEARTH_E_bad_request, "template_vars must not set %s: %s", reserved[i].name,
                                           reserved[i].instead);
        return 0;
}

static int chat_input(const struct task *t, json_t **messages, json_t **tools, json_t **vars, struct h_error *err) {
        const struct wire_generate *g = t->msg.body;
        size_t i;
        json_t *v;
        int r;

        if (g->n_messages)
                r = parse_json("messages", g->messages, g->n_messages, JSON_ARRAY, messages, err);
        else
                r = (*messages = json_array()) ? 0 : -ENOMEM;
        if (r < 0)
                return r;
        if (g->has_prompt && g->n_prompt)
                json_array_append_new(*messages, message("user", g->prompt, g->n_prompt));
        if (g->has_system && g->n_system)
                json_array_insert_new(*messages, 0, message("system", g->system, g->n_system));
        if (json_array_size(*messages) == 0)
                return h_error_set(err, HEARTH_E_bad_request, "a chat needs messages, or a prompt as the user's message");
        json_array_foreach(*messages, i, v)
                if (!json_is_object(v) || !json_is_string(json_object_get(v, "role")))
                        return h_error_set(err, HEARTH_E_bad_request, "messages[%zu] must be an object with a role", i);
        if (g->n_tools && (r = parse_json("tools", g->tools, g->n_tools, JSON_ARRAY, tools, err)) < 0)
                return r;
        if (g->n_template_vars)
                r = parse_json("template_vars", g->template_vars, g->n_template_vars, JSON_OBJECT, vars, err);
        if (r == 0 && *vars)
                r = check_vars(*vars, err);
        else if (r == 0)
                r = (*vars = json_object()) ? 0 : -ENOMEM;
        if (r < 0)
                return r;
        add_special(t->model->tok, *vars, "bos_token", TOK_ID_BOS);
        add_special(t->model->tok, *vars, "eos_token", TOK_ID_EOS);
        if (!json_object_get(*vars, "add_generation_prompt"))
                json_object_set_new(*vars, "add_generation_prompt", json_true());
        return 0;
}

/* The template writes its own first token, where the model wants one; if it does not, the vocabulary's rule holds. */
static unsigned bos_flag(const struct tok *tok, const struct tmpl_output *o) {
        int64_t id = tok_special_id(tok, TOK_ID_BOS);
        size_t n = 0;
        const char *p = id >= 0 ? tok_piece(tok, (uint32_t)id, &n) : NULL;

        return p && n && o->text.len >= n && memcmp(o->text.data, p, n) == 0 ? 0 : TOK_BOS;
}

/*
 * Reads the answer's notation, where the template has one. Calls are looked for
 * only if tools were offered: else what looks like one is just text.
 */
static int make_parser(struct task *t, const struct tmpl_output *out) {
        struct toolcall_style style = t->model->style;

        if (!t->tools)
                style.family = NULL;
        if (!style.family && !style.think)
                return 0;
        return toolcall_parser_new(style, out->text.data ? out->text.data : "", out->text.len, t->tools, t->seed, &t->parser);
}

/*
 * Some templates build their control tokens around the role: '<|' + role + '|>'.
 * So a role's usual names count as the template's own text; others, which a
 * client could choose to spell any control token, don't.
 */
static bool usual_role(const char *p, size_t n) {
        static const char *const roles[] = { "system", "developer", "user", "assistant", "model", "tool", "function", "ipython",
                                             "observation" };

        for (size_t i = 0; i < ELEMENTSOF(roles); i++)
                if (strlen(roles[i]) == n && memcmp(roles[i], p, n) == 0)
                        return true;
        return false;
}

/* Segments as spans; neighbours of one kind become one, so that a token may lie across them. spans has room for all. */
static size_t make_spans(const struct tmpl_output *out, struct tok_span *spans) {
        size_t n = 0;

        for (size_t i = 0; i < out->n_seg; i++) {
                const struct tmpl_segment *seg = &out->seg[i];
                bool special = seg->trusted || usual_role(out->text.data + seg->off, seg->len);
                unsigned flags = special ? TOK_SPECIAL : 0;

                if (n && spans[n - 1].flags == flags)
                        spans[n - 1].len += seg->len;
                else if (seg->len)
                        spans[n++] = (struct tok_span){ .len = seg->len, .flags = flags };
        }
        return n;
}

static int prepare_chat(struct task *t, struct h_error *err) {
        _cleanup_(json_decrefp) json_t *messages = NULL, *vars = NULL;
        _cleanup_(freep) struct tok_span *spans = NULL;
        struct tmpl_output out = {};
        struct tmpl_input in;
        int r;

        if (!t->model->tmpl) {
                if (t->model->tmpl_err.code != HEARTH_OK && t->model->tmpl_err.code != HEARTH_E_template_missing)
                        return h_error_set(err, t->model->tmpl_err.code, "%s's chat template can't be used: %s", t->name,
                                           t->model->tmpl_err.message);
                return h_error_set(err, HEARTH_E_template_missing,
                                   "%s has no chat template; use it with kind `complete`", t->name);
        }
        r = chat_input(t, &messages, &t->tools, &vars, err);
        if (r < 0)
                return r;
        in = (struct tmpl_input){ .messages = messages, .tools = t->tools, .vars = vars, .now = (int64_t)time(NULL) };
        r = tmpl_render(t->model->tmpl, &in, &out, err);
        if (r == 0) {
                spans = h_new0(struct tok_span, out.n_seg);
                r = spans ? 0 : -ENOMEM;
        }
        if (r == 0)
                r = unwanted(t) ? -ECANCELED
                        : encode_spans(t, "the prompt", out.text.data ? out.text.data : "", spans, make_spans(&out, spans), out.text.len,
                                       bos_flag(t->model->tok, &out), t->model->n_ctx, &t->feed, err);
        if (r == 0)
                r = make_parser(t, &out);
        tmpl_output_free(&out);
        return r;
}

/* ---- fill in the middle ---- */

static int push_special(struct task *t, enum tok_special which) {
        int64_t id = tok_special_id(t->model->tok, which);
        return id < 0 ? 0 : tok_ids_push(&t->feed, (uint32_t)id);
}

/* prefix token, text before, suffix token, text after, middle token: the order ("PSM") the models with these tokens are trained on. */
static int prepare_fim(struct task *t, struct h_error *err) {
        const struct wire_generate *g = t->msg.body;
        const struct tok *tok = t->model->tok;
        int r;

        if (tok_special_id(tok, TOK_ID_FIM_PRE) < 0 || tok_special_id(tok, TOK_ID_FIM_SUF) < 0 || tok_special_id(tok, TOK_ID_FIM_MID) < 0)
                return h_error_set(err, HEARTH_E_unsupported, "%s has no tokens for filling in the middle (kind `fim`); use a code model "
                                   "that has them", t->name);
        r = encode(t, "", 0, TOK_BOS, err);
        if (r == 0)
                r = push_special(t, TOK_ID_FIM_PRE);
        if (r == 0)
                r = encode(t, g->prefix ? g->prefix : "", g->n_prefix, 0, err);
        if (r == 0)
                r = push_special(t, TOK_ID_FIM_SUF);
        if (r == 0)
                r = encode(t, g->suffix ? g->suffix : "", g->n_suffix, 0, err);
        if (r == 0)
                r = push_special(t, TOK_ID_FIM_MID);
        return r;
}

/* ---- generation ---- */

static int prepare_prompt(struct task *t, struct h_error *err) {
        const struct wire_generate *g = t->msg.body;
        const char *kind = g->n_kind ? g->kind : g->has_messages ? "chat" : g->has_prefix || g->has_suffix ? "fim" : "complete";
        int r;

        if (strcmp(kind, "chat") && strcmp(kind, "complete") && strcmp(kind, "fim"))
                return h_error_set(err, HEARTH_E_bad_request, "kind is `complete`, `chat` or `fim`, not `%s`", kind);
        if (!t->model->info.can_generate)
                return h_error_set(err, HEARTH_E_unsupported, "%s (%s) gives embeddings, no text", t->name, t->model->info.arch);
        if (g->has_prompt_ids) {
                if (strcmp(kind, "complete"))
                        return h_error_set(err, HEARTH_E_bad_request, "prompt_ids goes with kind `complete`, not with `%s`", kind);
                if (g->n_prompt)
                        return h_error_set(err, HEARTH_E_bad_request, "prompt and prompt_ids exclude each other");
                return take_ids(t, g->prompt_ids, g->n_prompt_ids, "prompt_ids", &t->feed, err);
        }
        r = need_tokenizer(t, err);
        if (r < 0)
                return r;
        if (strcmp(kind, "chat") == 0)
                return prepare_chat(t, err);
        if (strcmp(kind, "fim") == 0)
                return prepare_fim(t, err);
        return encode(t, g->prompt ? g->prompt : "", g->n_prompt, (g->special ? TOK_SPECIAL : 0) | (g->no_bos ? 0 : TOK_BOS), err);
}

static int prepare_bias(struct task *t, const struct wire_generate *g, struct h_error *err) {
        struct tok_ids ids = {};
        int r;

        if (g->n_bias_ids != g->n_bias_values)
                return h_error_counts(err, HEARTH_E_bad_request, g->n_bias_ids / 4, g->n_bias_values / 4,
                                      "bias_ids has %zu bytes and bias_values %zu; they go together", g->n_bias_ids, g->n_bias_values);
        if (!g->n_bias_ids)
                return 0;
        r = take_ids(t, g->bias_ids, g->n_bias_ids, "bias_ids", &ids, err);
        t->bias = r == 0 ? h_new0(struct eng_bias, ids.n) : NULL;
        if (r == 0 && !t->bias)
                r = -ENOMEM;
        for (size_t i = 0; r == 0 && i < ids.n; i++) {
                float v;

                memcpy(&v, (const char *)g->bias_values + 4 * i, 4);
                if (isnan(v) || v == INFINITY)
                        r = h_error_set(err, HEARTH_E_bad_request, "bias_values[%zu] is %f; finite values and -inf are allowed", i, (double)v);
                t->bias[i] = (struct eng_bias){ .token = ids.ids[i], .bias = v };
        }
        t->sampling.bias = t->bias;
        t->sampling.n_bias = r == 0 ? ids.n : 0;
        tok_ids_free(&ids);
        return r;
}

static int prepare_grammar(struct task *t, const struct wire_generate *g, struct h_error *err) {
        const struct grammar_vocab *vocab;
        int r;

        /* An empty one is a mistake to be told of, not the wish to go without. */
        if (g->has_json_schema && g->has_grammar)
                return h_error_set(err, HEARTH_E_bad_request, "json_schema and grammar exclude each other");
        if (!g->has_json_schema && !g->has_grammar)
                return 0;
        r = need_tokenizer(t, err);
        if (r == 0)
                r = g->has_json_schema ? grammar_from_json_schema(g->json_schema, g->n_json_schema, &t->grammar, err)
                                       : grammar_from_gbnf(g->grammar, g->n_grammar, &t->grammar, err);
        if (r == 0)
                r = wmodel_vocab(t->model, &vocab, err);
        if (r == 0)
                r = grammar_state_new(t->grammar, vocab, &t->grammar_state);
        if (r == -E2BIG)
                return h_error_set(err, HEARTH_E_grammar_invalid, "after 0 tokens the grammar or schema allows too many ways to read "
                                   "the text; write it with fewer alternatives that begin alike");
        if (r < 0)
                return r;
        t->mask = h_new0(uint64_t, DIV_ROUND_UP((size_t)t->model->info.n_vocab, 64));
        t->sampling.mask = t->mask;
        return t->mask ? 0 : -ENOMEM;
}

/*
 * What was generated before follows the prompt. A client may have said what it
 * was, so every id is looked at. The last one may be one more than fits: it was
 * sampled at the context's end.
 */
static int prepare_resume(struct task *t, struct h_error *err) {
        int r = 0;

        if (t->n_resume > (uint64_t)t->model->n_ctx + 1 - t->n_prompt)
                return h_error_counts(err, HEARTH_E_bad_request, t->n_prompt + t->n_resume, t->model->n_ctx,
                                      "the prompt has %u tokens and %zu ids come with the resume; %s is loaded with a context of %u: "
                                      "they can't have been generated with it", t->n_prompt, t->n_resume, t->name, t->model->n_ctx);
        for (size_t i = 0; i < t->n_resume && r == 0; i++)
                r = t->resume[i] < t->model->info.n_vocab ? tok_ids_push(&t->feed, t->resume[i])
                        : h_error_counts(err, HEARTH_E_bad_request, t->resume[i], t->model->info.n_vocab,
                                         "resume.ids[%zu] is %u, the vocabulary of %s has %u tokens", i, t->resume[i], t->name,
                                         t->model->info.n_vocab);
        return r;
}

static int prepare_generate(struct task *t, struct h_error *err) {
        const struct wire_generate *g = t->msg.body;
        uint64_t need;
        int r;

        t->sampling = (struct eng_sampling){
                .temperature = (float)g->temperature, .top_k = g->top_k, .top_p = (float)g->top_p, .min_p = (float)g->min_p,
                .repeat_penalty = (float)g->repeat_penalty, .presence_penalty = (float)g->presence_penalty,
                .frequency_penalty = (float)g->frequency_penalty, .penalty_last = g->penalty_last, .seed = t->seed,
                .n_top = g->logprobs,
        };
        for (size_t i = 0; i < g->n_stop; i++)
                if (g->len_stop[i] == 0)
                        return h_error_set(err, HEARTH_E_bad_request, "stop[%zu] is empty", i);
        t->stops = (struct stop_list){ .text = g->stop, .len = g->len_stop, .n = g->n_stop };
        r = prepare_prompt(t, err);
        if (r < 0)
                return r;
        if (t->feed.n == 0)
                return h_error_set(err, HEARTH_E_bad_request, "the prompt has no tokens");
        /* Room for the prompt and what was asked for; without max_tokens, for one token. Nothing is cut. */
        need = t->feed.n + (g->prewarm ? 0 : g->max_tokens ? g->max_tokens : 1);
        if (need > t->model->n_ctx) {
                if (g->max_tokens && !g->prewarm && t->feed.n < t->model->n_ctx)
                        return h_error_counts(err, HEARTH_E_prompt_too_long, need, t->model->n_ctx,
                                              "the prompt has %zu tokens and max_tokens is %u: %llu together; %s is loaded with a context "
                                              "of %u (the model allows %u). Nothing was cut", t->feed.n, g->max_tokens,
                                              (unsigned long long)need, t->name, t->model->n_ctx, t->model->info.n_ctx_train);
                return h_error_counts(err, HEARTH_E_prompt_too_long, need, t->model->n_ctx,
                                      "the prompt has %zu tokens; %s is loaded with a context of %u (the model allows %u). Nothing was cut",
                                      t->feed.n, t->name, t->model->n_ctx, t->model->info.n_ctx_train);
        }
        t->max_tokens = g->max_tokens ? g->max_tokens : UINT32_MAX;
        t->n_prompt = (uint32_t)t->feed.n;
        r = prepare_bias(t, g, err);
        if (r == 0)
                r = prepare_resume(t, err);
        if (t->model->tok)
                tok_stream_init(&t->stream, t->model->tok, TOK_CONTINUE | (t->parser ? TOK_SPECIAL : 0));
        return r;
}

/* ---- the others ---- */

static int prepare_embed(struct task *t, struct h_error *err) {
        const struct wire_embed *e = t->msg.body;
        int r = need_tokenizer(t, err);

        if (r < 0)
                return r;
        if (!t->model->info.can_embed)
                return h_error_set(err, HEARTH_E_unsupported, "%s (%s) gives no embeddings", t->name, t->model->info.arch);
        if ((uint64_t)e->n_texts * t->model->info.n_embd * sizeof(float) > (15u << 20))
                return h_error_counts(err, HEARTH_E_too_large, (uint64_t)e->n_texts * t->model->info.n_embd * sizeof(float), 15u << 20,
                                      "%zu vectors of %u values don't fit one reply; send fewer texts at once", e->n_texts,
                                      t->model->info.n_embd);
        t->ends = h_new0(size_t, e->n_texts);
        t->vectors = h_calloc(e->n_texts, t->model->info.n_embd * sizeof(float));
        if (!t->ends || !t->vectors)
                return -ENOMEM;
        for (size_t i = 0; i < e->n_texts; i++) {
                size_t before = t->feed.n;
                char what[32];

                snprintf(what, sizeof(what), "texts[%zu]", i);
                r = encode_spans(t, what, e->texts[i], &(struct tok_span){ .len = e->len_texts[i] }, 1, e->len_texts[i], TOK_BOS | TOK_EOS,
                                 before + t->model->n_ctx, &t->feed, err);
                if (r < 0)
                        return r;
                if (t->feed.n == before)
                        return h_error_set(err, HEARTH_E_bad_request, "texts[%zu] has no tokens", i);
                if (t->feed.n - before > t->model->n_ctx)
                        return h_error_counts(err, HEARTH_E_prompt_too_long, t->feed.n - before, t->model->n_ctx,
                                              "texts[%zu] has %zu tokens; %s is loaded with a context of %u. Nothing was cut", i,
                                              t->feed.n - before, t->name, t->model->n_ctx);
                t->ends[t->n_ends++] = t->feed.n;
        }
        t->n_prompt = (uint32_t)t->feed.n;
        return 0;
}

static int do_tokenize(struct task *t, struct h_error *err) {
        const struct wire_tokenize *q = t->msg.body;
        _cleanup_(buf_free) struct buf frame = {};
        struct wire_tokenize_reply msg;
        int r = need_tokenizer(t, err);

        if (r == 0)
                r = encode_spans(t, "the text", q->text, &(struct tok_span){ .len = q->n_text, .flags = q->special ? TOK_SPECIAL : 0 }, 1,
                                 q->n_text, q->bos ? TOK_BOS : 0, SIZE_MAX, &t->feed, err);
        if (r < 0)
                return r;
        wire_init_tokenize_reply(&msg);
        msg.ids = t->feed.ids ? (const void *)t->feed.ids : "";
        msg.n_ids = t->feed.n * 4;
        r = wire_encode_tokenize_reply(&frame, t->msg.id, &msg, err);
        if (r == 0)
                reply_frame(t, &frame);
        return r;
}

static int do_detokenize(struct task *t, struct h_error *err) {
        const struct wire_detokenize *q = t->msg.body;
        _cleanup_(buf_free) struct buf frame = {}, text = {};
        struct wire_detokenize_reply msg;
        struct tok_ids ids = {};
        int r = need_tokenizer(t, err);

        if (r == 0)
                r = take_ids(t, q->ids, q->n_ids, "ids", &ids, err);
        for (size_t i = 0; r == 0 && i < ids.n; i++) {
                size_t n;
                const char *p = tok_piece(t->model->tok, ids.ids[i], &n);

                if (p && (q->special || tok_kind(t->model->tok, ids.ids[i]) != TOK_CONTROL))
                        r = buf_append(&text, p, n);
        }
        tok_ids_free(&ids);
        if (r < 0)
                return r;
        wire_init_detokenize_reply(&msg);
        msg.bytes = text.data ? text.data : "";
        msg.n_bytes = text.len;
        r = wire_encode_detokenize_reply(&frame, t->msg.id, &msg, err);
        if (r == 0)
                reply_frame(t, &frame);
        return r;
}

/* The task goes where it goes next: nowhere if it was answered, to 'next', or to the engine. */
static void prepared(struct task *t, int r, struct h_error *err, struct jobs *next) {
        if (r == -ECANCELED)
                next = NULL; /* the engine thread says the end of what was cancelled */
        else if (r < 0) {
                h_error_from_errno(err, r, "preparing the request");
                reply_error(t, err);
        }
        if (atomic_load(&t->done))
                task_unref(t);
        else if (next)
                jobs_push(next, &t->job);
        else
                engine_add_task(t->worker, t);
}

void task_prepare_grammar(struct job *j) {
        struct task *t = CONTAINER_OF(j, struct task, job);
        struct h_error err = {};
        int r = prepare_grammar(t, t->msg.body, &err);

        prepared(t, r, &err, NULL);
}

void task_prepare(struct job *j) {
        struct task *t = CONTAINER_OF(j, struct task, job);
        const struct wire_generate *g = t->msg.body;
        struct jobs *next = NULL;
        struct h_error err = {};
        int r;

        switch (t->msg.type) {
        case WIRE_generate:
                r = g->payload ? payload_take(&wire_schema, &t->msg, g->payload, t->payload, &err) : 0;
                t->payload = fd_close(t->payload);
                if (r == 0)
                        r = unwanted(t) ? -ECANCELED : prepare_generate(t, &err);
                if (g->has_json_schema || g->has_grammar) {
                        j->run = task_prepare_grammar;
                        next = &t->worker->compiling;
                }
                break;
        case WIRE_embed: r = prepare_embed(t, &err); break;
        case WIRE_tokenize: r = do_tokenize(t, &err); break;
        case WIRE_detokenize: r = do_detokenize(t, &err); break;
        default: r = h_error_set(&err, HEARTH_E_internal, "the worker can't serve this kind of request"); break;
        }
        prepared(t, r, &err, next);
}
