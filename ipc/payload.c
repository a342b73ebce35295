/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/payload.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/seal.h"
#include "ipc/arena.h"
#include "ipc/check.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif

#define SEALS (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW)

int payload_make(const void *p, size_t n, int *ret_fd) {
        _cleanup_(fd_closep) int fd = memfd_create("hearth-payload", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
        int r;

        if (fd < 0 && errno == EINVAL)
                fd = memfd_create("hearth-payload", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd < 0)
                return -errno;
        for (size_t at = 0; at < n;) {
                ssize_t k = pwrite(fd, (const char *)p + at, n - at, (off_t)at);
                if (k < 0 && errno != EINTR)
                        return -errno;
                at += k > 0 ? (size_t)k : 0;
        }
        r = memfd_seal(fd, SEALS | F_SEAL_SEAL);
        if (r < 0)
                return r;
        *ret_fd = fd_steal(&fd);
        return 0;
}

int payload_check(int fd, uint64_t *ret_n, struct h_error *err) {
        int seals = fcntl(fd, F_GET_SEALS);
        struct stat st;

        if (seals < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
                return h_error_set(err, HEARTH_E_bad_request, "the payload's descriptor is no memfd; expected is one that is sealed with "
                                   "F_SEAL_WRITE, F_SEAL_SHRINK and F_SEAL_GROW");
        if ((seals & SEALS) != SEALS)
                return h_error_set(err, HEARTH_E_bad_request, "the payload's memfd is not sealed against%s%s%s: add these seals (F_ADD_SEALS) before "
                                   "it is sent", seals & F_SEAL_WRITE ? "" : " writing", seals & F_SEAL_SHRINK ? "" : " shrinking",
                                   seals & F_SEAL_GROW ? "" : " growing");
        if (st.st_size <= 0 || (uint64_t)st.st_size > PAYLOAD_MAX)
                return h_error_counts(err, st.st_size <= 0 ? HEARTH_E_bad_request : HEARTH_E_too_large, (uint64_t)st.st_size, PAYLOAD_MAX,
                                      "the payload has %lld bytes; 1 to %llu are possible", (long long)st.st_size,
                                      (unsigned long long)PAYLOAD_MAX);
        *ret_n = (uint64_t)st.st_size;
        return 0;
}

int payload_field(const struct schema *s, const struct schema_msg *m, const char *field, const struct schema_field **ret, struct h_error *err) {
        const struct schema_desc *d = &s->descs[m->type];
        const struct schema_field *f = NULL;

        for (uint32_t i = 0; i < d->n_fields && !f; i++)
                if (d->fields[i].type == TYPE_text && strcmp(d->fields[i].name, field) == 0)
                        f = &d->fields[i];
        if (!f)
                return h_error_set(err, HEARTH_E_bad_request, "payload names %s.%.64s, which is no text field", d->name, field);
        if (*(void **)((char *)m->body + f->off))
                return h_error_set(err, HEARTH_E_bad_request, "%s.%s is there and named by payload, too", d->name, field);
        if (ret)
                *ret = f;
        return 0;
}

int payload_take(const struct schema *s, struct schema_msg *m, const char *field, int fd, struct h_error *err) {
        const struct schema_field *f;
        uint64_t n;
        char *p;
        int r = payload_field(s, m, field, &f, err);

        if (r < 0)
                return r;
        r = payload_check(fd, &n, err);
        if (r < 0)
                return r;
        p = schema_arena_alloc(m->arena, (size_t)n + 1);
        if (!p)
                return -ENOMEM;
        for (uint64_t at = 0; at < n;) {
                ssize_t k = pread(fd, p + at, (size_t)(n - at), (off_t)at);
                if (k < 0 && errno == EINTR)
                        continue;
                if (k <= 0)
                        return k < 0 ? -errno : -EIO;
                at += (uint64_t)k;
        }
        r = check_text(field, p, (size_t)n, err);
        if (r < 0)
                return r;
        *(void **)((char *)m->body + f->off) = p;
        *(size_t *)((char *)m->body + f->off_n) = (size_t)n;
        if (f->off_has)
                *(bool *)((char *)m->body + f->off_has) = true;
        return 0;
}
