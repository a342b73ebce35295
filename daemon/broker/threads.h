/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <uv.h>

#include "base/error.h"

/*
 * Starts the pool in which files are opened and directories read. libuv makes its
 * threads with the first work and ends the process where it can't (a limit of
 * tasks or of memory): better at the start, with a reason, than under the first
 * client.
 */
int threads_start(uv_loop_t *loop, struct h_error *err);
