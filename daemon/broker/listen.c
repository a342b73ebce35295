/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/listen.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <systemd/sd-daemon.h>

#include "base/alloc.h"

#define BACKLOG 512
#define FRESH ".new" /* the name under which a socket is made, before it takes its place */

static int fail(struct h_error *err, int e, const char *doing, const char *path) {
        return h_error_set(err, e == EACCES || e == EPERM || e == EROFS ? HEARTH_E_permission : HEARTH_E_io,
                           "%s %s: %s", doing, path, strerror(e));
}

/*
 * The directory the socket lies in. Created if missing; an existing one must
 * belong to us (or root) and not be writable for others, or somebody else could
 * put his own socket in its place.
 */
static int check_dir(const char *path, bool shared, struct h_error *err) {
        _cleanup_(freep) char *dir = h_strdup(path);
        char *slash;
        struct stat st;

        if (!dir)
                return -ENOMEM;
        slash = strrchr(dir, '/');
        if (!slash || slash == dir)
                return h_error_set(err, HEARTH_E_bad_request, "socket path %s is not an absolute path in a directory",
                                   path);
        *slash = 0;
        if (mkdir(dir, shared ? 0755 : 0700) < 0 && errno != EEXIST)
                return fail(err, errno, "creating the socket's directory", dir);
        if (stat(dir, &st) < 0)
                return fail(err, errno, "looking at the socket's directory", dir);
        if (!S_ISDIR(st.st_mode))
                return fail(err, ENOTDIR, "looking at the socket's directory", dir);
        if (st.st_uid != geteuid() && st.st_uid != 0)
                return h_error_set(err, HEARTH_E_permission,
                                   "the socket's directory %s belongs to uid %u, not to this user (uid %u)", dir,
                                   (unsigned)st.st_uid, (unsigned)geteuid());
        if ((st.st_mode & 0002) || (!shared && (st.st_mode & 0020) && st.st_gid != getegid()))
                return h_error_set(err, HEARTH_E_permission,
                                   "the socket's directory %s may be written by others (mode %04o); expected 0700", dir,
                                   (unsigned)(st.st_mode & 07777));
        return 0;
}

static int address(const char *path, struct sockaddr_un *ret, struct h_error *err) {
        *ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
        if (strlen(path) >= sizeof(ret->sun_path))
                return h_error_set(err, HEARTH_E_bad_request, "socket path %.120s is too long: %zu bytes are possible", path,
                                   sizeof(ret->sun_path) - 1 - strlen(FRESH));
        strcpy(ret->sun_path, path);
        return 0;
}

/* Called with the lock held. 0: nothing there or stale (removed). */
static int clear_stale(const char *path, struct h_error *err) {
        _cleanup_(fd_closep) int fd = -1;
        struct sockaddr_un sa;
        struct stat st;
        int r;

        if (lstat(path, &st) < 0)
                return errno == ENOENT ? 0 : fail(err, errno, "looking at", path);
        if (!S_ISSOCK(st.st_mode))
                return h_error_set(err, HEARTH_E_io, "%s exists and is not a socket; it is left alone", path);
        r = address(path, &sa, err);
        if (r < 0)
                return r;
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return fail(err, errno, "creating a socket for", path);
        if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0 || errno == EAGAIN || errno == EINPROGRESS)
                return h_error_set(err, HEARTH_E_busy,
                                   "a daemon already serves %s (it holds no lock file: perhaps systemd's socket unit); "
                                   "stop it, or choose another path with --socket",
                                   path);
        if (errno != ECONNREFUSED)
                return fail(err, errno, "trying", path);
        if (unlink(path) < 0 && errno != ENOENT)
                return fail(err, errno, "removing the stale socket", path);
        return 0;
}

static int take_lock(const char *path, int *ret_fd, struct h_error *err) {
        _cleanup_(freep) char *lock = NULL;
        _cleanup_(fd_closep) int fd = -1;
        char pid[32] = "";

        if (asprintf(&lock, "%s.lock", path) < 0) {
                lock = NULL;
                return -ENOMEM;
        }
        fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
                return fail(err, errno, "opening the lock file", lock);
        if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
                if (errno != EWOULDBLOCK)
                        return fail(err, errno, "locking", lock);
                if (pread(fd, pid, sizeof(pid) - 1, 0) < 0)
                        pid[0] = 0;
                pid[strcspn(pid, "\n")] = 0;
                return h_error_set(err, HEARTH_E_busy,
                                   "a daemon already serves %s (pid %s); stop it, or choose another path with --socket",
                                   path, pid[0] ? pid : "unknown");
        }
        if (ftruncate(fd, 0) < 0 || dprintf(fd, "%ld\n", (long)getpid()) < 0)
                return fail(err, errno, "writing", lock);
        *ret_fd = fd_steal(&fd);
        return 0;
}

