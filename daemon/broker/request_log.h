/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One line for each request's end: what it was, how it ended, how long it took.
 * Never a word of its text: a message that repeats what the client wrote goes to
 * the client alone.
 */

#include "daemon/broker/request.h"

void request_log_end(const struct request *rq);
