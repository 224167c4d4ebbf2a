/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Carries out an order of life.h on the GPU: one block, so that it finds room beside other kernels.
 */
#include "device/life_launch.h"
#include "device/life_steps.h"

#define THREADS 128

namespace
{
__global__ void __launch_bounds__(THREADS)
    carry_out(struct life_order order, uint64_t number, struct life_mailbox *mailbox)
{
    __shared__ struct life_shared shared;

    if (threadIdx.x == 0) {
        shared.in_flight = 0;
        shared.stuck = 0;
        shared.is_cancelled = gpunvme_load_acquire64(&mailbox->cancelled) >= number;
        if (!shared.is_cancelled)
            life_begin(&order, &shared);
    }
    __syncthreads();
    if (shared.is_cancelled)
        return;
    life_middle(&order, &shared, threadIdx.x, THREADS);
    __syncthreads();
    if (threadIdx.x == 0)
        life_end(&shared, &mailbox->result);
}
} // namespace

extern "C" cudaError_t life_launch(const struct life_order *order, uint64_t number,
                                   struct life_mailbox *mailbox, cudaStream_t stream)
{
    carry_out<<<1, THREADS, 0, stream>>>(*order, number, mailbox);
    return cudaGetLastError();
}

extern "C" cudaError_t life_preload(void)
{
    struct cudaFuncAttributes attributes;

    return cudaFuncGetAttributes(&attributes, carry_out);
}
