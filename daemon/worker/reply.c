/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/worker/reply.h"

#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "ipc/worker.h"

#define MODEL_BIT 0x80000000u
#define LENGTH 4u /* of a frame, before its message */

/* Out of memory: *b stays empty. */
static void encode_error(struct buf *b, uint32_t id, const struct h_error *err) {
        struct h_error failed = {};
        struct wk_error msg;

        wk_init_error(&msg);
        msg.code = hearth_code_name(err->code);
        msg.message = err->message;
        msg.needed = err->needed;
        msg.available = err->available;
        if (wk_encode_error(b, id, &msg, &failed) == 0 || failed.code == HEARTH_E_no_memory)
                return;
        /* A sentence with a file's bytes in it may be no UTF-8, or cut within a character. */
        buf_clear(b);
        msg.message = "failed; the reason can't be written as UTF-8";
        (void)wk_encode_error(b, id, &msg, NULL);
}

void reply_model_error(struct worker *w, uint32_t key, const struct h_error *err) {
        _cleanup_(buf_free) struct buf b = {};

        encode_error(&b, MODEL_BIT | key, err);
        if (b.len)
                outbox_push(&w->out, &b);
        else
                outbox_fail(&w->out);
}

void reply_error(struct task *t, const struct h_error *err) {
        _cleanup_(buf_free) struct buf b = {};

        encode_error(&b, t->id, err);
        if (b.len)
                outbox_push(&t->worker->out, &b);
        else
                outbox_fail(&t->worker->out);
        atomic_store(&t->done, true);
        outbox_poke(&t->worker->out);
}

/* *err: why, if it is known. Without memory to say the end the worker ends, and a replay says it. */
static void fail(struct task *t, int r, struct h_error *err, const char *what) {
        h_error_from_errno(err, r, what);
        if (err->code == HEARTH_E_no_memory)
                outbox_fail(&t->worker->out);
        else
                reply_error(t, err);
}

/* ---- events ---- */

/* Role runs of the prompt: as prompt, as generated, ... */
static int append_runs(const struct task *t, struct buf *b) {
        uint32_t n = 0;
        uint8_t role = ENG_ROLE_PROMPT;
        int r = 0;

        for (uint32_t i = 0; i < t->n_cached && r == 0; i++) {
                if (t->roles[i] != role) {
                        r = buf_append(b, &n, sizeof(n));
                        role = t->roles[i];
                        n = 0;
                }
                n++;
        }
        return r < 0 ? r : buf_append(b, &n, sizeof(n));
}

void reply_accepted(struct task *t) {
        _cleanup_(buf_free) struct buf b = {}, frame = {}, runs = {};
        struct wire_accepted msg;
        struct wk_out out;
        int r;

        wire_init_accepted(&msg);
        msg.request = t->id;
        msg.seed = t->seed;
        msg.slot = t->slot;
        msg.model = t->name;
        msg.n_prompt = t->n_prompt;
        msg.n_cached = MIN(t->n_cached, t->n_prompt);
        msg.reused_generated = t->reused_generated;
        msg.cache_miss = t->miss;
        msg.identity = t->identity;
        r = t->reused_generated ? append_runs(t, &runs) : 0;
        msg.roles = runs.data;
        msg.n_roles = runs.len;
        if (r == 0)
                r = wire_encode_accepted(&frame, t->msg.id, &msg, NULL);
        wk_init_out(&out);
        out.n_prompt = t->n_prompt;
        out.has_n_prompt = true;
        out.n_cached = msg.n_cached;
        out.has_n_cached = true;
        out.n_done = msg.n_cached;
        out.has_n_done = true;
        out.roles = runs.data;
        out.n_roles = runs.len;
        if (r == 0) {
                out.frame = frame.data + LENGTH;
                out.n_frame = frame.len - LENGTH;
                r = wk_encode_out(&b, t->id, &out, NULL);
        }
        if (r == 0)
                outbox_push(&t->worker->out, &b);
        else
                outbox_fail(&t->worker->out);
}

