/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What each uid holds, charged where it is taken and returned where it is
 * freed. A user lives while anything refers to it.
 */

#include "base/error.h"
#include "daemon/broker/config.h"
#include "daemon/common/list.h"

struct user {
        struct list link;
        uint32_t uid;
        uint32_t refs;
        uint32_t n_connections, n_requests, n_slots;
        uint32_t n_files; /* descriptors he passed that are still open here */
        struct users *users;
        uint64_t bytes; /* request bodies and unsent replies */
        uint64_t pinned_bytes; /* of models that stay for good because of him */
};

struct users {
        struct list all; /* few: one per uid that talks to us */
        const struct config *config;
        /* How the limit of open files is shared out: see files.h. */
        uint32_t n_files, max_files, max_connections, max_model_files;
};

void users_init(struct users *us, const struct config *c);
struct user *user_get(struct users *us, uint32_t uid); /* a reference; NULL: no memory */
struct user *user_unref(struct user *u);               /* NULL */

/* quota: the message names the limit and the key that sets it. Nothing is taken on failure. */
int user_charge_connection(struct users *us, struct user *u, struct h_error *err);
int user_charge_request(struct users *us, struct user *u, size_t bytes, struct h_error *err);
int user_charge_bytes(struct users *us, struct user *u, size_t bytes, struct h_error *err);
/*
 * Descriptors are charged where they are received and follow what holds them: the connection's reader, then the
 * request's payload, the look-up of its model, the model's source. Besides the user's limit there is one for all.
 */
int user_charge_files(struct users *us, struct user *u, uint32_t n, struct h_error *err);
void user_return_files(struct user *u, uint32_t n);
int user_charge_pinned(struct users *us, struct user *u, uint64_t bytes, struct h_error *err);
bool user_may_take_slot(const struct users *us, const struct user *u);
