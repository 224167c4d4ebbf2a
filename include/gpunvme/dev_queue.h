/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The queue pair for warps: what threads of a kernel use, any number of them at once. The entries,
 * tickets and rules are those of queue.h. The implementation differs: on a GPU a round trip to
 * memory costs 0.2 us, an atomic 0.3, a fence 0.3 to 0.5, and each costs the same for 32 lanes as
 * for one. On the CPU a warp has one lane, and all of this runs on threads. Knows neither
 * namespaces nor data: those are device.cuh's.
 *
 *   reserve  Each lane claims a slot, whose index is its command id, by one atomic on that slot;
 *            one lane then takes positions in the submission queue for all, by one more. There are
 *            fewer slots than entries, so a lane that has a slot has room.
 *   submit   Each lane writes its entry by vector stores. The warp that gets the doorbell (a
 *            try-lock) rings for its own entries and for all that are marked ready behind them. A
 *            warp that does not get it marks its entries and leaves: the holder looks again after
 *            unlocking.
 *   reap     The warp that gets the completion queue (a try-lock) takes up to four entries a lane
 *            at a time, and writes their statuses to the slots that they name.
 *   wait     Each lane polls one word of its own: its slot's.
 *
 * No thread waits for a lock, or for another thread's command. The functions with a `mask` are
 * called by all lanes of the mask together, with the same queue. The words that threads share
 * (struct gpunvme_dev_queue, slots, marks) must be in memory of their own GPU, not in shared or
 * local memory (atomics.h); entries and doorbells may be anywhere.
 *
 * docs/ORDERING.md explains why these stores are ordered enough, for each placement.
 */
#ifndef GPUNVME_DEV_QUEUE_H
#define GPUNVME_DEV_QUEUE_H

#include "gpunvme/queue.h"
#include "gpunvme/warp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Who takes completions. */
enum gpunvme_reaper {
    GPUNVME_REAPER_WAITERS = 0, /* the threads that wait */
    GPUNVME_REAPER_WARP = 1,    /* a warp that does nothing else: gpunvme_dev_queue_reap() */
    GPUNVME_REAPER_CPU = 2,     /* a thread on the CPU, which writes 16 bytes for each */
};

/*
 * A slot's word, as warps use it: generation << 16, with these. It is free without TAKEN, in flight
 * with TAKEN alone, and done with GPUNVME_SLOT_DONE and the status. Every access to it has 64 bits.
 * The slot's result is unused: reads, writes and flushes have none. A ticket is generation << 16 |
 * slot; the generation, of 47 bits, grows when the slot is freed.
 */
#define GPUNVME_DEV_SLOT_TAKEN     (UINT64_C(1) << 63)
#define GPUNVME_DEV_SLOT_ABANDONED GPUNVME_SLOT_BUSY /* in flight, but nobody will ask */

/* In `published` and `cq_head`, beside the position, which counts modulo 2^31 there: enough to
 * tell its entry and its lap. */
#define GPUNVME_DEV_QUEUE_LOCKED UINT32_C(1)

/* Constants, chosen by measurement: docs/PERFORMANCE.md, "What was chosen". */

/*
 * A warp that finds its queue full takes no slots until it has found this many, or one for each
 * lane, and sleeps between its tries. After each GROUP_TRIES tries half as many are enough. Large
 * groups ring fewer doorbells and leave fewer lanes for another try; small ones wait less.
 */
#define GPUNVME_DEV_GROUP       (GPUNVME_WARP_LANES / 2)
#define GPUNVME_DEV_GROUP_TRIES 64u

/* How often a warp that waits looks at the completion queue while it has it. */
#define GPUNVME_DEV_LOOKS 16u

/* How many completions a lane takes with one fence, which costs 0.5 us; in host memory a load of
 * one takes more than 1 us. */
#define GPUNVME_DEV_DEEP 4u

/* How often a warp rings for others, one after the other, before it goes on with its own. */
#define GPUNVME_DEV_RINGS 64u

/* In the search for free slots: how many slots a lane looks at at once, and how often. On the CPU,
 * where a warp has one lane, that is 64 slots in all. */
#define GPUNVME_DEV_SEES   4u
#define GPUNVME_DEV_SIGHTS (GPUNVME_WARP_LANES > 1 ? 4u : 16u)

/* The longest sleep of a warp that found no room, in ns per entry of the queue: a tenth of the
 * time of a full queue at 25 million commands a second. */
#define GPUNVME_DEV_SLEEP_NS 4u

#define GPUNVME_DEV_QUEUE_SLOTS_NBYTES(entries) ((size_t)(entries) * sizeof(struct gpunvme_slot))

struct gpunvme_dev_queue {
    struct gpunvme_dev_queue *home; /* itself, where its threads find it; in copies as well */
    struct gpunvme_sqe *sq;
    const struct gpunvme_cqe *cq;
    struct gpunvme_slot *slots; /* one for each entry; the first stays taken for ever */
    uint32_t *ready; /* for each position modulo entries: the lap it was last marked in */
    uint32_t mask;   /* entries - 1 */
    uint32_t shift;  /* log2 of entries */
    uint32_t qid;
    uint32_t reaper; /* enum gpunvme_reaper */
    /*
     * For GPUNVME_REAPER_CPU, else NULL: slots as queue.h has them, in pinned host memory, which a
     * CPU thread completes by gpunvme_qpair_reap() of a queue pair of its own. The GPU only loads
     * and stores them, since its atomics are not atomic there; it claims and frees `slots` as
     * always.
     */
    struct gpunvme_slot *mirror;
    struct gpunvme_doorbell sq_doorbell, cq_doorbell;         /* without shadows */
    void (*ring)(void *arg, uint32_t offset, uint32_t value); /* CPU only */
    void *ring_arg;

    /* Memory of each slot's command, by slot: see device.cuh. */
    uint64_t *lists;      /* PRP lists of list_nbytes each, NULL: none */
    uint64_t lists_bus;   /* the same, as the controller sees them */
    uint32_t list_nbytes; /* a power of two, so that no list crosses a page of the controller */
    uint8_t *bounces;     /* a block for each slot, NULL: none */
    uint64_t bounces_bus;
    uint32_t bounce_nbytes;

