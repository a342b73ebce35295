/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/privileges.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DENY(name) { .nr = SYS_##name, .verdict = SANDBOX_ERRNO(EPERM) }

static const struct sandbox_rule never[] = {
        DENY(ptrace), DENY(process_vm_readv), DENY(process_vm_writev), DENY(kcmp), DENY(pidfd_getfd), DENY(unshare), DENY(setns), DENY(mount),
        DENY(umount2), DENY(pivot_root), DENY(chroot), DENY(open_tree), DENY(move_mount), DENY(fsopen), DENY(fsmount), DENY(fsconfig), DENY(fspick),
        DENY(mount_setattr), DENY(init_module), DENY(finit_module), DENY(delete_module), DENY(kexec_load), DENY(kexec_file_load), DENY(bpf),
        DENY(perf_event_open), DENY(userfaultfd), DENY(io_uring_setup), DENY(io_uring_enter), DENY(io_uring_register), DENY(open_by_handle_at),
        DENY(keyctl), DENY(add_key), DENY(request_key), DENY(swapon), DENY(swapoff), DENY(reboot), DENY(acct), DENY(quotactl), DENY(settimeofday),
        DENY(clock_settime), DENY(clock_adjtime), DENY(adjtimex), DENY(sethostname), DENY(setdomainname), DENY(personality), DENY(fanotify_init),
        DENY(mknodat),
#ifdef __x86_64__
        DENY(mknod), DENY(iopl), DENY(ioperm),
#endif
        /* local sockets alone */
        { .nr = SYS_socket, .when = SANDBOX_IF_EQUAL, .arg = 0, .value = AF_UNIX, .verdict = SANDBOX_ALLOW }, DENY(socket),
};

/* All but this: where memory may be locked without bound, this is how a process that root started may. */
#define KEPT CAP_IPC_LOCK

static int drop_capabilities(void) {
        struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
        struct __user_cap_data_struct data[2];

        if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 && errno != EINVAL)
                return -errno;
        if (syscall(SYS_capget, &head, data) < 0)
                return -errno;
        /* The bounding set first, while that is still allowed: programs started later can't get more either. */
        if (data[0].effective & (1u << CAP_SETPCAP))
                for (int cap = 0; cap <= 63 && prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
                        if (cap != KEPT && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
                                return -errno;
        for (int i = 0; i < 2; i++) {
                uint32_t keep = i == KEPT / 32 ? 1u << (KEPT % 32) : 0;
                data[i].permitted &= keep;
                data[i].effective &= keep;
                data[i].inheritable = 0;
        }
        return syscall(SYS_capset, &head, data) < 0 ? -errno : 0;
}

static void lacks(char *text, size_t n, const char *what, int r) {
        size_t len = strlen(text);

        if (r < 0)
                snprintf(text + len, n - len, "%s%s (%s)", len ? ", " : "", what, r == -ENOSYS ? "not in this kernel" : strerror(-r));
}

int privileges_drop(enum sandbox_wish wish, const struct log *log, struct h_error *err) {
        char missing[200] = "";

        if (wish == SANDBOX_OFF || sandbox_ruled_out()) /* the worker says so */
                return 0;
        lacks(missing, sizeof(missing), "fewer capabilities", drop_capabilities());
        lacks(missing, sizeof(missing), "no new privileges", sandbox_no_new_privs());
        lacks(missing, sizeof(missing), "seccomp", sandbox_filter(never, ELEMENTSOF(never), SANDBOX_ALLOW));
        if (*missing && wish == SANDBOX_REQUIRED)
                return h_error_set(err, HEARTH_E_unsupported, "a sandbox is required, but this machine lacks: %s; set [daemon] sandbox = auto in "
                                   "hearth.conf to go without", missing);
        if (*missing)
                log_warning(log, "hearthd keeps rights that it does not need: %s", missing);
        return 0;
}
