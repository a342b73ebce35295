/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine thread: takes in what is new, makes one step for each model that
 * has something to do, hands out the results, and sleeps when there is nothing.
 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "daemon/worker/compose.h"
#include "daemon/worker/prefix.h"
#include "daemon/worker/reply.h"
#include "daemon/worker/worker.h"

void engine_wake(struct worker *w) {
        pthread_mutex_lock(&w->lock);
        w->changed = true;
        pthread_cond_signal(&w->some);
        pthread_mutex_unlock(&w->lock);
}

void engine_add_model(struct worker *w, struct wmodel *m) {
        pthread_mutex_lock(&w->lock);
        list_append(&w->new_models, &m->link);
        w->changed = true;
        pthread_cond_signal(&w->some);
        pthread_mutex_unlock(&w->lock);
}

void engine_add_task(struct worker *w, struct task *t) {
        pthread_mutex_lock(&w->lock);
        list_append(&w->new_tasks, &t->link);
        w->changed = true;
        pthread_cond_signal(&w->some);
        pthread_mutex_unlock(&w->lock);
}

/* ---- the end of a task ---- */

static void leave(struct task *t) {
        uint32_t len;

        /* A step in flight was fed the last token, which was one too many: nothing came of it, nothing stays of it. */
        if (t->in_flight && t->has_seq)
                (void)eng_seq_trim(t->model->context, t->seq, eng_seq_len(t->model->context, t->seq) - 1, &len);
        t->gone = true;
        prefix_keep(t->model, t);
        list_remove(&t->link);
        task_unref(t);
}

static void fail(struct task *t, int r, struct h_error *err, const char *what) {
        if (r == -EIO)
                device_check(t->worker);
        h_error_from_errno(err, r, what);
        reply_error(t, err);
        leave(t);
}

static void finish(struct task *t, const char *how, const char *stop_string) {
        reply_finish(t, how, stop_string);
        leave(t);
}

/* ---- tokens ---- */

/* Moves what the parser found: content to held, thoughts to reasoning, calls to the list. */
static int take_parsed(struct task *t) {
        struct toolcall_out *o = &t->parsed;
        int r = buf_append(&t->held, o->content.data, o->content.len);

        if (r == 0)
                r = buf_append(&t->reasoning, o->reasoning.data, o->reasoning.len);
        if (r == 0 && o->n_calls) {
                struct toolcall *v = h_realloc(t->calls, (t->n_calls + o->n_calls) * sizeof(*v));
                if (!v)
                        return -ENOMEM;
                memcpy(v + t->n_calls, o->calls, o->n_calls * sizeof(*v));
                t->calls = v;
                t->n_calls += o->n_calls;
                o->n_calls = 0; /* theirs no longer */
        }
        toolcall_out_clear(o);
        return r;
}

static int push_text(struct task *t, uint32_t token) {
        struct buf text = {};
        int r;

        if (!t->parser)
                return tok_stream_push(&t->stream, token, &t->held);
        r = tok_stream_push(&t->stream, token, &text);
        if (r == 0 && text.len)
                r = toolcall_push(t->parser, text.data, text.len, &t->parsed);
        buf_free(&text);
        return r < 0 ? r : take_parsed(t);
}

/* Nothing follows: what was held back in the making comes out. */
static int flush_text(struct task *t) {
        struct buf text = {};
        int r;

        if (!t->model->tok)
                return 0;
        if (!t->parser)
                return tok_stream_flush(&t->stream, &t->held);
        r = tok_stream_flush(&t->stream, &text);
        if (r == 0 && text.len)
                r = toolcall_push(t->parser, text.data, text.len, &t->parsed);
        if (r == 0)
                r = toolcall_finish(t->parser, &t->parsed);
        buf_free(&text);
        return r < 0 ? r : take_parsed(t);
}

/*
 * One more token: the text it releases stays at the front of t->held, *ret_n
 * bytes of it. Returns the reason if it is the last one, else NULL.
 */
static const char *advance(struct task *t, uint32_t token, size_t *ret_n, const char **ret_stop, int *ret_r) {
        struct wmodel *m = t->model;
        bool eog = m->tok && tok_is_eog(m->tok, token);
        const char *end = NULL;
        int match;

        t->n_generated++;
        t->n_sent++;
        if (m->tok && !eog)
                *ret_r = push_text(t, token);
        if (eog)
                end = "stop";
        else if (t->n_generated >= t->max_tokens)
                end = "length";
        else if (t->n_prompt + t->n_generated > m->n_ctx)
                end = "context"; /* this token could not be evaluated any more */
        /* The last one: nothing can complete what was held back. All in one message, so that a replay neither repeats nor loses it. */
        if (end && *ret_r == 0)
                *ret_r = flush_text(t);
        *ret_n = stop_scan(&t->stops, t->held.data ? t->held.data : "", t->held.len, &match);
        if (match >= 0) {
                *ret_stop = t->stops.text[match];
                return "stop_string";
        }
        if (end)
                *ret_n = t->held.len;
        return end && strcmp(end, "stop") == 0 && t->n_calls ? "tool_calls" : end;
}

