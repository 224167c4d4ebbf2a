/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What an engine does (engine.h says what it is), written for the warps of a block, which serve one
 * queue pair together. engine.cu compiles it for the GPU; engine.c for a thread, whose warp has one
 * lane and whose block is itself.
 *
 * Two try-locks, and nobody waits for either. Who holds `polling` reads the doorbells and moves
 * sq_seen, sq_tail, cq_seen and cq_head. Who holds `taking` moves sq_head: takes entries for its
 * lanes, so many that each has its place in the completion queue. All else is in one word, `state`,
 * changed by compare-and-swap:
 *
 *   cq_tail   next place of the completion queue, counted over two laps: the lap is the phase
 *   fetched   the submission queue's head as the driver may be told it: all entries before it have
 *             been read. Warps read their entries at the same time but move `fetched` in turn
 *   reported  the head told last
 *   inflight  commands taken whose completion has no place yet
 *
 * So the head told never goes back along the completion queue, and an entry is never given back
 * before it was read.
 *
 * Data is visible before its completion: the warp's lanes meet after the copies, each makes a fence
 * of system scope, and then stores its entry. A command id is free before its completion can be
 * seen.
 *
 * Two ways. A batch of plain reads and writes (sim_engine_find_plain()) is done in one stretch in
 * sim_engine_batch_all(): what is there must stay in registers, for what acquires at device scope
 * empties the first-level cache, and with it what a kernel keeps in local memory. So no address of
 * a local is taken there, and little lives on across a call of a function that is not inlined; look
 * at the spills with `-Xptxas -v` after a change. All else is sim_engine_long_way_all()'s.
 *
 * Functions named …_all are called by all lanes of a warp.
 */
#ifndef SIM_ENGINE_RUN_H
#define SIM_ENGINE_RUN_H

#include "gpunvme/warp.h"
#include "sim/command.h"
#include "sim/engine/atomics.h"
#include "sim/engine/engine.h"
#include "sim/engine/move.h"

#if defined(__CUDA_ARCH__)
#define SIM_ENGINE_LANES 0xffffffffu
#define SIM_ENGINE_HELD  1u /* commands that a lane can keep until they are due */
#define SIM_ENGINE_SLOW  static __device__ __noinline__
#else
#define SIM_ENGINE_LANES 1u
#define SIM_ENGINE_HELD  SIM_ENGINE_MAX_THREADS
#if defined(__CUDACC__)
#define SIM_ENGINE_SLOW static __host__ __device__ __noinline__
#else
#define SIM_ENGINE_SLOW static __attribute__((noinline, unused))
#endif
#endif

#define SIM_ENGINE_NEAR      64u  /* DMA ranges that a block keeps at hand */
#define SIM_ENGINE_MINE      256u /* queues that a block can serve in turn */
#define SIM_ENGINE_TURN      256u /* looks at a busy queue before the next one's turn */
#define SIM_ENGINE_QUIET     4u   /* looks in vain at a queue before the next one's turn */
#define SIM_ENGINE_LOOK_IDLE 64u  /* looks in vain before the stop word is read */
#define SIM_ENGINE_LOOK_BUSY 256u /* batches of a warp before it is read */
#define SIM_ENGINE_LOOK_TURN 16u  /* turns before it is read */
#define SIM_ENGINE_AGAIN     4u   /* loads of the doorbells in a look */
#define SIM_ENGINE_IDLE      16u  /* looks in vain before the clock is read */
#define SIM_ENGINE_UNIT      9u   /* log2 of the smallest block */
#define SIM_ENGINE_WARPS     (SIM_ENGINE_MAX_THREADS / 32u)
#define SIM_ENGINE_PUBLISH   1024u /* looks before a busy block tells the host */
#define SIM_ENGINE_SHARE     8u    /* fewest entries that a warp takes, if there are so many */

/* What each warp counts by itself: the first counters of struct sim_engine_counters. */
struct sim_engine_tally {
    uint64_t commands, bytes_read, bytes_written, host_reads, host_writes;
};

#define SIM_ENGINE_NTALLIES (sizeof(struct sim_engine_tally) / sizeof(uint64_t))

GPUNVME_STATIC_ASSERT(sizeof(struct sim_engine_tally) ==
                          offsetof(struct sim_engine_counters, errors),
                      "what the warps count comes first");

/* What the warps of a block share. */
struct sim_engine_block {
    uint64_t state;
    uint32_t taking, polling; /* try-locks */
    uint32_t publishing;      /* try-lock: who copies the counters to the host */
    uint32_t over;            /* not 0: the queue's turn is over */
    uint32_t dirty;           /* counters changed since they were published */

    /* the queue whose turn it is: constants */
    const struct gpunvme_sqe *sq;
    struct gpunvme_cqe *cq;
    const uint32_t *sq_doorbell, *cq_doorbell;
    struct sim_engine_counters *publish;
    uint32_t sq_size, cq_size;
    uint16_t sqid, cqid;
    uint32_t timed; /* the model limits something */

    uint32_t sq_head;                            /* taking */
    uint32_t ntaken;                             /* taking: batches */
    uint64_t nfetched;                           /* taking */
    uint32_t sq_seen, sq_tail, cq_seen, cq_head; /* polling */
    uint32_t vain;                               /* polling: looks in vain, in a row */
    uint32_t looks;                              /* polling */

    /* for all turns */
    uint64_t idle_since; /* polling; 0: there is work */
    uint64_t idle_ns;
    uint32_t idle_told; /* polling: counted in nidle */
    uint32_t block, blocks;
    uint32_t share_shift; /* log2 of the warps, rounded down */
    uint32_t nmine;
    uint32_t nturns;
    uint16_t mine[SIM_ENGINE_MINE];

    /* copies of what does not change */
    uint32_t nns, nranges, page, sgl, deac, nrules;
    uint64_t max_transfer;
    struct sim_engine_ns ns[SIM_ENGINE_MAX_NAMESPACES];
    struct sim_engine_range near_ranges[SIM_ENGINE_NEAR];
    const struct sim_engine_range *ranges;

    struct sim_engine_counters counters;
    struct sim_engine_tally tally[SIM_ENGINE_WARPS]; /* each by its warp's first lane alone */
    uint32_t cids[SIM_ENGINE_CID_WORDS];
};

/*
 * What a lane keeps from batch to batch: on a GPU that is registers, so there is little of it.
 * Passed by value: what has its address taken lies in memory.
 */
struct sim_engine_lane {
    struct sim_engine_pending *held; /* SIM_ENGINE_HELD that are this lane's own */
    uint32_t nheld;                  /* of them in use */
    uint32_t warp;                   /* which of the block */
};

/* A command in a lane's hands. */
struct sim_engine_work {
    struct gpunvme_sqe sqe;
    uint64_t due_ns;
    uint8_t *media;
    uint64_t nbytes; /* 0: nothing moves */
    uint64_t count;  /* how many were fetched before it */
    uint32_t op;     /* SIM_MOVE_* */
    uint16_t status;
    uint8_t here;     /* there is one */
    uint8_t keep_cid; /* its id belongs to another command */
    uint8_t lose, drop;
};

/*
 * ---- The state word --------------------------------------------------------------------------
 */

#define SIM_STATE_CQ_TAIL(s)  ((uint32_t)((s)&0xfffffu))
#define SIM_STATE_FETCHED(s)  ((uint32_t)((s) >> 20 & 0xffffu))
#define SIM_STATE_REPORTED(s) ((uint32_t)((s) >> 36 & 0xffffu))
#define SIM_STATE_INFLIGHT(s) ((uint32_t)((s) >> 52))
#define SIM_STATE_ONE         (UINT64_C(1) << 52)

GPUNVME_FN uint64_t sim_state_make(uint32_t cq_tail, uint32_t fetched, uint32_t reported,
                                   uint32_t inflight)
{
    return cq_tail | (uint64_t)fetched << 20 | (uint64_t)reported << 36 | (uint64_t)inflight << 52;
}

GPUNVME_FN uint32_t sim_engine_distance(uint32_t from, uint32_t to, uint32_t size)
{
    return to >= from ? to - from : to + size - from;
}

