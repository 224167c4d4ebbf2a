/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A queue pair in GPU memory, made by hand by the protocol's own commands, for the tests of
 * controllers with engine=gpu on a machine where GPU memory is host memory.
 */
#ifndef TESTS_SIM_ENGINE_QUEUE_H
#define TESTS_SIM_ENGINE_QUEUE_H

#include <sched.h>

#include "gpunvme/memory.h"
#include "gpunvme/prp.h"
#include "gpunvme/queue.h"
#include "patience.h"
#include "sim/driver.h"

#define EQ_ENTRIES 64u

struct engine_queue {
    struct device *device;
    struct gpunvme_qpair pair;
    struct gpunvme_buf sq, cq;
    struct gpunvme_slot slots[GPUNVME_QPAIR_SLOTS(EQ_ENTRIES)];
    uint32_t ready[EQ_ENTRIES];
    struct gpunvme_buf data; /* 256 KiB of GPU memory */
    uint16_t qid;
};

#define EQ_DATA_NBYTES ((size_t)256 << 10)

static inline gpunvme_err_t eq_admin(struct device *d, uint8_t opcode, uint32_t cdw10,
                                     uint32_t cdw11, uint64_t prp1)
{
    struct gpunvme_sqe sqe = {.opc = opcode, .prp1 = prp1, .cdw10 = cdw10, .cdw11 = cdw11};

    return gpunvme_ctrl_admin(d->ctrl, &sqe, NULL, 0, false, NULL);
}

static inline gpunvme_err_t eq_create_cq(struct engine_queue *q)
{
    return eq_admin(q->device, GPUNVME_ADMIN_CREATE_CQ, (EQ_ENTRIES - 1) << 16 | q->qid,
                    GPUNVME_QUEUE_PC, q->cq.bus);
}

static inline gpunvme_err_t eq_create_sq(struct engine_queue *q)
{
    return eq_admin(q->device, GPUNVME_ADMIN_CREATE_SQ, (EQ_ENTRIES - 1) << 16 | q->qid,
                    (uint32_t)q->qid << 16 | GPUNVME_QUEUE_PC, q->sq.bus);
}

static inline gpunvme_err_t eq_delete_sq(struct engine_queue *q)
{
    return eq_admin(q->device, GPUNVME_ADMIN_DELETE_SQ, q->qid, 0, 0);
}

static inline gpunvme_err_t eq_delete_cq(struct engine_queue *q)
{
    return eq_admin(q->device, GPUNVME_ADMIN_DELETE_CQ, q->qid, 0, 0);
}

static inline volatile uint32_t *eq_doorbell(struct device *d, unsigned index)
{
    uint32_t dstrd =
        (uint32_t)GPUNVME_GET(gpunvme_sim_reg_read(d->sim, GPUNVME_REG_CAP, 8), CAP_DSTRD);

    return gpunvme_ctrl_transport(d->ctrl)->gpu_doorbells + ((size_t)index << dstrd);
}

/* The rings and the driver's own words as a new queue has them. */
static inline void eq_init(struct engine_queue *q)
{
    struct gpunvme_qpair_config config = {
        .qid = q->qid,
        .entries = EQ_ENTRIES,
        .sq = q->sq.cpu,
        .cq = q->cq.cpu,
        .slots = q->slots,
        .ready = q->ready,
        .sq_doorbell.mmio = eq_doorbell(q->device, 2u * q->qid),
        .cq_doorbell.mmio = eq_doorbell(q->device, 2u * q->qid + 1),
    };

    memset(q->cq.cpu, 0, GPUNVME_QPAIR_CQ_NBYTES(EQ_ENTRIES));
    assert_ok(gpunvme_qpair_init(&q->pair, &config));
}

