/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <string.h>

#include "base/alloc.h"
#include "base/shown.h"
#include "client/cli/cli.h"

/* Characters, which for names is close enough to columns. */
static int width(const char *s) {
        int n = 0;
        for (; *s; s++)
                n += (*s & 0xc0) != 0x80;
        return n;
}

void cli_table_add(struct cli_table *t, const char *fmt, ...) {
        char text[1100], cell[4 * sizeof(text)], **more;
        va_list ap;

        va_start(ap, fmt);
        vsnprintf(text, sizeof(text), fmt, ap);
        va_end(ap);
        /* One cell, one row: a client's name or a model's must not make up rows of its own. */
        shown_copy(text, strlen(text), SHOWN_LINE, cell, sizeof(cell));
        more = h_realloc(t->cells, (t->n_cells + 1) * sizeof(*more));
        if (!more)
                return;
        t->cells = more;
        t->cells[t->n_cells] = h_strdup(cell);
        if (t->cells[t->n_cells])
                t->n_cells++;
}

void cli_table_print(struct cli *c, struct cli_table *t) {
        t->n_cells -= t->n_cells % t->n_columns; /* memory ran out within a row */
        for (size_t i = 0; i < t->n_cells; i++) {
                size_t column = i % t->n_columns;
                const char *cell = t->cells[i];
                int w = 0, pad;

                for (size_t k = column; k < t->n_cells; k += t->n_columns)
                        if (column + 1 < t->n_columns)
                                w = MAX(w, width(t->cells[k]));
                pad = w - width(cell);
                if (t->right >> column & 1)
                        printf("%*s", pad, "");
                fputs(cell, stdout);
                /* No blanks at a line's end: what follows may all be empty. */
                if (column + 1 == t->n_columns || (column + 2 == t->n_columns && !*t->cells[i + 1])) {
                        putchar('\n');
                        i += column + 2 == t->n_columns;
                } else
                        printf("%*s", (t->right >> column & 1 ? 0 : pad) + 2, "");
        }
        for (size_t i = 0; i < t->n_cells; i++)
                free(t->cells[i]);
        free(t->cells);
        t->cells = NULL;
        t->n_cells = 0;
}
