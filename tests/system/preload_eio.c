/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For a test: a disk that fails. Reads of regular files at or after the offset
 * in TEST_EIO_AT give EIO. Preloaded into the fill process.
 */
#undef _FILE_OFFSET_BITS /* both names are wanted, not one renamed to the other */
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static ssize_t read_at(int fd, void *buf, size_t n, off_t off) {
        const char *at = getenv("TEST_EIO_AT");

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
