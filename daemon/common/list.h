/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Intrusive doubly linked lists. An initialized or removed node points to itself, so removal is idempotent. */

#include "base/types.h"

struct list {
        struct list *prev, *next;
};

static inline void list_init(struct list *l) {
        l->prev = l->next = l;
}

static inline bool list_empty(const struct list *l) {
        return l->next == l;
}

static inline void list_append(struct list *head, struct list *n) {
        n->prev = head->prev;
        n->next = head;
        head->prev->next = n;
        head->prev = n;
}

static inline void list_prepend(struct list *head, struct list *n) {
        list_append(head->next, n);
}

static inline void list_remove(struct list *n) {
        n->prev->next = n->next;
        n->next->prev = n->prev;
        list_init(n);
}

/*
 * Removes n but leaves its own pointers: a walk that stands on n still finds the
 * rest. For lists whose members are freed later than any walk can last; walkers
 * skip what they find dead.
 */
static inline void list_remove_walked(struct list *n) {
        n->prev->next = n->next;
        n->next->prev = n->prev;
}

#define list_first(head, type, member) CONTAINER_OF((head)->next, type, member)
/* 'it' may be removed in the body. */
#define list_foreach(it, head, type, member)                                                       \
        for (type *it = CONTAINER_OF((head)->next, type, member),                                  \
                  *it##_next = CONTAINER_OF(it->member.next, type, member);                        \
             &it->member != (head); it = it##_next, it##_next = CONTAINER_OF(it->member.next, type, member))
