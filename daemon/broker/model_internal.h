/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Between model.c and model_load.c. */

#include "daemon/broker/model.h"

int model_add_name(struct model *m, const char *text, bool everybody, uint32_t uid);
void model_claim_names(struct model *m);
void model_drop_names(struct model *m);
/* Who names these files now may wait for a load that these names began, and read its messages. */
bool model_may_join(const struct model *m, bool everybody, uint32_t uid);
/* Its names go; it closes as soon as it has no requests, which are ended. */
void model_unload(struct model *m);
/* The cache's note of how it is open, for the daemon after this one. */
void model_note_use(struct model *m);