/* Entries of the completion queue that the driver has not taken. */
GPUNVME_FN uint32_t sim_engine_cq_used(const struct sim_engine_block *b, uint64_t state)
{
    uint32_t tail = SIM_STATE_CQ_TAIL(state);

    if (tail >= b->cq_size)
        tail -= b->cq_size;
    return sim_engine_distance(sim_block_load32(&b->cq_head), tail, b->cq_size);
}

GPUNVME_FN uint32_t sim_engine_cq_room(const struct sim_engine_block *b, uint64_t state)
{
    uint32_t used = sim_engine_cq_used(b, state) + SIM_STATE_INFLIGHT(state);

    return used < b->cq_size - 1 ? b->cq_size - 1 - used : 0;
}

/* More, or fewer, in flight. Orders nothing: what is read of the entries and written for them is
 * ordered by the other changes of the word, which this one leaves as they are. */
GPUNVME_FN void sim_engine_inflight(struct sim_engine_block *b, int64_t n)
{
    uint64_t s = sim_block_load64(&b->state);

    while (!sim_block_cas64_relaxed(&b->state, &s, s + (uint64_t)n * SIM_STATE_ONE))
        ;
}

/* The n entries from `first` on were read. Waits for those before, whose readers wait for nobody
 * after them. */
GPUNVME_FN void sim_engine_fetched(struct sim_engine_block *b, uint32_t first, uint32_t n)
{
    uint64_t s = sim_block_load64(&b->state);
    uint32_t end = first + n < b->sq_size ? first + n : first + n - b->sq_size;

    for (;;) {
        if (SIM_STATE_FETCHED(s) != first) {
            sim_engine_yield();
            s = sim_block_load64(&b->state);
            continue;
        }
        if (sim_block_cas64(&b->state, &s,
                            sim_state_make(SIM_STATE_CQ_TAIL(s), end, SIM_STATE_REPORTED(s),
                                           SIM_STATE_INFLIGHT(s))))
            return;
    }
}

/* Places for n completions: the state before, whose cq_tail is the first place. */
GPUNVME_FN uint64_t sim_engine_places(struct sim_engine_block *b, uint32_t n)
{
    uint64_t s = sim_block_load64(&b->state), next;

    do {
        uint32_t tail = SIM_STATE_CQ_TAIL(s) + n;

        if (tail >= 2 * b->cq_size)
            tail -= 2 * b->cq_size;
        next = sim_state_make(tail, SIM_STATE_FETCHED(s), SIM_STATE_FETCHED(s),
                              SIM_STATE_INFLIGHT(s) - n);
    } while (!sim_block_cas64(&b->state, &s, next));
    return s;
}

/*
 * ---- What is told to the host ----------------------------------------------------------------
 */

GPUNVME_FN void sim_engine_count(struct sim_engine_block *b, uint64_t *counter, uint64_t n)
{
    sim_block_add64(counter, n);
    sim_block_set32(&b->dirty, 1);
}

/* `cid_opc` is of a command: cid << 8 | opcode. */
SIM_ENGINE_SLOW void sim_engine_violate(struct sim_engine *e, struct sim_engine_block *b,
                                        uint32_t kind, uint32_t what, uint16_t qid,
                                        uint32_t cid_opc, uint64_t value, uint64_t other)
{
    struct sim_engine_violation *first = &e->host->first;

    sim_engine_count(b, &b->counters.violations[kind], 1);
    if (sim_device_load32(&e->told) || !sim_device_cas32(&e->told, 0, 1))
        return;
    first->kind = kind;
    first->what = what;
    first->qid = qid;
    first->cid = (uint16_t)(cid_opc >> 8);
    first->opc = cid_opc & 0xff;
    first->value = value;
    first->other = other;
    gpunvme_store_release32(&first->there, 1);
}

GPUNVME_FN uint32_t sim_engine_cid_opc(const struct gpunvme_sqe *sqe)
{
    return (uint32_t)sqe->cid << 8 | sqe->opc;
}

/* What the warps have counted so far of one thing, with what the block has. */
#define SIM_TALLY(b, what) sim_engine_tally_sum(b, &(b)->counters.what, &(b)->tally[0].what)

GPUNVME_FN uint64_t sim_engine_tally_sum(const struct sim_engine_block *b, const uint64_t *counter,
                                         const uint64_t *first)
{
    uint64_t sum = sim_block_load64(counter);

    for (uint32_t i = 0; i < SIM_ENGINE_WARPS; i++)
        sum += sim_block_load64(first + i * (sizeof(b->tally[0]) / sizeof(*first)));
    return sum;
}

/* By one at a time: who holds `publishing`, or who ends the turn. */
GPUNVME_FN void sim_engine_publish(struct sim_engine_block *b)
{
    uint64_t *from = (uint64_t *)&b->counters, *word = (uint64_t *)b->publish;

    sim_block_set32(&b->dirty, 0);
    gpunvme_store_relaxed64(&b->publish->commands, SIM_TALLY(b, commands));
    gpunvme_store_relaxed64(&b->publish->bytes_read, SIM_TALLY(b, bytes_read));
    gpunvme_store_relaxed64(&b->publish->bytes_written, SIM_TALLY(b, bytes_written));
    gpunvme_store_relaxed64(&b->publish->host_reads, SIM_TALLY(b, host_reads));
    gpunvme_store_relaxed64(&b->publish->host_writes, SIM_TALLY(b, host_writes));
    for (uint32_t i = SIM_ENGINE_NTALLIES; i < SIM_ENGINE_NCOUNTERS; i++)
        gpunvme_store_relaxed64(&word[i], sim_block_load64(&from[i]));
}

/* A warp's tallies become the block's, when no warp counts. */
GPUNVME_FN void sim_engine_gather(struct sim_engine_block *b)
{
    b->counters.commands = SIM_TALLY(b, commands);
    b->counters.bytes_read = SIM_TALLY(b, bytes_read);
    b->counters.bytes_written = SIM_TALLY(b, bytes_written);
    b->counters.host_reads = SIM_TALLY(b, host_reads);
    b->counters.host_writes = SIM_TALLY(b, host_writes);
    memset(b->tally, 0, sizeof(b->tally));
}

/* All blocks go, for this reason unless there is one already. */
GPUNVME_FN void sim_engine_leave(struct sim_engine *e, uint32_t why)
{
    uint32_t before = sim_device_load32(&e->leave);

    /* A rule that fired counts more than that there was nothing to do, or that the host asked. */
    while (before == SIM_ENGINE_RUNS || (why >= SIM_ENGINE_LEFT_FATAL && before < why)) {
        if (sim_device_cas32(&e->leave, before, why)) {
            gpunvme_store_release32(&e->host->left, why);
            return;
        }
        before = sim_device_load32(&e->leave);
    }
}

/* Is it time to go? The first block asks the host, if `host`: that takes long. */
GPUNVME_FN void sim_engine_look(struct sim_engine *e, struct sim_engine_block *b, int host)
{
    if (host && !b->block && gpunvme_load_acquire32(&e->host->stop))
        sim_engine_leave(e, SIM_ENGINE_LEFT_STOPPED);
    if (sim_device_load32(&e->leave))
        sim_block_store32(&b->over, 1);
}

/* What is done now and then, by a warp that holds no lock that a command could wait for. */
SIM_ENGINE_SLOW void sim_engine_now_and_then(struct sim_engine *e, struct sim_engine_block *b)
{
    sim_engine_look(e, b, 1);
    if (!sim_block_peek32(&b->dirty) || sim_block_exchange32(&b->publishing, 1))
        return;
    sim_engine_publish(b);
    sim_block_store32(&b->publishing, 0);
}

/*
 * ---- Doorbells -------------------------------------------------------------------------------
 */

