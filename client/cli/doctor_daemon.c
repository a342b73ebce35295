/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/doctor.h"

#include <dirent.h>
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cgroup.h"

#define LOG_LARGE (64u << 20)
#define DISK_LOW (UINT64_C(1) << 30)

void doctor_tell(struct doctor *d, enum finding_level level, const char *subject, const char *advice, const char *fmt, ...) {
        struct finding f = { .level = level, .subject = subject };
        va_list ap;

        va_start(ap, fmt);
        vsnprintf(f.text, sizeof(f.text), fmt, ap);
        va_end(ap);
        snprintf(f.advice, sizeof(f.advice), "%s", advice ? advice : "");
        d->tell(d->ud, &f);
}

char *doctor_path(const struct doctor *d, const char *path, char ret[512]) {
        snprintf(ret, 512, "%s%s", d->root, path);
        return ret;
}

bool doctor_line(const struct doctor *d, const char *path, const char *key, char *ret, size_t n) {
        char full[512], l[1024];
        FILE *f = fopen(doctor_path(d, path, full), "re");
        bool found = false;

        while (f && !found && fgets(l, sizeof(l), f)) {
                size_t k = key ? strlen(key) : 0;
                if (key && strncmp(l, key, k) != 0)
                        continue;
                while (l[k] == ' ' || l[k] == '\t')
                        k++;
                snprintf(ret, n, "%s", l + k);
                ret[strcspn(ret, "\n")] = 0;
                found = true;
        }
        if (f)
                fclose(f);
        return found;
}

/* ---- the socket ---- */

void doctor_socket_dir(struct doctor *d, const char *socket) {
        char full[512], dir[400], advice[500];
        const char *slash = strrchr(socket, '/');
        struct stat st;

        snprintf(dir, sizeof(dir), "%.*s", slash ? (int)(slash - socket) : 0, socket);
        if (!dir[0] || stat(doctor_path(d, dir, full), &st) < 0)
                return; /* said where the socket is looked for */
        snprintf(advice, sizeof(advice), "another user could put his own socket there; fix: chmod go-w %s", dir);
        if (st.st_mode & 0002)
                doctor_tell(d, FINDING_FAULT, "socket", advice, "the directory %s can be written by everybody (mode %04o)", dir,
                            (unsigned)(st.st_mode & 07777));
        if (st.st_uid != 0 && st.st_uid != d->euid)
                doctor_tell(d, d->answered ? FINDING_NOTE : FINDING_FAULT, "socket", "whoever owns it decides who answers there",
                            "the directory %s belongs to uid %u", dir, (unsigned)st.st_uid);
}

static bool alive(const struct doctor *d, const char *pid) {
        char path[64], full[512];

        snprintf(path, sizeof(path), "/proc/%.20s", pid);
        return access(doctor_path(d, path, full), F_OK) == 0;
}

/* What an earlier daemon left beside the socket. */
void doctor_stale(struct doctor *d, const char *socket) {
        char path[420], full[512], pid[32], advice[500];
        struct stat st;
        const char *slash = strrchr(socket, '/');

        snprintf(path, sizeof(path), "%.400s.lock", socket);
        if (!d->answered && doctor_line(d, path, NULL, pid, sizeof(pid)) && pid[0]) {
                if (!alive(d, pid))
                        doctor_tell(d, FINDING_NOTE, "stale", "nothing to do: the next daemon takes its place", "%s is of process %s, which ended",
                                    path, pid);
                else {
                        snprintf(advice, sizeof(advice), "look at it: ps -fp %s; end it, and start anew", pid);
                        doctor_tell(d, FINDING_FAULT, "stale", advice, "process %s holds %s, but nobody answers at the socket", pid, path);
                }
        }
        snprintf(path, sizeof(path), "%.400s.new", socket);
        if (lstat(doctor_path(d, path, full), &st) == 0)
                doctor_tell(d, FINDING_NOTE, "stale", "nothing to do: the next daemon removes it",
                            "%s was left by a daemon that ended while it started", path);
        snprintf(path, sizeof(path), "%.*s/hearthd.log", slash ? (int)MIN(slash - socket, 380) : 0, socket);
        if (stat(doctor_path(d, path, full), &st) == 0 && (uint64_t)st.st_size > LOG_LARGE) {
                snprintf(advice, sizeof(advice), "fix: truncate -s 0 %s, or run it as a service: its log is the journal's then", path);
                doctor_tell(d, FINDING_NOTE, "stale", advice, "%s has %u MB", path, (unsigned)(st.st_size >> 20));
        }
}

