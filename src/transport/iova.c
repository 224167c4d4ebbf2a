/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Addresses on an IOMMU's bus.
 */
#include "transport/iova.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"

void iova_init(struct iova_space *space)
{
    *space = (struct iova_space){0};
}

void iova_destroy(struct iova_space *space)
{
    free(space->free);
    iova_init(space);
}

static gpunvme_err_t insert(struct iova_space *space, size_t at, struct iova_range range)
{
    if (space->nfree == space->capacity) {
        size_t capacity = space->capacity ? 2 * space->capacity : 8;
        struct iova_range *grown = realloc(space->free, capacity * sizeof(*grown));

        if (!grown)
            return base_fail(GPUNVME_ERR_NOMEM, "%zu ranges of bus addresses", capacity);
        space->free = grown;
        space->capacity = capacity;
    }
    memmove(&space->free[at + 1], &space->free[at], (space->nfree - at) * sizeof(range));
    space->free[at] = range;
    space->nfree++;
    return GPUNVME_OK;
}

static void erase(struct iova_space *space, size_t at, size_t count)
{
    memmove(&space->free[at], &space->free[at + count],
            (space->nfree - at - count) * sizeof(*space->free));
    space->nfree -= count;
}

/* Index of the first range that ends at `address` or behind it. */
static size_t lower_bound(const struct iova_space *space, uint64_t address)
{
    size_t at = 0;

    while (at < space->nfree && space->free[at].last < address)
        at++;
    return at;
}

static bool touches(const struct iova_space *space, size_t at, uint64_t last)
{
    return at < space->nfree && (last == UINT64_MAX || space->free[at].first <= last + 1);
}

gpunvme_err_t iova_add(struct iova_space *space, uint64_t first, uint64_t last)
{
    struct iova_range range = {.first = first ? first : 1, .last = last};
    size_t at, count = 0;

    if (range.first > last)
        return GPUNVME_OK;
    at = lower_bound(space, range.first - 1);
    for (; touches(space, at + count, last); count++) {
        const struct iova_range *old = &space->free[at + count];

        range.first = old->first < range.first ? old->first : range.first;
        range.last = old->last > range.last ? old->last : range.last;
    }
    if (!count)
        return insert(space, at, range);
    space->free[at] = range;
    erase(space, at + 1, count - 1);
    return GPUNVME_OK;
}

gpunvme_err_t iova_remove(struct iova_space *space, uint64_t first, uint64_t last)
{
    size_t at = lower_bound(space, first);

    while (at < space->nfree && space->free[at].first <= last) {
        struct iova_range old = space->free[at];

        if (old.first < first && old.last > last) {
            gpunvme_err_t err = insert(space, at, (struct iova_range){old.first, first - 1});

            if (!err)
                space->free[at + 1].first = last + 1;
            return err;
        }
        if (old.first < first)
            space->free[at++].last = first - 1;
        else if (old.last > last)
            space->free[at++].first = last + 1;
        else
            erase(space, at, 1);
    }
    return GPUNVME_OK;
}

gpunvme_err_t iova_alloc(struct iova_space *space, uint64_t nbytes, uint64_t align, uint64_t *iova)
{
    for (size_t i = 0; nbytes && i < space->nfree; i++) {
        const struct iova_range *range = &space->free[i];
        uint64_t start = (range->first + (align - 1)) & ~(align - 1);

        if (start < range->first || start > range->last || range->last - start < nbytes - 1)
            continue;
        *iova = start;
        return iova_remove(space, start, start + (nbytes - 1));
    }
    return base_fail(GPUNVME_ERR_NOSPC, "no %llu bytes of bus addresses are free",
                     (unsigned long long)nbytes);
}

void iova_free(struct iova_space *space, uint64_t iova, uint64_t nbytes)
{
    /* Out of memory here loses addresses, of which there are many, and nothing else. */
    if (nbytes)
        (void)iova_add(space, iova, iova + (nbytes - 1));
}
