/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests, preloaded into the fill process: a disk that fails (reads past the
 * offset in TEST_EIO_AT give EIO), and a file that grows while it is read (the
 * first read appends to the one named in TEST_GROW), and one that never answers
 * (TEST_HANG).
 */
#undef _FORTIFY_SOURCE /* its inline pread() is not the one defined here */
#undef _FILE_OFFSET_BITS /* both names are wanted, not one renamed to the other */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/*
 * The fill process can't open or write a file: a second process, made before it
 * gives that up, does it when it is told to.
 */
enum { WAIT, GROW, GROWN };
static atomic_int *grow;

static void grow_when_told(const char *path) {
        static const char zeros[32];
        pid_t parent = getppid();
        int w;

        for (int fd = 3; fd < 16; fd++)
                close(fd);
        while (atomic_load(grow) != GROW) {
                nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
                if (getppid() != parent)
                        _exit(0);
        }
        w = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
        if (w < 0 || write(w, zeros, sizeof(zeros)) < 0)
                abort();
        atomic_store(grow, GROWN);
        _exit(0);
}

__attribute__((constructor)) static void begin(int argc, char **argv) {
        const char *path = getenv("TEST_GROW");

        if (!path || argc < 2 || strcmp(argv[1], "--fill") != 0)
                return;
        grow = mmap(NULL, sizeof(*grow), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (grow == MAP_FAILED)
                abort();
        if (fork() == 0)
                grow_when_told(path);
}

static ssize_t read_at(int fd, void *buf, size_t n, off_t off) {
        const char *at = getenv("TEST_EIO_AT");

        if (grow && atomic_load(grow) == WAIT) {
                atomic_store(grow, GROW);
                while (atomic_load(grow) != GROWN)
                        sched_yield();
        }
        if (getenv("TEST_HANG"))
                poll(NULL, 0, -1);
        if (at && off + (off_t)n > atoll(at)) {
                errno = EIO;
                return -1;
        }
        return (ssize_t)syscall(SYS_pread64, fd, buf, n, off);
}

__attribute__((visibility("default"))) ssize_t pread(int fd, void *buf, size_t n, off_t off) {
        return read_at(fd, buf, n, off);
}

__attribute__((visibility("default"))) ssize_t pread64(int fd, void *buf, size_t n, off64_t off) {
        return read_at(fd, buf, n, off);
}
