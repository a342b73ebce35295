/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work hand-out in one 64-bit word: the run's number above, the tasks not yet
 * taken below. Taking a task is a compare-and-swap of that word, so a thread
 * that wakes late for an old run can take nothing from it, and a run never has
 * to wait for a sleeping thread: it ends when its tasks are done.
 *
 * fn, arg and n_tasks are plain fields: they are written before the word is
 * published, and read only by a thread that holds a task, which keeps the run
 * from ending and the fields from changing.
 *
 * Sleeping: a worker announces itself in n_asleep, then waits on the run
 * number; the caller raises the run number, then looks at n_asleep. Both are
 * sequentially consistent, so one of the two sees the other.
 */
#include "kernels/cpu/pool.h"

#include "base/alloc.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>

/* About 50 us: longer than the gaps between the ops of a step, far shorter than between requests. */
#define SPIN_ROUNDS 1500u

struct worker {
        struct k_pool *pool;
        uint32_t index;
        pthread_t thread;
};

struct k_pool {
        _Alignas(64) _Atomic uint64_t word; /* run << 32 | tasks left to take */
        _Alignas(64) _Atomic uint32_t n_done;
        _Atomic uint32_t caller_waits;
        _Alignas(64) _Atomic uint32_t run;
        _Atomic uint32_t n_asleep;
        _Atomic bool quit;

        k_pool_fn fn;
        void *arg;
        uint32_t n_tasks;

        _Atomic uint32_t spin; /* rounds */
        uint32_t n_workers, n_started;
        struct worker *workers; /* [n_workers - 1], indices from 1 */
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value) {
        syscall(SYS_futex, (void *)word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n) {
        syscall(SYS_futex, (void *)word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
}

/* Takes and runs tasks until none is left. */
static void drain(struct k_pool *pool, uint32_t worker) {
        uint64_t word = atomic_load_explicit(&pool->word, memory_order_acquire);

        while ((uint32_t)word != 0) {
                if (!atomic_compare_exchange_weak_explicit(&pool->word, &word, word - 1, memory_order_acq_rel,
                                                           memory_order_acquire))
                        continue;

                uint32_t n_tasks = pool->n_tasks;
                pool->fn(pool->arg, n_tasks - (uint32_t)word, worker);
                if (atomic_fetch_add(&pool->n_done, 1) + 1 == n_tasks && atomic_load(&pool->caller_waits))
                        futex_wake(&pool->n_done, 1);

                word = atomic_load_explicit(&pool->word, memory_order_acquire);
        }
}

static void *worker_main(void *arg) {
        struct worker *w = arg;
        struct k_pool *pool = w->pool;

        for (;;) {
                uint32_t run = atomic_load(&pool->run);
                if (atomic_load(&pool->quit))
                        return NULL;
                drain(pool, w->index);
                for (unsigned i = 0, n = atomic_load(&pool->spin); i < n && atomic_load_explicit(&pool->run, memory_order_relaxed) == run; i++)
                        relax();
                if (atomic_load(&pool->run) != run)
                        continue;
                atomic_fetch_add(&pool->n_asleep, 1);
                futex_wait(&pool->run, run);
                atomic_fetch_sub(&pool->n_asleep, 1);
        }
}

static void publish(struct k_pool *pool) {
        atomic_fetch_add(&pool->run, 1);
        if (atomic_load(&pool->n_asleep))
                futex_wake(&pool->run, INT_MAX);
}

void k_pool_run(struct k_pool *pool, k_pool_fn fn, void *arg, uint32_t n_tasks) {
        uint32_t done;

        if (n_tasks == 0)
                return;
        if (n_tasks == 1 || pool->n_started == 0) {
                for (uint32_t i = 0; i < n_tasks; i++)
                        fn(arg, i, 0);
                return;
        }

        pool->fn = fn;
        pool->arg = arg;
        pool->n_tasks = n_tasks;
        atomic_store_explicit(&pool->n_done, 0, memory_order_relaxed);
        atomic_store_explicit(&pool->word, ((uint64_t)atomic_load(&pool->run) + 1) << 32 | n_tasks, memory_order_release);
        publish(pool);
        drain(pool, 0);

        for (unsigned i = 0; (done = atomic_load_explicit(&pool->n_done, memory_order_acquire)) != n_tasks; i++) {
                if (i < SPIN_ROUNDS) {
                        relax();
                        continue;
                }
                atomic_store(&pool->caller_waits, 1);
                done = atomic_load(&pool->n_done);
                if (done != n_tasks)
                        futex_wait(&pool->n_done, done);
                atomic_store(&pool->caller_waits, 0);
        }
}

void k_pool_spin(struct k_pool *pool, uint32_t us) {
        atomic_store(&pool->spin, us * (SPIN_ROUNDS / 50));
}

uint32_t k_pool_workers(const struct k_pool *pool) {
        return pool->n_workers;
}

struct k_pool *k_pool_free(struct k_pool *pool) {
        if (!pool)
                return NULL;
        atomic_store(&pool->quit, true);
        publish(pool);
        for (uint32_t i = 0; i < pool->n_started; i++)
                pthread_join(pool->workers[i].thread, NULL);
        free(pool->workers);
        free(pool);
        return NULL;
}

static uint32_t allowed_cores(void) {
        cpu_set_t set;
        if (sched_getaffinity(0, sizeof(set), &set) < 0 || CPU_COUNT(&set) < 1)
                return 1;
        return (uint32_t)CPU_COUNT(&set);
}

/* Threads of a library take no signals of their program. */
static int start_quiet(struct worker *w) {
        sigset_t all, old;
        int r;

        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        r = pthread_create(&w->thread, NULL, worker_main, w);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (r == 0)
                pthread_setname_np(w->thread, "hearth-cpu");
        return -r;
}

int k_pool_new(uint32_t n_workers, struct k_pool **ret) {
        struct k_pool *pool;
        int r;

        if (n_workers == 0)
                n_workers = allowed_cores();
        pool = h_aligned_alloc(_Alignof(struct k_pool), sizeof(*pool));
        if (!pool)
                return -ENOMEM;
        *pool = (struct k_pool){ .n_workers = n_workers, .spin = SPIN_ROUNDS };
        pool->workers = h_new0(struct worker, n_workers);
        if (!pool->workers) {
                k_pool_free(pool);
                return -ENOMEM;
        }
        for (uint32_t i = 1; i < n_workers; i++) {
                struct worker *w = &pool->workers[i - 1];
                *w = (struct worker){ .pool = pool, .index = i };
                r = start_quiet(w);
                if (r < 0) {
                        k_pool_free(pool);
                        return r;
                }
                pool->n_started++;
        }
        *ret = pool;
        return 0;
}