    /* Contended words, each on cache lines of its own. */
    __attribute__((aligned(128))) uint64_t reserved;  /* next position, GPUNVME_QPAIR_CLOSED */
    __attribute__((aligned(128))) uint32_t published; /* next position not rung for << 1, LOCKED */
    __attribute__((aligned(128))) uint32_t cq_head;   /* next position << 1, LOCKED */
    uint64_t holders;   /* tickets kept by threads that need one more to end them: see device.cuh */
    uint64_t spurious;  /* completions with a command id that is not in flight */
    uint64_t closed_at; /* position at which the queue was closed; written by the closing thread */
};

/*
 * Initialises a queue on the CPU, with slots and marks in CPU memory; code that moves them to a GPU
 * must change the addresses, `home` too. All memory stays the caller's. Doorbells have no shadows,
 * first_position is rounded to a lap (and 2^63 is never reached: at 10^9 commands a second that
 * takes 292 years), and first_generation has 47 bits. GPUNVME_ERR_INVALID as gpunvme_qpair_init().
 */
gpunvme_err_t gpunvme_dev_queue_init(struct gpunvme_dev_queue *q,
                                     const struct gpunvme_qpair_config *config);

/* The queue itself, with the words that threads share: `q` may be a copy of the constants. */
GPUNVME_FN struct gpunvme_dev_queue *gpunvme_dev_home(struct gpunvme_dev_queue *q)
{
    return q->home;
}

/*
 * Copies a queue's constants, to be passed in the queue's place: the compiler keeps in registers
 * what is used of the copy. Fields read through the queue's own pointer are reloaded after every
 * atomic. As an acquire empties the first-level cache of a GPU, each reload is a round trip to L2.
 */
GPUNVME_FN struct gpunvme_dev_queue *
gpunvme_dev_queue_copy_constants(struct gpunvme_dev_queue *q, struct gpunvme_dev_queue *copy)
{
    copy->home = q;
    copy->sq = q->sq;
    copy->cq = q->cq;
    copy->slots = q->slots;
    copy->ready = q->ready;
    copy->mask = q->mask;
    copy->shift = q->shift;
    copy->mirror = q->mirror;
    copy->cq_doorbell = q->cq_doorbell;
    copy->ring = q->ring;
    copy->ring_arg = q->ring_arg;
    return copy;
}

/* Fetches the constants into the first-level cache, without waiting for them. */
GPUNVME_FN void gpunvme_dev_queue_prefetch(const struct gpunvme_dev_queue *q)
{
#if defined(__CUDA_ARCH__)
    asm volatile("prefetch.global.L1 [%0];" ::"l"(__cvta_generic_to_global(q)));
#else
    (void)q;
#endif
}

/* Of a ticket, or an index modulo the entries. */
GPUNVME_FN struct gpunvme_slot *gpunvme_dev_slot(const struct gpunvme_dev_queue *q, uint64_t ticket)
{
    return q->slots + (ticket & q->mask);
}

/* By position. */
GPUNVME_FN struct gpunvme_sqe *gpunvme_dev_sqe(const struct gpunvme_dev_queue *q, uint32_t pos)
{
    return q->sq + (pos & q->mask);
}

GPUNVME_FN const struct gpunvme_cqe *gpunvme_dev_cqe(const struct gpunvme_dev_queue *q,
                                                     uint32_t pos)
{
    return q->cq + (pos & q->mask);
}

GPUNVME_FN uint32_t *gpunvme_dev_mark(const struct gpunvme_dev_queue *q, uint32_t pos)
{
    return q->ready + (pos & q->mask);
}

/* Whether an entry with this last dword is the completion of the position. */
GPUNVME_FN int gpunvme_dev_is_new(const struct gpunvme_dev_queue *q, uint32_t pos, uint32_t dw3)
{
    return (dw3 >> 16 & 1) != (pos >> q->shift & 1);
}

/* --- submission ------------------------------------------------------------------------------- */

/* Takes a slot for one lane, if it is free: 1 and the ticket. */
GPUNVME_FN int gpunvme_dev_slot_take(struct gpunvme_dev_queue *q, uint32_t index, uint64_t *ticket)
{
    /* Acquire: its last owner is done with what belongs to it. */
    uint64_t old =
        gpunvme_fetch_or64_acquire_gpu(&gpunvme_dev_slot(q, index)->word, GPUNVME_DEV_SLOT_TAKEN);

    *ticket = old | index;
    return !(old & GPUNVME_DEV_SLOT_TAKEN);
}

GPUNVME_FN int gpunvme_dev_slot_is_free(const struct gpunvme_dev_queue *q, uint32_t index)
{
    return !(gpunvme_load_relaxed64(&gpunvme_dev_slot(q, index)->word) & GPUNVME_DEV_SLOT_TAKEN);
}

/* Gives back a slot that no command was submitted for. A reset may have ended it meanwhile. */
GPUNVME_FN void gpunvme_dev_slot_unclaim(struct gpunvme_dev_queue *q, uint64_t ticket)
{
    uint64_t generation = ticket & ~UINT64_C(0xffff);

    gpunvme_store_release64_gpu(&gpunvme_dev_slot(q, ticket)->word,
                                (generation + 0x10000) & ~GPUNVME_DEV_SLOT_TAKEN);
}

/*
 * How a warp claims slots. `least`: if it finds fewer slots than this, it takes none. It counts as
 * at most one for each lane, and a quarter of the queue. `again`: not its first try, so it looks at
 * slots before it takes them: an atomic on a taken slot delays its owner.
 */
struct gpunvme_dev_want {
    uint32_t least, again;
};

/* Any number of slots, up to one for each lane. */
GPUNVME_FN struct gpunvme_dev_want gpunvme_dev_want_any(void)
{
    struct gpunvme_dev_want any = {0, 0};

    return any;
}

/* A free one of GPUNVME_DEV_SEES slots, all looked at at once; below 0: none. */
GPUNVME_FN int32_t gpunvme_dev_slot_see(const struct gpunvme_dev_queue *q, uint32_t index,
                                        uint32_t step)
{
    int32_t seen = -1;

#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (uint32_t i = 0; i < GPUNVME_DEV_SEES; i++, index += step)
        seen = gpunvme_dev_slot_is_free(q, index) ? (int32_t)(index & q->mask) : seen;
    return seen;
}

/*
 * Claims a slot for each lane: 1 and its ticket, or 0 if none was found. The first try is `hint`,
 * any number that differs between threads. Then each lane takes what it has found itself: four
 * loads in flight at once, then one atomic. A full warp begins at multiples of 32 from its hint, so
 * that it leaves whole groups of slots for other warps. The lanes give up after some looks, or when
 * a look finds fewer slots than wanted: the queue is full, or nearly. Repeated calls look at every
 * slot sooner or later. On the CPU one call does, in a queue of at most 64 entries.
 */
