/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rung flash2: its tiles, and the functions that launch its kernel for each width of them.
 */
#ifndef OPS_ATTENTION_CUDA_FLASH2_H
#define OPS_ATTENTION_CUDA_FLASH2_H

#include "ops/attention/cuda/problem.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FLASH2_ROWS 128 /* queries of a block */
#define FLASH2_KEYS 64  /* of a tile */
#define FLASH2_DIM  256 /* channels, at most */

/* Tiles of K and V that there are at a time; bytes of all, with that of Q. */
#define FLASH2_RING(width)   ((width) == 256 ? 3 : 4)
#define FLASH2_NBYTES(width) ((FLASH2_ROWS + FLASH2_RING(width) * FLASH2_KEYS) * (width)*2)

/* Heads that follow each other are made together, `section` of them. */
typedef gpunvme_ops_status_t cuda_attention_flash2_launch(const struct cuda_attention *x,
                                                          int section, void *stream);

cuda_attention_flash2_launch cuda_attention_flash2_64, cuda_attention_flash2_128,
    cuda_attention_flash2_256;

#ifdef __cplusplus
}
#endif
#endif
