/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Between the host's half of products of few rows and their kernels.
 */
#ifndef OPS_MATMUL_FEW_H
#define OPS_MATMUL_FEW_H

#include "ops/hopper/launch.h"
#include "ops/matmul/product.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    FEW_ROWS = 64,         /* of the small operand, at most */
    FEW_CLUSTER = 2,       /* blocks that share them, at most */
    FEW_STAGES = 16,       /* at most */
    FEW_ROOM = 112 * 1024, /* of shared memory: the next kernel's block has as much */
};

/* Lines of the large operand that a block makes. */
#define FEW_LINES(X) X(16) X(24) X(32) X(48) X(64) X(80) X(112) X(128)

/* operands.a is the small operand, x, and operands.b the large one, w. */
struct few_work {
    struct hopper_operands operands;
    struct cuda_product product;
    int w_is_b;      /* or A */
    int count, rows; /* of x; as many are loaded, a multiple of 8 for each block of a cluster */
    int steps, all_steps, stages; /* steps of a piece of k, and of all */
    int pieces;                   /* of k: 2, for the blocks of a cluster, or 1 */
    uint32_t tiles;               /* of w, a multiple of a cluster's blocks */
    uint32_t barriers;            /* where they are, behind the stages and what is read there */
};

gpunvme_ops_status_t few_launch(const struct few_work *work, int lines, int cluster, void *stream,
                                struct cuda_launch *launch);

/*
 * 16-bit types on sm_90a, both operands along k: tiles of `width` lines, whose k is in `pieces` for
 * the blocks of a cluster (`batch` counts matrices of A and B, too); with width 0 as few_lines()
 * and few_pieces() have it.
 */
cuda_multiply cuda_multiply_few;
int cuda_suits_few(const struct cuda_product *);

/*
 * Is it faster than all others? With few lines a step takes longer than memory needs for its bytes,
 * and skinny has more blocks that share k, unless that is small; with more rows the other ways wait
 * for memory, too, unless k is small, or so large that sums of pieces do not count.
 */
int cuda_wants_few(const struct cuda_product *);

/*
 * The lines that fill `units` multiprocessors best, and the pieces of k. If each multiprocessor had
 * one tile at most, two blocks share k: of tiles twice as wide or, with more than 32 rows, two
 * blocks a multiprocessor.
 */
int few_lines(const struct cuda_product *, int units);
int few_pieces(const struct cuda_product *, int units);

/* By the main loop: 65 to 128 rows, tiles of `width` columns (64, 96, 128 or 160), 2 pieces. */
enum { SPLIT_WIDTH = 160 };
cuda_multiply cuda_multiply_split;
int cuda_suits_split(const struct cuda_product *);

#ifdef __cplusplus
}
#endif
#endif
