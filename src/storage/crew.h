/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A crew: threads that serve the transfers of one store or of many. Each takes pieces of them, has
 * as many in flight as it likes, and gives each back when it has ended. Knows nothing of how bytes
 * are moved.
 *
 * A crew of many stores may have a worker in reserve. When all others are held up it serves stores
 * of which they have nothing in hand: where a file system hangs, stores on others go on.
 *
 * Stores are served in turn, and so are the transfers of a store: a piece of each, so that small
 * ones do not wait for large ones, nor a store with one for a store with thousands.
 * Pieces end at multiples of the piece size in the store, whatever a transfer begins with. Where
 * less is left than a piece for each thread, they become smaller, so that all end together. Once a
 * piece has stopped short, what nobody has taken of its transfer is not tried any more.
 */
#ifndef STORAGE_CREW_H
#define STORAGE_CREW_H

#include "storage/internal.h"

struct crew;

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
    bool in_reserve;             /* the worker in reserve has it */
    struct crew_worker *worker;  /* in whose hands it is … */
    unsigned hand;               /* … and in which of them */
};

/* Where a piece that a worker has begins; io is NULL: it has none there. */
struct crew_hand {
    _Atomic(const struct gpunvme_io *) io;
    size_t at;
    unsigned next_free;
};

struct crew_worker {
    struct crew *crew;
    struct gpunvme_store *store; /* crew_start(); else NULL */
    void *shared;                /* crew_start_shared() */
    unsigned index;
    void *state;              /* the backend's */
    _Atomic uint64_t seen_at; /* when it asked for work last; 0: it has not begun */
    struct crew_hand *hands;  /* moved under the crew's lock, by the worker alone */
    unsigned nhands, nfree_hands, free_hand;
};

struct crew_ops {
    /* In the opener's thread, for each worker; release undoes it when the thread has ended. Both
     * may be NULL. */
    gpunvme_err_t (*prepare)(struct crew_worker *worker);
    void (*release)(struct crew_worker *worker);
    /* The thread: takes pieces until crew_take() says stop. */
    void (*work)(struct crew_worker *worker);
};

/* Starts `n` threads for one store; on failure nothing is left. */
gpunvme_err_t crew_start(struct gpunvme_store *store, const struct crew_ops *ops, unsigned n,
                         struct crew **out);

/*
 * The same for stores that come and go. `shared` is for the workers. With `reserve` there is one
 * worker more, whose index is n.
 */
gpunvme_err_t crew_start_shared(void *shared, const struct crew_ops *ops, unsigned n, bool reserve,
                                struct crew **out);

/* Ends them; nothing is in flight. NULL is fine. */
void crew_stop(struct crew *crew);

/*
 * Gives the crew transfers of any of its stores, linked by priv.next. The crew does not touch a
 * store any more once all of its transfers have ended.
 */
void crew_submit(struct crew *crew, struct gpunvme_io *first, size_t n);

/* Takes a transfer back, as far as no worker has it: it ends with CANCELED behind what they have.
 */
void crew_cancel(struct crew *crew, struct gpunvme_io *io);

/* The length of a transfer's valid prefix by now. */
size_t crew_prefix(struct crew *crew, const struct gpunvme_io *io);

/*
 * Takes up to `room` pieces, none larger than its store's queue.piece_nbytes. Waits up to wait_ns
 * for the first, for ever with CREW_FOR_EVER; 0 where the worker has others in flight to look
 * after. Returns how many, 0 after that time. *stop is set when the worker has to end: then there
 * are none and will be none.
 */
#define CREW_FOR_EVER UINT64_MAX
size_t crew_take(struct crew_worker *worker, struct crew_piece *pieces, size_t room,
                 uint64_t wait_ns, bool *stop);

/* Ends a piece: store_io_piece(), or for a flush store_io_end(). */
void crew_end(const struct crew_piece *piece, gpunvme_err_t err, size_t done);

/* How many transfers wait for a thread. */
size_t crew_waiting(struct crew *crew);

#endif
