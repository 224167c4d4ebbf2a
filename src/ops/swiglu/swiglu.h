/* SPDX-License-Identifier: BSD-3-Clause
 *
 * SwiGLU: what its files share. It knows no device.
 */
#ifndef OPS_SWIGLU_SWIGLU_H
#define OPS_SWIGLU_SWIGLU_H

#include "gpunvme/ops/swiglu.h"
#include "ops/core/operator.h"

extern const struct ops_operator ops_swiglu_forward, ops_swiglu_backward;
extern const struct ops_ladder swiglu_forward_cpu, swiglu_backward_cpu;
extern const struct ops_ladder swiglu_forward_cuda, swiglu_backward_cuda;

#endif
