/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Orders to the words of a queue in GPU memory: freeze, fail, rewind, thaw, reclaim.
 * On the GPU a small kernel carries them out, beside whatever kernels are running; without a GPU
 * the caller does, by the same code (steps.h).
 */
#ifndef DEVICE_ORDERS_H
#define DEVICE_ORDERS_H

#include <stdbool.h>

#include "gpunvme/dev_queue.h"

enum order_op {
    ORDER_FREEZE,          /* keeps all threads out, or reports that it could not in time */
    ORDER_FAIL_AND_REWIND, /* ends what is in flight with `status`; rings begin at entry 0 */
    ORDER_THAW,
    ORDER_CANCEL_FREEZE, /* the queue stays closed, and can be frozen again */
    ORDER_SETTLE,        /* takes completions, and counts what is still in flight */
    ORDER_RECLAIM,       /* frees every slot: no thread uses the queue any more */
};

struct queue_order {
    struct gpunvme_dev_queue *queue;
    uint64_t budget_ns; /* ORDER_FREEZE: how long it may try */
    uint32_t op;        /* enum order_op */
    uint16_t status;    /* ORDER_FAIL_AND_REWIND */
};

struct order_result {
    uint32_t is_done;   /* 0: the order was cancelled before it began */
    uint32_t stuck;     /* ORDER_FREEZE: enum queue_stuck */
    uint64_t in_flight; /* ORDER_SETTLE */
};

struct orders;

/* On GPU number `gpu`, where there is one. Loads the kernel, so that no order waits for that. */
gpunvme_err_t orders_open(bool has_gpu, unsigned gpu, struct orders **out);
gpunvme_err_t orders_close(struct orders *orders);

/*
 * Carries out one order: GPUNVME_ERR_TIMEOUT when a freeze was not possible in time, or when the
 * GPU had no room for the kernel; then all orders give that until it has.
 */
gpunvme_err_t orders_run(struct orders *orders, const struct queue_order *order,
                         struct order_result *result);

/* cuda.c or none.c: the same on a GPU. */
struct orders_gpu;
gpunvme_err_t orders_gpu_open(unsigned gpu, struct orders_gpu **out);
gpunvme_err_t orders_gpu_close(struct orders_gpu *orders);
gpunvme_err_t orders_gpu_run(struct orders_gpu *orders, const struct queue_order *order,
                             struct order_result *result);

#endif
