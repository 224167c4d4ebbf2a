/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Registered memory of a store: a table by address, in which transfers find what they lie in.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "storage/internal.h"

void store_regions_init(struct store_regions *regions)
{
    pthread_rwlockattr_t attr;

    memset(regions, 0, sizeof(*regions));
    pthread_rwlockattr_init(&attr);
    /* Transfers look things up all the time: a registration would wait for ever. */
    pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&regions->lock, &attr);
    pthread_rwlockattr_destroy(&attr);
}

/* The index of the first region that ends behind `ptr`. Under the lock. */
static size_t find(const struct store_regions *regions, const uint8_t *ptr)
{
    size_t low = 0, high = regions->n;

    while (low < high) {
        size_t middle = (low + high) / 2;
        const struct store_region *r = regions->list[middle];

        if ((uintptr_t)r->ptr + r->nbytes > (uintptr_t)ptr)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static bool is_inside(const struct store_region *r, const void *ptr, size_t nbytes,
                      enum gpunvme_mem mem)
{
    uintptr_t begin = (uintptr_t)r->ptr, at = (uintptr_t)ptr;

    return at >= begin && at - begin <= r->nbytes && nbytes <= r->nbytes - (at - begin) &&
           r->buf.mem == mem;
}

struct store_region *store_regions_hold(struct store_regions *regions, const void *ptr,
                                        size_t nbytes, enum gpunvme_mem mem)
{
    struct store_region *found = NULL;
    size_t i;

    pthread_rwlock_rdlock(&regions->lock);
    i = find(regions, ptr);
    if (i < regions->n) {
        struct store_region *r = regions->list[i];

        if (is_inside(r, ptr, nbytes, mem))
            found = r;
    }
    if (found)
        atomic_fetch_add(&found->users, 1);
    pthread_rwlock_unlock(&regions->lock);
    return found;
}

void store_region_release(struct store_region *region)
{
    if (region)
        atomic_fetch_sub(&region->users, 1);
}

static gpunvme_err_t make_room(struct store_regions *regions)
{
    struct store_region **list;
    size_t room = regions->room ? 2 * regions->room : 16;

    if (regions->n < regions->room)
        return GPUNVME_OK;
    list = realloc(regions->list, room * sizeof(struct store_region *));
    if (!list)
        return base_fail(GPUNVME_ERR_NOMEM, "the table of registered memory");
    regions->list = list;
    regions->room = room;
    return GPUNVME_OK;
}

/* Under the lock. *counted: it lies in one that is registered, which counts for it too. */
static gpunvme_err_t add(struct gpunvme_store *store, struct store_region *region, bool *counted)
{
    struct store_regions *regions = &store->regions;
    size_t i = find(regions, region->ptr);
    gpunvme_err_t err;

    if (i < regions->n &&
        is_inside(regions->list[i], region->ptr, region->nbytes, region->buf.mem)) {
        regions->list[i]->count++;
        *counted = true;
        return GPUNVME_OK;
    }
    if (i < regions->n &&
        (uintptr_t)regions->list[i]->ptr < (uintptr_t)region->ptr + region->nbytes)
        return base_fail(GPUNVME_ERR_INVALID, "%zu bytes at %p: part of them is registered already",
                         region->nbytes, (void *)region->ptr);
    err = make_room(regions);
    if (!err && store->backend->map) {
        err = store->backend->map(store, region);
        region->mapped = !err;
        if (err == GPUNVME_ERR_UNSUPPORTED)
            err = GPUNVME_OK; /* known, and of no use: as the header says */
    }
    if (err)
        return err;
    memmove(&regions->list[i + 1], &regions->list[i], (regions->n - i) * sizeof(region));
    regions->list[i] = region;
    regions->n++;
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_store_register(struct gpunvme_store *store, void *ptr, size_t nbytes,
                                     enum gpunvme_mem mem)
{
    struct store_region *region;
    bool counted = false;
    gpunvme_err_t err;

    if (!store)
        return base_fail(GPUNVME_ERR_INVALID, "store is NULL");
    if (nbytes > UINTPTR_MAX - (uintptr_t)ptr)
        return base_fail(GPUNVME_ERR_INVALID, "%zu bytes at %p: memory ends before", nbytes, ptr);
    region = calloc(1, sizeof(*region));
    if (!region)
        return base_fail(GPUNVME_ERR_NOMEM, "a registration");
    region->ptr = ptr;
    region->nbytes = nbytes;
    region->count = 1;
    err = gpunvme_mem_register(ptr, nbytes, mem, &region->buf);
    if (!err) {
        pthread_rwlock_wrlock(&store->regions.lock);
        err = add(store, region, &counted);
        pthread_rwlock_unlock(&store->regions.lock);
        if (err || counted)
            gpunvme_mem_unregister(&region->buf);
    }
    if (err || counted)
        free(region);
    return err;
}

static void drop(struct gpunvme_store *store, struct store_region *region)
{
    if (region->mapped && store->backend->unmap)
        store->backend->unmap(store, region);
    gpunvme_mem_unregister(&region->buf);
    free(region);
}

gpunvme_err_t gpunvme_store_unregister(struct gpunvme_store *store, void *ptr)
{
    struct store_regions *regions;
    gpunvme_err_t err = GPUNVME_OK;
    size_t i;

    if (!store)
        return base_fail(GPUNVME_ERR_INVALID, "store is NULL");
    regions = &store->regions;
    pthread_rwlock_wrlock(&regions->lock);
    i = find(regions, ptr);
    if (i == regions->n || !is_inside(regions->list[i], ptr, 0, regions->list[i]->buf.mem)) {
        err = base_fail(GPUNVME_ERR_NOT_FOUND, "%p is not in registered memory", ptr);
    } else if (regions->list[i]->count > 1) {
        regions->list[i]->count--;
    } else if (atomic_load(&regions->list[i]->users)) {
        err = base_fail(GPUNVME_ERR_BUSY, "the memory at %p is in use by a transfer", ptr);
    } else {
        drop(store, regions->list[i]);
        regions->n--;
        memmove(&regions->list[i], &regions->list[i + 1],
                (regions->n - i) * sizeof(regions->list[0]));
    }
    pthread_rwlock_unlock(&regions->lock);
    return err;
}

void store_regions_free(struct gpunvme_store *store)
{
    for (size_t i = 0; i < store->regions.n; i++)
        drop(store, store->regions.list[i]);
    free(store->regions.list);
    pthread_rwlock_destroy(&store->regions.lock);
}
