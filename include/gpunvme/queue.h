/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The queue pair: one submission queue and one completion queue in memory of any placement. This
 * header is the whole of it, and compiles for the CPU and for the GPU. It knows nothing of the
 * controller object, the transport or the operating system.
 *
 * Any number of threads may submit, reap and wait at once. No lock is held across I/O, and no
 * thread waits for another thread's command:
 *
 *   submit   A compare-and-swap on `reserved` takes positions in the submission queue. For each
 *            one a free slot is claimed, whose index is the command id, the entry is written, and
 *            the position marked ready. The thread that gets the doorbell (a try-lock) rings it for
 *            the whole run of ready positions. The others return at once: the holder looks again
 *            after unlocking.
 *   reap     The thread that gets the completion queue (a try-lock) takes every new entry, writes
 *            result and status into the slot that the command id names, and rings once.
 *   wait     Each thread polls one word of its own: its slot's.
 *
 * A ticket is (generation << 16 | slot). A slot's generation grows each time it is freed, so an old
 * ticket never matches a later command. Completions come in any order.
 *
 * At most entries - 1 tickets (`capacity`) are open at a time. Therefore a free slot is always
 * found, and neither the submission queue (its oldest unfetched entry is younger than capacity) nor
 * the completion queue is ever overrun.
 *
 * Source: Base 1.4, section 4.1 (queues), 4.2 and 4.6 (entries), 7.2 (command processing).
 */
#ifndef GPUNVME_QUEUE_H
#define GPUNVME_QUEUE_H

#include "gpunvme/atomics.h"
#include "gpunvme/error.h"
#include "gpunvme/nvme.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One command in flight, or room for one. */
struct gpunvme_slot {
    uint64_t word;   /* generation << 16 | GPUNVME_SLOT_*, for done slots | status */
    uint64_t result; /* DW1:DW0 of the completion; valid while the slot is done */
};

#define GPUNVME_SLOT_FREE 0x0000u
#define GPUNVME_SLOT_BUSY 0x0001u
#define GPUNVME_SLOT_DONE 0x8000u /* with the 15 bits of the status below it */

#define GPUNVME_QPAIR_CLOSED   (UINT64_C(1) << 63) /* in `reserved`: no new reservations */
#define GPUNVME_QPAIR_POSITION (GPUNVME_QPAIR_CLOSED - 1)

/* Bytes of memory that a queue pair of `entries` needs, apart from the structure itself. */
#define GPUNVME_QPAIR_SQ_NBYTES(entries) ((size_t)(entries) * sizeof(struct gpunvme_sqe))
#define GPUNVME_QPAIR_CQ_NBYTES(entries) ((size_t)(entries) * sizeof(struct gpunvme_cqe))
#define GPUNVME_QPAIR_SLOTS(entries)     (2 * (size_t)(entries))
#define GPUNVME_QPAIR_SLOTS_NBYTES(entries)                                                        \
    (GPUNVME_QPAIR_SLOTS(entries) * sizeof(struct gpunvme_slot))
#define GPUNVME_QPAIR_READY_NBYTES(entries) ((size_t)(entries) * sizeof(uint32_t))
#define GPUNVME_QPAIR_MAX_ENTRIES           16384u /* so that a slot is a command id below FFFFh */

/* One of the two doorbells: how it is rung. */
struct gpunvme_doorbell {
    volatile uint32_t *mmio; /* the register; NULL: `ring` writes it */
    uint32_t offset;         /* of the register in BAR0, for `ring` */
    /* Doorbell Buffer Config: NULL where not in use */
    volatile uint32_t *shadow;
    const volatile uint32_t *event_index;
};

/*
 * The fields before the first aligned one are constant while the queue is open. Contended words are
 * on cache lines of their own.
 */
struct gpunvme_qpair {
    struct gpunvme_sqe *sq;
    const struct gpunvme_cqe *cq;
    struct gpunvme_slot *slots;
    uint32_t *ready;    /* for each position modulo entries: the lap in which it was last ready */
    uint32_t capacity;  /* entries - 1 */
    uint32_t mask;      /* entries - 1 */
    uint32_t slot_mask; /* slots - 1 */
    uint32_t shift;     /* log2 of entries */
    uint32_t qid;
    struct gpunvme_doorbell sq_doorbell, cq_doorbell;
    void (*ring)(void *arg, uint32_t offset, uint32_t value); /* CPU only */
    void *ring_arg;

