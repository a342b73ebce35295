/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/worker/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/sandbox.h"

#define ALLOW(name) { .nr = SYS_##name, .verdict = SANDBOX_ALLOW }
#define ALLOW_FD(name, fd) { .nr = SYS_##name, .when = SANDBOX_IF_EQUAL, .arg = 0, .value = (uint32_t)(fd), .verdict = SANDBOX_ALLOW }
#define KILL(name) { .nr = SYS_##name, .verdict = SANDBOX_KILL }
#define DENY(name) { .nr = SYS_##name, .verdict = SANDBOX_ERRNO(EPERM) }
/* Makes the C library fall back on clone(), whose flags can be looked at. */
#define NO_CLONE3 { .nr = SYS_clone3, .verdict = SANDBOX_ERRNO(ENOSYS) }
#define THREADS_ONLY \
        NO_CLONE3, { .nr = SYS_clone, .when = SANDBOX_IF_MASK, .arg = 0, .mask = CLONE_THREAD, .value = CLONE_THREAD, .verdict = SANDBOX_ALLOW }
/* Memory: never executable. */
#define NOT_EXEC(name) { .nr = SYS_##name, .when = SANDBOX_IF_MASK, .arg = 2, .mask = PROT_EXEC, .value = 0, .verdict = SANDBOX_ALLOW }

enum { OUT = 1, ERR = 2, CHANNEL = 3 };

/* What computing takes, with any number of threads; the most frequent ones first. */
static const struct sandbox_rule compute[] = {
        ALLOW(futex), ALLOW(clock_gettime), ALLOW(sched_yield), ALLOW(pread64), ALLOW(madvise), ALLOW(munmap), ALLOW(brk), ALLOW(mremap),
        NOT_EXEC(mprotect), THREADS_ONLY, ALLOW(set_robust_list), ALLOW(rseq), ALLOW(exit), ALLOW(exit_group), ALLOW(rt_sigprocmask),
        ALLOW(rt_sigaction), ALLOW(rt_sigreturn), ALLOW(sigaltstack), ALLOW(restart_syscall), ALLOW(getpid), ALLOW(gettid), ALLOW(getrandom),
        ALLOW(gettimeofday), ALLOW(nanosleep), ALLOW(clock_nanosleep), ALLOW(clock_getres), ALLOW(sched_getaffinity), ALLOW(sched_setaffinity),
        ALLOW(sched_setattr), ALLOW(sched_getattr), ALLOW(getpriority), ALLOW(setpriority), ALLOW(getrusage), ALLOW(sysinfo), ALLOW(membarrier),
        ALLOW(getcpu), ALLOW(mincore), ALLOW(msync), ALLOW(fstat), ALLOW(lseek), ALLOW(close),
        /* of open descriptors, not of names */
        { .nr = SYS_newfstatat, .when = SANDBOX_IF_MASK, .arg = 3, .mask = AT_EMPTY_PATH, .value = AT_EMPTY_PATH, .verdict = SANDBOX_ALLOW },
       
        ALLOW(fcntl), ALLOW(ppoll), ALLOW(uname), ALLOW(getuid), ALLOW(geteuid),
        { .nr = SYS_prctl, .when = SANDBOX_IF_EQUAL, .arg = 0, .value = PR_SET_NAME, .verdict = SANDBOX_ALLOW },
        /* limits are read, not changed: the new one is a NULL pointer */
        { .nr = SYS_prlimit64, .when = SANDBOX_IF_EQUAL, .arg = 2, .value = 0, .verdict = SANDBOX_ALLOW },
        KILL(execve), KILL(execveat), KILL(ptrace), KILL(process_vm_readv), KILL(process_vm_writev),
#ifdef __x86_64__
        ALLOW(poll), ALLOW(time),
#endif
};

/* The channel to the broker: text, and descriptors of models. */
static const struct sandbox_rule channel[] = {
        ALLOW_FD(recvmsg, CHANNEL), ALLOW_FD(sendmsg, CHANNEL), ALLOW_FD(write, ERR), ALLOW_FD(writev, ERR),
};

/* The sealed copies are mapped; what else is mapped is memory. Its threads wake each other through an eventfd. */
static const struct sandbox_rule serve[] = { ALLOW(read), ALLOW(write), NOT_EXEC(mmap) };

static const struct sandbox_rule inspect[] = {
        ALLOW_FD(write, OUT), ALLOW_FD(writev, OUT), ALLOW_FD(write, ERR), ALLOW_FD(writev, ERR), ALLOW(read), NOT_EXEC(mmap),
        { .nr = SYS_ioctl, .verdict = SANDBOX_ERRNO(ENOTTY) }, /* is it a terminal? buffered output asks */
};

