/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/ledger.h"

#include <stdio.h>
#include <string.h>

#include "base/meminfo.h"

void ledger_init(struct ledger *l, uint64_t budget) {
        *l = (struct ledger){ .budget = budget };
        list_init(&l->all);
}

uint64_t ledger_available(const struct ledger *l) {
        return l->budget == 0 ? UINT64_MAX : l->budget > l->used ? l->budget - l->used : 0;
}

const char *format_bytes(uint64_t bytes, char buf[32]) {
        static const char *const units[] = { "B", "kB", "MB", "GB", "TB" };
        double v = (double)bytes;
        size_t u = 0;

        while (v >= 999.5 && u + 1 < ELEMENTSOF(units)) {
                v /= 1000;
                u++;
        }
        snprintf(buf, 32, u == 0 || v >= 99.95 ? "%.0f %s" : "%.1f %s", v, units[u]);
        return buf;
}

size_t ledger_holders(const struct ledger *l, const struct reservation *but, char *buf, size_t size) {
        size_t n = 0;
        char a[32];

        buf[0] = 0;
        list_foreach(r, &l->all, struct reservation, link) {
                uint64_t bytes = r->bytes;
                bool first = true;
                int w;

                /* A model's weights and its context are one to a person: summed up at the first of them. */
                for (struct list *p = l->all.next; p != &r->link; p = p->next)
                        first &= strcmp(CONTAINER_OF(p, struct reservation, link)->holder, r->holder) != 0;
                if (!first || (but && strcmp(r->holder, but->holder) == 0))
                        continue;
                for (struct list *p = r->link.next; p != &l->all; p = p->next)
                        if (strcmp(CONTAINER_OF(p, struct reservation, link)->holder, r->holder) == 0)
                                bytes += CONTAINER_OF(p, struct reservation, link)->bytes;
                w = snprintf(buf + n, size - n, "%s%s %s", n ? ", " : "", r->holder, format_bytes(bytes, a));
                if (w < 0 || (size_t)w >= size - n) {
                        buf[n] = 0;
                        break;
                }
                n += (size_t)w;
        }
        return n;
}

static int refuse(struct ledger *l, uint64_t bytes, const char *holder, struct h_error *err) {
        char held[256], a[32], b[32], c[32];
        size_t n = ledger_holders(l, NULL, held, sizeof(held));

        return h_error_counts(err, HEARTH_E_model_no_memory, bytes, ledger_available(l),
                              "%s needs %s of host memory, %s are available of a budget of %s (host_budget in hearth.conf)%s%s%s",
                              holder, format_bytes(bytes, a), format_bytes(ledger_available(l), b),
                              format_bytes(l->budget, c), n ? "; held: " : "", held,
                              n ? ". Unload one of them: hearth unload NAME" : "");
}

int ledger_reserve(struct ledger *l, struct reservation *r, uint64_t bytes, const char *holder, struct h_error *err) {
        uint64_t used;

        if (__builtin_add_overflow(l->used, bytes, &used) || bytes > ledger_available(l))
                return refuse(l, bytes, holder, err);
        l->used = used;
        r->ledger = l;
        r->bytes = bytes;
        snprintf(r->holder, sizeof(r->holder), "%s", holder);
        list_append(&l->all, &r->link);
        return 0;
}

void ledger_release(struct reservation *r) {
        if (!r->ledger)
                return;
        r->ledger->used -= r->bytes;
        list_remove(&r->link);
        *r = (struct reservation){};
}

void ledger_move(struct reservation *from, struct reservation *to) {
        if (!from->ledger)
                return;
        *to = *from;
        list_append(&from->link, &to->link);
        list_remove(&from->link);
        *from = (struct reservation){};
}

uint64_t ledger_default_budget(const char *root, struct cgroup_bound *ret) {
        struct cgroup_bound bound;
        struct meminfo machine;
        uint64_t n;

        *ret = (struct cgroup_bound){};
        (void)meminfo_read(root, &machine);
        n = machine.available; /* 0: not known */
        if (cgroup_memory_bound(root, &bound) && (!n || bound.left < n)) {
                n = bound.left;
                *ret = bound;
        }
        /* An eighth, at least 256 MiB, is left to everything else on the machine. */
        return n - MIN(n, MAX(n / 8, UINT64_C(256) << 20));
}
