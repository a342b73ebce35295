/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/worker/stop.h"

#include <string.h>

size_t stop_scan(const struct stop_list *l, const char *held, size_t n, int *ret_match) {
        size_t best = n, keep = 0;

        *ret_match = -1;
        /* The earliest match; of several that begin there, the longest. */
        for (size_t i = 0; i < l->n; i++) {
                const char *p = memmem(held, n, l->text[i], l->len[i]);
                size_t at = p ? (size_t)(p - held) : n;

                if (p && (*ret_match < 0 || at < best || (at == best && l->len[i] > l->len[*ret_match]))) {
                        best = at;
                        *ret_match = (int)i;
                }
        }
        /* The longest end of the text that begins a stop string. One that begins before a match decides first. */
        for (size_t i = 0; i < l->n; i++)
                for (size_t k = MIN(n, l->len[i] - 1); k > keep; k--)
                        if (memcmp(held + n - k, l->text[i], k) == 0)
                                keep = k;
        if (*ret_match >= 0 && best <= n - keep)
                return best;
        if (*ret_match >= 0)
                *ret_match = -1; /* an earlier, longer one may still come about */
        return n - keep;
}
