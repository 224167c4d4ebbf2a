/* SPDX-License-Identifier: BSD-3-Clause
 *
 * grad_x = dZ W by a kernel that makes dZ, too.
 */
#ifndef OPS_LINEAR_DZ_PRODUCT_H
#define OPS_LINEAR_DZ_PRODUCT_H

#include "ops/linear/dz.h"
#include "ops/matmul/hopper.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * dZ, its sums over DZ_PIECE_ROWS rows each and the bias's gradient of these, if wanted, and
 * `product`, whose A is that dZ as it is in memory and whose B needs no copy. `counters` has
 * dz_counters_nbytes().
 */
gpunvme_ops_status_t dz_multiply(const struct cuda_product *product, const struct linear_dz *dz,
                                 const struct dz_bias *bias, void *counters, void *stream);

struct dz_work {
    struct hopper_work product;
    struct dz_plan dz;
};

/* kernel(dz_work), for a type of 16 bits. */
const void *dz_product_kernel(int dtype);

/*
 * kernel(uint32_t *words, uint32_t count): makes them 0 by blocks of DZ_CLEAR_THREADS. It is one of
 * those that are launched before the kernel before has ended.
 */
const void *dz_clear_kernel(void);

enum {
    DZ_CLEAR_THREADS = 32,
    DZ_CLEAR_WORDS = 8 * DZ_CLEAR_THREADS, /* of a block */
    DZ_CLEAR_BLOCKS = 64,                  /* at most: fewer than there are multiprocessors */
};

#ifdef __cplusplus
}
#endif
#endif
