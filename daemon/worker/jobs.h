/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A queue of jobs and the threads that do them: text work beside the engine, model openings beside both.
 *
 * Owners take turns: a job's round is one after its owner's last one that is queued or running, and the lowest round
 * is next, the oldest of equal ones. So who sends many waits for himself. Lengthy ones leave a thread for the others,
 * whoever they belong to. Where jobs may be long and it can't be told which, no owner has all threads: the others'
 * jobs find one. Without owners it is first come, first served.
 */

#include <pthread.h>

#include "daemon/common/list.h"

struct job {
        struct list link;
        void (*run)(struct job *j); /* frees or passes on what it is part of */
        uint32_t owner;             /* a uid */
        bool lengthy;
        uint64_t round;             /* the queue's */
};

struct jobs {
        pthread_mutex_t lock;
        pthread_cond_t some;
        struct list queue;
        struct { bool busy; uint32_t owner; uint64_t round; } running[4];
        pthread_t threads[4];
        unsigned n_threads, max_owned, max_lengthy, n_lengthy;
        uint64_t round;             /* of the job begun last */
        bool stop;
        int nice;
        const char *name;
};

/* max_owned: of the threads, those that one owner may have at a time. 'nice' is added to the threads' own; 0 leaves it. */
int jobs_start(struct jobs *q, unsigned n_threads, unsigned max_owned, const char *name, int nice);
void jobs_push(struct jobs *q, struct job *j);
/* Waits for the running ones; those still queued are run too. */
void jobs_stop(struct jobs *q);
