/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Who holds how many bytes of host memory. Every copy of a model and every
 * context is reserved here before it is allocated; the budget has no
 * exceptions. Reservations are owned by their holders.
 */

#include "base/cgroup.h"
#include "base/error.h"
#include "daemon/common/list.h"

struct ledger {
        uint64_t budget; /* 0: none */
        uint64_t used;
        struct list all;
};

struct reservation {
        struct list link;
        struct ledger *ledger; /* NULL: holds nothing */
        uint64_t bytes;
        char holder[128];      /* as a person would call it */
};

void ledger_init(struct ledger *l, uint64_t budget);
uint64_t ledger_available(const struct ledger *l);
/* model_no_memory names what is needed, what is free and who holds the rest. 'r' must be zero or released. */
int ledger_reserve(struct ledger *l, struct reservation *r, uint64_t bytes, const char *holder, struct h_error *err);
void ledger_release(struct reservation *r); /* idempotent */
void ledger_move(struct reservation *from, struct reservation *to); /* 'to' must hold nothing */

/* "a 3 GB, b 94 MB", without the holder of 'but' (may be NULL); its length. */
size_t ledger_holders(const struct ledger *l, const struct reservation *but, char *buf, size_t size);

/*
 * MemAvailable, or what the control groups leave if that is less, less a reserve for everything else. *ret: the
 * group that says so, its limit 0 where the machine does. root: "", or a test's.
 */
uint64_t ledger_default_budget(const char *root, struct cgroup_bound *ret);
/* "94 MB": for messages. */
const char *format_bytes(uint64_t bytes, char buf[32]);