    __attribute__((aligned(64))) uint64_t reserved; /* next position, GPUNVME_QPAIR_CLOSED */
    __attribute__((aligned(64))) uint64_t released; /* positions whose tickets have ended */
    __attribute__((aligned(64))) uint32_t sq_lock;  /* held: `published` and the SQ doorbell */
    uint64_t published;                             /* next position that is not yet rung for */
    __attribute__((aligned(64))) uint32_t cq_lock;  /* held: `cq_head` and the CQ doorbell */
    uint64_t cq_head;                               /* next position; read without the lock, too */
    uint64_t spurious; /* completions with a command id that is not in flight */
};

/* How a command ended. */
struct gpunvme_completion {
    uint64_t result; /* DW1:DW0 */
    uint16_t status; /* 15 bits: SC, SCT, CRD, M, DNR */
};

/* --- one slot --------------------------------------------------------------------------------- */

/*
 * Claims a free slot for a reserved position and returns its ticket. There always is one: open
 * tickets, this one included, are fewer than slots. Each position of a lap begins its search at a
 * slot of its own.
 */
GPUNVME_FN uint64_t gpunvme_slot_claim(struct gpunvme_slot *slots, uint32_t slot_mask, uint64_t pos)
{
    for (;; pos++) {
        uint32_t index = (uint32_t)pos & slot_mask;
        uint64_t word = gpunvme_load_relaxed64(&slots[index].word);

        if ((word & 0xffff) == GPUNVME_SLOT_FREE &&
            gpunvme_cas64(&slots[index].word, &word, word | GPUNVME_SLOT_BUSY))
            return word | index;
    }
}

GPUNVME_FN uint64_t gpunvme_qpair_claim_slot(struct gpunvme_qpair *q, uint64_t pos)
{
    return gpunvme_slot_claim(q->slots, q->slot_mask, pos);
}

/* --- doorbells -------------------------------------------------------------------------------- */

/*
 * Base 2.0, "Doorbell Buffer Config": the register must be written when the value passes the
 * controller's event index. All three count modulo the queue and are compared in 16 bits: a queue
 * has at most 65,536 entries, and a wrap of the queue is a large step.
 */
GPUNVME_FN int gpunvme_doorbell_is_wanted(uint32_t event_index, uint32_t value, uint32_t old)
{
    return (uint16_t)(value - event_index - 1) < (uint16_t)(value - old);
}

/* Rings a doorbell; the caller holds the lock of its queue. */
GPUNVME_FN void gpunvme_qpair_ring(struct gpunvme_qpair *q, struct gpunvme_doorbell *db,
                                   uint32_t value)
{
    if (db->shadow) {
        uint32_t old = *db->shadow;

        /* The controller writes the event index, then reads the shadow once more; we do it the
         * other way round. Sequential consistency makes one of the two see the other. */
        gpunvme_store_seq_cst32(db->shadow, value);
        if (!gpunvme_doorbell_is_wanted(gpunvme_load_seq_cst32(db->event_index), value, old))
            return;
    }
    if (db->mmio)
        gpunvme_mmio_write32(db->mmio, value);
#if !defined(__CUDA_ARCH__)
    else
        q->ring(q->ring_arg, db->offset, value);
#else
    (void)q;
#endif
}

/* --- submission ------------------------------------------------------------------------------- */

/* The lap of a position, as `ready` holds it; bit 63 makes no difference. */
GPUNVME_FN uint32_t gpunvme_qpair_lap(const struct gpunvme_qpair *q, uint64_t pos)
{
    return (uint32_t)(pos >> q->shift);
}

/*
 * Reserves up to n positions, the first of which is *pos. Returns how many, 0 when the queue is
 * full, or GPUNVME_ERR_CLOSED. Each one reserved must be filled, then published.
 */
