/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Who starts the next step of a graph: the device, if the step was posted in time, or the host.
 *
 * Steps have numbers, 1 and up. A step is handed over in one of two ways. It is launched: its graph is put into the stream. Or,
 * if the step before it is of the same graph and nothing else was put into the stream since, it is posted: its number is written
 * to its buffer (there are two, in turn) behind its data, and that is all. A graph's last kernel looks there, once or twice: if the next step
 * is posted it launches its own graph again, behind itself; else the graph ends. Either way it says which in one word, the
 * verdict: 2 n + 1 if it went on from step n to n + 1, 2 n if it ended with n. The device never waits for the host.
 *
 * A post may come while that kernel is looking. Nobody needs to know whether it came in time, because the verdict alone counts:
 * - the device runs step n + 1 by itself if and only if the verdict on n is 2 n + 1,
 * - the host launches a posted step n + 1 if and only if the verdict on n is 2 n,
 * - there is one verdict on each step of such a graph, and it is never taken back.
 * So a posted step runs once: none is lost as long as the host looks again (it does while it waits for any step), none runs twice.
 * Verdicts only grow. One on a later step than n says that n + 1 was run; as the host did not launch it, the device did.
 *
 * Until the verdict is known, the host does not know where in the stream the step is going to be. So before it puts
 * anything else there, it waits for the verdict and launches the step itself if it must (settling). That takes as long as the step
 * before still runs. What is in the stream behind a looping graph runs when it has ended, so the step that follows is then
 * launched, not posted: the loop ends. A step launched while the graph's last kernel looks is not mistaken for a posted one: its
 * number is not in its buffer, which still has that of two steps before, and numbers are not used again.
 *
 * Whether the data is there: the host writes it before the number, the device reads it in kernels that begin after the number was
 * read. Whether it is overwritten: a buffer is filled for step n + 2 when step n is done, and the look for n + 1 is into the other
 * one; the look for n + 2 comes behind step n + 1.
 *
 * tests/unit/test_cuda_loop.c tries all orders of what host and device do.
 */

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define LOOP_BOTH static inline __host__ __device__
#else
#define LOOP_BOTH static inline
#endif

/* ---- the device ---- */

/* Behind step n, with what is in the other buffer. */
LOOP_BOTH bool loop_goes_on(uint64_t posted, uint64_t n) { return posted == n + 1; }
LOOP_BOTH uint64_t loop_verdict(uint64_t n, bool on) { return 2 * n + on; }
/* The buffer of step n. */
LOOP_BOTH uint32_t loop_buffer(uint64_t n) { return (uint32_t)(n - 1) & 1; }

/* ---- the host ---- */

struct loop {
        uint64_t begun, sure; /* steps handed over; those of them that were launched, or that the device went on to */
        const void *graph;    /* of all steps after 'sure', and of the last one: the next one of it may be posted. NULL: none may */
        uint32_t posts;       /* since the last launch */
};

enum loop_state { LOOP_IN_STREAM, LOOP_UNKNOWN, LOOP_LAUNCH };

/* With the verdict as it is now. LOOP_LAUNCH: step 'sure' + 1 is to be launched; then loop_launched(), and the same question again. */
LOOP_BOTH enum loop_state loop_look(struct loop *l, uint64_t verdict) {
        while (l->sure < l->begun && verdict > 2 * l->sure)
                l->sure++;
        if (l->sure == l->begun)
                return LOOP_IN_STREAM;
        return verdict < 2 * l->sure ? LOOP_UNKNOWN : LOOP_LAUNCH;
}
LOOP_BOTH void loop_launched(struct loop *l) { l->sure++; }

/* most: posts in a row. */
LOOP_BOTH bool loop_may_post(const struct loop *l, const void *graph, uint32_t most) { return graph && l->graph == graph && l->posts < most; }
/* Then its number, the result, goes to its buffer. */
LOOP_BOTH uint64_t loop_post(struct loop *l) {
        l->posts++;
        return ++l->begun;
}
/* Settled, something else goes into the stream. */
LOOP_BOTH void loop_leave(struct loop *l) { l->graph = 0; }
/* Settled, the next step has been launched. graph: NULL if it can't go on by itself. */
LOOP_BOTH void loop_begin(struct loop *l, const void *graph) {
        l->sure = ++l->begun;
        l->graph = graph;
        l->posts = 0;
}
