/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gate rather than a plain mutex: the engine, which takes it for step after
 * step, would hardly ever let another thread have a mutex.
 *
 * A device that is lost is lost for this process. Whichever thread sees it says
 * so to the broker, which starts another worker and tells it everything anew.
 */
#include "daemon/worker/worker.h"

#include "base/alloc.h"
#include "ipc/worker.h"

#define LAST_WORDS_S 2 /* that the control thread may take to send them */

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

void device_is_lost(struct worker *w, const char *why) {
        _cleanup_(buf_free) struct buf b = {};
        struct wk_device_lost msg;

        if (!atomic_exchange(&w->ends, true)) {
                log_error(&w->log, "the device is lost: %s", why);
                wk_init_device_lost(&msg);
                msg.why = why;
                if (wk_encode_device_lost(&b, 0, &msg, NULL) == 0)
                        outbox_push(&w->out, &b);
                atomic_store(&w->said, true);
                outbox_release(&w->out); /* the engine may have been in the middle of its words */
                outbox_poke(&w->out);
        }
        nanosleep(&(struct timespec){ .tv_sec = LAST_WORDS_S }, NULL);
        _exit(WORKER_DEVICE_LOST);
}

void device_check(struct worker *w) {
        const char *why = eng_device_lost(w->device);

        if (why)
                device_is_lost(w, why);
}
