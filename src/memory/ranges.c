/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Ranges of memory that a GPU has. See ranges.h.
 */
#include "memory/ranges.h"

#include "base/fail.h"
#include "memory/cuda.h"

void mem_ranges_init(struct mem_ranges *ranges)
{
    *ranges = (struct mem_ranges){.query = mem_cuda_present() ? mem_cuda_range : NULL};
}

static const struct mem_range *find_known(const struct mem_ranges *ranges, uintptr_t at)
{
    for (unsigned i = 0; i < ranges->n; i++)
        if (at - ranges->known[i].begin < ranges->known[i].nbytes)
            return &ranges->known[i];
    return NULL;
}

static const struct mem_range *ask(struct mem_ranges *ranges, uintptr_t at)
{
    struct mem_range range;
    unsigned i;

    if (!ranges->query((const void *)at, &range) || at - range.begin >= range.nbytes)
        return NULL;
    i = ranges->n < MEM_RANGES ? ranges->n++ : ranges->oldest++ % MEM_RANGES;
    ranges->known[i] = range;
    return &ranges->known[i];
}

static gpunvme_err_t refuse(const void *ptr, size_t nbytes, uintptr_t at)
{
    if (at == (uintptr_t)ptr)
        return base_fail(GPUNVME_ERR_INVALID, "%p is no address of a GPU", ptr);
    return base_fail(GPUNVME_ERR_INVALID, "GPU memory at %p ends after %zu bytes, before %zu", ptr,
                     (size_t)(at - (uintptr_t)ptr), nbytes);
}

/* One allocation behind the other is fine; so are two mappings of one reservation. */
gpunvme_err_t mem_ranges_check(struct mem_ranges *ranges, const void *ptr, size_t nbytes, int *gpu)
{
    uintptr_t at = (uintptr_t)ptr;

    *gpu = 0;
    while (nbytes && ranges->query) {
        const struct mem_range *range = find_known(ranges, at);
        size_t here, left = nbytes - (size_t)(at - (uintptr_t)ptr);

        if (!range)
            range = ask(ranges, at);
        if (!range)
            return refuse(ptr, nbytes, at);
        if (at == (uintptr_t)ptr)
            *gpu = range->gpu;
        here = range->nbytes - (size_t)(at - range->begin);
        if (here >= left)
            break;
        at += here;
    }
    return GPUNVME_OK;
}

bool mem_ranges_is_one(struct mem_ranges *ranges, const void *ptr, size_t nbytes)
{
    uintptr_t at = (uintptr_t)ptr;
    const struct mem_range *range;

    if (!ranges->query)
        return true;
    range = find_known(ranges, at);
    if (!range)
        range = ask(ranges, at);
    return range && nbytes <= range->nbytes - (size_t)(at - range->begin);
}

gpunvme_err_t mem_ranges_check_pieces(struct mem_ranges *ranges,
                                      const struct gpunvme_mem_piece *pieces, size_t n)
{
    for (size_t i = 0; ranges->query && i < n; i++) {
        const struct gpunvme_mem_piece *piece = &pieces[i];
        int gpu;
        gpunvme_err_t err = mem_ranges_check(ranges, piece->dst, piece->nbytes, &gpu);

        if (!err)
            err = mem_ranges_check(ranges, piece->src, piece->nbytes, &gpu);
        if (err)
            return base_fail(err, "piece %zu: %s", i, gpunvme_err_detail());
    }
    return GPUNVME_OK;
}
