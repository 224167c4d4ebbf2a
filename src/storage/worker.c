/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The threads of an engine. See worker.h.
 */
#include "storage/worker.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "base/descriptors.h"
#include "base/fail.h"
#include "base/relax.h"
#include "storage/futex.h"

#define TAKE      64u        /* pieces at once */
#define LOOKS     200u       /* for work, before a thread sleeps: some microseconds */
#define BUSY_NS   1000000u   /* for the only busy lane: other work may come meanwhile */
#define SHARED_NS 50000u     /* for one of several */
#define SLEEP_NS  100000000u /* with something in flight whose end wakes the worker */

#define LOOK_NS 1000000000u

#define TIMER_SLACK_NS 2000ul /* lanes wait for less than the usual 50 us */

struct workers {
    pthread_mutex_t lock;
    pthread_cond_t left; /* a lane has */
    _Atomic bool stop;
    unsigned n, nstarted;
    struct worker of[];
};

void worker_wake(struct worker *worker)
{
    if (__atomic_load_n(&worker->asleep, __ATOMIC_SEQ_CST) &&
        __atomic_exchange_n(&worker->asleep, 0, __ATOMIC_SEQ_CST))
        futex_wake(&worker->asleep, 1);
}

unsigned workers_count(const struct workers *workers)
{
    return workers->n;
}

struct worker *workers_at(struct workers *workers, unsigned index)
{
    return &workers->of[index % workers->n];
}

/* ---- Lanes come and go ----------------------------------------------------------------------- */

static void tell(struct worker *worker)
{
    atomic_store(&worker->changed, true);
    worker_wake(worker);
}

void worker_add(struct worker *worker, struct lane *lane)
{
    pthread_mutex_lock(&worker->all->lock);
    lane->next = worker->added;
    worker->added = lane;
    pthread_mutex_unlock(&worker->all->lock);
    tell(worker);
}

void worker_remove(struct worker *worker, struct crew *crew)
{
    struct workers *all = worker->all;

    pthread_mutex_lock(&all->lock);
    while (worker->leaving) /* another crew's */
        pthread_cond_wait(&all->left, &all->lock);
    worker->leaving = crew;
    tell(worker);
    while (worker->leaving == crew)
        pthread_cond_wait(&all->left, &all->lock);
    pthread_mutex_unlock(&all->lock);
}

static void unlink_lane(struct worker *w, const struct crew *crew)
{
    struct lane **link = &w->lanes;

    while ((*link)->crew != crew)
        link = &(*link)->next;
    *link = (*link)->next;
    w->turn_of = w->lanes;
}

/* False: the thread is to end. */
static bool update(struct worker *w)
{
    struct workers *all = w->all;
    struct lane *lane;

    pthread_mutex_lock(&all->lock);
    atomic_store(&w->changed, false);
    while ((lane = w->added)) {
        w->added = lane->next;
        lane->next = w->lanes;
        w->lanes = lane;
    }
    if (w->leaving) {
        unlink_lane(w, w->leaving);
        w->leaving = NULL;
        pthread_cond_broadcast(&all->left);
    }
    pthread_mutex_unlock(&all->lock);
    return !atomic_load(&all->stop);
}

/* ---- The thread ------------------------------------------------------------------------------ */

/* A fair share of what waits. */
static bool take_for(struct lane *lane)
{
    struct crew_piece pieces[TAKE];
    size_t waiting = crew_waiting(lane->crew), n;

    if (!waiting)
        return false;
    n = waiting / crew_lanes(lane->crew);
    n = crew_take(lane, pieces, n < 1 ? 1 : n > TAKE ? TAKE : n);
    for (size_t i = 0; i < n; i++)
        lane->ops->begin(lane, &pieces[i]);
    return n;
}

/* Takes and turns, each lane once. True: anything happened. */
static bool go_round(struct worker *w)
{
    bool moved = false;

    for (struct lane *lane = w->lanes; lane; lane = lane->next) {
        moved |= take_for(lane);
        if (lane->in_hand)
            moved |= lane->ops->turn(lane);
        store_io_tell();
    }
    return moved;
}

static bool has_work(const struct worker *w)
{
    if (atomic_load(&w->changed))
        return true;
    for (const struct lane *lane = w->lanes; lane; lane = lane->next)
        if (crew_waiting(lane->crew))
            return true;
    return false;
}

/*
 * Sleeps until it is woken, or the deadline. Who has work for it stores that first and looks then
 * whether it sleeps; it says that it sleeps and then looks for work: one of the two sees the other.
 */
