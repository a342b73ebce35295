/* SPDX-License-Identifier: Apache-2.0 */
/* Each look of `hearth doctor` on a machine made of files with the fault it is for, and on one without. */
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

#include "client/cli/doctor.h"

struct fixture {
        char root[64];
        struct doctor d;
        char said[8192]; /* "level subject: text | advice" lines */
};

static void tell(void *ud, const struct finding *f) {
        struct fixture *x = ud;
        size_t n = strlen(x->said);
        static const char marks[] = "+.!";
        snprintf(x->said + n, sizeof(x->said) - n, "%c %s: %s | %s\n", marks[f->level], f->subject, f->text, f->advice);
}

static int begin(void **state) {
        struct fixture *x = calloc(1, sizeof(*x));

        strcpy(x->root, "/tmp/hth-doctor-XXXXXX");
        if (!mkdtemp(x->root))
                return -1;
        x->d = (struct doctor){ .root = x->root, .tell = tell, .ud = x, .cuda = "13.0", .cuda_driver = 580, .pid = 70, .worker_pid = 71,
                                .answered = true, .host_budget = UINT64_C(8) << 30, .euid = 1000 };
        *state = x;
        return 0;
}

static int end(void **state) {
        struct fixture *x = *state;
        char cmd[128];

        snprintf(cmd, sizeof(cmd), "rm -r %s", x->root);
        if (system(cmd) != 0)
                return -1;
        free(x);
        return 0;
}

static void put(struct fixture *x, const char *path, const char *text) {
        char cmd[600], full[512];
        FILE *f;

        doctor_path(&x->d, path, full);
        snprintf(cmd, sizeof(cmd), "mkdir -p $(dirname %s)", full);
        assert_int_equal(system(cmd), 0);
        f = fopen(full, "w");
        assert_non_null(f);
        fputs(text, f);
        fclose(f);
}

/* What was said since the last time has this in it; NULL: nothing was said. */
static void expect(struct fixture *x, const char *what) {
        if (what ? !strstr(x->said, what) : x->said[0])
                fail_msg("expected \"%s\", it says:\n%s", what ? what : "", x->said);
}

static void quiet(struct fixture *x) {
        x->said[0] = 0;
}

static void no_fault(struct fixture *x) {
        if (strstr(x->said, "! "))
                fail_msg("no fault was there, it says:\n%s", x->said);
}

