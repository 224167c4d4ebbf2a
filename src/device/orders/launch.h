/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Starts the kernel of kernel.cu, and loads it beforehand.
 */
#ifndef DEVICE_ORDERS_LAUNCH_H
#define DEVICE_ORDERS_LAUNCH_H

#include <cuda_runtime_api.h>

#include "device/orders/orders.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * In pinned memory. The CPU cancels by number: an order that has begun is carried out all the same,
 * and its result tells.
 */
struct order_mailbox {
    uint64_t cancelled; /* orders up to this one are not to begin any more */
    struct order_result result;
};

cudaError_t orders_launch(const struct queue_order *order, uint64_t number,
                          struct order_mailbox *mailbox, cudaStream_t stream);

/*
 * Loading code while a kernel runs may wait for that kernel, which may wait for us: so it is
 * loaded at the start (CUDA C++ Programming Guide, "Lazy Loading", on concurrent execution).
 */
cudaError_t orders_preload(void);

#ifdef __cplusplus
}
#endif
#endif
