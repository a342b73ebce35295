/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/worker/jobs.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

static bool may_run(const struct jobs *q, const struct job *j) {
        unsigned owned = 0;

        for (size_t i = 0; i < ELEMENTSOF(q->running); i++)
                owned += q->running[i].busy && q->running[i].owner == j->owner;
        return owned < q->max_owned && !(j->lengthy && q->n_lengthy >= q->max_lengthy);
}

/* Whose turn it is; NULL: nobody's who may run now. */
static struct job *next_job(struct jobs *q) {
        struct job *best = NULL;

        list_foreach(j, &q->queue, struct job, link)
                if ((!best || j->round < best->round) && may_run(q, j))
                        best = j;
        return best;
}

static size_t begin(struct jobs *q, const struct job *j) {
        size_t i = 0;

        while (q->running[i].busy) /* there are as many places as threads */
                i++;
        q->running[i].busy = true;
        q->running[i].owner = j->owner;
        q->running[i].round = j->round;
        q->n_lengthy += j->lengthy;
        q->round = MAX(q->round, j->round);
        return i;
}

static void *work(void *ud) {
        struct jobs *q = ud;

        /* by each for itself: another's name would be a file to open */
        (void)pthread_setname_np(pthread_self(), q->name);
        if (q->nice) /* of this thread alone, whatever POSIX says: setpriority(2) */
                (void)setpriority(PRIO_PROCESS, (id_t)gettid(), getpriority(PRIO_PROCESS, (id_t)gettid()) + q->nice);
        pthread_mutex_lock(&q->lock);
        for (;;) {
                struct job *j;
                bool lengthy;
                size_t at;

                while (!(j = next_job(q)) && !q->stop)
                        pthread_cond_wait(&q->some, &q->lock);
                if (!j) /* what is left waits for an end in another thread, which goes on with it */
                        break;
                list_remove(&j->link);
                at = begin(q, j);
                lengthy = j->lengthy;
                pthread_mutex_unlock(&q->lock);
                j->run(j);
                pthread_mutex_lock(&q->lock);
                q->running[at].busy = false;
                q->n_lengthy -= lengthy;
        }
        pthread_mutex_unlock(&q->lock);
        return NULL;
}

int jobs_start(struct jobs *q, unsigned n_threads, unsigned max_owned, const char *name, int nice) {
        *q = (struct jobs){ .nice = nice, .name = name, .max_owned = max_owned, .max_lengthy = n_threads > 1 ? n_threads - 1 : 1 };
        pthread_mutex_init(&q->lock, NULL);
        pthread_cond_init(&q->some, NULL);
        list_init(&q->queue);
        for (; q->n_threads < MIN(n_threads, (unsigned)ELEMENTSOF(q->threads)); q->n_threads++) {
                int r = pthread_create(&q->threads[q->n_threads], NULL, work, q);
                if (r) {
                        jobs_stop(q);
                        return -r;
                }
        }
        return 0;
}

void jobs_push(struct jobs *q, struct job *j) {
        pthread_mutex_lock(&q->lock);
        j->round = q->round;
        for (size_t i = 0; i < ELEMENTSOF(q->running); i++)
                if (q->running[i].busy && q->running[i].owner == j->owner)
                        j->round = MAX(j->round, q->running[i].round + 1);
        list_foreach(other, &q->queue, struct job, link)
                if (other->owner == j->owner)
                        j->round = MAX(j->round, other->round + 1);
        list_append(&q->queue, &j->link);
        pthread_cond_signal(&q->some);
        pthread_mutex_unlock(&q->lock);
}

void jobs_stop(struct jobs *q) {
        pthread_mutex_lock(&q->lock);
        q->stop = true;
        pthread_cond_broadcast(&q->some);
        pthread_mutex_unlock(&q->lock);
        for (unsigned i = 0; i < q->n_threads; i++)
                pthread_join(q->threads[i], NULL);
        pthread_cond_destroy(&q->some);
        pthread_mutex_destroy(&q->lock);
}
