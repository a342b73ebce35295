/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "base/error.h"

/*
 * Where a daemon of this user listens (shared by client and daemon):
 *   $XDG_RUNTIME_DIR/hearth/hearth.sock, else /run/user/UID/hearth/hearth.sock if
 *   /run/user/UID is there and ours, else /tmp/hearth-UID/hearth.sock.
 * In /tmp anyone may have made the directory first, so its owner and mode are
 * checked: -EHEARTH permission names it. 'xdg_runtime_dir' is that variable's
 * value or NULL; a relative or empty one counts as unset, as its specification asks.
 */
enum sockpath_mode { SOCKPATH_LOOK, SOCKPATH_CREATE_DIR };
int sockpath_user(const char *xdg_runtime_dir, enum sockpath_mode mode, char **ret, struct h_error *err);

#define SOCKPATH_SYSTEM "/run/hearth/hearth.sock"
