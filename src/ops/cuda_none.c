/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Stands in for the GPU's ladders where none were built.
 */
#include "ops/variant.h"

const struct ops_ladder ops_cuda_matmul, ops_cuda_linear_forward, ops_cuda_linear_backward;

gpunvme_ops_status_t ops_cuda_capability(int index, struct gpunvme_ops_capability *capability)
{
    (void)index;
    (void)capability;
    return ops_fail(GPUNVME_OPS_ERR_DEVICE, "this build has no GPU operators");
}
