/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Pieces of memory of one size that the controller can reach: PRP lists, bounce buffers. A pool
 * grows when it is empty and gives its memory back at the end.
 */
#ifndef NVME_POOL_H
#define NVME_POOL_H

#include <pthread.h>

#include "gpunvme/controller.h"
#include "gpunvme/prp.h"

struct nvme_pool_item {
    struct gpunvme_list list;    /* as lists want it */
    struct gpunvme_buf buf;      /* as transfers want it */
    struct nvme_pool_item *next; /* private */
};

struct nvme_pool {
    struct gpunvme_ctrl *ctrl;
    size_t item_nbytes;
    unsigned items_per_chunk;
    pthread_mutex_t lock;
    struct nvme_pool_item *free;
    struct nvme_pool_chunk *chunks;
    size_t nbytes; /* allocated so far */
};

void nvme_pool_init(struct nvme_pool *pool, struct gpunvme_ctrl *ctrl, size_t item_nbytes,
                    unsigned items_per_chunk);
void nvme_pool_destroy(struct nvme_pool *pool); /* every item was put back, or is abandoned */

/* Thread-safe, all three. get: an item, NULL when there is no memory. */
struct nvme_pool_item *nvme_pool_get(struct nvme_pool *pool);
size_t nvme_pool_nbytes(struct nvme_pool *pool); /* allocated so far */
void nvme_pool_put(struct nvme_pool *pool, struct nvme_pool_item *item);

#endif