void reply_progress(struct task *t) {
        _cleanup_(buf_free) struct buf b = {};
        struct wk_out out;

        wk_init_out(&out);
        out.n_done = MIN(eng_seq_len(t->model->context, t->seq), t->n_prompt);
        out.has_n_done = true;
        if (wk_encode_out(&b, t->id, &out, NULL) == 0)
                outbox_push(&t->worker->out, &b);
}

struct tops {
        struct wire_top_logprobs item;
        uint32_t ids[20];
        float logprobs[20];
        const char *texts[20];
        char text[20][64];
};

/* A token's text, its bytes that are no UTF-8 replaced by U+FFFD. */
static void printable(const struct tok *tok, uint32_t id, char out[64]) {
        size_t n, at, o = 0;
        const char *p = tok_piece(tok, id, &n);

        while (p && n && o < 56) {
                size_t take;
                if (utf8_valid(p, n, &at))
                        at = n;
                take = MIN(at, (size_t)56 - o);
                while (take < at && take > 0 && ((unsigned char)p[take] & 0xc0) == 0x80)
                        take--;
                memcpy(out + o, p, take);
                o += take;
                if (take < at || at == n)
                        break;
                memcpy(out + o, "\xef\xbf\xbd", 3);
                o += 3;
                p += at + 1;
                n -= at + 1;
        }
        out[o] = 0;
}

static void fill_tops(struct tops *t, const struct task *task, const struct eng_result *r) {
        uint32_t n = MIN(r->n_top, 20u);

        wire_init_top_logprobs(&t->item);
        for (uint32_t i = 0; i < n; i++) {
                t->ids[i] = r->top[i].token;
                t->logprobs[i] = r->top[i].logprob;
                printable(task->model->tok, r->top[i].token, t->text[i]);
                t->texts[i] = t->text[i];
        }
        t->item.ids = t->ids;
        t->item.n_ids = n * 4;
        t->item.logprobs = t->logprobs;
        t->item.n_logprobs = n * 4;
        t->item.texts = t->texts;
        t->item.n_texts = n;
}

void reply_tokens(struct task *t, const struct eng_result *res, size_t n) {
        const struct wire_generate *g = t->msg.body;
        struct buf *frame = &t->worker->event, *b = &t->worker->frame;
        struct wire_tokens msg;
        struct tops tops;
        struct wk_out out;
        int r;

        wire_init_tokens(&msg);
        wk_init_out(&out);
        if (n) {
                msg.text = t->held.data;
                msg.n_text = n;
        }
        if (t->reasoning.len) {
                msg.reasoning = t->reasoning.data;
                msg.n_reasoning = t->reasoning.len;
        }
        if (res) {
                msg.ids = out.ids = &res->token;
                msg.n_ids = out.n_ids = 4;
        }
        if (res && g->logprobs) {
                msg.logprobs = &res->logprob;
                msg.n_logprobs = 4;
                fill_tops(&tops, t, res);
                msg.top = &tops.item;
                msg.n_top = 1;
        }
        buf_clear(frame);
        buf_clear(b);
        r = wire_encode_tokens(frame, t->msg.id, &msg, NULL);
        if (r == 0) {
                out.frame = frame->data + LENGTH;
                out.n_frame = frame->len - LENGTH;
                r = wk_encode_out(b, t->id, &out, NULL);
        }
        if (r == 0)
                outbox_push(&t->worker->out, b);
        else
                outbox_fail(&t->worker->out); /* a token that its client misses: a replay sends it */
        buf_consume(&t->held, n);
        buf_clear(&t->reasoning);
}

/* ---- ends ---- */

