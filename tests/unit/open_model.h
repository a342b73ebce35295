/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A model from a file, for tests over the engine. */

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

#include "engine/engine.h"

struct opened {
        struct eng_device *device;
        struct eng_image *image;
        struct eng_model *model;
        int memfd;
};

static inline int open_model(const char *path, const struct eng_device_options *o, struct opened *m) {
        struct eng_image_options io = { .backend = o->backend };
        struct eng_source src = { .n_fds = 1, .name = path };
        struct h_error err = { 0 };
        uint64_t bytes;
        int fd = open(path, O_RDONLY | O_CLOEXEC), r;

        *m = (struct opened){ .memfd = memfd_create("model", MFD_CLOEXEC) };
        if (fd < 0 || m->memfd < 0)
                return -errno;
        src.fds = &fd;
        if ((r = eng_image_build(&src, &io, m->memfd, &bytes, &err)) < 0 ||
            (r = eng_image_open(m->memfd, false, &m->image, &err)) < 0 ||
            (r = eng_device_open(o, &m->device, &err)) < 0 ||
            (r = eng_model_open(m->device, m->image, &m->model, &err)) < 0)
                fprintf(stderr, "%s: %s\n", path, err.message);
        close(fd);
        return r;
}

static inline void close_model(struct opened *m) {
        eng_model_close(m->model);
        eng_image_close(m->image);
        eng_device_close(m->device);
        if (m->memfd >= 0)
                close(m->memfd);
}
