/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/worker/prefix.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"

uint32_t prefix_run(const struct task *t, uint32_t i, enum eng_role *ret) {
        uint32_t end = 0;

        if (i >= t->n_prompt) {
                *ret = ENG_ROLE_GENERATED;
                return (uint32_t)t->feed.n - i;
        }
        for (size_t k = 0; k < t->n_runs; k++) {
                if (__builtin_add_overflow(end, t->runs[k], &end) || end > t->n_prompt)
                        end = t->n_prompt;
                if (i < end) {
                        *ret = k % 2 ? ENG_ROLE_GENERATED : ENG_ROLE_PROMPT;
                        return end - i;
                }
        }
        *ret = ENG_ROLE_PROMPT;
        return t->n_prompt - i;
}

static enum eng_role role_of(const struct task *t, uint32_t i) {
        enum eng_role role;

        (void)prefix_run(t, i, &role);
        return role;
}

/* May feed[i] be taken from where it was evaluated in this role? */
static bool role_fits(const struct task *t, uint32_t i, uint8_t role) {
        const struct wire_generate *g = t->msg.body;

        /* A replay repeats what was; 'exact' wants every prompt token evaluated as one; others take what there is. */
        if (t->n_resume || g->exact || i >= t->n_prompt)
                return role == role_of(t, i);
        return true;
}

static uint32_t common(const struct wmodel *m, const struct task *t, eng_seq seq, const uint8_t *roles, uint32_t max) {
        const uint32_t *tokens = eng_seq_tokens(m->context, seq);
        uint32_t n = MIN(max, eng_seq_len(m->context, seq)), i = 0;

        while (i < n && tokens[i] == t->feed.ids[i] && role_fits(t, i, roles[i]))
                i++;
        return i;
}

static void drop(struct wmodel *m, struct kept *k) {
        (void)eng_seq_free(m->context, k->seq);
        list_remove(&k->link);
        m->n_kept--;
        free(k->roles);
        free(k);
}

bool prefix_drop_oldest(struct wmodel *m) {
        if (list_empty(&m->kept))
                return false;
        drop(m, CONTAINER_OF(m->kept.prev, struct kept, link));
        return true;
}

static int fork_seq(struct wmodel *m, eng_seq from, uint32_t n, eng_seq *ret, uint32_t *ret_n) {
        int r;

        while ((r = eng_seq_fork(m->context, from, n, ret, ret_n)) == -EBUSY && prefix_drop_oldest(m))
                ;
        return r;
}

static int new_seq(struct wmodel *m, eng_seq *ret) {
        int r;

        while ((r = eng_seq_new(m->context, ret)) == -EBUSY && prefix_drop_oldest(m))
                ;
        return r;
}

int prefix_begin(struct wmodel *m, struct task *t) {
        const struct wire_generate *g = t->msg.body;
        /* The last token is always evaluated: its logits are wanted. */
        uint32_t max = (uint32_t)t->feed.n - (g->prewarm ? 0 : 1), best = 0, n = 0;
        struct kept *from_kept = NULL;
        struct task *from_task = NULL;
        bool any = false;
        int r;

        t->roles = h_malloc(m->n_ctx);
        if (!t->roles)
                return -ENOMEM;
        list_foreach(k, &m->kept, struct kept, link) {
                if (k->uid != t->uid)
                        continue;
                any = true;
                n = common(m, t, k->seq, k->roles, max);
                if (n > best) {
                        best = n;
                        from_kept = k;
                }
        }
        list_foreach(o, &m->tasks, struct task, link) {
                if (o == t || o->uid != t->uid || !o->has_seq || !o->roles)
                        continue;
                any = true;
                n = common(m, t, o->seq, o->roles, max);
                if (n > best) {
                        best = n;
                        from_kept = NULL;
                        from_task = o;
                }
        }
        n = 0;
        if (from_kept && best == eng_seq_len(m->context, from_kept->seq)) {
                /* All of it: it is continued, and the longer one kept later. */
                n = best;
                t->seq = from_kept->seq;
                memcpy(t->roles, from_kept->roles, n);
                list_remove(&from_kept->link);
                m->n_kept--;
                free(from_kept->roles);
                free(from_kept);
        } else if (from_kept || from_task) {
                if (from_kept) { /* used just now: others are dropped before it */
                        list_remove(&from_kept->link);
                        list_prepend(&m->kept, &from_kept->link);
                }
                r = fork_seq(m, from_kept ? from_kept->seq : from_task->seq, best, &t->seq, &n);
                if (r < 0)
                        return r;
                memcpy(t->roles, from_kept ? from_kept->roles : from_task->roles, n);
        } else {
                r = new_seq(m, &t->seq);
                if (r < 0)
                        return r;
        }
        t->has_seq = true;
        t->n_cached = n;
        for (uint32_t i = 0; i < MIN(n, t->n_prompt); i++)
                t->reused_generated += t->roles[i] != ENG_ROLE_PROMPT;
        if (n < max)
                t->miss = !any ? "nothing of this user is kept"
                          : best == 0 ? "no kept text begins like this"
                          : n < best ? "the model's state was not kept at that place"
                          : g->exact ? "the rest was generated, and exact was asked for, or differs"
                                     : "the rest differs";
        return 0;
}

void prefix_keep(struct wmodel *m, struct task *t) {
        struct kept *k;
        uint32_t len;

        if (!t->has_seq)
                return;
        t->has_seq = false;
        len = eng_seq_len(m->context, t->seq);
        k = len && t->roles && t->msg.type == WIRE_generate ? h_new0(struct kept, 1) : NULL;
        if (!k) {
                (void)eng_seq_free(m->context, t->seq);
                return;
        }
        /* What it contains as a whole need not be kept twice. */
        list_foreach(o, &m->kept, struct kept, link) {
                uint32_t n = eng_seq_len(m->context, o->seq);
                if (o->uid == t->uid && n <= len &&
                    memcmp(eng_seq_tokens(m->context, o->seq), eng_seq_tokens(m->context, t->seq), n * sizeof(uint32_t)) == 0)
                        drop(m, o);
        }
        k->seq = t->seq;
        k->uid = t->uid;
        k->roles = ptr_steal(&t->roles);
        list_prepend(&m->kept, &k->link);
        m->n_kept++;
        while (m->n_kept > m->max_kept && prefix_drop_oldest(m))
                ;
}
