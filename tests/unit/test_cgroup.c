/* SPDX-License-Identifier: Apache-2.0 */
/* What bounds the daemon's memory, and whose limit ended a process: on machines made of files, with either version of control groups. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "daemon/broker/ledger.h"
#include "daemon/broker/oom.h"

#define GB UINT64_C(1000000000)
#define GIB (UINT64_C(1) << 30)
#define LEGACY "30 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n" \
               "35 31 0:32 / /sys/fs/cgroup/cpu rw,relatime shared:4 - cgroup cgroup rw,cpu,cpuacct\n" \
               "36 31 0:33 %s /sys/fs/cgroup/memory rw,relatime shared:5 - cgroup cgroup rw,memory\n" \
               "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
#define UNIFIED "31 23 0:28 %s /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"

struct fixture { char root[64]; };

static int begin(void **state) {
        struct fixture *x = calloc(1, sizeof(*x));

        strcpy(x->root, "/tmp/hth-cgroup-XXXXXX");
        *state = x;
        return mkdtemp(x->root) ? 0 : -1;
}

static int end(void **state) {
        struct fixture *x = *state;
        char cmd[128];

        snprintf(cmd, sizeof(cmd), "rm -r %s", x->root);
        free(x);
        return system(cmd) == 0 ? 0 : -1;
}

static void _printf_(3, 4) put(struct fixture *x, const char *path, const char *fmt, ...) {
        char full[512];
        va_list ap;
        FILE *f;

        snprintf(full, sizeof(full), "%s%s", x->root, path);
        for (char *p = full + 1; (p = strchr(p, '/')); *p++ = '/') {
                *p = 0;
                (void)mkdir(full, 0755);
        }
        f = fopen(full, "w");
        assert_non_null(f);
        va_start(ap, fmt);
        vfprintf(f, fmt, ap);
        va_end(ap);
        fclose(f);
}

static void gone(struct fixture *x, const char *path) {
        char full[512];

        snprintf(full, sizeof(full), "%s%s", x->root, path);
        assert_int_equal(unlink(full), 0);
}

static void machine(struct fixture *x, uint64_t available) {
        put(x, "/proc/meminfo", "MemTotal: 99000000 kB\nMemFree: 1 kB\nMemAvailable: %llu kB\n", (unsigned long long)(available >> 10));
}

/* The budget is what is left, less the reserve, and this group says so (NULL: the machine does). */
static void bounded(struct fixture *x, uint64_t left, const char *group, uint64_t limit) {
        struct cgroup_bound b;
        uint64_t got = ledger_default_budget(x->root, &b);

        assert_int_equal(got, left - MIN(left, MAX(left / 8, UINT64_C(256) << 20)));
        assert_int_equal(b.limit, limit);
        if (group)
                assert_string_equal(cgroup_name(&b.group), group);
}

/* ---- the default budget ---- */

static void test_budget_none(void **state) {
        struct fixture *x = *state;

        machine(x, 16 * GIB);
        bounded(x, 16 * GIB, NULL, 0); /* nothing is known of groups */
        put(x, "/proc/self/cgroup", "0::/a.service\n");
        bounded(x, 16 * GIB, NULL, 0); /* its files can't be seen */
        put(x, "/sys/fs/cgroup/a.service/memory.max", "max\n");
        put(x, "/sys/fs/cgroup/a.service/memory.current", "1000\n");
        bounded(x, 16 * GIB, NULL, 0);
        put(x, "/proc/self/cgroup", "3:cpu:/\n2:memory:/b\n0::/\n");
        put(x, "/sys/fs/cgroup/memory/b/memory.limit_in_bytes", "9223372036854771712\n");
        put(x, "/sys/fs/cgroup/memory/b/memory.usage_in_bytes", "1000\n");
        bounded(x, 16 * GIB, NULL, 0);
        put(x, "/proc/self/cgroup", "garbage\n::::\n\n1\n0:");
        bounded(x, 16 * GIB, NULL, 0);
}

