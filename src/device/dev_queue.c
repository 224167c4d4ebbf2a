/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How a queue pair of warps begins. What runs for every command is in dev_queue.h.
 */
#include <string.h>

#include "base/fail.h"
#include "gpunvme/dev_queue.h"
#include "nvme/foreign.h"

static gpunvme_err_t check(const struct gpunvme_qpair_config *c)
{
    gpunvme_err_t err = nvme_qpair_check(c);

    if (err)
        return err;
    if (c->sq_doorbell.shadow || c->cq_doorbell.shadow)
        return base_fail(GPUNVME_ERR_INVALID,
                         "shadow doorbells are for the CPU's queues: open the controller with "
                         "no_shadow_doorbells");
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_dev_queue_init(struct gpunvme_dev_queue *q,
                                     const struct gpunvme_qpair_config *c)
{
    gpunvme_err_t err = check(c);
    uint64_t first;

    if (err)
        return err;
    memset(q, 0, sizeof(*q));
    q->home = q;
    q->sq = c->sq;
    q->cq = c->cq;
    q->slots = c->slots;
    q->ready = c->ready;
    q->mask = c->entries - 1;
    q->shift = (uint32_t)__builtin_ctz(c->entries);
    q->qid = c->qid;
    q->sq_doorbell = c->sq_doorbell;
    q->cq_doorbell = c->cq_doorbell;
    q->ring = c->ring;
    q->ring_arg = c->ring_arg;
    first = c->first_position & (GPUNVME_QPAIR_POSITION >> 1) & ~(uint64_t)q->mask;
    q->reserved = first;
    q->published = (uint32_t)first << 1;
    for (uint32_t i = 0; i <= q->mask; i++) {
        q->ready[i] = gpunvme_dev_queue_lap(q, (uint32_t)first) - 1;
        q->slots[i].word = c->first_generation << 16 & ~GPUNVME_DEV_SLOT_TAKEN;
        q->slots[i].result = 0;
    }
    q->slots[0].word |= GPUNVME_DEV_SLOT_TAKEN;
    return GPUNVME_OK;
}
