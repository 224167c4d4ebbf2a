/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What waits for lanes, how it is cut into pieces, and who takes them. See crew.h.
 */
#include "storage/crew.h"

#include <stdlib.h>

#include "base/fail.h"
#include "storage/engine.h"
#include "storage/futex.h"
#include "storage/worker.h"

#define WAKE_NBYTES (1u << 20)  /* of a transfer, for each lane that is woken */
#define SMALL       (64u << 10) /* bytes of a transfer that may lie in a run */
#define REFUSALS    64u         /* in a row, before a lane that is busy looks no further */

struct crew {
    struct workers *workers;
    pthread_mutex_t lock;
    struct gpunvme_store *first, **last; /* that have transfers in their queues, by queue.next */
    size_t nready;                       /* how many stores */
    _Atomic size_t waiting;              /* how many transfers */
    _Atomic unsigned nlanes;
    struct lane *lanes[]; /* room for one in each worker */
};

/* ---- Lanes ----------------------------------------------------------------------------------- */

gpunvme_err_t crew_create(struct gpunvme_engine *engine, struct crew **out)
{
    unsigned n = workers_count(engine->workers);
    struct crew *crew = calloc(1, sizeof(*crew) + n * sizeof(crew->lanes[0]));

    *out = NULL;
    if (!crew)
        return base_fail(GPUNVME_ERR_NOMEM, "a crew");
    crew->workers = engine->workers;
    crew->last = &crew->first;
    pthread_mutex_init(&crew->lock, NULL);
    *out = crew;
    return GPUNVME_OK;
}

gpunvme_err_t lane_make_room(struct lane *lane, unsigned room)
{
    lane->hands = calloc(room, sizeof(lane->hands[0]));
    if (!lane->hands)
        return base_fail(GPUNVME_ERR_NOMEM, "a lane");
    for (; lane->nhands < room; lane->nhands++)
        lane->hands[lane->nhands].next_free = lane->nhands + 1;
    return GPUNVME_OK;
}

void crew_add(struct crew *crew, const struct lane_ops *ops, unsigned worker, struct lane *lane)
{
    unsigned n;

    pthread_mutex_lock(&crew->lock);
    n = atomic_load(&crew->nlanes);
    lane->ops = ops;
    lane->crew = crew;
    lane->worker = workers_at(crew->workers, worker);
    lane->index = n;
    crew->lanes[n] = lane;
    atomic_store(&crew->nlanes, n + 1);
    pthread_mutex_unlock(&crew->lock);
    worker_add(lane->worker, lane);
}

void crew_destroy(struct crew *crew)
{
    if (!crew)
        return;
    for (unsigned i = 0; i < atomic_load(&crew->nlanes); i++) {
        struct lane *lane = crew->lanes[i];

        worker_remove(lane->worker, crew);
        lane->ops->close(lane);
    }
    pthread_mutex_destroy(&crew->lock);
    free(crew);
}

unsigned crew_lanes(struct crew *crew)
{
    return atomic_load(&crew->nlanes);
}

/* A store with threads= has so many lanes, from its first one on. */
static bool may_serve(const struct crew *crew, unsigned lane, const struct gpunvme_store *store)
{
    const struct crew_queue *queue = &store->queue;
    unsigned n = atomic_load_explicit(&crew->nlanes, memory_order_relaxed);

    return !queue->nlanes || (lane + n - queue->first_lane % n) % n < queue->nlanes;
}

static unsigned lanes_of(const struct crew *crew, const struct gpunvme_store *store)
{
    unsigned n = atomic_load_explicit(&crew->nlanes, memory_order_relaxed);

    return store->queue.nlanes && store->queue.nlanes < n ? store->queue.nlanes : n;
}

/* ---- Waking ---------------------------------------------------------------------------------- */

#define MOST_WOKEN 16u

/* Workers that slept. They are woken without the lock: they outlive the crew. */
struct wakes {
    struct worker *workers[MOST_WOKEN];
    unsigned n;
};

/* Under the lock: up to `n` more, that may serve the store, but not `who`, which is about to sleep
 * at most. False: there were fewer. */
