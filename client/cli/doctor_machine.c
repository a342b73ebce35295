/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/doctor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/landlock.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/pci.h"

/* ---- the GPU ---- */

/* The driver's major number of a line like "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  date". */
static unsigned driver_major(const char *line) {
        for (const char *p = line; *p; p++) {
                unsigned a, b;
                char before = p == line ? ' ' : p[-1];
                if (before == ' ' && *p >= '1' && *p <= '9' && sscanf(p, "%u.%u", &a, &b) == 2 && a >= 100)
                        return a;
        }
        return 0;
}

/* May a process with these ids open it for reading and writing? */
static bool may_open(const struct stat *st, uint32_t uid, const uint32_t *gids, size_t n) {
        if (uid == 0)
                return true;
        if (st->st_uid == uid)
                return (st->st_mode & 0600) == 0600;
        for (size_t i = 0; i < n; i++)
                if (st->st_gid == gids[i])
                        return (st->st_mode & 0060) == 0060;
        return (st->st_mode & 0006) == 0006;
}

/* The daemon's ids; ours if none runs. */
static size_t ids_of(const struct doctor *d, uint32_t *ret_uid, uint32_t gids[64]) {
        char path[64], text[512];
        size_t n = 0;
        unsigned effective;

        snprintf(path, sizeof(path), "/proc/%u/status", d->pid ? d->pid : (unsigned)getpid());
        *ret_uid = d->euid;
        if (doctor_line(d, path, "Uid:", text, sizeof(text)) && sscanf(text, "%*u %u", &effective) == 1)
                *ret_uid = effective;
        if (doctor_line(d, path, "Gid:", text, sizeof(text)) && sscanf(text, "%*u %u", &effective) == 1)
                gids[n++] = effective;
        if (doctor_line(d, path, "Groups:", text, sizeof(text)))
                for (char *p = text, *end; n < 64; p = end) {
                        unsigned long g = strtoul(p, &end, 10);
                        if (end == p)
                                break;
                        gids[n++] = (uint32_t)g;
                }
        return n;
}

/*
 * The node of a card: "/dev/nvidia" and a number. A container may have been given another card than the first one. Of several
 * one that may be opened, else the lowest; false: there is none.
 */
static bool card_node(const struct doctor *d, uint32_t uid, const uint32_t *gids, size_t n_gids, char ret[32]) {
        char full[512], path[32];
        unsigned number, best = UINT_MAX;
        bool open_best = false;
        struct dirent *e;
        DIR *dev = opendir(doctor_path(d, "/dev", full));
        struct stat st;
        int end;

        while (dev && (e = readdir(dev))) {
                bool open;

                if (sscanf(e->d_name, "nvidia%4u%n", &number, &end) != 1 || e->d_name[end])
                        continue;
                snprintf(path, sizeof(path), "/dev/nvidia%u", number);
                if (stat(doctor_path(d, path, full), &st) < 0)
                        continue;
                open = may_open(&st, uid, gids, n_gids);
                if (open > open_best || (open == open_best && number < best)) {
                        best = number;
                        open_best = open;
                }
        }
        if (dev)
                closedir(dev);
        snprintf(ret, 32, "/dev/nvidia%u", best == UINT_MAX ? 0 : best);
        return best != UINT_MAX;
}

static bool check_nodes(struct doctor *d) {
        const char *nodes[] = { "/dev/nvidiactl", NULL, "/dev/nvidia-uvm" };
        uint32_t uid, gids[64];
        size_t n = ids_of(d, &uid, gids);
        char card[32];

        (void)card_node(d, uid, gids, n, card);
        nodes[1] = card;
        for (size_t i = 0; i < ELEMENTSOF(nodes); i++) {
                char full[512];
                struct stat st;

                if (stat(doctor_path(d, nodes[i], full), &st) < 0) {
                        doctor_tell(d, FINDING_FAULT, "gpu", "fix: sudo modprobe nvidia nvidia_uvm; nvidia-modprobe -u -c 0 (the unit asks for it at start)",
                                    "%s: %s", nodes[i], strerror(errno));
                        return false;
                }
                if (!may_open(&st, uid, gids, n)) {
                        doctor_tell(d, FINDING_FAULT, "gpu", "fix: put the daemon's user into the group that owns the nodes (often video or render): "
                                    "SupplementaryGroups= in the unit", "%s can't be opened by uid %u (uid %u, gid %u, mode %04o)", nodes[i], uid,
                                    (unsigned)st.st_uid, (unsigned)st.st_gid, (unsigned)(st.st_mode & 07777));
                        return false;
                }
        }
        return true;
}

