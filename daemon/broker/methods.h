/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What a client may ask. Each method is a row of one table in methods.c. */

#include "daemon/broker/session.h"

/*
 * Serves a message. -EHEARTH with err (or a negative errno): the caller answers
 * with it; protocol, and anything before hello: it also hangs up.
 */
int methods_dispatch(struct session *se, struct schema_msg *m, struct frame *f, struct h_error *err);