static void test_gpu(void **state) {
        struct fixture *x = *state;
        char full[512];
        static const char version[] = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  %s  Thu Jan  1\nGCC version: 13\n";
        char text[200];

        doctor_gpu(&x->d);
        expect(x, "+ gpu: none here");
        quiet(x);
        put(x, "/sys/bus/pci/devices/0000:01:00.0/vendor", "0x8086\n");
        put(x, "/sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n");
        put(x, "/sys/bus/pci/devices/0000:02:00.1/vendor", "0x10de\n");
        put(x, "/sys/bus/pci/devices/0000:02:00.1/class", "0x040300\n"); /* a card's sound */
        doctor_gpu(&x->d);
        expect(x, "+ gpu: none here");
        quiet(x);
        put(x, "/sys/bus/pci/devices/0000:02:00.0/vendor", "0x10de\n");
        put(x, "/sys/bus/pci/devices/0000:02:00.0/class", "0x030000\n");
        doctor_gpu(&x->d);
        expect(x, "! gpu: an NVIDIA card is there (PCI 0000:02:00.0), but no driver is loaded | fix: install");
        quiet(x);
        put(x, "/dev/nvidia0", "");
        doctor_gpu(&x->d);
        expect(x, "! gpu: /dev/nvidia0 is there, but no driver is loaded | fix: sudo modprobe");
        quiet(x);
        snprintf(text, sizeof(text), version, "535.104.05");
        put(x, "/proc/driver/nvidia/version", text);
        doctor_gpu(&x->d);
        expect(x, "! gpu: driver 535 is too old for CUDA 13.0, which this build uses");
        expect(x, "install driver 580 or later");
        quiet(x);
        snprintf(text, sizeof(text), version, "580.65.06");
        put(x, "/proc/driver/nvidia/version", text);
        doctor_gpu(&x->d);
        expect(x, "! gpu: /dev/nvidiactl: No such file");
        quiet(x);
        put(x, "/dev/nvidiactl", "");
        put(x, "/dev/nvidia-uvm", "");
        /* The daemon's ids decide, not ours. */
        put(x, "/proc/70/status", "Name:\thearthd\nUid:\t990\t990\t990\t990\nGid:\t990\t990\t990\t990\nGroups:\t44 109 \n");
        chmod(doctor_path(&x->d, "/dev/nvidia0", full), 0600);
        doctor_gpu(&x->d);
        expect(x, "! gpu: /dev/nvidiactl can't be opened by uid 990");
        quiet(x);
        for (size_t i = 0; i < 3; i++)
                chmod(doctor_path(&x->d, (const char *[]){ "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm" }[i], full), 0666);
        doctor_gpu(&x->d);
        expect(x, "! gpu: a driver is there");
        expect(x, "backend = cpu");
        quiet(x);
        x->d.on_gpu = true;
        /* A container with another card than the first one; of several one that may be opened is enough. */
        remove(doctor_path(&x->d, "/dev/nvidia0", full));
        doctor_gpu(&x->d);
        expect(x, "! gpu: /dev/nvidia0: No such file");
        quiet(x);
        put(x, "/dev/nvidia1", "");
        put(x, "/dev/nvidia12", "");
        put(x, "/dev/nvidia3x", "");
        chmod(doctor_path(&x->d, "/dev/nvidia1", full), 0600);
        chmod(doctor_path(&x->d, "/dev/nvidia12", full), 0600);
        doctor_gpu(&x->d);
        expect(x, "! gpu: /dev/nvidia1 can't be opened by uid 990");
        quiet(x);
        chmod(full, 0666);
        doctor_gpu(&x->d);
        no_fault(x);
        quiet(x);
        put(x, "/dev/nvidia0", "");
        chmod(doctor_path(&x->d, "/dev/nvidia0", full), 0666);
        doctor_gpu(&x->d);
        expect(x, "+ gpu: NVIDIA UNIX x86_64 Kernel Module  580.65.06");
        quiet(x);
        x->d.cuda = "";
        x->d.cuda_driver = 0;
        doctor_gpu(&x->d);
        expect(x, ". gpu: a driver is there");
        if (getuid() == 0) { /* by its groups */
                quiet(x);
                for (size_t i = 0; i < 3; i++) {
                        doctor_path(&x->d, (const char *[]){ "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm" }[i], full);
                        chmod(full, 0660);
                        assert_int_equal(chown(full, 0, 109), 0);
                }
                doctor_gpu(&x->d);
                no_fault(x);
                quiet(x);
                put(x, "/proc/70/status", "Uid:\t990\t990\t990\t990\nGid:\t990\t990\t990\t990\nGroups:\t44 \n");
                doctor_gpu(&x->d);
                expect(x, "! gpu: /dev/nvidiactl can't be opened by uid 990 (uid 0, gid 109, mode 0660)");
        }
}

static void test_limits(void **state) {
        struct fixture *x = *state;

        put(x, "/proc/71/limits", "Limit    Soft Limit   Hard Limit  Units\nMax locked memory   8388608    8388608    bytes\n");
        put(x, "/proc/70/limits", "Max open files            128                  4096                 files\n");
        doctor_limits(&x->d);
        expect(x, ". pinning: locked memory is limited to 8192 kB"); /* on the CPU no fault */
        expect(x, "! files: only 128 open files");
        quiet(x);
        x->d.on_gpu = true;
        doctor_limits(&x->d);
        expect(x, "! pinning: locked memory is limited to 8192 kB | uploads to a GPU will run at half speed; fix: LimitMEMLOCK=infinity");
        quiet(x);
        put(x, "/proc/71/limits", "Max locked memory         unlimited            unlimited            bytes\n");
        put(x, "/proc/70/limits", "Max open files            65536                65536                files\n");
        doctor_limits(&x->d);
        expect(x, "+ pinning");
        no_fault(x);
}