GPUNVME_FN int gpunvme_qpair_reserve(struct gpunvme_qpair *q, uint32_t n, uint64_t *pos)
{
    uint64_t tail = gpunvme_load_relaxed64(&q->reserved);

    for (;;) {
        uint64_t outstanding, room;

        if (tail & GPUNVME_QPAIR_CLOSED)
            return GPUNVME_ERR_CLOSED;
        /* A stale `tail` gives a wrong count, but then the compare-and-swap below fails. Acquire:
         * the threads that freed these slots have finished with them. */
        outstanding = (tail - gpunvme_load_acquire64(&q->released)) & GPUNVME_QPAIR_POSITION;
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
        if (gpunvme_cas64(&q->reserved, &tail, (tail + room) & GPUNVME_QPAIR_POSITION)) {
            *pos = tail;
            return (int)room;
        }
    }
}

/*
 * Writes a command with a claimed ticket into its entry and marks the position ready. Release: a
 * thread that sees the mark sees the whole entry.
 */
GPUNVME_FN void gpunvme_entry_fill(struct gpunvme_sqe *sqe, uint32_t *ready, uint32_t lap,
                                   uint64_t ticket, const struct gpunvme_sqe *cmd)
{
    *sqe = *cmd;
    sqe->cid = (uint16_t)ticket;
    gpunvme_store_release32(ready, lap);
}

GPUNVME_FN void gpunvme_qpair_fill(struct gpunvme_qpair *q, uint64_t pos, uint64_t ticket,
                                   const struct gpunvme_sqe *cmd)
{
    gpunvme_entry_fill(&q->sq[pos & q->mask], &q->ready[pos & q->mask], gpunvme_qpair_lap(q, pos),
                       ticket, cmd);
}

GPUNVME_FN int gpunvme_entry_is_ready(const uint32_t *ready, uint32_t mask, uint32_t shift,
                                      uint64_t pos)
{
    return gpunvme_load_acquire32(&ready[pos & mask]) == (uint32_t)(pos >> shift);
}

GPUNVME_FN int gpunvme_qpair_is_ready(const struct gpunvme_qpair *q, uint64_t pos)
{
    return gpunvme_entry_is_ready(q->ready, q->mask, q->shift, pos);
}

/*
 * Rings the doorbell for all positions that are ready, up to the first that is not. Returns at once
 * while another thread is ringing: its unlocking exchange is ordered with our failed one, so either
 * it finds our positions when it looks again, or we would have got the lock.
 */
GPUNVME_FN void gpunvme_qpair_publish(struct gpunvme_qpair *q)
{
    const uint32_t *ready = q->ready;
    uint32_t mask = q->mask, shift = q->shift;
    uint64_t pos;

    do {
        uint64_t first;

        if (gpunvme_exchange32(&q->sq_lock, 1))
            return;
        first = pos = q->published;
        while (gpunvme_entry_is_ready(ready, mask, shift, pos))
            pos++;
        if (pos != first) {
            q->published = pos & GPUNVME_QPAIR_POSITION;
            gpunvme_qpair_ring(q, &q->sq_doorbell, (uint32_t)pos & q->mask);
        }
        gpunvme_exchange32(&q->sq_lock, 0);
    } while (gpunvme_entry_is_ready(ready, mask, shift, pos));
}

/*
 * Submits up to n commands with one doorbell; cid is filled in here, the rest of each entry is the
 * caller's. tickets[i] is the ticket of cmds[i]. Returns how many were taken (fewer when the queue
 * is full, 0 when there is no room at all) or GPUNVME_ERR_CLOSED.
 */
GPUNVME_FN int gpunvme_qpair_submit(struct gpunvme_qpair *q, const struct gpunvme_sqe *cmds,
                                    uint32_t n, uint64_t *tickets)
{
    /* In registers: the compiler would reload them after each atomic. */
    struct gpunvme_slot *slots = q->slots;
    struct gpunvme_sqe *sq = q->sq;
    uint32_t *ready = q->ready;
    uint32_t mask = q->mask, slot_mask = q->slot_mask, shift = q->shift;
    uint64_t pos = 0;
    int taken = gpunvme_qpair_reserve(q, n, &pos);

    if (taken <= 0)
        return taken;
    /* First all atomic operations, then all entries: an atomic waits for the stores before it,
     * and each entry's cache line has to come back from the controller. */
    for (int i = 0; i < taken; i++) {
        gpunvme_prefetch_write(&sq[(pos + (uint64_t)i) & mask]);
        tickets[i] = gpunvme_slot_claim(slots, slot_mask, pos + (uint64_t)i);
    }
    for (int i = 0; i < taken; i++, pos++)
        gpunvme_entry_fill(&sq[pos & mask], &ready[pos & mask], (uint32_t)(pos >> shift),
                           tickets[i], &cmds[i]);
    gpunvme_qpair_publish(q);
    return taken;
}

