/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What registers.sh counts the registers of: each thread reads a block.
 */
#include "gpunvme/device.cuh"

extern "C" __global__ void read_a_block(struct gpunvme_dev_ns ns, struct gpunvme_dev_buf buf,
                                        const uint64_t *slba, int *err)
{
    uint64_t thread = blockIdx.x * blockDim.x + threadIdx.x;

    err[thread] = gpunvme_dev_read(&ns, slba[thread], 1, &buf, thread << ns.block_shift, 0);
}