/* Something is there, but nobody listens. */
void doctor_refused(struct doctor *d, const char *socket, bool system) {
        char full[512], advice[500];
        struct stat st;

        if (stat(doctor_path(d, socket, full), &st) == 0 && !S_ISSOCK(st.st_mode)) {
                snprintf(advice, sizeof(advice), "a daemon leaves it alone and does not start; fix: %s", system ? "move it away, then: sudo systemctl restart "
                         "hearthd.socket" : "move it away, or name another path in HEARTH_SOCKET");
                doctor_tell(d, FINDING_FAULT, "socket", advice, "%s is there and is no socket", socket);
        } else
                doctor_tell(d, FINDING_FAULT, "socket", system ? "fix: sudo systemctl restart hearthd.socket" :
                            "fix: hearth models (starts one, which replaces it), or: systemctl --user start hearthd.socket",
                            "%s is there, but nobody listens: a daemon ended without tidying up", socket);
}

/* Connecting was refused: whose is it, and what is missing. */
void doctor_no_permission(struct doctor *d, const char *socket) {
        char full[512], advice[500];
        gid_t groups[256];
        struct group *g;
        struct stat st;
        int n = getgroups((int)ELEMENTSOF(groups), groups);
        bool member = false;

        if (stat(doctor_path(d, socket, full), &st) < 0) {
                doctor_tell(d, FINDING_FAULT, "socket", "its directory does not let you in: ls -ld shows whose it is",
                            "%s: no permission for user %u", socket, d->euid);
                return;
        }
        g = getgrgid(st.st_gid);
        for (int i = 0; i < n; i++)
                member |= groups[i] == st.st_gid;
        if (!(st.st_mode & 0060))
                snprintf(advice, sizeof(advice), "it is the daemon of uid %u alone; ask for the system's: HEARTH_SOCKET=/run/hearth/hearth.sock",
                         (unsigned)st.st_uid);
        else if (member)
                snprintf(advice, sizeof(advice), "this session is in that group: the way to the socket is closed; namei -l %.300s shows where", socket);
        else
                snprintf(advice, sizeof(advice), "fix: sudo usermod -aG %s $USER, then log in again (a session keeps the groups it began with)",
                         g ? g->gr_name : "its group");
        doctor_tell(d, FINDING_FAULT, "socket", advice, "%s: no permission for user %u (uid %u, group %s, mode %04o)", socket, d->euid,
                    (unsigned)st.st_uid, g ? g->gr_name : "?", (unsigned)(st.st_mode & 07777));
}

/* ---- limits ---- */

void doctor_limits(struct doctor *d) {
        char path[64], text[512];

        if (!d->pid)
                return;
        snprintf(path, sizeof(path), "/proc/%u/limits", d->worker_pid ? d->worker_pid : d->pid);
        if (doctor_line(d, path, "Max locked memory", text, sizeof(text))) {
                uint64_t bytes = strtoull(text, NULL, 10);

                if (strncmp(text, "unlimited", 9) == 0)
                        doctor_tell(d, FINDING_GOOD, "pinning", NULL, "memory can be locked without limit");
                else
                        doctor_tell(d, d->on_gpu ? FINDING_FAULT : FINDING_NOTE, "pinning",
                                    "uploads to a GPU will run at half speed; fix: LimitMEMLOCK=infinity in the unit (the shipped one has it), or "
                                    "ulimit -l", "locked memory is limited to %" PRIu64 " kB", bytes >> 10);
        }
        snprintf(path, sizeof(path), "/proc/%u/limits", d->pid);
        if (doctor_line(d, path, "Max open files", text, sizeof(text)) && strncmp(text, "unlimited", 9) != 0 && strtoull(text, NULL, 10) < 256)
                doctor_tell(d, FINDING_FAULT, "files", "fix: LimitNOFILE=65536 in the unit, or ulimit -n",
                            "only %llu open files are allowed; each client takes one, each part of a model another", strtoull(text, NULL, 10));
}