GPUNVME_FN int gpunvme_dev_slot_claim(struct gpunvme_dev_queue *q, uint32_t mask, uint32_t hint,
                                      struct gpunvme_dev_want want, uint64_t *ticket)
{
    uint32_t lanes = gpunvme_popcount(mask), most = (q->mask + 1) / 4; /* it must be possible */
    uint32_t need = mask, index, least;
    int got = 0;

    *ticket = 0;
    if (!want.again) {
        got = gpunvme_dev_slot_take(q, hint & q->mask, ticket);
        if (!(need = gpunvme_warp_ballot(mask, !got)))
            return 1;
    }
    least = want.least < most ? want.least : most;
    least = least < lanes ? least : lanes;
    index = hint + (gpunvme_noise32() >> 10) * lanes;
    index = gpunvme_warp_shfl32(mask, index, gpunvme_warp_leader(mask)) + gpunvme_warp_rank(mask);
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (uint32_t sight = 0; need && sight < GPUNVME_DEV_SIGHTS; sight++) {
        int32_t seen = got ? -1 : gpunvme_dev_slot_see(q, index, 37 * lanes);
        uint32_t found = gpunvme_popcount(gpunvme_warp_ballot(mask, seen >= 0));

        if (lanes - gpunvme_popcount(need) + found < least)
            break;
        if (seen >= 0)
            got = gpunvme_dev_slot_take(q, (uint32_t)seen, ticket);
        need = gpunvme_warp_ballot(mask, !got);
        index += 37 * GPUNVME_DEV_SEES * lanes;
    }
    if (lanes - gpunvme_popcount(need) < least && got) {
        gpunvme_dev_slot_unclaim(q, *ticket);
        got = 0;
    }
    return got;
}

/* What a lane has reserved. Positions are modulo 2^31. */
struct gpunvme_dev_place {
    uint64_t ticket;
    uint32_t pos;
    uint32_t published; /* private: `published` when it tried to get the doorbell */
};

/*
 * Takes `n` positions for all lanes of the mask, and tries to get the doorbell; `leader` is one of
 * them. 1, with the first position in *place; or 0: the queue is closed.
 */
GPUNVME_FN int gpunvme_dev_queue_advance(struct gpunvme_dev_queue *q, uint32_t mask,
                                         uint32_t leader, uint32_t n,
                                         struct gpunvme_dev_place *place)
{
    uint32_t closed = 0;

    if (gpunvme_warp_lane() == leader) {
        /* Both at once: it tries to get the doorbell before there is anything to ring for. */
        uint64_t pos = gpunvme_fetch_add64_relaxed_gpu(&gpunvme_dev_home(q)->reserved, n);

        place->published = gpunvme_fetch_or32_relaxed_gpu(&gpunvme_dev_home(q)->published,
                                                          GPUNVME_DEV_QUEUE_LOCKED);
        place->pos = (uint32_t)pos;
        closed = (pos & GPUNVME_QPAIR_CLOSED) != 0;
        if (closed && !(place->published & GPUNVME_DEV_QUEUE_LOCKED))
            gpunvme_exchange32_gpu(&gpunvme_dev_home(q)->published, place->published);
    }
    if (gpunvme_warp_ballot(mask, closed != 0))
        return 0;
    place->pos = gpunvme_warp_shfl32(mask, place->pos, leader);
    place->published = gpunvme_warp_shfl32(mask, place->published, leader);
    return 1;
}

/* Takes positions for the lanes `in`, which have claimed slots, and tries to get the doorbell. */
GPUNVME_FN uint32_t gpunvme_dev_queue_place(struct gpunvme_dev_queue *q, uint32_t mask, uint32_t in,
                                            struct gpunvme_dev_place *place, int *err)
{
    uint32_t is_in = in >> gpunvme_warp_lane() & 1;

    *err = is_in ? GPUNVME_OK : GPUNVME_ERR_AGAIN;
    if (!in)
        return 0;
    if (!gpunvme_dev_queue_advance(q, mask, gpunvme_warp_leader(in), gpunvme_popcount(in), place)) {
        if (is_in)
            gpunvme_dev_slot_unclaim(gpunvme_dev_home(q), place->ticket);
        *err = GPUNVME_ERR_CLOSED;
        return 0;
    }
    place->pos += gpunvme_warp_rank(in);
    return in;
}

/*
 * Reserves a slot and a position for each lane, as far as there are any. Returns the lanes that
 * have a *place: these, and only these, must call gpunvme_dev_queue_submit() at once, for they may
 * hold the doorbell. The others have *err: GPUNVME_ERR_AGAIN without a free slot, or
 * GPUNVME_ERR_CLOSED. Never waits.
 *
 * After GPUNVME_ERR_CLOSED one lane must call gpunvme_dev_queue_help(). The warp may have held the
 * doorbell for a moment, in which the queue was opened again. Others that failed to get the
 * doorbell meanwhile rely on the warp that unlocked it.
 *
 * A thread that waits for room must end its own tickets meanwhile, and a warp those of all its
 * lanes: otherwise lanes that wait for their neighbours may hold all slots.
 */
GPUNVME_FN uint32_t gpunvme_dev_queue_reserve(struct gpunvme_dev_queue *q, uint32_t mask,
                                              uint32_t hint, struct gpunvme_dev_want want,
                                              struct gpunvme_dev_place *place, int *err)
{
    struct gpunvme_dev_queue copy;
    int is_claimed;

    q = gpunvme_dev_queue_copy_constants(q, &copy);
    is_claimed = gpunvme_dev_slot_claim(q, mask, hint, want, &place->ticket);
    gpunvme_dev_queue_prefetch(gpunvme_dev_home(q));
    return gpunvme_dev_queue_place(q, mask, gpunvme_warp_ballot(mask, is_claimed), place, err);
}

/* The lap that a position is in, as marks have it. */
GPUNVME_FN uint32_t gpunvme_dev_queue_lap(const struct gpunvme_dev_queue *q, uint32_t pos)
{
    return pos << 1 >> 1 >> q->shift;
}

