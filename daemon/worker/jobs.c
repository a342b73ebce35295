/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/worker/jobs.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

static void *work(void *ud) {
        struct jobs *q = ud;

        /* by each for itself: another's name would be a file to open */
        (void)pthread_setname_np(pthread_self(), q->name);
        if (q->nice) /* of this thread alone, whatever POSIX says: setpriority(2) */
                (void)setpriority(PRIO_PROCESS, (id_t)gettid(), getpriority(PRIO_PROCESS, (id_t)gettid()) + q->nice);
        pthread_mutex_lock(&q->lock);
        for (;;) {
                struct job *j;

                while (list_empty(&q->queue) && !q->stop)
                        pthread_cond_wait(&q->some, &q->lock);
                if (list_empty(&q->queue))
                        break;
                j = list_first(&q->queue, struct job, link);
                list_remove(&j->link);
                pthread_mutex_unlock(&q->lock);
                j->run(j);
                pthread_mutex_lock(&q->lock);
        }
        pthread_mutex_unlock(&q->lock);
        return NULL;
}

int jobs_start(struct jobs *q, unsigned n_threads, const char *name, int nice) {
        *q = (struct jobs){ .nice = nice, .name = name };
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
