/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Between model.c, model_load.c and model_room.c. */

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

/* model_room.c. Nobody uses it, and it may leave. */
bool model_idle(const struct model *m);
/* Something was or will be freed, in host or in device memory: true. Nothing is disturbed in vain. */
bool model_make_room(struct server *s, const struct model *for_whom, uint64_t bytes);
bool model_make_device_room(struct server *s, const struct model *for_whom, uint64_t missing);
/*
 * Descriptors for a copy that is to be made, and for the files it is made from. Idle models leave for them, as for
 * memory. quota: what is there is in use or pinned; busy: many are just leaving.
 */
int model_make_file_room(struct server *s, const struct source *src, const char *name, struct h_error *err);
/* Adds to a refusal who has the device's memory, and who would have to go. */
void model_say_device_holders(struct server *s, const struct model *for_whom, const struct h_error *why, struct h_error *ret);
