/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/worker/masks.h"

#include <errno.h>

#include "daemon/worker/worker.h"

/*
 * Steps of the automaton; one is 10 to 50 ns. A mask for 150,000 tokens takes a
 * few to 300,000 of them under schemas and usual grammars (tests/bench/bench_grammar).
 */
#define QUICK_WORK UINT64_C(300000)
#define MOST_WORK UINT64_C(64000000)
#define QUICK_THREADS 2
#define SLOW_THREADS 3
#define SLOW_OWNED 2
#define SLOW_NICE 10

/* Waiting for quick masks may lengthen a step by a quarter, or by this if steps are shorter. */
#define AWAIT_MIN_US 500.0
#define AWAIT_MAX_US 5000.0

int masks_start(struct worker *w) {
        int r = jobs_start(&w->quick_masks, QUICK_THREADS, QUICK_THREADS, "mask", 0);
        return r < 0 ? r : jobs_start(&w->slow_masks, SLOW_THREADS, SLOW_OWNED, "slow-mask", SLOW_NICE);
}

/* Nobody will want the result. */
static bool unwanted(void *ud) {
        const struct task *t = ud;
        return atomic_load(&t->cancel) || atomic_load(&t->done) || atomic_load(&t->model->closing);
}

/* True: the task is the engine's again. */
static bool compute(struct task *t, uint64_t work) {
        struct grammar_limit limit = { .work = work, .stopped = unwanted, .ud = t, .left = t->mask_job.left };
        struct mask_job *j = &t->mask_job;
        int r = 0;

        while (r == 0 && j->n_tokens && !unwanted(t)) { /* many after a replay */
                r = grammar_state_accept(t->grammar_state, *j->tokens);
                j->tokens++;
                j->n_tokens--;
        }
        if (r == 0)
                r = j->n_tokens ? -ECANCELED : grammar_state_mask_within(t->grammar_state, &limit, t->mask);
        if (r == -EAGAIN && work < MOST_WORK)
                return false;
        j->error = r;
        atomic_store(&j->state, r < 0 ? MASK_FAILED : MASK_READY);
        return true;
}

static void run_slow(struct job *job) {
        struct task *t = CONTAINER_OF(job, struct task, mask_job.job);

        (void)compute(t, MOST_WORK);
        engine_wake(t->worker);
        task_unref(t);
}

static void run_quick(struct job *job) {
        struct task *t = CONTAINER_OF(job, struct task, mask_job.job);

        if (!compute(t, QUICK_WORK)) {
                atomic_store(&t->mask_job.state, MASK_SLOW);
                engine_wake(t->worker); /* it waits for us no longer */
                job->run = run_slow;
                jobs_push(&t->worker->slow_masks, job);
                return;
        }
        engine_wake(t->worker);
        task_unref(t);
}

void mask_begin(struct task *t, const uint32_t *tokens, size_t n) {
        t->mask_job.left = MIN((uint64_t)t->max_tokens, (uint64_t)t->model->n_ctx + 1 - t->n_prompt) - t->n_generated;
        t->mask_job.tokens = tokens;
        t->mask_job.n_tokens = n;
        t->mask_job.job.run = run_quick;
        t->mask_job.job.owner = t->uid;
        atomic_store(&t->mask_job.state, MASK_QUICK);
        task_ref(t);
        jobs_push(&t->worker->quick_masks, &t->mask_job.job);
}

void mask_next(struct task *t, uint32_t token) {
        t->mask_job.token = token;
        mask_begin(t, &t->mask_job.token, 1);
}

static bool some_quick(const struct wmodel *m) {
        list_foreach(t, &m->tasks, struct task, link)
                if (t->grammar_state && t->state == TASK_DECODING && atomic_load(&t->mask_job.state) == MASK_QUICK)
                        return true;
        return false;
}

void masks_await(struct worker *w, struct wmodel *m) {
        uint64_t us = (uint64_t)MIN(MAX(m->us_decode / 4, AWAIT_MIN_US), AWAIT_MAX_US), until = (now_us() + us) * 1000;
        struct timespec ts = { .tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u) };
        int r = 0;

        if (!some_quick(m))
                return;
        pthread_mutex_lock(&w->lock);
        while (r == 0 && some_quick(m))
                r = pthread_cond_clockwait(&w->some, &w->lock, CLOCK_MONOTONIC, &ts);
        pthread_mutex_unlock(&w->lock);
}
