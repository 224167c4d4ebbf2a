/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The queue pair of queue.h as warps use it: the same words and the same protocol, but what one
 * thread does there in a loop, the lanes of a warp do here at once. On the CPU a warp has one lane,
 * and all of this runs on threads. Knows neither namespaces nor data: those are device.cuh's.
 *
 *   reserve  One compare-and-swap by one lane takes positions for all; each lane claims its slot.
 *   fill     Each lane writes its entry by vector stores and marks its position ready.
 *   publish  Whoever gets the doorbell (a try-lock) looks at as many marks at a time as there are
 *            lanes, and rings once for all that are ready; nobody waits for it.
 *   reap     Whoever gets the completion queue (a try-lock) takes as many entries at a time as
 *            there are lanes, and writes each one's status to the slot that it names.
 *   wait     Each lane looks at one word of its own.
 *
 * The functions with a `mask` are called by all lanes of the mask together, with the same queue.
 * Words that only the GPU's threads share (struct gpunvme_qpair, slots, marks) must lie in memory
 * of that GPU; entries and doorbells may lie anywhere.
 *
 * Why the order of all these stores is enough, for each placement: docs/ORDERING.md.
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

struct gpunvme_dev_queue {
    struct gpunvme_qpair qp;
    /*
     * For GPUNVME_REAPER_CPU, else NULL: slots in pinned host memory, which a CPU thread completes
     * by gpunvme_qpair_reap() of a queue pair of its own. The GPU only stores to them, since its
     * atomics are none there; it claims and frees the slots of `qp` as ever.
     */
    struct gpunvme_slot *mirror;
    uint32_t reaper; /* enum gpunvme_reaper */

    /* Memory of each slot's command, by slot: see device.cuh. */
    uint64_t *lists;      /* PRP lists of list_nbytes each, NULL: none */
    uint64_t lists_bus;   /* the same, as the controller sees them */
    uint32_t list_nbytes; /* a power of two, so that no list crosses a page of the controller */
    uint8_t *bounces;     /* a block for each slot, NULL: none */
    uint64_t bounces_bus;
    uint32_t bounce_nbytes;
};

/* --- submission ------------------------------------------------------------------------------- */

/* gpunvme_qpair_reserve() among the threads of a GPU. */
GPUNVME_FN int gpunvme_dev_queue_take(struct gpunvme_qpair *q, uint32_t n, uint64_t *pos)
{
    uint64_t tail = gpunvme_load_relaxed64(&q->reserved);

    for (;;) {
        uint64_t outstanding, room;

        if (tail & GPUNVME_QPAIR_CLOSED)
            return GPUNVME_ERR_CLOSED;
        outstanding = (tail - gpunvme_load_acquire64_gpu(&q->released)) & GPUNVME_QPAIR_POSITION;
        room = outstanding < q->capacity ? q->capacity - outstanding : 0;
        if (room > n)
            room = n;
        if (!room) {
            uint64_t now = gpunvme_load_relaxed64(&q->reserved);

            if (now == tail)
                return 0;
            tail = now;
            continue;
        }
        if (gpunvme_cas64_relaxed_gpu(&q->reserved, &tail,
                                      (tail + room) & GPUNVME_QPAIR_POSITION)) {
            *pos = tail;
            return (int)room;
        }
    }
}

/* gpunvme_slot_claim(), likewise: there is a free slot. */
GPUNVME_FN uint64_t gpunvme_dev_slot_claim(struct gpunvme_slot *slots, uint32_t slot_mask,
                                           uint64_t pos)
{
    for (;; pos++) {
        uint32_t index = (uint32_t)pos & slot_mask;
        uint64_t word = gpunvme_load_relaxed64(&slots[index].word);

        if ((word & 0xffff) == GPUNVME_SLOT_FREE &&
            gpunvme_cas64_relaxed_gpu(&slots[index].word, &word, word | GPUNVME_SLOT_BUSY))
            return word | index;
    }
}

/*
 * Reserves a position and a slot for each lane, as far as there is room: returns how many, the
 * same in all lanes, or GPUNVME_ERR_CLOSED. Lanes whose rank in the mask is lower have *pos and
 * *ticket and must fill; then all publish. Never waits.
 */
