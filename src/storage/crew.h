/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A crew: threads that serve a store's transfers. Each takes pieces of them, has as many in flight
 * as it likes, and gives each back when it has ended. Knows nothing of how bytes are moved.
 *
 * Transfers are served in turn, a piece of each, so that small ones do not wait for large ones.
 * Pieces end at multiples of the piece size in the store, whatever a transfer begins with. Where
 * less is left than a piece for each thread, they become smaller, so that all end together. Once a
 * piece has stopped short, what nobody has taken of its transfer is not tried any more.
 */
#ifndef STORAGE_CREW_H
#define STORAGE_CREW_H

#include "storage/internal.h"

struct crew;

/* A piece of a transfer; one of 0 bytes is a flush. */
struct crew_piece {
    struct gpunvme_io *io;
    size_t at;       /* byte of the transfer that it begins at */
    uint64_t offset; /* byte of the store */
    uint8_t *ptr;
    size_t nbytes;
};

struct crew_worker {
    struct crew *crew;
    struct gpunvme_store *store;
    unsigned index;
    void *state; /* the backend's */
};

struct crew_ops {
    /* In the opener's thread, for each worker; release undoes it when the thread has ended. Both
     * may be NULL. */
    gpunvme_err_t (*prepare)(struct crew_worker *worker);
    void (*release)(struct crew_worker *worker);
    /* The thread: takes pieces until crew_take() says stop. */
    void (*work)(struct crew_worker *worker);
    /* Pieces are smaller than asked for, a power of two and so much at least, while there would be
     * fewer than threads; 0: never. */
    size_t least_nbytes;
};

/* Starts `n` threads; on failure nothing is left. */
gpunvme_err_t crew_start(struct gpunvme_store *store, const struct crew_ops *ops, unsigned n,
                         struct crew **out);

/* Ends them; nothing is in flight. NULL is fine. */
void crew_stop(struct crew *crew);

/* Gives the crew transfers, linked by priv.next (store_backend.submit). */
void crew_submit(struct crew *crew, struct gpunvme_io *first, size_t n);

/*
 * Takes up to `room` pieces of at most `max_nbytes`, a power of two. Waits up to wait_ns for the
 * first; 0 where the worker has others in flight to look after. Returns how many, 0 after that
 * time. *stop is set when the worker has to end: then there are none and will be none.
 */
size_t crew_take(struct crew_worker *worker, struct crew_piece *pieces, size_t room,
                 size_t max_nbytes, uint64_t wait_ns, bool *stop);

/* Ends a piece: store_io_piece(), or for a flush store_io_end(). */
void crew_end(const struct crew_piece *piece, gpunvme_err_t err, size_t done);

/* How many transfers wait for a thread. */
size_t crew_waiting(struct crew *crew);

#endif
