/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "base/types.h"

/* The machine's memory in bytes, as its kernel tells it. */
struct meminfo {
        uint64_t total;
        uint64_t available; /* what a program can still take without swapping */
        bool has_total, has_available; /* the rows are there */
};

/* Of <root>/proc/meminfo; root: "", or a test's. 0, or -errno: it can't be opened. Rows that are missing are 0. */
int meminfo_read(const char *root, struct meminfo *ret);
