/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What one 4 KiB read costs the driver: built (PRP1 only), submitted in batches of 32 at queue
 * depth 128, its completion reaped and its ticket ended. The controller is a loop in this thread
 * that is kept out of the count.
 *
 * Counts instructions under callgrind (see bench/queue_cost.sh), which are the same on every run.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <valgrind/callgrind.h>

#include "gpunvme/buf.h"
#include "gpunvme/prp.h"
#include "gpunvme/queue.h"

#define ENTRIES 256u
#define DEPTH   128u
#define BATCH   32u

struct bench {
    struct gpunvme_qpair q;
    struct gpunvme_sqe sq[ENTRIES];
    struct gpunvme_cqe cq[ENTRIES];
    struct gpunvme_slot slots[GPUNVME_QPAIR_SLOTS(ENTRIES)];
    uint32_t ready[ENTRIES];
    uint32_t doorbells[2];
    uint64_t done; /* by the controller */
    uint64_t tickets[DEPTH];
    struct gpunvme_buf data;
};

/* Completes every entry up to the doorbell. */
static void controller(struct bench *b)
{
    while ((b->done & (ENTRIES - 1)) != b->doorbells[0]) {
        struct gpunvme_cqe *cqe = &b->cq[b->done & (ENTRIES - 1)];
        unsigned phase = !(b->done / ENTRIES & 1);

        cqe->cid = b->sq[b->done & (ENTRIES - 1)].cid;
        cqe->sqhd = (uint16_t)((b->done + 1) & (ENTRIES - 1));
        cqe->status = (uint16_t)phase;
        b->done++;
    }
}

static __attribute__((noinline)) void submit_batch(struct bench *b, uint64_t *tickets, uint64_t lba)
{
    struct gpunvme_sqe cmds[BATCH];

    for (uint32_t i = 0; i < BATCH; i++, lba += 8) {
        cmds[i] = (struct gpunvme_sqe){.opc = GPUNVME_CMD_READ,
                                       .nsid = 1,
                                       .cdw10 = (uint32_t)lba,
                                       .cdw11 = (uint32_t)(lba >> 32),
                                       .cdw12 = 7};
        gpunvme_prp_build(&cmds[i], &b->data, (size_t)i * 4096, 4096, 12, NULL);
    }
    if (gpunvme_qpair_submit(&b->q, cmds, BATCH, tickets) != (int)BATCH)
        abort();
}

static __attribute__((noinline)) void complete_batch(struct bench *b, const uint64_t *tickets)
{
    struct gpunvme_completion c;

    gpunvme_qpair_reap(&b->q);
    for (uint32_t i = 0; i < BATCH; i++) {
        if (gpunvme_qpair_test(&b->q, tickets[i], &c) != GPUNVME_OK || c.status)
            abort();
    }
}

int main(int argc, char **argv)
{
    static struct bench b;
    unsigned batches = argc > 1 ? (unsigned)atoi(argv[1]) : 1000;
    struct gpunvme_qpair_config config = {.qid = 1,
                                          .entries = ENTRIES,
                                          .sq = b.sq,
                                          .cq = b.cq,
                                          .slots = b.slots,
                                          .ready = b.ready,
                                          .sq_doorbell = {.mmio = &b.doorbells[0]},
                                          .cq_doorbell = {.mmio = &b.doorbells[1]}};

    b.data = (struct gpunvme_buf){.bus = 1 << 30, .nbytes = 1 << 21};
    if (gpunvme_qpair_init(&b.q, &config))
        return 1;
    for (unsigned i = 0; i < DEPTH; i += BATCH)
        submit_batch(&b, &b.tickets[i], i * 8);
    for (unsigned i = 0; i < batches; i++) {
        uint64_t *tickets = &b.tickets[i * BATCH % DEPTH];

        controller(&b);
        CALLGRIND_TOGGLE_COLLECT;
        complete_batch(&b, tickets);
        submit_batch(&b, tickets, i * BATCH * 8);
        CALLGRIND_TOGGLE_COLLECT;
    }
    printf("%u\n", batches * BATCH);
    return 0;
}