GPUNVME_FN int gpunvme_dev_queue_is_ready(const struct gpunvme_dev_queue *q, uint32_t pos)
{
    const uint32_t *mark = gpunvme_dev_mark(q, pos);

    return GPUNVME_ORDER(LOOK, gpunvme_load_acquire32_gpu, gpunvme_load_relaxed32)(mark) ==
           gpunvme_dev_queue_lap(q, pos);
}

/* The same without an acquire: whether it is worth getting the doorbell. */
GPUNVME_FN int gpunvme_dev_queue_seems_ready(const struct gpunvme_dev_queue *q, uint32_t pos)
{
    return gpunvme_load_relaxed32(gpunvme_dev_mark(q, pos)) == gpunvme_dev_queue_lap(q, pos);
}

/* How many items are there before the first that is missing. Each lane has looked at `each` items,
 * in the order of the lanes; its `bits` say, from bit 0 on, which of them are there. */
GPUNVME_FN uint32_t gpunvme_dev_prefix(uint32_t mask, uint32_t bits, uint32_t each)
{
    uint32_t missing = gpunvme_warp_ballot(mask, bits != (UINT32_C(1) << each) - 1), first;

    if (!missing)
        return each * gpunvme_popcount(mask);
    first = gpunvme_lowest_bit(missing);
    missing = gpunvme_popcount(mask & ((UINT32_C(1) << first) - 1));
    if (each == 1)
        return missing;
    return each * missing + gpunvme_warp_shfl32(mask, gpunvme_lowest_bit(~bits), first);
}

/* Which of the four positions from `pos` on, a multiple of 4, are marked ready: a bit for each. */
GPUNVME_FN uint32_t gpunvme_dev_queue_four_ready(const struct gpunvme_dev_queue *q, uint32_t pos)
{
    uint32_t marks[4], lap = gpunvme_dev_queue_lap(q, pos), bits = 0;

    gpunvme_load_four_acquire32_gpu(gpunvme_dev_mark(q, pos), marks);
    for (uint32_t i = 0; i < 4; i++)
        bits |= (uint32_t)(marks[i] == lap) << i;
    return bits;
}

/*
 * The first position from `pos` on that is not marked ready. Each lane looks at four marks at once.
 * The doorbell's holder may be one lane, and goes through all that a full queue's warps submit
 * meanwhile: one load after the other, 330 cycles each, is 6 million commands a second.
 */
GPUNVME_FN uint32_t gpunvme_dev_queue_skip_ready(const struct gpunvme_dev_queue *q, uint32_t mask,
                                                 uint32_t pos)
{
    uint32_t rank = gpunvme_warp_rank(mask), lanes = gpunvme_popcount(mask), before = pos & 3, n;

    if (q->mask < 3) /* there are fewer than four marks, and at most one is ahead */
        return pos + (gpunvme_warp_ballot(mask, gpunvme_dev_queue_is_ready(q, pos)) != 0);
    pos -= before;
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    do {
        uint32_t bits = gpunvme_dev_queue_four_ready(q, pos + 4 * rank);

        if (!rank) /* behind us */
            bits |= (UINT32_C(1) << before) - 1;
        n = gpunvme_dev_prefix(mask, bits, 4);
        pos += n;
        before = 0;
    } while (n == 4 * lanes);
    gpunvme_warp_sync(mask); /* the leader's doorbell comes after what each lane has acquired */
    return pos;
}

/* One lane rings. For entries, gpunvme_fence_sys() comes first. */
GPUNVME_FN void gpunvme_dev_queue_ring(struct gpunvme_dev_queue *q,
                                       const struct gpunvme_doorbell *db, uint32_t pos)
{
    uint32_t value = pos & q->mask;

    if (db->mmio)
        gpunvme_mmio_write32_fenced(db->mmio, value);
#if !defined(__CUDA_ARCH__)
    else
        q->ring(q->ring_arg, db->offset, value);
#endif
}

/*
 * The holder of the doorbell rings for all positions from `from` on that are ready, and unlocks.
 * The first `n` are known to be ready; if `n` is 0, it looks at the marks. After the unlock it
 * looks for marks behind: it sees, and rings for, any mark that a warp which failed to get the
 * doorbell set before the unlock. (The atomic that failed and the one that unlocks are ordered;
 * both are acquire and release.) After many rounds it leaves the rest to the next thread that
 * submits or waits: under endless load it would ring for others for ever.
 */
GPUNVME_FN void gpunvme_dev_queue_publish(struct gpunvme_dev_queue *q, uint32_t mask, uint32_t from,
                                          uint32_t n)
{
    uint32_t leader = gpunvme_warp_leader(mask), is_leader = gpunvme_warp_lane() == leader;

#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (uint32_t rounds = 1;; rounds++, n = 0) {
        struct gpunvme_doorbell bell = gpunvme_dev_home(q)->sq_doorbell; /* ahead of the fence */
        uint32_t pos = n ? from + n : gpunvme_dev_queue_skip_ready(q, mask, from);
        uint32_t word = GPUNVME_DEV_QUEUE_LOCKED;

        /* Each lane makes one: entries, lists and marks that it wrote or found come first. */
        if (pos != from)
            gpunvme_fence_sys();
        gpunvme_warp_sync(mask);
        if (is_leader) {
            if (pos != from)
                gpunvme_dev_queue_ring(q, &bell, pos);
            gpunvme_exchange32_gpu(&gpunvme_dev_home(q)->published, pos << 1);
            gpunvme_dev_queue_prefetch(gpunvme_dev_home(q)); /* the exchange emptied the cache */
            if (rounds < GPUNVME_DEV_RINGS && gpunvme_dev_queue_seems_ready(q, pos))
                word = gpunvme_fetch_or32_gpu(&gpunvme_dev_home(q)->published,
                                              GPUNVME_DEV_QUEUE_LOCKED);
        }
        word = gpunvme_warp_shfl32(mask, word, leader);
        if (word & GPUNVME_DEV_QUEUE_LOCKED)
            return;
        from = word >> 1;
    }
}

/*
 * One lane rings for marked positions that a holder of the doorbell left behind. Not in a closed
 * queue: the controller may not have it any more. (A thread that relies on this found the queue
 * open when it failed to get the doorbell, so this finds it open as well.)
 */
