/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/worker/outbox.h"

#include <sys/eventfd.h>

int outbox_init(struct outbox *o) {
        *o = (struct outbox){ .wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
        if (o->wake < 0)
                return -errno;
        pthread_mutex_init(&o->lock, NULL);
        return 0;
}

void outbox_done(struct outbox *o) {
        buf_free(&o->frames);
        o->wake = fd_close(o->wake);
        pthread_mutex_destroy(&o->lock);
}

static void wake(struct outbox *o) {
        (void)!write(o->wake, &(uint64_t){ 1 }, 8); /* full means awake */
}

/* Under the lock. True: the caller wakes, behind it. */
static bool owe(struct outbox *o) {
        o->owed |= o->held;
        return !o->held;
}

void outbox_poke(struct outbox *o) {
        bool now;

        pthread_mutex_lock(&o->lock);
        now = owe(o);
        pthread_mutex_unlock(&o->lock);
        if (now)
                wake(o);
}

void outbox_hold(struct outbox *o) {
        pthread_mutex_lock(&o->lock);
        o->held = true;
        pthread_mutex_unlock(&o->lock);
}

void outbox_release(struct outbox *o) {
        bool now;

        pthread_mutex_lock(&o->lock);
        now = o->owed;
        o->held = o->owed = false;
        pthread_mutex_unlock(&o->lock);
        if (now)
                wake(o);
}

void outbox_push(struct outbox *o, struct buf *b) {
        bool now;

        pthread_mutex_lock(&o->lock);
        now = o->frames.len == 0 && owe(o);
        if (buf_append(&o->frames, b->data, b->len) < 0)
                o->failed = now = true;
        pthread_mutex_unlock(&o->lock);
        buf_clear(b);
        if (now)
                wake(o);
}

void outbox_fail(struct outbox *o) {
        pthread_mutex_lock(&o->lock);
        o->failed = true;
        pthread_mutex_unlock(&o->lock);
        wake(o);
}

bool outbox_take(struct outbox *o, struct buf *ret) {
        uint64_t n;
        bool ok;

        (void)!read(o->wake, &n, sizeof(n));
        pthread_mutex_lock(&o->lock);
        *ret = o->frames;
        o->frames = (struct buf){};
        ok = !o->failed;
        pthread_mutex_unlock(&o->lock);
        return ok;
}
