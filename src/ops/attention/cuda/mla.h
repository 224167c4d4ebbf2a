/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Between the host's half of the rung "mla" and its kernel.
 */
#ifndef OPS_ATTENTION_CUDA_MLA_H
#define OPS_ATTENTION_CUDA_MLA_H

#include "ops/attention/cuda/problem.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MLA_DIM = 576,   /* channels of a key, */
    MLA_DIM_V = 512, /* of which so many are the value */
    MLA_ROWS = 64,   /* of Q, for each block of a cluster */
    MLA_KEYS = 64,   /* of a tile: DECODE_TILE */
    MLA_PIECE = 16,  /* keys that are in one page */
};

/*
 * Heads that are one product's rows: the most that divide those that share a head of K, so that
 * with all queries they are at most two blocks' rows. 0: there are too many queries.
 */
int mla_group(const struct cuda_attention *x);

/* Partial results of all clusters, and where their blocks meet. */
size_t mla_nbytes(const struct cuda_attention *x);

gpunvme_ops_status_t mla_run(const struct cuda_attention *x, int64_t pages, void *workspace,
                             void *stream);

#ifdef __cplusplus
}
#endif
#endif
