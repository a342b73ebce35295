/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A queue of jobs and the threads that do them: text work beside the engine, model openings beside both. */

#include <pthread.h>

#include "daemon/common/list.h"

struct job {
        struct list link;
        void (*run)(struct job *j); /* frees or passes on what it is part of */
};

struct jobs {
        pthread_mutex_t lock;
        pthread_cond_t some;
        struct list queue;
        pthread_t threads[4];
        unsigned n_threads;
        bool stop;
        int nice;
        const char *name;
};

/* 'nice' is added to the threads' own; 0 leaves it. */
int jobs_start(struct jobs *q, unsigned n_threads, const char *name, int nice);
void jobs_push(struct jobs *q, struct job *j);
/* Waits for the running ones; those still queued are run too. */
void jobs_stop(struct jobs *q);
