/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/sockpath.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

/* 0, -ENOENT, or -EHEARTH if the directory is not ours alone. lstat: a link could lead anywhere. */
static int check_dir(const char *dir, bool must_be_private, struct h_error *err) {
        struct stat st;

        if (lstat(dir, &st) < 0)
                return errno == ENOENT || errno == ENOTDIR ? -ENOENT : h_error_from_errno(err, -errno, dir);
        if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid())
                return h_error_set(err, HEARTH_E_permission, "%s is not a directory of user %u; remove it, or set HEARTH_SOCKET",
                                   dir, (unsigned)geteuid());
        if (must_be_private && (st.st_mode & 077))
                return h_error_set(err, HEARTH_E_permission, "%s is open to other users (mode %03o); run: chmod 700 %s", dir,
                                   (unsigned)(st.st_mode & 0777), dir);
        return 0;
}

int sockpath_user(const char *xdg_runtime_dir, enum sockpath_mode mode, char **ret, struct h_error *err) {
        unsigned uid = (unsigned)geteuid();
        bool in_tmp = false;
        char dir[400], path[480];
        struct stat st;
        int r;

        if (xdg_runtime_dir && xdg_runtime_dir[0] == '/') {
                if (strlen(xdg_runtime_dir) > 300)
                        return h_error_set(err, HEARTH_E_bad_request, "XDG_RUNTIME_DIR is too long for a socket's path");
                snprintf(dir, sizeof(dir), "%s/hearth", xdg_runtime_dir);
        } else {
                snprintf(dir, sizeof(dir), "/run/user/%u", uid);
                if (lstat(dir, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == uid)
                        snprintf(dir, sizeof(dir), "/run/user/%u/hearth", uid);
                else {
                        snprintf(dir, sizeof(dir), "/tmp/hearth-%u", uid);
                        in_tmp = true;
                }
        }
        if (mode == SOCKPATH_CREATE_DIR && mkdir(dir, 0700) < 0 && errno != EEXIST)
                return h_error_from_errno(err, -errno, dir);
        if (in_tmp || mode == SOCKPATH_CREATE_DIR) {
                r = check_dir(dir, in_tmp, err);
                if (r < 0 && r != -ENOENT)
                        return r;
        }
        snprintf(path, sizeof(path), "%s/hearth.sock", dir);
        *ret = h_strdup(path);
        return *ret ? 0 : -ENOMEM;
}
