/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Carries out an order of orders.h on the GPU: one block, so that it finds room beside other
 * kernels.
 */
#include "device/orders/launch.h"
#include "device/orders/steps.h"

#define THREADS 128

namespace
{
__global__ void __launch_bounds__(THREADS)
    carry_out(struct queue_order order, uint64_t number, struct order_mailbox *mailbox)
{
    __shared__ struct order_shared shared;

    if (threadIdx.x == 0) {
        shared.in_flight = 0;
        shared.stuck = 0;
        shared.is_cancelled = gpunvme_load_acquire64(&mailbox->cancelled) >= number;
        if (!shared.is_cancelled)
            order_begin(&order, &shared);
    }
    __syncthreads();
    if (shared.is_cancelled)
        return;
    order_middle(&order, &shared, threadIdx.x, THREADS);
    __syncthreads();
    if (threadIdx.x == 0)
        order_end(&shared, &mailbox->result);
}
} // namespace

extern "C" cudaError_t orders_launch(const struct queue_order *order, uint64_t number,
                                     struct order_mailbox *mailbox, cudaStream_t stream)
{
    carry_out<<<1, THREADS, 0, stream>>>(*order, number, mailbox);
    return cudaGetLastError();
}

extern "C" cudaError_t orders_preload(void)
{
    struct cudaFuncAttributes attributes;

    return cudaFuncGetAttributes(&attributes, carry_out);
}
