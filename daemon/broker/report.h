/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* status, ps, models: answered from the broker's own state, whatever the worker does. */

#include "daemon/broker/session.h"

int report_status(struct session *se, struct schema_msg *m, struct frame *f, struct h_error *err);
int report_ps(struct session *se, struct schema_msg *m, struct frame *f, struct h_error *err);
int report_models(struct session *se, struct schema_msg *m, struct frame *f, struct h_error *err);
