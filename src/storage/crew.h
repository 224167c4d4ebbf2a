/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A crew serves the transfers of a set of stores: of all files of an engine, of all stores of one
 * controller. Its members are lanes, at most one in each worker of the engine (worker.h). A lane
 * takes pieces of transfers, has several in flight, and ends each. Knows nothing of how bytes are
 * moved.
 *
 * Stores are served in turn, and so are the transfers of a store: a piece of each, so that small
 * ones do not wait for large ones, nor a store with one for a store with thousands.
 * Pieces end at multiples of the piece size in the store, whatever a transfer begins with. Where
 * less is left than a piece for each lane, they become smaller, so that all end together. Once a
 * piece has stopped short, what nobody has taken of its transfer is not tried any more.
 */
#ifndef STORAGE_CREW_H
#define STORAGE_CREW_H

#include "storage/internal.h"

struct crew;
struct lane;
struct worker;

/* A piece of a transfer: one range of the store, and of memory. One of 0 bytes is a flush. */
struct crew_piece {
    struct gpunvme_io *io;
    struct gpunvme_store *store;
    size_t at;       /* byte of the transfer that it begins at */
    uint64_t offset; /* byte of the store */
    uint8_t *ptr;
    size_t nbytes;
    enum gpunvme_op op;
    enum gpunvme_mem mem;
    struct store_region *region; /* registered memory that it lies in; NULL: none */
    bool holds_region;           /* it does, not its transfer */
    struct lane *lane;           /* that has it … */
    unsigned hand;               /* … and in which of its hands */
};

/*
 * What a backend does in a worker. All but close() are called by the worker's thread. A lane never
 * waits but in wait(): what may block for long goes to the engine's pool (pool.h).
 */
struct lane_ops {
    /*
     * Whether the lane takes this piece, for which it has room; then begin() follows. Called under
     * the crew's lock: it only counts. A lane that has nothing in flight has to. NULL: always.
     */
    bool (*admit)(struct lane *lane, const struct crew_piece *piece);
    void (*begin)(struct lane *lane, const struct crew_piece *piece);
    /* Takes what is in flight as far as it goes, and ends pieces by crew_end(). True: something
     * happened. Called while there are pieces in flight. */
    bool (*turn)(struct lane *lane);
    /*
     * Nothing happened: waits for the lane's own events, at most `ns`. False: it has nothing of its
     * own to wait with; then the worker sleeps until somebody wakes it (worker_wake). NULL: always.
     */
    bool (*wait)(struct lane *lane, uint64_t ns);
    void (*look)(struct lane *lane); /* every second or so, while the worker is idle. NULL: none */
    /* Frees it, when nothing is in flight and the worker has let go of it; in any thread. */
    void (*close)(struct lane *lane);
};

/*
 * What each device has of a lane: files on one hang together. One may have half of what others
 * leave, but something in any case while there is room: so one that hangs does not stop the others.
 */
#define LANE_SHARES 64u
struct lane_shares {
    size_t total, of[LANE_SHARES]; /* by device, some of which share a place */
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

/* Adds it, if there is room. */
static inline bool lane_share_take(struct lane_shares *shares, dev_t dev, size_t cost, size_t limit)
{
    size_t *own = lane_share_of(shares, dev), others = shares->total - *own;
    size_t left = others < limit ? limit - others : 0;

    if (shares->total && *own + cost > left / 2 && (*own || cost > left))
        return false;
    lane_share_add(shares, dev, cost);
    return true;
}

static inline void lane_share_give(struct lane_shares *shares, dev_t dev, size_t cost)
{
    *lane_share_of(shares, dev) -= cost;
    shares->total -= cost;
}

/* Where a piece that a lane has begins; io is NULL: it has none there. */
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
    struct crew_hand *hands; /* nhands of them */
    unsigned nhands, free_hand;
};

/* A crew without lanes. It lasts until crew_destroy(), not beyond the engine. */
gpunvme_err_t crew_create(struct gpunvme_engine *engine, struct crew **out);

/*
 * To be called before crew_add(): the lane takes at most `room` pieces at a time. lane->hands is to
 * be freed with it, also after an error. NOMEM.
 */
gpunvme_err_t lane_make_room(struct lane *lane, unsigned room);

/*
 * Adds a lane to a worker, by its index modulo their number; from any thread. It is the crew's from
 * now on. At most one in each worker.
 */
void crew_add(struct crew *crew, const struct lane_ops *ops, unsigned worker, struct lane *lane);

/* Closes all lanes, and waits for that; no store of the crew has transfers in flight. NULL is fine.
 */
void crew_destroy(struct crew *crew);

/* How many lanes it has. */
unsigned crew_lanes(struct crew *crew);

/*
 * Gives the crew transfers of any of its stores, linked by priv.next. The crew does not touch a
 * store any more once all of its transfers have ended.
 */
void crew_submit(struct crew *crew, struct gpunvme_io *first, size_t n);

/* Cancels what no lane has taken of a transfer: it ends with CANCELED behind what they have. */
void crew_cancel(struct crew *crew, struct gpunvme_io *io);

/* The length of a transfer's valid prefix by now. */
size_t crew_prefix(struct crew *crew, const struct gpunvme_io *io);

/* How many transfers wait for a lane. */
size_t crew_waiting(struct crew *crew);

/* ---- For workers and lanes ------------------------------------------------------------------- */

/* Takes up to `room` pieces, none larger than its store's queue.piece_nbytes. Returns how many. */
size_t crew_take(struct lane *lane, struct crew_piece *pieces, size_t room);

/* Ends a piece: store_io_piece(), or for a flush store_io_end(). */
void crew_end(const struct crew_piece *piece, gpunvme_err_t err, size_t done);

#endif
