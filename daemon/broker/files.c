/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/files.h"

#include <errno.h>
#include <sys/resource.h>

#include "daemon/broker/user.h"
#include "ipc/wire.h"

enum {
        /* The loop's own, the worker, the channels of fills, the log, refused connections that are still open; and some models. */
        FILES_RESERVE = 96,
        FILES_MODELS = 48, /* of these, theirs */
        FILES_NEEDED = 192,
        FILES_MOST = 1 << 20, /* a limit without end is no reason to count to it */
};

int files_share(uint64_t limit, struct files_share *ret, struct h_error *err) {
        uint32_t n = (uint32_t)MIN(limit, (uint64_t)FILES_MOST), room, more;

        if (n < FILES_NEEDED)
                return h_error_counts(err, HEARTH_E_quota, FILES_NEEDED, n,
                                      "the limit of open files is %u, at least %u are needed to serve; raise it (LimitNOFILE= in the unit, or "
                                      "ulimit -Hn)", n, (uint32_t)FILES_NEEDED);
        /* And for one message's descriptors between their arrival and their being counted, or on their way to a fill. */
        room = n - FILES_RESERVE - MIN(n / 8, WIRE_MAX_FDS);
        more = (n - FILES_NEEDED) / 4;
        *ret = (struct files_share){ .passed = room / 4, .models = FILES_MODELS + more, .connections = room - room / 4 - more };
        return 0;
}

int files_raise(struct users *us, struct h_error *err) {
        struct files_share share = {};
        struct rlimit l;
        int r;

        if (getrlimit(RLIMIT_NOFILE, &l) < 0)
                return h_error_from_errno(err, -errno, "reading the limit of open files");
        if (l.rlim_cur < l.rlim_max && l.rlim_cur < FILES_MOST) {
                rlim_t before = l.rlim_cur;

                l.rlim_cur = MIN(l.rlim_max, (rlim_t)FILES_MOST);
                if (setrlimit(RLIMIT_NOFILE, &l) < 0)
                        l.rlim_cur = before;
        }
        r = files_share(l.rlim_cur, &share, err);
        if (r < 0)
                return r;
        us->max_files = share.passed;
        us->max_connections = share.connections;
        us->max_model_files = share.models;
        return 0;
}
