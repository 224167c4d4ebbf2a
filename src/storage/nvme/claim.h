/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which blocks are being written. A write of a part of a block reads the block, changes it and
 * writes it back: nobody else may write to the block in between, by whatever store, or would find
 * his bytes gone. So each write claims its blocks first. Whole blocks are claimed without a lock
 * while nobody writes parts; two writes of whole blocks never exclude each other.
 *
 * How the two meet: who claims whole blocks announces them and then looks whether there are partial
 * claims; who claims a part counts himself first and then looks at what is announced. Both by
 * sequentially consistent operations, so one of them at least sees the other: and then it is
 * settled under the lock, where a part that was granted stands and whole blocks step back.
 */
#ifndef STORAGE_NVME_CLAIM_H
#define STORAGE_NVME_CLAIM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One write's blocks first … end - 1; end 0: none. On a cache line of its own. */
struct nvme_claim {
    _Alignas(64) _Atomic uint64_t first;
    _Atomic uint64_t end;
    bool is_partial; /* under the lock */
};

/* The claims of one store: `n` of them. */
struct nvme_claims {
    struct nvme_claimed *of;
    struct nvme_claims *next;
    struct nvme_claim *all;
    size_t n;
};

/* What all stores of one controller have claimed. */
struct nvme_claimed {
    pthread_mutex_t lock;
    _Atomic uint32_t nparts; /* partial claims that are held, or asked for */
    struct nvme_claims *first;
};

void nvme_claimed_init(struct nvme_claimed *claimed);
void nvme_claimed_destroy(struct nvme_claimed *claimed);

/* False: no memory. */
bool nvme_claims_init(struct nvme_claims *claims, struct nvme_claimed *of, size_t n);
void nvme_claims_free(struct nvme_claims *claims); /* nothing if they were not initialised */

/* Takes blocks for the claim with this index; false: not now, ask again. Never waits. */
bool nvme_claim_take(struct nvme_claims *claims, size_t index, uint64_t first, uint64_t nblocks,
                     bool partial);

/* Gives them back; nothing if it has none. */
void nvme_claim_drop(struct nvme_claims *claims, size_t index);

#endif