/* --- completion ------------------------------------------------------------------------------- */

typedef uint32_t __attribute__((may_alias)) gpunvme_dword;

/*
 * Hands a completion to the slot that its command id names; the caller holds cq_lock. Returns 0
 * for a command id that is not in flight.
 */
GPUNVME_FN int gpunvme_slot_complete(struct gpunvme_slot *slots, uint32_t slot_mask,
                                     const struct gpunvme_cqe *cqe, uint32_t dw3)
{
    uint32_t cid = dw3 & 0xffff;
    struct gpunvme_slot *slot = &slots[cid & slot_mask];
#if defined(__CUDA_ARCH__)
    uint64_t word = gpunvme_load_relaxed64(&slot->word);
#else
    /* The slot's last owner has read its result, since the controller can answer only what was
     * claimed after that. Acquire tells a thread sanitizer, which does not see through a
     * controller in another process; it costs no instruction on x86. */
    uint64_t word = gpunvme_load_acquire64(&slot->word);
#endif

    if (cid > slot_mask || (word & 0xffff) != GPUNVME_SLOT_BUSY)
        return 0;
    slot->result = (uint64_t)cqe->dw1 << 32 | cqe->dw0;
    /* Release: a thread that sees the slot done sees the result, and the data before it. */
    gpunvme_store_release64(&slot->word,
                            (word & ~UINT64_C(0xffff)) | GPUNVME_SLOT_DONE | dw3 >> 17);
    return 1;
}

/*
 * Whether the entry at `head` is a new completion; its last dword is in *dw3. Acquire: the phase
 * tag is written last, so the rest of the entry, and the data that the controller wrote before it,
 * are visible. Cid and status are in the same word. The tag is 1 in the first lap, 0 in the second,
 * …
 */
GPUNVME_FN int gpunvme_cqe_is_new(const struct gpunvme_cqe *cqe, uint64_t head, uint32_t shift,
                                  uint32_t *dw3)
{
    *dw3 = gpunvme_load_acquire32((const gpunvme_dword *)cqe + 3);
    return (*dw3 >> 16 & 1) != (head >> shift & 1);
}

/* Takes every new completion. Returns how many; 0 also if another thread is reaping. */
GPUNVME_FN uint32_t gpunvme_qpair_reap(struct gpunvme_qpair *q)
{
    const struct gpunvme_cqe *cq = q->cq;
    struct gpunvme_slot *slots = q->slots;
    uint32_t mask = q->mask, slot_mask = q->slot_mask, shift = q->shift;
    uint32_t n = 0, spurious = 0, dw3;
    uint64_t head = gpunvme_load_relaxed64(&q->cq_head);

    /* Usually nothing is new, which shows without the lock. A stale head is harmless: another
     * thread is reaping. */
    if (!gpunvme_cqe_is_new(&cq[head & mask], head, shift, &dw3) ||
        gpunvme_exchange32(&q->cq_lock, 1))
        return 0;
    head = gpunvme_load_relaxed64(&q->cq_head);
    for (; n <= mask && gpunvme_cqe_is_new(&cq[head & mask], head, shift, &dw3); head++, n++)
        spurious += !gpunvme_slot_complete(slots, slot_mask, &cq[head & mask], dw3);
    q->spurious += spurious;
    if (n) {
        gpunvme_store_relaxed64(&q->cq_head, head);
        gpunvme_qpair_ring(q, &q->cq_doorbell, (uint32_t)head & q->mask);
    }
    gpunvme_store_release32(&q->cq_lock, 0);
    return n;
}

/*
 * Ends a ticket if its command is done: GPUNVME_OK with *c filled in (c->status may still be an
 * error), GPUNVME_ERR_AGAIN while it is in flight, GPUNVME_ERR_STALE if it has ended already. A
 * ticket is tested by one thread at a time. Does not reap.
 */
