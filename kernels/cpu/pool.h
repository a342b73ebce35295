/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A pool of persistent threads. The caller of k_pool_run() is worker 0 and
 * works too; workers 1..n-1 are threads of the pool. Tasks are handed out one
 * index at a time, so uneven tasks balance themselves; which worker gets which
 * task is not defined and results must not depend on it.
 *
 * Idle threads spin for some microseconds (a decode step's ops follow one
 * another closely), then sleep in a futex: an idle process uses no processor.
 * One caller at a time; nothing is allocated after k_pool_new().
 */

#include "base/types.h"

struct k_pool;
typedef void (*k_pool_fn)(void *arg, uint32_t task, uint32_t worker);

int k_pool_new(uint32_t n_workers, struct k_pool **ret); /* n_workers 0: one per allowed core */
struct k_pool *k_pool_free(struct k_pool *pool);         /* NULL is fine; returns NULL */
/* Idle threads spin for about 'us' microseconds before they sleep; for a caller whose runs have longer gaps. */
void k_pool_spin(struct k_pool *pool, uint32_t us);
uint32_t k_pool_workers(const struct k_pool *pool);
/* Runs fn for every task in [0, n_tasks) and returns when all are done. */
void k_pool_run(struct k_pool *pool, k_pool_fn fn, void *arg, uint32_t n_tasks);
