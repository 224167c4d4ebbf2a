/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What an order of orders.h does, for the CPU and for the GPU: three steps, of which all threads
 * take the middle one together. Knows neither CUDA's host side nor the controller.
 */
#ifndef DEVICE_ORDERS_STEPS_H
#define DEVICE_ORDERS_STEPS_H

#include "device/orders/orders.h"
#include "device/orders/queue_reset.h"

/* What the threads share; zeroed at first. */
struct order_shared {
    uint64_t in_flight;
    uint32_t stuck;
    uint32_t is_cancelled;
};

/* As a warp of one lane; of those that come meanwhile no more than a queue holds. */
GPUNVME_FN void order_reap(struct gpunvme_dev_queue *q)
{
    for (uint32_t i = 0; i <= q->mask && gpunvme_dev_queue_reap(q, 1, 1); i++)
        ;
}

/*
 * Whether a command that its thread has given up has ended: where the CPU reaps only the mirror
 * says so, and nobody else frees the slot.
 */
GPUNVME_FN int order_is_over(const struct gpunvme_dev_queue *q, uint32_t i, uint64_t word)
{
    return q->mirror && word & GPUNVME_DEV_SLOT_ABANDONED &&
           gpunvme_load_acquire64(&q->mirror[i].word) & GPUNVME_SLOT_DONE;
}

/* By one thread. */
GPUNVME_FN void order_begin(const struct queue_order *order, struct order_shared *s)
{
    struct gpunvme_dev_queue *q = order->queue;

    switch (order->op) {
    case ORDER_FREEZE:
        s->stuck = queue_freeze(q, gpunvme_clock_ns() + order->budget_ns);
        break;
    case ORDER_FAIL_AND_REWIND:
        queue_rewind_counters(q);
        break;
    case ORDER_THAW:
        queue_thaw(q);
        break;
    case ORDER_CANCEL_FREEZE:
        queue_cancel_freeze(q);
        break;
    case ORDER_SETTLE:
        if (!q->mirror)
            order_reap(q);
        break;
    default:
        break;
    }
}

/* The first slot stays taken for ever. */
GPUNVME_FN void order_look_at_slots(const struct queue_order *order, struct order_shared *s,
                                    uint32_t me, uint32_t n)
{
    struct gpunvme_dev_queue *q = order->queue;

    for (uint32_t i = me; i <= q->mask; i += n) {
        uint64_t word = gpunvme_load_acquire64(&q->slots[i].word);

        if (!i || !(word & GPUNVME_DEV_SLOT_TAKEN))
            continue;
        if (order->op == ORDER_RECLAIM || order_is_over(q, i, word))
            queue_free_slot(&q->slots[i]);
        else if (!(word & GPUNVME_SLOT_DONE))
            gpunvme_fetch_add64(&s->in_flight, 1);
    }
}

/* By all. */
GPUNVME_FN void order_middle(const struct queue_order *order, struct order_shared *s, uint32_t me,
                             uint32_t n)
{
    if (order->op == ORDER_FAIL_AND_REWIND) {
        queue_fail(order->queue, order->status, me, n);
        queue_rewind_rings(order->queue, me, n);
    }
    if (order->op == ORDER_SETTLE || order->op == ORDER_RECLAIM)
        order_look_at_slots(order, s, me, n);
}

/* By one. */
GPUNVME_FN void order_end(const struct order_shared *s, struct order_result *result)
{
    result->stuck = s->stuck;
    result->in_flight = s->in_flight;
    result->is_done = 1;
}

#endif
