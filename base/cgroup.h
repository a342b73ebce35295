/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The control groups that bound a process's memory: its own and those above it,
 * in version 2, or in version 1's memory hierarchy where there is one (version 2
 * beside it has no memory controller then). Files are looked for below 'root'
 * ("", or a test's).
 *
 * /proc says where a process is, /proc/self/mountinfo which part of the tree can
 * be seen and where: within a container often no more than its own group.
 */

#include "base/types.h"

#define CGROUP_LEVELS 16 /* how far up the tree is looked at */

struct cgroup_mount { char at[256], top[512]; };      /* 'top', of the tree, is seen at 'at' */
struct cgroup_mounts { struct cgroup_mount v1, v2; }; /* v1: the memory controller's */

struct cgroup {
        unsigned version;
        size_t n_mount;       /* length of dir's part that is the mount */
        char dir[1024];
};

/* What the group with the least room leaves. */
struct cgroup_bound {
        struct cgroup group;
        uint64_t limit, left; /* left: caches that would be given back count as free */
};

void cgroup_mounts_read(const char *root, struct cgroup_mounts *ret);
/* pid: "self" or a number. False: it can't be told, or there is none that bounds memory. */
bool cgroup_find(const char *root, const struct cgroup_mounts *m, const char *pid, struct cgroup *ret);
/* To the one above it whose limits hold for it too; false: there is none to be seen. */
bool cgroup_up(struct cgroup *g);
/* "/system.slice/hearthd.service"; "/": the top of what can be seen. */
const char *cgroup_name(const struct cgroup *g);

/* The number in this file, or in its line that begins with this word. False: none ("max", no such file). */
bool cgroup_number(const struct cgroup *g, const char *file, const char *key, uint64_t *ret);
/* False: it has none of its own. */
bool cgroup_memory_limit(const struct cgroup *g, uint64_t *ret);
/* Of this process. False: nothing bounds it but the machine, or it can't be told. */
bool cgroup_memory_bound(const char *root, struct cgroup_bound *ret);
/* Processes of it that the kernel ended for want of memory, whoever's limit was reached. */
bool cgroup_oom_kills(const struct cgroup *g, uint64_t *ret);
/* Grows whenever the group's own limit stands in the way. (Version 1 counts what could be reclaimed, too.) */
bool cgroup_limit_hits(const struct cgroup *g, uint64_t *ret);
/* Version 1's limit of memory with swap, which is not counted in the hits, was reached once. */
bool cgroup_was_full(const struct cgroup *g);
