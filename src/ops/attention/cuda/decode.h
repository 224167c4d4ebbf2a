/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Between the host's half of decoding from pages and its kernels.
 */
#ifndef OPS_ATTENTION_CUDA_DECODE_H
#define OPS_ATTENTION_CUDA_DECODE_H

#include "ops/attention/cuda/problem.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    DECODE_TILE = 64, /* keys of a block's tile */
    DECODE_ROWS = 64, /* queries of a sequence that share a head of K, at most */
    DECODE_DIM = 256, /* channels, at most */
};

/* Queries times heads of Q that share a head of K. */
static inline int64_t decode_rows(const struct cuda_attention *x)
{
    return (int64_t)x->q_len * x->group;
}

/* Floats of a part: sums of all rows and channels; each row's largest score and weight. */
static inline int64_t decode_part(int64_t rows, int64_t dim_v)
{
    return rows * dim_v + (2 * rows + 3) / 4 * 4;
}

/* Bytes of shared memory that a block needs. */
size_t decode_shared_nbytes(const struct cuda_attention *x);

/* Partial results of all blocks. */
size_t decode_nbytes(const struct cuda_attention *x);

gpunvme_ops_status_t decode_run(const struct cuda_attention *x, void *workspace, void *stream);

#ifdef __cplusplus
}
#endif
#endif