GPUNVME_FN void gpunvme_dev_queue_help(struct gpunvme_dev_queue *q)
{
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (uint32_t rounds = 0; rounds < GPUNVME_DEV_RINGS; rounds++) {
        uint32_t word = gpunvme_load_relaxed32(&q->published), pos;

        if (word & GPUNVME_DEV_QUEUE_LOCKED || !gpunvme_dev_queue_seems_ready(q, word >> 1) ||
            gpunvme_load_relaxed64(&q->reserved) & GPUNVME_QPAIR_CLOSED)
            return;
        word = gpunvme_fetch_or32_gpu(&q->published, GPUNVME_DEV_QUEUE_LOCKED);
        if (word & GPUNVME_DEV_QUEUE_LOCKED)
            return;
        for (pos = word >> 1; gpunvme_dev_queue_is_ready(q, pos);)
            pos++;
        gpunvme_fence_sys();
        if (pos != word >> 1)
            gpunvme_dev_queue_ring(q, &q->sq_doorbell, pos);
        gpunvme_exchange32_gpu(&q->published, pos << 1);
    }
}

/*
 * Writes one lane's command, complete except for its cid, to its position. `is_first`: the lane's
 * warp has the doorbell, and nobody's entries are before its own.
 */
GPUNVME_FN void gpunvme_dev_queue_fill(struct gpunvme_dev_queue *q, uint32_t pos, uint64_t ticket,
                                       int is_first, struct gpunvme_sqe *cmd)
{
    uint32_t *mark = gpunvme_dev_mark(q, pos), lap = gpunvme_dev_queue_lap(q, pos);

    cmd->cid = (uint16_t)ticket;
    if (q->mirror)
        gpunvme_store_relaxed64(&q->mirror[ticket & q->mask].word,
                                (ticket & ~UINT64_C(0xffff)) | GPUNVME_SLOT_BUSY);
    else /* as it was claimed: a reset since then may have marked it done */
        gpunvme_store64_relaxed_gpu(&gpunvme_dev_slot(q, ticket)->word,
                                    (ticket & ~UINT64_C(0xffff)) | GPUNVME_DEV_SLOT_TAKEN);
    gpunvme_store_64_bytes(gpunvme_dev_sqe(q, pos), cmd);
    if (is_first)                               /* nobody looks at our marks, */
        gpunvme_store32_relaxed_gpu(mark, lap); /* but they must not be of an old lap */
    else /* release: who sees the mark sees the entry, and what else the command uses */
        GPUNVME_ORDER(MARK, gpunvme_store_release32_gpu, gpunvme_store_relaxed32)(mark, lap);
}

/*
 * Makes sure that the doorbell is rung for what the lanes have written. `word` is `published` when
 * they tried to get it; `n` is how many entries they wrote if nobody's are before theirs, else 0.
 */
GPUNVME_FN void gpunvme_dev_queue_announce(struct gpunvme_dev_queue *q, uint32_t mask,
                                           uint32_t word, uint32_t n)
{
    uint32_t leader = gpunvme_warp_leader(mask);

    gpunvme_warp_sync(mask);
    if (word & GPUNVME_DEV_QUEUE_LOCKED) {
        if (gpunvme_warp_lane() == leader)
            word =
                gpunvme_fetch_or32_gpu(&gpunvme_dev_home(q)->published, GPUNVME_DEV_QUEUE_LOCKED);
        word = gpunvme_warp_shfl32(mask, word, leader);
        if (word & GPUNVME_DEV_QUEUE_LOCKED)
            return;
    }
    gpunvme_dev_queue_publish(q, mask, word >> 1, n);
}

/*
 * Writes each lane's command, complete except for its cid, to the position that it reserved, and
 * makes sure that the doorbell is rung. The mask is what reserve returned.
 */
GPUNVME_FN void gpunvme_dev_queue_submit(struct gpunvme_dev_queue *q, uint32_t mask,
                                         const struct gpunvme_dev_place *place,
                                         struct gpunvme_sqe *cmd)
{
    uint32_t first = place->pos - gpunvme_warp_rank(mask);
    uint32_t n = place->published == first << 1 ? gpunvme_popcount(mask) : 0;

    gpunvme_dev_queue_fill(q, place->pos, place->ticket, n != 0, cmd);
    gpunvme_dev_queue_announce(q, mask, place->published, n);
}

/* --- several commands of a lane ----------------------------------------------------------------
 */

/* What a lane has reserved for several commands: n slots, and n positions from place.pos on. */
struct gpunvme_dev_places {
    uint64_t ticket[GPUNVME_DEV_DEEP];
    uint32_t n;
    uint32_t total; /* private: the positions of all lanes, the first of which is this one */
    uint32_t first;
    struct gpunvme_dev_place place;
};

/* Adds a slot to a lane's. An index would cost local memory. */
GPUNVME_FN void gpunvme_dev_places_add(struct gpunvme_dev_places *places, uint64_t ticket)
{
    for (uint32_t i = 0; i < GPUNVME_DEV_DEEP; i++)
        places->ticket[i] = i == places->n ? ticket : places->ticket[i];
    places->n++;
}

/*
 * Takes slots for up to `n` commands of each lane: places->n of them. The first tries are atomics
 * of a lane that are in flight together, so they are relaxed. So nothing may be written to the
 * slots' bounce blocks, and to their lists only as docs/ORDERING.md says. For a command whose first
 * try finds a taken slot, the lanes search together, as for one command each, until no lane finds
 * one. Nobody waits, and each slot is used: those of a lane need not be side by side.
 */
GPUNVME_FN void gpunvme_dev_slots_take(struct gpunvme_dev_queue *q, uint32_t mask, uint32_t hint,
                                       uint32_t n, struct gpunvme_dev_places *places)
{
    uint32_t lanes = gpunvme_popcount(mask);
    uint64_t old[GPUNVME_DEV_DEEP];

    for (uint32_t i = 0; i < GPUNVME_DEV_DEEP; i++) {
        old[i] = GPUNVME_DEV_SLOT_TAKEN;
        if (i < n)
            old[i] = gpunvme_fetch_or64_relaxed_gpu(&gpunvme_dev_slot(q, hint + i * lanes)->word,
                                                    GPUNVME_DEV_SLOT_TAKEN);
    }
    places->n = 0;
    for (uint32_t i = 0; i < GPUNVME_DEV_DEEP; i++)
        if (!(old[i] & GPUNVME_DEV_SLOT_TAKEN))
            gpunvme_dev_places_add(places, old[i] | ((hint + i * lanes) & q->mask));
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (uint32_t found = 1; found;) {
        uint32_t need = gpunvme_warp_ballot(mask, places->n < n);
        struct gpunvme_dev_want again = {0, 1};
        uint64_t ticket;
        int got = 0;

        if (!need)
            return;
        hint += GPUNVME_DEV_DEEP * lanes;
        if (places->n < n)
            got = gpunvme_dev_slot_claim(q, need, hint, again, &ticket);
        if (got)
            gpunvme_dev_places_add(places, ticket);
        found = gpunvme_warp_ballot(mask, got);
    }
}

