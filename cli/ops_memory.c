/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme ops: the operators that pass over memory, each by the table of its file.
 */
#include "ops_memory.h"

const struct ops_memory_op *ops_memory_op(int op)
{
    static const struct ops_memory_op *const all[GPUNVME_OPS_NOPS] = {
        [GPUNVME_OPS_NORM_FORWARD] = &ops_norm_forward_case,
        [GPUNVME_OPS_NORM_BACKWARD] = &ops_norm_backward_case,
        [GPUNVME_OPS_CROSS_ENTROPY] = &ops_cross_entropy_case,
        [GPUNVME_OPS_ADAMW] = &ops_adamw_case,
        [GPUNVME_OPS_GRAD_NORM] = &ops_grad_norm_case,
        [GPUNVME_OPS_EMBEDDING_FORWARD] = &ops_embedding_forward_case,
        [GPUNVME_OPS_EMBEDDING_BACKWARD] = &ops_embedding_backward_case,
        [GPUNVME_OPS_SWIGLU_FORWARD] = &ops_swiglu_forward_case,
        [GPUNVME_OPS_SWIGLU_BACKWARD] = &ops_swiglu_backward_case,
        [GPUNVME_OPS_ROPE] = &ops_rope_case,
        [GPUNVME_OPS_MOE_FORWARD] = &ops_moe_forward_case,
        [GPUNVME_OPS_MOE_BACKWARD] = &ops_moe_backward_case,
    };

    return all[op];
}
