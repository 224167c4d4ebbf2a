/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A queue pair is made here, and frozen and rewound for a controller reset. What runs for every
 * command is in queue.h.
 */
#include <string.h>

#include "base/fail.h"
#include "gpunvme/queue.h"
#include "nvme/ctrl.h"

/* Nothing is ready: every mark holds the lap before the one that begins at `pos`. */
static void clear_ready(struct gpunvme_qpair *q, uint64_t pos)
{
    for (uint32_t i = 0; i <= q->mask; i++)
        gpunvme_store_release32(&q->ready[i], gpunvme_qpair_lap(q, pos) - 1);
}

/* No entry is new. Threads may be peeking: atomically, as they do. */
static void clear_phase_tags(struct gpunvme_qpair *q)
{
    gpunvme_dword *dwords = (gpunvme_dword *)(uintptr_t)q->cq;

    for (uint32_t i = 0; i <= q->mask; i++)
        gpunvme_store_release32(&dwords[4 * i + 3], 0);
}

gpunvme_err_t nvme_qpair_check(const struct gpunvme_qpair_config *c)
{
    if (c->entries < 2 || c->entries > GPUNVME_QPAIR_MAX_ENTRIES || c->entries & (c->entries - 1))
        return base_fail(GPUNVME_ERR_INVALID,
                         "%u queue entries: a queue has a power of two from 2 to %u", c->entries,
                         GPUNVME_QPAIR_MAX_ENTRIES);
    if (!c->sq || !c->cq || !c->slots || !c->ready)
        return base_fail(GPUNVME_ERR_INVALID, "queue memory is NULL");
    if ((!c->sq_doorbell.mmio || !c->cq_doorbell.mmio) && !c->ring)
        return base_fail(GPUNVME_ERR_INVALID, "a doorbell with no way to ring it");
    return GPUNVME_OK;
}

