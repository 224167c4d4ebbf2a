/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Orders to the words of a queue that lies in GPU memory: freeze, fail, rewind, thaw, take back.
 * On the GPU a small kernel carries them out, beside whatever kernels are running; without a GPU
 * the caller does, by the same code (life_steps.h).
 */
#ifndef DEVICE_LIFE_H
#define DEVICE_LIFE_H

#include <stdbool.h>

#include "gpunvme/dev_queue.h"

enum life_op {
    LIFE_FREEZE,          /* keeps all threads out, or tells that it can't in time */
    LIFE_FAIL_AND_REWIND, /* ends what is in flight with `status`; rings begin at entry 0 */
    LIFE_THAW,
    LIFE_LET_GO,  /* takes back a freeze: the queue stays closed */
    LIFE_SETTLE,  /* takes completions, and counts what is still in flight */
    LIFE_RECLAIM, /* frees every slot: no thread uses the queue any more */
};

struct life_order {
    struct gpunvme_dev_queue *queue;
    uint64_t budget_ns; /* LIFE_FREEZE: how long it may try */
    uint32_t op;        /* enum life_op */
    uint16_t status;    /* LIFE_FAIL_AND_REWIND */
};

struct life_result {
    uint32_t is_done;   /* 0: the order was cancelled before it began */
    uint32_t stuck;     /* LIFE_FREEZE: enum queue_stuck */
    uint64_t in_flight; /* LIFE_SETTLE */
};

struct life;

/* On GPU number `gpu`, where there is one. Loads the kernel, so that no order waits for that. */
gpunvme_err_t life_open(bool has_gpu, unsigned gpu, struct life **out);
gpunvme_err_t life_close(struct life *life);

/*
 * Carries out one order: GPUNVME_ERR_TIMEOUT when a freeze was not possible in time, or when the
 * GPU had no room for the kernel; then all orders give that until it has.
 */
gpunvme_err_t life_run(struct life *life, const struct life_order *order,
                       struct life_result *result);

/* life_cuda.c or life_none.c: the same on a GPU. */
struct life_gpu;
gpunvme_err_t life_gpu_open(unsigned gpu, struct life_gpu **out);
gpunvme_err_t life_gpu_close(struct life_gpu *life);
gpunvme_err_t life_gpu_run(struct life_gpu *life, const struct life_order *order,
                           struct life_result *result);

#endif
