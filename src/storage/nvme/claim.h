/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which blocks of a controller are being written. A write of a part of a block reads the block,
 * changes it and writes it back: nobody else may write to the block in between, by whatever store,
 * or would find his bytes gone. So each write claims its blocks first. Two writes of whole blocks
 * never exclude each other.
 */
#ifndef STORAGE_NVME_CLAIM_H
#define STORAGE_NVME_CLAIM_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* One write's blocks first … end - 1. */
struct nvme_claim {
    bool is_held; /* of the thread that takes and drops it */
    uint64_t first, end;
    struct nvme_claim *next, **at; /* of its list, under the lock */
};

/* What all stores of one controller have claimed. */
struct nvme_claimed {
    pthread_mutex_t lock;
    struct nvme_claim *wholes, *parts; /* partial writes, which are few, in a list of their own */
};

/* Takes blocks for a claim that is not held; false: not now, ask again. Never waits. */
bool nvme_claim_take(struct nvme_claimed *claimed, struct nvme_claim *claim, uint64_t first,
                     uint64_t nblocks, bool partial);

/* Gives them back; nothing if it is not held. */
void nvme_claim_drop(struct nvme_claimed *claimed, struct nvme_claim *claim);

#endif
