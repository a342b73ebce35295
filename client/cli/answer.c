/* SPDX-License-Identifier: Apache-2.0 */
/* One generation as it streams: as text, or as JSON events. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "client/cli/cli.h"

/* ---- JSON ---- */

static void print_event(struct cli_answer *a, json_t *o) {
        cli_print_json(o, JSON_REAL_PRECISION(9));
        if (!cli_push(a->cli) && a->cli->current)
                (void)hearth_call_cancel(a->cli->current); /* nobody reads any more; cli_flush() says so at the end */
}

static json_t *ids_json(const uint32_t *ids, size_t n) {
        json_t *l = json_array();
        for (size_t i = 0; i < n; i++)
                json_array_append_new(l, json_integer(ids[i]));
        return l;
}

static json_t *floats_json(const float *v, size_t n) {
        json_t *l = json_array();
        for (size_t i = 0; i < n; i++)
                json_array_append_new(l, isfinite(v[i]) ? json_real((double)v[i]) : json_null());
        return l;
}

/* Seeds are u64; JSON integers here are i64, so a large one is written as a string rather than wrong. */
static json_t *u64_json(uint64_t v) {
        char s[24];
        if (v <= INT64_MAX)
                return json_integer((json_int_t)v);
        snprintf(s, sizeof(s), "%llu", (unsigned long long)v);
        return json_string(s);
}

static json_t *tokens_json(const struct hearth_tokens *t) {
        json_t *o = json_pack("{s:s, s:s%, s:o}", "event", "tokens", "text", t->text, t->n_text, "ids", ids_json(t->ids, t->n_ids));

        if (t->n_reasoning)
                json_object_set_new(o, "reasoning", json_stringn(t->reasoning, t->n_reasoning));
        if (t->logprobs)
                json_object_set_new(o, "logprobs", floats_json(t->logprobs, t->n_ids));
        if (t->top) {
                json_t *l = json_array();
                for (size_t i = 0; i < t->n_ids; i++) {
                        json_t *texts = json_array();
                        for (size_t k = 0; t->top[i].texts && k < t->top[i].n; k++)
                                json_array_append_new(texts, json_string(t->top[i].texts[k]));
                        json_array_append_new(l, json_pack("{s:o, s:o, s:o}", "ids", ids_json(t->top[i].ids, t->top[i].n),
                                                           "logprobs", floats_json(t->top[i].logprobs, t->top[i].n), "texts", texts));
                }
                json_object_set_new(o, "top", l);
        }
        return o;
}

static json_t *done_json(const struct hearth_generated *g) {
        json_t *o = json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o}", "event", "done", "finish", g->finish,
                              "n_prompt", (int)g->n_prompt, "n_cached", (int)g->n_cached, "n_generated", (int)g->n_generated,
                              "n_drafted", (int)g->n_drafted, "n_accepted", (int)g->n_accepted, "queue_us", u64_json(g->queue_us),
                              "prefill_us", u64_json(g->prefill_us), "first_token_us", u64_json(g->first_token_us),
                              "decode_us", u64_json(g->decode_us), "seed", u64_json(g->seed));

        if (g->stop_string && *g->stop_string)
                json_object_set_new(o, "stop_string", json_string(g->stop_string));
        if (g->n_tool_calls > 0) {
                json_t *l = json_array();
                for (size_t i = 0; i < g->n_tool_calls; i++)
                        json_array_append_new(l, json_pack("{s:s, s:s, s:s}", "id", g->tool_calls[i].id, "name",
                                                           g->tool_calls[i].name, "arguments", g->tool_calls[i].arguments));
                json_object_set_new(o, "tool_calls", l);
        }
        return o;
}

static json_t *error_json(const struct hearth_error *e) {
        json_t *o = json_pack("{s:s, s:s, s:s}", "event", "error", "code", e->code, "message", e->message);
        if (e->needed || e->available) {
                json_object_set_new(o, "needed", u64_json(e->needed));
                json_object_set_new(o, "available", u64_json(e->available));
        }
        return o;
}

/* ---- events ---- */

