/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The linear layer: what its files share.
 */
#ifndef OPS_LINEAR_LINEAR_H
#define OPS_LINEAR_LINEAR_H

#include "gpunvme/ops/linear.h"
#include "ops/core/operator.h"

extern const struct ops_operator ops_linear_forward, ops_linear_backward;
extern const struct ops_ladder linear_forward_cpu, linear_backward_cpu;
extern const struct ops_ladder linear_forward_cuda, linear_backward_cuda;

/* Has this gradient an element to compute? */
static inline int linear_wants_x(const struct gpunvme_linear_grad *p)
{
    return p->grad_x && p->rows && p->in;
}

static inline int linear_wants_weight(const struct gpunvme_linear_grad *p)
{
    return p->grad_weight && p->out && p->in;
}

#endif
