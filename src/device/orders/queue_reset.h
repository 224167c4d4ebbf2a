/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a controller reset does to a queue pair of warps (dev_queue.h): for the CPU, and for a small
 * kernel where its words are in GPU memory. Loops over a queue are shared by `n` threads, of which
 * the caller is number `me`; the rest is done by one. Threads may submit, reap and wait all the
 * time: they are told that the queue is closed, or that their command ended.
 */
#ifndef DEVICE_QUEUE_RESET_H
#define DEVICE_QUEUE_RESET_H

#include "gpunvme/dev_queue.h"

/* Why a queue could not be frozen. */
enum queue_stuck { QUEUE_FROZEN = 0, QUEUE_STUCK_SUBMIT = 1, QUEUE_STUCK_REAP = 2 };

/* Takes one of the two locks, which are held for moments only; what was in the word beside it. */
GPUNVME_FN int queue_lock_until(uint32_t *word, uint64_t deadline_ns, uint32_t *old)
{
    for (;;) {
        *old = gpunvme_fetch_or32(word, GPUNVME_DEV_QUEUE_LOCKED);
        if (!(*old & GPUNVME_DEV_QUEUE_LOCKED))
            return 1;
        if (gpunvme_clock_ns() >= deadline_ns)
            return 0;
        gpunvme_relax();
    }
}

/* All positions from `pos` up to `end` are marked: nobody is between reserve and submit any more.
 */
GPUNVME_FN int queue_is_filled(const struct gpunvme_dev_queue *q, uint32_t pos, uint32_t end)
{
    while (((pos ^ end) << 1) && gpunvme_dev_queue_is_ready(q, pos))
        pos++;
    return !((pos ^ end) << 1);
}

/* No position is reserved from here on. What later reservations add to the word means nothing. */
GPUNVME_FN void queue_close(struct gpunvme_dev_queue *q)
{
    uint64_t old = gpunvme_fetch_or64(&q->reserved, GPUNVME_QPAIR_CLOSED);

    if (!(old & GPUNVME_QPAIR_CLOSED))
        q->closed_at = old;
}

/*
 * Closes the queue, waits until nobody is inside submit and reap, and keeps all out: from then on
 * nobody rings a doorbell or writes an entry. If that can't be, the queue stays closed.
 */
GPUNVME_FN enum queue_stuck queue_freeze(struct gpunvme_dev_queue *q, uint64_t deadline_ns)
{
    uint32_t published, head;

    queue_close(q);
    if (!queue_lock_until(&q->published, deadline_ns, &published))
        return QUEUE_STUCK_SUBMIT;
    while (!queue_is_filled(q, published >> 1, (uint32_t)q->closed_at)) {
        if (gpunvme_clock_ns() >= deadline_ns) {
            gpunvme_store_release32(&q->published, published);
            return QUEUE_STUCK_SUBMIT;
        }
        gpunvme_relax();
    }
    if (!queue_lock_until(&q->cq_head, deadline_ns, &head)) {
        gpunvme_store_release32(&q->published, published);
        return QUEUE_STUCK_REAP;
    }
    return QUEUE_FROZEN;
}

/* Frees a slot whose ticket has ended, or whom nobody will ask any more. */
GPUNVME_FN void queue_free_slot(struct gpunvme_slot *slot)
{
    uint64_t word = gpunvme_load_acquire64(&slot->word) & ~UINT64_C(0xffff);

    gpunvme_store_release64(&slot->word, (word + 0x10000) & ~GPUNVME_DEV_SLOT_TAKEN);
}

/*
 * Ends the command of a slot, if it has one; `word` is what the slot's word was. By
 * compare-and-swap, until it holds: a thread that has found the queue closed gives its slot back at
 * the same time, and one whose deadline is over abandons its ticket. With a mirror those who wait
 * look there, and only slots that nobody waits for are freed.
 */
GPUNVME_FN void queue_fail_slot(struct gpunvme_dev_queue *q, struct gpunvme_slot *slot,
                                uint64_t word, uint16_t status)
{
    while (word & GPUNVME_DEV_SLOT_TAKEN && !(word & GPUNVME_SLOT_DONE)) {
        if (word & GPUNVME_DEV_SLOT_ABANDONED) {
            queue_free_slot(slot);
            return;
        }
        if (q->mirror)
            return;
        slot->result = 0;
        if (gpunvme_cas64(&slot->word, &word, word | GPUNVME_SLOT_DONE | status))
            return;
    }
}

/* Ends every command in flight with `status`. */
GPUNVME_FN void queue_fail(struct gpunvme_dev_queue *q, uint16_t status, uint32_t me, uint32_t n)
{
    for (uint32_t i = me; i <= q->mask; i += n) {
        if (i)
            queue_fail_slot(q, &q->slots[i], gpunvme_load_acquire64(&q->slots[i].word), status);
    }
}

/* Both rings begin again at entry 0. First this, by one thread, */
GPUNVME_FN void queue_rewind_counters(struct gpunvme_dev_queue *q)
{
    q->closed_at = (q->closed_at + q->mask) & ~(uint64_t)q->mask;
    gpunvme_store_release32(&q->published, (uint32_t)q->closed_at << 1 | GPUNVME_DEV_QUEUE_LOCKED);
    gpunvme_store_release32(&q->cq_head, GPUNVME_DEV_QUEUE_LOCKED);
}

/* then this, by all. Threads may be peeking at entries: atomically, as they do. */
GPUNVME_FN void queue_rewind_rings(struct gpunvme_dev_queue *q, uint32_t me, uint32_t n)
{
    gpunvme_dword *dwords = (gpunvme_dword *)(uintptr_t)q->cq;

    for (uint32_t i = me; i <= q->mask; i += n) {
        gpunvme_store_release32(&q->ready[i], gpunvme_dev_queue_lap(q, (uint32_t)q->closed_at) - 1);
        gpunvme_store_release32(&dwords[4 * i + 3], 0);
    }
}

/*
 * Takes back a freeze, of a queue that is left out of the reset: it stays closed, so that nobody
 * rings doorbells that the controller will not have, and can be frozen again.
 */
GPUNVME_FN void queue_cancel_freeze(struct gpunvme_dev_queue *q)
{
    gpunvme_fetch_and32(&q->cq_head, ~GPUNVME_DEV_QUEUE_LOCKED);
    gpunvme_fetch_and32(&q->published, ~GPUNVME_DEV_QUEUE_LOCKED);
}

/* Opens a queue that was frozen; nothing happens to one that is open. */
GPUNVME_FN void queue_thaw(struct gpunvme_dev_queue *q)
{
    if (!(gpunvme_load_acquire64(&q->reserved) & GPUNVME_QPAIR_CLOSED))
        return;
    gpunvme_fetch_and32(&q->cq_head, ~GPUNVME_DEV_QUEUE_LOCKED);
    gpunvme_fetch_and32(&q->published, ~GPUNVME_DEV_QUEUE_LOCKED);
    gpunvme_store_release64(&q->reserved, q->closed_at);
}

#endif
