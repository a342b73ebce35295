/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One request in the worker. Made by the control thread, prepared by a text
 * thread, then owned by the engine thread until its reply; the control thread
 * keeps a reference for cancels and credits, which are atomics that the engine
 * looks at in every step.
 */

#include <stdatomic.h>

#include "daemon/common/list.h"
#include "daemon/worker/jobs.h"
#include "daemon/worker/masks.h"
#include "daemon/worker/stop.h"
#include "engine/engine.h"
#include "engine/text/grammar.h"
#include "engine/text/tokenizer.h"
#include "engine/text/toolcall.h"
#include "ipc/schema.h"
#include "ipc/wire.h"

struct worker;
struct wmodel;

enum task_state { TASK_PREPARING, TASK_WAITING, TASK_FEEDING, TASK_DECODING };

struct task {
        struct list link;      /* in its model, engine thread */
        struct list known;     /* in the control thread's list */
        struct job job;        /* preparation */
        atomic_int refs;
        struct worker *worker;
        struct wmodel *model;

        uint32_t id;           /* the daemon's */
        uint32_t uid, slot;
        uint64_t seed;
        char *name;            /* the model's, for the client */
        char *identity;        /* for the client, who needs it to resume */
        bool resumed;          /* by a client: 'resume' and 'runs' are as untrusted as the request */
        bool changed;          /* another identity began it */
        struct schema_msg msg; /* the client's request */
        int payload;           /* memfd with a text of it, until it is read; or -1 */
        uint64_t waited_us, arrived_us;
        uint32_t *resume;      /* sent before the last worker, or daemon, died */
        size_t n_resume;
        uint32_t *runs;        /* roles of the prompt's tokens then: alternating counts, prompt first */
        size_t n_runs;

        _Atomic(const char *) cancel; /* a string that lives for ever */
        _Atomic uint64_t credits;     /* tokens that may be sent in all */
        atomic_bool done;             /* replied: the control thread drops it */

        /* by preparation */
        struct tok_ids feed;   /* prompt, then resume */
        uint32_t n_prompt;
        size_t *ends;          /* embed: end of each text in feed */
        size_t n_ends, text;   /* and the one at hand */
        struct eng_sampling sampling;
        struct eng_bias *bias;
        struct stop_list stops;
        uint32_t max_tokens;   /* UINT32_MAX: as the context allows */
        struct grammar *grammar;
        struct grammar_state *grammar_state;
        uint64_t *mask;
        struct mask_job mask_job;
        struct toolcall_parser *parser; /* chat: reads thoughts and tool calls out of the text; NULL: the template has none */
        json_t *tools;

        /* by the engine thread */
        enum task_state state;
        eng_seq seq;
        bool has_seq;
        uint8_t *roles;        /* [n_ctx]: enum eng_role of each token evaluated */
        uint32_t n_cached, reused_generated;
        const char *miss;
        uint32_t next;         /* sampled, to be fed */
        uint32_t in_flight;    /* tokens that steps in flight sample for it */
        bool gone;             /* its reply is made: what steps in flight still give is dropped */
        uint32_t want;         /* tokens that could be fed now, all in want_role */
        enum eng_role want_role;
        uint32_t planned;      /* rows in the step being made */
        uint64_t n_generated, n_sent;
        struct tok_stream stream;
        struct buf held;       /* text not given out: it may become a stop string */
        struct buf reasoning;  /* thoughts not given out */
        struct toolcall_out parsed;
        struct toolcall *calls; /* found so far */
        size_t n_calls;
        uint64_t fed_us, first_us, last_us, prefill_us;
        float *vectors;        /* embed: [n_ends, n_embd] */
};

struct task *task_ref(struct task *t);
struct task *task_unref(struct task *t); /* NULL; from any thread */

void task_free_calls(struct task *t);

/* May its next token be sampled? */
static inline bool mask_ready(const struct task *t) {
        return !t->grammar_state || atomic_load(&t->mask_job.state) == MASK_READY;
}

/* Fills in what the engine needs, or replies and drops it. On a text thread. */
void task_prepare(struct job *j);
/* Its second part, for a request with a grammar: compiling may take long. On a compiling thread. */
void task_prepare_grammar(struct job *j);
