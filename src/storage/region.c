/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Registered memory of an engine: a table by address, in which transfers find what they lie in, and
 * the domains that it is mapped for.
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
    pthread_mutex_init(&regions->changes, NULL);
    pthread_rwlockattr_init(&attr);
    /* Transfers look things up all the time: a registration would wait for ever. */
    pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&regions->lock, &attr);
    pthread_rwlockattr_destroy(&attr);
}

/* The index of the first region that ends behind `ptr`. Under one of the locks. */
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

    if (!atomic_load_explicit(&regions->n, memory_order_relaxed))
        return NULL;
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

bool store_region_hold_too(struct store_region *region, const void *ptr, size_t nbytes,
                           enum gpunvme_mem mem)
{
    if (!is_inside(region, ptr, nbytes, mem))
        return false;
    atomic_fetch_add(&region->users, 1);
    return true;
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
    pthread_rwlock_wrlock(&regions->lock);
    list = realloc(regions->list, room * sizeof(struct store_region *));
    if (list) {
        regions->list = list;
        regions->room = room;
    }
    pthread_rwlock_unlock(&regions->lock);
    return list ? GPUNVME_OK : base_fail(GPUNVME_ERR_NOMEM, "the table of registered memory");
}

static void unmap_one(const struct store_domain *domain, struct store_region *region, unsigned d)
{
    void *map = atomic_exchange(&region->maps[d], NULL);

    if (map)
        domain->ops->unmap(domain->key, map);
}

static void unmap_all(struct store_regions *regions, struct store_region *region)
{
    for (unsigned d = 0; d < STORE_DOMAINS; d++)
        unmap_one(&regions->domains[d], region, d);
}

static gpunvme_err_t map_one(const struct store_domain *domain, struct store_region *region,
                             unsigned d)
{
    void *map = NULL;
    gpunvme_err_t err = domain->ops->map(domain->key, &region->buf, &map);

    if (!err)
        atomic_store_explicit(&region->maps[d], map, memory_order_release);
    return err == GPUNVME_ERR_UNSUPPORTED ? GPUNVME_OK : err;
}

static gpunvme_err_t map_all(struct store_regions *regions, struct store_region *region)
{
    struct base_failure failure;
    gpunvme_err_t err = GPUNVME_OK;

    for (unsigned d = 0; d < STORE_DOMAINS && !err; d++)
        if (regions->domains[d].ops)
            err = map_one(&regions->domains[d], region, d);
    if (!err)
        return GPUNVME_OK;
    base_keep(&failure, err);
    unmap_all(regions, region);
    return base_restore(&failure);
}

/* Serialised. *counted: it lies in one that is registered, which counts for it too. */
static gpunvme_err_t add(struct store_regions *regions, struct store_region *region, bool *counted)
{
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
    if (!err)
        err = map_all(regions, region);
    if (err)
        return err;
    pthread_rwlock_wrlock(&regions->lock);
    memmove(&regions->list[i + 1], &regions->list[i], (regions->n - i) * sizeof(region));
    regions->list[i] = region;
    regions->n++;
    pthread_rwlock_unlock(&regions->lock);
    return GPUNVME_OK;
}

gpunvme_err_t store_regions_add(struct store_regions *regions, void *ptr, size_t nbytes,
                                enum gpunvme_mem mem)
{
    struct store_region *region;
    bool counted = false;
    gpunvme_err_t err;

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
        pthread_mutex_lock(&regions->changes);
        err = add(regions, region, &counted);
        pthread_mutex_unlock(&regions->changes);
        if (err || counted)
            gpunvme_mem_unregister(&region->buf);
    }
    if (err || counted)
        free(region);
    return err;
}

static void drop(struct store_regions *regions, struct store_region *region)
{
    unmap_all(regions, region);
    gpunvme_mem_unregister(&region->buf);
    free(region);
}

/* Takes the region that `ptr` lies in off the list, if it is registered no more and not in use. */
static gpunvme_err_t unlink_region(struct store_regions *regions, void *ptr,
                                   struct store_region **out)
{
    size_t i = find(regions, ptr);
    struct store_region *region = i < regions->n ? regions->list[i] : NULL;

    *out = NULL;
    if (!region || !is_inside(region, ptr, 0, region->buf.mem))
        return base_fail(GPUNVME_ERR_NOT_FOUND, "%p is not in registered memory", ptr);
    if (region->count > 1) {
        region->count--;
        return GPUNVME_OK;
    }
    if (atomic_load(&region->users))
        return base_fail(GPUNVME_ERR_BUSY, "the memory at %p is in use by a transfer", ptr);
    regions->n--;
    memmove(&regions->list[i], &regions->list[i + 1], (regions->n - i) * sizeof(region));
    *out = region;
    return GPUNVME_OK;
}

gpunvme_err_t store_regions_remove(struct store_regions *regions, void *ptr)
{
    struct store_region *region;
    gpunvme_err_t err;

    pthread_mutex_lock(&regions->changes);
    pthread_rwlock_wrlock(&regions->lock);
    err = unlink_region(regions, ptr, &region);
    pthread_rwlock_unlock(&regions->lock);
    if (region)
        drop(regions, region);
    pthread_mutex_unlock(&regions->changes);
    return err;
}

void store_regions_free(struct store_regions *regions)
{
    for (size_t i = 0; i < regions->n; i++)
        drop(regions, regions->list[i]);
    free(regions->list);
    pthread_rwlock_destroy(&regions->lock);
    pthread_mutex_destroy(&regions->changes);
}

/* ---- Domains --------------------------------------------------------------------------------- */

/* Serialised: the domain with this key, or a free one; STORE_DOMAINS: neither. */
static unsigned find_domain(const struct store_regions *regions, const struct store_domain_ops *ops,
                            const void *key)
{
    unsigned free_one = STORE_DOMAINS;

    for (unsigned d = 0; d < STORE_DOMAINS; d++) {
        const struct store_domain *domain = &regions->domains[d];

        if (domain->ops == ops && domain->key == key)
            return d;
        if (!domain->ops && free_one == STORE_DOMAINS)
            free_one = d;
    }
    return free_one;
}

void store_domain_join(struct gpunvme_store *store, const struct store_domain_ops *ops, void *key)
{
    struct store_regions *regions = store_engine_regions(store->engine);
    unsigned d;

    pthread_mutex_lock(&regions->changes);
    d = find_domain(regions, ops, key);
    if (d < STORE_DOMAINS && !regions->domains[d].users++) {
        regions->domains[d].ops = ops;
        regions->domains[d].key = key;
        for (size_t i = 0; i < regions->n; i++)
            (void)map_one(&regions->domains[d], regions->list[i], d);
    }
    store->domain = d;
    pthread_mutex_unlock(&regions->changes);
}

void store_domain_leave(struct gpunvme_store *store)
{
    struct store_regions *regions = store_engine_regions(store->engine);
    struct store_domain *domain = &regions->domains[store->domain];

    if (store->domain >= STORE_DOMAINS)
        return;
    pthread_mutex_lock(&regions->changes);
    if (!--domain->users) {
        for (size_t i = 0; i < regions->n; i++)
            unmap_one(domain, regions->list[i], store->domain);
        domain->ops = NULL;
    }
    pthread_mutex_unlock(&regions->changes);
    store->domain = STORE_DOMAINS;
}