static bool rouse(struct crew *crew, const struct gpunvme_store *store, size_t n,
                  const struct worker *who, struct wakes *wakes)
{
    unsigned nlanes = atomic_load_explicit(&crew->nlanes, memory_order_relaxed);

    /* Those that have something in flight come last: they may have no room. */
    for (unsigned i = 0; i < 2 * nlanes && n && wakes->n < MOST_WOKEN; i++) {
        struct worker *worker = crew->lanes[i % nlanes]->worker;
        uint32_t how = i < nlanes ? WORKER_RESTS : WORKER_WAITS;

        if (worker == who || !may_serve(crew, i % nlanes, store) || !worker_rouse(worker, how))
            continue;
        wakes->workers[wakes->n++] = worker;
        n--;
    }
    return !n;
}

static void wake(const struct wakes *wakes)
{
    for (unsigned i = 0; i < wakes->n; i++)
        futex_wake(&wakes->workers[i]->asleep, 1);
}

/* ---- The queue ------------------------------------------------------------------------------- */

/* Under the lock: it is the last one whose turn it is. */
static void append_store(struct crew *crew, struct gpunvme_store *store)
{
    store->queue.next = NULL;
    *crew->last = store;
    crew->last = &store->queue.next;
    crew->nready++;
}

/* One piece is all of it. */
static bool is_small(const struct gpunvme_io *io)
{
    return io->priv.total <= SMALL && io->priv.total <= io->store->queue.piece_nbytes &&
           !io->vecs && !io->offsets && io->op != GPUNVME_OP_FLUSH && !io->priv.taken;
}

static bool is_alike(const struct gpunvme_io *a, const struct gpunvme_io *b)
{
    return a->op == b->op && a->mem == b->mem && is_small(a) && is_small(b);
}

/* Under the lock: a small transfer lies in the run of those before it. */
static void enqueue(struct crew_queue *queue, struct gpunvme_io *io)
{
    struct gpunvme_io *run = queue->last;

    io->priv.next = NULL;
    io->priv.run = 1;
    if (queue->first && run->priv.run < queue->most_run && queue->last_in_run &&
        is_alike(run, io)) {
        run->priv.run++;
        queue->last_in_run->priv.in_run = io;
    } else {
        *(queue->first ? &run->priv.next : &queue->first) = io;
        queue->last = io;
    }
    queue->last_in_run = io;
}

/* Under the lock. */
static void append(struct crew *crew, struct gpunvme_io *io)
{
    if (!io->store->queue.first)
        append_store(crew, io->store);
    enqueue(&io->store->queue, io);
}

void crew_submit(struct crew *crew, struct gpunvme_io *first, size_t n)
{
    const struct gpunvme_store *in_vain = NULL; /* all of whose lanes are awake */
    bool all_awake = false;
    struct wakes wakes = {.n = 0};

    for (const struct gpunvme_io *io = first; io; io = io->priv.next)
        __builtin_prefetch(&io->store->queue.first, 1); /* another processor had it */
    pthread_mutex_lock(&crew->lock);
    atomic_fetch_add(&crew->waiting, n);
    for (struct gpunvme_io *io = first, *next; io; io = next) {
        next = io->priv.next;
        append(crew, io);
        if (all_awake || io->store == in_vain || wakes.n == MOST_WOKEN ||
            rouse(crew, io->store, 1 + io->priv.total / WAKE_NBYTES, NULL, &wakes))
            continue;
        in_vain = io->store;
        all_awake = !in_vain->queue.nlanes; /* any lane would have done */
    }
    pthread_mutex_unlock(&crew->lock);
    wake(&wakes);
}

size_t crew_waiting(struct crew *crew)
{
    return atomic_load(&crew->waiting);
}

/* Lanes that have pieces of other stores. */
static unsigned lanes_of_others(const struct crew *crew, const struct gpunvme_store *store)
{
    unsigned n = 0;

    for (unsigned i = 0; i < atomic_load_explicit(&crew->nlanes, memory_order_relaxed); i++) {
        const struct gpunvme_store *its =
            atomic_load_explicit(&crew->lanes[i]->store, memory_order_relaxed);

        n += its && its != store;
    }
    return n;
}

