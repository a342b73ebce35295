/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory this process could still take: the kernel's MemAvailable,
 * lowered by what each of its cgroups (v2) leaves under memory.max.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "engine/image.h"

/* A small text file into buf, NUL-terminated. */
static bool slurp(const char *path, char *buf, size_t n) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t r;

        if (fd < 0)
                return false;
        r = read(fd, buf, n - 1);
        fd_close(fd);
        if (r < 0)
                return false;
        buf[r] = 0;
        return true;
}

static bool meminfo_row(const char *text, const char *key, uint64_t *ret) {
        const char *p = strstr(text, key);
        unsigned long long kib;

        if (!p || sscanf(p + strlen(key), " %llu", &kib) != 1)
                return false;
        *ret = (uint64_t)kib << 10;
        return true;
}

static bool cgroup_number(const char *group, const char *file, uint64_t *ret) {
        char path[4352], buf[64];
        unsigned long long v;

        snprintf(path, sizeof(path), "/sys/fs/cgroup%s/%s", group, file);
        if (!slurp(path, buf, sizeof(buf)) || sscanf(buf, "%llu", &v) != 1)
                return false; /* also "max" */
        *ret = v;
        return true;
}

int host_memory(uint64_t *ret_total, uint64_t *ret_free) {
        char text[4096], *group;
        uint64_t total, available;

        if (!slurp("/proc/meminfo", text, sizeof(text)) || !meminfo_row(text, "MemTotal:", &total) ||
            !meminfo_row(text, "MemAvailable:", &available))
                return -EIO;
        if (slurp("/proc/self/cgroup", text, sizeof(text)) && (group = strstr(text, "0::/"))) {
                group += 3;
                group[strcspn(group, "\n")] = 0;
                for (;;) {
                        char *slash;
                        uint64_t max, used, cache = 0;

                        if (cgroup_number(group, "memory.max", &max) && cgroup_number(group, "memory.current", &used)) {
                                char stat[4096];
                                /* File pages that nobody uses are given back under pressure. */
                                char path[4352];
                                snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.stat", group);
                                if (slurp(path, stat, sizeof(stat))) {
                                        char *p = strstr(stat, "inactive_file ");
                                        unsigned long long v;
                                        if (p && sscanf(p + 14, "%llu", &v) == 1)
                                                cache = v;
                                }
                                used -= MIN(used, cache);
                                total = MIN(total, max);
                                available = MIN(available, max > used ? max - used : 0);
                        }
                        slash = strrchr(group, '/');
                        if (!slash || slash == group)
                                break;
                        *slash = 0;
                }
        }
        *ret_total = total;
        *ret_free = available;
        return 0;
}
