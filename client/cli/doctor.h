/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The looks of `hearth doctor`. Each reads the machine's files below 'root' ("" but
 * in tests, which make a machine with a fault in a folder) and tells what it
 * finds. GOOD is said too, so that one sees what was looked at; NOTE is worth
 * knowing and no fault.
 */

#include <stdio.h>

#include "client/cli/cli.h"

enum finding_level { FINDING_GOOD, FINDING_NOTE, FINDING_FAULT };

struct finding {
        enum finding_level level;
        const char *subject;  /* a word */
        char text[900];
        char advice[500];     /* how to mend it; may be empty */
};

struct doctor {
        const char *root;
        void (*tell)(void *ud, const struct finding *f);
        void *ud;

        const char *cuda;     /* release that this build uses; "": none */
        unsigned cuda_driver; /* the least driver it runs on */

        /* What the daemon said, if one answers. */
        bool answered, on_gpu;
        uint32_t pid, worker_pid;
        uint64_t host_budget;
        uint32_t euid;        /* who asks */
};

void doctor_tell(struct doctor *d, enum finding_level level, const char *subject, const char *advice, const char *fmt, ...) _printf_(5, 6);
/* The first line of a small file that begins with 'key' (NULL: any), what follows it in 'ret'. */
bool doctor_line(const struct doctor *d, const char *path, const char *key, char *ret, size_t n);
char *doctor_path(const struct doctor *d, const char *path, char ret[512]);

/* doctor_daemon.c: the daemon's own place: what it left behind, what holds it back. */
void doctor_socket_dir(struct doctor *d, const char *socket);
void doctor_stale(struct doctor *d, const char *socket);
void doctor_refused(struct doctor *d, const char *socket, bool system);
void doctor_no_permission(struct doctor *d, const char *socket);
void doctor_limits(struct doctor *d);
void doctor_cgroup(struct doctor *d);
void doctor_disk(struct doctor *d, const char *const *dirs, size_t n_dirs);
/* doctor_machine.c */
void doctor_gpu(struct doctor *d);
void doctor_memory(struct doctor *d);
void doctor_sandbox(struct doctor *d);