/* New entries? A value that can't be is refused: what counts is the head told last. */
GPUNVME_FN int sim_engine_sq_poll(struct sim_engine *e, struct sim_engine_block *b, uint32_t value)
{
    uint32_t reported = SIM_STATE_REPORTED(sim_block_load64(&b->state)), used, added;

    if (value == b->sq_seen)
        return 0;
    b->sq_seen = value;
    sim_block_grow64(&b->counters.doorbell_writes, 1);
    sim_block_set32(&b->dirty, 1);
    if (value >= b->sq_size) {
        sim_engine_violate(e, b, GPUNVME_SIM_VIOLATION_DOORBELL_VALUE, SIM_WHAT_SQ_TAIL, b->sqid, 0,
                           value, b->sq_size);
        return 0;
    }
    used = sim_engine_distance(reported, b->sq_tail, b->sq_size);
    added = sim_engine_distance(b->sq_tail, value, b->sq_size);
    if (used + added > b->sq_size - 1) {
        sim_engine_violate(e, b, GPUNVME_SIM_VIOLATION_SQ_OVERFLOW, SIM_WHAT_SQ_TAIL, b->sqid, 0,
                           value, reported);
        return 0;
    }
    sim_block_store32(&b->sq_tail, value);
    return 1;
}

GPUNVME_FN int sim_engine_cq_poll(struct sim_engine *e, struct sim_engine_block *b, uint32_t value)
{
    uint64_t state = sim_block_load64(&b->state);

    if (value == b->cq_seen)
        return 0;
    b->cq_seen = value;
    sim_block_grow64(&b->counters.doorbell_writes, 1);
    sim_block_set32(&b->dirty, 1);
    if (value < b->cq_size &&
        sim_engine_distance(b->cq_head, value, b->cq_size) <= sim_engine_cq_used(b, state)) {
        sim_block_store32(&b->cq_head, value);
        return 1;
    }
    sim_engine_violate(e, b,
                       value >= b->cq_size ? GPUNVME_SIM_VIOLATION_DOORBELL_VALUE
                                           : GPUNVME_SIM_VIOLATION_CQ_OVERRUN,
                       SIM_WHAT_CQ_HEAD, b->cqid, 0, value, b->cq_head);
    return 0;
}

/* The block has work again. */
GPUNVME_FN void sim_engine_busy(struct sim_engine *e, struct sim_engine_block *b)
{
    b->idle_since = 0;
    if (b->idle_told) {
        b->idle_told = 0;
        sim_device_add32(&e->nidle, (uint32_t)-1);
    }
}

/* The block has nothing to do: when no block has had for idle_ns, all go. */
GPUNVME_FN void sim_engine_idle(struct sim_engine *e, struct sim_engine_block *b)
{
    uint64_t now_ns = gpunvme_clock_ns();

    if (!b->idle_ns)
        return;
    if (!b->idle_since)
        b->idle_since = now_ns;
    if (!b->idle_told && now_ns - b->idle_since >= b->idle_ns) {
        b->idle_told = 1;
        sim_device_add32(&e->nidle, 1);
    }
    if (b->idle_told && sim_device_load32(&e->nidle) >= b->blocks)
        sim_engine_leave(e, SIM_ENGINE_LEFT_IDLE);
}

/* Nothing new was found; the clock is not read each time. */
GPUNVME_FN void sim_engine_vain(struct sim_engine *e, struct sim_engine_block *b)
{
    if (b->vain++ % SIM_ENGINE_IDLE)
        return;
    if (SIM_STATE_INFLIGHT(sim_block_load64(&b->state)))
        sim_engine_busy(e, b);
    else
        sim_engine_idle(e, b);
}

/*
 * A look at the doorbells, one warp at a time; at the completion queue's only when room is short.
 * They are read a few times in a row where no other queue waits: passing on the lock takes as long
 * as the load. Returns whether something changed. Acquires only then: on a GPU that empties the
 * first-level cache, which is the user's kernels' as well.
 */
GPUNVME_FN int sim_engine_poll(struct sim_engine *e, struct sim_engine_block *b)
{
    uint32_t sq_value, cq_value, vain, looks, again;
    int changed = 0, wants;

    if (sim_block_peek32(&b->polling) || sim_block_exchange32(&b->polling, 1))
        return 0;
    again = b->nmine > 1 ? 1 : SIM_ENGINE_AGAIN;
    wants = sim_engine_cq_room(b, sim_block_load64(&b->state)) < b->cq_size / 2;
    do {
        cq_value = b->cq_seen;
        sq_value = gpunvme_load_relaxed32(b->sq_doorbell);
        if (wants)
            cq_value = gpunvme_load_relaxed32(b->cq_doorbell);
    } while (sq_value == b->sq_seen && cq_value == b->cq_seen && --again);
    if (sq_value != b->sq_seen)
        changed = sim_engine_sq_poll(e, b, gpunvme_load_acquire32(b->sq_doorbell));
    if (cq_value != b->cq_seen)
        changed |= sim_engine_cq_poll(e, b, gpunvme_load_acquire32(b->cq_doorbell));
    if (changed) {
        b->vain = 0;
        if (b->idle_since)
            sim_engine_busy(e, b);
    } else {
        sim_engine_vain(e, b);
    }
    vain = b->vain;
    looks = ++b->looks;
    if (b->nmine > 1 && (vain >= SIM_ENGINE_QUIET || looks >= SIM_ENGINE_TURN))
        sim_block_store32(&b->over, 1);
    sim_block_store32(&b->polling, 0);
    if (changed)
        return 1;
    if ((vain && vain % SIM_ENGINE_LOOK_IDLE == 0) || looks % SIM_ENGINE_PUBLISH == 0)
        sim_engine_now_and_then(e, b);
    if (vain > 256)
        sim_engine_sleep(vain > 1024 ? 256 : 64);
    return 0;
}

/* Entries that were taken: how many, from which on, and how many were before (40 bits of it). */
#define SIM_TAKEN_N(t)     ((uint32_t)((t)&0xff))
#define SIM_TAKEN_FIRST(t) ((uint32_t)((t) >> 8 & 0xffff))
#define SIM_TAKEN_COUNT(t) ((t) >> 24)

/*
 * Takes up to `want` entries, each with a place in the completion queue; 0: none. Where many wait,
 * each warp takes its share.
 */
GPUNVME_FN uint64_t sim_engine_take(struct sim_engine_block *b, uint32_t want)
{
    uint32_t there, n, room, share, first;
    uint64_t state, taken = 0;

    if (sim_block_load32(&b->sq_head) == sim_block_load32(&b->sq_tail) ||
        sim_block_load32(&b->taking) || sim_block_exchange32(&b->taking, 1))
        return 0;
    there = sim_engine_distance(b->sq_head, sim_block_load32(&b->sq_tail), b->sq_size);
    state = sim_block_load64(&b->state);
    room = sim_engine_cq_room(b, state);
    share = there >> b->share_shift;
    if (share < SIM_ENGINE_SHARE)
        share = SIM_ENGINE_SHARE;
    n = there < want ? there : want;
    n = n < room ? n : room;
    n = n < share ? n : share;
    if (n) {
        first = b->sq_head;
        taken = n | (uint64_t)first << 8 | b->nfetched << 24;
        b->nfetched += n;
        sim_block_set32(&b->sq_head, first + n < b->sq_size ? first + n : first + n - b->sq_size);
        sim_engine_inflight(b, n);
        if (++b->ntaken % SIM_ENGINE_LOOK_BUSY == 0 && b->nmine > 1)
            sim_block_store32(&b->over, 1);
    }
    sim_block_store32(&b->taking, 0);
    return taken;
}

/* For the leader of a warp with `want` free lanes: takes what there is, or looks for more. */
SIM_ENGINE_SLOW uint64_t sim_engine_seek(struct sim_engine *e, struct sim_engine_block *b,
                                         uint32_t want)
{
    for (int again = 0;; again = 1) {
        uint64_t taken = sim_engine_take(b, want);

        if (taken || again || !sim_engine_poll(e, b))
            return taken;
    }
}

/*
 * ---- What a command is -----------------------------------------------------------------------
 */

/* Where the kernel finds the bus address, and how many bytes from there on, at most nbytes; NULL:
 * nothing is mapped there. */
