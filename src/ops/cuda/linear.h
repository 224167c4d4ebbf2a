/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rungs of the linear layer on the GPU, for the table: variant->data is one of these.
 */
#ifndef OPS_CUDA_LINEAR_H
#define OPS_CUDA_LINEAR_H

#include "ops/cuda/cuda.h"

enum cuda_products {
    CUDA_PRODUCTS_NAIVE,
    CUDA_PRODUCTS_TILED,
    CUDA_PRODUCTS_BEST,       /* without Hopper's own instructions */
    CUDA_PRODUCTS_BEST_OF_ALL /* with them, where the device has them */
};

struct cuda_forward_rung {
    enum cuda_products products;
    int fused; /* bias and activation in the product's kernel */
    int needs_hopper;
    int shaped; /* only for shapes that want one of the last two rungs */
};

/* How the bias's gradient comes about. */
enum cuda_sums { CUDA_SUMS_ATOMIC, CUDA_SUMS_BY_COLUMN, CUDA_SUMS_BY_WARPS, CUDA_SUMS_WITH_DZ };

struct cuda_backward_rung {
    enum cuda_products products;
    enum cuda_sums sums;
};

extern const struct cuda_forward_rung cuda_forward_rungs[5];
extern const struct cuda_backward_rung cuda_backward_rungs[4];

struct cuda_product cuda_forward_product(const struct gpunvme_linear *linear);

size_t cuda_forward_workspace(const struct ops_variant *, const struct ops_problem *,
                              const struct gpunvme_ops_exec *);
gpunvme_ops_status_t cuda_forward_run(const struct ops_variant *, const struct ops_problem *,
                                      const struct gpunvme_ops_exec *);
size_t cuda_backward_workspace(const struct ops_variant *, const struct ops_problem *,
                               const struct gpunvme_ops_exec *);
gpunvme_ops_status_t cuda_backward_run(const struct ops_variant *, const struct ops_problem *,
                                       const struct gpunvme_ops_exec *);

#endif
