/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How kernels that pass over rows share them among threads: the host's side.
 */
#ifndef OPS_CUDA_ROWS_H
#define OPS_CUDA_ROWS_H

#include "ops/cuda/launch.h"

#define ROWS_THREADS 256 /* of a block, if its rows need no more */

/* Can rows be read and written by 16 bytes? */
static inline int rows_by_eight(const void *p, int64_t ld, int dtype)
{
    return (uintptr_t)p % 16 == 0 && ld % (dtype == GPUNVME_OPS_F32 ? 4 : 8) == 0;
}

/* The leading dimension of a single row may be anything. */
static inline int64_t rows_ld(int64_t rows, int64_t ld)
{
    return rows > 1 ? ld : 0;
}

/* The threads of a row, each of which has at most two times eight elements. */
static inline int rows_threads_of(int64_t cols)
{
    int64_t needed = (cols + 15) / 16;
    int threads = 4;

    while (threads < needed && threads < 32)
        threads *= 2;
    return needed > 32 ? (int)((needed + 31) / 32 * 32) : threads;
}

/* The rows that a block works on at once. */
static inline int rows_of_block(int threads)
{
    return threads < ROWS_THREADS ? ROWS_THREADS / threads : 1;
}

static inline unsigned rows_blocks(int64_t blocks)
{
    return (unsigned)(blocks < 1 << 30 ? blocks : 1 << 30);
}

#endif
