/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Threads that serve the transfers of stores. See crew.h.
 */
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "base/cond.h"
#include "base/fail.h"
#include "base/relax.h"
#include "storage/crew.h"
#include "storage/futex.h"

#define LOOKS    200u      /* for work, before a thread sleeps: some microseconds */
#define STALL_NS 20000000u /* a worker that has not asked for work so long is held up */

struct crew {
    struct gpunvme_store *store; /* the only one; NULL: many */
    void *shared;
    const struct crew_ops *ops;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct gpunvme_store *first, **last; /* that have transfers in their queues, by queue.next */
    size_t nready;                       /* how many stores */
    _Atomic size_t waiting;              /* how many transfers */
    unsigned sleepers;
    unsigned nregular;           /* workers but the one in reserve */
    pthread_cond_t reserve_wake; /* for the one in reserve */
    bool reserve_sleeps;         /* until somebody wakes it */
    _Atomic bool stop;
    unsigned n, nprepared, nstarted;
    pthread_t *threads;
    struct crew_worker *workers;
};

static void *thread_main(void *worker_)
{
    struct crew_worker *worker = worker_;

    worker->crew->ops->work(worker);
    return NULL;
}

void crew_stop(struct crew *crew)
{
    if (!crew)
        return;
    pthread_mutex_lock(&crew->lock);
    atomic_store(&crew->stop, true);
    pthread_cond_broadcast(&crew->wake);
    pthread_cond_broadcast(&crew->reserve_wake);
    pthread_mutex_unlock(&crew->lock);
    for (unsigned i = 0; i < crew->nstarted; i++)
        pthread_join(crew->threads[i], NULL);
    for (unsigned i = 0; i < crew->nprepared && crew->ops->release; i++)
        crew->ops->release(&crew->workers[i]);
    pthread_cond_destroy(&crew->wake);
    pthread_cond_destroy(&crew->reserve_wake);
    pthread_mutex_destroy(&crew->lock);
    free(crew->threads);
    free(crew->workers);
    free(crew);
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

static gpunvme_err_t start_all(struct crew *crew)
{
    for (; crew->nprepared < crew->n; crew->nprepared++) {
        struct crew_worker *worker = &crew->workers[crew->nprepared];
        gpunvme_err_t err;

        worker->crew = crew;
        worker->store = crew->store;
        worker->shared = crew->shared;
        worker->index = crew->nprepared;
        err = crew->ops->prepare ? crew->ops->prepare(worker) : GPUNVME_OK;
        if (err)
            return err;
    }
    for (; crew->nstarted < crew->n; crew->nstarted++) {
        unsigned i = crew->nstarted;
        int error = store_start_thread(&crew->threads[i], thread_main, &crew->workers[i]);

        if (error)
            return base_fail_errno(error, "thread %u of %u", i + 1, crew->n);
    }
    return GPUNVME_OK;
}

static void init_sync(struct crew *crew)
{
    pthread_mutex_init(&crew->lock, NULL);
    base_cond_init(&crew->wake);
    base_cond_init(&crew->reserve_wake);
}

static gpunvme_err_t start(struct gpunvme_store *store, void *shared, const struct crew_ops *ops,
                           unsigned n, bool reserve, struct crew **out)
{
    struct crew *crew = calloc(1, sizeof(*crew));
    gpunvme_err_t err = GPUNVME_OK;

    *out = NULL;
    if (!crew)
        return base_fail(GPUNVME_ERR_NOMEM, "a crew");
    crew->store = store;
    crew->shared = shared;
    crew->ops = ops;
    crew->nregular = n;
    crew->n = n = n + reserve;
    crew->last = &crew->first;
    init_sync(crew);
    crew->threads = calloc(n, sizeof(*crew->threads));
    crew->workers = calloc(n, sizeof(*crew->workers));
    if (!crew->threads || !crew->workers)
        err = base_fail(GPUNVME_ERR_NOMEM, "%u threads", n);
    if (!err)
        err = start_all(crew);
    if (err) {
        crew_stop(crew);
        return err;
    }
    *out = crew;
    return GPUNVME_OK;
}

gpunvme_err_t crew_start(struct gpunvme_store *store, const struct crew_ops *ops, unsigned n,
                         struct crew **out)
{
    return start(store, NULL, ops, n, false, out);
}

gpunvme_err_t crew_start_shared(void *shared, const struct crew_ops *ops, unsigned n, bool reserve,
                                struct crew **out)
{
    return start(NULL, shared, ops, n, reserve, out);
}

/* Under the lock: it is the last one whose turn it is. */
static void append_store(struct crew *crew, struct gpunvme_store *store)
{
    store->queue.next = NULL;
    *crew->last = store;
    crew->last = &store->queue.next;
    crew->nready++;
}

/* Under the lock. */
static void append(struct crew *crew, struct gpunvme_io *first, struct gpunvme_io *last)
{
    struct gpunvme_store *store = first->priv.store;
    struct crew_queue *queue = &store->queue;

    if (queue->first) {
        *queue->last = first;
    } else {
        queue->first = first;
        append_store(crew, store);
    }
    queue->last = &last->priv.next;
}

/* Under the lock. All regular workers have something to do, and there is more. */
static void wake_reserve(struct crew *crew)
{
    if (crew->reserve_sleeps && crew->first && !crew->sleepers)
        pthread_cond_signal(&crew->reserve_wake);
}

void crew_submit(struct crew *crew, struct gpunvme_io *first, size_t n)
{
    struct gpunvme_io *last = first;
    size_t npieces = 0;

    while (last->priv.next)
        last = last->priv.next;
    pthread_mutex_lock(&crew->lock);
    append(crew, first, last);
    atomic_fetch_add(&crew->waiting, n);
    for (struct gpunvme_io *io = first; io && npieces <= crew->sleepers; io = io->priv.next)
        npieces += 1 + io->nbytes / (1u << 20); /* about so many threads find work */
    if (npieces < crew->sleepers)
        for (size_t i = 0; i < npieces; i++)
            pthread_cond_signal(&crew->wake);
    else if (crew->sleepers)
        pthread_cond_broadcast(&crew->wake);
    wake_reserve(crew);
    pthread_mutex_unlock(&crew->lock);
}

size_t crew_waiting(struct crew *crew)
{
    return atomic_load_explicit(&crew->waiting, memory_order_relaxed);
}

/*
 * What a piece may have at most of a transfer of which so much is left: there shall be one for each
 * thread, if others in flight are like it. Those of its store that are all taken count as well:
 * they keep threads busy. Of other stores one counts for each that waits.
 */
static size_t share_of(const struct crew *crew, const struct gpunvme_store *store, size_t left)
{
    size_t like_it = atomic_load(&store->in_flight) + crew->nready - 1;
    size_t max_nbytes = store->queue.piece_nbytes, least = store->queue.least_nbytes;

    while (least && max_nbytes > least && ((left - 1) / max_nbytes + 1) * like_it < crew->nregular)
        max_nbytes /= 2;
    return max_nbytes;
}

/* To some milliseconds. */
static uint64_t rough_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Takes the store whose turn it is from the list. */
static struct gpunvme_store *unlink_store(struct crew *crew)
{
    struct gpunvme_store *store = crew->first;

    crew->first = store->queue.next;
    if (!crew->first)
        crew->last = &crew->first;
    crew->nready--;
    return store;
}

/* Takes the first transfer from a store's queue. */
static struct gpunvme_io *unlink_first(struct crew_queue *queue)
{
    struct gpunvme_io *io = queue->first;

    queue->first = io->priv.next;
    if (!queue->first)
        queue->last = &queue->first;
    io->priv.next = NULL;
    return io;
}

/*
 * A part before what is left of it has stopped short: at the end of the store, or by an error. What
 * is left may be 2^60 bytes, and would change nothing.
 */
static bool is_moot(const struct gpunvme_io *io)
{
    return __atomic_load_n(&io->priv.stop, __ATOMIC_RELAXED) < io->priv.taken;
}

/* Without the lock, for a callback may submit. */
static void end_moot(struct gpunvme_io *io)
{
    struct gpunvme_io *next;

    for (; io; io = next) {
        next = io->priv.next;
        store_io_piece(io, io->priv.taken, io->nbytes - io->priv.taken, GPUNVME_OK, 0);
    }
}

/* The next piece of a store's first transfer, which goes to the end of the queue if there is more
 * of it. */
static struct crew_piece next_piece(struct crew *crew, struct gpunvme_store *store)
{
    struct gpunvme_io *io = store->queue.first;
    struct crew_piece piece = {.io = io, .at = io->priv.taken};
    size_t left = io->nbytes - io->priv.taken;
    size_t max_nbytes = share_of(crew, store, left);

    piece.offset = io->offset + piece.at;
    piece.ptr = io->ptr ? (uint8_t *)io->ptr + piece.at : NULL;
    piece.nbytes = max_nbytes - (size_t)(piece.offset & (max_nbytes - 1));
    if (piece.nbytes > left)
        piece.nbytes = left;
    if (io->op == GPUNVME_OP_FLUSH)
        piece.nbytes = 0;
    unlink_first(&store->queue);
    io->priv.taken += piece.nbytes;
    if (piece.nbytes < left && io->op != GPUNVME_OP_FLUSH) {
        *store->queue.last = io;
        store->queue.last = &io->priv.next;
    } else {
        atomic_fetch_sub(&crew->waiting, 1);
    }
    return piece;
}

/* Under the lock: sleeps until there is something to do, or the deadline. */
static void sleep_until(struct crew *crew, uint64_t deadline)
{
    bool in_time = true;

    crew->sleepers++;
    while (!crew->first && !atomic_load(&crew->stop) && in_time)
        in_time = base_cond_wait(&crew->wake, &crew->lock, deadline);
    crew->sleepers--;
}

/* A little while in which work may come, before a thread goes to sleep for it. */
static void look_around(struct crew *crew)
{
    for (unsigned i = 0; i < LOOKS && !crew_waiting(crew) && !atomic_load(&crew->stop); i++)
        base_relax();
}

/*
 * Under the lock: up to `room` pieces, one of each store in turn; *moot gets the transfers of which
 * none is needed any more.
 */
static size_t take_pieces(struct crew *crew, struct crew_piece *pieces, size_t room,
                          struct gpunvme_io **moot)
{
    size_t n = 0;

    while (n < room && crew->first) {
        struct gpunvme_store *store = crew->first;

        if (is_moot(store->queue.first)) {
            *moot = unlink_first(&store->queue);
            moot = &(*moot)->priv.next;
            atomic_fetch_sub(&crew->waiting, 1);
        } else {
            pieces[n++] = next_piece(crew, store);
        }
        unlink_store(crew);
        if (store->queue.first)
            append_store(crew, store);
    }
    return n;
}

/* ---- The worker in reserve ---------------------------------------------------------------------
 */

/* Under the lock: makes the first store one that holds nobody up. False: there is none. */
static bool find_store_that_works(struct crew *crew)
{
    for (size_t i = crew->nready; i > 0; i--) {
        if (!atomic_load(&crew->first->queue.in_hand))
            return true;
        append_store(crew, unlink_store(crew));
    }
    return false;
}

/* None of the regular workers sleeps, nor has one asked for work lately. */
static bool all_are_held_up(struct crew *crew)
{
    uint64_t now = rough_now();

    for (unsigned i = 0; i < crew->nregular; i++) {
        uint64_t seen_at = atomic_load(&crew->workers[i].seen_at);

        if (!seen_at || seen_at + STALL_NS >= now)
            return false;
    }
    return !crew->sleepers;
}

/* Under the lock. */
static bool is_needed(struct crew *crew)
{
    return crew->first && all_are_held_up(crew) && find_store_that_works(crew);
}

/* Under the lock. It sleeps until all others are busy; then it looks now and then. */
static void wait_until_needed(struct crew *crew)
{
    while (!atomic_load(&crew->stop) && !is_needed(crew)) {
        crew->reserve_sleeps = !crew->first;
        if (crew->reserve_sleeps)
            pthread_cond_wait(&crew->reserve_wake, &crew->lock);
        else
            base_cond_wait(&crew->reserve_wake, &crew->lock, futex_deadline(STALL_NS));
        crew->reserve_sleeps = false;
    }
}

static size_t take_in_reserve(struct crew *crew, struct crew_piece *pieces, size_t room, bool wait,
                              bool *stop)
{
    struct gpunvme_io *moot = NULL, **last = &moot;
    size_t n = 0;

    pthread_mutex_lock(&crew->lock);
    if (wait)
        wait_until_needed(crew);
    while (n < room && is_needed(crew)) {
        n += take_pieces(crew, pieces + n, 1, last);
        while (*last)
            last = &(*last)->priv.next;
    }
    for (size_t i = 0; i < n; i++)
        pieces[i].in_reserve = true;
    *stop = !n && atomic_load(&crew->stop);
    pthread_mutex_unlock(&crew->lock);
    end_moot(moot);
    return n;
}

/* ---- What workers call -------------------------------------------------------------------------
 */

/* For the one in reserve. */
static void is_seen(struct crew_worker *worker)
{
    if (worker->crew->n > worker->crew->nregular)
        atomic_store_explicit(&worker->seen_at, rough_now(), memory_order_relaxed);
}

size_t crew_take(struct crew_worker *worker, struct crew_piece *pieces, size_t room,
                 uint64_t wait_ns, bool *stop)
{
    struct crew *crew = worker->crew;
    struct gpunvme_io *moot = NULL;
    size_t n;

    if (worker->index >= crew->nregular)
        return take_in_reserve(crew, pieces, room, wait_ns, stop);
    is_seen(worker);
    if (!crew_waiting(crew)) {
        if (!wait_ns) {
            *stop = atomic_load(&crew->stop);
            return 0;
        }
        look_around(crew);
    }
    pthread_mutex_lock(&crew->lock);
    if (!crew->first && wait_ns)
        sleep_until(crew, futex_deadline(wait_ns));
    n = take_pieces(crew, pieces, room, &moot);
    for (size_t i = 0; i < n; i++)
        atomic_fetch_add(&pieces[i].io->priv.store->queue.in_hand, 1);
    is_seen(worker);
    if (n && crew->first && crew->sleepers)
        pthread_cond_signal(&crew->wake); /* who submitted can't know what a piece is */
    wake_reserve(crew);
    *stop = !n && atomic_load(&crew->stop);
    pthread_mutex_unlock(&crew->lock);
    end_moot(moot);
    return n;
}

void crew_end(const struct crew_piece *piece, gpunvme_err_t err, size_t done)
{
    if (!piece->in_reserve)
        atomic_fetch_sub(&piece->io->priv.store->queue.in_hand, 1);
    if (piece->io->op == GPUNVME_OP_FLUSH)
        store_io_end(piece->io, err, 0);
    else
        store_io_piece(piece->io, piece->at, piece->nbytes, err, done);
}