/*
 * What a piece may have at most of a transfer of which so much is left: there shall be one for each
 * lane, if others in flight are like it. Those of its store that are all taken count as well: they
 * keep lanes busy. Of other stores one counts for each that waits, and for each lane at work.
 */
static size_t share_of(const struct crew *crew, const struct gpunvme_store *store, size_t left)
{
    size_t max_nbytes = store->queue.piece_nbytes, least = store->queue.least_nbytes, like_it;
    unsigned nlanes = lanes_of(crew, store);

    if (!least || left <= least)
        return max_nbytes;
    like_it = atomic_load(&store->in_flight) + crew->nready - 1 + lanes_of_others(crew, store);
    while (max_nbytes > least && ((left - 1) / max_nbytes + 1) * like_it < nlanes)
        max_nbytes /= 2;
    return max_nbytes;
}

/* Takes a store from the list. */
static void unlink_store(struct crew *crew, struct gpunvme_store *store)
{
    struct gpunvme_store **link = &crew->first;

    while (*link != store)
        link = &(*link)->queue.next;
    *link = store->queue.next;
    if (!*link)
        crew->last = link;
    crew->nready--;
}

/* Under the lock: takes the first `n` transfers out of a run; `before` it is another, or NULL. */
static void cut_run(struct crew_queue *queue, struct gpunvme_io *before, struct gpunvme_io *run,
                    size_t n)
{
    bool is_all = n == run->priv.run;
    struct gpunvme_io *rest = is_all ? run->priv.next : run;

    for (size_t i = 0; i < n && !is_all; i++)
        rest = rest->priv.in_run;
    if (!is_all) {
        rest->priv.run = (uint16_t)(run->priv.run - n);
        rest->priv.next = run->priv.next;
    }
    *(before ? &before->priv.next : &queue->first) = rest;
    if (queue->last != run)
        return;
    queue->last = is_all ? before : rest;
    if (is_all)
        queue->last_in_run = NULL; /* nobody knows it; the next one begins a run */
}