void doctor_gpu(struct doctor *d) {
        char driver[300], advice[500], card[64], node[32];
        unsigned major;

        if (!doctor_line(d, "/proc/driver/nvidia/version", "NVRM version:", driver, sizeof(driver))) {
                if (card_node(d, 0, NULL, 0, node))
                        doctor_tell(d, FINDING_FAULT, "gpu", "fix: sudo modprobe nvidia nvidia_uvm", "%s is there, but no driver is loaded", node);
                else if (pci_find_display(d->root, "0x10de", card))
                        doctor_tell(d, FINDING_FAULT, "gpu", "fix: install NVIDIA's driver, 580 or later, and restart (Debian: nvidia-driver, from non-free)",
                                    "an NVIDIA card is there (PCI %s), but no driver is loaded", card);
                else
                        doctor_tell(d, FINDING_GOOD, "gpu", NULL, "none here; models run on the CPU");
                return;
        }
        major = driver_major(driver);
        if (major && major < d->cuda_driver) {
                snprintf(advice, sizeof(advice), "fix: install driver %u or later, or a build for an older CUDA", d->cuda_driver);
                doctor_tell(d, FINDING_FAULT, "gpu", advice, "driver %u is too old for CUDA %s, which this build uses (%s)", major, d->cuda, driver);
                return;
        }
        if (!check_nodes(d))
                return;
        if (!d->cuda[0])
                doctor_tell(d, FINDING_NOTE, "gpu", "a build with -Dcuda=enabled uses it", "a driver is there (%s), but this build computes on the CPU", driver);
        else if (d->answered && d->worker_pid && !d->on_gpu)
                doctor_tell(d, FINDING_FAULT, "gpu", "its log says why; often [worker] backend = cpu in hearth.conf, or a card that came after the daemon: restart it",
                            "a driver is there (%s), but the daemon computes on the CPU", driver);
        else
                doctor_tell(d, FINDING_GOOD, "gpu", NULL, "%s", driver);
}

/* ---- memory ---- */

/* The word in brackets: "always [madvise] never". */
static bool chosen(const struct doctor *d, const char *path, char ret[32]) {
        char text[256], *a, *b;

        if (!doctor_line(d, path, NULL, text, sizeof(text)))
                return false;
        a = strchr(text, '[');
        b = a ? strchr(a, ']') : NULL;
        if (!b)
                return false;
        snprintf(ret, 32, "%.*s", (int)MIN(b - a - 1, 30), a + 1);
        return true;
}

void doctor_memory(struct doctor *d) {
        char text[64], word[32], total_text[16], budget_text[16];
        uint64_t total;

        if (doctor_line(d, "/proc/meminfo", "MemTotal:", text, sizeof(text))) {
                total = strtoull(text, NULL, 10) << 10;
                cli_human_bytes(total, total_text);
                cli_human_bytes(d->host_budget, budget_text);
                if (d->answered && d->host_budget > total)
                        doctor_tell(d, FINDING_FAULT, "memory", "fix: a smaller host_budget in hearth.conf",
                                    "the daemon's budget is %s, the machine has %s", budget_text, total_text);
        }
        if (chosen(d, "/sys/kernel/mm/transparent_hugepage/shmem_enabled", word) && (strcmp(word, "never") == 0 || strcmp(word, "deny") == 0))
                doctor_tell(d, FINDING_NOTE, "hugepages", "large models fill and pin faster with it; to try: "
                            "echo within_size | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled",
                            "models' memory has small pages (shmem_enabled is %s)", word);
        else if (chosen(d, "/sys/kernel/mm/transparent_hugepage/enabled", word) && strcmp(word, "never") == 0)
                doctor_tell(d, FINDING_NOTE, "hugepages", "to try: echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
                            "the engine's work space has small pages (transparent_hugepage/enabled is never)");
        else
                doctor_tell(d, FINDING_GOOD, "hugepages", NULL, "can be used");
}

/* ---- what locks the processes in that read models ---- */

void doctor_sandbox(struct doctor *d) {
        bool landlock = false, seccomp;
        char text[512];

        if (doctor_line(d, "/sys/kernel/security/lsm", NULL, text, sizeof(text)))
                landlock = strstr(text, "landlock") != NULL;
        else if (!d->root[0]) /* where that file system is not mounted the kernel itself is asked for its version */
                landlock = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION) > 0;
        seccomp = doctor_line(d, "/proc/sys/kernel/seccomp/actions_avail", NULL, text, sizeof(text)) && strstr(text, "errno");
        if (!seccomp)
                doctor_tell(d, FINDING_FAULT, "sandbox", "a kernel with CONFIG_SECCOMP_FILTER is needed to lock in what reads models' files",
                            "the kernel has no seccomp filters");
        else if (!landlock)
                doctor_tell(d, FINDING_NOTE, "sandbox", "files are then kept away by the unit's own settings and by seccomp alone; kernels from 5.13 on have "
                            "it: lsm=landlock,... on the kernel's command line", "seccomp is there, landlock is not");
        else
                doctor_tell(d, FINDING_GOOD, "sandbox", NULL, "seccomp and landlock are there");
}
