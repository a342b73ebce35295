/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a device's profile lies, and using it. A profile only sharpens what is
 * expected of a model: one that is missing, broken or stale never stops a worker.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "daemon/worker/worker.h"
#include "engine/calibrate.h"

int worker_profile_path(const char *dir, bool cuda, char **ret) {
        return asprintf(ret, "%s/card-profile-%s.json", dir, cuda ? "cuda" : "cpu") < 0 ? -ENOMEM : 0;
}

/* 0: *ret is filled; -ENOENT: there is none. */
static int load(const char *path, struct profile *ret, struct h_error *err) {
        _cleanup_(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        _cleanup_(buf_free) struct buf text = {};
        struct stat st;
        int r;

        if (fd < 0 && errno == ENOENT)
                return -ENOENT;
        if (fd < 0 || fstat(fd, &st) < 0)
                return h_error_set(err, HEARTH_E_io, "card profile %s: %s", path, strerror(errno));
        if (!S_ISREG(st.st_mode))
                return h_error_set(err, HEARTH_E_io, "card profile %s is no regular file", path);
        r = buf_read_fd(&text, fd, PROFILE_MAX_BYTES + 1);
        if (r == -ENOMEM)
                return h_error_from_errno(err, r, "reading the card profile");
        if (r < 0)
                return h_error_set(err, HEARTH_E_io, "card profile %s: %s", path, strerror(-r));
        return profile_parse(text.data ? text.data : "", text.len, path, ret, err);
}

void worker_use_profile(const struct log *log, struct eng_device *d, const char *dir, bool cuda) {
        _cleanup_(freep) struct profile *p = h_new0(struct profile, 1);
        _cleanup_(freep) char *path = NULL;
        struct h_error err = {};
        int r = p ? worker_profile_path(dir, cuda, &path) : -ENOMEM;

        if (r == 0)
                r = load(path, p, &err);
        if (r == -ENOENT)
                return;
        if (r == 0)
                r = eng_device_use_profile(d, p, path, &err);
        if (r < 0) {
                h_error_from_errno(&err, r, "reading the card profile");
                log_warning(log, "%s", err.message);
                return;
        }
        log_info(log, "card profile %s holds for this device", path);
}