static void test_budget_v2(void **state) {
        struct fixture *x = *state;

        machine(x, 64 * GB);
        put(x, "/proc/self/mountinfo", UNIFIED, "/");
        put(x, "/proc/self/cgroup", "0::/system.slice/hearthd.service\n");
        put(x, "/sys/fs/cgroup/system.slice/hearthd.service/memory.max", "%llu\n", (unsigned long long)(20 * GB));
        put(x, "/sys/fs/cgroup/system.slice/hearthd.service/memory.current", "%llu\n", (unsigned long long)(4 * GB));
        bounded(x, 16 * GB, "/system.slice/hearthd.service", 20 * GB);
        /* Unused file pages count as free; "inactive_file" is no part of another line's name. */
        put(x, "/sys/fs/cgroup/system.slice/hearthd.service/memory.stat", "anon 5\nother_inactive_file 9\ninactive_file %llu\nactive_file 7\n",
            (unsigned long long)(3 * GB));
        bounded(x, 19 * GB, "/system.slice/hearthd.service", 20 * GB);
        /* A larger limit above it that is nearly used up. */
        put(x, "/sys/fs/cgroup/system.slice/memory.max", "%llu\n", (unsigned long long)(30 * GB));
        put(x, "/sys/fs/cgroup/system.slice/memory.current", "%llu\n", (unsigned long long)(28 * GB));
        bounded(x, 2 * GB, "/system.slice", 30 * GB);
        put(x, "/sys/fs/cgroup/system.slice/memory.current", "%llu\n", (unsigned long long)(31 * GB));
        bounded(x, 0, "/system.slice", 30 * GB);
        /* The machine has less than the groups allow. */
        put(x, "/sys/fs/cgroup/system.slice/memory.current", "0\n");
        machine(x, 8 * GIB);
        bounded(x, 8 * GIB, NULL, 0);
}

static void test_budget_v1(void **state) {
        struct fixture *x = *state;

        machine(x, 64 * GB);
        put(x, "/proc/self/mountinfo", LEGACY, "/");
        put(x, "/proc/self/cgroup", "9:name=systemd:/x\n5:cpu,cpuacct:/y\n4:memory:/slice/own\n0::/\n");
        put(x, "/sys/fs/cgroup/memory/slice/own/memory.limit_in_bytes", "%llu\n", (unsigned long long)(20 * GB));
        put(x, "/sys/fs/cgroup/memory/slice/own/memory.usage_in_bytes", "%llu\n", (unsigned long long)(4 * GB));
        put(x, "/sys/fs/cgroup/memory/slice/own/memory.stat", "inactive_file 1\ntotal_inactive_file %llu\n", (unsigned long long)(2 * GB));
        bounded(x, 18 * GB, "/slice/own", 20 * GB);
        put(x, "/sys/fs/cgroup/memory/slice/memory.limit_in_bytes", "%llu\n", (unsigned long long)(10 * GB));
        put(x, "/sys/fs/cgroup/memory/slice/memory.usage_in_bytes", "%llu\n", (unsigned long long)(4 * GB));
        bounded(x, 6 * GB, "/slice", 10 * GB);
        /* Before Linux 5.11 a group may have said that it does not bound those below it. */
        put(x, "/sys/fs/cgroup/memory/slice/memory.use_hierarchy", "0\n");
        bounded(x, 18 * GB, "/slice/own", 20 * GB);
        put(x, "/sys/fs/cgroup/memory/slice/memory.use_hierarchy", "1\n");
        bounded(x, 6 * GB, "/slice", 10 * GB);
        /* Memory together with another controller, at another place, with a space in its name. */
        put(x, "/proc/self/cgroup", "4:cpuset,memory,pids:/z\n");
        put(x, "/proc/self/mountinfo", "36 31 0:33 / /my\\040groups/m rw,relatime - cgroup cgroup rw,cpuset,memory,pids\n");
        put(x, "/my groups/m/z/memory.limit_in_bytes", "%llu\n", (unsigned long long)(3 * GB));
        put(x, "/my groups/m/z/memory.usage_in_bytes", "%llu\n", (unsigned long long)GB);
        bounded(x, 2 * GB, "/z", 3 * GB);
}

