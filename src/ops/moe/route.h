/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The order in which experts are chosen, for the CPU and for kernels.
 */
#ifndef OPS_MOE_ROUTE_H
#define OPS_MOE_ROUTE_H

#include <stdint.h>
#include <string.h>

#include "gpunvme/fn.h"

/*
 * A number for each expert of a token that is larger the earlier it is chosen: by the bits of its
 * logit as f32, then by the lower index. A NaN comes first, and both zeros are equal. No two are
 * the same, and none is 0 or UINT64_MAX.
 */
GPUNVME_FN uint64_t moe_key(float logit, uint32_t expert)
{
    uint32_t bits, order;

    memcpy(&bits, &logit, sizeof(bits));
    if (bits == 0x80000000)
        bits = 0;
    if ((bits & 0x7fffffff) > 0x7f800000)
        order = 0xffffffff;
    else
        order = bits & 0x80000000 ? ~bits : bits | 0x80000000;
    return (uint64_t)order << 32 | (0xffffffff - expert);
}

GPUNVME_FN int32_t moe_expert_of(uint64_t key)
{
    return (int32_t)(0xffffffff - (uint32_t)key);
}

#endif
