/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/worker/compose.h"

#include "daemon/worker/prefix.h"

/* Prompt rows beside decode rows may take as long as the decode itself, but at least this. */
#define BESIDE_US 20000.0
/* Alone they make steps of this length: a cancel or a newcomer waits no longer. */
#define ALONE_US 200000.0
#define BESIDE_MIN_ROWS 8u
#define ALONE_MIN_ROWS 64u
#define SHARE_ROWS 16u /* handed out per round */

static bool may_decode(const struct task *t) {
        return t->state == TASK_DECODING && t->n_sent < atomic_load(&t->credits);
}

/* Tokens of t that can be fed next in one role; 0: none. */
static uint32_t feedable(const struct wmodel *m, const struct task *t, enum eng_role *ret_role) {
        uint32_t at, end, n = 0;

        if (t->state != TASK_FEEDING)
                return 0;
        at = eng_seq_len(m->context, t->seq);
        if (t->msg.type == WIRE_embed) {
                size_t begin = t->text ? t->ends[t->text - 1] : 0;
                *ret_role = ENG_ROLE_PROMPT;
                return (uint32_t)(t->ends[t->text] - begin) - at;
        }
        end = (uint32_t)t->feed.n;
        /* The last one gives a token, which must be allowed to be sent. */
        if (!((const struct wire_generate *)t->msg.body)->prewarm && t->n_sent >= atomic_load(&t->credits))
                end--;
        *ret_role = prefix_role(t, at);
        while (at + n < end && prefix_role(t, at + n) == *ret_role)
                n++;
        return n;
}

static uint32_t budget(const struct wmodel *m, bool beside) {
        double us = beside ? MAX(m->us_decode, BESIDE_US) : ALONE_US;
        uint32_t min = beside ? BESIDE_MIN_ROWS : ALONE_MIN_ROWS;

        if (m->us_per_row <= 0)
                return 2 * min; /* nothing known yet */
        return (uint32_t)MIN(MAX(us / m->us_per_row, (double)min), 1e6);
}

/* Shares out 'rows' prompt rows: a quantum for each user's next request, round after round. */
static void share(struct wmodel *m, uint32_t rows) {
        bool progress = true;
        uint32_t round = m->turn;

        while (rows && progress) {
                uint32_t last_uid = 0;
                bool have_last = false;

                progress = false;
                /* One pass gives each user one quantum, to that of its requests which has the fewest rows yet. */
                for (;;) {
                        struct task *pick = NULL;
                        uint32_t uid = 0, want, take;
                        bool have = false;
                        enum eng_role role;

                        /* The next uid in cyclic order; numbers are compared after a rotation so that none is always first. */
                        list_foreach(t, &m->tasks, struct task, link) {
                                want = feedable(m, t, &role);
                                if (!want || role != ENG_ROLE_PROMPT || t->planned >= want)
                                        continue;
                                if (have_last && t->uid - round <= last_uid - round)
                                        continue;
                                if (!have || t->uid - round < uid - round) {
                                        uid = t->uid;
                                        have = true;
                                        pick = t;
                                } else if (t->uid == uid && t->planned < pick->planned)
                                        pick = t;
                        }
                        if (!pick || !rows)
                                break;
                        last_uid = uid;
                        have_last = true;
                        want = feedable(m, pick, &role);
                        take = MIN(MIN(SHARE_ROWS, rows), want - pick->planned);
                        pick->planned += take;
                        rows -= take;
                        progress = true;
                }
        }
        m->turn = round + 0x9e3779b9u; /* any odd constant: uids get every place in turn */
}

static void add_item(struct wmodel *m, struct step_plan *p, struct task *t, const uint32_t *tokens, uint32_t n, enum eng_role role,
                     uint32_t want) {
        m->items[p->n] = (struct eng_item){ .seq = t->seq, .tokens = tokens, .n = n, .role = role, .want = want,
                                            .sampling = want & ENG_WANT_SAMPLE ? &t->sampling : NULL };
        m->in_step[p->n++] = t;
        t->planned = n;
        if (role == ENG_ROLE_PROMPT)
                p->prompt += n;
        else
                p->generated += n;
}

static uint32_t want_of(const struct wmodel *m, const struct task *t, uint32_t n) {
        const struct wire_generate *g = t->msg.body;
        uint32_t at = eng_seq_len(m->context, t->seq);

        if (t->msg.type == WIRE_embed) {
                size_t begin = t->text ? t->ends[t->text - 1] : 0;
                return at + n == t->ends[t->text] - begin ? ENG_WANT_EMBEDDING : ENG_WANT_NONE;
        }
        return at + n == t->feed.n && !g->prewarm ? ENG_WANT_SAMPLE : ENG_WANT_NONE;
}

void compose_step(struct wmodel *m, struct step_plan *ret) {
        struct step_plan p = {};
        enum eng_role role;
        uint32_t n, left;

        list_foreach(t, &m->tasks, struct task, link)
                t->planned = 0;
        list_foreach(t, &m->tasks, struct task, link)
                if (may_decode(t) && p.n < m->slots)
                        add_item(m, &p, t, &t->next, 1, ENG_ROLE_GENERATED, ENG_WANT_SAMPLE);
        /* Replayed tokens are rows of the same kind, as many as a step of all slots would have. */
        list_foreach(t, &m->tasks, struct task, link) {
                n = feedable(m, t, &role);
                if (n && role == ENG_ROLE_GENERATED && p.generated < m->slots && p.n < m->slots) {
                        n = MIN(n, m->slots - p.generated);
                        add_item(m, &p, t, t->feed.ids + eng_seq_len(m->context, t->seq), n, role, want_of(m, t, n));
                }
        }
        left = m->n_rows - p.generated;
        /* An encoder looks at its whole text at once: it takes what it needs, whatever the time. */
        list_foreach(t, &m->tasks, struct task, link) {
                n = m->info.can_generate ? 0 : feedable(m, t, &role);
                if (n && n <= left) {
                        t->planned = n;
                        left -= n;
                }
        }
        if (m->info.can_generate)
                share(m, MIN(left, budget(m, p.generated > 0)));
        list_foreach(t, &m->tasks, struct task, link) {
                n = feedable(m, t, &role);
                if (n && role == ENG_ROLE_PROMPT && t->planned && p.n < m->slots) {
                        uint32_t at = eng_seq_len(m->context, t->seq);
                        size_t begin = t->msg.type == WIRE_embed && t->text ? t->ends[t->text - 1] : 0;

                        n = t->planned;
                        add_item(m, &p, t, t->feed.ids + begin + at, n, role, want_of(m, t, n));
                }
        }
        *ret = p;
}

static void average(double *a, double v) {
        *a = *a <= 0 ? v : *a + (v - *a) * 0.25;
}

void compose_learn(struct wmodel *m, const struct step_plan *p, uint64_t us) {
        double t = (double)us;

        if (p->prompt == 0)
                average(&m->us_decode, t);
        else {
                t -= p->generated ? m->us_decode : 0;
                average(&m->us_per_row, MAX(t, 1.0) / p->prompt);
        }
}