static void cancel(struct task *t, const char *reason) {
        struct h_error err = {};

        if (t->msg.type != WIRE_generate) {
                h_error_set(&err, hearth_code_parse(reason), "the request was ended: %s", reason);
                fail(t, -EHEARTH, &err, reason);
                return;
        }
        /* What was held back for a stop string is text that the client may have. */
        (void)flush_text(t);
        if (t->held.len || t->reasoning.len)
                reply_tokens(t, NULL, t->held.len);
        finish(t, reason, NULL);
}

/* No mask can be had: the grammar's machine keeps at most so many readings of a text and takes at most so many steps for one. */
static void fail_grammar(struct task *t, int r) {
        struct h_error err = {};

        if (r == -E2BIG || r == -EAGAIN)
                r = h_error_set(&err, HEARTH_E_grammar_invalid, "after %llu tokens the grammar or schema allows too many ways to read "
                                "the text; write it with fewer alternatives that begin alike", (unsigned long long)t->n_generated);
        else if (r == -EINVAL && t->resumed && t->n_generated == t->n_resume)
                r = h_error_set(&err, HEARTH_E_bad_request, "resume.ids[%zu] is a token that the schema or grammar does not allow there: "
                                "it can't have been generated for this request", t->n_resume - t->mask_job.n_tokens - 1);
        fail(t, r, &err, "the grammar");
}

/* Cut off by a bound, but what the grammar demands is complete: then it is no cut. */
static const char *complete(struct task *t, const char *end, const uint32_t *tokens, size_t n) {
        if (!t->grammar_state || (strcmp(end, "length") != 0 && strcmp(end, "context") != 0))
                return end;
        while (n && grammar_state_accept(t->grammar_state, *tokens) == 0) {
                tokens++;
                n--;
        }
        return n == 0 && grammar_state_done(t->grammar_state) ? "stop" : end;
}

static void on_token(struct task *t, const struct eng_result *res, uint64_t now) {
        const char *end, *stop = NULL;
        struct h_error err = {};
        size_t n = 0;
        int r = 0;

        if (res->token == ENG_NO_TOKEN) {
                if (t->grammar_state && grammar_state_done(t->grammar_state)) {
                        finish(t, "stop", NULL);
                        return;
                }
                if (!t->grammar_state)
                        h_error_set(&err, HEARTH_E_bad_request, "after %llu tokens the bias leaves no token to choose: bias_values must not be "
                                    "-inf for the whole vocabulary", (unsigned long long)t->n_generated);
                else
                        h_error_set(&err, HEARTH_E_grammar_invalid, "after %llu tokens no token of the vocabulary continues the text as the "
                                    "schema, the grammar or the bias demands", (unsigned long long)t->n_generated);
                fail(t, -EHEARTH, &err, "");
                return;
        }
        if (!t->first_us) {
                t->first_us = now;
                t->prefill_us = now - t->fed_us;
        }
        t->last_us = now;
        end = advance(t, res->token, &n, &stop, &r);
        if (r < 0) {
                fail(t, r, &err, "the answer's text");
                return;
        }
        reply_tokens(t, res, n);
        if (end) {
                finish(t, complete(t, end, &res->token, 1), stop);
                return;
        }
        if (t->grammar_state)
                mask_next(t, res->token);
        t->next = res->token;
        t->state = TASK_DECODING;
}

/* ---- the beginning ---- */

/* Brings text, grammar and counts to where they were when the last worker died. True: it had ended. */
static bool replay_state(struct task *t, int *ret_r) {
        for (size_t i = 0; i < t->n_resume && *ret_r == 0; i++) {
                const char *end, *stop = NULL;
                size_t n = 0;

                end = advance(t, t->resume[i], &n, &stop, ret_r);
                buf_consume(&t->held, n);
                buf_clear(&t->reasoning);
                if (end && *ret_r == 0) {
                        finish(t, complete(t, end, t->resume, i + 1), stop);
                        return true;
                }
        }
        return false;
}

