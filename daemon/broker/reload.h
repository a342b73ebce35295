/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * SIGHUP, systemctl reload: the configuration is made anew on the thread pool,
 * then what may change while the daemon runs changes, in one turn of the loop.
 * A file with a mistake changes nothing.
 */

#include "daemon/broker/server.h"

void reload_start(struct server *s);