/* Takes a transfer out of its store's queue; false: it is not there. */
static bool unlink_io(struct gpunvme_io *io)
{
    struct crew_queue *queue = &io->store->queue;
    struct gpunvme_io *before = NULL;

    for (struct gpunvme_io *run = queue->first; run; before = run, run = run->priv.next) {
        struct gpunvme_io *at = run;

        if (io == run) {
            cut_run(queue, before, run, 1);
            return true;
        }
        for (unsigned left = run->priv.run - 1u; left; left--, at = at->priv.in_run) {
            if (at->priv.in_run != io)
                continue;
            at->priv.in_run = io->priv.in_run;
            run->priv.run--;
            if (queue->last_in_run == io)
                queue->last_in_run = at;
            return true;
        }
    }
    return false;
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

/* ---- Pieces ---------------------------------------------------------------------------------- */

/* What is next of a transfer, as long as it is one range of the store and of memory. */
static struct crew_piece rest_of(struct gpunvme_io *io)
{
    struct crew_piece rest = {.io = io,
                              .store = io->store,
                              .at = io->priv.taken,
                              .op = io->op,
                              .region = io->priv.region};
    size_t in = io->priv.in;
    struct store_span span;

    if (io->op == GPUNVME_OP_FLUSH)
        return rest;
    while (io->vecs && !io->vecs[io->priv.at].nbytes)
        io->priv.at++;
    span = store_io_span(io, io->priv.at, rest.at - in);
    rest.offset = span.offset + in;
    rest.ptr = span.ptr + in;
    rest.nbytes = span.nbytes - in;
    rest.mem = span.mem;
    return rest;
}

/* All of one that lies in a run. */
static struct crew_piece whole_of(struct gpunvme_io *io)
{
    return (struct crew_piece){.io = io,
                               .store = io->store,
                               .offset = io->offset,
                               .ptr = io->ptr,
                               .nbytes = io->nbytes,
                               .op = io->op,
                               .mem = io->mem,
                               .region = io->priv.region};
}

/* Adds to a piece, which is a range of a gather, those behind it that may share it. */
static void add_ranges(struct crew_piece *piece, size_t max_nbytes)
{
    const struct gpunvme_io *io = piece->io;
    size_t group = atomic_load_explicit(&piece->store->queue.group_nbytes, memory_order_relaxed);
    size_t left = io->n - io->priv.at, n;

    if (!io->offsets || io->op != GPUNVME_OP_READ || io->stride != io->nbytes || io->priv.in)
        return;
    n = (group < max_nbytes ? group : max_nbytes) / io->nbytes;
    if (n > left)
        n = left;
    if (n < 2)
        return;
    piece->offsets = io->offsets + io->priv.at;
    piece->each = io->nbytes;
    piece->nbytes = n * io->nbytes;
}

/* The next piece of a store's first transfer; *rest gets the bytes of its range. */
static struct crew_piece next_piece(const struct crew *crew, const struct gpunvme_store *store,
                                    size_t *rest)
{
    struct gpunvme_io *io = store->queue.first;
    size_t max_nbytes = share_of(crew, store, io->priv.total - io->priv.taken);
    struct crew_piece piece = rest_of(io);

    *rest = piece.nbytes;
    piece.nbytes = max_nbytes - (size_t)(piece.offset & (max_nbytes - 1));
    if (piece.nbytes > *rest)
        piece.nbytes = *rest;
    add_ranges(&piece, max_nbytes);
    return piece;
}

/* A lane has it: if there is more of its transfer, that goes to the end of the queue. */
static void take_off(const struct crew_piece *piece, size_t rest)
{
    struct crew_queue *queue = &piece->store->queue;
    struct gpunvme_io *io = piece->io;

    cut_run(queue, NULL, queue->first, 1);
    if (queue->max_in_hand)
        atomic_fetch_add(&queue->in_hand, 1);
    io->priv.taken += piece->nbytes;
    if (piece->offsets) {
        io->priv.at += piece->nbytes / piece->each;
    } else if (piece->nbytes == rest) {
        io->priv.in = 0;
        io->priv.at++;
    } else {
        io->priv.in += piece->nbytes;
    }
    if (io->priv.taken < io->priv.total)
        enqueue(queue, io);
}

/* Notes that a lane has a piece. */
static void take_in_hand(struct lane *lane, struct crew_piece *piece)
{
    struct crew_hand *hand = &lane->hands[lane->free_hand];

    piece->lane = lane;
    piece->hand = lane->free_hand;
    lane->free_hand = hand->next_free;
    lane->in_hand++;
    atomic_store_explicit(&lane->store, piece->store, memory_order_relaxed);
    hand->at = piece->at;
    atomic_store_explicit(&hand->io, piece->io, memory_order_release);
}

static void let_go(const struct crew_piece *piece)
{
    struct lane *lane = piece->lane;
    struct crew_hand *hand = &lane->hands[piece->hand];

    atomic_store_explicit(&hand->io, NULL, memory_order_release);
    hand->next_free = lane->free_hand;
    lane->free_hand = piece->hand;
    if (!--lane->in_hand)
        atomic_store_explicit(&lane->store, NULL, memory_order_relaxed);
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
    prefix = __atomic_load_n(&io->priv.taken, __ATOMIC_ACQUIRE); /* small ones: without the lock */
    for (unsigned i = 0; i < atomic_load(&crew->nlanes); i++) {
        const struct lane *lane = crew->lanes[i];

        for (unsigned k = 0; k < lane->nhands; k++)
            if (atomic_load_explicit(&lane->hands[k].io, memory_order_acquire) == io &&
                lane->hands[k].at < prefix)
                prefix = lane->hands[k].at;
    }
    pthread_mutex_unlock(&crew->lock);
    return prefix;
}

void crew_cancel(struct crew *crew, struct gpunvme_io *io)
{
    bool is_ours;

    pthread_mutex_lock(&crew->lock);
    is_ours = unlink_io(io);
    if (is_ours)
        atomic_fetch_sub(&crew->waiting, 1);
    if (is_ours && !io->store->queue.first)
        unlink_store(crew, io->store);
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

/* ---- What workers and lanes call ------------------------------------------------------------- */

/* What a lane takes at a time. */
struct taken {
    struct crew_piece *pieces; /* those without a lane get it without the lock */
    size_t n, room;
    struct gpunvme_io *moot, **last_moot; /* transfers of which nothing is needed any more */
};

/*
 * Under the lock: pieces of the first run of the store whose turn it is, as many as the lane may
 * and will have. Those behind its first one are not looked at yet: they are in no cache. False:
 * there are none.
 */
static bool take_some(struct lane *lane, struct gpunvme_store *store, struct taken *t)
{
    struct crew *crew = lane->crew;
    struct crew_queue *queue = &store->queue;
    struct crew_piece *piece = &t->pieces[t->n];
    size_t run = queue->first->priv.run, n = 0, rest;

    if (!may_serve(crew, lane->index, store) ||
        (queue->max_in_hand && atomic_load(&queue->in_hand) >= queue->max_in_hand))
        return false;
    *piece = run > 1 ? whole_of(queue->first) : next_piece(crew, store, &rest);
    while (n < run && t->n + n < t->room && (!lane->ops->admit || lane->ops->admit(lane, piece)))
        n++;
    if (!n)
        return false;
    if (run > 1) {
        cut_run(queue, NULL, queue->first, n);
        for (size_t i = 1; i < n; i++)
            piece[i] = (struct crew_piece){.io = NULL};
    } else {
        take_off(piece, rest);
        take_in_hand(lane, piece);
    }
    t->n += n;
    if (run > 1 || piece->io->priv.taken == piece->io->priv.total)
        atomic_fetch_sub(&crew->waiting, n);
    return true;
}

/* Under the lock: each store has its turn. */
static void take_pieces(struct lane *lane, struct taken *t)
{
    struct crew *crew = lane->crew;
    size_t nrefused = 0;

    while (t->n < t->room && crew->first && nrefused < crew->nready &&
           (nrefused < REFUSALS || !(lane->in_hand + t->n))) {
        struct gpunvme_store *store = crew->first;

        if (is_moot(store->queue.first)) {
            *t->last_moot = store->queue.first;
            cut_run(&store->queue, NULL, *t->last_moot, 1);
            (*t->last_moot)->priv.next = NULL;
            t->last_moot = &(*t->last_moot)->priv.next;
            atomic_fetch_sub(&crew->waiting, 1);
        } else if (take_some(lane, store, t)) {
            nrefused = 0;
        } else {
            nrefused++;
        }
        unlink_store(crew, store);
        if (store->queue.first)
            append_store(crew, store);
    }
}

/* Without the lock: the pieces of runs. Their transfers are found in no queue any more. */
static void take_runs_in_hand(struct lane *lane, struct crew_piece *pieces, size_t n)
{
    struct gpunvme_io *next = NULL;

    for (size_t i = 0; i < n; i++) {
        struct crew_piece *piece = &pieces[i];

        if (piece->lane)
            continue;
        if (!piece->io)
            *piece = whole_of(next);
        next = piece->io->priv.in_run;
        take_in_hand(lane, piece);
        __atomic_store_n(&piece->io->priv.taken, piece->nbytes, __ATOMIC_RELEASE);
    }
}

size_t crew_take(struct lane *lane, struct crew_piece *pieces, size_t room)
{
    struct crew *crew = lane->crew;
    size_t free_hands = lane->nhands - lane->in_hand;
    struct taken t = {.pieces = pieces, .room = room < free_hands ? room : free_hands};
    struct wakes wakes = {.n = 0};

    t.last_moot = &t.moot;
    pthread_mutex_lock(&crew->lock);
    take_pieces(lane, &t);
    if (t.n && crew->first) /* who submitted can't know what a piece is */
        rouse(crew, crew->first, 1, lane->worker, &wakes);
    pthread_mutex_unlock(&crew->lock);
    wake(&wakes);
    take_runs_in_hand(lane, pieces, t.n);
    find_regions(pieces, t.n);
    end_moot(t.moot);
    return t.n;
}

void crew_end(const struct crew_piece *piece, gpunvme_err_t err, size_t done)
{
    struct gpunvme_io *io = piece->io;

    if (piece->store->queue.max_in_hand)
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