/* What no worker does, whatever its driver is like. */
static const struct sandbox_rule never[] = {
        DENY(execve), DENY(execveat), THREADS_ONLY, DENY(clone), DENY(ptrace), DENY(process_vm_readv), DENY(process_vm_writev),
        DENY(kcmp), DENY(pidfd_open), DENY(pidfd_getfd), DENY(pidfd_send_signal), DENY(socket), DENY(socketpair), DENY(connect), DENY(bind),
        DENY(listen), DENY(accept), DENY(accept4), DENY(unshare), DENY(setns), DENY(mount), DENY(umount2), DENY(pivot_root), DENY(chroot),
        DENY(open_tree), DENY(move_mount), DENY(fsopen), DENY(fsmount), DENY(fsconfig), DENY(fspick), DENY(mount_setattr), DENY(init_module),
        DENY(finit_module), DENY(delete_module), DENY(kexec_load), DENY(kexec_file_load), DENY(bpf), DENY(perf_event_open), DENY(userfaultfd),
        DENY(io_uring_setup), DENY(io_uring_enter), DENY(io_uring_register), DENY(open_by_handle_at), DENY(name_to_handle_at), DENY(keyctl),
        DENY(add_key), DENY(request_key), DENY(swapon), DENY(swapoff), DENY(reboot), DENY(acct), DENY(quotactl),
        DENY(settimeofday), DENY(clock_settime), DENY(clock_adjtime), DENY(adjtimex), DENY(sethostname), DENY(setdomainname), DENY(personality),
        DENY(setuid), DENY(setgid), DENY(setreuid), DENY(setregid), DENY(setresuid), DENY(setresgid), DENY(setgroups), DENY(setfsuid), DENY(setfsgid),
        DENY(capset), DENY(fanotify_init), DENY(fanotify_mark), DENY(truncate), DENY(renameat2), DENY(linkat), DENY(symlinkat), DENY(unlinkat),
        DENY(mkdirat), DENY(mknodat), DENY(fchmod), DENY(fchmodat), DENY(fchown), DENY(fchownat), DENY(setxattr), DENY(lsetxattr), DENY(fsetxattr),
        DENY(utimensat), DENY(kill), DENY(tkill), DENY(rt_sigqueueinfo), DENY(rt_tgsigqueueinfo),
        { .nr = SYS_openat, .when = SANDBOX_IF_MASK, .arg = 2, .mask = O_CREAT, .value = O_CREAT, .verdict = SANDBOX_ERRNO(EPERM) },
        DENY(openat2), /* its flags can't be looked at */
#ifdef __x86_64__
        DENY(fork), DENY(vfork), DENY(creat), DENY(iopl), DENY(ioperm), DENY(rename), DENY(renameat), DENY(link), DENY(symlink), DENY(unlink), DENY(mkdir),
        DENY(rmdir), DENY(mknod), DENY(chmod), DENY(chown), DENY(lchown),
        { .nr = SYS_open, .when = SANDBOX_IF_MASK, .arg = 1, .mask = O_CREAT, .value = O_CREAT, .verdict = SANDBOX_ERRNO(EPERM) },
#endif
};

/* A driver's nodes, and where it reads of its own process. */
static const struct sandbox_path device_paths[] = {
        { "/dev/nvidiactl", true }, { "/dev/nvidia-uvm", true }, { "/dev/nvidia-uvm-tools", true }, { "/dev/nvidia-modeset", true },
        { "/dev/nvidia-caps", true }, { "/dev/nvidia0", true }, { "/dev/nvidia1", true }, { "/dev/nvidia2", true }, { "/dev/nvidia3", true },
        { "/dev/nvidia4", true }, { "/dev/nvidia5", true }, { "/dev/nvidia6", true }, { "/dev/nvidia7", true },
        { "/dev/nvidia8", true }, { "/dev/nvidia9", true }, { "/dev/nvidia10", true }, { "/dev/nvidia11", true }, { "/dev/nvidia12", true },
        { "/dev/nvidia13", true }, { "/dev/nvidia14", true }, { "/dev/nvidia15", true }, { "/dev/null", true },
        { "/proc/self", true }, { "/proc/meminfo", false }, { "/proc/devices", false }, { "/proc/driver/nvidia", false },
        { "/sys/devices/system", false },
};

static const char *const kinds[] = { [SANDBOX_FILL] = "fill", [SANDBOX_INSPECT] = "inspect", [SANDBOX_SERVE_CPU] = "serve, cpu",
                                     [SANDBOX_SERVE_DEVICE] = "serve, device" };

struct list_of_rules { struct sandbox_rule r[256]; size_t n; };

static void add(struct list_of_rules *l, const struct sandbox_rule *r, size_t n) {
        memcpy(l->r + l->n, r, n * sizeof(*r));
        l->n += n;
}
#define ADD(l, rules) add(l, rules, ELEMENTSOF(rules))

