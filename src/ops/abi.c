/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The number of the library's binary interface.
 */
#include "gpunvme/ops.h"

/* Whoever changes one of these increases GPUNVME_OPS_ABI, and changes its size here. */
#define HAS(name, nbytes)                                                                          \
    _Static_assert(sizeof(struct name) == (nbytes), #name " has changed: increase "                \
                                                          "GPUNVME_OPS_ABI")

HAS(gpunvme_ops_exec, 48);
HAS(gpunvme_ops_capability, 232);
HAS(gpunvme_ops_variant, 48);
HAS(gpunvme_matmul, 136);
HAS(gpunvme_matmul_metrics, 96);
HAS(gpunvme_linear, 112);
HAS(gpunvme_linear_grad, 152);

unsigned gpunvme_ops_abi(void)
{
    return GPUNVME_OPS_ABI;
}
