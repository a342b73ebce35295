/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Lines about requests; one for each end: what it was, how it ended, how long it took.
 * Never a word of its text: a message that repeats what the client wrote goes to
 * the client alone.
 */

#include "daemon/broker/request.h"

void request_log_end(const struct request *rq);
/* Another line about it, with HEARTH_REQUEST, HEARTH_UID, HEARTH_CLIENT. */
void request_log(const struct request *rq, enum log_level level, const char *fmt, ...) _printf_(3, 4);
