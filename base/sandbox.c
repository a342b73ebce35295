/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources: seccomp(2), Documentation/userspace-api/seccomp_filter.rst (one BPF
 * program over struct seccomp_data), landlock(7). Constants that old headers
 * lack are written out; the ABI does not change.
 */
#include "base/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#define X32_BIT 0x40000000u
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_add_rule 445
#define SYS_landlock_restrict_self 446
#endif
#ifndef SECCOMP_FILTER_FLAG_SPEC_ALLOW
#define SECCOMP_FILTER_FLAG_SPEC_ALLOW 4u
#endif

/* landlock(7); each version knows more rights, and refuses those it doesn't know. */
#define FS_EXECUTE (1u << 0)
#define FS_WRITE_FILE (1u << 1)
#define FS_READ_FILE (1u << 2)
#define FS_READ_DIR (1u << 3)
#define FS_ALL_1 ((1u << 13) - 1)
#define FS_REFER (1u << 13)     /* 2 */
#define FS_TRUNCATE (1u << 14)  /* 3 */
#define FS_IOCTL_DEV (1u << 15) /* 5 */
#define NET_ALL 3u              /* 4: bind and connect of TCP */
#define SCOPE_ALL 3u            /* 6: abstract sockets, signals */
#define RULE_PATH_BENEATH 1
struct ruleset { uint64_t fs, net, scoped; };
struct path_beneath { uint64_t allowed; int32_t fd; } __attribute__((packed));

static const char *const wishes[] = { [SANDBOX_AUTO] = "auto", [SANDBOX_REQUIRED] = "required", [SANDBOX_OFF] = "off" };

bool sandbox_wish_parse(const char *s, enum sandbox_wish *ret) {
        for (size_t i = 0; i < ELEMENTSOF(wishes); i++)
                if (strcmp(wishes[i], s) == 0) {
                        *ret = (enum sandbox_wish)i;
                        return true;
                }
        return false;
}

const char *sandbox_wish_name(enum sandbox_wish w) {
        return wishes[w];
}

int sandbox_no_new_privs(void) {
        return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? -errno : 0;
}

/* ---- seccomp ---- */

bool sandbox_has_filter(void) {
#ifdef ARCH
        uint32_t action = SECCOMP_RET_ERRNO;
        return syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
#else
        return false;
#endif
}

#ifdef ARCH
#define LOAD(off) (struct sock_filter) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(off))
#define RET(v) (struct sock_filter) BPF_STMT(BPF_RET | BPF_K, (v))
#define IF_EQ(v, yes, no) (struct sock_filter) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (v), (yes), (no))
#define PER_RULE 6 /* instructions, at most */

static size_t add_rule(struct sock_filter *p, const struct sandbox_rule *r) {
        size_t n = 0;
        /* the low half of a little-endian argument */
        size_t arg = offsetof(struct seccomp_data, args) + r->arg * sizeof(uint64_t);

        switch (r->when) {
        case SANDBOX_ALWAYS:
                p[n++] = IF_EQ((uint32_t)r->nr, 0, 1);
                p[n++] = RET(r->verdict);
                break;
        case SANDBOX_IF_EQUAL:
                p[n++] = IF_EQ((uint32_t)r->nr, 0, 4);
                p[n++] = LOAD(arg);
                p[n++] = IF_EQ(r->value, 0, 1);
                p[n++] = RET(r->verdict);
                p[n++] = LOAD(offsetof(struct seccomp_data, nr));
                break;
        case SANDBOX_IF_MASK:
                p[n++] = IF_EQ((uint32_t)r->nr, 0, 5);
                p[n++] = LOAD(arg);
                p[n++] = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, r->mask);
                p[n++] = IF_EQ(r->value, 0, 1);
                p[n++] = RET(r->verdict);
                p[n++] = LOAD(offsetof(struct seccomp_data, nr));
                break;
        }
        return n;
}

