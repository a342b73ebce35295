/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/user.h"

#include "base/alloc.h"

void users_init(struct users *us, const struct config *c) {
        list_init(&us->all);
        us->config = c;
        us->n_files = 0;
        us->max_files = us->max_connections = us->max_model_files = UINT32_MAX; /* until files_share() */
}

struct user *user_get(struct users *us, uint32_t uid) {
        struct user *u;

        list_foreach(i, &us->all, struct user, link)
                if (i->uid == uid) {
                        i->refs++;
                        return i;
                }
        u = h_new0(struct user, 1);
        if (!u)
                return NULL;
        u->uid = uid;
        u->refs = 1;
        u->users = us;
        list_append(&us->all, &u->link);
        return u;
}

struct user *user_unref(struct user *u) {
        if (u && --u->refs == 0) {
                list_remove(&u->link);
                free(u);
        }
        return NULL;
}

int user_charge_connection(struct users *us, struct user *u, struct h_error *err) {
        if (u->n_connections >= us->config->max_connections_per_uid)
                return h_error_counts(err, HEARTH_E_quota, (uint64_t)u->n_connections + 1,
                                      us->config->max_connections_per_uid,
                                      "uid %u has %u connections open, its limit (connections_per_user in hearth.conf); "
                                      "close some", u->uid, u->n_connections);
        u->n_connections++;
        return 0;
}

int user_charge_bytes(struct users *us, struct user *u, size_t bytes, struct h_error *err) {
        uint64_t max = us->config->max_bytes_per_uid, sum;

        if (__builtin_add_overflow(u->bytes, (uint64_t)bytes, &sum) || (max && sum > max))
                return h_error_counts(err, HEARTH_E_quota, u->bytes + bytes, max,
                                      "uid %u holds %llu bytes of requests and unread replies, %zu more pass its limit of "
                                      "%llu (bytes_per_user in hearth.conf); read or cancel some first", u->uid,
                                      (unsigned long long)u->bytes, bytes, (unsigned long long)max);
        u->bytes = sum;
        return 0;
}

int user_charge_request(struct users *us, struct user *u, size_t bytes, struct h_error *err) {
        int r;

        if (u->n_requests >= us->config->max_requests_per_uid)
                return h_error_counts(err, HEARTH_E_quota, (uint64_t)u->n_requests + 1, us->config->max_requests_per_uid,
                                      "uid %u has %u requests running or waiting, its limit (requests_per_user in "
                                      "hearth.conf); wait for some to end", u->uid, u->n_requests);
        r = user_charge_bytes(us, u, bytes, err);
        if (r < 0)
                return r;
        u->n_requests++;
        return 0;
}

int user_charge_files(struct users *us, struct user *u, uint32_t n, struct h_error *err) {
        uint32_t max = us->config->max_files_per_uid;

        if (n > max || u->n_files > max - n)
                return h_error_counts(err, HEARTH_E_quota, (uint64_t)u->n_files + n, max,
                                      "uid %u passed %u open files that are still held, %u more pass its limit of %u (files_per_user in "
                                      "hearth.conf); send whole messages, and wait for some to be taken", u->uid, u->n_files, n, max);
        if (n > us->max_files || us->n_files > us->max_files - n)
                return h_error_counts(err, HEARTH_E_busy, (uint64_t)us->n_files + n, us->max_files,
                                      "the daemon holds %u open files passed by clients, %u more pass the %u that its limit of open files "
                                      "leaves for them; try again later", us->n_files, n, us->max_files);
        u->n_files += n;
        us->n_files += n;
        return 0;
}

void user_return_files(struct user *u, uint32_t n) {
        u->n_files -= n;
        u->users->n_files -= n;
}

int user_charge_pinned(struct users *us, struct user *u, uint64_t bytes, struct h_error *err) {
        uint64_t max = us->config->max_pinned_per_uid, sum;

        if (__builtin_add_overflow(u->pinned_bytes, bytes, &sum) || (max && sum > max))
                return h_error_counts(err, HEARTH_E_quota, bytes, max > u->pinned_bytes ? max - u->pinned_bytes : 0,
                                      "uid %u keeps %llu bytes for good, %llu more pass its limit of %llu (pinned_per_user in "
                                      "hearth.conf); load it without --pin, or unload another", u->uid,
                                      (unsigned long long)u->pinned_bytes, (unsigned long long)bytes, (unsigned long long)max);
        u->pinned_bytes = sum;
        return 0;
}

bool user_may_take_slot(const struct users *us, const struct user *u) {
        return us->config->max_slots_per_uid == 0 || u->n_slots < us->config->max_slots_per_uid;
}