GPUNVME_FN uint8_t *sim_engine_at(const struct sim_engine_block *b, uint64_t bus, uint64_t nbytes,
                                  uint64_t *run)
{
    uint32_t low = 0, high = b->nranges;
    const struct sim_engine_range *range;

    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;

        if (b->ranges[middle].bus <= bus)
            low = middle;
        else
            high = middle;
    }
    range = &b->ranges[low];
    if (!high || bus < range->bus || bus - range->bus >= range->nbytes)
        return NULL;
    *run = range->nbytes - (bus - range->bus);
    if (*run > nbytes)
        *run = nbytes;
    return range->at + (bus - range->bus);
}

/* True when the id was free; now it is taken. */
GPUNVME_FN int sim_engine_claim_cid(struct sim_engine_block *b, uint16_t cid)
{
    uint32_t bit = 1u << cid % 32;

    return !(sim_block_or32(&b->cids[cid / 32], bit) & bit);
}

SIM_ENGINE_SLOW void sim_engine_tell_form(struct sim_engine *e, struct sim_engine_block *b,
                                          const struct gpunvme_sqe *sqe,
                                          const struct sim_rule *rule, uint32_t wrong)
{
    for (; wrong; wrong &= wrong - 1) {
        enum sim_what what = (enum sim_what)gpunvme_lowest_bit(wrong);

        sim_engine_violate(e, b,
                           what == SIM_WHAT_SGL_UNSUPPORTED ? GPUNVME_SIM_VIOLATION_SGL_INVALID
                                                            : GPUNVME_SIM_VIOLATION_RESERVED_BITS,
                           what, b->sqid, sim_engine_cid_opc(sqe),
                           sim_command_reserved(sqe, rule, 0, what), 0);
    }
}

GPUNVME_FN const struct sim_engine_ns *sim_engine_find_ns(const struct sim_engine_block *b,
                                                          uint32_t nsid)
{
    for (uint32_t i = 0; i < b->nns; i++)
        if (b->ns[i].nsid == nsid)
            return &b->ns[i];
    return NULL;
}

/* What is to be moved, once the command has a namespace and blocks of it. */
GPUNVME_FN uint16_t sim_engine_plan(const struct sim_engine_block *b, struct sim_engine_work *work)
{
    const struct gpunvme_sqe *sqe = &work->sqe;
    const struct sim_engine_ns *ns;
    uint64_t nbytes;
    uint16_t status;

    if (sqe->opc == GPUNVME_CMD_FLUSH && sqe->nsid == GPUNVME_NSID_ALL)
        return GPUNVME_SC_SUCCESS;
    ns = sim_engine_find_ns(b, sqe->nsid);
    if (!ns)
        return sim_command_no_ns(sqe->nsid, b->nns ? b->ns[b->nns - 1].nsid : 0);
    if (sqe->opc == GPUNVME_CMD_FLUSH)
        return GPUNVME_SC_SUCCESS;
    status = sim_command_blocks(sqe, ns->nblocks, (int)ns->readonly);
    if (status)
        return status;
    nbytes = sim_command_nlb(sqe) << ns->shift;
    work->media = ns->bytes + (sim_command_slba(sqe) << ns->shift);
    if (sqe->opc == GPUNVME_CMD_WRITE_ZEROES) {
        work->nbytes = nbytes;
        work->op = SIM_MOVE_ZERO;
        return GPUNVME_SC_SUCCESS;
    }
    status = sim_command_transfer(sqe, nbytes, b->max_transfer, ns->metadata);
    if (status || sqe->opc == GPUNVME_CMD_VERIFY)
        return status;
    work->nbytes = nbytes;
    work->op = sqe->opc == GPUNVME_CMD_COMPARE ? SIM_MOVE_COMPARE : SIM_MOVE_COPY;
    return GPUNVME_SC_SUCCESS;
}

GPUNVME_FN uint16_t sim_engine_check(struct sim_engine *e, struct sim_engine_block *b,
                                     struct sim_engine_work *work)
{
    struct sim_rule rule;
    uint32_t wrong;
    uint16_t status;

    if (!sim_engine_has(work->sqe.opc) || !sim_io_rule(work->sqe.opc, (int)b->deac, &rule))
        return GPUNVME_SC_INVALID_OPCODE;
    status = sim_command_form(&work->sqe, &rule, 0, (int)b->sgl, &wrong);
    if (wrong)
        sim_engine_tell_form(e, b, &work->sqe, &rule, wrong);
    return status ? status : sim_engine_plan(b, work);
}

/*
 * ---- Speed -----------------------------------------------------------------------------------
 */

/* Takes a place in a line of customers that takes `cost`: when this one's turn begins. */
GPUNVME_FN uint64_t sim_engine_book(uint64_t *free_at, uint64_t now, uint64_t cost)
{
    uint64_t old = sim_device_load64(free_at), start;

    do
        start = old > now ? old : now;
    while (!sim_device_cas64(free_at, &old, start + cost));
    return start;
}

/* The sum of the values of the lanes before this one, and of all in *sum. */
GPUNVME_FN uint64_t sim_engine_prefix_all(uint64_t value, uint64_t *sum)
{
    uint64_t up_to = value;

    for (uint32_t step = 1; step < GPUNVME_WARP_LANES; step *= 2) {
        uint32_t lane = gpunvme_warp_lane();
        uint64_t other =
            gpunvme_warp_shfl64(SIM_ENGINE_LANES, up_to, lane >= step ? lane - step : lane);

        if (lane >= step)
            up_to += other;
    }
    *sum = gpunvme_warp_shfl64(SIM_ENGINE_LANES, up_to, GPUNVME_WARP_LANES - 1);
    return up_to - value;
}

/* All lanes pass a meter, one after the other: *start is when a lane's turn begins, *end when it
 * has passed, both in 1/4096 ns. */
GPUNVME_FN void sim_engine_meter_all(uint64_t *free_at, uint64_t now, uint64_t cost,
                                     uint64_t *start, uint64_t *end)
{
    uint64_t sum, before = sim_engine_prefix_all(cost, &sum), begin = 0;

    if (!sum)
        return;
    if (!gpunvme_warp_lane())
        begin = sim_engine_book(free_at, now, sum);
    begin = gpunvme_warp_shfl64(SIM_ENGINE_LANES, begin, 0) + before;
    if (cost) {
        *start = *start > begin ? *start : begin;
        *end = *end > begin + cost ? *end : begin + cost;
    }
}

/* When the device would be done; see model.c, whose stages these are. Channels are given out in
 * turn. */
SIM_ENGINE_SLOW void sim_engine_due_all(struct sim_engine *e, struct sim_engine_block *b,
                                        struct sim_engine_work *work)
{
    struct sim_engine_model *m = &e->model;
    uint64_t now_ns = gpunvme_clock_ns(), epoch = sim_device_load64(&m->epoch_ns), now;
    uint64_t start, passed, last_byte, latency = 0, nbytes = 0;
    const struct sim_engine_ns *ns = sim_engine_find_ns(b, work->sqe.nsid);
    int kind = -1;

    if (!epoch && sim_device_cas64(&m->epoch_ns, &epoch, now_ns))
        epoch = now_ns;
    now = now_ns > epoch ? (now_ns - epoch) << 12 : 0;
    start = passed = last_byte = now;
    if (work->here && !work->keep_cid) {
        uint8_t opc = work->sqe.opc;

        if (opc == GPUNVME_CMD_READ || opc == GPUNVME_CMD_COMPARE || opc == GPUNVME_CMD_VERIFY)
            kind = 0;
        else if (opc == GPUNVME_CMD_WRITE)
            kind = 1;
        latency =
            kind >= 0 ? m->latency_ns[kind] : (opc == GPUNVME_CMD_FLUSH ? m->flush_latency_ns : 0);
        if (ns && kind >= 0)
            nbytes = sim_command_nlb(&work->sqe) << ns->shift;
    }
    if (latency && m->spread) {
        uint64_t random =
            sim_engine_mix(e->seed ^ sim_engine_mix(work->count ^ (uint64_t)b->sqid << 48));

        latency = (uint64_t)((float)latency * m->spread[random % SIM_ENGINE_SPREAD]);
    }
    if (kind >= 0 && m->nchannels) {
        uint64_t channel = sim_device_add64(&m->next_channel, 1) % m->nchannels;

        start = sim_engine_book(&m->channels[channel], now, latency << 12);
    }
    for (int i = 0; i < 2; i++) {
        sim_engine_meter_all(&m->command_free[i], now, kind == i ? m->command_cost[i] : 0, &start,
                             &passed);
        sim_engine_meter_all(&m->byte_free[i], now,
                             kind == i ? (nbytes * m->byte_cost[i]) >> 12 : 0, &start, &last_byte);
    }
    start += latency << 12;
    if (start < last_byte)
        start = last_byte;
    work->due_ns = start > now ? epoch + (start >> 12) : 0;
}

