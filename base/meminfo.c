/* SPDX-License-Identifier: Apache-2.0 */
/* Format: the kernel's Documentation/filesystems/proc.rst, meminfo. */
#include "base/meminfo.h"

#include <errno.h>
#include <stdio.h>

int meminfo_read(const char *root, struct meminfo *ret) {
        char path[512], line[128];
        unsigned long long kib;
        FILE *f;

        *ret = (struct meminfo){};
        if ((size_t)snprintf(path, sizeof(path), "%s/proc/meminfo", root) >= sizeof(path))
                return -ENAMETOOLONG;
        f = fopen(path, "re");
        if (!f)
                return -errno;
        while (fgets(line, sizeof(line), f)) {
                if (sscanf(line, "MemTotal: %llu kB", &kib) == 1) {
                        ret->total = (uint64_t)kib << 10;
                        ret->has_total = true;
                } else if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) {
                        ret->available = (uint64_t)kib << 10;
                        ret->has_available = true;
                }
        }
        fclose(f);
        return 0;
}
