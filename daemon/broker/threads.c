/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/threads.h"

#include <string.h>

#include "base/alloc.h"

#define POOL 4 /* libuv's */

static void wait_for(void *ud) {
        uv_mutex_lock(ud);
        uv_mutex_unlock(ud);
}

static void nothing(uv_work_t *w) {
}

static void after(uv_work_t *w, int status) {
        free(w);
}

/* As many as libuv will make, all at once. */
static int try_threads(void) {
        uv_thread_t t[POOL];
        uv_mutex_t gate;
        int r, n = 0;

        r = uv_mutex_init(&gate);
        if (r < 0)
                return r;
        uv_mutex_lock(&gate);
        while (n < POOL && (r = uv_thread_create(&t[n], wait_for, &gate)) == 0)
                n++;
        uv_mutex_unlock(&gate);
        while (n > 0)
                uv_thread_join(&t[--n]);
        uv_mutex_destroy(&gate);
        return r;
}

int threads_start(uv_loop_t *loop, struct h_error *err) {
        int r = try_threads();
        uv_work_t *w;

        if (r < 0)
                return h_error_set(err, HEARTH_E_quota, "threads can't be started (%s): at least %d more tasks and their stacks are needed; see TasksMax= "
                                   "and the limits of the unit, or ulimit -u, -d and -v", uv_strerror(r), POOL);
        w = h_new0(uv_work_t, 1);
        if (!w)
                return -ENOMEM;
        r = uv_queue_work(loop, w, nothing, after);
        if (r < 0) {
                free(w);
                return h_error_set(err, HEARTH_E_internal, "no thread for a look-up: %s", uv_strerror(r));
        }
        return 0;
}
