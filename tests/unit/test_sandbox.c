/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a worker can and can't do once its sandbox is closed. Each attempt is a
 * process of its own, whose exit status says how it went.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/sandbox.h"
#include "daemon/worker/sandbox.h"

enum { WENT = 100 }; /* exit status: it worked; else the errno it failed with */

struct place { int memfd, source; char path[64]; };

static int went(long r) {
        return r < 0 ? errno : WENT;
}

/* ---- attempts ---- */

static int do_open(const struct place *p) { return went(open(p->path, O_RDONLY)); }
static int do_create(const struct place *p) { return went(open("/tmp/hearth-sandbox-test", O_WRONLY | O_CREAT, 0600)); }
static int do_creat(const struct place *p) { return went(openat(AT_FDCWD, "hearth-sandbox-test", O_RDWR | O_CREAT | O_EXCL, 0600)); }
static int do_stat(const struct place *p) { return went(access(p->path, R_OK)); }
static int do_unlink(const struct place *p) { return went(unlink("/nonexistent/x")); }
static int do_socket(const struct place *p) { return went(socket(AF_UNIX, SOCK_STREAM, 0)); }
static int do_inet(const struct place *p) { return went(socket(AF_INET, SOCK_STREAM, 0)); }
static int do_exec(const struct place *p) { return went(execl("/bin/true", "true", NULL)); }
static int do_ptrace(const struct place *p) { return went(ptrace(PTRACE_TRACEME, 0, 0, 0)); }
static int do_kill(const struct place *p) { return went(kill(getppid(), 0)); }
static int do_tgkill(const struct place *p) { return went(syscall(SYS_tgkill, getppid(), getppid(), 0)); }
static int do_fork(const struct place *p) {
        pid_t pid = fork();
        if (pid == 0)
                _exit(0);
        return went(pid);
}
static int do_code(const struct place *p) {
        return mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? errno : WENT;
}
static int do_make_code(const struct place *p) {
        void *m = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return m == MAP_FAILED ? 1 : went(mprotect(m, 4096, PROT_READ | PROT_EXEC));
}
static int do_write_source(const struct place *p) { return went(pwrite(p->source, "x", 1, 0)); }
static int do_map_source(const struct place *p) {
        return mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, p->source, 0) == MAP_FAILED ? errno : WENT;
}
static int do_read_source(const struct place *p) { char c; return went(pread(p->source, &c, 1, 0)); }
static int do_fill_memfd(const struct place *p) {
        char *m;
        if (ftruncate(p->memfd, 8192) < 0 || pwrite(p->memfd, "x", 1, 8000) < 0)
                return errno;
        m = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, p->memfd, 0);
        if (m == MAP_FAILED)
                return errno;
        m[0] = 'y';
        return WENT;
}
static void *nothing(void *ud) { return ud; }
static int do_thread(const struct place *p) {
        pthread_t t;
        int r = pthread_create(&t, NULL, nothing, NULL);
        return r ? r : pthread_join(t, NULL) ? 1 : WENT;
}
static int do_memory(const struct place *p) {
        void *m = calloc(1, 64 << 20);
        memset(m, 1, 64 << 20);
        free(m);
        return WENT;
}
static int do_too_much(const struct place *p) { /* the bound below is 8 GiB more than nothing */
        return mmap(NULL, (size_t)1 << 40, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED ? errno : WENT;
}
static int do_spin(const struct place *p) {
        for (volatile bool for_ever = true; for_ever;)
                ;
        return WENT;
}
static int do_undo(const struct place *p) { return went(prctl(PR_SET_SECCOMP, 0, 0, 0, 0)); }
static int do_limits(const struct place *p) {
        struct rlimit_like { uint64_t a, b; } l = { 1, 1 };
        return went(syscall(SYS_prlimit64, 0, 7, &l, NULL));
}
static int do_abort(const struct place *p) { abort(); }
#ifdef __x86_64__
/* Leave to use AMX (kernels/cpu/detect.c), of which most machines have none: EINVAL or EOPNOTSUPP. */
static int do_ask_amx(const struct place *p) { return went(syscall(SYS_arch_prctl, 0x1023, 18)); }
#endif

/* What a process that did this in this sandbox came to: an errno, WENT, or minus the signal. */
static int attempt(enum sandbox_kind kind, int (*what)(const struct place *p)) {
        pid_t pid = fork();
        int status;

        assert_true(pid >= 0);
        if (pid == 0) {
                struct place p = { .memfd = memfd_create("copy", MFD_CLOEXEC) };
                struct sandbox_bounds b = { .memfd = p.memfd, .memory = UINT64_C(8) << 30, .cpu_seconds = 1 };
                struct log log = { .level = LOG_LEVEL_ERROR, .program = "test" };
                struct h_error err = {};
                char dir[] = "/tmp/hearth-sandbox-XXXXXX";

                p.source = mkstemp(dir); /* open for writing, as a client's descriptor may be */
                if (p.source < 0 || ftruncate(p.source, 4096) < 0)
                        _exit(99);
                unlink(dir);
                snprintf(p.path, sizeof(p.path), "/proc/self/exe");
                if (sandbox_enter(kind, SANDBOX_AUTO, &b, &log, false, &err) < 0)
                        _exit(98);
                _exit(what(&p));
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void skip_without(void) {
        if (sandbox_ruled_out() || !sandbox_has_filter()) {
                print_message("skipped: %s\n", sandbox_ruled_out() ? sandbox_ruled_out() : "this kernel has no seccomp filters");
                skip();
        }
}

static void test_allowlists(void **state) {
        static const enum sandbox_kind kinds[] = { SANDBOX_FILL, SANDBOX_INSPECT, SANDBOX_SERVE_CPU };

        skip_without();
        for (size_t i = 0; i < ELEMENTSOF(kinds); i++) {
                enum sandbox_kind k = kinds[i];
                assert_int_equal(attempt(k, do_open), EPERM);
                assert_int_equal(attempt(k, do_create), EPERM);
                assert_int_equal(attempt(k, do_stat), EPERM);
                assert_int_equal(attempt(k, do_unlink), EPERM);
                assert_int_equal(attempt(k, do_socket), EPERM);
                assert_int_equal(attempt(k, do_inet), EPERM);
                assert_int_equal(attempt(k, do_exec), -SIGSYS);
                assert_int_equal(attempt(k, do_ptrace), -SIGSYS);
                assert_int_equal(attempt(k, do_kill), EPERM);
                assert_int_equal(attempt(k, do_tgkill), EPERM);
                assert_int_equal(attempt(k, do_fork), EPERM);
                assert_int_equal(attempt(k, do_code), EPERM);
                assert_int_equal(attempt(k, do_make_code), EPERM);
                assert_int_equal(attempt(k, do_write_source), EPERM);
                assert_int_equal(attempt(k, do_undo), EPERM);
                assert_int_equal(attempt(k, do_limits), EPERM);
                /* and what it is for works */
                assert_int_equal(attempt(k, do_read_source), WENT);
                assert_int_equal(attempt(k, do_thread), WENT);
                assert_int_equal(attempt(k, do_memory), WENT);
                assert_int_equal(attempt(k, do_abort), -SIGABRT);
        }
        assert_int_equal(attempt(SANDBOX_FILL, do_fill_memfd), WENT);
        assert_int_equal(attempt(SANDBOX_FILL, do_map_source), EPERM);
        assert_int_equal(attempt(SANDBOX_SERVE_CPU, do_fill_memfd), EPERM);
}

static void test_device(void **state) {
        skip_without();
        assert_int_equal(attempt(SANDBOX_SERVE_DEVICE, do_creat), EPERM);
        assert_int_equal(attempt(SANDBOX_SERVE_DEVICE, do_socket), EPERM);
        assert_int_equal(attempt(SANDBOX_SERVE_DEVICE, do_exec), EPERM);
        assert_int_equal(attempt(SANDBOX_SERVE_DEVICE, do_ptrace), EPERM);
        assert_int_equal(attempt(SANDBOX_SERVE_DEVICE, do_kill), EPERM);
        assert_int_equal(attempt(SANDBOX_SERVE_DEVICE, do_tgkill), EPERM);
        assert_int_equal(attempt(SANDBOX_SERVE_DEVICE, do_fork), EPERM);
        assert_int_equal(attempt(SANDBOX_SERVE_DEVICE, do_thread), WENT);
        assert_int_equal(attempt(SANDBOX_SERVE_DEVICE, do_code), WENT); /* a driver may compile */
        if (sandbox_landlock_abi() > 0)
                assert_int_equal(attempt(SANDBOX_SERVE_DEVICE, do_open), EACCES);
}

/*
 * The processor beside a device is opened by the first model that needs it, in the closed sandbox: there the kernel's
 * answer is the one it gives outside. A worker of the CPU asks before and has no other use for the call.
 */
static void test_amx(void **state) {
#ifdef __x86_64__
        skip_without();
        assert_int_equal(attempt(SANDBOX_SERVE_DEVICE, do_ask_amx), do_ask_amx(NULL));
        assert_int_equal(attempt(SANDBOX_SERVE_CPU, do_ask_amx), EPERM);
#else
        skip();
#endif
}

static void test_bounds(void **state) {
        skip_without();
        assert_int_equal(attempt(SANDBOX_FILL, do_too_much), ENOMEM);
        assert_int_equal(attempt(SANDBOX_FILL, do_spin), -SIGXCPU);
}

/* Without a filter everything there would have worked: what the tests above see is the sandbox. */
static void test_without(void **state) {
        pid_t pid = fork();
        int status;

        if (pid == 0) {
                struct h_error err = {};
                struct log log = { .level = LOG_LEVEL_ERROR, .program = "test" };
                if (sandbox_enter(SANDBOX_FILL, SANDBOX_OFF, &(struct sandbox_bounds){ .memfd = -1 }, &log, false, &err) < 0)
                        _exit(1);
                _exit(socket(AF_UNIX, SOCK_STREAM, 0) < 0 || open("/proc/self/exe", O_RDONLY) < 0 || kill(getppid(), 0) < 0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_allowlists), cmocka_unit_test(test_device), cmocka_unit_test(test_amx), cmocka_unit_test(test_bounds),
                cmocka_unit_test(test_without),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