/* /proc names the group as the machine does; only it and what is below can be seen, at the mount's top. */
static void test_budget_container(void **state) {
        struct fixture *x = *state;

        machine(x, 64 * GB);
        put(x, "/proc/self/mountinfo", LEGACY, "/docker/0123abcd");
        put(x, "/proc/self/cgroup", "4:memory:/docker/0123abcd\n");
        put(x, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "%llu\n", (unsigned long long)(5 * GB));
        put(x, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "%llu\n", (unsigned long long)GB);
        bounded(x, 4 * GB, "/", 5 * GB);
        put(x, "/proc/self/cgroup", "4:memory:/docker/0123abcd/sub\n");
        put(x, "/sys/fs/cgroup/memory/sub/memory.limit_in_bytes", "%llu\n", (unsigned long long)(3 * GB));
        put(x, "/sys/fs/cgroup/memory/sub/memory.usage_in_bytes", "%llu\n", (unsigned long long)GB);
        bounded(x, 2 * GB, "/sub", 3 * GB);
        put(x, "/proc/self/cgroup", "4:memory:/docker/0123abcdef\n"); /* another one's: what is seen is all that is known */
        bounded(x, 4 * GB, "/", 5 * GB);
        put(x, "/proc/self/mountinfo", UNIFIED, "/");
        put(x, "/proc/self/cgroup", "0::/../other\n"); /* outside of its namespace */
        put(x, "/sys/fs/cgroup/memory.max", "%llu\n", (unsigned long long)(7 * GB));
        put(x, "/sys/fs/cgroup/memory.current", "0\n");
        bounded(x, 7 * GB, "/", 7 * GB);
}

/* ---- who was ended by the kernel ---- */

static void says(struct oom *o, uint64_t now, const char *text) {
        struct oom_cause c;
        char buf[192];

        assert_int_equal(oom_ended(o, now, &c), OOM_YES);
        assert_string_equal(oom_text(&c, buf), text);
}

static void denies(struct oom *o, uint64_t now) {
        struct oom_cause c;

        assert_int_equal(oom_ended(o, now, &c), OOM_NO);
}

static void test_oom_v2(void **state) {
        struct fixture *x = *state;
        struct oom o;

        put(x, "/proc/self/mountinfo", UNIFIED, "/");
        put(x, "/proc/self/cgroup", "0::/s.slice/h.service\n");
        put(x, "/sys/fs/cgroup/s.slice/h.service/memory.max", "64000000\n");
        put(x, "/sys/fs/cgroup/s.slice/h.service/memory.events", "low 0\nhigh 0\nmax 9\noom 4\noom_kill 4\noom_group_kill 0\n");
        put(x, "/sys/fs/cgroup/s.slice/memory.max", "2000000000\n");
        put(x, "/sys/fs/cgroup/s.slice/memory.events", "low 0\nhigh 0\nmax 9\noom 6\noom_kill 6\n");
        oom_init(&o, x->root);
        denies(&o, 1000); /* those of earlier */
        put(x, "/sys/fs/cgroup/s.slice/h.service/memory.events", "low 0\nmax 12\noom 5\noom_kill 5\n");
        put(x, "/sys/fs/cgroup/s.slice/memory.events", "low 0\nmax 12\noom 7\noom_kill 7\n");
        says(&o, 2000, "was ended by the kernel: out of memory (limit of the control group /s.slice/h.service: 64.0 MB)");
        denies(&o, 2000); /* one kill is one process's */
        /* Seen by a tick before its process has ended; a limit above. */
        put(x, "/sys/fs/cgroup/s.slice/h.service/memory.events", "max 12\noom 5\noom_kill 7\n");
        put(x, "/sys/fs/cgroup/s.slice/memory.events", "max 20\noom 8\noom_kill 9\n");
        oom_look(&o, 0, 3000);
        oom_look(&o, 0, 4000);
        says(&o, 5000, "was ended by the kernel: out of memory (limit of the control group /s.slice: 2.0 GB)");
        says(&o, 5000, "was ended by the kernel: out of memory (limit of the control group /s.slice: 2.0 GB)");
        denies(&o, 5000);
        /* No limit was reached: it was the machine's memory. */
        put(x, "/sys/fs/cgroup/s.slice/h.service/memory.events", "max 12\noom 5\noom_kill 8\n");
        says(&o, 6000, "was ended by the kernel: out of memory (of the machine)");
        /* Another program's in the same group, long ago. */
        put(x, "/sys/fs/cgroup/s.slice/h.service/memory.events", "max 12\noom 5\noom_kill 9\n");
        oom_look(&o, 0, 7000);
        oom_look(&o, 0, 40000);
        denies(&o, 40000);
}

