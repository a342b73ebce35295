/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests, preloaded into hearth-worker: its end at a chosen moment, by taking
 * memory until the kernel ends it, or (TEST_END_BY=signal) by a signal. When: one
 * that serves gets SIGUSR1; one that serves maps a model whose copy has this size
 * (TEST_END_AT_OPEN), perhaps only beside another one (TEST_END_BESIDE), or only so
 * often (TEST_END_TIMES; the size of the file TEST_END_COUNT counts); one that
 * reads a model begins (TEST_END_FILL). Nothing of it needs what the sandbox takes
 * away.
 */
#undef _FILE_OFFSET_BITS /* both names are wanted, not one renamed to the other */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static long long at_open = -1, times = -1;
static int by_signal, beside, others, count = -1;

static void *map(void *at, size_t n, int prot, int flags, int fd, off_t off) {
        return (void *)syscall(SYS_mmap, at, n, prot, flags, fd, off);
}

static void end(int sig) {
        enum { PIECE = 8 << 20 };

        while (by_signal)
                syscall(SYS_tgkill, getpid(), getpid(), SIGKILL);
        for (;;) {
                void *p = map(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                if (p != MAP_FAILED)
                        memset(p, 1, PIECE);
        }
}

__attribute__((constructor)) static void begin(int argc, char **argv) {
        const char *how = getenv("TEST_END_BY"), *size = getenv("TEST_END_AT_OPEN");

        by_signal = how && strcmp(how, "signal") == 0;
        if (argc > 1 && strcmp(argv[1], "--serve") == 0) {
                signal(SIGUSR1, end);
                if (size)
                        at_open = atoll(size);
                beside = getenv("TEST_END_BESIDE") != NULL;
                if (getenv("TEST_END_TIMES")) {
                        times = atoll(getenv("TEST_END_TIMES"));
                        count = open(getenv("TEST_END_COUNT"), O_RDWR | O_APPEND | O_CLOEXEC);
                        if (count < 0)
                                abort();
                }
        }
        if (argc > 1 && strcmp(argv[1], "--fill") == 0 && getenv("TEST_END_FILL")) {
                int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

                if (write(fd, "500", 3) != 3) /* as the process does for itself a little later */
                        abort();
                end(0);
        }
}

static void look(int fd) {
        struct stat st;

        if (at_open < 0 || fd < 0 || fstat(fd, &st) < 0)
                return;
        if (st.st_size != at_open) {
                others++;
                return;
        }
        if (beside && !others)
                return;
        if (count >= 0 && (fstat(count, &st) < 0 || st.st_size >= times || write(count, ".", 1) != 1))
                return;
        end(0);
}

__attribute__((visibility("default"))) void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t off) {
        look(fd);
        return map(at, n, prot, flags, fd, off);
}

__attribute__((visibility("default"))) void *mmap64(void *at, size_t n, int prot, int flags, int fd, off64_t off) {
        look(fd);
        return map(at, n, prot, flags, fd, off);
}
