/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/loop.h, whose functions host and device use, in every order in which the two can do what they do: each step runs
 * once, in order, by its own graph, with its own data, and other work in the stream stays where it was put. The host's stores
 * become visible in their order, any time later, at the latest when it launches. Wrong protocols, one change each, are told as such.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/loop.h"

enum { STEPS = 5, OTHERS = 1, STREAM = 4, STORES = 4, N_SEEN = 1 << 20 };

enum wrong {
        RIGHT,
        NOT_SETTLED,   /* other things are put into the stream while it is not known what becomes of a posted step */
        IMPATIENT,     /* a posted step is launched when the one before is done, verdict or not */
        LATE_LOOK,     /* the device looks once more after it said that it ends */
        STILL_POSTED,  /* a step is posted though something else is behind the graph */
        NUMBER_FIRST,  /* the number is in its buffer before the data */
        ONE_LOOK,      /* the host looks when it has posted, and never again */
        NO_ROOM,       /* a buffer is filled though the step two before runs */
        ANY_NUMBER,    /* the device takes whatever number it finds for the next step's */
};

enum graph { NONE, A, B, ALONE /* the host launches it, always */, OTHER /* work that is no step */ };

struct data { uint8_t step, graph, posted; };
enum phase { IDLE, FETCH, LOOK, DONE, LOOK_AGAIN, VERDICT };
enum doing { CHOOSE, ROOM, FILL, NUMBER, AFTER_POST, SETTLE, END };

struct state {
        /* memory that both see */
        struct data buffer[2];
        uint8_t done, verdict;
        /* the device */
        uint8_t phase, graph, step, on, tried, count;
        struct { uint8_t graph, after; } stream[STREAM]; /* after: OTHER comes behind so many steps */
        uint8_t n_stream;
        /* the host */
        uint8_t begun, sure, last, doing, next, n_other, post;
        struct { uint8_t buffer, number, step, graph; } store[STORES]; /* not yet visible */
        uint8_t n_store;
};

static const char graphs[5]; /* their addresses */
static struct {
        struct state *seen;
        size_t n;
        enum wrong wrong;
        const char *fault;
        bool went_on, ambiguous;
} t;

static bool fault(const char *what) {
        if (!t.fault)
                t.fault = what;
        return false;
}

/* New to us, and now known. */
static bool add(const struct state *s) {
        uint64_t h = 14695981039346656037u;

        for (size_t i = 0; i < sizeof(*s); i++)
                h = (h ^ ((const uint8_t *)s)[i]) * 1099511628211u;
        for (size_t i = h % N_SEEN;; i = (i + 1) % N_SEEN) {
                if (t.seen[i].stream[0].after == 255) {
                        t.seen[i] = *s;
                        if (++t.n == N_SEEN / 2)
                                fail_msg("more orders than there is room for");
                        return true;
                }
                if (memcmp(&t.seen[i], s, sizeof(*s)) == 0)
                        return false;
        }
}

/* ---- the device ---- */

static bool device(struct state *s) {
        const struct data *next = &s->buffer[loop_buffer((uint64_t)s->step + 1)], *own;
        const bool posted = t.wrong == ANY_NUMBER ? next->posted != 0 : loop_goes_on(next->posted, s->step);

        switch ((enum phase)s->phase) {
        case IDLE:
                if (s->n_stream == 0)
                        return false;
                if (s->stream[0].graph == OTHER) {
                        if (s->count != s->stream[0].after)
                                return fault("other work came elsewhere in the stream");
                } else {
                        s->graph = s->stream[0].graph;
                        s->phase = FETCH;
                }
                memmove(&s->stream[0], &s->stream[1], sizeof(s->stream) - sizeof(s->stream[0]));
                memset(&s->stream[--s->n_stream], 0, sizeof(s->stream[0]));
                return true;
        case FETCH:
                s->step = (uint8_t)(s->count + 1);
                own = &s->buffer[loop_buffer(s->step)];
                if (own->step != s->step)
                        return fault("a step without its data");
                if (own->graph != s->graph)
                        return fault("a step by another's graph");
                s->tried = s->on = 0;
                s->phase = s->graph == ALONE ? DONE : LOOK;
                return true;
        case LOOK:
                s->tried = s->on = posted;
                s->phase = DONE;
                return true;
        case DONE:
                s->done = s->count = s->step;
                s->phase = s->graph == ALONE ? IDLE : LOOK_AGAIN;
                return true;
        case LOOK_AGAIN:
                if (!s->tried)
                        s->on = posted;
                s->phase = VERDICT;
                return true;
        case VERDICT:
                s->verdict = (uint8_t)loop_verdict(s->step, s->on);
                if (t.wrong == LATE_LOOK && posted)
                        s->on = 1;
                t.went_on |= s->on;
                s->phase = s->on ? FETCH : IDLE;
                return true;
        }
        return false;
}

