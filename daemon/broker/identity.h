/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What, besides the request, the bits of an answer are a function of: the
 * worker's build and instruction set or device, the model's content, the load
 * profile. Given to clients as a string, which they bring back when they resume.
 */

#include "daemon/broker/model.h"

#define IDENTITY_MAX 256

enum identity_diff { IDENTITY_SAME, IDENTITY_CHANGED, IDENTITY_OTHER_MODEL };

/* Of a model that is open in the worker. */
void identity_of(const struct model *m, char out[IDENTITY_MAX]);
/* Compares two; 'before' may be anything. ret_what: which parts changed, for a sentence. */
enum identity_diff identity_compare(const char *before, const char *now, char ret_what[96]);
