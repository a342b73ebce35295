/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The process's limit of open files, shared out at the start: a reserve for
 * accepting and starting workers, which clients can't take, nor models; a
 * quarter for the memory files of models and the parts of those that are read,
 * a quarter for descriptors that clients pass with messages, the rest for
 * connections. All are bounds for all users together, under those of hearth.conf.
 */

#include "base/error.h"

struct users;

struct files_share { uint32_t passed, models, connections; };

/* For a limit of so many; quota, with needed and found, if that is too few to serve with. */
int files_share(uint64_t limit, struct files_share *ret, struct h_error *err);
/* Raises the soft limit to the hard one and shares it out. */
int files_raise(struct users *us, struct h_error *err);
