/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/fairq.h"

#include <errno.h>

#include "base/alloc.h"

struct fairq_user {
        struct list link;
        struct list clients;
        uint64_t id, deficit;
        size_t n;
};

struct fairq_client {
        struct list link;
        struct list items;
        struct fairq_user *user;
        uint64_t id, deficit;
        size_t n;
};

void fairq_init(struct fairq *q) {
        list_init(&q->users);
        q->n = 0;
}

static struct fairq_user *get_user(struct fairq *q, uint64_t id) {
        struct fairq_user *u;

        list_foreach(i, &q->users, struct fairq_user, link)
                if (i->id == id)
                        return i;
        u = h_new0(struct fairq_user, 1);
        if (!u)
                return NULL;
        u->id = id;
        list_init(&u->clients);
        list_append(&q->users, &u->link);
        return u;
}

static struct fairq_client *get_client(struct fairq_user *u, uint64_t id) {
        struct fairq_client *c;

        list_foreach(i, &u->clients, struct fairq_client, link)
                if (i->id == id)
                        return i;
        c = h_new0(struct fairq_client, 1);
        if (!c)
                return NULL;
        c->id = id;
        c->user = u;
        list_init(&c->items);
        list_append(&u->clients, &c->link);
        return c;
}

/* An emptied user or client leaves and with it what it had saved up: idleness earns no credit. */
static void drop_empty(struct fairq_user *u) {
        list_foreach(c, &u->clients, struct fairq_client, link)
                if (c->n == 0) {
                        list_remove(&c->link);
                        free(c);
                }
        if (u->n == 0) {
                list_remove(&u->link);
                free(u);
        }
}

int fairq_push(struct fairq *q, uint64_t user, uint64_t client, struct fairq_item *it, uint32_t cost, bool front) {
        struct fairq_user *u = get_user(q, user);
        struct fairq_client *c = u ? get_client(u, client) : NULL;

        if (!c) {
                if (u)
                        drop_empty(u);
                return -ENOMEM;
        }
        it->client = c;
        it->cost = front ? 0 : MAX(cost, 1u);
        if (front)
                list_prepend(&c->items, &it->link);
        else
                list_append(&c->items, &it->link);
        c->n++;
        u->n++;
        q->n++;
        return 0;
}

void fairq_remove(struct fairq *q, struct fairq_item *it) {
        struct fairq_client *c = it->client;

        if (!c)
                return;
        list_remove(&it->link);
        it->client = NULL;
        c->n--;
        c->user->n--;
        q->n--;
        drop_empty(c->user);
}

/* The client whose turn it is, after enough rounds that its first item is paid for. */
static struct fairq_client *turn_of_client(struct fairq_user *u) {
        for (;;) {
                struct fairq_client *c = list_first(&u->clients, struct fairq_client, link);
                struct fairq_item *it = list_first(&c->items, struct fairq_item, link);

                if (c->deficit >= it->cost || u->clients.next == u->clients.prev)
                        return c;
                c->deficit += FAIRQ_QUANTUM;
                list_remove(&c->link);
                list_append(&u->clients, &c->link);
        }
}

struct fairq_item *fairq_pop(struct fairq *q, bool (*may)(void *ud, uint64_t user), void *ud) {
        size_t n_users = 0, n_refused = 0;

        list_foreach(u, &q->users, struct fairq_user, link)
                n_users++;
        while (n_refused < n_users) {
                struct fairq_user *u = list_first(&q->users, struct fairq_user, link);
                struct fairq_client *c;
                struct fairq_item *it;

                if (may && !may(ud, u->id)) {
                        n_refused++;
                        list_remove(&u->link);
                        list_append(&q->users, &u->link);
                        continue;
                }
                c = turn_of_client(u);
                it = list_first(&c->items, struct fairq_item, link);
                if (u->deficit < it->cost && n_users - n_refused > 1) {
                        u->deficit += FAIRQ_QUANTUM;
                        n_refused = 0; /* the round goes on; those refused are asked again */
                        list_remove(&u->link);
                        list_append(&q->users, &u->link);
                        continue;
                }
                u->deficit -= MIN(u->deficit, (uint64_t)it->cost);
                c->deficit -= MIN(c->deficit, (uint64_t)it->cost);
                fairq_remove(q, it);
                return it;
        }
        return NULL;
}

struct fairq_item *fairq_any(const struct fairq *q) {
        struct fairq_user *u;
        struct fairq_client *c;

        if (list_empty(&q->users))
                return NULL;
        u = list_first(&q->users, struct fairq_user, link);
        c = list_first(&u->clients, struct fairq_client, link);
        return list_first(&c->items, struct fairq_item, link);
}

size_t fairq_position(const struct fairq *q, const struct fairq_item *it) {
        const struct fairq_client *own = it->client;
        size_t before = 0, rank = 0, others = 0;
        bool earlier = true;

        if (!own)
                return 0;
        list_foreach(i, &own->items, struct fairq_item, link) {
                if (i == it)
                        break;
                before++;
        }
        /* Its place among its user's items: every other client gets as many turns as this one has items before it. */
        list_foreach(c, &own->user->clients, struct fairq_client, link) {
                if (c == own) {
                        rank += before;
                        earlier = false;
                } else
                        rank += MIN(c->n, before + (earlier ? 1 : 0));
        }
        earlier = true;
        list_foreach(u, &q->users, struct fairq_user, link) {
                if (u == own->user)
                        earlier = false;
                else
                        others += MIN(u->n, rank + (earlier ? 1 : 0));
        }
        return rank + others;
}
