/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory this process could still take: the kernel's MemAvailable,
 * lowered by what its control groups leave.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/cgroup.h"
#include "engine/image.h"

static bool meminfo_row(const char *text, const char *key, uint64_t *ret) {
        const char *p = strstr(text, key);
        unsigned long long kib;

        if (!p || sscanf(p + strlen(key), " %llu", &kib) != 1)
                return false;
        *ret = (uint64_t)kib << 10;
        return true;
}

int host_memory(uint64_t *ret_total, uint64_t *ret_free) {
        char text[4096];
        uint64_t total, available;
        struct cgroup_mounts mounts;
        struct cgroup_bound bound;
        struct cgroup own;
        int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

        fd_close(fd);
        if (n < 0)
                return -EIO;
        text[n] = 0;
        if (!meminfo_row(text, "MemTotal:", &total) || !meminfo_row(text, "MemAvailable:", &available))
                return -EIO;
        cgroup_mounts_read("", &mounts);
        if (cgroup_find("", &mounts, "self", &own) && cgroup_memory_bound(&own, &bound)) {
                total = MIN(total, bound.limit);
                available = MIN(available, bound.left);
        }
        *ret_total = total;
        *ret_free = available;
        return 0;
}