GPUNVME_FN int gpunvme_dev_queue_reserve(struct gpunvme_dev_queue *q, uint32_t mask, uint64_t *pos,
                                         uint64_t *ticket)
{
    uint32_t leader = gpunvme_warp_leader(mask), rank = gpunvme_warp_rank(mask);
    uint64_t first = 0;
    int n = 0;

    if (gpunvme_warp_lane() == leader)
        n = gpunvme_dev_queue_take(&q->qp, gpunvme_popcount(mask), &first);
    n = (int)gpunvme_warp_shfl32(mask, (uint32_t)n, leader);
    if (n <= 0)
        return n;
    first = gpunvme_warp_shfl64(mask, first, leader);
    if (rank < (uint32_t)n) {
        *pos = (first + rank) & GPUNVME_QPAIR_POSITION;
        *ticket = gpunvme_dev_slot_claim(q->qp.slots, q->qp.slot_mask, *pos);
    }
    return n;
}

/*
 * Writes one lane's command, complete but for its cid, and marks the position ready. Release: who
 * finds the mark finds the entry, and what else the command uses.
 */
GPUNVME_FN void gpunvme_dev_queue_fill(struct gpunvme_dev_queue *q, uint64_t pos, uint64_t ticket,
                                       struct gpunvme_sqe *cmd)
{
    cmd->cid = (uint16_t)ticket;
    if (q->mirror) {
        struct gpunvme_slot *slot = &q->mirror[ticket & q->qp.slot_mask];

        gpunvme_store_relaxed64(&slot->word, (ticket & ~UINT64_C(0xffff)) | GPUNVME_SLOT_BUSY);
    }
    gpunvme_store_64_bytes(&q->qp.sq[pos & q->qp.mask], cmd);
    gpunvme_store_release32_gpu(&q->qp.ready[pos & q->qp.mask], gpunvme_qpair_lap(&q->qp, pos));
}

/* How many positions from `pos` on are ready, looking at one for each lane of the mask. */
GPUNVME_FN uint32_t gpunvme_dev_queue_ready(const struct gpunvme_qpair *q, uint32_t mask,
                                            uint64_t pos)
{
    uint64_t mine = pos + gpunvme_warp_rank(mask);
    uint32_t lap = gpunvme_load_acquire32_gpu(&q->ready[mine & q->mask]);
    uint32_t missing = gpunvme_warp_ballot(mask, lap != gpunvme_qpair_lap(q, mine));

    if (!missing)
        return gpunvme_popcount(mask);
    return gpunvme_popcount(mask & ((UINT32_C(1) << gpunvme_lowest_bit(missing)) - 1));
}

/*
 * Rings the doorbell for all positions that are ready, up to the first that is not. Another warp
 * that is ringing does it for us: the exchange that failed and the exchange that unlocks are
 * ordered, so either its holder finds our positions on its second look, or we would have got the
 * lock.
 */
GPUNVME_FN void gpunvme_dev_queue_publish(struct gpunvme_dev_queue *queue, uint32_t mask)
{
    struct gpunvme_qpair *q = &queue->qp;
    uint32_t leader = gpunvme_warp_leader(mask), is_leader = gpunvme_warp_lane() == leader;
    uint32_t lanes = gpunvme_popcount(mask), n, more;
    uint64_t first = 0, pos;

    gpunvme_warp_sync(mask);
    do {
        uint32_t taken = 0;

        if (is_leader) {
            taken = gpunvme_exchange32_gpu(&q->sq_lock, 1);
            if (!taken)
                first = q->published;
        }
        if (gpunvme_warp_shfl32(mask, taken, leader))
            return;
        first = pos = gpunvme_warp_shfl64(mask, first, leader);
        do {
            n = gpunvme_dev_queue_ready(q, mask, pos);
            pos += n;
        } while (n == lanes);
        if (is_leader) {
            if (pos != first) {
                q->published = pos & GPUNVME_QPAIR_POSITION;
                gpunvme_qpair_ring(q, &q->sq_doorbell, (uint32_t)pos & q->mask);
            }
            gpunvme_exchange32_gpu(&q->sq_lock, 0);
        }
        more = is_leader &&
               gpunvme_load_acquire32_gpu(&q->ready[pos & q->mask]) == gpunvme_qpair_lap(q, pos);
    } while (gpunvme_warp_ballot(mask, more != 0));
}

/* --- completion ------------------------------------------------------------------------------- */

/* Whether the entry at `head` is new, without ordering anything; its last dword is in *dw3. */
GPUNVME_FN int gpunvme_dev_cqe_peek(const struct gpunvme_qpair *q, uint64_t head, uint32_t *dw3)
{
    *dw3 = gpunvme_load_relaxed32((const gpunvme_dword *)&q->cq[head & q->mask] + 3);
    return (*dw3 >> 16 & 1) != (head >> q->shift & 1);
}

/*
 * One lane hands a completion to the slot that it names. Returns 0 for a command id that is not
 * in flight.
 */
