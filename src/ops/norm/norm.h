/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Normalization: what its files share. It knows no device.
 */
#ifndef OPS_NORM_NORM_H
#define OPS_NORM_NORM_H

#include "gpunvme/ops/norm.h"
#include "ops/core/operator.h"

extern const struct ops_operator ops_norm_forward, ops_norm_backward;
extern const struct ops_ladder norm_forward_cpu, norm_backward_cpu;
extern const struct ops_ladder norm_forward_cuda, norm_backward_cuda;

/* Is there an element of the rows' gradient to compute, or of the parameters'? */
static inline int norm_wants_x(const struct gpunvme_norm_grad *p)
{
    return p->grad_x && p->rows && p->cols;
}

static inline int norm_wants_sums(const struct gpunvme_norm_grad *p)
{
    return (p->grad_weight || p->grad_bias) && p->cols;
}

#endif
