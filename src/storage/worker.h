/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The threads of an engine. Each has lanes of one crew or of several (crew.h): it takes pieces for
 * them, turns those that have something in flight, and sleeps when nothing happens. Whoever gives
 * it work wakes it.
 */
#ifndef STORAGE_WORKER_H
#define STORAGE_WORKER_H

#include <sched.h>

#include "storage/crew.h"

/* How it sleeps: without anything in flight, or with. */
enum { WORKER_RESTS = 1, WORKER_WAITS = 2 };

struct worker {
    struct workers *all;
    pthread_t thread;
    uint32_t asleep;      /* a futex: how the thread sleeps, or is about to; 0: not at all */
    struct lane *lanes;   /* the thread's own */
    struct lane *turn_of; /* which of them is served first */
    _Atomic bool changed; /* there are lanes to add or to remove, or the end has come */
    struct lane *added;   /* under the lock of all, by lane->next */
    struct crew *leaving; /* likewise: whose lane is to be removed */
};

struct workers;

/* Starts `n` threads; on failure nothing is left. */
gpunvme_err_t workers_start(unsigned n, struct workers **out);

/* Ends them; no lane is left. NULL is fine. */
void workers_stop(struct workers *workers);

unsigned workers_count(const struct workers *workers);
struct worker *workers_at(struct workers *workers, unsigned index);

/* Has all run on these CPUs, as far as the kernel lets them. */
void workers_move(struct workers *workers, const cpu_set_t *cpus);

/* A lane is the worker's from now on. */
void worker_add(struct worker *worker, struct lane *lane);

/* Takes away the worker's lane of a crew, which has nothing in flight; waits until that is done. */
void worker_remove(struct worker *worker, struct crew *crew);

/* True: it slept like this, and does not any more; its thread is to be woken by futex_wake(). */
static inline bool worker_rouse(struct worker *worker, uint32_t how)
{
    return __atomic_load_n(&worker->asleep, __ATOMIC_SEQ_CST) == how &&
           __atomic_exchange_n(&worker->asleep, 0, __ATOMIC_SEQ_CST);
}

/* Wakes it if it sleeps. What it is woken for was stored before, by an atomic. */
void worker_wake(struct worker *worker);

#endif
