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
    for (unsigned i = 0; crew->workers && i < crew->n; i++)
        free(crew->workers[i].hands);
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
static void append(struct crew *crew, struct gpunvme_io *io)
{
    struct gpunvme_store *store = io->store;
    struct crew_queue *queue = &store->queue;

    io->priv.next = NULL;
    if (queue->first) {
        *queue->last = io;
    } else {
        queue->first = io;
        append_store(crew, store);
    }
    queue->last = &io->priv.next;
}

/* Under the lock. All regular workers have something to do, and there is more. */
static void wake_reserve(struct crew *crew)
{
    if (crew->reserve_sleeps && crew->first && !crew->sleepers)
        pthread_cond_signal(&crew->reserve_wake);
}

void crew_submit(struct crew *crew, struct gpunvme_io *first, size_t n)
{
    size_t npieces = 0;

    pthread_mutex_lock(&crew->lock);
    atomic_fetch_add(&crew->waiting, n);
    for (struct gpunvme_io *io = first, *next; io; io = next) {
        next = io->priv.next;
        npieces += 1 + io->priv.total / (1u << 20); /* about so many threads find work */
        append(crew, io);
    }
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
        store_io_piece(io, io->priv.taken, io->priv.total - io->priv.taken, GPUNVME_OK, 0);
    }
}

/* ---- Pieces ------------------------------------------------------------------------------------
 */

/* What is next of a transfer, as long as it is one range of the store and of memory. */
static struct crew_piece rest_of(struct gpunvme_io *io)
{
    struct crew_piece rest = {.io = io,
                              .store = io->store,
                              .at = io->priv.taken,
                              .op = io->op,
                              .mem = io->mem,
                              .region = io->priv.region};
    size_t in = io->priv.in;

    if (io->vecs) {
        const struct gpunvme_vec *vec = &io->vecs[io->priv.at];

        rest.offset = io->offset + rest.at;
        rest.ptr = (uint8_t *)vec->ptr + in;
        rest.nbytes = vec->nbytes - in;
        rest.mem = vec->mem;
    } else if (io->offsets) {
        rest.offset = io->offsets[io->priv.at] + in;
        rest.ptr = (uint8_t *)io->ptr + io->priv.at * io->stride + in;
        rest.nbytes = io->nbytes - in;
    } else {
        rest.offset = io->offset + rest.at;
        rest.ptr = io->ptr ? (uint8_t *)io->ptr + rest.at : NULL;
        rest.nbytes = io->priv.total - rest.at;
    }
    return rest;
}

/* `piece` of what is next has been taken. */
static void advance(struct gpunvme_io *io, const struct crew_piece *piece, bool is_all)
{
    io->priv.taken += piece->nbytes;
    io->priv.in += piece->nbytes;
    if (!is_all)
        return;
    io->priv.in = 0;
    io->priv.at++;
    while (io->vecs && io->priv.at < io->n && !io->vecs[io->priv.at].nbytes)
        io->priv.at++;
}

/* The next piece of a store's first transfer, which goes to the end of the queue if there is more
 * of it. */
static struct crew_piece next_piece(struct crew *crew, struct gpunvme_store *store)
{
    struct gpunvme_io *io = store->queue.first;
    size_t left = io->priv.total - io->priv.taken;
    size_t max_nbytes = share_of(crew, store, left);
    struct crew_piece piece = rest_of(io);
    size_t rest = piece.nbytes;

    piece.nbytes = max_nbytes - (size_t)(piece.offset & (max_nbytes - 1));
    if (piece.nbytes > rest)
        piece.nbytes = rest;
    unlink_first(&store->queue);
    advance(io, &piece, piece.nbytes == rest);
    if (piece.nbytes < left) {
        *store->queue.last = io;
        store->queue.last = &io->priv.next;
    } else {
        atomic_fetch_sub(&crew->waiting, 1);
    }
    return piece;
}

/* Under the lock: sees to it that a worker can take `room` pieces; how many it can. */
static size_t make_hands(struct crew_worker *worker, size_t room)
{
    unsigned n = worker->nhands;
    struct crew_hand *hands;

    if (worker->nfree_hands >= room)
        return room;
    hands = realloc(worker->hands, (n + room) * sizeof(*hands));
    if (!hands)
        return worker->nfree_hands;
    worker->hands = hands;
    for (worker->nhands += (unsigned)room; n < worker->nhands; n++) {
        hands[n] = (struct crew_hand){.next_free = worker->free_hand};
        worker->free_hand = n;
    }
    worker->nfree_hands += (unsigned)room;
    return room;
}

/* Under the lock: notes that a worker has a piece. */
static void take_in_hand(struct crew_worker *worker, struct crew_piece *piece)
{
    struct crew_hand *hand = &worker->hands[worker->free_hand];

    piece->worker = worker;
    piece->hand = worker->free_hand;
    worker->free_hand = hand->next_free;
    worker->nfree_hands--;
    hand->at = piece->at;
    atomic_store_explicit(&hand->io, piece->io, memory_order_release);
}

/* By its worker. */
static void let_go(const struct crew_piece *piece)
{
    struct crew_worker *worker = piece->worker;
    struct crew_hand *hand = &worker->hands[piece->hand];

    atomic_store_explicit(&hand->io, NULL, memory_order_release);
    hand->next_free = worker->free_hand;
    worker->free_hand = piece->hand;
    worker->nfree_hands++;
}

