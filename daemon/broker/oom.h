/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Did the kernel end it for want of memory? Such an end is a SIGKILL like any
 * other; but the control group counts them, and raises the count before it sends
 * the signal. A process of ours that died so takes one that nobody has taken yet.
 *
 * The counts are also read once a second, so that another program's end in the
 * same group some time ago is not taken for ours now; one that was noticed waits
 * a while for its process, which has memory to give back first.
 */

#include "base/cgroup.h"

struct oom_group {
        struct cgroup group;
        bool known, counts;
        uint64_t kills;
        size_t n;                     /* it and those above it */
        uint64_t hits[CGROUP_LEVELS]; /* how often each one's limit stood in the way; UINT64_MAX: not known */
};

/* Whose limit was reached. */
struct oom_cause {
        uint64_t limit;  /* 0: the machine had no more */
        char group[96];  /* its end, if it is long */
};

struct oom {
        const char *root;
        struct cgroup_mounts mounts;
        struct oom_group own, worker; /* worker: known only where it is elsewhere */
        bool machine_known;
        uint64_t machine;             /* kills of the whole machine: where no group counts */
        uint64_t n_open, noticed_ms;  /* noticed, and of no process yet */
        struct oom_cause cause;       /* of the last one */
};

enum oom_answer { OOM_NO, OOM_YES, OOM_UNKNOWN };

/* root: "", or a test's; not copied. */
void oom_init(struct oom *o, const char *root);
/* pid: the worker's, 0: there is none. */
void oom_look(struct oom *o, uint32_t pid, uint64_t now_ms);
/* A process of ours was ended by SIGKILL. Unknown: nothing counts them here. */
enum oom_answer oom_ended(struct oom *o, uint64_t now_ms, struct oom_cause *ret);
/* "was ended by the kernel: out of memory (limit of the control group /x: 64 MB)" */
const char *oom_text(const struct oom_cause *c, char buf[192]);