int sandbox_filter(const struct sandbox_rule *rules, size_t n_rules, uint32_t otherwise) {
        struct sock_filter *p = h_calloc(n_rules + 2, PER_RULE * sizeof(*p));
        struct sock_fprog prog = { .filter = p };
        size_t n = 0;
        long r = -1;

        if (!p)
                return -ENOMEM;
        p[n++] = LOAD(offsetof(struct seccomp_data, arch));
        p[n++] = IF_EQ(ARCH, 1, 0);
        p[n++] = RET(SECCOMP_RET_KILL_PROCESS);
        p[n++] = LOAD(offsetof(struct seccomp_data, nr));
#ifdef X32_BIT
        p[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, X32_BIT, 0, 1);
        p[n++] = RET(SECCOMP_RET_KILL_PROCESS);
#endif
        for (size_t i = 0; i < n_rules; i++)
                n += add_rule(p + n, &rules[i]);
        p[n++] = RET(otherwise);
        if (n > BPF_MAXINSNS) {
                free(p);
                return -E2BIG;
        }
        prog.len = (unsigned short)n;
        /* Without this flag kernels before 5.16 also switch off a kind of speculation, which slows all computing. */
        for (unsigned flags = SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_SPEC_ALLOW; r != 0;) {
                r = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &prog);
                if (r > 0) /* a thread could not follow */
                        r = -EBUSY;
                else if (r < 0)
                        r = -errno;
                if (r != -EINVAL || !(flags & SECCOMP_FILTER_FLAG_SPEC_ALLOW))
                        break;
                flags = SECCOMP_FILTER_FLAG_TSYNC;
        }
        free(p);
        return r == -EINVAL ? -ENOSYS : (int)r;
}
#else
int sandbox_filter(const struct sandbox_rule *rules, size_t n_rules, uint32_t otherwise) {
        (void)rules;
        (void)n_rules;
        (void)otherwise;
        return -ENOSYS;
}
#endif

/* ---- Landlock ---- */

int sandbox_landlock_abi(void) {
        long r = syscall(SYS_landlock_create_ruleset, NULL, 0, 1u /* its version */);
        return r < 0 ? 0 : (int)r;
}

static int add_path(int ruleset, const struct sandbox_path *p, uint64_t known) {
        struct path_beneath rule = { .fd = open(p->path, O_PATH | O_CLOEXEC) };
        struct stat st;
        int r = 0;

        if (rule.fd < 0)
                return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
        rule.allowed = FS_READ_FILE | FS_READ_DIR | (p->write ? FS_WRITE_FILE | FS_TRUNCATE | FS_IOCTL_DEV : 0);
        if (fstat(rule.fd, &st) < 0)
                r = -errno;
        else if (!S_ISDIR(st.st_mode))
                rule.allowed &= ~(uint64_t)FS_READ_DIR;
        rule.allowed &= known;
        if (r == 0 && syscall(SYS_landlock_add_rule, ruleset, RULE_PATH_BENEATH, &rule, 0) < 0)
                r = -errno;
        close(rule.fd);
        return r;
}

int sandbox_files(const struct sandbox_path *paths, size_t n) {
        int abi = sandbox_landlock_abi(), fd, r = 0;
        struct ruleset set = { .fs = FS_ALL_1 };

        if (abi < 1)
                return -ENOSYS;
        set.fs |= (abi >= 2 ? FS_REFER : 0) | (abi >= 3 ? FS_TRUNCATE : 0) | (abi >= 5 ? FS_IOCTL_DEV : 0);
        set.net = abi >= 4 ? NET_ALL : 0;
        set.scoped = abi >= 6 ? SCOPE_ALL : 0;
        fd = (int)syscall(SYS_landlock_create_ruleset, &set, abi >= 6 ? sizeof(set) : abi >= 4 ? 16 : 8, 0);
        if (fd < 0)
                return -errno;
        for (size_t i = 0; i < n && r == 0; i++)
                r = add_path(fd, &paths[i], set.fs);
        if (r == 0 && syscall(SYS_landlock_restrict_self, fd, 0) < 0)
                r = -errno;
        close(fd);
        return r;
}

const char *sandbox_ruled_out(void) {
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZER "-fsanitize=address"
#elif defined(__SANITIZE_THREAD__)
#define SANITIZER "-fsanitize=thread"
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZER "-fsanitize=address"
#elif __has_feature(thread_sanitizer)
#define SANITIZER "-fsanitize=thread"
#endif
#endif
#ifdef SANITIZER
        return "it is built with " SANITIZER ", which needs calls that a sandbox forbids";
#else
        return NULL;
#endif
}
