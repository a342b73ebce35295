/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A model that ends its worker again and again is set aside: its requests and
 * those that come get a `quarantined` error that says why, until when, and how
 * to try it all the same; other models go on. What is set aside is the content:
 * another name for it is no way around.
 *
 * An end of the worker is a model's when no other model had anything to do. One
 * that was being opened while others had is doubtful: it is opened before
 * everything else then, and alone. If the worker ends again, both ends were the
 * model's; if not, it is closed once more, so that the others get their memory
 * first, as before, and opened when it is its turn.
 */

#include "daemon/broker/model.h"

#define QUARANTINE_OPENING 2u        /* ends in a row while it was being opened */
#define QUARANTINE_BESIDE 3u         /* ends in a row while it was being opened beside others, though it can be opened alone */
#define QUARANTINE_SERVING 5u        /* ends within the window while it served: more than one bad request can cause */
#define QUARANTINE_WINDOW_MS 600000u

/*
 * The worker has ended; before the models' states are changed. 'only': nothing but a request of this one was computed.
 * The one that was being opened beside others that worked, which may have ended it; NULL: none.
 */
struct model *quarantine_note(struct server *s, struct model *only);
/* An end beside it is not this request's: it had nothing to compute, or there have been too many such ends. */
bool quarantine_excuses(const struct model *opening, const struct request *rq);
/* The one that is to be opened alone; NULL: none, or it waits for memory. */
struct model *quarantine_doubtful(struct server *s);
/* It was opened, alone or not. */
void quarantine_opened(struct model *m);
/* Sets aside those whose measure is full (after quarantine_note()); ends that others were there at are forgotten. 'how' the worker ended. */
void quarantine_worker_lost(struct server *s, const char *how);
/* quarantined: it is set aside. 'insist': somebody wants it loaded all the same, which ends it. */
int quarantine_check(struct server *s, const uint8_t hash[32], const char *name, bool insist, struct h_error *err);
/* Why the model of this name (everybody's) is set aside, until the next call; NULL: it is not. */
const char *quarantine_of(struct server *s, const char *name);
void quarantine_done(struct server *s);