/*
 * ---- Faults ----------------------------------------------------------------------------------
 */

GPUNVME_FN int sim_engine_touches(const struct sim_engine *e, const struct sim_engine_rule *rule,
                                  const struct gpunvme_sqe *sqe)
{
    uint64_t slba = sim_command_slba(sqe), nlb = sim_command_nlb(sqe);

    if (!rule->has_lba && !rule->lba_one_in)
        return 1;
    if (sqe->opc == GPUNVME_CMD_FLUSH || !sim_engine_has(sqe->opc))
        return 0;
    if (rule->has_lba &&
        (slba > rule->last_lba || (slba < rule->first_lba && rule->first_lba - slba >= nlb)))
        return 0;
    if (!rule->lba_one_in)
        return 1;
    for (uint64_t i = 0; i < nlb; i++)
        if (sim_engine_lba_fails(e->seed, slba + i, rule->lba_one_in))
            return 1;
    return 0;
}

GPUNVME_FN int sim_engine_applies(const struct sim_engine *e, const struct sim_engine_block *b,
                                  const struct sim_engine_rule *rule, const struct gpunvme_sqe *sqe)
{
    if (!(rule->opcodes[sqe->opc / 32] >> sqe->opc % 32 & 1) ||
        (rule->has_sq && rule->sq != b->sqid) || (rule->has_nsid && rule->nsid != sqe->nsid))
        return 0;
    if (rule->once && sim_device_load64(&rule->spent))
        return 0;
    return sim_engine_touches(e, rule, sqe);
}

/* Of the lanes to which the rule applies, those at which it fires. */
GPUNVME_FN int sim_engine_fires_all(const struct sim_engine *e, const struct sim_engine_block *b,
                                    struct sim_engine_rule *rule, uint32_t index, uint32_t applies,
                                    uint64_t count)
{
    uint32_t lane = gpunvme_warp_lane(), leader = gpunvme_warp_leader(applies), firing;
    uint64_t match = 0, dice, none = 0;
    int fires = (int)(applies >> lane & 1);

    if (rule->nth || rule->every) {
        if (lane == leader)
            match = sim_device_add64(&rule->nmatches, gpunvme_popcount(applies));
        match =
            gpunvme_warp_shfl64(SIM_ENGINE_LANES, match, leader) + gpunvme_warp_rank(applies) + 1;
        if ((rule->nth && match != rule->nth) || (rule->every && match % rule->every))
            fires = 0;
    }
    dice = sim_engine_mix(e->seed ^
                          sim_engine_mix(count ^ (uint64_t)b->sqid << 48 ^ (uint64_t)index << 40));
    if (rule->p_of_2_to64 != UINT64_MAX && dice >= rule->p_of_2_to64)
        fires = 0;
    if (rule->once) {
        firing = gpunvme_warp_ballot(SIM_ENGINE_LANES, fires);
        fires = fires && lane == gpunvme_warp_leader(firing) &&
                sim_device_cas64(&rule->spent, &none, 1);
    }
    return fires;
}

GPUNVME_FN void sim_engine_strike(struct sim_engine *e, struct sim_engine_block *b,
                                  const struct sim_engine_rule *rule, struct sim_engine_work *work)
{
    sim_engine_count(b, &b->counters.faults, 1);
    switch (rule->kind) {
    case SIM_ENGINE_FAULT_STATUS:
        work->status = (uint16_t)rule->status;
        break;
    case SIM_ENGINE_FAULT_DELAY:
        work->due_ns = (work->due_ns ? work->due_ns : gpunvme_clock_ns()) + rule->delay_ns;
        break;
    case SIM_ENGINE_FAULT_LOSE:
        work->lose = 1;
        break;
    default:
        work->drop = 1;
        sim_engine_leave(e, rule->kind == SIM_ENGINE_FAULT_CFS ? SIM_ENGINE_LEFT_FATAL
                                                               : SIM_ENGINE_LEFT_REMOVED);
        sim_block_store32(&b->over, 1);
    }
}

/* Meets each lane's command with the first rule that fires. */
SIM_ENGINE_SLOW void sim_engine_faults_all(struct sim_engine *e, struct sim_engine_block *b,
                                           struct sim_engine_work *work)
{
    int open = work->here && !work->keep_cid;
    uint32_t dropped;

    for (uint32_t i = 0; i < b->nrules; i++) {
        struct sim_engine_rule *rule = &e->rules[i];
        uint32_t applies = gpunvme_warp_ballot(SIM_ENGINE_LANES,
                                               open && sim_engine_applies(e, b, rule, &work->sqe));

        if (applies && sim_engine_fires_all(e, b, rule, i, applies, work->count)) {
            sim_engine_strike(e, b, rule, work);
            open = 0;
        }
    }
    /* What was fetched after a command that ended it all is not done either. */
    dropped = gpunvme_warp_ballot(SIM_ENGINE_LANES, work->drop);
    if (dropped && gpunvme_warp_lane() > gpunvme_lowest_bit(dropped))
        work->drop = 1;
}

/*
 * ---- Data ------------------------------------------------------------------------------------
 */

/* Whether PRPs describe one piece on the bus: one page, or two that lie side by side. */
GPUNVME_FN int sim_engine_one_run(const struct gpunvme_sqe *sqe, uint64_t nbytes, uint32_t page)
{
    uint64_t first = page - (sqe->prp1 & (page - 1));

    if (sqe->prp1 & 3)
        return 0;
    if (nbytes <= first)
        return !sqe->prp2;
    return nbytes - first <= page && sqe->prp2 == sqe->prp1 + first;
}

/* The data of most commands is in one piece: its address, or NULL where it must be walked. */
GPUNVME_FN uint8_t *sim_engine_one_piece(const struct sim_engine_block *b,
                                         const struct gpunvme_sqe *sqe, uint64_t nbytes)
{
    uint64_t run = 0;
    uint8_t *at;

    if ((sqe->flags & GPUNVME_PSDT_MASK) == GPUNVME_PSDT_PRP) {
        if (!sim_engine_one_run(sqe, nbytes, b->page))
            return NULL;
    } else {
        /* one data block of just that length: the descriptor's second half tells it all */
        uint64_t want =
            nbytes | (uint64_t)GPUNVME_SGL_ID(GPUNVME_SGL_DATA_BLOCK, GPUNVME_SGL_SUBTYPE_ADDRESS)
                         << 56;

        if (sqe->prp2 != want)
            return NULL;
    }
    at = sim_engine_at(b, sqe->prp1, nbytes, &run);
    return run == nbytes ? at : NULL;
}

/* What a plain command moves. */
struct sim_engine_plain {
    uint8_t *media, *host;
    uint64_t nbytes;
};

/*
 * The short way: 1 when it is a read or write with nothing unusual about it, data in one piece.
 * Nothing is changed otherwise, and nothing told: the long way finds out what is wrong, by the same
 * checks.
 */
GPUNVME_FN int sim_engine_find_plain(const struct sim_engine_block *b,
                                     const struct gpunvme_sqe *sqe, struct sim_engine_plain *plain)
{
    uint8_t psdt = sqe->flags & GPUNVME_PSDT_MASK;
    const struct sim_engine_ns *ns;
    uint64_t nbytes;
    uint8_t *host;

    if (!sim_command_plain(sqe) || sqe->flags != psdt || psdt == GPUNVME_PSDT_MASK ||
        (psdt != GPUNVME_PSDT_PRP && !b->sgl))
        return 0;
    ns = sim_engine_find_ns(b, sqe->nsid);
    if (!ns || sim_command_blocks(sqe, ns->nblocks, (int)ns->readonly))
        return 0;
    nbytes = sim_command_nlb(sqe) << ns->shift;
    if (sim_command_transfer(sqe, nbytes, b->max_transfer, ns->metadata))
        return 0;
    host = sim_engine_one_piece(b, sqe, nbytes);
    if (!host)
        return 0;
    plain->media = ns->bytes + (sim_command_slba(sqe) << ns->shift);
    plain->host = host;
    plain->nbytes = nbytes;
    return 1;
}

