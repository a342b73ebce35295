/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/oom.h"

#include <stdio.h>
#include <string.h>

#include "daemon/broker/ledger.h"

/* A process that was sent the signal ends once its memory is given back. */
#define WAIT_MS 30000u

static void set_cause(struct oom_cause *c, const struct cgroup *g, uint64_t limit) {
        const char *name = cgroup_name(g);
        size_t n = strlen(name), most = sizeof(c->group) - 1;

        c->limit = MAX(limit, UINT64_C(1));
        if (n <= most)
                memcpy(c->group, name, n + 1);
        else
                snprintf(c->group, sizeof(c->group), "...%s", name + n - (most - 3));
}

/* What stood in the way since the last look: the innermost one, as the kernel looks for somebody to end within it. */
static void find_cause(const struct oom_group *g, struct oom_cause *ret) {
        struct cgroup at = g->group;
        uint64_t hits, limit;
        size_t i = 0;

        *ret = (struct oom_cause){};
        do
                if (g->hits[i] != UINT64_MAX && cgroup_limit_hits(&at, &hits) && hits > g->hits[i] && cgroup_memory_limit(&at, &limit)) {
                        set_cause(ret, &at, limit);
                        return;
                }
        while (++i < g->n && cgroup_up(&at));
        at = g->group;
        do
                if (cgroup_was_full(&at) && cgroup_memory_limit(&at, &limit)) {
                        set_cause(ret, &at, limit);
                        return;
                }
        while (cgroup_up(&at));
}

static void note_hits(struct oom_group *g) {
        struct cgroup at = g->group;

        g->n = 0;
        do {
                if (!cgroup_limit_hits(&at, &g->hits[g->n]))
                        g->hits[g->n] = UINT64_MAX;
        } while (++g->n < ELEMENTSOF(g->hits) && cgroup_up(&at));
}

/* Kills since the last look. */
static uint64_t look_at(struct oom_group *g, struct oom_cause *ret) {
        uint64_t kills = 0, n = 0;
        bool counts = g->known && cgroup_oom_kills(&g->group, &kills);

        if (counts && g->counts && kills > g->kills) {
                n = kills - g->kills;
                find_cause(g, ret);
        }
        g->counts = counts;
        g->kills = kills;
        if (counts)
                note_hits(g);
        return n;
}

static void find(struct oom *o, struct oom_group *g, const char *pid) {
        struct cgroup now, up;
        uint64_t n;

        if (!cgroup_find(o->root, &o->mounts, pid, &now))
                return; /* where it was, as far as is known */
        /* Memory may be counted further up only, for all below. */
        up = now;
        do
                if (cgroup_oom_kills(&up, &n)) {
                        now = up;
                        break;
                }
        while (cgroup_up(&up));
        if (g->known && now.version == g->group.version && strcmp(now.dir, g->group.dir) == 0)
                return;
        *g = (struct oom_group){ .group = now, .known = true };
}

/* "oom_kill" of the whole machine. */
static bool machine_kills(const char *root, uint64_t *ret) {
        char path[512], *line = NULL;
        unsigned long long v;
        bool found = false;
        size_t n = 0;
        FILE *f;

        if ((size_t)snprintf(path, sizeof(path), "%s/proc/vmstat", root) >= sizeof(path) || !(f = fopen(path, "re")))
                return false;
        while (!found && getline(&line, &n, f) > 0)
                found = sscanf(line, "oom_kill %llu", &v) == 1;
        free(line);
        fclose(f);
        if (found)
                *ret = v;
        return found;
}

void oom_init(struct oom *o, const char *root) {
        *o = (struct oom){ .root = root };
        cgroup_mounts_read(root, &o->mounts);
        oom_look(o, 0, 0);
}

void oom_look(struct oom *o, uint32_t pid, uint64_t now_ms) {
        struct oom_cause cause, inner;
        uint64_t n, m, machine;
        char text[16];

        find(o, &o->own, "self");
        if (pid) {
                snprintf(text, sizeof(text), "%u", pid);
                find(o, &o->worker, text);
                if (o->own.known && strcmp(o->worker.group.dir, o->own.group.dir) == 0)
                        o->worker = (struct oom_group){};
        }
        n = look_at(&o->own, &cause);
        m = look_at(&o->worker, &inner);
        if (m) /* a group within ours is counted in both */
                cause = inner;
        n = MAX(n, m);
        if (!o->own.counts && !o->worker.counts && machine_kills(o->root, &machine)) {
                if (o->machine_known && machine > o->machine) {
                        n = machine - o->machine;
                        cause = (struct oom_cause){};
                }
                o->machine = machine;
                o->machine_known = true;
        } else
                o->machine_known = false;
        if (o->n_open && now_ms - o->noticed_ms > WAIT_MS)
                o->n_open = 0;
        if (n) {
                o->n_open += n;
                o->noticed_ms = now_ms;
                o->cause = cause;
        }
}

enum oom_answer oom_ended(struct oom *o, uint64_t now_ms, struct oom_cause *ret) {
        oom_look(o, 0, now_ms);
        if (o->n_open) {
                o->n_open--;
                *ret = o->cause;
                return OOM_YES;
        }
        return o->own.counts || o->worker.counts || o->machine_known ? OOM_NO : OOM_UNKNOWN;
}

const char *oom_text(const struct oom_cause *c, char buf[192]) {
        char limit[32];

        if (c->limit)
                snprintf(buf, 192, "was ended by the kernel: out of memory (limit of the control group %s: %s)", c->group, format_bytes(c->limit, limit));
        else
                snprintf(buf, 192, "was ended by the kernel: out of memory (of the machine)");
        return buf;
}
