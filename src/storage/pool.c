/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Threads for calls that may block. See pool.h.
 */
#include "storage/pool.h"

#include <stdlib.h>

#include "base/cond.h"
#include "base/fail.h"
#include "storage/engine.h"
#include "storage/futex.h"
#include "storage/worker.h"

#define IDLE_NS 5000000000u

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t wake; /* there is a job that may run, or the end has come */
    pthread_cond_t left; /* a thread has */
    struct pool_job *first, **last;
    struct lane_shares shares; /* threads that have a job, by its device */
    unsigned nthreads;
    unsigned nidle, nwoken; /* that sleep, and those of them that were told to wake */
    bool stop;
};

/* ---- Which job may run ----------------------------------------------------------------------- */

/* Under the lock: takes the first job that may run; NULL: there is none. */
static struct pool_job *take(struct pool *pool)
{
    struct pool_job **link = &pool->first, *job;

    while (*link && !lane_share_take(&pool->shares, (*link)->dev, 1, POOL_THREADS))
        link = &(*link)->next;
    job = *link;
    if (!job)
        return NULL;
    *link = job->next;
    if (!*link)
        pool->last = link;
    return job;
}

/* ---- The threads ----------------------------------------------------------------------------- */

static void put_into_box(struct pool_job *job)
{
    struct pool_box *box = job->box;
    struct worker *worker = box->worker;

    job->next = atomic_load(&box->first);
    while (!atomic_compare_exchange_weak(&box->first, &job->next, job))
        ;
    worker_wake(worker);
}

/* Under the lock. False: nobody wanted it for long. */
static bool sleep_for_job(struct pool *pool)
{
    bool in_time;

    pool->nidle++;
    in_time = base_cond_wait(&pool->wake, &pool->lock, futex_deadline(IDLE_NS));
    if (pool->nwoken)
        pool->nwoken--;
    else
        pool->nidle--;
    return in_time;
}

static void *thread_main(void *pool_)
{
    struct pool *pool = pool_;
    bool in_time = true;

    pthread_mutex_lock(&pool->lock);
    for (;;) {
        struct pool_job *job = take(pool);

        if (job) {
            dev_t dev = job->dev;

            pthread_mutex_unlock(&pool->lock);
            job->run(job);
            put_into_box(job);
            pthread_mutex_lock(&pool->lock);
            lane_share_give(&pool->shares, dev, 1);
            in_time = true;
            continue;
        }
        if (pool->stop || !in_time)
            break;
        in_time = sleep_for_job(pool);
    }
    pool->nthreads--;
    pthread_cond_signal(&pool->left);
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Under the lock. */
static bool add_thread(struct pool *pool)
{
    pthread_t thread;

    if (pool->nthreads == POOL_THREADS || store_start_thread(&thread, thread_main, pool))
        return false;
    pthread_detach(thread);
    pool->nthreads++;
    return true;
}

void pool_submit(struct pool *pool, struct pool_job *job)
{
    bool alone = false;

    pthread_mutex_lock(&pool->lock);
    job->next = NULL;
    *pool->last = job;
    pool->last = &job->next;
    if (pool->nidle) {
        pool->nidle--;
        pool->nwoken++;
        pthread_cond_signal(&pool->wake);
    } else if (lane_share_may(&pool->shares, job->dev, 1, POOL_THREADS)) {
        alone = !add_thread(pool) && !pool->nthreads;
    }
    if (alone)
        take(pool); /* it: there is no other */
    pthread_mutex_unlock(&pool->lock);
    if (!alone)
        return;
    store_io_tell(); /* it may block for long */
    job->run(job);   /* no thread can be made: here, late, but done */
    pthread_mutex_lock(&pool->lock);
    lane_share_give(&pool->shares, job->dev, 1);
    pthread_mutex_unlock(&pool->lock);
    put_into_box(job);
}

struct pool_job *pool_box_take(struct pool_box *box)
{
    return atomic_load_explicit(&box->first, memory_order_relaxed)
               ? atomic_exchange(&box->first, NULL)
               : NULL;
}

unsigned pool_busy(struct pool *pool)
{
    unsigned n;

    pthread_mutex_lock(&pool->lock);
    n = (unsigned)pool->shares.total;
    pthread_mutex_unlock(&pool->lock);
    return n;
}

gpunvme_err_t pool_create(struct pool **out)
{
    struct pool *pool = *out = calloc(1, sizeof(*pool));

    if (!pool)
        return base_fail(GPUNVME_ERR_NOMEM, "threads for calls that block");
    pool->last = &pool->first;
    pthread_mutex_init(&pool->lock, NULL);
    base_cond_init(&pool->wake);
    base_cond_init(&pool->left);
    return GPUNVME_OK;
}

void pool_destroy(struct pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->wake);
    while (pool->nthreads)
        pthread_cond_wait(&pool->left, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
    pthread_cond_destroy(&pool->wake);
    pthread_cond_destroy(&pool->left);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}
