/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The kernels of cross entropy, each by a function that launches it.
 */
#ifndef OPS_CROSS_ENTROPY_KERNELS_H
#define OPS_CROSS_ENTROPY_KERNELS_H

#include "gpunvme/ops/cross_entropy.h"
#include "ops/cuda/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

struct entropy_work {
    struct gpunvme_cross_entropy p;
    float *scale;  /* of the mean: 1 / rows that are not ignored; NULL: 1 */
    float *losses; /* of the rows; NULL: not wanted */
};

/* *scale, before; the loss of all rows, after: one block each. */
gpunvme_ops_status_t entropy_count(const struct entropy_work *x, void *stream);
gpunvme_ops_status_t entropy_total(const struct entropy_work *x, void *stream);

/* A thread for each row; a block; a block by 16 bytes; blocks of a cluster that keep the row. */
gpunvme_ops_status_t entropy_naive(const struct entropy_work *x, void *stream);
gpunvme_ops_status_t entropy_block(const struct entropy_work *x, void *stream);
gpunvme_ops_status_t entropy_online(const struct entropy_work *x, void *stream);
gpunvme_ops_status_t entropy_cluster(const struct entropy_work *x, void *stream);

/* In entropy_cluster() a thread keeps so many words of 16 bytes; so many blocks share a row. */
#define ENTROPY_WORDS       8
#define ENTROPY_RANKS       8
#define ENTROPY_MOST_NBYTES (ENTROPY_RANKS * 1024 * ENTROPY_WORDS * 16)

static inline int64_t entropy_row_nbytes(const struct gpunvme_cross_entropy *p)
{
    return p->vocab * (int64_t)gpunvme_ops_dtype_nbytes(p->dtype);
}

/* Of a block: as few as keep the row, if a block does. The fewer blocks share it, the better. */
static inline int entropy_threads(int64_t nbytes)
{
    int threads = 256;

    while (threads < 1024 && nbytes > (int64_t)threads * ENTROPY_WORDS * 16)
        threads *= 2;
    return threads;
}

static inline int entropy_cluster_size(int64_t nbytes, int threads)
{
    int size = 1;

    while (size < ENTROPY_RANKS && nbytes > (int64_t)size * threads * ENTROPY_WORDS * 16)
        size *= 2;
    return size;
}

#ifdef __cplusplus
}
#endif
#endif