/* ---- the host ---- */

static void show(struct state *s) {
        struct data *d = &s->buffer[s->store[0].buffer];

        if (s->store[0].number) {
                d->posted = s->store[0].step;
        } else {
                d->step = s->store[0].step;
                d->graph = s->store[0].graph;
        }
        memmove(&s->store[0], &s->store[1], sizeof(s->store) - sizeof(s->store[0]));
        memset(&s->store[--s->n_store], 0, sizeof(s->store[0]));
}
static void store(struct state *s, uint8_t step, bool number) {
        if (s->n_store == STORES)
                show(s);
        s->store[s->n_store].buffer = (uint8_t)loop_buffer(step);
        s->store[s->n_store].number = number;
        s->store[s->n_store].step = step;
        s->store[s->n_store++].graph = number ? 0 : s->next;
}
static bool put(struct state *s, uint8_t graph, uint8_t after) {
        while (s->n_store)
                show(s);
        if (s->n_stream == STREAM)
                return fault("more in the stream than steps in flight");
        s->stream[s->n_stream].graph = graph;
        s->stream[s->n_stream++].after = after;
        return true;
}

static struct loop loop_of(const struct state *s) {
        return (struct loop){ .begun = s->begun, .sure = s->sure, .graph = s->last == NONE ? NULL : &graphs[s->last] };
}
static void loop_to(struct state *s, const struct loop *l) {
        s->begun = (uint8_t)l->begun;
        s->sure = (uint8_t)l->sure;
        s->last = l->graph ? (uint8_t)((const char *)l->graph - graphs) : NONE;
}

static enum loop_state look(struct state *s) {
        struct loop l = loop_of(s);
        enum loop_state r;

        for (;;) {
                r = loop_look(&l, s->verdict);
                if (r == LOOP_UNKNOWN && t.wrong == IMPATIENT && s->done >= l.sure)
                        r = LOOP_LAUNCH;
                if (r != LOOP_LAUNCH)
                        break;
                t.ambiguous |= s->doing != AFTER_POST;
                if (!put(s, s->last, 0))
                        break;
                loop_launched(&l);
        }
        loop_to(s, &l);
        return r;
}

static bool host(struct state *s) {
        struct loop l;

        switch ((enum doing)s->doing) {
        case ROOM:
                if (t.wrong != NO_ROOM && s->done + 1 < s->begun)
                        return false;
                s->doing = FILL;
                l = loop_of(s);
                if (t.wrong == STILL_POSTED && s->next != ALONE && s->begun && s->last == NONE)
                        l.graph = &graphs[s->next];
                s->post = s->post && loop_may_post(&l, &graphs[s->next], STEPS);
                loop_to(s, &l);
                return true;
        case FILL:
                if (t.wrong == NUMBER_FIRST && s->post)
                        store(s, (uint8_t)(s->begun + 1), true);
                store(s, (uint8_t)(s->begun + 1), false);
                s->doing = s->post ? NUMBER : SETTLE;
                return true;
        case NUMBER:
                l = loop_of(s);
                {
                        const uint64_t n = loop_post(&l);
                        if (t.wrong != NUMBER_FIRST)
                                store(s, (uint8_t)n, true);
                }
                loop_to(s, &l);
                s->doing = AFTER_POST;
                return true;
        case AFTER_POST:
                (void)look(s);
                s->doing = CHOOSE;
                return true;
        case SETTLE:
                if (t.wrong != NOT_SETTLED && look(s) != LOOP_IN_STREAM)
                        return true;
                l = loop_of(s);
                if (t.wrong != STILL_POSTED || s->next != OTHER)
                        loop_leave(&l);
                if (s->next != OTHER)
                        loop_begin(&l, s->next == ALONE ? NULL : &graphs[s->next]);
                loop_to(s, &l);
                s->doing = CHOOSE;
                return put(s, s->next, s->next == OTHER ? s->begun : 0);
        case CHOOSE:
        case END:
                return false;
        }
        return false;
}

