/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rung flash2: which tiles a problem has, and their order. flash2.cuh has the kernel.
 */
#include "ops/attention/cuda/flash2.h"

#define SECTION (16 << 20)

/* Heads whose K and V together are some megabytes, a third of the cache or less. */
static int section_of(const struct cuda_attention *x)
{
    int64_t nbytes = 2 * (int64_t)x->k_len * (x->dim + x->dim_v);
    int64_t heads = (nbytes ? SECTION / nbytes : SECTION) * x->group;

    return heads < x->group              ? x->group
           : heads < CUDA_ATTENTION_MOST ? (int)heads
                                         : CUDA_ATTENTION_MOST;
}

size_t cuda_attention_flash2_nbytes(const struct cuda_attention *x)
{
    return cuda_attention_turned_keys_nbytes(x);
}

size_t cuda_attention_flash2_shared(const struct cuda_attention *x)
{
    return FLASH2_NBYTES((size_t)cuda_attention_width(x));
}

gpunvme_ops_status_t cuda_attention_flash2(const struct cuda_attention *x, void *workspace,
                                           void *stream)
{
    struct cuda_attention turned = *x;
    gpunvme_ops_status_t status = cuda_attention_turn_keys(&turned, workspace, stream);

    if (status)
        return status;
    switch (cuda_attention_width(x)) {
    case 64:
        return cuda_attention_flash2_64(&turned, section_of(x), stream);
    case 128:
        return cuda_attention_flash2_128(&turned, section_of(x), stream);
    default:
        return cuda_attention_flash2_256(&turned, section_of(x), stream);
    }
}