static gpunvme_err_t check_shadows(const struct gpunvme_qpair_config *c)
{
    if ((c->sq_doorbell.shadow && !c->sq_doorbell.event_index) ||
        (c->cq_doorbell.shadow && !c->cq_doorbell.event_index))
        return base_fail(GPUNVME_ERR_INVALID, "a shadow doorbell without an event index");
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_qpair_init(struct gpunvme_qpair *q, const struct gpunvme_qpair_config *c)
{
    gpunvme_err_t err = nvme_qpair_check(c);
    uint64_t first;

    if (!err)
        err = check_shadows(c);
    if (err)
        return err;
    memset(q, 0, sizeof(*q));
    q->sq = c->sq;
    q->cq = c->cq;
    q->slots = c->slots;
    q->ready = c->ready;
    q->capacity = q->mask = c->entries - 1;
    q->slot_mask = (uint32_t)GPUNVME_QPAIR_SLOTS(c->entries) - 1;
    q->shift = (uint32_t)__builtin_ctz(c->entries);
    q->qid = c->qid;
    q->sq_doorbell = c->sq_doorbell;
    q->cq_doorbell = c->cq_doorbell;
    q->ring = c->ring;
    q->ring_arg = c->ring_arg;

    first = c->first_position & GPUNVME_QPAIR_POSITION & ~(uint64_t)q->mask;
    q->reserved = q->released = q->published = first;
    clear_ready(q, first);
    for (uint32_t i = 0; i <= q->slot_mask; i++)
        q->slots[i] = (struct gpunvme_slot){.word = c->first_generation << 16};
    return GPUNVME_OK;
}

/* Takes a lock that is held for moments only. */
static int lock_until(uint32_t *lock, uint64_t deadline_ns)
{
    while (gpunvme_exchange32(lock, 1)) {
        if (gpunvme_clock_ns() >= deadline_ns)
            return 0;
        gpunvme_relax();
    }
    return 1;
}

/* Every reserved position has its entry: nobody is between reserve and fill any more. */
static int is_filled(struct gpunvme_qpair *q)
{
    uint64_t end = gpunvme_load_acquire64(&q->reserved) & GPUNVME_QPAIR_POSITION;

    for (uint64_t pos = q->published; pos != end; pos = (pos + 1) & GPUNVME_QPAIR_POSITION) {
        if (!gpunvme_qpair_is_ready(q, pos))
            return 0;
    }
    return 1;
}

gpunvme_err_t gpunvme_qpair_freeze(struct gpunvme_qpair *q, uint64_t deadline_ns)
{
    gpunvme_fetch_or64(&q->reserved, GPUNVME_QPAIR_CLOSED);
    if (!lock_until(&q->sq_lock, deadline_ns))
        return base_fail(GPUNVME_ERR_TIMEOUT, "queue %u: a thread did not leave submit", q->qid);
    while (!is_filled(q)) {
        if (gpunvme_clock_ns() >= deadline_ns) {
            gpunvme_exchange32(&q->sq_lock, 0);
            return base_fail(GPUNVME_ERR_TIMEOUT, "queue %u: a thread did not leave submit",
                             q->qid);
        }
        gpunvme_relax();
    }
    if (!lock_until(&q->cq_lock, deadline_ns)) {
        gpunvme_exchange32(&q->sq_lock, 0);
        return base_fail(GPUNVME_ERR_TIMEOUT, "queue %u: a thread did not leave reap", q->qid);
    }
    return GPUNVME_OK;
}

void gpunvme_qpair_fail(struct gpunvme_qpair *q, uint16_t status)
{
    for (uint32_t i = 0; i <= q->slot_mask; i++) {
        uint64_t word = gpunvme_load_acquire64(&q->slots[i].word);

        if ((word & 0xffff) != GPUNVME_SLOT_BUSY)
            continue;
        q->slots[i].result = 0;
        gpunvme_store_release64(&q->slots[i].word,
                                (word & ~UINT64_C(0xffff)) | GPUNVME_SLOT_DONE | status);
    }
}

/* Who holds the completion queue may be about to end a slot, so that nobody else may. */
bool nvme_qpair_end(struct gpunvme_qpair *q, uint16_t status)
{
    if (!lock_until(&q->cq_lock, gpunvme_clock_ns()))
        return false;
    gpunvme_qpair_fail(q, status);
    gpunvme_exchange32(&q->cq_lock, 0);
    return true;
}

void gpunvme_qpair_rewind(struct gpunvme_qpair *q)
{
    uint64_t old = gpunvme_load_acquire64(&q->reserved) & GPUNVME_QPAIR_POSITION;
    uint64_t pos = (old + q->mask) & ~(uint64_t)q->mask & GPUNVME_QPAIR_POSITION;

    /* Both counters move by the same step, so that the number outstanding stays. `released` may
     * be counted up beside us; `reserved` may not, it is closed. It goes first, so that nobody
     * sees `released` pass it. */
    gpunvme_store_release64(&q->reserved, pos | GPUNVME_QPAIR_CLOSED);
    gpunvme_fetch_add64(&q->released, (pos - old) & GPUNVME_QPAIR_POSITION);
    q->published = pos;
    clear_ready(q, pos);
    clear_phase_tags(q);
    gpunvme_store_relaxed64(&q->cq_head, 0);
    if (q->sq_doorbell.shadow)
        gpunvme_store_seq_cst32(q->sq_doorbell.shadow, 0);
    if (q->cq_doorbell.shadow)
        gpunvme_store_seq_cst32(q->cq_doorbell.shadow, 0);
}

void gpunvme_qpair_thaw(struct gpunvme_qpair *q)
{
    gpunvme_exchange32(&q->cq_lock, 0);
    gpunvme_exchange32(&q->sq_lock, 0);
    gpunvme_store_release64(&q->reserved,
                            gpunvme_load_acquire64(&q->reserved) & GPUNVME_QPAIR_POSITION);
}