/*
 * Reserves slots and positions for up to `n` commands of each lane, at most GPUNVME_DEV_DEEP, as
 * far as there are any: GPUNVME_OK with places->n of 1 or more, GPUNVME_ERR_AGAIN, or
 * GPUNVME_ERR_CLOSED. Never waits. If places->total is not 0, all lanes must at once fill their
 * places and then call gpunvme_dev_queue_submit_several(). After GPUNVME_ERR_CLOSED see
 * gpunvme_dev_queue_reserve().
 */
GPUNVME_FN int gpunvme_dev_queue_reserve_several(struct gpunvme_dev_queue *q, uint32_t mask,
                                                 uint32_t hint, uint32_t n,
                                                 struct gpunvme_dev_places *places)
{
    uint32_t below = (UINT32_C(1) << gpunvme_warp_lane()) - 1, before = 0;

    gpunvme_dev_slots_take(q, mask, hint, n, places);
    gpunvme_dev_queue_prefetch(gpunvme_dev_home(q));
    places->total = 0;
    for (uint32_t bit = 0; GPUNVME_DEV_DEEP >> bit; bit++) {
        uint32_t have = gpunvme_warp_ballot(mask, places->n >> bit & 1);

        before += gpunvme_popcount(have & below) << bit;
        places->total += gpunvme_popcount(have) << bit;
    }
    if (!places->total)
        return GPUNVME_ERR_AGAIN;
    if (!gpunvme_dev_queue_advance(q, mask, gpunvme_warp_leader(mask), places->total,
                                   &places->place)) {
        for (uint32_t i = 0; i < GPUNVME_DEV_DEEP; i++)
            if (i < places->n)
                gpunvme_dev_slot_unclaim(gpunvme_dev_home(q), places->ticket[i]);
        places->n = places->total = 0;
        return GPUNVME_ERR_CLOSED;
    }
    places->first = places->place.pos;
    places->place.pos += before;
    return places->n ? GPUNVME_OK : GPUNVME_ERR_AGAIN;
}

/* Writes one lane's i-th command, complete except for its cid, to its place; i below places->n. */
GPUNVME_FN void gpunvme_dev_queue_fill_one(struct gpunvme_dev_queue *q,
                                           const struct gpunvme_dev_places *places, uint32_t i,
                                           struct gpunvme_sqe *cmd)
{
    gpunvme_dev_queue_fill(q, places->place.pos + i, places->ticket[i],
                           places->place.published == places->first << 1, cmd);
}

/* Makes sure that the doorbell is rung for what the lanes have filled. */
GPUNVME_FN void gpunvme_dev_queue_submit_several(struct gpunvme_dev_queue *q, uint32_t mask,
                                                 const struct gpunvme_dev_places *places)
{
    gpunvme_dev_queue_announce(q, mask, places->place.published,
                               places->place.published == places->first << 1 ? places->total : 0);
}

/* --- completion ------------------------------------------------------------------------------- */

/* The last dword of an entry: status, phase tag and command id. */
GPUNVME_FN uint32_t gpunvme_dev_cqe_load(const struct gpunvme_cqe *cqe)
{
    const gpunvme_dword *dw3 = (const gpunvme_dword *)cqe + 3;

#if defined(__CUDA_ARCH__)
    return gpunvme_load_relaxed32(dw3); /* take() has the fence */
#else
    return GPUNVME_ORDER(CQE, gpunvme_load_acquire32, gpunvme_load_relaxed32)(dw3);
#endif
}

/* Whether there is something to reap at this moment; called by one lane. */
GPUNVME_FN int gpunvme_dev_queue_has_news(const struct gpunvme_dev_queue *q)
{
    uint32_t head = gpunvme_load_relaxed32(&q->cq_head) >> 1;
    uint32_t dw3 = gpunvme_load_relaxed32((const gpunvme_dword *)gpunvme_dev_cqe(q, head) + 3);

    return gpunvme_dev_is_new(q, head, dw3);
}

/*
 * Hands a completion to the slot that its command id names. Behind the fence: the slot's word is
 * looked at after the completion, and what is stored to it comes after the data.
 */
GPUNVME_FN void gpunvme_dev_slot_complete(struct gpunvme_dev_queue *q, uint32_t dw3)
{
    uint32_t cid = dw3 & 0xffff;
    struct gpunvme_slot *slot = gpunvme_dev_slot(q, cid);
    uint64_t word = gpunvme_load64_fenced_gpu(&slot->word);

    if (cid > q->mask || !cid || !(word & GPUNVME_DEV_SLOT_TAKEN) || word & GPUNVME_SLOT_DONE)
        gpunvme_fetch_add64_relaxed_gpu(&gpunvme_dev_home(q)->spurious, 1);
    else if (word & GPUNVME_DEV_SLOT_ABANDONED)
        gpunvme_dev_slot_unclaim(q, (word & ~UINT64_C(0xffff)) | cid);
    else
        gpunvme_store64_fenced_gpu(&slot->word, word | GPUNVME_SLOT_DONE | dw3 >> 17);
}

/*
 * Ends one lane's ticket, whose command is done: the slot is free. Relaxed on the GPU, since only
 * the slot's word was read, and none of its memory.
 */
GPUNVME_FN void gpunvme_dev_slot_end(struct gpunvme_slot *slot, uint64_t ticket)
{
    uint64_t generation = ticket & ~UINT64_C(0xffff);

    gpunvme_store64_relaxed_gpu(&slot->word, (generation + 0x10000) & ~GPUNVME_DEV_SLOT_TAKEN);
}

GPUNVME_FN void gpunvme_dev_queue_end(struct gpunvme_dev_queue *q, uint64_t ticket)
{
    gpunvme_dev_slot_end(gpunvme_dev_slot(q, ticket), ticket);
}

/*
 * Takes the new entries from `head` on. The warp holds the lock. Each lane looks at one entry. If
 * `most`, the commands in flight, are more than that, and all of these are new, it looks at
 * GPUNVME_DEV_DEEP; a lone lane does so at once. One fence orders all of them.
 */
