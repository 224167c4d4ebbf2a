/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops: the tables of operators that pass over memory, and of mixtures of experts.
 */
#ifndef CLI_OPS_MEMORY_H
#define CLI_OPS_MEMORY_H

#include "ops.h"
#include "ops/cpu/dtype.h"

extern const struct ops_memory_op ops_norm_forward_case, ops_norm_backward_case;
extern const struct ops_memory_op ops_cross_entropy_case, ops_adamw_case, ops_grad_norm_case;
extern const struct ops_memory_op ops_embedding_forward_case, ops_embedding_backward_case;
extern const struct ops_memory_op ops_swiglu_forward_case, ops_swiglu_backward_case;
extern const struct ops_memory_op ops_rope_case;
extern const struct ops_memory_op ops_moe_forward_case, ops_moe_backward_case;

#define OPS_EPS 0x1p-24 /* half an ulp of f32 */

/* Element i of a matrix of the case. */
static inline double ops_at(const struct ops_case *c, int matrix, int dtype, int64_t i)
{
    return (double)cpu_load(c->host[matrix], i, dtype);
}

#endif
