/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Short names for tiers.h, for programs that read and write files by name and let the policy place
 * them. All are inline, so the library does not contain these names.
 *
 *     struct storage_tiers s = {.mem = GPUNVME_MEM_GPU};
 *
 *     gpunvme_tiers_open("/nvme", NULL, &s.tiers);
 *     read_direct(&s, "shard-000.tar", 0, nbytes, gpu_ptr, &done);
 *     auto_tier(&s, "shard-000.tar", &tier);
 *     gpunvme_tiers_close(s.tiers);
 *
 * Threads: as tiers.h says.
 */
#ifndef GPUNVME_STORAGE_TIERS_H
#define GPUNVME_STORAGE_TIERS_H

#include "gpunvme/tiers.h"

struct storage_tiers {
    struct gpunvme_tiers *tiers; /* the caller's */
    enum gpunvme_mem mem;        /* what `ptr` of the calls is; zero: host memory */
};

/*
 * Reads `length` bytes of the file `name` from byte `offset` on to `ptr`. *done is the length of
 * the valid prefix. Errors as gpunvme_tiers_read().
 */
static inline gpunvme_err_t read_direct(const struct storage_tiers *s, const char *name,
                                        uint64_t offset, size_t length, void *ptr, size_t *done)
{
    return gpunvme_tiers_read(s->tiers, name, offset, ptr, s->mem, length, done);
}

/*
 * Writes `length` bytes of `ptr` in place, and creates the file if there is none. They are on the
 * medium after gpunvme_tiers_flush(). Errors as gpunvme_tiers_write().
 */
static inline gpunvme_err_t write_direct(const struct storage_tiers *s, const char *name,
                                         uint64_t offset, size_t length, const void *ptr,
                                         size_t *done)
{
    return gpunvme_tiers_write(s->tiers, name, offset, ptr, s->mem, length, done);
}

/*
 * Moves the file to the tier that the policy chooses, and ends a pin. *tier, which may be NULL,
 * gets the tier that it is in afterwards. Errors as gpunvme_tiers_move().
 */
static inline gpunvme_err_t auto_tier(const struct storage_tiers *s, const char *name, int *tier)
{
    return gpunvme_tiers_move(s->tiers, name, GPUNVME_TIER_AUTO, false, tier);
}

#endif
