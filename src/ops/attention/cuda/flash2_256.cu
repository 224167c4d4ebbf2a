/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rung flash2 for tiles of 256 channels.
 */
#include "ops/attention/cuda/flash2.cuh"

gpunvme_ops_status_t cuda_attention_flash2_256(const struct cuda_attention *x, int section,
                                               void *stream)
{
    return flash2_launch<256>(x, section, stream);
}