GPUNVME_FN int gpunvme_dev_slot_complete(struct gpunvme_qpair *q, const struct gpunvme_cqe *cqe,
                                         uint32_t dw3)
{
    uint32_t cid = dw3 & 0xffff;
    struct gpunvme_slot *slot = &q->slots[cid & q->slot_mask];
    uint64_t word = gpunvme_load_acquire64_gpu(&slot->word);

    if (cid > q->slot_mask)
        return 0;
    if ((word & 0xffff) == GPUNVME_SLOT_ABANDONED) {
        gpunvme_store_release64_gpu(&slot->word, (word & ~UINT64_C(0xffff)) + 0x10000);
        gpunvme_add64_relaxed_gpu(&q->released, 1);
        return 1;
    }
    if ((word & 0xffff) != GPUNVME_SLOT_BUSY)
        return 0;
    slot->result = (uint64_t)cqe->dw1 << 32 | cqe->dw0;
    /* Release: who sees the slot done sees the result, and the data that came before. */
    gpunvme_store_release64_gpu(&slot->word,
                                (word & ~UINT64_C(0xffff)) | GPUNVME_SLOT_DONE | dw3 >> 17);
    return 1;
}

/* Takes the new entries from *head on, as many as there are lanes. The caller holds cq_lock. */
GPUNVME_FN uint32_t gpunvme_dev_queue_take_entries(struct gpunvme_qpair *q, uint32_t mask,
                                                   uint64_t head, uint32_t *spurious)
{
    uint64_t mine = head + gpunvme_warp_rank(mask);
    const struct gpunvme_cqe *cqe = &q->cq[mine & q->mask];
    uint32_t dw3, old, n, lost = 0;

    old = gpunvme_warp_ballot(mask, !gpunvme_dev_cqe_peek(q, mine, &dw3));
    n = old ? gpunvme_popcount(mask & ((UINT32_C(1) << gpunvme_lowest_bit(old)) - 1))
            : gpunvme_popcount(mask);
    if (gpunvme_warp_rank(mask) < n) {
        gpunvme_acquire32((const gpunvme_dword *)cqe + 3);
        lost = !gpunvme_dev_slot_complete(q, cqe, dw3);
    }
    *spurious += gpunvme_popcount(gpunvme_warp_ballot(mask, lost != 0));
    return n;
}

/*
 * Takes every new completion; *head is where the queue's head was when the caller last looked (any
 * value at first), kept from call to call. Returns how many; 0 also when others are at it.
 */
GPUNVME_FN uint32_t gpunvme_dev_queue_reap(struct gpunvme_dev_queue *queue, uint32_t mask,
                                           uint64_t *head)
{
    struct gpunvme_qpair *q = &queue->qp;
    uint32_t leader = gpunvme_warp_leader(mask), is_leader = gpunvme_warp_lane() == leader;
    uint32_t lanes = gpunvme_popcount(mask), n = 0, total = 0, spurious = 0, mine = 0, dw3;

    /* Both loads at once: what an old head hides in this turn, the next one finds. */
    if (is_leader) {
        uint64_t now = gpunvme_load_relaxed64(&q->cq_head);
        int is_new = gpunvme_dev_cqe_peek(q, *head, &dw3);

        mine = is_new && now == *head && !gpunvme_exchange32_gpu(&q->cq_lock, 1);
        *head = mine ? gpunvme_load_relaxed64(&q->cq_head) : now;
    }
    if (!gpunvme_warp_shfl32(mask, mine, leader))
        return 0;
    *head = gpunvme_warp_shfl64(mask, *head, leader);
    do {
        n = gpunvme_dev_queue_take_entries(q, mask, *head + total, &spurious);
        total += n;
    } while (n == lanes && total <= q->mask);
    *head += total;
    gpunvme_warp_sync(mask);
    if (is_leader) {
        if (total) {
            q->spurious += spurious;
            gpunvme_store_relaxed64(&q->cq_head, *head);
            gpunvme_qpair_ring(q, &q->cq_doorbell, (uint32_t)*head & q->mask);
        }
        gpunvme_store_release32_gpu(&q->cq_lock, 0);
    }
    return total;
}

/* --- tickets ---------------------------------------------------------------------------------- */

/* Where the status of a ticket appears. */
GPUNVME_FN struct gpunvme_slot *gpunvme_dev_queue_slot(struct gpunvme_dev_queue *q, uint64_t ticket)
{
    return (q->mirror ? q->mirror : q->qp.slots) + (ticket & q->qp.slot_mask);
}