static int next_text(struct wmodel *m, struct task *t) {
        int r;

        while ((r = eng_seq_new(m->context, &t->seq)) == -EBUSY && prefix_drop_oldest(m))
                ;
        t->has_seq = r == 0;
        return r;
}

static void begin(struct wmodel *m, struct task *t) {
        struct h_error err = {};
        int r = 0;

        t->fed_us = now_us();
        if (t->msg.type == WIRE_embed)
                r = next_text(m, t);
        else {
                device_take(t->worker, false); /* sharing a recurrent state copies it */
                r = prefix_begin(m, t);
                device_give(t->worker);
                if (r == 0)
                        reply_accepted(t);
                if (r == 0 && replay_state(t, &r))
                        return;
                if (r == 0 && t->grammar_state)
                        mask_begin(t, t->resume, t->n_resume);
        }
        if (r < 0) {
                fail(t, r, &err, "beginning the request");
                return;
        }
        t->state = TASK_FEEDING;
        if (t->msg.type == WIRE_generate && eng_seq_len(m->context, t->seq) == t->feed.n)
                finish(t, "prewarmed", NULL); /* all of it was there */
}

/* ---- a step ---- */

static void on_embedding(struct wmodel *m, struct task *t, const struct eng_result *res) {
        const struct wire_embed *e = t->msg.body;
        float *out = t->vectors + t->text * m->info.n_embd;
        struct h_error err = {};
        double sum = 0;
        int r;

        memcpy(out, res->embedding, m->info.n_embd * sizeof(float));
        if (e->normalize) {
                for (uint32_t i = 0; i < m->info.n_embd; i++)
                        sum += (double)out[i] * out[i];
                for (uint32_t i = 0; i < m->info.n_embd && sum > 0; i++)
                        out[i] = (float)(out[i] / __builtin_sqrt(sum));
        }
        (void)eng_seq_free(m->context, t->seq);
        t->has_seq = false;
        if (++t->text == t->n_ends) {
                reply_embeddings(t);
                leave(t);
                return;
        }
        r = next_text(m, t);
        if (r < 0)
                fail(t, r, &err, "the next text");
}

static void on_result(struct wmodel *m, struct task *t, const struct eng_item *it, const struct eng_result *res, uint64_t now) {
        const struct wire_generate *g = t->msg.body;

        if (it->want & ENG_WANT_EMBEDDING)
                on_embedding(m, t, res);
        else if (it->want & ENG_WANT_SAMPLE)
                on_token(t, res, now);
        else if (t->msg.type == WIRE_generate && g->prewarm && eng_seq_len(m->context, t->seq) == t->feed.n) {
                t->prefill_us = now - t->fed_us;
                finish(t, "prewarmed", NULL);
        } else if (t->msg.type == WIRE_generate)
                reply_progress(t);
}

/* Those whose mask can't be had end alone. */
static void fail_maskless(struct wmodel *m) {
        list_foreach(t, &m->tasks, struct task, link)
                if (t->grammar_state && atomic_load(&t->mask_job.state) == MASK_FAILED)
                        fail_grammar(t, t->mask_job.error);
}

/* The tasks of a step move on as far as can be said before its results. */
static void took_off(struct wmodel *m, struct begun *b, const struct step_plan *p) {
        b->plan = *p;
        for (size_t i = 0; i < p->n; i++) {
                struct task *t = task_ref(b->in_step[i]);
                const struct eng_item *it = &b->items[i];

                if (t->roles)
                        memset(t->roles + eng_seq_len(m->context, t->seq) - it->n, it->role, it->n);
                if (it->want & ENG_WANT_SAMPLE)
                        t->in_flight++;
        }
        m->n_begun++;
}

/*
 * Begins a step if there is something to do. 0: it has begun; 1: nothing to do, or
 * not before the one in flight is finished; -1: its requests failed.
 */
static int begin_step(struct worker *w, struct wmodel *m) {
        struct begun *b = &m->begun[(m->first + m->n_begun) % ELEMENTSOF(m->begun)];
        struct h_error err = {};
        struct step_plan p;
        int r;

        m->items = b->items;
        m->in_step = b->in_step;
        for (;;) {
                compose_step(m, &p);
                if (p.n == 0)
                        return 1;
                atomic_store(&w->busy, true);
                b->us = now_us();
                device_take(w, false);
                r = eng_step_begin(m->context, m->items, p.n, &err);
                device_give(w);
                if (r == -EIO) {
                        device_check(w);
                        device_is_lost(w, err.message);
                }
                if (r == 0) {
                        took_off(m, b, &p);
                        return 0;
                }
                if (m->n_begun) /* alone, what it is will show again */
                        return 1;
                if (r == ENG_NO_PAGES && prefix_drop_oldest(m))
                        continue; /* nothing was touched: again, with more room */
                if (r == ENG_NO_PAGES)
                        r = h_error_set(&err, HEARTH_E_busy, "the KV cache has no page left");
                for (size_t i = 0; i < p.n; i++) {
                        struct h_error e = err;
                        fail(m->in_step[i], r, &e, "a step");
                }
                return -1;
        }
}

