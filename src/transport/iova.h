/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Addresses on an IOMMU's bus: which ranges it can translate, and which of them are in use.
 * Not thread-safe: its owner has a lock.
 */
#ifndef TRANSPORT_IOVA_H
#define TRANSPORT_IOVA_H

#include <stddef.h>
#include <stdint.h>

#include "gpunvme/error.h"

struct iova_range {
    uint64_t first, last; /* inclusive */
};

struct iova_space {
    struct iova_range *free; /* in increasing order, no two of them touching */
    size_t nfree, capacity;
};

/* An empty space; destroy may be called on zeroes. */
void iova_init(struct iova_space *space);
void iova_destroy(struct iova_space *space);

/*
 * Adds the addresses first … last, which may overlap with what is free already; takes away, which
 * may hit what isn't there. Address 0 is never given out: it stands for "no address".
 */
gpunvme_err_t iova_add(struct iova_space *space, uint64_t first, uint64_t last);
gpunvme_err_t iova_remove(struct iova_space *space, uint64_t first, uint64_t last);

/* The lowest free `nbytes` at a multiple of `align` (a power of two). GPUNVME_ERR_NOSPC: none. */
gpunvme_err_t iova_alloc(struct iova_space *space, uint64_t nbytes, uint64_t align, uint64_t *iova);
void iova_free(struct iova_space *space, uint64_t iova, uint64_t nbytes);

#endif