static void test_oom_worker_elsewhere(void **state) {
        struct fixture *x = *state;
        struct oom o;

        put(x, "/proc/self/mountinfo", UNIFIED, "/");
        put(x, "/proc/self/cgroup", "0::/h\n");
        put(x, "/proc/77/cgroup", "0::/h\n");
        put(x, "/sys/fs/cgroup/h/memory.max", "max\n");
        put(x, "/sys/fs/cgroup/h/memory.events", "oom 0\noom_kill 0\n");
        put(x, "/sys/fs/cgroup/h/w/memory.max", "32000000\n");
        put(x, "/sys/fs/cgroup/h/w/memory.events", "oom 3\noom_kill 3\n");
        oom_init(&o, x->root);
        oom_look(&o, 77, 0);
        denies(&o, 0);
        put(x, "/proc/77/cgroup", "0::/h/w\n"); /* it was moved */
        oom_look(&o, 77, 1000);
        denies(&o, 1000); /* kills of before it came */
        put(x, "/sys/fs/cgroup/h/w/memory.events", "oom 4\noom_kill 4\n");
        put(x, "/sys/fs/cgroup/h/memory.events", "oom 1\noom_kill 1\n");
        gone(x, "/proc/77/cgroup");
        says(&o, 2000, "was ended by the kernel: out of memory (limit of the control group /h/w: 32.0 MB)");
        denies(&o, 2000); /* counted in both, but one */
        put(x, "/proc/78/cgroup", "0::/h\n"); /* the next worker is with us again */
        oom_look(&o, 78, 3000);
        put(x, "/sys/fs/cgroup/h/w/memory.events", "oom 5\noom_kill 5\n");
        denies(&o, 4000);
}

/* Its own group has no memory controller: that of the slice counts for it. */
static void test_oom_counted_above(void **state) {
        struct fixture *x = *state;
        struct oom o;

        put(x, "/proc/self/cgroup", "0::/user.slice/app.slice/run-1.scope\n");
        put(x, "/sys/fs/cgroup/user.slice/app.slice/run-1.scope/pids.max", "max\n");
        put(x, "/sys/fs/cgroup/user.slice/memory.max", "96000000\n");
        put(x, "/sys/fs/cgroup/user.slice/memory.events", "oom 0\noom_kill 2\n");
        put(x, "/proc/vmstat", "oom_kill 9\n");
        oom_init(&o, x->root);
        denies(&o, 0);
        put(x, "/proc/vmstat", "oom_kill 10\n"); /* somewhere else on the machine */
        denies(&o, 0);
        put(x, "/sys/fs/cgroup/user.slice/memory.events", "oom 1\noom_kill 3\n");
        says(&o, 0, "was ended by the kernel: out of memory (limit of the control group /user.slice: 96.0 MB)");
}