static int filter(enum sandbox_kind kind, int memfd) {
        const struct sandbox_rule only_memfd[] = {
                ALLOW_FD(pwrite64, memfd), ALLOW_FD(ftruncate, memfd), ALLOW_FD(fallocate, memfd),
                /* mapped are memory and the memory file, never a source, which may be open for writing */
                { .nr = SYS_mmap, .when = SANDBOX_IF_MASK, .arg = 2, .mask = PROT_EXEC, .value = PROT_EXEC, .verdict = SANDBOX_ERRNO(EPERM) },
                { .nr = SYS_mmap, .when = SANDBOX_IF_EQUAL, .arg = 4, .value = (uint32_t)memfd, .verdict = SANDBOX_ALLOW },
                { .nr = SYS_mmap, .when = SANDBOX_IF_EQUAL, .arg = 4, .value = (uint32_t)-1, .verdict = SANDBOX_ALLOW },
        };
        /* Signals, which abort() sends, go to this process alone. */
        const struct sandbox_rule self[] = {
                { .nr = SYS_tgkill, .when = SANDBOX_IF_EQUAL, .arg = 0, .value = (uint32_t)getpid(), .verdict = SANDBOX_ALLOW },
                DENY(tgkill),
        };
        struct list_of_rules l = {};

        ADD(&l, self);
        switch (kind) {
        case SANDBOX_FILL:
                ADD(&l, compute);
                ADD(&l, channel);
                ADD(&l, only_memfd);
                break;
        case SANDBOX_INSPECT:
                ADD(&l, compute);
                ADD(&l, inspect);
                break;
        case SANDBOX_SERVE_CPU:
                ADD(&l, compute);
                ADD(&l, channel);
                ADD(&l, serve);
                break;
        case SANDBOX_SERVE_DEVICE:
                ADD(&l, never);
                return sandbox_filter(l.r, l.n, SANDBOX_ALLOW);
        }
        return sandbox_filter(l.r, l.n, SANDBOX_ERRNO(EPERM));
}

/* The hard limit lies 'grace' above: for time, first a signal that says what it is. */
static int limit(int which, uint64_t most, uint64_t grace) {
        struct rlimit l;

        if (most == 0 || getrlimit((__rlimit_resource_t)which, &l) < 0)
                return 0;
        l.rlim_cur = MIN((uint64_t)l.rlim_cur, most);
        l.rlim_max = MIN((uint64_t)l.rlim_max, most + grace);
        return setrlimit((__rlimit_resource_t)which, &l) < 0 ? -errno : 0;
}

/* What failed is collected: it is a warning or an error. */
static void lacks(char *text, size_t n, const char *what, int r) {
        size_t len = strlen(text);

        if (r < 0)
                snprintf(text + len, n - len, "%s%s (%s)", len ? ", " : "", what, r == -ENOSYS ? "not in this kernel" : strerror(-r));
}

int sandbox_enter(enum sandbox_kind kind, enum sandbox_wish wish, const struct sandbox_bounds *b, const struct log *log, bool tell,
                  struct h_error *err) {
        const char *ruled_out = sandbox_ruled_out();
        bool device = kind == SANDBOX_SERVE_DEVICE;
        int abi = sandbox_landlock_abi();
        char missing[300] = "";

        if (wish == SANDBOX_OFF || (ruled_out && wish == SANDBOX_AUTO)) {
                if (tell)
                        log_warning(log, "no sandbox (%s): %s", kinds[kind], wish == SANDBOX_OFF ? "[daemon] sandbox is off" : ruled_out);
                return 0;
        }
        if (ruled_out)
                return h_error_set(err, HEARTH_E_unsupported, "a sandbox is required, but %s", ruled_out);
        lacks(missing, sizeof(missing), "a limit of memory", limit(RLIMIT_AS, b->memory, 0));
        lacks(missing, sizeof(missing), "a limit of time", limit(RLIMIT_CPU, b->cpu_seconds, 5));
        lacks(missing, sizeof(missing), "no new privileges", sandbox_no_new_privs());
        lacks(missing, sizeof(missing), "Landlock", sandbox_files(device ? device_paths : NULL, device ? ELEMENTSOF(device_paths) : 0));
        lacks(missing, sizeof(missing), "seccomp", filter(kind, b->memfd));
        if (*missing && wish == SANDBOX_REQUIRED)
                return h_error_set(err, HEARTH_E_unsupported, "a sandbox is required, but this machine lacks: %s; set [daemon] sandbox = auto in "
                                   "hearth.conf to go without", missing);
        if (*missing)
                log_warning(log, "the sandbox (%s) lacks: %s", kinds[kind], missing);
        else if (tell)
                log_info(log, "sandbox (%s): no new privileges, Landlock %d, seccomp", kinds[kind], abi);
        return 0;
}
