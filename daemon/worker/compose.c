/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/worker/compose.h"

#include "daemon/worker/prefix.h"

/* Prompt rows beside decode rows may take as long as the decode itself, but at least this. */
#define BESIDE_US 20000.0
/* Alone they make steps of this length: a cancel or a newcomer waits no longer. */
#define ALONE_US 200000.0
#define BESIDE_MIN_ROWS 8u
#define ALONE_MIN_ROWS 64u
#define SHARE_ROWS 16u /* at most, handed out per round */

static bool may_decode(const struct task *t) {
        uint64_t done = t->n_generated + t->in_flight;

        /* A token in flight may be the last one there is room for. */
        if (t->in_flight && (t->grammar_state || done >= t->max_tokens || t->n_prompt + done > t->model->n_ctx))
                return false;
        return t->state == TASK_DECODING && t->n_sent + t->in_flight < atomic_load(&t->credits) && mask_ready(t);
}

bool compose_ahead(const struct wmodel *m) {
        if (m->n_begun != 1 || m->begun[m->first].plan.prompt)
                return false;
        list_foreach(t, &m->tasks, struct task, link)
                if (t->state == TASK_FEEDING || t->grammar_state || atomic_load(&t->cancel))
                        return false;
        return !atomic_load(&m->closing);
}

/* Tokens of t that can be fed next in one role. */
static void look(const struct wmodel *m, struct task *t) {
        const struct wire_generate *g = t->msg.body;
        uint32_t at, n;

        t->planned = t->want = 0;
        if (t->state != TASK_FEEDING)
                return;
        at = eng_seq_len(m->context, t->seq);
        if (t->msg.type == WIRE_embed) {
                t->want_role = ENG_ROLE_PROMPT;
                t->want = (uint32_t)(t->ends[t->text] - (t->text ? t->ends[t->text - 1] : 0)) - at;
                return;
        }
        n = prefix_run(t, at, &t->want_role);
        /* The last one gives a token, which must be allowed to be sent, and known to fit the grammar. */
        if (!g->prewarm && at + n == t->feed.n && (t->n_sent >= atomic_load(&t->credits) || !mask_ready(t)))
                n--;
        t->want = n;
}

static bool wants(const struct task *t, enum eng_role role) {
        return t->want > t->planned && t->want_role == role;
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
        bool progress = true, first = true;
        uint32_t round = m->turn, quantum = SHARE_ROWS, n = 0;

        list_foreach(t, &m->tasks, struct task, link)
                n += wants(t, ENG_ROLE_PROMPT);
        if (n)
                quantum = MAX(1u, MIN(SHARE_ROWS, rows / n));
        while (rows && progress) {
                uint32_t last_uid = 0;
                bool have_last = false;

                progress = false;
                /* One pass gives each user one quantum, to that of its requests which has the fewest rows yet. */
                for (;;) {
                        struct task *pick = NULL;
                        uint32_t uid = 0, take;
                        bool have = false;

                        /* The next uid in cyclic order from 'round' on. */
                        list_foreach(t, &m->tasks, struct task, link) {
                                if (!wants(t, ENG_ROLE_PROMPT))
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
                        if (first)
                                m->turn = uid + 1; /* the next step begins with the next one */
                        first = false;
                        last_uid = uid;
                        have_last = true;
                        take = MIN(MIN(quantum, rows), pick->want - pick->planned);
                        pick->planned += take;
                        rows -= take;
                        progress = true;
                }
        }
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
        uint32_t n, left;

        list_foreach(t, &m->tasks, struct task, link)
                look(m, t);
        list_foreach(t, &m->tasks, struct task, link)
                if (may_decode(t) && p.n < m->slots)
                        add_item(m, &p, t, t->in_flight ? NULL : &t->next, 1, ENG_ROLE_GENERATED, ENG_WANT_SAMPLE);
        /* Replayed tokens are rows of the same kind, as many as a step of all slots would have. */
        list_foreach(t, &m->tasks, struct task, link)
                if (wants(t, ENG_ROLE_GENERATED) && p.generated < m->slots && p.n < m->slots) {
                        n = MIN(t->want, m->slots - p.generated);
                        add_item(m, &p, t, t->feed.ids + eng_seq_len(m->context, t->seq), n, ENG_ROLE_GENERATED, want_of(m, t, n));
                }
        left = m->n_rows - p.generated;
        if (m->info.can_generate)
                share(m, MIN(left, budget(m, p.generated > 0)));
        else /* an encoder looks at its whole text at once: it takes what it needs, whatever the time */
                list_foreach(t, &m->tasks, struct task, link)
                        if (t->want && t->want <= left) {
                                t->planned = t->want;
                                left -= t->want;
                        }
        list_foreach(t, &m->tasks, struct task, link)
                if (t->want && t->want_role == ENG_ROLE_PROMPT && t->planned && p.n < m->slots) {
                        size_t begin = t->msg.type == WIRE_embed && t->text ? t->ends[t->text - 1] : 0;

                        add_item(m, &p, t, t->feed.ids + begin + eng_seq_len(m->context, t->seq), t->planned, ENG_ROLE_PROMPT,
                                 want_of(m, t, t->planned));
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