/* Its own and all above it: the least counts. */
void doctor_cgroup(struct doctor *d) {
        char pid[16], where[1024] = "", bytes[16], budget[16];
        uint64_t least = UINT64_MAX, v, max;
        struct cgroup_mounts mounts;
        struct cgroup g;

        if (!d->pid)
                return;
        snprintf(pid, sizeof(pid), "%u", d->pid);
        cgroup_mounts_read(d->root, &mounts);
        if (!cgroup_find(d->root, &mounts, pid, &g))
                return;
        if (cgroup_oom_kills(&g, &v) && v)
                doctor_tell(d, FINDING_FAULT, "cgroup", "fix: a smaller host_budget in hearth.conf, or more memory for the unit (MemoryMax=)",
                            "the kernel ended processes of %s %" PRIu64 " times for want of memory", cgroup_name(&g), v);
        do {
                const char *name = cgroup_name(&g);

                if (cgroup_memory_limit(&g, &v) && v < least) {
                        least = v;
                        snprintf(where, sizeof(where), "%s%s", name, g.version == 1 ? " (memory.limit_in_bytes)" : "");
                }
                if (g.version == 1)
                        continue; /* it has no memory.high, and tasks are counted in another tree */
                if (cgroup_number(&g, "memory.high", NULL, &v) && d->host_budget && v < d->host_budget)
                        doctor_tell(d, FINDING_NOTE, "cgroup", "above that the kernel slows it down; fix: MemoryHigh=infinity, or a smaller host_budget",
                                    "memory.high of %s is %" PRIu64 " MB, the daemon's budget %" PRIu64 " MB", name, v >> 20, d->host_budget >> 20);
                if (cgroup_number(&g, "pids.max", NULL, &max) && cgroup_number(&g, "pids.current", NULL, &v) && v + 32 > max)
                        doctor_tell(d, FINDING_FAULT, "cgroup", "a worker can't be started anew; fix: TasksMax= in the unit",
                                    "%s has %" PRIu64 " of %" PRIu64 " tasks", name, v, max);
        } while (cgroup_up(&g));
        if (least == UINT64_MAX)
                return;
        cli_human_bytes(least, bytes);
        cli_human_bytes(d->host_budget, budget);
        if (d->host_budget > least)
                doctor_tell(d, FINDING_FAULT, "cgroup", "the kernel will end the worker; fix: a smaller host_budget in hearth.conf, or MemoryMax= of the unit",
                            "memory is limited to %s by %s, the daemon's budget is %s", bytes, where, budget);
        else
                doctor_tell(d, FINDING_GOOD, "cgroup", NULL, "memory is limited to %s by %s", bytes, where);
}

/* ---- disk ---- */

void doctor_disk(struct doctor *d, const char *const *dirs, size_t n_dirs) {
        for (size_t i = 0; i < n_dirs; i++) {
                char full[512], advice[500], free_text[16];
                struct statvfs v;
                uint64_t left;

                snprintf(advice, sizeof(advice), "fix: mkdir -p %.400s, or another model_dir in hearth.conf", dirs[i]);
                if (statvfs(doctor_path(d, dirs[i], full), &v) < 0) {
                        if (errno == EACCES) /* the daemon's to read, not ours */
                                doctor_tell(d, FINDING_NOTE, "disk", NULL, "%s can't be looked into by user %u", dirs[i], d->euid);
                        else
                                doctor_tell(d, FINDING_NOTE, "disk", advice, "model directory %s: %s", dirs[i], strerror(errno));
                        continue;
                }
                if (__builtin_mul_overflow((uint64_t)v.f_bavail, (uint64_t)v.f_frsize, &left))
                        left = UINT64_MAX;
                cli_human_bytes(left, free_text);
                if (left < DISK_LOW)
                        doctor_tell(d, FINDING_NOTE, "disk", "a download there will stop half-way, and half a file is no model",
                                    "%s: only %s are free", dirs[i], free_text);
                else
                        doctor_tell(d, FINDING_GOOD, "disk", NULL, "%s, %s free", dirs[i], free_text);
        }
}
