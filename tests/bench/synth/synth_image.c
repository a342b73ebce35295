/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/synth/synth_image.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tests/bench/synth/synth.h"

/* An empty file of the right size, whose bytes are made when they are read. */
static ssize_t synth_pread(void *ud, int fd, void *buf, size_t n, uint64_t off) { return synth_read(ud, buf, n, off); }

int synth_image(const char *path, const struct eng_image_options *io, int *ret_memfd, struct eng_image **ret, struct h_error *err) {
        struct eng_source src = { .n_fds = 1, .name = path, .pread = synth_pread, .parallel = true };
        struct synth *s = NULL;
        uint64_t bytes;
        char why[256];
        int fd, r = synth_open(path + strlen(SYNTH_PREFIX), &s, why);

        *ret_memfd = -1;
        if (r < 0)
                return r == -ENOMEM ? h_error_from_errno(err, r, path) : h_error_set(err, HEARTH_E_model_not_found, "%s", why);
        fd = memfd_create("synth", MFD_CLOEXEC);
        src.fds = &fd;
        src.ud = s;
        *ret_memfd = memfd_create("model", MFD_CLOEXEC);
        if (fd < 0 || *ret_memfd < 0 || ftruncate(fd, (off_t)synth_facts(s)->file) < 0)
                r = h_error_from_errno(err, -errno, "memfd_create");
        else
                r = eng_image_build(&src, io, *ret_memfd, &bytes, err);
        fd_close(fd);
        synth_close(s);
        return r < 0 ? r : eng_image_open(*ret_memfd, false, ret, err);
}
