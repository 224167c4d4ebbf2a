/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The passes over matrices that the linear layer needs beside its products, each a kernel.
 */
#ifndef OPS_LINEAR_PASSES_H
#define OPS_LINEAR_PASSES_H

#include "ops/linear/dz.h"
#include "ops/matmul/product.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bias, pre-activation and activation from sums in f32, `ld` from row to row: what is not fused. */
gpunvme_ops_status_t linear_finish(const struct cuda_product *product, const float *sums,
                                   int64_t ld, void *stream);

enum { LINEAR_ROWS = 256 }; /* of which a block makes one sum for each column */

/* How many sums there are for each column: one for each so many rows. */
static inline int64_t linear_parts(int64_t rows)
{
    return (rows + LINEAR_ROWS - 1) / LINEAR_ROWS;
}

/* By threads of one element each, which add to `sums` (one a column, zeros) in no known order. */
gpunvme_ops_status_t linear_dz_atomic(const struct linear_dz *dz, void *stream);

/* By rows of vectors; sums[part * out + j] becomes the sum of LINEAR_ROWS rows. */
gpunvme_ops_status_t linear_dz_rows(const struct linear_dz *dz, void *stream);

/* Sums of columns of grad_y, a thread for each column, to sums[j]. */
gpunvme_ops_status_t linear_sum_columns(const struct linear_dz *dz, void *stream);

#ifdef __cplusplus
}
#endif
#endif