/* ---- all orders ---- */

static void explore(const struct state *from);

static bool go(const struct state *s) {
        if (!t.fault && add(s))
                explore(s);
        return true;
}

static void explore(const struct state *from) {
        struct state s = *from;
        bool moved = false;

        if (device(&s))
                moved |= go(&s);
        s = *from;
        if (s.n_store) {
                show(&s);
                moved |= go(&s);
        }
        s = *from;
        if (host(&s) && memcmp(&s, from, sizeof(s)) != 0)
                moved |= go(&s);
        /* It waits for some step, and looks. */
        s = *from;
        if (t.wrong != ONE_LOOK && (s.doing == CHOOSE || s.doing == ROOM || s.doing == END)) {
                (void)look(&s);
                if (memcmp(&s, from, sizeof(s)) != 0)
                        moved |= go(&s);
        }
        for (uint8_t g = A; from->doing == CHOOSE && from->begun < STEPS && g <= ALONE; g++) {
                s = *from;
                s.next = g;
                s.post = g != ALONE;
                s.doing = ROOM;
                moved |= go(&s);
        }
        if (from->doing == CHOOSE && from->begun < STEPS && from->begun) { /* others hold the device: it is launched, though it could be posted */
                s = *from;
                s.next = A;
                s.post = 0;
                s.doing = ROOM;
                moved |= go(&s);
        }
        if (from->doing == CHOOSE && from->n_other < OTHERS) {
                s = *from;
                s.n_other++;
                s.next = OTHER;
                s.doing = SETTLE;
                moved |= go(&s);
        }
        if (from->doing == CHOOSE) {
                s = *from;
                s.doing = END;
                moved |= go(&s);
        }
        if (!moved && !t.fault && (from->count != from->begun || from->n_stream || from->doing != END))
                (void)fault("a step is lost: nothing moves");
        if (from->count > from->begun)
                (void)fault("a step more than were begun");
}

static const char *all_orders(enum wrong wrong) {
        struct state s;

        memset(&s, 0, sizeof(s));
        t.seen = malloc(N_SEEN * sizeof(*t.seen));
        assert_non_null(t.seen);
        memset(t.seen, 255, N_SEEN * sizeof(*t.seen));
        t.n = 0;
        t.wrong = wrong;
        t.fault = NULL;
        t.went_on = t.ambiguous = false;
        (void)go(&s);
        free(t.seen);
        return t.fault;
}

static void test_right(void **ud) {
        (void)ud;
        const char *f = all_orders(RIGHT);

        if (f)
                fail_msg("%s", f);
        assert_true(t.n > 10000);
        assert_true(t.went_on);
        assert_true(t.ambiguous); /* some were posted, not taken, and launched by a later look */
        print_message("%zu states\n", t.n);
}

static void test_wrong(void **ud) {
        (void)ud;
        for (int w = RIGHT + 1; w <= ANY_NUMBER; w++) {
                const char *f = all_orders((enum wrong)w);
                if (!f)
                        fail_msg("wrong protocol %d is taken for a right one", w);
                print_message("%d: %s\n", w, f ? f : "");
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_right),
                cmocka_unit_test(test_wrong),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