GPUNVME_FN uint32_t gpunvme_dev_queue_take(struct gpunvme_dev_queue *q, uint32_t mask,
                                           uint32_t head, uint32_t most)
{
    uint32_t lanes = gpunvme_popcount(mask), rank = gpunvme_warp_rank(mask), pos = head + rank;
    uint32_t dw3[GPUNVME_DEV_DEEP], mine = 0, n;
    int several = most > lanes;

    dw3[0] = gpunvme_dev_cqe_load(gpunvme_dev_cqe(q, pos));
    if (lanes > 1)
        several = several && !gpunvme_warp_ballot(mask, !gpunvme_dev_is_new(q, pos, dw3[0]));
    for (uint32_t i = 1; i < GPUNVME_DEV_DEEP; i++)
        dw3[i] = several ? gpunvme_dev_cqe_load(gpunvme_dev_cqe(q, pos + i * lanes)) : 0;
    for (uint32_t i = 0; i < GPUNVME_DEV_DEEP; i++)
        mine += mine == i && (!i || several) && gpunvme_dev_is_new(q, pos + i * lanes, dw3[i]);
    n = gpunvme_warp_min32(mask, mine * lanes + rank); /* the first that is missing */
    if (!n)
        return 0;
    /* All have read their entries before the leader's fence, and so before its doorbell gives them
     * back and the next holder looks at them. */
    gpunvme_warp_sync(mask);
    /* Acquire of the entries, and with that of the data that the controller wrote before them, and
     * of the slots as they were claimed; release of the slots: who sees one done sees its data. */
    gpunvme_fence_sys();
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (uint32_t at = rank; at < n; at += lanes) {
        gpunvme_dev_slot_complete(q, dw3[0]);
        for (uint32_t k = 1; k < GPUNVME_DEV_DEEP; k++) /* an index would cost local memory */
            dw3[k - 1] = dw3[k];
    }
    return n;
}

/*
 * Gets the completion queue, unless another warp has it: 1, its head, and how many commands are in
 * flight. That is too large a number if others have just taken completions.
 */
GPUNVME_FN int gpunvme_dev_queue_hold(struct gpunvme_dev_queue *q, uint32_t mask, uint32_t *head,
                                      uint32_t *in_flight)
{
    uint32_t word = GPUNVME_DEV_QUEUE_LOCKED, reserved = 0;

    /* All arrive before one takes the lock: it would hold it while it waits for lanes that wait
     * for completions. */
    gpunvme_warp_sync(mask);
    if (gpunvme_warp_lane() == gpunvme_warp_leader(mask)) {
        word = gpunvme_load_relaxed32(&gpunvme_dev_home(q)->cq_head);
        if (!(word & GPUNVME_DEV_QUEUE_LOCKED)) {
            /* Ahead of the atomic, so that nothing waits for it alone. */
            reserved = (uint32_t)gpunvme_load_relaxed64(&gpunvme_dev_home(q)->reserved);
            word = gpunvme_fetch_or32_acquire_gpu(&gpunvme_dev_home(q)->cq_head,
                                                  GPUNVME_DEV_QUEUE_LOCKED);
        }
    }
    word = gpunvme_warp_shfl32(mask, word, gpunvme_warp_leader(mask));
    gpunvme_warp_sync(mask); /* the lanes look at entries after the leader has got the lock */
    *head = word >> 1;
    if (word & GPUNVME_DEV_QUEUE_LOCKED)
        return 0;
    reserved = gpunvme_warp_shfl32(mask, reserved, gpunvme_warp_leader(mask));
    *in_flight = (reserved - *head) & q->mask; /* both counters begin at entry 0 */
    return 1;
}

/*
 * Takes new completions, unless another warp is doing so: looks up to `looks` times, at least once,
 * until there are any, and takes all. (It may leave those of commands reserved since it began.)
 * After a part of as many as it has lanes it looks on: the rest are most likely its own. Returns
 * how many it took. So one warp at a time reads the queue's memory, which may be the host's,
 * however many wait.
 *
 * The lock must be taken and released in here: lanes that left a loop with it could be kept
 * waiting, where branches reconverge, for lanes of their own warp that wait for completions.
 */
GPUNVME_FN uint32_t gpunvme_dev_queue_reap(struct gpunvme_dev_queue *q, uint32_t mask,
                                           uint32_t looks)
{
    uint32_t lanes = gpunvme_popcount(mask), head, most, n;
    int32_t total = -(int32_t)looks; /* below 0: looks that are left */
    struct gpunvme_dev_queue copy;

    q = gpunvme_dev_queue_copy_constants(q, &copy);
    if (!gpunvme_dev_queue_hold(q, mask, &head, &most))
        return 0;
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    do {
        n = gpunvme_dev_queue_take(q, mask, head, most);
        head += n;
        if (n)
            total = (total < 0 ? 0 : total) + (int32_t)n;
        else if (total < 0)
            total++;
    } while (total < 0 || (n && (n == lanes * GPUNVME_DEV_DEEP || total < (int32_t)lanes) &&
                           (uint32_t)total < most));
    gpunvme_warp_sync(mask); /* all have stored to their slots before a reset may end them */
    if (gpunvme_warp_lane() == gpunvme_warp_leader(mask)) {
        if (total)
            gpunvme_dev_queue_ring(q, &q->cq_doorbell, head);
        /* Relaxed: it follows the fence of what was taken. An exchange, because it passes on the
         * previous holder's release if nothing was taken. */
        gpunvme_exchange32_relaxed_gpu(&gpunvme_dev_home(q)->cq_head, head << 1);
    }
    return (uint32_t)total;
}

/* --- tickets ---------------------------------------------------------------------------------- */

/* For a mirror, which reports an old ticket as done until its slot is taken again. */
GPUNVME_FN int gpunvme_dev_queue_has_ended(const struct gpunvme_dev_queue *q, uint64_t ticket)
{
    uint64_t word = gpunvme_load_relaxed64(&gpunvme_dev_slot(q, ticket)->word);

    return ((word & ~GPUNVME_DEV_SLOT_TAKEN) ^ ticket) >> 16 || word & GPUNVME_DEV_SLOT_ABANDONED;
}

