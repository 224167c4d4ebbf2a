/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rung "hopper" by two teams of a block that take turns: while one multiplies its tile, the
 * other finishes the one before. For small k, where that takes as long.
 */
#ifndef OPS_MATMUL_HOPPER_TURNS_H
#define OPS_MATMUL_HOPPER_TURNS_H

#include "ops/matmul/hopper.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TURNS_TEAMS = 2,
    TURNS_TILE_N = 128,
    TURNS_STAGES = 5,
    TURNS_STAGE_NBYTES = HOPPER_A_NBYTES + TURNS_TILE_N * HOPPER_WIDTH,
    TURNS_THREADS = 128 * (1 + 2 * TURNS_TEAMS), /* of which one warp group loads */
    TURNS_NBYTES = TURNS_STAGES * TURNS_STAGE_NBYTES + TURNS_TEAMS * 2 * HOPPER_OUT_NBYTES +
                   2 * HOPPER_MOST_STAGES * 8 + HOPPER_ALIGN, /* of shared memory */
};

/* kernel(hopper_work), for a type of 16 bits and operands that are contiguous along k. */
const void *hopper_turns_kernel(int dtype);

#ifdef __cplusplus
}
#endif
#endif