/* Without the lock: each element of a vector may lie in registered memory of its own. */
static void find_regions(struct crew_piece *pieces, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct crew_piece *piece = &pieces[i];

        if (!piece->io->vecs || piece->op == GPUNVME_OP_FLUSH)
            continue;
        piece->region = store_regions_hold(store_engine_regions(piece->store->engine), piece->ptr,
                                           piece->nbytes, piece->mem);
        piece->holds_region = piece->region;
    }
}

size_t crew_prefix(struct crew *crew, const struct gpunvme_io *io)
{
    size_t prefix;

    pthread_mutex_lock(&crew->lock);
    prefix = io->priv.taken;
    for (unsigned i = 0; i < crew->n; i++) {
        const struct crew_worker *worker = &crew->workers[i];

        for (unsigned k = 0; k < worker->nhands; k++)
            if (atomic_load_explicit(&worker->hands[k].io, memory_order_acquire) == io &&
                worker->hands[k].at < prefix)
                prefix = worker->hands[k].at;
    }
    pthread_mutex_unlock(&crew->lock);
    return prefix;
}

/* Under the lock. */
static void unlink_this_store(struct crew *crew, struct gpunvme_store *store)
{
    struct gpunvme_store **link = &crew->first;

    while (*link != store)
        link = &(*link)->queue.next;
    *link = store->queue.next;
    if (!*link)
        crew->last = link;
    crew->nready--;
}

/* Under the lock: takes a transfer out of its store's queue; false: it is not there. */
static bool unlink_io(struct crew *crew, struct gpunvme_io *io)
{
    struct crew_queue *queue = &io->store->queue;
    struct gpunvme_io **link = &queue->first;

    while (*link && *link != io)
        link = &(*link)->priv.next;
    if (!*link)
        return false;
    *link = io->priv.next;
    if (!*link)
        queue->last = link;
    if (!queue->first)
        unlink_this_store(crew, io->store);
    atomic_fetch_sub(&crew->waiting, 1);
    io->priv.next = NULL;
    return true;
}

void crew_cancel(struct crew *crew, struct gpunvme_io *io)
{
    bool is_ours;

    pthread_mutex_lock(&crew->lock);
    is_ours = unlink_io(crew, io);
    pthread_mutex_unlock(&crew->lock);
    if (!is_ours)
        return;
    base_fail(GPUNVME_ERR_CANCELED, "after %zu of %zu bytes were begun", io->priv.taken,
              io->priv.total);
    if (io->op == GPUNVME_OP_FLUSH)
        store_io_end(io, GPUNVME_ERR_CANCELED, 0);
    else
        store_io_piece(io, io->priv.taken, io->priv.total - io->priv.taken, GPUNVME_ERR_CANCELED,
                       0);
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
static size_t take_pieces(struct crew_worker *worker, struct crew_piece *pieces, size_t room,
                          struct gpunvme_io **moot)
{
    struct crew *crew = worker->crew;
    size_t n = 0;

    room = make_hands(worker, room);
    while (n < room && crew->first) {
        struct gpunvme_store *store = crew->first;

        if (is_moot(store->queue.first)) {
            *moot = unlink_first(&store->queue);
            moot = &(*moot)->priv.next;
            atomic_fetch_sub(&crew->waiting, 1);
        } else {
            pieces[n] = next_piece(crew, store);
            take_in_hand(worker, &pieces[n++]);
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

static size_t take_in_reserve(struct crew_worker *worker, struct crew_piece *pieces, size_t room,
                              bool wait, bool *stop)
{
    struct crew *crew = worker->crew;
    struct gpunvme_io *moot = NULL, **last = &moot;
    size_t n = 0;

    pthread_mutex_lock(&crew->lock);
    if (wait)
        wait_until_needed(crew);
    while (n < room && is_needed(crew)) {
        n += take_pieces(worker, pieces + n, 1, last);
        while (*last)
            last = &(*last)->priv.next;
    }
    for (size_t i = 0; i < n; i++)
        pieces[i].in_reserve = true;
    *stop = !n && atomic_load(&crew->stop);
    pthread_mutex_unlock(&crew->lock);
    find_regions(pieces, n);
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
        return take_in_reserve(worker, pieces, room, wait_ns, stop);
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
    n = take_pieces(worker, pieces, room, &moot);
    for (size_t i = 0; i < n; i++)
        atomic_fetch_add(&pieces[i].store->queue.in_hand, 1);
    is_seen(worker);
    if (n && crew->first && crew->sleepers)
        pthread_cond_signal(&crew->wake); /* who submitted can't know what a piece is */
    wake_reserve(crew);
    *stop = !n && atomic_load(&crew->stop);
    pthread_mutex_unlock(&crew->lock);
    find_regions(pieces, n);
    end_moot(moot);
    return n;
}

void crew_end(const struct crew_piece *piece, gpunvme_err_t err, size_t done)
{
    struct gpunvme_io *io = piece->io;

    if (!piece->in_reserve)
        atomic_fetch_sub(&piece->store->queue.in_hand, 1);
    if (piece->holds_region)
        store_region_release(piece->region);
    if (piece->op == GPUNVME_OP_FLUSH) {
        let_go(piece);
        store_io_end(io, err, 0);
        return;
    }
    if (err || done < piece->nbytes)
        store_io_stop(io, piece->at + done, err);
    let_go(piece); /* who asks for the valid prefix finds either the piece or where it stopped */
    store_io_ended(io, piece->nbytes);
}
