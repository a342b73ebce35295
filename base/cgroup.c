/* SPDX-License-Identifier: Apache-2.0 */
/* Formats: the kernel's Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst, filesystems/proc.rst 3.5 (mountinfo). */
#include "base/cgroup.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* Version 1 says "no limit" with the largest number of pages. */
#define NO_LIMIT (UINT64_C(1) << 62)

/* ---- where ---- */

/* mountinfo writes space, tab, newline and backslash as \ooo. */
static void unescape(char *s) {
        char *to = s;

        for (; *s; s++)
                if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' && s[3] >= '0' && s[3] <= '7') {
                        *to++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
                        s += 3;
                } else
                        *to++ = *s;
        *to = 0;
}

/* Is 'word' in the list, as "rw,memory"? */
static bool listed(const char *list, const char *word) {
        size_t n = strlen(word);

        for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',')
                if (strncmp(p, word, n) == 0 && (p[n] == ',' || p[n] == 0))
                        return true;
        return false;
}

static bool set(char *to, size_t n, char *from) {
        unescape(from);
        return (size_t)snprintf(to, n, "%s", from) < n;
}

/* "36 35 0:32 ROOT AT options [optional ...] - TYPE source OPTIONS" */
static void read_mount(char *line, struct cgroup_mounts *m, bool seen[2]) {
        char *words[5] = {}, *rest = strstr(line, " - "), *type, *options, *save;
        bool v2;

        if (!rest)
                return;
        *rest = 0;
        type = strtok_r(rest + 3, " \n", &save);
        (void)strtok_r(NULL, " \n", &save);
        options = strtok_r(NULL, " \n", &save);
        v2 = type && strcmp(type, "cgroup2") == 0;
        if (!v2 && (!type || !options || strcmp(type, "cgroup") != 0 || !listed(options, "memory")))
                return;
        for (size_t i = 0; i < ELEMENTSOF(words); i++)
                words[i] = strtok_r(i ? NULL : line, " ", &save);
        if (!words[4] || seen[v2])
                return;
        struct cgroup_mount *to = v2 ? &m->v2 : &m->v1, found = {};
        if (set(found.top, sizeof(found.top), words[3]) && set(found.at, sizeof(found.at), words[4])) {
                *to = found;
                seen[v2] = true;
        }
}

void cgroup_mounts_read(const char *root, struct cgroup_mounts *ret) {
        char path[512], *line = NULL;
        bool seen[2] = {};
        size_t n = 0;
        FILE *f;

        /* Where they usually are. */
        *ret = (struct cgroup_mounts){ .v1 = { "/sys/fs/cgroup/memory", "/" }, .v2 = { "/sys/fs/cgroup", "/" } };
        if ((size_t)snprintf(path, sizeof(path), "%s/proc/self/mountinfo", root) >= sizeof(path) || !(f = fopen(path, "re")))
                return;
        while (getline(&line, &n, f) > 0)
                read_mount(line, ret, seen);
        free(line);
        fclose(f);
}

static bool read_file(const char *path, char *buf, size_t size) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, buf, size - 1);

        fd_close(fd);
        if (n < 0)
                return false;
        buf[n] = 0;
        return true;
}

/* The part of 'group' below what is mounted; "": that itself, also where the group lies elsewhere (it can't be seen then). */
static const char *below(const char *group, const char *top) {
        size_t n = strcmp(top, "/") == 0 ? 0 : strlen(top);

        if (strncmp(group, top, n) != 0 || (group[n] != '/' && group[n]) || strncmp(group, "/..", 3) == 0)
                return "";
        return strcmp(group + n, "/") == 0 ? "" : group + n;
}

bool cgroup_find(const char *root, const struct cgroup_mounts *m, const char *pid, struct cgroup *ret) {
        char path[512], text[8192], *save, *group = NULL;
        struct cgroup g = { .version = 2 };
        const struct cgroup_mount *at;
        int n;

        if ((size_t)snprintf(path, sizeof(path), "%s/proc/%s/cgroup", root, pid) >= sizeof(path) || !read_file(path, text, sizeof(text)))
                return false;
        /* "ID:controllers:group", version 2's "0::group" */
        for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
                char *list = strchr(line, ':'), *end = list ? strchr(list + 1, ':') : NULL;

                if (!end)
                        continue;
                *end = 0;
                if (listed(list + 1, "memory")) {
                        g.version = 1;
                        group = end + 1;
                        break;
                }
                if (strcmp(line, "0:") == 0)
                        group = end + 1;
        }
        if (!group)
                return false;
        at = g.version == 1 ? &m->v1 : &m->v2;
        n = snprintf(g.dir, sizeof(g.dir), "%s%s%s", root, at->at, below(group, at->top));
        g.n_mount = strlen(root) + strlen(at->at);
        if ((size_t)n >= sizeof(g.dir))
                return false;
        *ret = g;
        return true;
}

