/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Who ended the worker? A request that was there at two of its ends is a
 * suspect: it runs with no other beside it, oldest first. If the worker ends a
 * third time it ends with worker_lost, and nobody else has lost anything but
 * time. Once it is past the place where the worker died it is a request like any
 * other. While there is a suspect, nothing else is given to the worker.
 */

#include "daemon/broker/request.h"

/* Ends of the worker after which it runs alone, and after which it is ended. */
#define SUSPECT_CRASHES 2
#define GUILTY_CRASHES 3

/* The one whose turn it is; NULL: none. */
struct request *suspect_first(struct server *s);
/* Nothing else is computed now. */
bool suspect_alone(const struct request *rq);
/* May the worker be given something of this model (that is no suspect itself)? */
bool suspect_excludes(struct server *s, const struct model *m);
/* The worker ended with it for the n-th time. */
void suspect_note(struct request *rq);
/* It came further. */
void suspect_progress(struct request *rq);
/* It is suspected no longer (it ends, it waits for its client, ...). */
void suspect_clear(struct request *rq);
void suspects_tick(struct server *s);
/* Somebody may have come to a stand: the one whose turn it is can run now. Done in the loop's next turn. */
static inline void suspects_go_on(struct server *s) {
        if (s->n_suspects)
                s->room_changed = true;
}
