/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What both directions of the linear layer on the GPU share: which rung makes a product, and how
 * its operands lie.
 */
#ifndef OPS_LINEAR_CUDA_H
#define OPS_LINEAR_CUDA_H

#include "ops/linear/linear.h"
#include "ops/linear/passes.h"

enum products {
    PRODUCTS_NAIVE,
    PRODUCTS_TILED,
    PRODUCTS_BEST,       /* without Hopper's own instructions */
    PRODUCTS_BEST_OF_ALL /* with them, where the device has them */
};

static inline const struct cuda_engine *engine_of(enum products products,
                                                  const struct cuda_product *p)
{
    switch (products) {
    case PRODUCTS_NAIVE:
        return &cuda_engines[CUDA_NAIVE];
    case PRODUCTS_TILED:
        return &cuda_engines[CUDA_TILED];
    default:
        return cuda_best_engine(p, products == PRODUCTS_BEST_OF_ALL ? cuda_level() : CUDA_PLAIN);
    }
}

/* The leading dimension of a single row may be anything. */
static inline int64_t ld_of(int64_t rows, int64_t cols, int64_t ld)
{
    return rows > 1 ? ld : (cols + 15) / 16 * 16;
}

/* A row-major matrix as it is, or its transpose. */
static inline struct cuda_operand plain(const void *data, int64_t ld)
{
    return (struct cuda_operand){.data = data, .rs = ld, .cs = 1};
}

static inline struct cuda_operand transposed(const void *data, int64_t ld)
{
    return (struct cuda_operand){.data = data, .rs = 1, .cs = ld};
}

#endif
