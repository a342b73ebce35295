/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Stop strings over a stream of text pieces. Text that may be the beginning of
 * one is held back until it is known not to be. No state but the held text.
 */

#include "base/buf.h"

struct stop_list {
        const char **text; /* not owned; none of them empty */
        const size_t *len;
        size_t n;
};

/*
 * 'held' holds what was not given out yet, with the new piece appended. Returns
 * how many of its bytes can be given out now; they all can if *ret_match (an
 * index into the list, or -1) says that the stop string follows them.
 */
size_t stop_scan(const struct stop_list *l, const char *held, size_t n, int *ret_match);