GPUNVME_FN uint16_t sim_engine_unmapped(struct sim_engine *e, struct sim_engine_block *b,
                                        const struct gpunvme_sqe *sqe, uint64_t bus)
{
    sim_engine_violate(e, b, GPUNVME_SIM_VIOLATION_DMA_UNMAPPED, SIM_WHAT_BUS, b->sqid,
                       sim_engine_cid_opc(sqe), bus, 0);
    return GPUNVME_SC_DATA_TRANSFER_ERROR;
}

/* Bytes of a list; false: not mapped. */
GPUNVME_FN int sim_engine_read_list(const struct sim_engine_block *b, struct sim_walk *walk)
{
    uint32_t done = 0;

    while (done < walk->nwant) {
        uint64_t run = 0;
        const uint8_t *at = sim_engine_at(b, walk->want + done, walk->nwant - done, &run);

        if (!at)
            return 0;
        if (run == walk->nwant && !((uintptr_t)at & 7)) {
            walk->in[0] = *(const uint64_t *)(const void *)at;
            walk->in[1] = run > 8 ? ((const uint64_t *)(const void *)at)[1] : 0;
            return 1;
        }
        for (uint32_t i = 0; i < run; i++)
            ((uint8_t *)walk->in)[done + i] = at[i];
        done += (uint32_t)run;
    }
    return 1;
}

/* Goes on with a walk as device/data.c does. */
GPUNVME_FN uint16_t sim_engine_advance(struct sim_engine *e, struct sim_engine_block *b,
                                       const struct gpunvme_sqe *sqe, struct sim_walk *walk,
                                       int end)
{
    for (;;) {
        enum sim_walk_step step = end ? sim_walk_end(walk) : sim_walk_next(walk);

        if (walk->note)
            sim_engine_violate(e, b, GPUNVME_SIM_VIOLATION_SGL_INVALID, walk->note, b->sqid,
                               sim_engine_cid_opc(sqe), 0, 0);
        walk->note = 0;
        if (step == SIM_WALK_WRONG) {
            sim_engine_violate(e, b, walk->violation, walk->what, b->sqid, sim_engine_cid_opc(sqe),
                               walk->value, 0);
            return walk->status;
        }
        if (step != SIM_WALK_READ)
            return GPUNVME_SC_SUCCESS;
        if (!sim_engine_read_list(b, walk))
            return sim_engine_unmapped(e, b, sqe, walk->want);
    }
}

/* The next piece: *n bytes at *at, which is NULL for a bit bucket. */
GPUNVME_FN uint16_t sim_engine_piece(struct sim_engine *e, struct sim_engine_block *b,
                                     const struct gpunvme_sqe *sqe, struct sim_walk *walk,
                                     uint8_t **at, uint64_t *n)
{
    if (!walk->piece) {
        uint16_t status = sim_engine_advance(e, b, sqe, walk, 0);

        if (status)
            return status;
    }
    *n = walk->piece;
    *at = NULL;
    if (!walk->bucket) {
        *at = sim_engine_at(b, walk->bus, walk->piece, n);
        if (!*at) {
            *n = 0;
            return sim_engine_unmapped(e, b, sqe, walk->bus);
        }
    }
    walk->bus += *n;
    walk->piece -= *n;
    walk->left -= *n;
    if (!walk->piece)
        walk->bucket = 0;
    return GPUNVME_SC_SUCCESS;
}

/* Moves between media and host; WRITE is the other way round. */
GPUNVME_FN int sim_engine_move_all(const struct sim_engine_work *work, uint32_t op, uint8_t *media,
                                   uint8_t *host, uint64_t n)
{
    int out = work->sqe.opc == GPUNVME_CMD_WRITE || op == SIM_MOVE_ZERO;

    return sim_move(op, out ? media : host, out && op != SIM_MOVE_ZERO ? host : media, n);
}

/* What can't be moved in one piece, piece by piece, all lanes' pieces together. */
SIM_ENGINE_SLOW void sim_engine_walk_all(struct sim_engine *e, struct sim_engine_block *b,
                                         struct sim_engine_work *work, int mine)
{
    uint8_t *media = work->media;
    struct sim_walk walk;

    if (mine) {
        sim_walk_begin(&walk, &work->sqe, work->nbytes, b->page, work->sqe.opc == GPUNVME_CMD_READ);
        if (walk.note)
            sim_engine_violate(e, b, GPUNVME_SIM_VIOLATION_RESERVED_BITS, walk.note, b->sqid,
                               sim_engine_cid_opc(&work->sqe), walk.value, 0);
        walk.note = 0;
    }
    while (gpunvme_warp_ballot(SIM_ENGINE_LANES, mine)) {
        uint8_t *at = NULL;
        uint64_t n = 0;

        if (mine)
            work->status = sim_engine_piece(e, b, &work->sqe, &walk, &at, &n);
        if (sim_engine_move_all(work, mine && at ? work->op : SIM_MOVE_NOTHING, media, at, n))
            work->status = GPUNVME_SC_COMPARE_FAILURE;
        media += n;
        if (mine && !work->status && !walk.left)
            work->status = sim_engine_advance(e, b, &work->sqe, &walk, 1);
        if (mine)
            mine = !work->status && walk.left;
    }
}

/* Checks the lanes' commands, does what they want, and says how it went. */
GPUNVME_FN void sim_engine_data_all(struct sim_engine *e, struct sim_engine_block *b,
                                    struct sim_engine_work *work)
{
    uint32_t op = SIM_MOVE_NOTHING;
    uint8_t *host = NULL;
    int walks = 0;

    if (work->here && !work->status && !work->drop) {
        work->status = sim_engine_check(e, b, work);
        op = work->status ? SIM_MOVE_NOTHING : work->op;
        host = work->media; /* for Write Zeroes, which has none */
    }
    if (op == SIM_MOVE_COPY || op == SIM_MOVE_COMPARE) {
        host = sim_engine_one_piece(b, &work->sqe, work->nbytes);
        walks = !host;
    }
    if (gpunvme_warp_ballot(SIM_ENGINE_LANES, walks))
        sim_engine_walk_all(e, b, work, walks);
    if (sim_engine_move_all(work, walks ? SIM_MOVE_NOTHING : op, work->media, host, work->nbytes))
        work->status = GPUNVME_SC_COMPARE_FAILURE;
}

/*
 * ---- Completion ------------------------------------------------------------------------------
 */

/*
 * Ends the commands of the lanes of `ready`: their ids are free (unless `keep_cid`), their entries
 * posted. cid_status: the id, and the status << 16.
 */
GPUNVME_FN void sim_engine_post_all(struct sim_engine_block *b, uint32_t warp, uint32_t ready,
                                    uint32_t cid_status, int keep_cid)
{
    uint32_t me = gpunvme_warp_lane(), leader, place, phase, cid = cid_status & 0xffff;
    int mine = (int)(ready >> me & 1);
    uint64_t state = 0;

    if (!ready)
        return;
    leader = gpunvme_warp_leader(ready);
    if (mine && !keep_cid)
        sim_block_and32(&b->cids[cid / 32], ~(1u << cid % 32));
    gpunvme_warp_sync(SIM_ENGINE_LANES); /* all lanes' copies and ids, before anybody's fence */
    sim_engine_fence();
    if (me == leader) {
        state = sim_engine_places(b, gpunvme_popcount(ready));
        sim_block_grow64(&b->tally[warp].commands, gpunvme_popcount(ready));
        sim_block_set32(&b->dirty, 1);
    }
    state = gpunvme_warp_shfl64(SIM_ENGINE_LANES, state, leader);
    if (!mine)
        return;
    place = SIM_STATE_CQ_TAIL(state) + gpunvme_warp_rank(ready);
    if (place >= 2 * b->cq_size)
        place -= 2 * b->cq_size;
    phase = place < b->cq_size;
    if (!phase)
        place -= b->cq_size;
    sim_engine_store_cqe(&b->cq[place], 0, SIM_STATE_FETCHED(state) | (uint32_t)b->sqid << 16,
                         cid | (cid_status >> 16 << 1 | phase) << 16);
}