void reply_frame(struct task *t, struct buf *frame) {
        _cleanup_(buf_free) struct buf b = {};
        struct wk_start_reply msg;
        struct h_error err = {};
        int r;

        wk_init_start_reply(&msg);
        msg.frame = frame->data + LENGTH;
        msg.n_frame = frame->len - LENGTH;
        msg.n_prompt = t->n_prompt;
        msg.has_n_prompt = true;
        msg.n_cached = MIN(t->n_cached, t->n_prompt);
        msg.has_n_cached = true;
        msg.n_generated = (uint32_t)t->n_generated;
        r = wk_encode_start_reply(&b, t->id, &msg, &err);
        if (r < 0) {
                fail(t, r, &err, "encoding the answer");
                return;
        }
        buf_clear(frame);
        outbox_push(&t->worker->out, &b);
        atomic_store(&t->done, true);
        outbox_poke(&t->worker->out);
}

/* The reply to `generate` and to `resume` say the same. */
#define FILL_REPLY(msg, t, how, stopped_by, found) do {                                                 \
        (msg).finish = (how);                                                                           \
        (msg).stop_string = (stopped_by);                                                               \
        (msg).n_prompt = (t)->n_prompt;                                                                 \
        (msg).n_cached = MIN((t)->n_cached, (t)->n_prompt);                                             \
        (msg).n_generated = (uint32_t)(t)->n_generated;                                                 \
        (msg).queue_us = (t)->waited_us;                                                                \
        (msg).prefill_us = (t)->prefill_us;                                                             \
        if ((t)->first_us) {                                                                            \
                (msg).first_token_us = (t)->waited_us + (t)->first_us - (t)->arrived_us;                \
                (msg).decode_us = (t)->last_us - (t)->first_us;                                         \
        }                                                                                               \
        (msg).seed = (t)->seed;                                                                         \
        (msg).changed = (t)->changed;                                                                   \
        (msg).tool_calls = (t)->n_calls ? (found) : NULL;                                               \
        (msg).n_tool_calls = (t)->n_calls;                                                              \
} while (0)

void reply_finish(struct task *t, const char *finish, const char *stop_string) {
        _cleanup_(freep) struct wire_tool_call *calls = h_new0(struct wire_tool_call, t->n_calls);
        _cleanup_(buf_free) struct buf frame = {};
        struct wire_generate_reply msg;
        struct wire_resume_reply resumed;
        struct h_error err = {};
        int r;

        if (!calls) {
                fail(t, -ENOMEM, &err, "encoding the answer's end");
                return;
        }
        for (size_t i = 0; i < t->n_calls; i++) {
                wire_init_tool_call(&calls[i]);
                calls[i].id = t->calls[i].id;
                calls[i].name = t->calls[i].name;
                calls[i].arguments = t->calls[i].args;
        }

        wire_init_resume_reply(&resumed);
        wire_init_generate_reply(&msg);
        if (t->resumed)
                FILL_REPLY(resumed, t, finish, stop_string, calls);
        else
                FILL_REPLY(msg, t, finish, stop_string, calls);
        r = t->resumed ? wire_encode_resume_reply(&frame, t->msg.id, &resumed, &err)
                       : wire_encode_generate_reply(&frame, t->msg.id, &msg, &err);
        if (r < 0)
                fail(t, r, &err, "encoding the answer's end");
        else
                reply_frame(t, &frame);
}

void reply_embeddings(struct task *t) {
        _cleanup_(buf_free) struct buf frame = {};
        struct wire_embed_reply msg;
        struct h_error err = {};
        int r;

        wire_init_embed_reply(&msg);
        msg.n = (uint32_t)t->n_ends;
        msg.dim = t->model->info.n_embd;
        msg.vectors = t->vectors;
        msg.n_vectors = t->n_ends * t->model->info.n_embd * sizeof(float);
        msg.n_tokens = (uint32_t)t->feed.n;
        r = wire_encode_embed_reply(&frame, t->msg.id, &msg, &err);
        if (r < 0)
                fail(t, r, &err, "encoding the vectors");
        else
                reply_frame(t, &frame);
}
