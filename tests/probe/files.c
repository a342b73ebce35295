/* SPDX-License-Identifier: Apache-2.0 */
/* Small input and output: lists of ids, files, lines, .npy (format: numpy's NEP 1, version 1.0). */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "probe.h"

int read_file(const char *path, struct buf *ret) {
        FILE *f = fopen(path, "rbe");
        char block[65536];
        size_t n;
        int bad;

        if (!f) {
                fprintf(stderr, "hearth-probe: %s: %s\n", path, strerror(errno));
                return 66;
        }
        while ((n = fread(block, 1, sizeof(block), f)) > 0)
                if (buf_append(ret, block, n) < 0)
                        break;
        bad = ferror(f) || !feof(f);
        fclose(f);
        if (bad)
                fprintf(stderr, "hearth-probe: %s: reading failed\n", path);
        return bad ? 74 : 0;
}

int parse_ids(const char *text, struct ids *ret) {
        struct buf b = { 0 };
        struct ids v = { 0 };
        size_t cap = 0;
        int r = 0;

        if (!text) {
                fprintf(stderr, "hearth-probe: --tokens is missing\n");
                return 64;
        }
        if (*text == '@') {
                r = read_file(text + 1, &b);
                text = b.data ? b.data : "";
        }
        while (r == 0 && *text) {
                char *end;
                unsigned long id = strtoul(text, &end, 10);
                if (end == text || id > UINT32_MAX) {
                        fprintf(stderr, "hearth-probe: bad token list at \"%.20s\"\n", text);
                        r = 64;
                        break;
                }
                if (v.n == cap) {
                        uint32_t *p = h_realloc(v.v, (cap = cap * 2 + 64) * sizeof(*p));
                        if (!p) {
                                r = 71;
                                break;
                        }
                        v.v = p;
                }
                v.v[v.n++] = (uint32_t)id;
                text = end + strspn(end, ", \t\r\n");
        }
        buf_free(&b);
        if (r == 0 && v.n == 0) {
                fprintf(stderr, "hearth-probe: no tokens\n");
                r = 64;
        }
        if (r)
                free(v.v);
        else
                *ret = v;
        return r;
}

int for_each_line(const char *path, int (*fn)(void *ud, const char *line, size_t n), void *ud) {
        FILE *f;
        char *line = NULL;
        size_t cap = 0;
        ssize_t n;
        int r = 0;

        if (!path) {
                fprintf(stderr, "hearth-probe: --jsonl is missing\n");
                return 64;
        }
        f = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
        if (!f) {
                fprintf(stderr, "hearth-probe: %s: %s\n", path, strerror(errno));
                return 66;
        }
        while (r == 0 && (n = getline(&line, &cap, f)) > 0) {
                while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
                        n--;
                if (n > 0)
                        r = fn(ud, line, (size_t)n);
        }
        free(line);
        if (f != stdin)
                fclose(f);
        return r;
}

int npy_create(struct npy *n, const char *path, uint64_t rows, uint64_t cols) {
        char head[128];
        int len;

        if (!path) {
                fprintf(stderr, "hearth-probe: --out is missing\n");
                return 64;
        }
        n->f = fopen(path, "wbe");
        if (!n->f) {
                fprintf(stderr, "hearth-probe: %s: %s\n", path, strerror(errno));
                return 73;
        }
        n->rows = rows;
        n->cols = cols;
        /* Magic, version, header length (118: the data begins at 128), header padded with spaces. */
        memset(head, ' ', sizeof(head));
        memcpy(head, "\x93NUMPY\x01\x00\x76\x00", 10);
        len = snprintf(head + 10, 118, "{'descr': '<f4', 'fortran_order': False, 'shape': (%llu, %llu), }",
                       (unsigned long long)rows, (unsigned long long)cols);
        head[10 + len] = ' ';
        head[127] = '\n';
        return fwrite(head, 1, sizeof(head), n->f) == sizeof(head) ? 0 : 74;
}

int npy_write(struct npy *n, const float *row, uint64_t n_rows) {
        return fwrite(row, sizeof(float) * n->cols, n_rows, n->f) == n_rows ? 0 : 74;
}

int npy_close(struct npy *n) {
        int r = n->f ? fclose(n->f) : 0;
        n->f = NULL;
        if (r)
                fprintf(stderr, "hearth-probe: writing failed: %s\n", strerror(errno));
        return r ? 74 : 0;
}