static void on_progress(void *ud, hearth_call *call, const struct hearth_progress *p) {
        struct cli_answer *a = ud;
        if (a->json)
                print_event(a, json_pack("{s:s, s:s, s:s, s:o, s:o}", "event", "progress", "stage", p->stage, "model", p->model,
                                         "done", u64_json(p->done), "total", u64_json(p->total)));
        else
                cli_progress(a->cli, "loading", *p->model ? p->model : a->model ? a->model : "the model", p->done, p->total);
}

static void on_queued(void *ud, hearth_call *call, uint32_t position) {
        struct cli_answer *a = ud;
        char where[32];
        snprintf(where, sizeof(where), "position %u", position);
        if (a->json)
                print_event(a, json_pack("{s:s, s:i}", "event", "queued", "position", (int)position));
        else
                cli_progress(a->cli, "waiting for a slot,", where, 0, 0);
}

static void on_accepted(void *ud, hearth_call *call, const struct hearth_accepted *acc) {
        struct cli_answer *a = ud;
        if (a->json)
                print_event(a, json_pack("{s:s, s:o, s:o, s:s, s:i, s:i, s:i}", "event", "accepted", "request",
                                         u64_json(acc->request), "seed", u64_json(acc->seed), "model", acc->model, "slot",
                                         (int)acc->slot, "n_prompt", (int)acc->n_prompt, "n_cached", (int)acc->n_cached));
}

/* Thinking is not the answer: shown dim on stderr, and only to a person. */
static void show_reasoning(struct cli_answer *a, const struct hearth_tokens *t) {
        if (t->n_reasoning == 0 || !a->cli->err_tty)
                return;
        if (!a->in_reasoning && a->cli->colour)
                fputs("\x1b[2m", stderr);
        a->in_reasoning = true;
        cli_write_text(a->cli, stderr, t->reasoning, t->n_reasoning);
        fflush(stderr);
}

static void end_reasoning(struct cli_answer *a) {
        if (a->in_reasoning)
                fputs(a->cli->colour ? "\x1b[0m\n" : "\n", stderr);
        a->in_reasoning = false;
}

static void on_tokens(void *ud, hearth_call *call, const struct hearth_tokens *t) {
        struct cli_answer *a = ud;

        if (a->json) {
                print_event(a, tokens_json(t));
                return;
        }
        cli_progress_clear(a->cli);
        show_reasoning(a, t);
        if (t->n_text == 0)
                return;
        end_reasoning(a);
        if (a->keep_text && buf_append(&a->text, t->text, t->n_text) < 0)
                (void)hearth_call_cancel(call);
        a->any = true;
        a->ends_with_newline = t->text[t->n_text - 1] == '\n';
        if (cli_write_text(a->cli, stdout, t->text, t->n_text) < 0 || !cli_push(a->cli))
                (void)hearth_call_cancel(call);
}

static void on_paused(void *ud, hearth_call *call, const char *reason, bool changed) {
        struct cli_answer *a = ud;

        if (a->json)
                print_event(a, json_pack("{s:s, s:s, s:b}", "event", "paused", "reason", reason, "changed", (int)changed));
        else if (a->cli->err_tty) {
                fputs("\nhearth: ", stderr);
                cli_write_clean(stderr, *reason ? reason : "the daemon's worker restarts");
                fprintf(stderr, "; continuing%s\n", changed ? ", the text may differ from an undisturbed run" : "");
        }
}

static void show_stats(struct cli_answer *a, const struct hearth_generated *g) {
        char n[32], cached[32], rate[32];

        fprintf(stderr, "  first token %.0f ms", (double)g->first_token_us / 1e3);
        cli_human_count(g->n_prompt, n);
        fprintf(stderr, " · prompt %s tokens", n);
        cli_human_count(g->n_cached, cached);
        if (g->n_cached)
                fprintf(stderr, " (%s cached)", cached);
        if (g->prefill_us && g->n_prompt > g->n_cached) {
                cli_human_count((uint64_t)((g->n_prompt - g->n_cached) * 1e6 / (double)g->prefill_us + 0.5), rate);
                fprintf(stderr, " %s tok/s", rate);
        }
        cli_human_count(g->n_generated, n);
        fprintf(stderr, " · answer %s tokens", n);
        if (g->decode_us && g->n_generated > 1) {
                cli_human_count((uint64_t)((g->n_generated - 1) * 1e6 / (double)g->decode_us + 0.5), rate);
                fprintf(stderr, " %s tok/s", rate);
        }
        if (g->n_drafted)
                fprintf(stderr, " · draft accepted %.0f%%", 100.0 * g->n_accepted / g->n_drafted);
        fputc('\n', stderr);
}

