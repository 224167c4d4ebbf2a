/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which blocks are being written. See claim.h.
 */
#include <stdlib.h>
#include <string.h>

#include "storage/nvme/claim.h"

void nvme_claimed_init(struct nvme_claimed *claimed)
{
    memset(claimed, 0, sizeof(*claimed));
    pthread_mutex_init(&claimed->lock, NULL);
}

void nvme_claimed_destroy(struct nvme_claimed *claimed)
{
    pthread_mutex_destroy(&claimed->lock);
}

bool nvme_claims_init(struct nvme_claims *claims, struct nvme_claimed *of, size_t n)
{
    memset(claims, 0, sizeof(*claims));
    claims->all = aligned_alloc(64, n * sizeof(claims->all[0]));
    if (!claims->all)
        return false;
    memset(claims->all, 0, n * sizeof(claims->all[0]));
    claims->n = n;
    claims->of = of;
    pthread_mutex_lock(&of->lock);
    claims->next = of->first;
    of->first = claims;
    pthread_mutex_unlock(&of->lock);
    return true;
}

void nvme_claims_free(struct nvme_claims *claims)
{
    struct nvme_claims **link;

    if (!claims->of)
        return;
    pthread_mutex_lock(&claims->of->lock);
    for (link = &claims->of->first; *link != claims;)
        link = &(*link)->next;
    *link = claims->next;
    pthread_mutex_unlock(&claims->of->lock);
    free(claims->all);
}

/* Whether another claim of a store, a partial one if that is asked for, has one of the blocks. */
static bool has_one(const struct nvme_claims *claims, const struct nvme_claim *own, uint64_t first,
                    uint64_t end, bool by_parts)
{
    for (size_t i = 0; i < claims->n; i++) {
        const struct nvme_claim *c = &claims->all[i];
        uint64_t its_end;

        if (c == own || (by_parts && !c->is_partial))
            continue;
        its_end = atomic_load(&c->end);
        if (first < its_end && atomic_load(&c->first) < end)
            return true;
    }
    return false;
}

/* Under the lock: the same of all stores. */
static bool is_taken(const struct nvme_claimed *claimed, const struct nvme_claim *own,
                     uint64_t first, uint64_t end, bool by_parts)
{
    for (const struct nvme_claims *c = claimed->first; c; c = c->next)
        if (has_one(c, own, first, end, by_parts))
            return true;
    return false;
}

static bool take_part(struct nvme_claimed *claimed, struct nvme_claim *own, uint64_t first,
                      uint64_t end)
{
    bool taken;

    pthread_mutex_lock(&claimed->lock);
    atomic_fetch_add(&claimed->nparts, 1);
    taken = is_taken(claimed, own, first, end, false);
    if (taken) {
        atomic_fetch_sub(&claimed->nparts, 1);
    } else {
        own->is_partial = true;
        atomic_store(&own->first, first);
        atomic_store(&own->end, end);
    }
    pthread_mutex_unlock(&claimed->lock);
    return !taken;
}

static bool take_whole(struct nvme_claimed *claimed, struct nvme_claim *own, uint64_t first,
                       uint64_t end)
{
    bool taken;

    atomic_store_explicit(&own->first, first, memory_order_relaxed);
    atomic_store(&own->end, end);
    if (!atomic_load(&claimed->nparts))
        return true;
    pthread_mutex_lock(&claimed->lock);
    taken = is_taken(claimed, own, first, end, true);
    pthread_mutex_unlock(&claimed->lock);
    if (taken)
        atomic_store(&own->end, 0);
    return !taken;
}

bool nvme_claim_take(struct nvme_claims *claims, size_t index, uint64_t first, uint64_t nblocks,
                     bool partial)
{
    return (partial ? take_part : take_whole)(claims->of, &claims->all[index], first,
                                              first + nblocks);
}

void nvme_claim_drop(struct nvme_claims *claims, size_t index)
{
    struct nvme_claim *own = &claims->all[index];

    if (!atomic_load_explicit(&own->end, memory_order_relaxed))
        return;
    if (!own->is_partial) {
        atomic_store_explicit(&own->end, 0, memory_order_release);
        return;
    }
    pthread_mutex_lock(&claims->of->lock);
    own->is_partial = false;
    atomic_store(&own->end, 0);
    atomic_fetch_sub(&claims->of->nparts, 1);
    pthread_mutex_unlock(&claims->of->lock);
}