/* The slot that a waiting thread polls. */
GPUNVME_FN struct gpunvme_slot *gpunvme_dev_status_of(const struct gpunvme_dev_queue *q,
                                                      uint64_t ticket)
{
    struct gpunvme_slot *mirror = q->mirror;

    return mirror ? mirror + (ticket & q->mask) : gpunvme_dev_slot(q, ticket);
}

/*
 * Whether the command of one lane's ticket is done: GPUNVME_OK with *status, GPUNVME_ERR_AGAIN
 * while it is in flight, GPUNVME_ERR_STALE for a ticket that has ended or was abandoned. Does not
 * reap, and does not end the ticket: gpunvme_dev_queue_end() does that.
 */
GPUNVME_FN int gpunvme_dev_queue_peek(struct gpunvme_dev_queue *q, uint64_t ticket,
                                      uint16_t *status)
{
    struct gpunvme_slot *slot = gpunvme_dev_status_of(q, ticket);
    uint64_t word = gpunvme_load_relaxed64(&slot->word) & ~GPUNVME_DEV_SLOT_TAKEN;

    if ((word ^ ticket) >> 16 || (q->mirror && gpunvme_dev_queue_has_ended(q, ticket)))
        return GPUNVME_ERR_STALE;
    if (!(word & GPUNVME_SLOT_DONE))
        return word & GPUNVME_DEV_SLOT_ABANDONED && !q->mirror ? GPUNVME_ERR_STALE
                                                               : GPUNVME_ERR_AGAIN;
    /* Again, with acquire: polling with it would empty the L1 cache at each turn. */
    word = GPUNVME_ORDER(WAIT, gpunvme_load_acquire64, gpunvme_load_relaxed64)(&slot->word);
    *status = (uint16_t)(word & 0x7fff);
    return GPUNVME_OK;
}

/*
 * gpunvme_dev_queue_peek() where there is no mirror, for a command that is done, most likely: by
 * one load instead of two, and without the queue's constants.
 */
GPUNVME_FN int gpunvme_dev_slot_peek(const struct gpunvme_slot *slot, uint64_t ticket,
                                     uint16_t *status)
{
    uint64_t word =
        GPUNVME_ORDER(WAIT, gpunvme_load_acquire64, gpunvme_load_relaxed64)(&slot->word) &
        ~GPUNVME_DEV_SLOT_TAKEN;

    if ((word ^ ticket) >> 16)
        return GPUNVME_ERR_STALE;
    if (!(word & GPUNVME_SLOT_DONE))
        return word & GPUNVME_DEV_SLOT_ABANDONED ? GPUNVME_ERR_STALE : GPUNVME_ERR_AGAIN;
    *status = (uint16_t)(word & 0x7fff);
    return GPUNVME_OK;
}

/* gpunvme_dev_queue_end() after the lane has read the slot's bounce block: a release. */
GPUNVME_FN void gpunvme_dev_queue_end_read(struct gpunvme_dev_queue *q, uint64_t ticket)
{
    gpunvme_dev_slot_unclaim(q, ticket);
}

/*
 * Waits, and reaps if waiters do that, until the commands of all lanes are done or past their
 * deadlines (gpunvme_clock_ns()). Each lane has its own result: GPUNVME_OK, _STALE, or _TIMEOUT,
 * with which the command is still in flight. Ends no ticket.
 */
GPUNVME_FN int gpunvme_dev_queue_await(struct gpunvme_dev_queue *q, uint32_t mask, uint64_t ticket,
                                       uint64_t deadline_ns, uint16_t *status)
{
    int err = GPUNVME_ERR_AGAIN;

    for (uint32_t turn = 1;; turn++) {
        if (err == GPUNVME_ERR_AGAIN)
            err = gpunvme_dev_queue_peek(q, ticket, status);
        if (!gpunvme_warp_ballot(mask, err == GPUNVME_ERR_AGAIN))
            return err;
        if (q->reaper != GPUNVME_REAPER_WAITERS ||
            !gpunvme_dev_queue_reap(q, mask, GPUNVME_DEV_LOOKS))
            gpunvme_relax();
        if (turn % 32)
            continue;
        if (gpunvme_warp_lane() == gpunvme_warp_leader(mask))
            gpunvme_dev_queue_help(q);
        if (err == GPUNVME_ERR_AGAIN && gpunvme_clock_ns() >= deadline_ns)
            err = GPUNVME_ERR_TIMEOUT;
    }
}

/* Peeks, and ends one lane's ticket if that gave GPUNVME_OK. */
GPUNVME_FN int gpunvme_dev_queue_test(struct gpunvme_dev_queue *q, uint64_t ticket,
                                      uint16_t *status)
{
    int err = gpunvme_dev_queue_peek(q, ticket, status);

    if (!err)
        gpunvme_dev_queue_end(q, ticket);
    return err;
}

/* Awaits, and ends the tickets of the lanes that get GPUNVME_OK. */
GPUNVME_FN int gpunvme_dev_queue_wait(struct gpunvme_dev_queue *q, uint32_t mask, uint64_t ticket,
                                      uint64_t deadline_ns, uint16_t *status)
{
    int err = gpunvme_dev_queue_await(q, mask, ticket, deadline_ns, status);

    if (!err)
        gpunvme_dev_queue_end(q, ticket);
    return err;
}

/*
 * Abandons one lane's ticket after a timeout: nobody will wait for it any more. Its slot, list and
 * memory stay in use until the command ends (if the CPU reaps: until a reset), or a reset ends it.
 * If it ends at this very moment, only gpunvme_device_recover() frees the slot. GPUNVME_ERR_STALE:
 * it is done already, and must be ended.
 */
GPUNVME_FN int gpunvme_dev_queue_abandon(struct gpunvme_dev_queue *q, uint64_t ticket)
{
    uint64_t in_flight = (ticket & ~UINT64_C(0xffff)) | GPUNVME_DEV_SLOT_TAKEN;

    if (q->mirror) {
        uint64_t word = gpunvme_load_relaxed64(&q->mirror[ticket & q->mask].word);

        if (!((word ^ ticket) >> 16) && word & GPUNVME_SLOT_DONE)
            return GPUNVME_ERR_STALE;
    }
    return gpunvme_cas64_relaxed_gpu(&gpunvme_dev_slot(q, ticket)->word, &in_flight,
                                     in_flight | GPUNVME_DEV_SLOT_ABANDONED)
               ? GPUNVME_OK
               : GPUNVME_ERR_STALE;
}

#ifdef __cplusplus
}
#endif
#endif
