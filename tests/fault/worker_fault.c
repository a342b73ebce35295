/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hearth-worker as it is, linked once more with some of the engine's functions
 * wrapped (ld --wrap): at a chosen moment the device fails. On a GPU that is a
 * kernel with a wild address, a trap, or one that does not end, queued before the
 * step's own; on a CPU a wild address, abort(), or a thread that goes on for ever.
 * The worker that is installed has no such place.
 *
 * What to do is in a page shared with the test (the file in FAULT_PAGE), mapped
 * before the sandbox closes: armed and disarmed while workers come and go.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "engine/device.h"
#include "tests/fault/worker_fault.h"

/* The order is the test's too: MOMENTS. */
enum moment { NEVER, LOADING, PREFILL, DECODE, IDLE };

struct page {
        _Atomic uint32_t moment;    /* written last by the test; NEVER again when 'times' are over */
        _Atomic uint32_t fault, times, nth, n_ctx /* of the context it happens in; 0: any */, endless_s;
        _Atomic uint32_t seen;      /* in this worker */
        _Atomic uint32_t fired;     /* in all of them */
};

static struct {
        struct page *page;
        struct eng_device *device;
        pthread_t watch;
        atomic_bool stuck; /* CPU: the next step does not end */
} state;

__attribute__((constructor)) static void begin(void) {
        const char *path = getenv("FAULT_PAGE");
        int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
        void *p = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

        if (fd >= 0)
                close(fd);
        state.page = p == MAP_FAILED ? NULL : p;
        if (state.page)
                state.page->seen = 0;
}

static void stay(void) {
        for (;;)
                nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
}

static void fail(void) {
        struct page *p = state.page;
        enum fault fault = p->fault;

        if (--p->times == 0)
                p->moment = NEVER;
        p->seen = 0;
        p->fired++;
        if (state.device->o.backend == ENG_CUDA) {
                (void)fault_device_launch(state.device->k, fault, p->endless_s); /* what it is shows in the worker */
                return;
        }
        switch (fault) {
        case FAULT_ADDRESS: *(volatile uint32_t *)(uintptr_t)4096 = 1; break;
        case FAULT_TRAP: abort();
        case FAULT_ENDLESS: state.stuck = true; break;
        }
}

static void come(enum moment m, const struct eng_context *c) {
        struct page *p = state.page;

        if (p && p->moment == m && (!p->n_ctx || (c && eng_context_limits(c)->n_ctx == p->n_ctx)) && ++p->seen >= p->nth)
                fail();
        if (state.stuck && m != IDLE)
                stay();
}

/* Nothing of the worker's runs while it is idle, so the fault needs a thread of its own. */
static void *watch(void *ud) {
        for (;;) {
                come(IDLE, NULL);
                nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
        }
        return NULL;
}

int __real_eng_device_open(const struct eng_device_options *, struct eng_device **, struct h_error *);
int __wrap_eng_device_open(const struct eng_device_options *, struct eng_device **, struct h_error *);
int __wrap_eng_device_open(const struct eng_device_options *o, struct eng_device **ret, struct h_error *err) {
        int r = __real_eng_device_open(o, ret, err);

        if (r < 0 || !state.page)
                return r;
        state.device = *ret;
        if (o->backend == ENG_CUDA && fault_device_open((*ret)->k) < 0)
                abort();
        if (pthread_create(&state.watch, NULL, watch, NULL) != 0)
                abort();
        return r;
}

int __real_eng_context_warm(struct eng_context *, struct h_error *);
int __wrap_eng_context_warm(struct eng_context *, struct h_error *);
int __wrap_eng_context_warm(struct eng_context *c, struct h_error *err) {
        come(LOADING, c);
        return __real_eng_context_warm(c, err);
}

int __real_eng_step_begin(struct eng_context *, const struct eng_item *, size_t, struct h_error *);
int __wrap_eng_step_begin(struct eng_context *, const struct eng_item *, size_t, struct h_error *);
int __wrap_eng_step_begin(struct eng_context *c, const struct eng_item *items, size_t n, struct h_error *err) {
        bool prompt = false;

        for (size_t i = 0; i < n; i++)
                prompt |= items[i].role == ENG_ROLE_PROMPT;
        come(prompt ? PREFILL : DECODE, c);
        return __real_eng_step_begin(c, items, n, err);
}
