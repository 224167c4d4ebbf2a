/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Compute operators: matrix multiplication, the linear layer, attention and what a training
 * step has beside them, on the CPU and on GPUs. A library of its own, libgpunvme_ops: it knows
 * nothing of storage, and nothing in it needs libgpunvme.
 *
 * Every operator is a ladder of variants, from the plainest to the fastest. They compute the same;
 * `gpunvme_ops_exec.variant` names one, "auto" takes the best for shape, dtype and device.
 * docs/OPERATORS.md says what each rung changes and gains.
 */
#ifndef GPUNVME_OPS_H
#define GPUNVME_OPS_H

#include "gpunvme/ops/attention.h"
#include "gpunvme/ops/core.h"
#include "gpunvme/ops/cross_entropy.h"
#include "gpunvme/ops/embedding.h"
#include "gpunvme/ops/linear.h"
#include "gpunvme/ops/matmul.h"
#include "gpunvme/ops/moe.h"
#include "gpunvme/ops/norm.h"
#include "gpunvme/ops/optimizer.h"
#include "gpunvme/ops/rope.h"
#include "gpunvme/ops/swiglu.h"

#endif