static void sleep_until(struct worker *w, uint32_t how, uint64_t deadline)
{
    __atomic_store_n(&w->asleep, how, __ATOMIC_SEQ_CST);
    if (!atomic_load(&w->changed) && !go_round(w))
        futex_wait(&w->asleep, how, deadline);
    __atomic_store_n(&w->asleep, 0, __ATOMIC_SEQ_CST);
}

/* Nothing is in flight. A little while in which work may come costs less than to be woken. */
static void rest(struct worker *w)
{
    bool looks = false;

    for (const struct lane *lane = w->lanes; lane; lane = lane->next)
        looks |= lane->ops->look != NULL;
    for (unsigned i = 0; i < LOOKS; i++) {
        if (has_work(w))
            break;
        base_relax();
    }
    sleep_until(w, WORKER_RESTS,
                looks ? futex_deadline(LOOK_NS) : INT64_MAX); /* what waits may be for others */
    for (struct lane *lane = w->lanes; lane && looks; lane = lane->next)
        if (lane->ops->look)
            lane->ops->look(lane);
    store_io_tell();
}

/* Something is, and nothing happened: waits with one busy lane after the other. */
static void wait_for(struct worker *w, unsigned nbusy)
{
    struct lane *lane = w->turn_of ? w->turn_of : w->lanes;

    while (!lane->in_hand)
        lane = lane->next ? lane->next : w->lanes;
    w->turn_of = lane->next;
    if (!lane->ops->wait || !lane->ops->wait(lane, nbusy > 1 ? SHARED_NS : BUSY_NS))
        sleep_until(w, WORKER_WAITS, futex_deadline(nbusy > 1 ? SHARED_NS : SLEEP_NS));
}

static void *thread_main(void *worker)
{
    struct worker *w = worker;

    prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0);
    store_io_tell_late();
    if (w == &w->all->of[w->all->n - 1])
        base_lengthen_descriptors(); /* files will be opened */
    for (;;) {
        unsigned nbusy = 0;

        if (atomic_load(&w->changed) && !update(w))
            return NULL;
        if (go_round(w))
            continue;
        for (const struct lane *lane = w->lanes; lane; lane = lane->next)
            nbusy += lane->in_hand > 0;
        if (nbusy)
            wait_for(w, nbusy);
        else
            rest(w);
    }
}

int store_start_thread(pthread_t *thread, void *(*main_)(void *), void *arg)
{
    static const int faults[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP, SIGPROF};
    sigset_t most, before;
    int error;

    sigfillset(&most);
    for (unsigned k = 0; k < sizeof(faults) / sizeof(faults[0]); k++)
        sigdelset(&most, faults[k]);
    pthread_sigmask(SIG_SETMASK, &most, &before);
    error = pthread_create(thread, NULL, main_, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

void workers_move(struct workers *workers, const cpu_set_t *cpus)
{
    for (unsigned i = 0; i < workers->nstarted; i++)
        pthread_setaffinity_np(workers->of[i].thread, sizeof(*cpus), cpus);
}

void workers_stop(struct workers *workers)
{
    if (!workers)
        return;
    atomic_store(&workers->stop, true);
    for (unsigned i = 0; i < workers->nstarted; i++)
        tell(&workers->of[i]);
    for (unsigned i = 0; i < workers->nstarted; i++)
        pthread_join(workers->of[i].thread, NULL);
    pthread_cond_destroy(&workers->left);
    pthread_mutex_destroy(&workers->lock);
    free(workers);
}

gpunvme_err_t workers_start(unsigned n, struct workers **out)
{
    struct workers *workers = calloc(1, sizeof(*workers) + n * sizeof(workers->of[0]));

    *out = NULL;
    if (!workers)
        return base_fail(GPUNVME_ERR_NOMEM, "%u threads", n);
    workers->n = n;
    pthread_mutex_init(&workers->lock, NULL);
    pthread_cond_init(&workers->left, NULL);
    for (; workers->nstarted < n; workers->nstarted++) {
        struct worker *w = &workers->of[workers->nstarted];
        int error;

        w->all = workers;
        error = store_start_thread(&w->thread, thread_main, w);
        if (error) {
            unsigned nstarted = workers->nstarted;

            workers_stop(workers);
            return base_fail_errno(error, "thread %u of %u", nstarted + 1, n);
        }
    }
    *out = workers;
    return GPUNVME_OK;
}
