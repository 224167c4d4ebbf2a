/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Between the host's half of the rung "hopper", and of those that lead to it, and their kernels.
 */
#ifndef OPS_MATMUL_HOPPER_H
#define OPS_MATMUL_HOPPER_H

#include "ops/hopper/launch.h"
#include "ops/matmul/product.h"

#ifdef __cplusplus
extern "C" {
#endif

/* (For hopper_tf32_kernel()s, which may exchange A and B, a and b are their first and second.) */
struct hopper_work {
    struct hopper_operands operands;
    struct hopper_schedule schedule;
    CUtensorMap c, preact;
    struct cuda_product product;
    int copies_out;       /* C and pre-activations are written by the copy engine, by their maps */
    int begins_with_bias; /* for then sums begin with it */
};

/* The work of a product whose operands need no copy. */
gpunvme_ops_status_t hopper_prepare(struct hopper_work *work, const struct cuda_product *product);

/*
 * The kernel for a type, orientation and width of tiles (64, 128, 192 or 256; of f32 only the
 * last); NULL if there is none. For f32 they are hopper_tf32.cu's, which has none if both lie along
 * m or n, and of B that does makes the first operand.
 */
const void *hopper_kernel(int dtype, int mn_a, int mn_b, int width);
const void *hopper_tf32_kernel(int mn_a, int mn_b);

/*
 * A rung for f16 and bf16 that has a block for each tile, whose threads write the results. It takes
 * the operands that the rung "hopper" takes, and copies the same ones.
 */
struct hopper_rung {
    const void *kernels[2][2][2]; /* by type, and whether A and B lie along m or n */
    int width;                    /* of tiles */
    int threads;
    size_t nbytes; /* of shared memory */
    int pairs;     /* blocks are in clusters of two where hopper_grid_of() says so */
};

gpunvme_ops_status_t hopper_multiply(const struct hopper_rung *rung,
                                     const struct cuda_product *product, void *workspace,
                                     void *stream, struct cuda_launch *launch);

/*
 * The same of 16-bit types, both operands along k, where two blocks share a tile's k: a piece each
 * of schedule.steps. Widths are 64, 96, 128 and 160.
 */
const void *hopper_split_kernel(int dtype, int width);

/* How sums of fp8 are made: in f32 every 128 of k, without or with scales by block, or fast. */
enum hopper_sums { HOPPER_SUMS_F32, HOPPER_SUMS_BY_BLOCK, HOPPER_SUMS_FAST };

/* For fp8 of A and B, both contiguous along k, tiles 128 or 256 wide. */
const void *hopper_fp8_kernel(int dtype_a, int dtype_b, enum hopper_sums sums, int width);

/*
 * Copies an operand of `lines` x k elements, wherever they lie, to rows of `pitch` elements that
 * are contiguous along k.
 */
gpunvme_ops_status_t hopper_repack(const struct cuda_operand *x, int64_t step_line, int64_t step_k,
                                   int64_t lines, int64_t k, int64_t batch, int64_t pitch, int size,
                                   void *to, void *stream);

#ifdef __cplusplus
}
#endif
#endif
