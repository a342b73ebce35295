/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The process's limit of open files, shared out at the start: a reserve for
 * accepting, starting workers and copies of models, which clients can't take;
 * of the rest a quarter for descriptors that clients pass with messages, three
 * quarters for connections. Both are bounds for all users together, under
 * those of hearth.conf.
 */

#include "base/error.h"

struct users;

struct files_share { uint32_t passed, connections; };

/* For a limit of so many; quota, with needed and found, if that is too few to serve with. */
int files_share(uint64_t limit, struct files_share *ret, struct h_error *err);
/* Raises the soft limit to the hard one and shares it out. */
int files_raise(struct users *us, struct h_error *err);