GPUNVME_FN int gpunvme_qpair_test(struct gpunvme_qpair *q, uint64_t ticket,
                                  struct gpunvme_completion *c)
{
    struct gpunvme_slot *slot = &q->slots[ticket & q->slot_mask];
    uint64_t word = gpunvme_load_acquire64(&slot->word);

    if ((word ^ ticket) >> 16 || !(word & GPUNVME_SLOT_DONE))
        return (word ^ ticket) >> 16 || (word & 0xffff) == GPUNVME_SLOT_FREE ? GPUNVME_ERR_STALE
                                                                             : GPUNVME_ERR_AGAIN;
    c->status = (uint16_t)(word & 0x7fff);
    c->result = slot->result;
    /* Release, twice: the slot is free before it is counted as free. */
    gpunvme_store_release64(&slot->word, (word & ~UINT64_C(0xffff)) + 0x10000);
    gpunvme_fetch_add64(&q->released, 1);
    return GPUNVME_OK;
}

/*
 * Reaps and tests until the ticket has ended or gpunvme_clock_ns() reaches deadline_ns. After
 * GPUNVME_ERR_TIMEOUT the command is still in flight.
 */
GPUNVME_FN int gpunvme_qpair_wait(struct gpunvme_qpair *q, uint64_t ticket, uint64_t deadline_ns,
                                  struct gpunvme_completion *c)
{
    for (uint32_t turn = 1;; turn++) {
        int err = gpunvme_qpair_test(q, ticket, c);

        if (err != GPUNVME_ERR_AGAIN)
            return err;
        if (!gpunvme_qpair_reap(q))
            gpunvme_relax();
        if (turn % 64 == 0 && gpunvme_clock_ns() >= deadline_ns)
            return GPUNVME_ERR_TIMEOUT;
    }
}

/* Tickets that have not ended. */
GPUNVME_FN uint32_t gpunvme_qpair_outstanding(struct gpunvme_qpair *q)
{
    /* `released` first: it never passes `reserved`. */
    uint64_t released = gpunvme_load_acquire64(&q->released);

    return (uint32_t)((gpunvme_load_acquire64(&q->reserved) - released) & GPUNVME_QPAIR_POSITION);
}

/* --- life of a queue pair (CPU; src/nvme/qpair.c) ----------------------------------------------
 */

/* What a queue pair consists of. All memory stays the caller's and must stay valid. */
struct gpunvme_qpair_config {
    uint32_t qid;
    uint32_t entries;           /* a power of two, 2 … GPUNVME_QPAIR_MAX_ENTRIES */
    void *sq, *cq;              /* zeroed, GPUNVME_QPAIR_SQ_NBYTES and _CQ_NBYTES */
    struct gpunvme_slot *slots; /* GPUNVME_QPAIR_SLOTS_NBYTES */
    uint32_t *ready;            /* GPUNVME_QPAIR_READY_NBYTES */
    struct gpunvme_doorbell sq_doorbell, cq_doorbell;
    void (*ring)(void *arg, uint32_t offset, uint32_t value);
    void *ring_arg;
    uint64_t first_position;   /* 0, except in tests of wrap-around; rounded to a lap */
    uint64_t first_generation; /* likewise, 48 bits */
};

/*
 * GPUNVME_ERR_INVALID: a size that is not allowed, a NULL, a doorbell without a way to ring, or a
 * shadow doorbell without an event index.
 */
gpunvme_err_t gpunvme_qpair_init(struct gpunvme_qpair *q,
                                 const struct gpunvme_qpair_config *config);

/*
 * For a reset, in this order. freeze closes the queue to new submissions and waits, until
 * gpunvme_clock_ns() reaches deadline_ns, for threads to leave submit and reap; from then on no
 * thread rings a doorbell or writes an entry. fail ends every command in flight with `status`.
 * rewind restarts the rings at entry 0, as in a new queue; tickets stay valid. thaw opens the
 * queue. Threads may test and wait at any time.
 */
gpunvme_err_t gpunvme_qpair_freeze(struct gpunvme_qpair *q, uint64_t deadline_ns);
void gpunvme_qpair_fail(struct gpunvme_qpair *q, uint16_t status);
void gpunvme_qpair_rewind(struct gpunvme_qpair *q);
void gpunvme_qpair_thaw(struct gpunvme_qpair *q);

#ifdef __cplusplus
}
#endif
#endif
