/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The memory of a queue pair, and the device's view of it: where a controller of a test reads
 * entries and writes completions. Knows nothing of how the driver's side works.
 */
#ifndef TESTS_QUEUE_MEMORY_H
#define TESTS_QUEUE_MEMORY_H

#include <stdlib.h>
#include <string.h>

#include "gpunvme/queue.h"

struct queue_memory {
    struct gpunvme_sqe *sq;
    struct gpunvme_cqe *cq;
    struct gpunvme_slot *slots;
    uint32_t *ready;
};

static inline void *queue_memory_zeroed(size_t nbytes)
{
    size_t whole = (nbytes + 63) & ~(size_t)63;
    void *p = aligned_alloc(64, whole);

    if (!p)
        abort();
    return memset(p, 0, whole);
}

static inline void queue_memory_alloc(struct queue_memory *m, uint32_t entries)
{
    m->sq = queue_memory_zeroed(GPUNVME_QPAIR_SQ_NBYTES(entries));
    m->cq = queue_memory_zeroed(GPUNVME_QPAIR_CQ_NBYTES(entries));
    m->slots = queue_memory_zeroed(GPUNVME_QPAIR_SLOTS_NBYTES(entries));
    m->ready = queue_memory_zeroed(GPUNVME_QPAIR_READY_NBYTES(entries));
    /* What the driver has to initialise itself. */
    memset(m->slots, 0xa5, GPUNVME_QPAIR_SLOTS_NBYTES(entries));
    memset(m->ready, 0xa5, GPUNVME_QPAIR_READY_NBYTES(entries));
}

static inline void queue_memory_free(struct queue_memory *m)
{
    free(m->sq);
    free(m->cq);
    free(m->slots);
    free(m->ready);
}

static inline struct gpunvme_qpair_config queue_memory_config(const struct queue_memory *m,
                                                              uint32_t entries)
{
    return (struct gpunvme_qpair_config){.qid = 1,
                                         .entries = entries,
                                         .sq = m->sq,
                                         .cq = m->cq,
                                         .slots = m->slots,
                                         .ready = m->ready};
}

/*
 * The device writes the completion at `position` (counted from 0 since the queue was created): the
 * word with the phase tag last. The status has 15 bits.
 */
static inline void queue_memory_complete(struct gpunvme_cqe *cq, uint32_t entries,
                                         uint64_t position, uint16_t cid, uint16_t status,
                                         uint64_t result, uint16_t sqhd)
{
    struct gpunvme_cqe *cqe = &cq[position % entries];
    uint32_t phase = position / entries % 2 ? 0 : 1;
    uint32_t dw3 = (uint32_t)cid | phase << 16 | (uint32_t)status << 17;

    cqe->dw0 = (uint32_t)result;
    cqe->dw1 = (uint32_t)(result >> 32);
    cqe->sqhd = sqhd;
    cqe->sqid = 1;
    __atomic_store_n((gpunvme_dword *)cqe + 3, dw3, __ATOMIC_RELEASE);
}

#endif
