/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A crew serves the transfers of a set of stores: all files of an engine, or all stores on one
 * controller. It consists of lanes, at most one in each worker of the engine (worker.h). A lane
 * takes pieces of transfers, has several in flight, and ends each. A crew does not know how bytes
 * are moved.
 *
 * Stores take turns, and so do the transfers of a store: one piece each, or a run of small
 * transfers. So a small transfer does not wait for a large one, nor a store with one transfer for a
 * store with thousands. Pieces end at
 * multiples of the piece size in the store, wherever a transfer begins. If less than a piece for
 * each lane is left, pieces become smaller, so that all lanes end together. After a piece has
 * stopped short, pieces of its transfer that no lane has taken are not tried.
 */
#ifndef STORAGE_CREW_H
#define STORAGE_CREW_H

#include "storage/internal.h"

struct crew;
struct lane;
struct worker;

/*
 * A piece of a transfer: one range of memory, and one of the store, or several ranges of equal
 * length if the backend has set queue.group_nbytes. One of 0 bytes is a flush.
 */
struct crew_piece {
    struct gpunvme_io *io;
    struct gpunvme_store *store;
    size_t at;       /* byte of the transfer that it begins at */
    uint64_t offset; /* byte of the store */
    uint8_t *ptr;
    size_t nbytes;
    const uint64_t *offsets; /* of its ranges in the store, `each` bytes long; NULL: it is one */
    size_t each;
    enum gpunvme_op op;
    enum gpunvme_mem mem;
    struct store_region *region; /* registered memory that it lies in; NULL: none */
    bool holds_region;           /* it does, not its transfer */
    struct lane *lane;           /* that has it … */
    unsigned hand;               /* … and in which of its hands */
};

/*
 * What a backend does in a worker. The worker's thread calls all but close(). A lane waits only in
 * wait(): calls that may block for long go to the engine's pool (pool.h).
 */
struct lane_ops {
    /*
     * Whether the lane, which has room, takes this piece; begin() follows if so. It is called
     * under the crew's lock and must be quick: for a run of small transfers once for each of them,
     * with the first one's piece. An idle lane has to take it. NULL: always.
     */
    bool (*admit)(struct lane *lane, const struct crew_piece *piece);
    void (*begin)(struct lane *lane, const struct crew_piece *piece);
    /* Advances the pieces in flight, and ends them by crew_end(). True: something happened. Called
     * while there are pieces in flight. */
    bool (*turn)(struct lane *lane);
    /*
     * Waits for the lane's own events, at most `ns`, after a turn in which nothing happened.
     * False: it can't wait for them; the worker then sleeps until worker_wake(). NULL: it never
     * can.
     */
    bool (*wait)(struct lane *lane, uint64_t ns);
    void (*look)(struct lane *lane); /* about once a second while the worker is idle. May be NULL */
    /* Frees the lane. Nothing is in flight, and the worker does not have it any more. In any
     * thread.
     */
    void (*close)(struct lane *lane);
};

/*
 * How much of a lane each device uses. Files on one device hang together. So a device gets at most
 * half of what others leave free, but always something while there is room: one that hangs does not
 * stop the others.
 */
#define LANE_SHARES 64u
struct lane_shares {
    size_t total, of[LANE_SHARES]; /* by a hash of the device */
};

static inline size_t *lane_share_of(struct lane_shares *shares, dev_t dev)
{
    return &shares->of[(dev ^ dev >> 8) % LANE_SHARES];
}

static inline void lane_share_add(struct lane_shares *shares, dev_t dev, size_t cost)
{
    *lane_share_of(shares, dev) += cost;
    shares->total += cost;
}

/* Whether there is room for it. */
static inline bool lane_share_may(struct lane_shares *shares, dev_t dev, size_t cost, size_t limit)
{
    size_t own = *lane_share_of(shares, dev), others = shares->total - own;
    size_t left = others < limit ? limit - others : 0;

    return !shares->total || own + cost <= left / 2 || (!own && cost <= left);
}

/* Adds it, if there is. */
static inline bool lane_share_take(struct lane_shares *shares, dev_t dev, size_t cost, size_t limit)
{
    bool may = lane_share_may(shares, dev, cost, limit);

    if (may)
        lane_share_add(shares, dev, cost);
    return may;
}

static inline void lane_share_give(struct lane_shares *shares, dev_t dev, size_t cost)
{
    *lane_share_of(shares, dev) -= cost;
    shares->total -= cost;
}

/* Where a piece that a lane has begins; io is NULL if there is no piece. */
struct crew_hand {
    _Atomic(const struct gpunvme_io *) io;
    size_t at;
    unsigned next_free;
};

/* The head of a backend's own structure; crew_add() fills it in. */
struct lane {
    const struct lane_ops *ops;
    struct crew *crew;
    struct worker *worker;
    unsigned index; /* among the crew's lanes */
    size_t in_hand; /* pieces that it has taken and not ended. The worker's, like all below */
    struct lane *next;
    _Atomic(const struct gpunvme_store *) store; /* of a piece that it has, perhaps closed since */
    struct crew_hand *hands;                     /* nhands of them */
    unsigned nhands, free_hand;
};

/* Creates a crew without lanes. Destroy it before the engine. */
gpunvme_err_t crew_create(struct gpunvme_engine *engine, struct crew **out);

/*
 * To be called before crew_add(): the lane takes at most `room` pieces at a time. lane->hands is to
 * be freed with it, also after an error. NOMEM.
 */
gpunvme_err_t lane_make_room(struct lane *lane, unsigned room);

/*
 * Adds a lane to a worker, given by its index modulo their number; in any thread. The crew owns the
 * lane from now on. At most one in each worker.
 */
void crew_add(struct crew *crew, const struct lane_ops *ops, unsigned worker, struct lane *lane);

/* Closes all lanes and frees the crew, none of whose stores has transfers in flight. NULL is
 * allowed. */
void crew_destroy(struct crew *crew);

/* How many lanes it has. */
unsigned crew_lanes(struct crew *crew);

/*
 * Submits transfers of any stores of the crew, linked by priv.next. The crew does not touch a store
 * after all of its transfers have ended.
 */
void crew_submit(struct crew *crew, struct gpunvme_io *first, size_t n);

/* Cancels the part of a transfer that no lane has taken. It ends with CANCELED behind the rest. */
void crew_cancel(struct crew *crew, struct gpunvme_io *io);

/* The length of a transfer's valid prefix now. */
size_t crew_prefix(struct crew *crew, const struct gpunvme_io *io);

/* How many transfers wait for a lane. */
size_t crew_waiting(struct crew *crew);

/* ---- For workers and lanes ------------------------------------------------------------------- */

/* Takes up to `room` pieces, none larger than its store's queue.piece_nbytes. Returns how many. */
size_t crew_take(struct lane *lane, struct crew_piece *pieces, size_t room);

/* Ends a piece: store_io_piece(), or for a flush store_io_end(). */
void crew_end(const struct crew_piece *piece, gpunvme_err_t err, size_t done);

/* The byte of the store that byte `at` of a piece is; *nbytes: how many of the piece follow it in
 * the same range, itself included. */
static inline uint64_t crew_offset(const struct crew_piece *piece, size_t at, size_t *nbytes)
{
    size_t in;

    if (!piece->offsets) {
        *nbytes = piece->nbytes - at;
        return piece->offset + at;
    }
    in = at % piece->each;
    *nbytes = piece->each - in;
    return piece->offsets[at / piece->each] + in;
}

#endif
