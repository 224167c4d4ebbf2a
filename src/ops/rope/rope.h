/* SPDX-License-Identifier: BSD-3-Clause
 *
 * RoPE by itself: what its files share. It knows no device.
 */
#ifndef OPS_ROPE_ROPE_H
#define OPS_ROPE_ROPE_H

#include "gpunvme/ops/rope.h"
#include "ops/core/operator.h"

extern const struct ops_operator ops_rope;
extern const struct ops_ladder rope_cpu, rope_cuda;

/* From the first channel of a pair to its second one, and to the next pair's first. */
static inline int64_t rope_partner(const struct gpunvme_rope *rope)
{
    return rope->interleaved ? 1 : rope->dim / 2;
}

static inline int64_t rope_step(const struct gpunvme_rope *rope)
{
    return rope->interleaved ? 2 : 1;
}

static inline double rope_base(const struct gpunvme_rope *rope)
{
    return rope->base > 0 ? (double)rope->base : 10000;
}

#endif
