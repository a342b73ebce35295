/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the benchmarks of text share. */

#include <errno.h>
#include <stdio.h>

#include "base/buf.h"

/* For qsort() over doubles. */
static inline int bench_compare(const void *a, const void *b) {
        double x = *(const double *)a, y = *(const double *)b;
        return (x > y) - (x < y);
}

/* A whole file; 0 or -errno. */
static inline int bench_read_file(const char *path, struct buf *b) {
        FILE *f = fopen(path, "rb");
        int r;

        if (!f)
                return -errno;
        r = buf_read_fd(b, fileno(f), SIZE_MAX);
        fclose(f);
        return r;
}
