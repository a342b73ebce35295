/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/access.h"

#include <grp.h>
#include <pwd.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"

#define WORD_MAX 256

void access_rule_done(struct access_rule *r) {
        free(r->text);
        free(r->uids);
        free(r->gids);
        *r = (struct access_rule){};
}

static int add(uint32_t **v, size_t *n, uint32_t id) {
        uint32_t *p = h_realloc(*v, (*n + 1) * sizeof(*p));

        if (!p)
                return -ENOMEM;
        p[(*n)++] = id;
        *v = p;
        return 0;
}

static bool parse_id(const char *s, uint32_t *ret) {
        uint64_t v = 0;

        if (!*s)
                return false;
        for (; *s; s++) {
                if (*s < '0' || *s > '9')
                        return false;
                v = v * 10 + (uint64_t)(*s - '0');
                if (v >= UINT32_MAX) /* -1 is no id */
                        return false;
        }
        *ret = (uint32_t)v;
        return true;
}

/* The databases' records have no bound of their own: the buffer grows until one fits. */
static int look_up(const char *name, bool group, uint32_t *ret, struct h_error *err) {
        for (size_t size = 1024; size <= (16u << 20); size *= 4) {
                _cleanup_(freep) char *buf = h_malloc(size);
                struct passwd pw, *p = NULL;
                struct group gr, *g = NULL;
                int r;

                if (!buf)
                        return -ENOMEM;
                r = group ? getgrnam_r(name, &gr, buf, size, &g) : getpwnam_r(name, &pw, buf, size, &p);
                if (r == ERANGE)
                        continue;
                if (group ? !g : !p)
                        return h_error_set(err, HEARTH_E_bad_request, "there is no %s named \"%s\"%s%s", group ? "group" : "user", name,
                                           r ? ": " : "", r ? strerror(r) : "");
                *ret = group ? (uint32_t)gr.gr_gid : (uint32_t)pw.pw_uid;
                return 0;
        }
        return h_error_set(err, HEARTH_E_bad_request, "the record of \"%s\" is too long", name);
}

static int add_word(struct access_rule *r, const char *word, struct h_error *err) {
        bool group = word[0] == '@';
        uint32_t id = 0;
        int q;

        if (strcmp(word, "*") == 0) {
                r->everybody = true;
                return 0;
        }
        if (!parse_id(word + group, &id)) {
                q = look_up(word + group, group, &id, err);
                if (q < 0)
                        return q;
        }
        return group ? add(&r->gids, &r->n_gids, id) : add(&r->uids, &r->n_uids, id);
}

int access_parse(const char *text, struct access_rule *ret, struct h_error *err) {
        struct access_rule r = {};
        char word[WORD_MAX];
        int q = 0;

        for (const char *p = text; q == 0;) {
                size_t n;

                p += strspn(p, " \t,");
                n = strcspn(p, " \t,");
                if (n == 0)
                        break;
                if (n >= sizeof(word)) {
                        q = h_error_set(err, HEARTH_E_bad_request, "\"%.40s...\" is too long for a name", p);
                        break;
                }
                memcpy(word, p, n);
                word[n] = 0;
                q = add_word(&r, word, err);
                p += n;
        }
        if (q == 0) {
                r.text = h_strdup(text);
                q = r.text ? 0 : -ENOMEM;
        }
        if (q < 0) {
                access_rule_done(&r);
                return q;
        }
        access_rule_done(ret);
        *ret = r;
        return 0;
}

static bool holds(const uint32_t *v, size_t n, uint32_t id) {
        for (size_t i = 0; i < n; i++)
                if (v[i] == id)
                        return true;
        return false;
}

uint32_t access_of(const struct access_rule rules[_ACCESS_MAX], uint32_t uid, const uint32_t *gids, size_t n_gids) {
        uint32_t rights = 0;

        if (uid == 0 || uid == (uint32_t)geteuid())
                return (1u << _ACCESS_MAX) - 1;
        for (int i = 0; i < _ACCESS_MAX; i++) {
                const struct access_rule *r = &rules[i];
                bool yes = r->everybody || holds(r->uids, r->n_uids, uid);

                for (size_t k = 0; k < n_gids && !yes; k++)
                        yes = holds(r->gids, r->n_gids, gids[k]);
                if (yes)
                        rights |= 1u << i;
        }
        return rights;
}

uint32_t access_of_socket(const struct access_rule rules[_ACCESS_MAX], int fd, uint32_t uid, uint32_t gid) {
        _cleanup_(freep) uint32_t *gids = NULL;
        socklen_t len = 64 * sizeof(*gids);
        size_t n = 0;

        /* One more place for the first group. Without memory, or a kernel that can't say, the others don't count. */
        for (int try = 0; try < 3; try++) {
                free(gids);
                gids = h_malloc(len + sizeof(*gids));
                if (!gids)
                        break;
                if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, gids, &len) == 0) {
                        n = len / sizeof(*gids);
                        break;
                }
                if (errno != ERANGE) /* else len is what it takes */
                        break;
        }
        if (!gids)
                return access_of(rules, uid, &gid, 1);
        gids[n++] = gid;
        return access_of(rules, uid, gids, n);
}

int access_check(const struct access_rule rules[_ACCESS_MAX], uint32_t rights, enum access_right right, uint32_t uid,
                 const char *what, struct h_error *err) {
        static const struct { const char *key, *may; } names[_ACCESS_MAX] = {
                [ACCESS_USE] = { "use", "use this daemon" }, [ACCESS_LOAD] = { "load", "load models" },
                [ACCESS_UNLOAD] = { "unload", "unload models" }, [ACCESS_PIN] = { "pin", "pin models" },
                [ACCESS_SEE] = { "see_others", "see others' requests" },
        };
        const char *text = rules[right].text;

        if (rights & (1u << right))
                return 0;
        return h_error_set(err, HEARTH_E_permission, "uid %u may not %s%s%s%s: [access] %s in hearth.conf allows it to %s (besides root and "
                           "the daemon's own user)", uid, names[right].may, what ? " (" : "", what ? what : "", what ? ")" : "", names[right].key,
                           text && *text ? text : "nobody");
}