static void test_oom_v1(void **state) {
        struct fixture *x = *state;
        struct oom o;

        put(x, "/proc/self/mountinfo", LEGACY, "/");
        put(x, "/proc/self/cgroup", "4:memory:/h\n0::/\n");
        put(x, "/sys/fs/cgroup/memory/h/memory.limit_in_bytes", "64000000\n");
        put(x, "/sys/fs/cgroup/memory/h/memory.failcnt", "10\n");
        put(x, "/sys/fs/cgroup/memory/h/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
        oom_init(&o, x->root);
        denies(&o, 0);
        put(x, "/sys/fs/cgroup/memory/h/memory.failcnt", "50\n");
        put(x, "/sys/fs/cgroup/memory/h/memory.oom_control", "oom_kill_disable 0\nunder_oom 1\noom_kill 3\n");
        says(&o, 0, "was ended by the kernel: out of memory (limit of the control group /h: 64.0 MB)");
        put(x, "/sys/fs/cgroup/memory/h/memory.oom_control", "oom_kill_disable 0\nunder_oom 1\noom_kill 4\n");
        says(&o, 0, "was ended by the kernel: out of memory (of the machine)");
        denies(&o, 0);
        /* Memory with swap is not counted, but the most of it is. */
        put(x, "/sys/fs/cgroup/memory/h/memory.memsw.limit_in_bytes", "64000000\n");
        put(x, "/sys/fs/cgroup/memory/h/memory.memsw.max_usage_in_bytes", "63995904\n");
        put(x, "/sys/fs/cgroup/memory/h/memory.oom_control", "oom_kill_disable 0\nunder_oom 1\noom_kill 5\n");
        says(&o, 0, "was ended by the kernel: out of memory (limit of the control group /h: 64.0 MB)");
}

static void test_oom_machine(void **state) {
        struct fixture *x = *state;
        struct oom_cause c;
        struct oom o;

        oom_init(&o, x->root);
        assert_int_equal(oom_ended(&o, 0, &c), OOM_UNKNOWN); /* nothing counts */
        put(x, "/proc/vmstat", "nr_free_pages 5\noom_kill 7\nnuma_hit 3\n");
        put(x, "/proc/self/cgroup", "0::/\n"); /* the whole tree's top has no counters */
        oom_init(&o, x->root);
        denies(&o, 0);
        put(x, "/proc/vmstat", "nr_free_pages 5\noom_kill 8\nnuma_hit 3\n");
        says(&o, 0, "was ended by the kernel: out of memory (of the machine)");
        denies(&o, 0);
}

static void test_oom_long_name(void **state) {
        struct fixture *x = *state;
        char name[200], path[300];
        struct oom_cause c;
        char text[192];
        struct oom o;

        memset(name, 'n', sizeof(name) - 1);
        name[sizeof(name) - 1] = 0;
        put(x, "/proc/self/cgroup", "0::/%s/end\n", name);
        snprintf(path, sizeof(path), "/sys/fs/cgroup/%s/end/memory.max", name);
        put(x, path, "5\n");
        snprintf(path, sizeof(path), "/sys/fs/cgroup/%s/end/memory.events", name);
        put(x, path, "oom 0\noom_kill 0\n");
        oom_init(&o, x->root);
        put(x, path, "oom 1\noom_kill 1\n");
        assert_int_equal(oom_ended(&o, 0, &c), OOM_YES);
        assert_int_equal(strlen(c.group), sizeof(c.group) - 1);
        assert_string_equal(c.group + sizeof(c.group) - 8, "nnn/end");
        assert_non_null(strstr(oom_text(&c, text), ": 5 B)"));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_budget_none, begin, end), cmocka_unit_test_setup_teardown(test_budget_v2, begin, end),
                cmocka_unit_test_setup_teardown(test_budget_v1, begin, end), cmocka_unit_test_setup_teardown(test_budget_container, begin, end),
                cmocka_unit_test_setup_teardown(test_oom_v2, begin, end), cmocka_unit_test_setup_teardown(test_oom_worker_elsewhere, begin, end),
                cmocka_unit_test_setup_teardown(test_oom_counted_above, begin, end), cmocka_unit_test_setup_teardown(test_oom_v1, begin, end), cmocka_unit_test_setup_teardown(test_oom_machine, begin, end),
                cmocka_unit_test_setup_teardown(test_oom_long_name, begin, end),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
