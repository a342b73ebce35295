/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The order in which waiting requests get slots: deficit round robin between
 * users, within a user between clients, within a client first come first
 * served. Cost is work (tokens), so that who asks for much waits longer, and
 * nobody waits for ever. (Shreedhar and Varghese, "Efficient Fair Queuing using
 * Deficit Round Robin", 1995.)
 *
 * Items are embedded by the caller, who owns them; the queue owns its user and
 * client nodes, which live as long as they have items.
 */

#include "daemon/common/list.h"

#define FAIRQ_QUANTUM 1024u /* tokens per visit */

struct fairq_item {
        struct list link;    /* in its client */
        struct fairq_client *client; /* NULL: not queued */
        uint32_t cost;
};

struct fairq {
        struct list users;   /* in order of the next visit */
        size_t n;
};

void fairq_init(struct fairq *q);
/* front: before the client's other items and for free: a request that already had its turn (replay after a crash). */
int fairq_push(struct fairq *q, uint64_t user, uint64_t client, struct fairq_item *it, uint32_t cost, bool front);
void fairq_remove(struct fairq *q, struct fairq_item *it); /* no-op if not queued */
/* The next item whose user is not refused by 'may' (NULL: all may); removed from the queue. NULL: none. */
struct fairq_item *fairq_pop(struct fairq *q, bool (*may)(void *ud, uint64_t user), void *ud);
/* Any item, for ending them all; not removed. */
struct fairq_item *fairq_any(const struct fairq *q);
/* How many items would be served before it, assuming equal costs: rounds of all users up to its own place. */
size_t fairq_position(const struct fairq *q, const struct fairq_item *it);
