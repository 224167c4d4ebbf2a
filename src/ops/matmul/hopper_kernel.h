/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Between the host's half of the rung "hopper" and its kernels.
 */
#ifndef OPS_MATMUL_HOPPER_KERNEL_H
#define OPS_MATMUL_HOPPER_KERNEL_H

#include <cuda.h>

#include "ops/cuda/dz.h"
#include "ops/matmul/hopper.h"
#include "ops/matmul/product.h"

#ifdef __cplusplus
extern "C" {
#endif

/* (For hopper_tf32_kernel()s, which may exchange A and B, a and b are their first and second.) */
struct hopper_work {
    CUtensorMap a, b, c, preact;
    struct cuda_product product;
    struct hopper_grid grid;
    int steps, all_steps; /* of k: of a piece, of all; the last piece may have fewer */
    int pieces;           /* see struct cuda_product */
    int a_batch, b_batch; /* 1 or, if one matrix serves the whole batch, 0 */
    int copies_out;       /* C and pre-activations are written by the copy engine, by their maps */
    int begins_with_bias; /* for then sums begin with it */
    struct dz_plan dz;    /* A, for hopper_kernel_making_dz() */
};

/*
 * The kernel for a type, orientation and width of tiles (64, 128 or 256; of f32 only the last);
 * NULL if there is none. For f32 they are hopper_tf32.cu's, which has none if both lie along m or
 * n, and of B that does makes the first operand.
 */
const void *hopper_kernel(int dtype, int mn_a, int mn_b, int width);
const void *hopper_tf32_kernel(int mn_a, int mn_b);

/* One that makes A itself, as work.dz says: contiguous along k, and B along n, both of 16 bits. */
const void *hopper_kernel_making_dz(int dtype);

/*
 * kernel(uint32_t *words, uint32_t count): makes them 0 by blocks of HOPPER_CLEAR_THREADS. It is
 * one of those that are launched before the kernel before has ended.
 */
const void *hopper_clear_kernel(void);

enum {
    HOPPER_CLEAR_THREADS = 32,
    HOPPER_CLEAR_WORDS = 8 * HOPPER_CLEAR_THREADS, /* of a block */
    HOPPER_CLEAR_BLOCKS = 64, /* at most: fewer than there are multiprocessors */
};

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
