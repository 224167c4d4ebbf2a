/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Cross entropy: what its files share. It knows no device.
 */
#ifndef OPS_CROSS_ENTROPY_CROSS_ENTROPY_H
#define OPS_CROSS_ENTROPY_CROSS_ENTROPY_H

#include "gpunvme/ops/cross_entropy.h"
#include "ops/core/operator.h"

extern const struct ops_operator ops_cross_entropy;
extern const struct ops_ladder cross_entropy_cpu, cross_entropy_cuda;

static inline int cross_entropy_wants_total(const struct gpunvme_cross_entropy *p)
{
    return p->loss && p->reduction != GPUNVME_REDUCTION_NONE;
}

#endif
