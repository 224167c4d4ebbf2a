/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What an order of life.h does, for the CPU and for the GPU: three steps, of which all threads take
 * the middle one together. Knows neither CUDA's host side nor the controller.
 */
#ifndef DEVICE_LIFE_STEPS_H
#define DEVICE_LIFE_STEPS_H

#include "device/life.h"
#include "device/queue_life.h"

/* What the threads share; zeroed at first. */
struct life_shared {
    uint64_t in_flight;
    uint32_t stuck;
    uint32_t is_cancelled;
};

/* As a warp of one lane; of those that come meanwhile no more than a queue holds. */
GPUNVME_FN void life_reap(struct gpunvme_dev_queue *q)
{
    for (uint32_t i = 0; i <= q->mask && gpunvme_dev_queue_reap(q, 1, 1); i++)
        ;
}

/*
 * Whether a command that its thread has given up has ended: where the CPU reaps only the mirror
 * says so, and nobody else frees the slot.
 */
GPUNVME_FN int life_is_over(const struct gpunvme_dev_queue *q, uint32_t i, uint64_t word)
{
    return q->mirror && word & GPUNVME_DEV_SLOT_ABANDONED &&
           gpunvme_load_acquire64(&q->mirror[i].word) & GPUNVME_SLOT_DONE;
}

/* By one thread. */
GPUNVME_FN void life_begin(const struct life_order *order, struct life_shared *s)
{
    struct gpunvme_dev_queue *q = order->queue;

    switch (order->op) {
    case LIFE_FREEZE:
        s->stuck = queue_freeze(q, gpunvme_clock_ns() + order->budget_ns);
        break;
    case LIFE_FAIL_AND_REWIND:
        queue_rewind_counters(q);
        break;
    case LIFE_THAW:
        queue_thaw(q);
        break;
    case LIFE_LET_GO:
        queue_let_go(q);
        break;
    case LIFE_SETTLE:
        if (!q->mirror)
            life_reap(q);
        break;
    default:
        break;
    }
}

/* The first slot stays taken for ever. */
GPUNVME_FN void life_look_at_slots(const struct life_order *order, struct life_shared *s,
                                   uint32_t me, uint32_t n)
{
    struct gpunvme_dev_queue *q = order->queue;

    for (uint32_t i = me; i <= q->mask; i += n) {
        uint64_t word = gpunvme_load_acquire64(&q->slots[i].word);

        if (!i || !(word & GPUNVME_DEV_SLOT_TAKEN))
            continue;
        if (order->op == LIFE_RECLAIM || life_is_over(q, i, word))
            queue_free_slot(&q->slots[i]);
        else if (!(word & GPUNVME_SLOT_DONE))
            gpunvme_fetch_add64(&s->in_flight, 1);
    }
}

/* By all. */
GPUNVME_FN void life_middle(const struct life_order *order, struct life_shared *s, uint32_t me,
                            uint32_t n)
{
    if (order->op == LIFE_FAIL_AND_REWIND) {
        queue_fail(order->queue, order->status, me, n);
        queue_rewind_rings(order->queue, me, n);
    }
    if (order->op == LIFE_SETTLE || order->op == LIFE_RECLAIM)
        life_look_at_slots(order, s, me, n);
}

/* By one. */
GPUNVME_FN void life_end(const struct life_shared *s, struct life_result *result)
{
    result->stuck = s->stuck;
    result->in_flight = s->in_flight;
    result->is_done = 1;
}

#endif
