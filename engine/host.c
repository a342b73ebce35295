/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory this process could still take: the kernel's MemAvailable,
 * lowered by what its control groups leave.
 */
#include <errno.h>

#include "base/cgroup.h"
#include "base/meminfo.h"
#include "engine/image.h"

int host_memory(uint64_t *ret_total, uint64_t *ret_free) {
        struct cgroup_bound bound;
        struct meminfo m;

        if (meminfo_read("", &m) < 0 || !m.has_total || !m.has_available)
                return -EIO;
        if (cgroup_memory_bound("", &bound)) {
                m.total = MIN(m.total, bound.limit);
                m.available = MIN(m.available, bound.left);
        }
        *ret_total = m.total;
        *ret_free = m.available;
        return 0;
}
