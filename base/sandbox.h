/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Giving up rights for good: system calls (seccomp) and the file system
 * (Landlock), by raw system calls, so that nothing else is needed. What a
 * process keeps is its own business (daemon/worker/sandbox.c,
 * daemon/broker/privileges.c). Nothing here can be undone.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * One line of a filter; the first that matches decides. Arguments are compared
 * in their low 32 bits: all that the kernel looks at of descriptors and flags.
 */
enum sandbox_if { SANDBOX_ALWAYS, SANDBOX_IF_EQUAL /* arg == value */, SANDBOX_IF_MASK /* (arg & mask) == value */ };
struct sandbox_rule {
        long nr;
        enum sandbox_if when;
        unsigned arg;
        uint32_t mask, value;
        uint32_t verdict; /* SANDBOX_* */
};
#define SANDBOX_ALLOW 0x7fff0000u
#define SANDBOX_KILL 0x80000000u           /* the process, with SIGSYS */
#define SANDBOX_ERRNO(e) (0x00050000u | (e))

/* What a configuration asks for: whatever the kernel has (and what it lacks is said), all of it or no start, none. */
enum sandbox_wish { SANDBOX_AUTO, SANDBOX_REQUIRED, SANDBOX_OFF };
bool sandbox_wish_parse(const char *s, enum sandbox_wish *ret);
const char *sandbox_wish_name(enum sandbox_wish w);

/* prctl(PR_SET_NO_NEW_PRIVS). 0 or -errno. */
int sandbox_no_new_privs(void);
/*
 * For all threads there are and will be; needs no new privileges to be off
 * limits already. System calls of another architecture kill. 0, -ENOSYS where
 * the kernel has no seccomp filters, or -errno.
 */
int sandbox_filter(const struct sandbox_rule *rules, size_t n, uint32_t otherwise);

/* Landlock's version on this kernel; 0: none. */
int sandbox_landlock_abi(void);
bool sandbox_has_filter(void);
/*
 * For the calling thread and those it makes: no file system but these paths and
 * what is below them (those that don't exist are skipped), to read or also to
 * write. 0, -ENOSYS where the kernel has no Landlock, or -errno.
 */
struct sandbox_path { const char *path; bool write; };
int sandbox_files(const struct sandbox_path *paths, size_t n);

/* What the build itself rules out, as a reason; NULL: nothing. A sanitizer needs calls that a filter forbids. */
const char *sandbox_ruled_out(void);
