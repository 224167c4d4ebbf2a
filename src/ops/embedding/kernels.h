/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The kernels of embedding, each by a function that launches it.
 */
#ifndef OPS_EMBEDDING_KERNELS_H
#define OPS_EMBEDDING_KERNELS_H

#include "gpunvme/ops/embedding.h"
#include "ops/cuda/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An element a thread; or 16 bytes. */
gpunvme_ops_status_t embedding_copy(const struct gpunvme_embedding *p, int by_words, void *stream);

/* Zeros, if not `accumulate`, and then atomic additions: for gradients in f32. */
gpunvme_ops_status_t embedding_atomic(const struct gpunvme_embedding_grad *p, void *stream);

/* An id that more rows than these have is hot: a block of its own adds them up. */
#define EMBEDDING_HOT 32

struct embedding_sort {
    struct gpunvme_embedding_grad p;
    int32_t *starts; /* vocab + 1: rows of id v are order[starts[v]] … order[starts[v + 1] - 1] */
    int32_t *order;  /* rows by id, and among those in their own order */
    int32_t *hot;    /* ids, in any order */
    uint32_t *nhot;  /* 0 before */
    int by_eight;    /* rows are whole vectors of eight columns, and aligned to 16 bytes */
};

gpunvme_ops_status_t embedding_order(const struct embedding_sort *x, void *stream);

/* The hot ids, by so many blocks; and a warp for each four others and 512 columns. */
gpunvme_ops_status_t embedding_sum(const struct embedding_sort *x, unsigned hot_blocks,
                                   void *stream);

#ifdef __cplusplus
}
#endif
#endif
