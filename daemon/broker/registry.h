/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Model names: the files NAME.gguf, and split models NAME-00001-of-0000N.gguf
 * as one, of the configured directories. Looked up afresh each time, so that a
 * file put there is found at once. Everything here may block on a disk and is
 * called on the thread pool only; it touches no state of the broker.
 */

#include "base/error.h"

#define MODEL_MAX_PARTS 128

/* What a file is, without reading it. Equal keys mean equal content, as far as the file system tells. */
struct source_key {
        uint64_t dev, ino, size;
        int64_t mtime_ns, ctime_ns;
};

/* One model's open files, in order. */
struct user;

struct source {
        int fds[MODEL_MAX_PARTS];
        struct user *payer;  /* of descriptors that a client passed (set on the loop's thread, where such a source is freed); NULL: ours */
        uint32_t n_paid;
        struct source_key keys[MODEL_MAX_PARTS];
        size_t n;
        uint64_t bytes;
};

struct source *source_free(struct source *s); /* closes the fds; NULL ok */
/* Takes n fds that a client passed (closed also on failure); they must be readable regular files. */
int source_from_fds(const int *fds, size_t n, const char *label, struct source **ret, struct h_error *err);

struct names { char **v; size_t n; };
void names_free(struct names *l);

/* unknown_model: ret_nearest (may be NULL) then holds up to three similar names. */
int registry_open(const char *const *dirs, size_t n_dirs, const char *name, struct source **ret, struct names *ret_nearest,
                  struct h_error *err);

/*
 * An entry with a fault can't be loaded: a part is missing, a file is empty or no GGUF
 * file by its first bytes (the rest is read by a load). 'odd': its file's name is no text
 * and can't be a model's name; 'name' shows it with \\xNN in place of such bytes.
 */
struct registry_entry {
        char *name;
        uint64_t bytes;
        uint32_t n_parts, n_seen;
        size_t dir;
        bool odd;
        char fault[120];
        struct source_key key; /* of its first part */
};
struct registry_list { struct registry_entry *v; size_t n, more; /* names beyond those of the list */ };
int registry_scan(const char *const *dirs, size_t n_dirs, struct registry_list *ret); /* sorted by name */
void registry_list_free(struct registry_list *l);

/* 0 if 'name' can be a model's name; it is no path. */
int registry_check_name(const char *name, struct h_error *err);
/* Damerau-Levenshtein distance, case-insensitive; at most 'max' + 1. */
unsigned registry_distance(const char *a, const char *b, unsigned max);
