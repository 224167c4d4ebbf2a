/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the files of the nvme backend share: the store's own part, and a slot, which carries one
 * piece of a transfer through its commands. nvme.c opens stores; lane.c has the queues
 * of a controller, and turns their slots; slot.c knows what commands a piece needs.
 */
#ifndef STORAGE_NVME_STORE_H
#define STORAGE_NVME_STORE_H

#include "base/fail.h"
#include "gpunvme/io.h"
#include "gpunvme/memory.h"
#include "storage/futex.h"
#include "storage/nvme/bounce.h"
#include "storage/nvme/claim.h"
#include "storage/nvme/share.h"
#include "storage/pool.h"

#define NVME_CHUNK   (128u << 10) /* bytes of a piece, unless a URI says otherwise */
#define NVME_CALLERS 8u           /* threads at once that do a transfer of their own */

struct nvme_slot;

/*
 * Another driver (SPDK) beneath lanes and slots, in the place of ours. `ctrl` is its controller,
 * `queue` what it makes of one for a lane. A lane's worker calls poll() and those of slots but
 * block(). The memory of callers is out of its reach: all bytes go through bounce buffers.
 */
struct nvme_driver {
    gpunvme_err_t (*attach)(const char *target, uint64_t timeout_ns, void **ctrl);
    void (*detach)(void *ctrl);         /* no queue is left */
    gpunvme_err_t (*check)(void *ctrl); /* whether another store can have it */
    /* A queue for the commands of `n` slots, whose `command` it sets. */
    gpunvme_err_t (*open)(void *ctrl, struct nvme_slot *slots, unsigned n, void **queue);
    void (*close)(void *queue); /* nothing is in flight. NULL is fine */
    void (*poll)(void *queue);  /* looks for completions; does not block */
    /* Memory that it reaches, PINNED if CUDA knows it. */
    gpunvme_err_t (*alloc)(size_t nbytes, struct gpunvme_buf *out);
    void (*free)(struct gpunvme_buf *buf); /* nothing if it has none */
    /* As gpunvme_submit_read() and the like do. */
    gpunvme_err_t (*submit)(struct nvme_slot *slot, enum gpunvme_op op, void *addr);
    gpunvme_err_t (*test)(struct nvme_slot *slot); /* AGAIN: it has not ended */
    /* SLOT_LATE: has the command ended, and returns how it did; SLOT_CHECK: whether the controller
     * can be used. May block for long. */
    gpunvme_err_t (*block)(struct nvme_slot *slot);
};

struct nvme_store {
    struct nvme_share *share;
    const struct gpunvme_ns *ns;
    unsigned page_shift;
    size_t chunk; /* bytes of a piece, a power of two: one command, but for unaligned ends */
    uint32_t depth, entries;
    uint64_t command_timeout_ns, copy_timeout_ns;
    bool is_left; /* the GPU may reach for memory of it for ever: the controller stays open */
    char why_no_p2p[256];
    struct nvme_lanes *lanes;    /* of the controller; NULL: none yet */
    struct nvme_caller *callers; /* NVME_CALLERS of them */
};

enum nvme_slot_state {
    SLOT_ENDED = 0, /* err and done tell */
    SLOT_CUT,       /* the next command is to be chosen */
    SLOT_CLAIM,     /* its blocks are to be claimed */
    SLOT_BOUNCE,    /* it needs a bounce buffer */
    SLOT_COPY_IN,   /* bytes go into the bounce buffer */
    SLOT_SUBMIT,    /* the command is to be submitted */
    SLOT_FLY,       /* it is with the controller */
    SLOT_LATE,      /* it is late: nvme_slot_block() has it ended */
    SLOT_CHECK,     /* a reset ended it: nvme_slot_block() asks what came of that */
    SLOT_COPY_OUT,  /* bytes come from the bounce buffer */
};

struct nvme_slot {
    struct pool_job job; /* of a thread that calls nvme_slot_block() */
    bool is_out;         /* such a thread has the slot */
    struct gpunvme_ioq *ioq;
    void *command; /* the driver's, if it is not ours */
    struct nvme_bounces *bounces;
    struct nvme_claim claim; /* of the blocks of a write */

    struct nvme_store *s; /* of the piece */

    enum nvme_slot_state state;
    struct crew_piece piece;
    const struct gpunvme_buf *mem; /* the piece's memory if it is mapped, else NULL */
    size_t mem_off;
    size_t want; /* bytes of the piece inside the namespace */
    size_t done;
    gpunvme_err_t err;

    /* The command at hand: blocks, and the bytes of them that are the piece's. */
    uint64_t slba;
    uint32_t nlb;
    size_t skip, nbytes;
    bool is_part;                      /* a write of a part of a block … */
    bool is_read;                      /* … whose block has been read */
    int bounce;                        /* which part of the bounce memory; -1: none */
    bool is_direct;                    /* straight to and from `mem` */
    struct gpunvme_mem_stream *stream; /* of the bounce buffer, while a copy … */
    bool is_copying;                   /* … was started */
    struct gpunvme_token token;
    uint64_t submitted_ns, copied_ns; /* since when */
    unsigned ntries;                  /* that a reset ended … */
    uint64_t tried_ns;                /* … since when */
    bool has_blocked;                 /* nvme_slot_block() was called: … */
    struct base_failure blocked;      /* … what came of it */
};

void nvme_slot_init(struct nvme_slot *slot, struct gpunvme_ioq *ioq, struct nvme_bounces *bounces);

/* The slot takes the piece on, of any store of its controller; it is SLOT_CUT then, or has ended.
 */
void nvme_slot_begin(struct nvme_slot *slot, const struct crew_piece *piece);

/*
 * Takes the piece as far as it goes without waiting; true if that was anywhere. Once it is
 * SLOT_ENDED, the slot holds nothing. *now is nvme_rough_now(), or later. A copy that is late is
 * left to the GPU, with its part of the bounce memory.
 */
bool nvme_slot_turn(struct nvme_slot *slot, uint64_t *now);

/* It can't go on without a call that may block for long: abort, reset. */
static inline bool nvme_slot_must_block(const struct nvme_slot *slot)
{
    return (slot->state == SLOT_LATE || slot->state == SLOT_CHECK) && !slot->has_blocked;
}

/* Makes that call, in any thread; then the slot can be turned again. */
void nvme_slot_block(struct nvme_slot *slot);

/* nvme.c: chooses the size of a store's pieces, `depth` of them or more in flight, and deadlines.
 */
void nvme_store_choose(struct gpunvme_store *store, struct nvme_store *s, uint32_t depth);

/*
 * nvme.c: has store->threads lanes of the controller serve the store, fewer where there are no
 * more, within its options.
 */
gpunvme_err_t nvme_store_serve(struct gpunvme_store *store, struct nvme_store *s);

/* nvme.c: as a backend has them, for stores whose priv begins with a struct nvme_store. */
gpunvme_err_t nvme_store_close(struct gpunvme_store *store);
gpunvme_err_t nvme_store_size(struct gpunvme_store *store, uint64_t *nbytes);

/* lane.c: the time by which slots go. */
uint64_t nvme_rough_now(void);

#endif