static void test_cgroup(void **state) {
        struct fixture *x = *state;

        put(x, "/proc/70/cgroup", "0::/system.slice/hearthd.service\n");
        put(x, "/sys/fs/cgroup/system.slice/hearthd.service/memory.max", "max\n");
        doctor_cgroup(&x->d);
        expect(x, NULL);
        put(x, "/sys/fs/cgroup/system.slice/hearthd.service/memory.max", "17179869184\n");
        doctor_cgroup(&x->d);
        expect(x, "+ cgroup: memory is limited to 17 GB by /system.slice/hearthd.service");
        quiet(x);
        /* A slice above it with less. */
        put(x, "/sys/fs/cgroup/system.slice/memory.max", "4294967296\n");
        doctor_cgroup(&x->d);
        expect(x, "! cgroup: memory is limited to 4.3 GB by /system.slice, the daemon's budget is 8.6 GB");
        quiet(x);
        put(x, "/sys/fs/cgroup/system.slice/memory.max", "max\n");
        put(x, "/sys/fs/cgroup/system.slice/hearthd.service/memory.high", "1073741824\n");
        put(x, "/sys/fs/cgroup/system.slice/hearthd.service/memory.events", "low 0\noom 3\noom_kill 2\n");
        put(x, "/sys/fs/cgroup/system.slice/hearthd.service/pids.max", "64\n");
        put(x, "/sys/fs/cgroup/system.slice/hearthd.service/pids.current", "40\n");
        doctor_cgroup(&x->d);
        expect(x, ". cgroup: memory.high of /system.slice/hearthd.service is 1024 MB, the daemon's budget 8192 MB");
        expect(x, "! cgroup: the kernel ended processes of /system.slice/hearthd.service 2 times");
        expect(x, "! cgroup: /system.slice/hearthd.service has 40 of 64 tasks");
}