/* An answer that is not what was asked for is no success; with --json its `done` event says why, so nothing is printed. */
static int finish_status(struct cli_answer *a, const char *finish) {
        bool structured = a->cli->args.json_schema || a->cli->args.grammar;
        const char *says = NULL;
        int status = 0;

        if (strcmp(finish, "cancelled") == 0)
                return CLI_EXIT_INTERRUPTED;
        if (strcmp(finish, "deadline") == 0) {
                status = EX_TEMPFAIL;
                says = "the time given with --deadline is over; the answer is incomplete";
        } else if (strcmp(finish, "superseded") == 0) {
                status = EX_TEMPFAIL;
                says = "a newer request took this one's place";
        } else if (strcmp(finish, "context") == 0)
                says = "the model's context is full; the answer ends here";
        if (says && !a->json)
                cli_fail(a->cli, 0, "%s", says);
        /* Prose may end anywhere; half a JSON text is of no use to whom it is piped to. */
        if (!structured || (strcmp(finish, "length") != 0 && strcmp(finish, "context") != 0))
                return status;
        if (!a->json)
                cli_fail(a->cli, 0, "%s; what the %s demands is not complete",
                         *finish == 'l' ? "--max-tokens is reached" : "nothing more fits",
                         a->cli->args.json_schema ? "schema" : "grammar");
        return EX_DATAERR;
}

static void on_done(void *ud, hearth_call *call, const struct hearth_result *r) {
        struct cli_answer *a = ud;
        struct cli *c = a->cli;

        cli_progress_clear(c);
        end_reasoning(a);
        c->current = NULL;
        a->done = true;
        if (a->json) {
                print_event(a, r->error ? error_json(r->error) : done_json(r->generated));
                a->status = r->error ? (c->interrupted ? CLI_EXIT_INTERRUPTED : r->error->exit_status)
                                     : finish_status(a, r->generated->finish);
                return;
        }
        if (a->any && !a->ends_with_newline && (a->newline_at_end || c->out_tty))
                putchar('\n');
        if (r->error && strcmp(r->error->code, "cancelled") == 0) {
                a->status = CLI_EXIT_INTERRUPTED;
                return;
        }
        if (r->error) {
                fflush(stdout);
                a->status = cli_report(c, r->error);
                if (a->any)
                        cli_fail(c, 0, "the answer is incomplete");
                return;
        }
        a->n_generated = r->generated->n_generated;
        fflush(stdout);
        for (size_t i = 0; i < r->generated->n_tool_calls; i++) {
                fputs("hearth: the model calls ", stderr);
                cli_write_clean(stderr, r->generated->tool_calls[i].name);
                fputc('(', stderr);
                cli_write_clean(stderr, r->generated->tool_calls[i].arguments);
                fputs(")\n", stderr);
        }
        a->status = finish_status(a, r->generated->finish);
        if (c->args.stats)
                show_stats(a, r->generated);
}

const struct hearth_events cli_answer_events = { .size = sizeof(cli_answer_events), .progress = on_progress, .queued = on_queued,
                                                 .accepted = on_accepted, .tokens = on_tokens, .paused = on_paused, .done = on_done };

int cli_answer(struct cli *c, const struct hearth_generate *g, struct cli_answer *a) {
        int r;

        c->interrupted = false;
        c->started_us = cli_now_us();
        r = hearth_generate(c->client, g, &cli_answer_events, a, &c->current);
        if (r < 0)
                return cli_request_failed(c, r);
        r = cli_wait(c, &a->done);
        c->current = NULL;
        if (r)
                return r;
        r = cli_flush(c);
        return r ? r : a->status;
}

/* ---- the sampling options ---- */

