/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Pools of memory that the controller can reach.
 */
#include <stdlib.h>
#include <string.h>

#include "nvme/ctrl.h"

struct nvme_pool_chunk {
    struct nvme_pool_chunk *next;
    struct gpunvme_buf mem;
    struct nvme_pool_item items[];
};

void nvme_pool_init(struct nvme_pool *pool, struct gpunvme_ctrl *ctrl, size_t item_nbytes,
                    unsigned items_per_chunk)
{
    memset(pool, 0, sizeof(*pool));
    pool->ctrl = ctrl;
    pool->item_nbytes = item_nbytes;
    pool->items_per_chunk = items_per_chunk;
    pthread_mutex_init(&pool->lock, NULL);
}

void nvme_pool_destroy(struct nvme_pool *pool)
{
    struct nvme_pool_chunk *chunk;

    if (!pool->ctrl)
        return;
    while ((chunk = pool->chunks)) {
        pool->chunks = chunk->next;
        nvme_free(pool->ctrl, &chunk->mem);
        free(chunk);
    }
    pthread_mutex_destroy(&pool->lock);
}

static void add_item(struct nvme_pool *pool, struct nvme_pool_chunk *chunk, unsigned i)
{
    struct nvme_pool_item *item = &chunk->items[i];
    size_t off = i * pool->item_nbytes;

    item->buf = (struct gpunvme_buf){.cpu = (char *)chunk->mem.cpu + off,
                                     .bus = chunk->mem.bus + off,
                                     .nbytes = pool->item_nbytes,
                                     .mem = GPUNVME_MEM_HOST};
    item->list = (struct gpunvme_list){
        .cpu = item->buf.cpu, .bus = item->buf.bus, .nbytes = item->buf.nbytes};
    item->next = pool->free;
    pool->free = item;
}

static void grow(struct nvme_pool *pool)
{
    struct nvme_pool_chunk *chunk =
        calloc(1, sizeof(*chunk) + pool->items_per_chunk * sizeof(chunk->items[0]));
    size_t nbytes = pool->items_per_chunk * pool->item_nbytes;

    if (!chunk)
        return;
    if (nvme_alloc(pool->ctrl, nbytes, &chunk->mem)) {
        free(chunk);
        return;
    }
    chunk->next = pool->chunks;
    pool->chunks = chunk;
    pool->nbytes += nbytes;
    for (unsigned i = 0; i < pool->items_per_chunk; i++)
        add_item(pool, chunk, i);
}

struct nvme_pool_item *nvme_pool_get(struct nvme_pool *pool)
{
    struct nvme_pool_item *item;

    pthread_mutex_lock(&pool->lock);
    if (!pool->free)
        grow(pool);
    item = pool->free;
    if (item)
        pool->free = item->next;
    pthread_mutex_unlock(&pool->lock);
    return item;
}

void nvme_pool_put(struct nvme_pool *pool, struct nvme_pool_item *item)
{
    if (!item)
        return;
    pthread_mutex_lock(&pool->lock);
    item->next = pool->free;
    pool->free = item;
    pthread_mutex_unlock(&pool->lock);
}

size_t nvme_pool_nbytes(struct nvme_pool *pool)
{
    size_t nbytes;

    pthread_mutex_lock(&pool->lock);
    nbytes = pool->nbytes;
    pthread_mutex_unlock(&pool->lock);
    return nbytes;
}