/* Of completions with a status; the lanes of `ready` have one. */
GPUNVME_FN void sim_engine_count_error(struct sim_engine_block *b, uint32_t ready,
                                       uint32_t cid_status)
{
    uint16_t status = (uint16_t)(cid_status >> 16);

    if (!(ready >> gpunvme_warp_lane() & 1) || !status)
        return;
    sim_engine_count(b, &b->counters.errors, 1);
    if (GPUNVME_STATUS_SCT(status) == GPUNVME_SCT_MEDIA &&
        GPUNVME_STATUS_CODE(status) != GPUNVME_SC_COMPARE_FAILURE)
        sim_engine_count(b, &b->counters.media_errors, 1);
}

/* Posts what is due of the commands that the lanes keep, of each lane the earliest first. Returns
 * how many this lane keeps then. */
SIM_ENGINE_SLOW uint32_t sim_engine_due_held_all(struct sim_engine_block *b,
                                                 struct sim_engine_lane lane)
{
    uint64_t now_ns = gpunvme_clock_ns();

    for (;;) {
        struct sim_engine_pending done = {0, 0, 0};
        uint32_t at = 0, ready;

        for (uint32_t i = 0; lane.nheld && i < SIM_ENGINE_HELD; i++)
            if (lane.held[i].flags & SIM_ENGINE_PENDING_USED &&
                (!done.flags || lane.held[i].due_ns < done.due_ns)) {
                done = lane.held[i];
                at = i;
            }
        ready = gpunvme_warp_ballot(SIM_ENGINE_LANES, done.flags && done.due_ns <= now_ns);
        if (!ready)
            return lane.nheld;
        if (ready >> gpunvme_warp_lane() & 1) {
            lane.held[at].flags = 0;
            lane.nheld--;
        }
        sim_engine_count_error(b, ready, done.cid_status);
        sim_engine_post_all(b, lane.warp, ready, done.cid_status,
                            (done.flags & SIM_ENGINE_PENDING_KEEP_CID) != 0);
    }
}

GPUNVME_FN void sim_engine_hold(const struct sim_engine_lane *lane,
                                const struct sim_engine_pending *done)
{
    for (uint32_t i = 0; i < SIM_ENGINE_HELD; i++)
        if (!(lane->held[i].flags & SIM_ENGINE_PENDING_USED)) {
            lane->held[i] = *done;
            return;
        }
}

/*
 * ---- A batch ---------------------------------------------------------------------------------
 */

/* Counts what moved. Whole blocks: in units of the smallest, so that a sum has room in a word. */
GPUNVME_FN void sim_engine_tally_all(struct sim_engine_block *b, uint32_t warp, int reads,
                                     int writes, uint64_t nbytes)
{
    uint32_t nreads = gpunvme_popcount(gpunvme_warp_ballot(SIM_ENGINE_LANES, reads));
    uint32_t nwrites = gpunvme_popcount(gpunvme_warp_ballot(SIM_ENGINE_LANES, writes));
    uint32_t units = (uint32_t)(nbytes >> SIM_ENGINE_UNIT);
    uint32_t read = sim_warp_sum32(SIM_ENGINE_LANES, reads ? units : 0);
    uint32_t written = sim_warp_sum32(SIM_ENGINE_LANES, writes ? units : 0);
    struct sim_engine_tally *tally = &b->tally[warp];

    if (gpunvme_warp_lane())
        return;
    if (nreads) {
        sim_block_grow64(&tally->host_reads, nreads);
        sim_block_grow64(&tally->bytes_read, (uint64_t)read << SIM_ENGINE_UNIT);
    }
    if (nwrites) {
        sim_block_grow64(&tally->host_writes, nwrites);
        sim_block_grow64(&tally->bytes_written, (uint64_t)written << SIM_ENGINE_UNIT);
    }
    sim_block_set32(&b->dirty, 1); /* again: it could have been published meanwhile */
}

/* The lanes' entries: the first of `open` have one each. */
GPUNVME_FN void sim_engine_fetch_all(struct sim_engine_block *b, struct sim_engine_work *work,
                                     uint32_t open, uint64_t taken)
{
    uint32_t n = SIM_TAKEN_N(taken), first = SIM_TAKEN_FIRST(taken), rank = gpunvme_warp_rank(open),
             me = gpunvme_warp_lane();

    gpunvme_warp_sync(SIM_ENGINE_LANES); /* what the leader acquired, all lanes have */
    work->here = open >> me & 1 && rank < n;
    if (work->here) {
        uint32_t at = first + rank;

        work->count = SIM_TAKEN_COUNT(taken) + rank;
        sim_engine_load_sqe(&work->sqe, &b->sq[at < b->sq_size ? at : at - b->sq_size]);
        work->keep_cid = !sim_engine_claim_cid(b, work->sqe.cid);
    }
    gpunvme_warp_sync(SIM_ENGINE_LANES);
    if (me == gpunvme_warp_leader(open))
        sim_engine_fetched(b, first, n);
}

/* Ends the lanes' commands, or keeps them until they are due; returns how many this lane keeps. */
GPUNVME_FN uint32_t sim_engine_end_all(struct sim_engine_block *b,
                                       const struct sim_engine_lane *lane,
                                       const struct sim_engine_work *work)
{
    int lost = work->here && work->lose && !work->drop;
    int done = work->here && !work->drop, ends = done && !lost, later = ends && work->due_ns;
    uint32_t lose = gpunvme_warp_ballot(SIM_ENGINE_LANES, lost), ready;
    struct sim_engine_pending end;

    end.due_ns = work->due_ns;
    end.cid_status = work->sqe.cid | (uint32_t)work->status << 16;
    end.flags = SIM_ENGINE_PENDING_USED | (work->keep_cid ? SIM_ENGINE_PENDING_KEEP_CID : 0);
    if (lose && gpunvme_warp_lane() == gpunvme_warp_leader(lose))
        sim_engine_inflight(b, -(int64_t)gpunvme_popcount(lose));
    if (later)
        sim_engine_hold(lane, &end);
    ready = gpunvme_warp_ballot(SIM_ENGINE_LANES, ends && !later);
    sim_engine_count_error(b, ready, end.cid_status);
    sim_engine_post_all(b, lane->warp, ready, end.cid_status, work->keep_cid);
    done = done && !work->status;
    sim_engine_tally_all(b, lane->warp, done && work->sqe.opc == GPUNVME_CMD_READ,
                         done && work->sqe.opc == GPUNVME_CMD_WRITE, work->nbytes);
    return lane->nheld + (later ? 1 : 0);
}

/*
 * The long way, from what was fetched to the completions: for a batch where a command is not plain,
 * or where commands take time or meet faults. Returns how many commands this lane keeps.
 */
SIM_ENGINE_SLOW uint32_t sim_engine_long_way_all(struct sim_engine *e, struct sim_engine_block *b,
                                                 struct sim_engine_lane lane,
                                                 struct sim_engine_work *work)
{
    if (work->keep_cid) {
        work->status = GPUNVME_SC_CID_CONFLICT;
        sim_engine_violate(e, b, GPUNVME_SIM_VIOLATION_CID_IN_USE, SIM_WHAT_CID, b->sqid,
                           sim_engine_cid_opc(&work->sqe), work->sqe.cid, 0);
    }
    if (b->timed)
        sim_engine_due_all(e, b, work);
    if (b->nrules)
        sim_engine_faults_all(e, b, work);
    sim_engine_data_all(e, b, work);
    return sim_engine_end_all(b, &lane, work);
}

/* Does what was taken; returns how many commands this lane keeps. */
GPUNVME_FN uint32_t sim_engine_batch_all(struct sim_engine *e, struct sim_engine_block *b,
                                         struct sim_engine_lane lane, uint32_t open, uint64_t taken)
{
    struct sim_engine_work work;
    struct sim_engine_plain plain = {NULL, NULL, 0};
    int long_way = b->timed || b->nrules, writes;
    uint32_t ready;

