/* SPDX-License-Identifier: Apache-2.0 */
/*
 * File names become model names in one place, parse_file(). The nearest names
 * are computed only after a look-up failed.
 */
#include "daemon/broker/registry.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/shown.h"
#include "daemon/broker/user.h"

#define MAX_ENTRIES 4096
#define MAX_NAME 200
#define N_NEAREST 3

struct source *source_free(struct source *s) {
        if (!s)
                return NULL;
        for (size_t i = 0; i < s->n; i++)
                fd_close(s->fds[i]);
        if (s->payer) {
                user_return_files(s->payer, s->n_paid);
                user_unref(s->payer);
        }
        free(s);
        return NULL;
}

static int64_t nsec(struct timespec t) {
        return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static struct source_key key_of(const struct stat *st) {
        return (struct source_key){
                .dev = st->st_dev, .ino = st->st_ino, .size = (uint64_t)st->st_size,
                .mtime_ns = nsec(st->st_mtim), .ctime_ns = nsec(st->st_ctim),
        };
}

/* Takes fd. */
static int source_add(struct source *s, int fd, const char *label, struct h_error *err) {
        struct stat st;

        if (fstat(fd, &st) < 0) {
                int e = errno;
                close(fd);
                return h_error_set(err, HEARTH_E_io, "%s: %s", label, strerror(e));
        }
        if (!S_ISREG(st.st_mode)) {
                close(fd);
                return h_error_set(err, HEARTH_E_model_not_found, "%s is %s, not a regular file; a model is a GGUF file",
                                   label, S_ISDIR(st.st_mode) ? "a directory" : "a special file");
        }
        s->fds[s->n] = fd;
        s->keys[s->n] = key_of(&st);
        s->bytes += (uint64_t)st.st_size;
        s->n++;
        return 0;
}

int source_from_fds(const int *fds, size_t n, const char *label, struct source **ret, struct h_error *err) {
        struct source *s = n <= MODEL_MAX_PARTS ? h_new0(struct source, 1) : NULL;
        int r = s ? 0 : -ENOMEM;

        for (size_t i = 0; i < n; i++) {
                int flags = r < 0 ? 0 : fcntl(fds[i], F_GETFL);

                if (r == 0 && (flags < 0 || (flags & O_PATH) || (flags & O_ACCMODE) == O_WRONLY))
                        r = h_error_set(err, HEARTH_E_bad_request, "%s: the file passed is not open for reading", label);
                if (r < 0)
                        close(fds[i]);
                else
                        r = source_add(s, fds[i], label, err);
        }
        if (r < 0) {
                source_free(s);
                return r;
        }
        *ret = s;
        return 0;
}

void names_free(struct names *l) {
        for (size_t i = 0; i < l->n; i++)
                free(l->v[i]);
        free(l->v);
        *l = (struct names){};
}

void registry_list_free(struct registry_list *l) {
        for (size_t i = 0; i < l->n; i++)
                free(l->v[i].name);
        free(l->v);
        *l = (struct registry_list){};
}

int registry_check_name(const char *name, struct h_error *err) {
        if (!name[0])
                return h_error_set(err, HEARTH_E_bad_request, "no model is named: give the name of one (see: hearth models)");
        if (strchr(name, '/'))
                return h_error_set(err, HEARTH_E_bad_request,
                                   "\"%s\" is a path: the client opens it and passes the open file (n_fds)", name);
        if (name[0] == '.' || strlen(name) > MAX_NAME)
                return h_error_set(err, HEARTH_E_unknown_model, "\"%.64s\" can't be a model's name: names are file names "
                                   "without .gguf, at most %d bytes, not beginning with a dot", name, MAX_NAME);
        if (!shown_plain(name, strlen(name)))
                return h_error_set(err, HEARTH_E_unknown_model, "the model's name has control characters or is not UTF-8; rename its file");
        return 0;
}

/* Splits "x-00002-of-00005.gguf" into name, part, parts; "x.gguf" is part 1 of 1. False: not a model file's name. */
static bool parse_file(const char *file, char name[MAX_NAME + 1], uint32_t *ret_part, uint32_t *ret_parts) {
        static const char suffix[] = ".gguf";
        size_t n = strlen(file);
        unsigned part, parts;
        int used = 0;

        if (file[0] == '.' || n <= sizeof(suffix) - 1 || strcasecmp(file + n - (sizeof(suffix) - 1), suffix) != 0)
                return false;
        n -= sizeof(suffix) - 1;
        *ret_part = *ret_parts = 1;
        /* "-00001-of-00005" is 15 bytes. */
        if (n > 15 && sscanf(file + n - 15, "-%5u-of-%5u%n", &part, &parts, &used) == 2 && used == 15) {
                if (part < 1 || part > parts)
                        return false;
                *ret_part = part;
                *ret_parts = parts;
                n -= 15;
        }
        if (n > MAX_NAME)
                return false;
        memcpy(name, file, n);
        name[n] = 0;
        return true;
}

static struct registry_entry *list_get(struct registry_list *l, const char *name, bool odd, size_t dir) {
        struct registry_entry *v;

        for (size_t i = 0; i < l->n; i++)
                if (l->v[i].odd == odd && strcmp(l->v[i].name, name) == 0)
                        return &l->v[i];
        if (l->n == MAX_ENTRIES)
                return NULL;
        v = h_realloc(l->v, (l->n + 1) * sizeof(*v));
        if (!v)
                return NULL;
        l->v = v;
        v[l->n] = (struct registry_entry){ .name = h_strdup(name), .dir = dir, .odd = odd };
        return v[l->n].name ? &v[l->n++] : NULL;
}

static int by_name(const void *a, const void *b) {
        return strcmp(((const struct registry_entry *)a)->name, ((const struct registry_entry *)b)->name);
}

/* Its first bytes only: that they are a model's is found out by who loads it. */
static void check_file(int dir, const char *file, const struct stat *st, struct registry_entry *en) {
        _cleanup_(fd_closep) int fd = -1;
        char magic[4];

        if (en->fault[0])
                return;
        if (st->st_size == 0) {
                snprintf(en->fault, sizeof(en->fault), "its file is empty");
                return;
        }
        fd = openat(dir, file, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0 && (errno == EACCES || errno == EPERM))
                snprintf(en->fault, sizeof(en->fault), "the daemon may not read it");
        else if (fd >= 0 && (pread(fd, magic, sizeof(magic), 0) != sizeof(magic) || memcmp(magic, "GGUF", 4) != 0))
                snprintf(en->fault, sizeof(en->fault), "it is no GGUF file: its first bytes are not \"GGUF\"");
}

static int scan_file(struct registry_list *l, int dir, size_t i, const char *file) {
        char name[MAX_NAME + 1], shown[4 * MAX_NAME + 1];
        uint32_t part, parts;
        struct registry_entry *en;
        struct stat st;
        bool odd;

        if (!parse_file(file, name, &part, &parts) || fstatat(dir, file, &st, 0) < 0 || !S_ISREG(st.st_mode))
                return 0;
        odd = !shown_plain(name, strlen(name));
        if (odd)
                shown_copy(name, strlen(name), SHOWN_LINE, shown, sizeof(shown));
        en = list_get(l, odd ? shown : name, odd, i);
        if (!en && l->n == MAX_ENTRIES) {
                l->more += part == 1;
                return 0;
        }
        if (!en)
                return -ENOMEM;
        if (en->dir != i)
                return 0;
        /* The first directory that has the name wins; an entry is one file or the parts of one split. */
        if (en->n_parts == 0)
                en->n_parts = parts;
        if (en->n_parts != parts)
                return 0;
        en->bytes += (uint64_t)st.st_size;
        en->n_seen++;
        if (part == 1)
                en->key = key_of(&st);
        if (odd)
                snprintf(en->fault, sizeof(en->fault), "its file's name has control characters or is not UTF-8; rename it");
        else
                check_file(dir, file, &st, en);
        return 0;
}

int registry_scan(const char *const *dirs, size_t n_dirs, struct registry_list *ret) {
        struct registry_list l = {};

        for (size_t i = 0; i < n_dirs; i++) {
                DIR *d = opendir(dirs[i]); /* missing directories are no error: they may come later */
                struct dirent *e;

                while (d && (e = readdir(d)))
                        if (scan_file(&l, dirfd(d), i, e->d_name) < 0)
                                break;
                if (d)
                        closedir(d);
        }
        for (size_t i = 0; i < l.n; i++)
                if (!l.v[i].fault[0] && l.v[i].n_seen < l.v[i].n_parts)
                        snprintf(l.v[i].fault, sizeof(l.v[i].fault), "only %u of its %u parts are there", l.v[i].n_seen, l.v[i].n_parts);
        if (l.n)
                qsort(l.v, l.n, sizeof(*l.v), by_name);
        *ret = l;
        return 0;
}

unsigned registry_distance(const char *a, const char *b, unsigned max) {
        size_t na = strlen(a), nb = strlen(b);
        unsigned rows[3][MAX_NAME + 2], *before = rows[0], *prev = rows[1], *cur = rows[2];

        if (na > MAX_NAME || nb > MAX_NAME)
                return max + 1;
        for (size_t j = 0; j <= nb; j++)
                prev[j] = (unsigned)j;
        for (size_t i = 1; i <= na; i++) {
                int ca = tolower((unsigned char)a[i - 1]);
                unsigned *reuse = before;

                cur[0] = (unsigned)i;
                for (size_t j = 1; j <= nb; j++) {
                        int cb = tolower((unsigned char)b[j - 1]);

                        cur[j] = MIN(prev[j - 1] + (ca != cb), MIN(prev[j], cur[j - 1]) + 1);
                        if (i > 1 && j > 1 && ca == tolower((unsigned char)b[j - 2]) &&
                            tolower((unsigned char)a[i - 2]) == cb)
                                cur[j] = MIN(cur[j], before[j - 2] + 1);
                }
                before = prev;
                prev = cur;
                cur = reuse;
        }
        return MIN(prev[nb], max + 1);
}

static bool starts(const char *s, const char *with) {
        return strncasecmp(s, with, strlen(with)) == 0;
}

/* The closest names: by distance, and what begins with the name asked for. Best effort: no memory, no names. */
static void nearest(const char *const *dirs, size_t n_dirs, const char *name, struct names *ret) {
        unsigned limit = (unsigned)MAX(2u, strlen(name) / 3), best[N_NEAREST];
        const char *found[N_NEAREST] = {};
        struct registry_list l;
        size_t n = 0;

        if (registry_scan(dirs, n_dirs, &l) < 0)
                return;
        for (size_t i = 0; i < l.n; i++) {
                unsigned d = registry_distance(name, l.v[i].name, limit);
                size_t at;

                if (l.v[i].odd)
                        continue;
                if (d > limit && (starts(l.v[i].name, name) || starts(name, l.v[i].name)))
                        d = limit;
                if (d > limit)
                        continue;
                for (at = n; at > 0 && best[at - 1] > d; at--)
                        if (at < N_NEAREST) {
                                best[at] = best[at - 1];
                                found[at] = found[at - 1];
                        }
                if (at < N_NEAREST) {
                        best[at] = d;
                        found[at] = l.v[i].name;
                        n = MIN(n + 1, (size_t)N_NEAREST);
                }
        }
        ret->v = h_new0(char *, N_NEAREST);
        for (size_t i = 0; ret->v && i < n; i++) {
                ret->v[ret->n] = h_strdup(found[i]);
                if (ret->v[ret->n])
                        ret->n++;
        }
        registry_list_free(&l);
}

/* Opens one part; -ENOENT (err untouched) if there is no such file. */
static int open_file(const char *dir, const char *file, struct source *s, struct h_error *err) {
        _cleanup_(freep) char *path = NULL;
        int fd;

        if (asprintf(&path, "%s/%s", dir, file) < 0) {
                path = NULL;
                return -ENOMEM;
        }
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a FIFO must not hang us */
        if (fd < 0 && errno == ENOENT)
                return -ENOENT;
        if (fd < 0)
                return h_error_set(err, errno == EACCES ? HEARTH_E_permission : HEARTH_E_model_not_found,
                                   "%s: %s; the daemon runs as uid %u: a model it may not read can be given by path, "
                                   "then the client opens it", path, strerror(errno), (unsigned)geteuid());
        return source_add(s, fd, path, err);
}

static int open_split(const char *dir, const char *name, struct source *s, struct h_error *err) {
        char file[MAX_NAME + 32], found[MAX_NAME + 1];
        uint32_t parts = 0;
        DIR *d = opendir(dir);
        struct dirent *e;
        int r;

        while (d && !parts && (e = readdir(d))) {
                uint32_t p, n;
                if (parse_file(e->d_name, found, &p, &n) && n > 1 && strcmp(found, name) == 0)
                        parts = n;
        }
        if (d)
                closedir(d);
        if (!parts)
                return -ENOENT;
        if (parts > MODEL_MAX_PARTS)
                return h_error_counts(err, HEARTH_E_too_large, parts, MODEL_MAX_PARTS, "%s/%s has %u parts, at most %d can be read",
                                      dir, name, parts, MODEL_MAX_PARTS);
        for (uint32_t i = 1; i <= parts; i++) {
                snprintf(file, sizeof(file), "%s-%05u-of-%05u.gguf", name, i, parts);
                r = open_file(dir, file, s, err);
                if (r == -ENOENT)
                        return h_error_set(err, HEARTH_E_model_not_found, "part %u of %u is missing: %s/%s", i, parts, dir, file);
                if (r < 0)
                        return r;
        }
        return 0;
}

int registry_open(const char *const *dirs, size_t n_dirs, const char *name, struct source **ret, struct names *ret_nearest,
                  struct h_error *err) {
        struct source *s;
        struct names near = {};
        int r;

        r = registry_check_name(name, err);
        if (r < 0)
                return r;
        s = h_new0(struct source, 1);
        if (!s)
                return -ENOMEM;
        r = -ENOENT;
        for (size_t i = 0; i < n_dirs && r == -ENOENT; i++) {
                char file[MAX_NAME + 8];

                snprintf(file, sizeof(file), "%s.gguf", name);
                r = open_file(dirs[i], file, s, err);
                if (r == -ENOENT)
                        r = open_split(dirs[i], name, s, err);
        }
        if (r == 0) {
                *ret = s;
                return 0;
        }
        source_free(s);
        if (r != -ENOENT)
                return r;

        nearest(dirs, n_dirs, name, &near);
        if (n_dirs == 0)
                h_error_set(err, HEARTH_E_unknown_model, "no model named \"%s\": the daemon has no model directory (--model-dir); "
                            "a model can also be given by path", name);
        else if (near.n == 1)
                h_error_set(err, HEARTH_E_unknown_model, "no model named \"%s\". Did you mean %s?", name, near.v[0]);
        else if (near.n > 1)
                h_error_set(err, HEARTH_E_unknown_model, "no model named \"%s\". Did you mean %s%s%s%s%s?", name, near.v[0],
                            near.n > 2 ? ", " : " or ", near.v[1], near.n > 2 ? " or " : "", near.n > 2 ? near.v[2] : "");
        else
                h_error_set(err, HEARTH_E_unknown_model, "no model named \"%s\" in %s%s; see: hearth models", name, dirs[0],
                            n_dirs > 1 ? " and the other model directories" : "");
        if (ret_nearest)
                *ret_nearest = near;
        else
                names_free(&near);
        return -EHEARTH;
}
