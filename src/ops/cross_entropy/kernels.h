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

/* Blocks that share a row in entropy_cluster(), and what each keeps in shared memory. */
#define ENTROPY_HEAD_NBYTES 512
#define ENTROPY_MOST_NBYTES (200 * 1024)

static inline int64_t entropy_row_nbytes(const struct gpunvme_cross_entropy *p)
{
    return p->vocab * (int64_t)gpunvme_ops_dtype_nbytes(p->dtype);
}

static inline int entropy_cluster_size(int64_t nbytes)
{
    int size = 1;

    while (size < 8 && nbytes > size * 32 * 1024)
        size *= 2;
    return size;
}

static inline int64_t entropy_share_nbytes(int64_t nbytes, int cluster)
{
    return ((nbytes + 15) / 16 + cluster - 1) / cluster * 16;
}

#ifdef __cplusplus
}
#endif
#endif
