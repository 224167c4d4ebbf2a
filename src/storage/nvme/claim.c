/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which blocks are being written. See claim.h.
 */
#include "storage/nvme/claim.h"

#include <stddef.h>

static bool has_one(const struct nvme_claim *list, uint64_t first, uint64_t end)
{
    while (list && (first >= list->end || list->first >= end))
        list = list->next;
    return list;
}

bool nvme_claim_take(struct nvme_claimed *claimed, struct nvme_claim *claim, uint64_t first,
                     uint64_t nblocks, bool partial)
{
    struct nvme_claim **list = partial ? &claimed->parts : &claimed->wholes;
    uint64_t end = first + nblocks;
    bool taken;

    pthread_mutex_lock(&claimed->lock);
    taken =
        has_one(claimed->parts, first, end) || (partial && has_one(claimed->wholes, first, end));
    if (!taken) {
        *claim = (struct nvme_claim){true, first, end, *list, list};
        if (*list)
            (*list)->at = &claim->next;
        *list = claim;
    }
    pthread_mutex_unlock(&claimed->lock);
    return !taken;
}

void nvme_claim_drop(struct nvme_claimed *claimed, struct nvme_claim *claim)
{
    if (!claim->is_held)
        return;
    claim->is_held = false;
    pthread_mutex_lock(&claimed->lock);
    *claim->at = claim->next;
    if (claim->next)
        claim->next->at = claim->at;
    pthread_mutex_unlock(&claimed->lock);
}
