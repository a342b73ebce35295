/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests, preloaded into the fill process: a disk that fails (reads past the
 * offset in TEST_EIO_AT give EIO), and a file that grows while it is read (the
 * first read appends to the one named in TEST_GROW), and one that never answers
 * (TEST_HANG).
 */
#undef _FILE_OFFSET_BITS /* both names are wanted, not one renamed to the other */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static ssize_t read_at(int fd, void *buf, size_t n, off_t off) {
        const char *at = getenv("TEST_EIO_AT"), *grow = getenv("TEST_GROW");

        if (grow) {
                int w = open(grow, O_WRONLY | O_APPEND | O_CLOEXEC);
                static const char zeros[32];

                if (w < 0 || write(w, zeros, sizeof(zeros)) < 0)
                        abort();
                close(w);
                unsetenv("TEST_GROW");
        }
        if (getenv("TEST_HANG"))
                pause();
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
