/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Who may do what. A rule is a list of users and groups in hearth.conf; names
 * are looked up once, when the configuration is read (that may ask a directory
 * service and so happens off the loop). A peer is who the kernel says it is:
 * SO_PEERCRED and SO_PEERGROUPS of its connection, at accept.
 *
 * root and the daemon's own user may do everything.
 */

#include "base/error.h"

enum access_right { ACCESS_USE, ACCESS_LOAD, ACCESS_UNLOAD, ACCESS_PIN, ACCESS_SEE, _ACCESS_MAX };

struct access_rule {
        char *text; /* as written; NULL: nobody */
        bool everybody;
        uint32_t *uids, *gids;
        size_t n_uids, n_gids;
};

/* "*", user, 1000, @group, @100; blanks or commas between. On failure *ret is as it was. */
int access_parse(const char *text, struct access_rule *ret, struct h_error *err);
void access_rule_done(struct access_rule *r);

/* The rights of the peer of this connected socket: bit 1 << right. */
uint32_t access_of_socket(const struct access_rule rules[_ACCESS_MAX], int fd, uint32_t uid, uint32_t gid);
uint32_t access_of(const struct access_rule rules[_ACCESS_MAX], uint32_t uid, const uint32_t *gids, size_t n_gids);

/* permission: names the uid, the rule and its key. 'what' (may be NULL): the model, or whatever it was about. */
int access_check(const struct access_rule rules[_ACCESS_MAX], uint32_t rights, enum access_right right, uint32_t uid,
                 const char *what, struct h_error *err);
