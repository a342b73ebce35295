/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The serving worker as the broker sees it: started when the first model is
 * wanted, restarted with back-off when it dies, ended when it hangs. Its state
 * is never needed: everything it was told is told again to the next one.
 */

#include <uv.h>

#include "base/buf.h"
#include "base/error.h"

struct server;
struct worker_process;

enum worker_state { WORKER_NONE, WORKER_STARTING, WORKER_READY, WORKER_BACKOFF, WORKER_STOPPED };

struct worker {
        enum worker_state state;
        struct worker_process *process; /* the current one; earlier ones end by themselves */
        uv_timer_t timer;     /* back-off, or the check for a hang */
        uint32_t pid;
        uint32_t failures;    /* ends since the last time it served for a while: each lengthens the back-off */
        uint32_t stillborn;   /* ends in a row before it said hello */
        uint32_t unstarted;   /* in a row: no process could be made */
        uint64_t ready_ms, progress_ms, beat_ms;
        uint64_t steps, rows;
        bool busy;
        char device[257];
        char numerics[161];   /* its build and instruction set or device */
        char at[65];          /* the kernel it was in when it was heard last; empty: not known */
        char why[400];        /* it ends: we ended it, or its last words; empty: nothing is known */
        char end[400];        /* how the last one ended; empty: none has */
        struct h_error fault; /* why it could not be started, the last time */
};

/* Ids on the worker's channel: requests use their own, models their key with this bit. */
#define WORKER_MODEL_BIT 0x80000000u

void worker_init(struct server *s);
/* Starts it if there is none. models_worker_ready() is called when it serves. */
void worker_need(struct server *s);
bool worker_ready(const struct server *s);
/* A content is gone: the worker need not keep it any longer. */
void worker_forget(struct server *s, const uint8_t hash[32]);
/* Frames for it; -EPIPE if it is not there (it will be told everything anew). */
int worker_send(struct server *s, struct buf *b, const int *fds, uint32_t n_fds);
/* Work was given to a worker that had none: the clock of the hang check starts now. */
void worker_touch(struct server *s);
void worker_stop(struct server *s);
const char *worker_state_name(const struct server *s);