    memset(&work, 0, sizeof(work));
    sim_engine_fetch_all(b, &work, open, taken);
    if (work.here && !long_way)
        long_way = work.keep_cid || !sim_engine_find_plain(b, &work.sqe, &plain);
    if (gpunvme_warp_ballot(SIM_ENGINE_LANES, long_way)) {
        struct sim_engine_work copy = work; /* so that the short way needs no memory */

        return sim_engine_long_way_all(e, b, lane, &copy);
    }
    writes = work.here && work.sqe.opc == GPUNVME_CMD_WRITE;
    sim_move_copy(writes ? plain.media : plain.host, writes ? plain.host : plain.media,
                  plain.nbytes);
    ready = gpunvme_warp_ballot(SIM_ENGINE_LANES, work.here);
    sim_engine_post_all(b, lane.warp, ready, work.sqe.cid, 0);
    sim_engine_tally_all(b, lane.warp, work.here && !writes, writes, plain.nbytes);
    return lane.nheld;
}

/*
 * ---- A warp, a block -------------------------------------------------------------------------
 */

/* Serves the queue until its turn is over. `thread` counts within the block. */
GPUNVME_FN void sim_engine_warp(struct sim_engine *e, struct sim_engine_block *b,
                                struct sim_engine_pending *pending, uint32_t thread)
{
    uint32_t me = gpunvme_warp_lane(), nbatches = 0;
    struct sim_engine_lane lane;

    lane.held = &pending[thread * SIM_ENGINE_HELD];
    lane.warp = thread / GPUNVME_WARP_LANES;
    lane.nheld = 0;
    for (uint32_t i = 0; i < SIM_ENGINE_HELD; i++)
        lane.nheld += lane.held[i].flags & SIM_ENGINE_PENDING_USED;
    while (!gpunvme_warp_ballot(SIM_ENGINE_LANES, sim_block_load32(&b->over) != 0)) {
        uint32_t holding = gpunvme_warp_ballot(SIM_ENGINE_LANES, lane.nheld != 0), open;
        uint32_t leader;
        uint64_t taken = 0;

        if (holding)
            lane.nheld = sim_engine_due_held_all(b, lane);
        open = gpunvme_warp_ballot(SIM_ENGINE_LANES, lane.nheld < SIM_ENGINE_HELD);
        if (!open) {
            if (!me)
                sim_engine_seek(e, b, 0); /* for the stop word */
            continue;
        }
        leader = gpunvme_warp_leader(open);
        if (me == leader)
            taken = sim_engine_seek(e, b, gpunvme_popcount(open));
        taken = gpunvme_warp_shfl64(SIM_ENGINE_LANES, taken, leader);
        if (taken) {
            lane.nheld = sim_engine_batch_all(e, b, lane, open, taken);
            if (++nbatches % SIM_ENGINE_LOOK_BUSY == 0 && !me)
                sim_engine_now_and_then(e, b);
        } else if (!holding) {
            sim_engine_sleep(20);
        }
    }
}

/* A queue's turn begins: what it was left at. */
GPUNVME_FN void sim_engine_begin(struct sim_engine_block *b, const struct sim_engine_queue *q,
                                 uint32_t timed)
{
    b->state = q->state;
    b->taking = b->polling = b->publishing = b->over = b->dirty = 0;
    b->sq = q->sq;
    b->cq = q->cq;
    b->sq_doorbell = q->sq_doorbell;
    b->cq_doorbell = q->cq_doorbell;
    b->publish = q->publish;
    b->sq_size = q->sq_size;
    b->cq_size = q->cq_size;
    b->sqid = q->sqid;
    b->cqid = q->cqid;
    b->timed = timed;
    b->sq_head = q->sq_head;
    b->sq_tail = q->sq_tail;
    b->sq_seen = q->sq_seen;
    b->cq_seen = q->cq_seen;
    b->cq_head = q->cq_head;
    b->nfetched = q->nfetched;
    b->ntaken = b->vain = b->looks = 0;
    b->counters = q->counters;
    memset(b->tally, 0, sizeof(b->tally));
}

GPUNVME_FN void sim_engine_end(struct sim_engine_block *b, struct sim_engine_queue *q)
{
    q->state = b->state;
    q->sq_head = b->sq_head;
    q->sq_tail = b->sq_tail;
    q->sq_seen = b->sq_seen;
    q->cq_seen = b->cq_seen;
    q->cq_head = b->cq_head;
    q->nfetched = b->nfetched;
    q->npending = SIM_STATE_INFLIGHT(b->state);
    sim_engine_gather(b);
    q->counters = b->counters;
    sim_engine_publish(b);
}

GPUNVME_FN void sim_engine_turn(struct sim_engine *e, struct sim_engine_block *b,
                                struct sim_engine_queue *q, uint32_t thread, uint32_t nthreads)
{
    for (uint32_t i = thread; i < SIM_ENGINE_CID_WORDS; i += nthreads)
        b->cids[i] = q->cids[i];
    if (!thread)
        sim_engine_begin(b, q, e->model.enabled);
    sim_block_sync();
    sim_engine_warp(e, b, q->pending, thread);
    sim_block_sync();
    for (uint32_t i = thread; i < SIM_ENGINE_CID_WORDS; i += nthreads)
        q->cids[i] = b->cids[i];
    if (!thread)
        sim_engine_end(b, q);
    sim_block_sync();
}

/* One thread: what the block knows from the start, and which queues are its own: each blocks-th of
 * the active ones. */
GPUNVME_FN void sim_engine_prepare(struct sim_engine *e, struct sim_engine_block *b, uint32_t block,
                                   uint32_t blocks, uint32_t nwarps)
{
    uint32_t active = 0;

    b->block = block;
    b->blocks = blocks;
    b->share_shift = 0;
    while (2u << b->share_shift <= nwarps)
        b->share_shift++;
    b->idle_since = 0;
    b->idle_told = b->nmine = b->nturns = 0;
    b->over = 0;
    for (uint32_t i = 0; i < e->nqueues; i++)
        if (e->queues[i].active && active++ % blocks == block && b->nmine < SIM_ENGINE_MINE)
            b->mine[b->nmine++] = (uint16_t)i;
    b->nns = e->nns;
    b->page = e->page;
    b->sgl = e->sgl;
    b->deac = e->deac;
    b->nrules = e->nrules;
    b->max_transfer = e->max_transfer;
    b->idle_ns = e->idle_ns;
    b->nranges = e->nranges;
    b->ranges = e->ranges;
    for (uint32_t i = 0; i < e->nns; i++)
        b->ns[i] = e->ns[i];
    if (e->nranges > SIM_ENGINE_NEAR)
        return;
    for (uint32_t i = 0; i < e->nranges; i++)
        b->near_ranges[i] = e->ranges[i];
    b->ranges = b->near_ranges;
}

/* What block `block` of `blocks` does; all its threads call it. */
GPUNVME_FN void sim_engine_body(struct sim_engine *e, struct sim_engine_block *b, uint32_t block,
                                uint32_t blocks, uint32_t thread, uint32_t nthreads)
{
    if (!thread)
        sim_engine_prepare(e, b, block, blocks,
                           (nthreads + GPUNVME_WARP_LANES - 1) / GPUNVME_WARP_LANES);
    sim_block_sync();
    for (uint32_t turn = 0;; turn = turn + 1 < b->nmine ? turn + 1 : 0) {
        if (b->nmine)
            sim_engine_turn(e, b, &e->queues[b->mine[turn]], thread, nthreads);
        if (!thread) {
            b->over = 0;
            if (!b->nmine) {
                sim_engine_idle(e, b);
                sim_engine_sleep(1000);
            }
            sim_engine_look(e, b, b->nmine <= 1 || ++b->nturns % SIM_ENGINE_LOOK_TURN == 0);
        }
        sim_block_sync();
        if (sim_block_load32(&b->over))
            return;
        sim_block_sync();
    }
}

#endif
