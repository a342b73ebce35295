/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target without libFuzzer: every file of the corpus given, then a
 * bounded number of deterministic mutations of each. Used in CI with gcc and
 * sanitizers; with -Dfuzzers=true (clang) libFuzzer's own main is used instead.
 *
 *   fuzz_NAME [-m MUTATIONS_PER_FILE] FILE_OR_DIR...
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t n_runs, rng = 0x9e3779b97f4a7c15u;

static uint64_t next(void) {
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        return rng;
}

/* A private exact-size copy, so that a sanitizer sees one byte too far. */
static void run(const uint8_t *p, size_t n) {
        uint8_t *copy = malloc(n ? n : 1);
        if (!copy)
                abort();
        memcpy(copy, p, n);
        LLVMFuzzerTestOneInput(copy, n);
        free(copy);
        n_runs++;
}

static void mutate(const uint8_t *p, size_t n, unsigned count) {
        uint8_t *m = malloc(n + 64);
        if (!m)
                abort();
        for (unsigned i = 0; i < count; i++) {
                size_t len = n;
                memcpy(m, p, n);
                for (unsigned k = 1 + next() % 4; k > 0 && len > 0; k--) {
                        size_t at = next() % len;
                        switch (next() % 6) {
                        case 0: m[at] = (uint8_t)next(); break;
                        case 1: m[at] ^= (uint8_t)(1u << (next() % 8)); break;
                        case 2: len = at; break;
                        case 3: /* extreme little-endian word */
                                for (size_t j = at; j < len && j < at + 8; j++)
                                        m[j] = next() % 2 ? 0xff : 0x00;
                                break;
                        case 4: { /* repeat a piece */
                                size_t piece = 1 + next() % 32;
                                if (at + piece <= len && len + piece <= n + 64) {
                                        memmove(m + at + piece, m + at, len - at);
                                        len += piece;
                                }
                                break;
                        }
                        case 5: { /* drop a piece */
                                size_t piece = 1 + next() % 16;
                                if (at + piece <= len) {
                                        memmove(m + at, m + at + piece, len - at - piece);
                                        len -= piece;
                                }
                                break;
                        }
                        }
                }
                run(m, len);
        }
        free(m);
}

static int one_path(const char *path, unsigned mutations) {
        struct stat st;
        if (stat(path, &st) < 0) {
                perror(path);
                return 1;
        }
        if (S_ISDIR(st.st_mode)) {
                DIR *d = opendir(path);
                struct dirent *e;
                int r = 0;
                if (!d) {
                        perror(path);
                        return 1;
                }
                while ((e = readdir(d))) {
                        char sub[4096];
                        if (e->d_name[0] == '.')
                                continue;
                        snprintf(sub, sizeof(sub), "%s/%s", path, e->d_name);
                        r |= one_path(sub, mutations);
                }
                closedir(d);
                return r;
        }
        FILE *f = fopen(path, "rb");
        if (!f) {
                perror(path);
                return 1;
        }
        size_t n = (size_t)st.st_size;
        uint8_t *p = malloc(n ? n : 1);
        if (!p || fread(p, 1, n, f) != n) {
                fclose(f);
                free(p);
                return 1;
        }
        fclose(f);
        run(p, n);
        mutate(p, n, mutations);
        free(p);
        return 0;
}

int main(int argc, char **argv) {
        unsigned mutations = 200;
        int r = 0, i = 1;

        if (argc > 2 && strcmp(argv[1], "-m") == 0) {
                mutations = (unsigned)strtoul(argv[2], NULL, 10);
                i = 3;
        }
        for (; i < argc; i++)
                r |= one_path(argv[i], mutations);
        printf("%llu inputs\n", (unsigned long long)n_runs);
        return n_runs == 0 ? 1 : r;
}
