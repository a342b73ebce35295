/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What hearthd gives up once it listens, for itself and for all that it
 * starts: new privileges (a set-user-ID program gives none), capabilities but
 * the one to lock memory (which uploads to a GPU use), and system calls that
 * nothing of it makes: tracing and reading other processes, mounts,
 * namespaces, kernel modules, sockets but local ones. Files it still opens,
 * with the rights of its user; hearth-worker it still starts.
 */

#include "base/error.h"
#include "base/sandbox.h"
#include "daemon/common/log.h"

/* Before there are threads. -EHEARTH only if 'wish' requires what this machine lacks. */
int privileges_drop(enum sandbox_wish wish, const struct log *log, struct h_error *err);
