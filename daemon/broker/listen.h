/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The listening socket: taken from systemd, or bound here. A bound socket has
 * its final permissions from the first moment (umask at bind, then listen, then
 * rename into place), lives in a directory only its owner can write, and
 * replaces a stale one only while a lock file is held.
 */

#include "base/error.h"

struct listener {
        int fd;
        int lock_fd;        /* held while we serve; -1 with socket activation */
        bool shared;        /* as given to listener_bind() */
        bool activated;     /* systemd owns the path: never unlink */
        char *path;         /* NULL if activated and unknown */
        uint64_t dev, ino;  /* of the socket file we made */
};

/*
 * Binds 'path'. 'shared': others of the socket's group may connect (0660, for
 * the system's daemon); otherwise only this user (0600, in a 0700 directory).
 * busy: a live daemon serves there. permission, io: the message names the path.
 */
int listener_bind(const char *path, bool shared, struct listener *ret, struct h_error *err);
/*
 * Is the socket file still there? 0: yes, or it is not ours. 1: it was gone and is made again: l->fd is the new
 * socket under the old number (the caller stops polling before; connections in the old one's backlog end). busy:
 * something else has its place, or its lock; it is left alone. permission, io: it can't be made.
 */
int listener_restore(struct listener *l, struct h_error *err);
/* Whether listener_restore() would do anything. */
bool listener_is_there(const struct listener *l);
/* Takes an fd from systemd; checks that it is a listening Unix stream socket. Owns fd on success. */
int listener_adopt(int fd, struct listener *ret, struct h_error *err);
void listener_close(struct listener *l);