/*
 * Ends the tickets of the lanes whose command is done: each lane gets GPUNVME_OK with *c filled
 * in, GPUNVME_ERR_AGAIN while its command is in flight, GPUNVME_ERR_STALE for a ticket that has
 * ended. Does not look for completions.
 */
GPUNVME_FN int gpunvme_dev_queue_test(struct gpunvme_dev_queue *q, uint32_t mask, uint64_t ticket,
                                      struct gpunvme_completion *c)
{
    struct gpunvme_slot *slot = gpunvme_dev_queue_slot(q, ticket);
    uint64_t word = gpunvme_load_relaxed64(&slot->word);
    int err = GPUNVME_OK;
    uint32_t done;

    if ((word ^ ticket) >> 16 || !(word & GPUNVME_SLOT_DONE))
        err = (word ^ ticket) >> 16 || (word & 0xffff) == GPUNVME_SLOT_FREE ? GPUNVME_ERR_STALE
                                                                            : GPUNVME_ERR_AGAIN;
    done = gpunvme_warp_ballot(mask, !err);
    if (!done)
        return err;
    if (!err) {
        if (q->mirror)
            gpunvme_acquire32((const gpunvme_dword *)&slot->word);
        else
            gpunvme_acquire64_gpu(&slot->word);
        c->status = (uint16_t)(word & 0x7fff);
        c->result = slot->result;
        slot = &q->qp.slots[ticket & q->qp.slot_mask];
        /* Release: the result has been read before the slot is somebody else's. */
        gpunvme_store_release64_gpu(&slot->word, (ticket & ~UINT64_C(0xffff)) + 0x10000);
    }
    gpunvme_warp_sync(mask);
    if (gpunvme_warp_lane() == gpunvme_warp_leader(mask))
        gpunvme_add64_relaxed_gpu(&q->qp.released, gpunvme_popcount(done));
    return err;
}

/*
 * Reaps, where that is the waiters' affair, and tests until the tickets of all lanes have ended or
 * their deadlines (gpunvme_clock_ns()) are over: GPUNVME_ERR_TIMEOUT, and the command is still in
 * flight. Each lane has its own result.
 */
GPUNVME_FN int gpunvme_dev_queue_wait(struct gpunvme_dev_queue *q, uint32_t mask, uint64_t ticket,
                                      uint64_t deadline_ns, struct gpunvme_completion *c)
{
    uint64_t head = 0;
    int err = GPUNVME_ERR_AGAIN;

    for (uint32_t turn = 1;; turn++) {
        uint32_t waiting;

        waiting = gpunvme_warp_ballot(mask, err == GPUNVME_ERR_AGAIN);
        if (err == GPUNVME_ERR_AGAIN)
            err = gpunvme_dev_queue_test(q, waiting, ticket, c);
        if (!gpunvme_warp_ballot(mask, err == GPUNVME_ERR_AGAIN))
            return err;
        if (q->reaper != GPUNVME_REAPER_WAITERS || !gpunvme_dev_queue_reap(q, mask, &head))
            gpunvme_relax();
        if (turn % 32 == 0 && err == GPUNVME_ERR_AGAIN && gpunvme_clock_ns() >= deadline_ns)
            err = GPUNVME_ERR_TIMEOUT;
    }
}

/*
 * Lets one lane's ticket go that nobody will wait for any more, after a timeout. Its slot, its list
 * and its memory stay in use until the command ends, or a reset ends it. GPUNVME_ERR_STALE when
 * it has ended already; GPUNVME_ERR_AGAIN when others reap and it must be tried again.
 */
GPUNVME_FN int gpunvme_dev_queue_abandon(struct gpunvme_dev_queue *q, uint64_t ticket)
{
    struct gpunvme_slot *slot = &q->qp.slots[ticket & q->qp.slot_mask];
    int err = GPUNVME_OK;
    uint64_t word;

    if (q->mirror) /* the CPU does not ask: only a reset gives the slot back */
        return GPUNVME_OK;
    if (gpunvme_exchange32_gpu(&q->qp.cq_lock, 1))
        return GPUNVME_ERR_AGAIN;
    /* Under the lock of whoever completes slots: none is completed now. */
    word = gpunvme_load_acquire64_gpu(&slot->word);
    if (word == ((ticket & ~UINT64_C(0xffff)) | GPUNVME_SLOT_BUSY))
        gpunvme_store_release64_gpu(&slot->word,
                                    (word & ~UINT64_C(0xffff)) | GPUNVME_SLOT_ABANDONED);
    else
        err = GPUNVME_ERR_STALE;
    gpunvme_store_release32_gpu(&q->qp.cq_lock, 0);
    return err;
}

#ifdef __cplusplus
}
#endif
#endif
