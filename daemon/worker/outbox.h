/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the worker's threads want to tell the broker: whole frames, appended
 * under a lock that is held for a memcpy, sent by the control thread.
 */

#include <pthread.h>

#include "base/buf.h"
#include "base/error.h"

struct outbox {
        pthread_mutex_t lock;
        struct buf frames;
        int wake; /* eventfd: readable when there is something */
        bool failed;
        bool held, owed; /* no waking now; once it may be */
};

int outbox_init(struct outbox *o);
void outbox_done(struct outbox *o);
/* Appends the frames in *b (emptied). Out of memory: the broker must not miss a message, so the worker ends. */
void outbox_push(struct outbox *o, struct buf *b);
/* The same for a message that there was no memory to make. */
void outbox_fail(struct outbox *o);
/* Wakes the control thread without a message. */
void outbox_poke(struct outbox *o);
/*
 * Between the two the control thread is not woken, and once at the end if there
 * is reason to: a wake-up costs the thread that makes it more than the message
 * does. For the one thread that says much at once, and for microseconds.
 */
void outbox_hold(struct outbox *o);
void outbox_release(struct outbox *o);
/* Moves everything to *ret (empty before); false if a message was lost. */
bool outbox_take(struct outbox *o, struct buf *ret);