static int parse_bias(struct cli *c, struct hearth_generate *g, struct cli_generate_files *f) {
        const struct cli_strs *l = &c->args.logit_bias;

        if (l->n == 0)
                return 0;
        f->bias_ids = h_calloc(l->n, sizeof(*f->bias_ids));
        f->bias_values = h_calloc(l->n, sizeof(*f->bias_values));
        if (!f->bias_ids || !f->bias_values)
                return cli_fail(c, EX_OSERR, "out of memory");
        for (size_t i = 0; i < l->n; i++) {
                char *end, *end2;
                unsigned long id = strtoul(l->v[i], &end, 10);
                double v = *end == '=' ? strtod(end + 1, &end2) : 0;
                if (end == l->v[i] || *end != '=' || end2 == end + 1 || *end2 || id > UINT32_MAX || isnan(v))
                        return cli_fail(c, EX_USAGE, "'%s' is no value for --logit-bias: TOKEN_ID=NUMBER is expected", l->v[i]);
                f->bias_ids[i] = (uint32_t)id;
                f->bias_values[i] = (float)v;
        }
        g->bias_ids = f->bias_ids;
        g->bias_values = f->bias_values;
        g->n_bias = l->n;
        return 0;
}

static int read_option_file(struct cli *c, const char *path, struct buf *b, const char **ret) {
        int r;

        if (!path)
                return 0;
        r = cli_read_file(c, path, b);
        if (r)
                return r;
        if (b->len == 0)
                return cli_fail(c, EX_DATAERR, "%s is empty", path);
        *ret = b->data;
        return 0;
}

int cli_fill_generate(struct cli *c, struct hearth_generate *g, struct cli_generate_files *f) {
        const struct cli_args *a = &c->args;
        int r;

        hearth_generate_init(g, sizeof(*g));
        g->max_tokens = a->max_tokens;
        if (a->has_max_tokens && a->max_tokens == 0)
                return cli_fail(c, EX_USAGE, "--max-tokens must be at least 1");
        if (a->has_temperature && a->temperature < 0)
                return cli_fail(c, EX_USAGE, "--temperature must not be negative");
        if (a->has_temperature)
                g->temperature = a->temperature;
        if (a->has_top_k)
                g->top_k = a->top_k;
        if (a->has_top_p)
                g->top_p = a->top_p;
        if ((a->has_top_p && a->top_p < 0) || (a->has_min_p && a->min_p < 0))
                return cli_fail(c, EX_USAGE, "--top-p and --min-p must be from 0 to 1");
        if (a->has_min_p)
                g->min_p = a->min_p;
        if (a->has_repeat_penalty && a->repeat_penalty <= 0)
                return cli_fail(c, EX_USAGE, "--repeat-penalty must be more than 0");
        g->repeat_penalty = a->repeat_penalty;
        g->presence_penalty = a->presence_penalty;
        g->frequency_penalty = a->frequency_penalty;
        if (a->has_penalty_last)
                g->penalty_last = a->penalty_last;
        g->seed = a->seed;
        g->stop = a->stop.v;
        g->n_stop = a->stop.n;
        g->logprobs = a->logprobs;
        if (a->logprobs && !a->json)
                cli_fail(c, 0, "--logprobs: log probabilities are in the events of --json only; without it they are not printed");
        if (a->has_deadline && !(a->deadline > 0 && a->deadline <= 86400))
                return cli_fail(c, EX_USAGE, "--deadline must be more than 0 and at most 86400 seconds");
        g->deadline_ms = (uint32_t)ceil(a->deadline * 1000);
        g->template_vars = a->template_vars;
        r = read_option_file(c, a->json_schema, &f->schema, &g->json_schema);
        if (!r)
                r = read_option_file(c, a->grammar, &f->grammar, &g->grammar);
        if (!r)
                r = read_option_file(c, a->tools, &f->tools, &g->tools);
        if (!r)
                r = parse_bias(c, g, f);
        return r;
}

void cli_generate_files_free(struct cli_generate_files *f) {
        buf_free(&f->schema);
        buf_free(&f->grammar);
        buf_free(&f->tools);
        free(f->bias_ids);
        free(f->bias_values);
}
