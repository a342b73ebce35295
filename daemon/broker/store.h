/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The model cache outlives the daemon: each sealed copy is handed to systemd's
 * fd store as soon as it is there, with a small memory file that says what the
 * copies are and which files they were made of. A daemon that is started again
 * gets them back and reads no model file. Without systemd nothing happens here.
 */

#include "daemon/broker/cache.h"

struct server;

#define STORE_PREFIX "hearth-"

void store_put(struct server *s, const struct content *c);
void store_remove(struct server *s, const struct content *c);
/* Says anew what is stored; after put, remove, and new knowledge about files. */
void store_describe(struct server *s);
/* Descriptors that the service manager gave back, with their names (taken). What can't be trusted is given up, and it is said. */
void store_restore(struct server *s, const int *fds, char *const *names, size_t n);
