/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * From a request's model (a name, or open files) to a struct model: the part
 * that may touch a disk runs on the thread pool. A request that ends meanwhile
 * is forgotten; the job then throws its result away.
 */

#include "daemon/broker/model.h"
#include "ipc/wire.h"

struct request;
struct resolve;

/* Takes the fds (also on failure). load: NULL, or the load request with its wishes. */
int resolve_start(struct request *rq, const char *name, const int *fds, size_t n_fds, const struct wire_load *load,
                  struct h_error *err);
/* Its model is resident, and its file may be another one now: then that is loaded; else, or if it is gone, the resident one serves. */
void resolve_resident(struct resolve *r);
void resolve_forget(struct resolve *r);
/* Is this resident model what the load request asks for? */
bool resolve_profile_matches(const struct model *m, const struct wire_load *load);
