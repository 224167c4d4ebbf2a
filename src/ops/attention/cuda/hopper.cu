/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rung "hopper": its kernels for types of 16 bits.
 */
#include "ops/attention/cuda/hopper.cuh"

template <int DTYPE, bool PAGED> static const void *kernel_of(const hopper_shape &s)
{
#define KERNEL(channels_, keys_, groups_)                                                          \
    if (s.channels == channels_ && s.keys == keys_ && s.groups == groups_)                         \
        return (const void *)attend<DTYPE, channels_, keys_, groups_, PAGED>;
    KERNEL(64, 128, 3)
    KERNEL(128, 176, 2)
    KERNEL(256, 80, 2)
    return NULL;
}

const void *hopper_attention_kernel(int dtype, struct hopper_shape s, bool paged)
{
    if (dtype == GPUNVME_OPS_F16)
        return paged ? kernel_of<GPUNVME_OPS_F16, true>(s) : kernel_of<GPUNVME_OPS_F16, false>(s);
    return paged ? kernel_of<GPUNVME_OPS_BF16, true>(s) : kernel_of<GPUNVME_OPS_BF16, false>(s);
}
