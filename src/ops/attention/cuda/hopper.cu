/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rung "hopper": its kernels for types of 16 bits.
 */
#include "ops/attention/cuda/hopper.cuh"

const void *hopper_attention_kernel(int dtype, struct hopper_shape s)
{
#define KERNEL(channels_, keys_, groups_)                                                          \
    if (s.channels == channels_ && s.keys == keys_ && s.groups == groups_)                         \
        return dtype == GPUNVME_OPS_F16                                                            \
                   ? (const void *)attend<GPUNVME_OPS_F16, channels_, keys_, groups_>              \
                   : (const void *)attend<GPUNVME_OPS_BF16, channels_, keys_, groups_>;
    KERNEL(64, 128, 3)
    KERNEL(128, 176, 2)
    KERNEL(256, 80, 2)
    return NULL;
}