/* A socket that listens at path, which is free. */
static int make(const char *path, bool shared, int *ret_fd, struct stat *ret_st, struct h_error *err) {
        _cleanup_(fd_closep) int fd = -1;
        _cleanup_(freep) char *fresh = NULL;
        struct sockaddr_un sa;
        struct stat st;
        mode_t mask;
        int r;

        if (asprintf(&fresh, "%s" FRESH, path) < 0) {
                fresh = NULL;
                return -ENOMEM;
        }
        r = address(fresh, &sa, err);
        if (r < 0)
                return r;
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return fail(err, errno, "creating a socket for", path);
        (void)unlink(fresh);
        /* The file is born with its final mode; no other thread of this process makes files. */
        mask = umask(shared ? 0117 : 0177);
        r = bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 ? errno : 0;
        umask(mask);
        if (r)
                return fail(err, r, "binding", path);
        /* Listening before it appears under its name: no client meets a socket that refuses. */
        if (listen(fd, BACKLOG) < 0 || stat(fresh, &st) < 0 || rename(fresh, path) < 0) {
                r = errno;
                (void)unlink(fresh);
                return fail(err, r, "listening on", path);
        }
        *ret_fd = fd_steal(&fd);
        *ret_st = st;
        return 0;
}

int listener_bind(const char *path, bool shared, struct listener *ret, struct h_error *err) {
        _cleanup_(fd_closep) int lock_fd = -1;
        _cleanup_(freep) char *fresh = NULL, *copy = NULL;
        struct sockaddr_un sa;
        struct stat st;
        int fd, r;

        if (asprintf(&fresh, "%s" FRESH, path) < 0) {
                fresh = NULL;
                return -ENOMEM;
        }
        copy = h_strdup(path);
        if (!copy)
                return -ENOMEM;
        r = address(fresh, &sa, err); /* too long is said before anything is made */
        if (r < 0)
                return r;
        r = check_dir(path, shared, err);
        if (r < 0)
                return r;
        r = take_lock(path, &lock_fd, err);
        if (r < 0)
                return r;
        r = clear_stale(path, err);
        if (r < 0)
                return r;
        r = make(path, shared, &fd, &st, err);
        if (r < 0)
                return r;
        *ret = (struct listener){
                .fd = fd, .lock_fd = fd_steal(&lock_fd), .shared = shared, .path = ptr_steal(&copy),
                .dev = st.st_dev, .ino = st.st_ino,
        };
        return 0;
}

bool listener_is_there(const struct listener *l) {
        struct stat st;

        return l->activated || !l->path || (lstat(l->path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino);
}

/* The lock file may have gone with the socket: a lock on a file without a name keeps nobody out. */
static bool lock_is_there(const struct listener *l) {
        _cleanup_(freep) char *lock = NULL;
        struct stat ours, st;

        if (asprintf(&lock, "%s.lock", l->path) < 0) {
                lock = NULL;
                return false;
        }
        return fstat(l->lock_fd, &ours) == 0 && lstat(lock, &st) == 0 && st.st_dev == ours.st_dev && st.st_ino == ours.st_ino;
}

int listener_restore(struct listener *l, struct h_error *err) {
        _cleanup_(fd_closep) int fd = -1, lock_fd = -1;
        struct stat st;
        int r;

        if (listener_is_there(l))
                return 0;
        r = check_dir(l->path, l->shared, err);
        if (r == 0 && !lock_is_there(l))
                r = take_lock(l->path, &lock_fd, err);
        if (r == 0 && lstat(l->path, &st) == 0)
                r = h_error_set(err, HEARTH_E_busy, "something else lies at %s, where this daemon's socket was; it is left alone", l->path);
        if (r == 0)
                r = make(l->path, l->shared, &fd, &st, err);
        if (r < 0)
                return r;
        if (dup3(fd, l->fd, O_CLOEXEC) < 0) {
                r = errno;
                (void)unlink(l->path);
                return fail(err, r, "listening on", l->path);
        }
        if (lock_fd >= 0) {
                fd_close(l->lock_fd);
                l->lock_fd = fd_steal(&lock_fd);
        }
        l->dev = st.st_dev;
        l->ino = st.st_ino;
        return 1;
}

int listener_adopt(int fd, struct listener *ret, struct h_error *err) {
        struct sockaddr_un sa = {};
        socklen_t n = sizeof(sa);
        char *path = NULL;
        int flags;

        if (sd_is_socket_unix(fd, SOCK_STREAM, 1, NULL, 0) <= 0)
                return h_error_set(err, HEARTH_E_bad_request,
                                   "fd %d from the service manager is no listening Unix stream socket "
                                   "(expected ListenStream=/path in the socket unit)", fd);
        flags = fcntl(fd, F_GETFL);
        if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
                return fail(err, errno, "preparing", "the service manager's socket");
        if (getsockname(fd, (struct sockaddr *)&sa, &n) == 0 && n > offsetof(struct sockaddr_un, sun_path) &&
            sa.sun_path[0]) {
                path = h_strdup(sa.sun_path);
                if (!path)
                        return -ENOMEM;
        }
        *ret = (struct listener){ .fd = fd, .lock_fd = -1, .activated = true, .path = path };
        return 0;
}

void listener_close(struct listener *l) {
        struct stat st;

        /* Only the file that we made, and while the lock still keeps a successor out. */
        if (!l->activated && l->path && lstat(l->path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino)
                (void)unlink(l->path);
        l->fd = fd_close(l->fd);
        l->lock_fd = fd_close(l->lock_fd);
        free(l->path);
        l->path = NULL;
}