bool cgroup_up(struct cgroup *g) {
        struct cgroup up = *g;
        uint64_t whole;

        if (!up.dir[up.n_mount])
                return false;
        *strrchr(up.dir + up.n_mount, '/') = 0;
        if (g->version == 1 && cgroup_number(&up, "memory.use_hierarchy", NULL, &whole) && !whole)
                return false;
        *g = up;
        return true;
}

const char *cgroup_name(const struct cgroup *g) {
        return g->dir[g->n_mount] ? g->dir + g->n_mount : "/";
}

/* ---- what ---- */

bool cgroup_number(const struct cgroup *g, const char *file, const char *key, uint64_t *ret) {
        char path[1100], text[8192];
        size_t n = key ? strlen(key) : 0;
        const char *p = text;

        if ((size_t)snprintf(path, sizeof(path), "%s/%s", g->dir, file) >= sizeof(path) || !read_file(path, text, sizeof(text)))
                return false;
        while (n && (strncmp(p, key, n) != 0 || p[n] != ' ')) {
                p += strcspn(p, "\n");
                if (!*p++)
                        return false;
        }
        p += n ? n + 1 : 0;
        if (*p < '0' || *p > '9')
                return false;
        *ret = strtoull(p, NULL, 10);
        return true;
}

bool cgroup_memory_limit(const struct cgroup *g, uint64_t *ret) {
        uint64_t v;

        if (!cgroup_number(g, g->version == 1 ? "memory.limit_in_bytes" : "memory.max", NULL, &v) || v >= NO_LIMIT)
                return false;
        *ret = v;
        return true;
}

static bool used(const struct cgroup *g, uint64_t *ret) {
        uint64_t v, cache;

        if (!cgroup_number(g, g->version == 1 ? "memory.usage_in_bytes" : "memory.current", NULL, &v))
                return false;
        /* File pages that nobody uses are given back under pressure. */
        if (cgroup_number(g, "memory.stat", g->version == 1 ? "total_inactive_file" : "inactive_file", &cache))
                v -= MIN(v, cache);
        *ret = v;
        return true;
}

bool cgroup_memory_bound(const char *root, struct cgroup_bound *ret) {
        struct cgroup_mounts mounts;
        bool found = false;
        struct cgroup g;

        cgroup_mounts_read(root, &mounts);
        if (!cgroup_find(root, &mounts, "self", &g))
                return false;
        do {
                uint64_t limit, n, left;

                if (!cgroup_memory_limit(&g, &limit) || !used(&g, &n))
                        continue;
                left = limit - MIN(limit, n);
                if (found && left >= ret->left)
                        continue;
                *ret = (struct cgroup_bound){ .group = g, .limit = limit, .left = left };
                found = true;
        } while (cgroup_up(&g));
        return found;
}

bool cgroup_oom_kills(const struct cgroup *g, uint64_t *ret) {
        return cgroup_number(g, g->version == 1 ? "memory.oom_control" : "memory.events", "oom_kill", ret);
}

bool cgroup_was_full(const struct cgroup *g) {
        uint64_t limit, most;

        /* A limit may be found reached when less than a percent is missing: charges come in batches. */
        return g->version == 1 && cgroup_number(g, "memory.memsw.limit_in_bytes", NULL, &limit) && limit < NO_LIMIT &&
               cgroup_number(g, "memory.memsw.max_usage_in_bytes", NULL, &most) && most >= limit - limit / 100;
}

bool cgroup_limit_hits(const struct cgroup *g, uint64_t *ret) {
        return g->version == 1 ? cgroup_number(g, "memory.failcnt", NULL, ret) : cgroup_number(g, "memory.events", "oom", ret);
}