static void test_cgroup_v1(void **state) {
        struct fixture *x = *state;

        put(x, "/proc/70/cgroup", "3:cpu:/c\n2:memory:/a/b\n0::/\n");
        put(x, "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
        doctor_cgroup(&x->d);
        expect(x, NULL);
        put(x, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "17179869184\n");
        doctor_cgroup(&x->d);
        expect(x, "+ cgroup: memory is limited to 17 GB by /a (memory.limit_in_bytes)");
        quiet(x);
        put(x, "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "4294967296\n");
        put(x, "/sys/fs/cgroup/memory/a/b/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
        doctor_cgroup(&x->d);
        expect(x, "! cgroup: memory is limited to 4.3 GB by /a/b (memory.limit_in_bytes), the daemon's budget is 8.6 GB");
        expect(x, "! cgroup: the kernel ended processes of /a/b 2 times");
}

static void test_stale(void **state) {
        struct fixture *x = *state;

        x->d.answered = false;
        doctor_stale(&x->d, "/run/x/hearth.sock");
        expect(x, NULL);
        put(x, "/run/x/hearth.sock.lock", "4242\n");
        doctor_stale(&x->d, "/run/x/hearth.sock");
        expect(x, ". stale: /run/x/hearth.sock.lock is of process 4242, which ended");
        quiet(x);
        put(x, "/proc/4242/status", "");
        doctor_stale(&x->d, "/run/x/hearth.sock");
        expect(x, "! stale: process 4242 holds /run/x/hearth.sock.lock, but nobody answers");
        quiet(x);
        x->d.answered = true;
        doctor_stale(&x->d, "/run/x/hearth.sock");
        expect(x, NULL);
        put(x, "/run/x/hearth.sock.new", "");
        doctor_stale(&x->d, "/run/x/hearth.sock");
        expect(x, ". stale: /run/x/hearth.sock.new was left");
        quiet(x);
        char full[512];
        put(x, "/run/x/hearthd.log", "");
        assert_int_equal(truncate(doctor_path(&x->d, "/run/x/hearthd.log", full), 100 << 20), 0);
        doctor_stale(&x->d, "/run/x/hearth.sock");
        expect(x, ". stale: /run/x/hearthd.log has 100 MB");
}

static void test_socket_dir(void **state) {
        struct fixture *x = *state;
        char full[512];

        put(x, "/run/x/hearth.sock", "");
        x->d.euid = (uint32_t)geteuid();
        chmod(doctor_path(&x->d, "/run/x", full), 0700);
        doctor_socket_dir(&x->d, "/run/x/hearth.sock");
        expect(x, NULL);
        chmod(full, 0777);
        doctor_socket_dir(&x->d, "/run/x/hearth.sock");
        expect(x, "! socket: the directory /run/x can be written by everybody (mode 0777) | another user could");
        quiet(x);
        doctor_refused(&x->d, "/run/x/hearth.sock", false);
        expect(x, "! socket: /run/x/hearth.sock is there and is no socket | a daemon leaves it alone");
        quiet(x);
        doctor_refused(&x->d, "/run/x/nothing.sock", true);
        expect(x, "but nobody listens");
        quiet(x);
        doctor_no_permission(&x->d, "/run/x/nothing.sock");
        expect(x, "! socket: /run/x/nothing.sock: no permission for user");
        quiet(x);
        chmod(doctor_path(&x->d, "/run/x/hearth.sock", full), 0600);
        doctor_no_permission(&x->d, "/run/x/hearth.sock");
        expect(x, "it is the daemon of uid");
        if (getuid() == 0) {
                quiet(x);
                chmod(full, 0660);
                assert_int_equal(chown(full, 5, 12345), 0);
                doctor_no_permission(&x->d, "/run/x/hearth.sock");
                expect(x, "usermod -aG its group $USER, then log in again");
                quiet(x);
                chmod(doctor_path(&x->d, "/run/x", full), 0755);
                assert_int_equal(chown(full, 77, -1), 0);
                x->d.euid = 1000;
                x->d.answered = false;
                doctor_socket_dir(&x->d, "/run/x/hearth.sock");
                expect(x, "! socket: the directory /run/x belongs to uid 77");
        }
}

static void test_disk(void **state) {
        struct fixture *x = *state;
        static const char *const dirs[] = { "/models", "/none" };

        put(x, "/models/a.gguf", "");
        doctor_disk(&x->d, dirs, 2);
        expect(x, "disk: /models");
        expect(x, ". disk: model directory /none: No such file or directory | fix: mkdir -p /none");
}

static void test_memory(void **state) {
        struct fixture *x = *state;

        put(x, "/proc/meminfo", "MemTotal:        4000000 kB\nMemFree: 1 kB\n");
        put(x, "/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size advise [never] deny force\n");
        doctor_memory(&x->d);
        expect(x, "! memory: the daemon's budget is 8.6 GB, the machine has 4.1 GB");
        expect(x, ". hugepages: models' memory has small pages (shmem_enabled is never) | large models");
        quiet(x);
        put(x, "/proc/meminfo", "MemTotal:       64000000 kB\n");
        put(x, "/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always [within_size] advise never deny force\n");
        put(x, "/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
        doctor_memory(&x->d);
        expect(x, ". hugepages: the engine's work space");
        no_fault(x);
        quiet(x);
        put(x, "/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        doctor_memory(&x->d);
        expect(x, "+ hugepages");
}

static void test_sandbox(void **state) {
        struct fixture *x = *state;

        doctor_sandbox(&x->d);
        expect(x, "! sandbox: the kernel has no seccomp filters");
        quiet(x);
        put(x, "/proc/sys/kernel/seccomp/actions_avail", "kill_process kill_thread trap errno trace log allow\n");
        put(x, "/sys/kernel/security/lsm", "capability,yama,apparmor\n");
        doctor_sandbox(&x->d);
        expect(x, ". sandbox: seccomp is there, landlock is not");
        quiet(x);
        put(x, "/sys/kernel/security/lsm", "capability,landlock,yama\n");
        doctor_sandbox(&x->d);
        expect(x, "+ sandbox: seccomp and landlock are there");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_gpu, begin, end), cmocka_unit_test_setup_teardown(test_limits, begin, end),
                cmocka_unit_test_setup_teardown(test_cgroup, begin, end), cmocka_unit_test_setup_teardown(test_cgroup_v1, begin, end),
                cmocka_unit_test_setup_teardown(test_stale, begin, end),
                cmocka_unit_test_setup_teardown(test_socket_dir, begin, end), cmocka_unit_test_setup_teardown(test_disk, begin, end),
                cmocka_unit_test_setup_teardown(test_memory, begin, end), cmocka_unit_test_setup_teardown(test_sandbox, begin, end),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
