/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Between the host's half of the rung "skinny" and its kernels.
 */
#ifndef OPS_MATMUL_SKINNY_H
#define OPS_MATMUL_SKINNY_H

#include "ops/hopper/launch.h"
#include "ops/matmul/product.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SKINNY_COLS = 16,   /* rows or columns of C, at most */
    SKINNY_CLUSTER = 8, /* blocks that share k, at most */
    SKINNY_WARPS = 8,
    SKINNY_GROUPS = 4,       /* of a warp's lanes that have different k, at most */
    SKINNY_WGMMA_LINES = 64, /* of w that a block of hopper_skinny.cu makes */
};

/* An operand as lines of k; steps and stride in elements. */
struct skinny_side {
    const void *data;
    int64_t lines, step_line, step_k, stride;
    int vectors; /* 16 bytes at a time may be read along the contiguous direction */
};

struct skinny_work {
    struct cuda_product product;
    struct skinny_side w, x; /* the large operand and the one of at most SKINNY_COLS lines */
    int w_is_b;              /* or A */
};

/*
 * Lines of w that a block makes, and the k that one of its warps takes at a time, 4 KiB of both: if
 * lines are contiguous (mn), 128 bytes of each. Of 8 bits it is one k of scales by block, and lines
 * that are contiguous are gathered.
 */
#define skinny_lines(mn, size)                                                                     \
    ((size) == 1 ? 32 : (mn) ? (size) == 2 ? 64 : 128 : (size) == 2 ? 32 : 16)
#define skinny_depth(mn, size) ((size) == 1 ? OPS_SCALE_K : (mn) ? (size) == 2 ? 32 : 8 : 64)

/* `groups`: of f32 with contiguous lines and at most four columns a tile has so many times fewer
 * lines, and a warp takes as much more of k; otherwise 1. */
gpunvme_ops_status_t skinny_launch(const struct skinny_work *work, int groups, int cluster,
                                   void *stream, struct cuda_launch *launch);

/*
 * On sm_90a where the copy engine can read both, w by operands.a and x by operands.b: fp8 along k;
 * 16 bits where w lies along its lines.
 */
struct skinny_copied {
    struct hopper_operands operands;
    struct skinny_work skinny;
};

gpunvme_ops_status_t skinny_launch_copied(const struct skinny_copied *work, int cluster,
                                          void *stream, struct cuda_launch *launch);

#ifdef __cplusplus
}
#endif
#endif