static void finish_step(struct worker *w, struct wmodel *m) {
        struct begun *b = &m->begun[m->first];
        struct h_error err = {};
        uint64_t now;
        int r;

        r = eng_step_finish(m->context, m->results, NULL, &err);
        if (r < 0) {
                device_check(w);
                device_is_lost(w, err.message);
        }
        now = now_us();
        atomic_fetch_add(&w->steps, 1);
        atomic_fetch_add(&w->rows, b->plan.generated + b->plan.prompt);
        compose_learn(m, &b->plan, now - MAX(b->us, m->finished_us));
        m->finished_us = now;
        m->first = (m->first + 1) % ELEMENTSOF(m->begun);
        m->n_begun--;
        outbox_hold(&w->out); /* one wake-up for all of a step's tokens */
        for (size_t i = 0; i < b->plan.n; i++) {
                struct task *t = b->in_step[i];

                if (b->items[i].want & ENG_WANT_SAMPLE)
                        t->in_flight--;
                if (!t->gone)
                        on_result(m, t, &b->items[i], &m->results[i], now);
                task_unref(t);
        }
        outbox_release(&w->out);
}

/* No step is in flight any more: what its sequences are is known. */
static void settle(struct worker *w, struct wmodel *m) {
        while (m->n_begun)
                finish_step(w, m);
}

/*
 * One step's results, and, where that is possible, the next step begun before
 * them: the device then has work while their tokens are looked at. False:
 * nothing to do.
 */
static bool step(struct worker *w, struct wmodel *m) {
        int r;

        if (m->n_begun == 0) {
                fail_maskless(m);
                masks_await(w, m);
                r = begin_step(w, m);
                if (r)
                        return r < 0;
        }
        if ((w->ahead || eng_context_ahead(m->context)) && compose_ahead(m))
                (void)begin_step(w, m);
        finish_step(w, m);
        return true;
}

/* ---- the loop ---- */

/* True: the model is gone. */
static bool reap(struct worker *w, struct wmodel *m) {
        bool closing = atomic_load(&m->closing);

        list_foreach(t, &m->tasks, struct task, link)
                if (closing || atomic_load(&t->cancel)) {
                        settle(w, m); /* may end any of them */
                        break;
                }
        list_foreach(t, &m->tasks, struct task, link) {
                const char *reason = atomic_load(&t->cancel);
                if ((reason || closing) && m->n_begun == 0) /* else it came just now */
                        cancel(t, reason ? reason : "cancelled");
        }
        if (!closing || atomic_load(&m->n_tasks) > 0)
                return false;
        while (prefix_drop_oldest(m))
                ;
        list_remove(&m->link);
        wmodel_close(m);
        wmodel_unref(m);
        return true;
}

void *engine_main(void *ud) {
        struct worker *w = ud;
        struct list models;
        bool worked = false;

        (void)pthread_setname_np(pthread_self(), "engine");
        list_init(&models);
        for (;;) {
                struct list tasks;

                list_init(&tasks);
                pthread_mutex_lock(&w->lock);
                while (!worked && !w->changed) {
                        atomic_store(&w->busy, false);
                        pthread_cond_wait(&w->some, &w->lock);
                }
                w->changed = false;
                while (!list_empty(&w->new_models)) {
                        struct wmodel *m = list_first(&w->new_models, struct wmodel, link);
                        list_remove(&m->link);
                        list_append(&models, &m->link);
                }
                while (!list_empty(&w->new_tasks)) {
                        struct task *t = list_first(&w->new_tasks, struct task, link);
                        list_remove(&t->link);
                        list_append(&tasks, &t->link);
                }
                pthread_mutex_unlock(&w->lock);

                while (!list_empty(&tasks)) {
                        struct task *t = list_first(&tasks, struct task, link);
                        list_remove(&t->link);
                        list_append(&t->model->tasks, &t->link);
                        settle(w, t->model);
                        if (!atomic_load(&t->cancel) && !atomic_load(&t->model->closing))
                                begin(t->model, t);
                }
                worked = false;
                list_foreach(m, &models, struct wmodel, link)
                        if (!reap(w, m))
                                worked |= step(w, m);
        }
        return NULL;
}