static inline void eq_alloc(struct engine_queue *q, struct device *d, uint16_t qid)
{
    memset(q, 0, sizeof(*q));
    q->device = d;
    q->qid = qid;
    assert_ok(
        gpunvme_ctrl_alloc(d->ctrl, GPUNVME_QPAIR_SQ_NBYTES(EQ_ENTRIES), GPUNVME_MEM_GPU, &q->sq));
    assert_ok(
        gpunvme_ctrl_alloc(d->ctrl, GPUNVME_QPAIR_CQ_NBYTES(EQ_ENTRIES), GPUNVME_MEM_GPU, &q->cq));
    assert_ok(gpunvme_ctrl_alloc(d->ctrl, EQ_DATA_NBYTES, GPUNVME_MEM_GPU, &q->data));
    eq_init(q);
}

static inline void eq_free(struct engine_queue *q)
{
    gpunvme_ctrl_free(q->device->ctrl, &q->sq);
    gpunvme_ctrl_free(q->device->ctrl, &q->cq);
    gpunvme_ctrl_free(q->device->ctrl, &q->data);
}

static inline void eq_open(struct engine_queue *q, struct device *d, uint16_t qid)
{
    eq_alloc(q, d, qid);
    assert_ok(eq_create_cq(q));
    assert_ok(eq_create_sq(q));
}

static inline void eq_close(struct engine_queue *q)
{
    assert_ok(eq_delete_sq(q));
    assert_ok(eq_delete_cq(q));
    eq_free(q);
}

/* A read or write of one page at most, to or from q->data. */
static inline struct gpunvme_sqe eq_rw(const struct engine_queue *q, uint8_t opcode, uint64_t slba,
                                       uint32_t nlb, size_t off)
{
    struct gpunvme_sqe sqe = {.opc = opcode,
                              .nsid = q->device->ns->nsid,
                              .cdw10 = (uint32_t)slba,
                              .cdw11 = (uint32_t)(slba >> 32),
                              .cdw12 = nlb - 1};

    gpunvme_prp_build(&sqe, &q->data, off, (uint64_t)nlb << q->device->ns->block_shift, 12, NULL);
    return sqe;
}

static inline uint64_t eq_submit(struct engine_queue *q, const struct gpunvme_sqe *sqe)
{
    uint64_t deadline = gpunvme_clock_ns() + PATIENCE_NS, ticket = 0;
    int taken;

    while (!(taken = gpunvme_qpair_submit(&q->pair, sqe, 1, &ticket)) &&
           gpunvme_clock_ns() < deadline)
        gpunvme_qpair_reap(&q->pair);
    assert_int_equal(taken, 1);
    return ticket;
}

/*
 * The status that the command ends with; -1 when it does not end in time. It yields between looks:
 * there may be fewer cores than threads, and the engine is one of them.
 */
static inline int eq_wait(struct engine_queue *q, uint64_t ticket, uint64_t timeout_ns)
{
    uint64_t deadline = gpunvme_clock_ns() + timeout_ns;
    struct gpunvme_completion c = {0};

    for (;;) {
        int err = gpunvme_qpair_test(&q->pair, ticket, &c);

        if (!err)
            return c.status;
        if (err != GPUNVME_ERR_AGAIN)
            return -1;
        if (gpunvme_qpair_reap(&q->pair))
            continue;
        if (gpunvme_clock_ns() > deadline)
            return -1;
        sched_yield();
    }
}

static inline int eq_run(struct engine_queue *q, const struct gpunvme_sqe *sqe)
{
    return eq_wait(q, eq_submit(q, sqe), PATIENCE_NS);
}

static inline int eq_read(struct engine_queue *q, uint64_t slba, uint32_t nlb, size_t off)
{
    struct gpunvme_sqe sqe = eq_rw(q, GPUNVME_CMD_READ, slba, nlb, off);

    return eq_run(q, &sqe);
}

static inline int eq_write(struct engine_queue *q, uint64_t slba, uint32_t nlb, size_t off)
{
    struct gpunvme_sqe sqe = eq_rw(q, GPUNVME_CMD_WRITE, slba, nlb, off);

    return eq_run(q, &sqe);
}

#endif
