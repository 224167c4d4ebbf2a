/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Matrix multiplication: what its files share.
 */
#ifndef OPS_MATMUL_MATMUL_H
#define OPS_MATMUL_MATMUL_H

#include "gpunvme/ops/matmul.h"
#include "ops/core/operator.h"
#include "ops/core/scales.h"

extern const struct ops_operator ops_matmul;
extern const struct ops_ladder matmul_cpu, matmul_cuda;

/* The same product with transpose_c = 0, and dtype_b said. */
struct gpunvme_matmul matmul_normal_form(const struct gpunvme_matmul *matmul);

/* The type of B. */
int matmul_dtype_b(const struct gpunvme_matmul *matmul);

/* The scales of its operands, for transpose_c = 0. */
struct ops_scales matmul_scales_a(const struct gpunvme_matmul *matmul);
struct ops_scales matmul_scales_b(const struct gpunvme_matmul *matmul);

#endif
