/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gate rather than a plain mutex: the engine, which takes it for step after
 * step, would hardly ever let another thread have a mutex.
 */
#include "daemon/worker/worker.h"

void device_take(struct worker *w, bool urgent) {
        pthread_mutex_lock(&w->device_lock);
        if (urgent)
                w->device_wanted++;
        while (w->device_busy || (!urgent && w->device_wanted))
                pthread_cond_wait(&w->device_free, &w->device_lock);
        if (urgent)
                w->device_wanted--;
        w->device_busy = true;
        pthread_mutex_unlock(&w->device_lock);
}

void device_give(struct worker *w) {
        pthread_mutex_lock(&w->device_lock);
        w->device_busy = false;
        pthread_cond_broadcast(&w->device_free);
        pthread_mutex_unlock(&w->device_lock);
}
