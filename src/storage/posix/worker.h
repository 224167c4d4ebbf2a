/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A lane of the posix backend, and the pieces of transfers in its hands. They are of any files. A
 * store may be closed as soon as its last piece has been given back.
 *
 * A piece is "started" when it has a place in memory; "advanced" by one request after the other
 * until its bytes are moved, the file ends, or an error; "finished" when the file has done its
 * part. One in a slot is ended when the slot's copies are done, others at once.
 */
#ifndef STORAGE_POSIX_WORKER_H
#define STORAGE_POSIX_WORKER_H

#include "memory/ranges.h"
#include "storage/pool.h"
#include "storage/posix/engine.h"
#include "storage/worker.h"

#define POSIX_LEAST_COST (64u << 10)

struct posix_op {
    struct pool_job job; /* its request, where a thread of the pool makes it … */
    ssize_t result;      /* … and what came of that: bytes or -errno */
    struct crew_piece piece;
    uint64_t *offsets;       /* a copy of the piece's; NULL: they are the transfer's */
    struct posix_slot *slot; /* that its bytes go through; NULL: none */
    uint8_t *cpu;            /* its first byte in host memory */
    size_t done;             /* bytes that the file has moved */
    int error;               /* errno that stopped it; 0: none */
    bool end;                /* the file ended there */
    bool buffered;           /* O_DIRECT did not want it */
    bool blocks;             /* io_uring did not: a thread of the pool makes the request */
    unsigned gpu;            /* that its memory is on */

    /* The request that is on its way: `asked` bytes from `at` of the file, to or from `memory`. */
    uint64_t at;
    size_t asked, before; /* the first `before` bytes are not ours, but O_DIRECT wants them */
    uint8_t *memory;
    bool direct;
    bool in_gate;     /* a write that others make way for */
    uint64_t refused; /* since when they don't, for one past the page cache; 0: they do */
    struct posix_op *next_gated; /* of those that others do not make way for yet */

    struct posix_op *next; /* of the free ones, of those in a slot, of those that wait */
};

/* Its file, and what belongs to it. */
static inline struct posix *posix_of(const struct posix_op *op)
{
    return op->piece.store->priv;
}

/* A piece that does not go through us. */
static inline bool posix_is_served(const struct posix_op *op)
{
    return op->piece.mem == GPUNVME_MEM_GPU && posix_of(op)->serve_gpu;
}

/* How much of it there is to copy: what was read, or all that shall be written. */
static inline size_t posix_op_nbytes(const struct posix_op *op)
{
    return op->piece.op == GPUNVME_OP_READ ? op->done : op->piece.nbytes;
}

struct posix_worker {
    struct lane lane;
    struct posix_engine *engine;
    unsigned nheld;           /* slots that it has taken */
    struct mem_ranges ranges; /* of GPU memory, that this turn's pieces were found to lie in */
    bool has_ranges;
    struct posix_uring *uring; /* NULL: none yet, or requests block */
    bool blind;                /* it is refused */
    struct pool_box box;       /* requests that a thread of the pool has made */
    struct posix_op *ops, *free;
    unsigned nbegun;                          /* since the last turn */
    struct lane_shares shares;                /* bytes in hand, small pieces as if larger */
    struct posix_op *waiting, **last_waiting; /* taken, for want of a slot not started */
    struct posix_op *gated;                   /* writes that wait until direct ones have ended */
    struct posix_slot *open;                  /* takes small pieces */
    struct posix_slot *moving, **last_moving; /* copies are under way, the oldest first */
    unsigned turns, naps;                     /* naps in a row, while the GPU copies */
};

/* Makes a worker's lane. */
gpunvme_err_t posix_add_lane(struct posix_engine *engine, unsigned index, struct worker *worker);

static inline bool posix_is_read(const struct posix_op *op)
{
    return op->piece.op == GPUNVME_OP_READ;
}

static inline bool posix_is_gpu(const struct posix_op *op)
{
    return op->piece.mem == GPUNVME_MEM_GPU;
}

/* ---- slot.c ---------------------------------------------------------------------------------- */

/* How much of a lane's room a piece takes. */
static inline size_t posix_cost_of(const struct crew_piece *piece)
{
    return piece->nbytes < POSIX_LEAST_COST ? POSIX_LEAST_COST : piece->nbytes;
}

/* Its bytes come at once: no drive, nor a file system that hangs, is waited for. */
bool posix_is_quick(const struct crew_piece *piece);

/* Gives a piece back. An error of its own, of the file, is told by its errno. */
void posix_end_op(struct posix_worker *w, struct posix_op *op, gpunvme_err_t err);

/* Finds a piece a place in a slot; false: there is none now. */
bool posix_put_in_slot(struct posix_worker *w, struct posix_op *op);

/* The open slot takes no more: what lies in it goes on. */
void posix_seal(struct posix_worker *w);

/* The file has done its part with a piece in a slot. */
void posix_slot_finished(struct posix_worker *w, struct posix_slot *slot);

/* The copies of a slot are done, or have failed. */
void posix_slot_is_copied(struct posix_worker *w, struct posix_slot *slot, gpunvme_err_t err);

/* ---- request.c ------------------------------------------------------------------------------- */
void posix_advance(struct posix_worker *w, struct posix_op *op);

/* Goes on with writes whose turn it may be; how many that were. */
size_t posix_advance_gated(struct posix_worker *w);

void posix_start_flush(struct posix_worker *w, struct posix_op *op);

/* What came of a request: bytes, or -errno. */
void posix_request_ended(struct posix_worker *w, struct posix_op *op, ssize_t result);

#endif
