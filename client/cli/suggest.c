/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "client/cli/cli.h"

enum { WORD_MAX = 48 };

/* Edits (insert, delete, replace, swap neighbours) from a to b: optimal string alignment. */
static unsigned distance(const char *a, const char *b) {
        size_t n = strlen(a), m = strlen(b);
        unsigned d[WORD_MAX + 1][WORD_MAX + 1];

        if (n > WORD_MAX || m > WORD_MAX)
                return UINT32_MAX;
        for (size_t i = 0; i <= n; i++)
                d[i][0] = (unsigned)i;
        for (size_t j = 0; j <= m; j++)
                d[0][j] = (unsigned)j;
        for (size_t i = 1; i <= n; i++)
                for (size_t j = 1; j <= m; j++) {
                        unsigned cost = a[i - 1] != b[j - 1], best;
                        best = MIN(d[i - 1][j] + 1, d[i][j - 1] + 1);
                        best = MIN(best, d[i - 1][j - 1] + cost);
                        if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                                best = MIN(best, d[i - 2][j - 2] + 1);
                        d[i][j] = best;
                }
        return d[n][m];
}

const char *cli_nearest(const char *word, const char *const *names, size_t n) {
        unsigned best = UINT32_MAX, limit = strlen(word) < 4 ? 1 : strlen(word) < 8 ? 2 : 3;
        const char *near = NULL;

        for (size_t i = 0; i < n && names[i]; i++) {
                unsigned d = distance(word, names[i]);
                if (d < best) {
                        best = d;
                        near = names[i];
                }
        }
        return best <= limit ? near : NULL;
}
