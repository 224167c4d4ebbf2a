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

#define IDLE_NS    5000000000u
#define LANE_DEPTH 16u /* pieces of a lane in the pool */

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t wake; /* there is a job that may run, or the end has come */
    pthread_cond_t left; /* a thread has */
    struct pool_job *first, **last;
    dev_t devs[POOL_THREADS]; /* of the jobs that run: the first nbusy */
    unsigned nthreads, nbusy;
    unsigned nidle, nwoken; /* that sleep, and those of them that were told to wake */
    bool stop;
};

/* ---- Which job may run ----------------------------------------------------------------------- */

/* Under the lock. */
static bool may_run(const struct pool *pool, dev_t dev)
{
    unsigned own = 0, left;

    for (unsigned i = 0; i < pool->nbusy; i++)
        own += pool->devs[i] == dev;
    left = POOL_THREADS - (pool->nbusy - own);
    return own < (left > 1 ? left / 2 : left);
}

/* Under the lock: takes the first job that may run; NULL: there is none. */
static struct pool_job *take(struct pool *pool)
{
    struct pool_job **link = &pool->first, *job;

    while (*link && !may_run(pool, (*link)->dev))
        link = &(*link)->next;
    job = *link;
    if (!job)
        return NULL;
    *link = job->next;
    if (!*link)
        pool->last = link;
    pool->devs[pool->nbusy++] = job->dev;
    return job;
}

/* Under the lock. */
static void has_run(struct pool *pool, dev_t dev)
{
    unsigned i = 0;

    while (pool->devs[i] != dev)
        i++;
    pool->devs[i] = pool->devs[--pool->nbusy];
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
            has_run(pool, dev);
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
    } else if (may_run(pool, job->dev)) {
        alone = !add_thread(pool) && !pool->nthreads;
    }
    if (alone)
        take(pool); /* it: there is no other */
    pthread_mutex_unlock(&pool->lock);
    if (!alone)
        return;
    job->run(job); /* no thread can be made: here, late, but done */
    pthread_mutex_lock(&pool->lock);
    has_run(pool, job->dev);
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
    n = pool->nbusy;
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

/* ---- Lanes ----------------------------------------------------------------------------------- */

struct served {
    struct pool_job job;
    pool_serve *serve;
    struct crew_piece piece;
    struct base_failure failure;
    size_t done;
};

struct pool_lane {
    struct lane lane;
    struct pool *pool;
    pool_serve *serve;
    struct pool_box box;
    struct lane_shares shares;
    struct served all[LANE_DEPTH], *free[LANE_DEPTH];
    unsigned nfree;
};

static void run(struct pool_job *job)
{
    struct served *s = (struct served *)job;

    s->done = 0;
    base_keep(&s->failure, s->serve(&s->piece, &s->done));
}

static bool admit(struct lane *lane, const struct crew_piece *piece)
{
    struct pool_lane *l = (struct pool_lane *)lane;

    return lane_share_take(&l->shares, piece->store->dev, 1, LANE_DEPTH);
}

static void begin(struct lane *lane, const struct crew_piece *piece)
{
    struct pool_lane *l = (struct pool_lane *)lane;
    struct served *s = l->free[--l->nfree];

    s->piece = *piece;
    s->job.dev = piece->store->dev;
    pool_submit(l->pool, &s->job);
}

static bool turn(struct lane *lane)
{
    struct pool_lane *l = (struct pool_lane *)lane;
    struct pool_job *next, *job = pool_box_take(&l->box);
    bool any = job;

    for (; job; job = next) {
        struct served *s = (struct served *)job;
        gpunvme_err_t err = s->failure.err ? base_restore(&s->failure) : GPUNVME_OK;

        next = job->next;
        l->free[l->nfree++] = s;
        lane_share_give(&l->shares, job->dev, 1);
        crew_end(&s->piece, err, s->done);
    }
    return any;
}

static void close_lane(struct lane *lane)
{
    free(lane);
}

static const struct lane_ops lane_ops = {
    .admit = admit, .begin = begin, .turn = turn, .close = close_lane};

gpunvme_err_t pool_add_lanes(struct gpunvme_engine *engine, struct crew *crew, pool_serve *serve)
{
    for (unsigned i = 0; i < workers_count(engine->workers); i++) {
        struct pool_lane *l = calloc(1, sizeof(*l));

        if (!l)
            return base_fail(GPUNVME_ERR_NOMEM, "a lane");
        l->pool = engine->pool;
        l->box.worker = workers_at(engine->workers, i);
        for (; l->nfree < LANE_DEPTH; l->nfree++) {
            struct served *s = l->free[l->nfree] = &l->all[l->nfree];

            s->job = (struct pool_job){.run = run, .box = &l->box};
            s->serve = serve;
        }
        crew_add(crew, &lane_ops, i, &l->lane);
    }
    return GPUNVME_OK;
}
