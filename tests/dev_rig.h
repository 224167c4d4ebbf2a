/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Queues for device.cuh made by hand on an open controller, without device.h's host side: so that
 * tests choose positions, sizes and who reaps. Rings and lists are in host memory, pinned where
 * there is a GPU; what only the GPU's threads share is in GPU memory. In C and CUDA.
 */
#ifndef TESTS_DEV_RIG_H
#define TESTS_DEV_RIG_H

#include <stdlib.h>
#include <string.h>

#include "gpunvme/device.cuh"
#include "gpunvme/memory.h"

#define DEV_RIG_MAX_QUEUES 8

struct dev_rig_opts {
    uint32_t nqueues, entries, list_nbytes, bounce_nbytes, reaper;
    uint64_t first_position, first_generation, timeout_ns;
};

struct dev_rig {
    struct gpunvme_ctrl *ctrl;
    struct dev_rig_opts opts;
    enum gpunvme_mem mem; /* of rings, lists and data */
    uint32_t nqueues;     /* that the controller has */
    struct gpunvme_buf sq[DEV_RIG_MAX_QUEUES], cq[DEV_RIG_MAX_QUEUES];
    struct gpunvme_buf lists[DEV_RIG_MAX_QUEUES], bounces[DEV_RIG_MAX_QUEUES];
    struct gpunvme_buf slots[DEV_RIG_MAX_QUEUES], ready[DEV_RIG_MAX_QUEUES];
    struct gpunvme_buf mirror[DEV_RIG_MAX_QUEUES];
    struct gpunvme_buf queues, alarm, doorbells;
    struct gpunvme_qpair cpu[DEV_RIG_MAX_QUEUES]; /* what a CPU thread reaps: REAPER_CPU */
};

#define DEV_RIG_QID(i) ((i) + 2u) /* 1 is the test's own */

static inline void dev_rig_opts_init(struct dev_rig_opts *o)
{
    memset(o, 0, sizeof(*o));
    o->nqueues = 1;
    o->entries = 64;
    o->list_nbytes = 4096;
    o->bounce_nbytes = 4096;
    o->timeout_ns = UINT64_C(20000000000);
}

/* The address that the threads that do I/O use. */
static inline void *dev_rig_at(const struct gpunvme_buf *buf)
{
    return gpunvme_mem_gpu_is_host() ? buf->cpu : buf->gpu;
}

static inline gpunvme_err_t dev_rig_admin(struct dev_rig *r, uint8_t opcode, uint32_t i,
                                          uint64_t prp1, uint32_t cdw11)
{
    struct gpunvme_sqe sqe;

    memset(&sqe, 0, sizeof(sqe));
    sqe.opc = opcode;
    sqe.prp1 = prp1;
    sqe.cdw10 = (prp1 ? (r->opts.entries - 1) << 16 : 0) | DEV_RIG_QID(i);
    sqe.cdw11 = cdw11;
    return gpunvme_ctrl_admin(r->ctrl, &sqe, NULL, 0, false, NULL);
}

static inline void dev_rig_ring(void *arg, uint32_t offset, uint32_t value)
{
    struct gpunvme_transport *t = (struct gpunvme_transport *)arg;

    (void)t->ops->write32(t, offset, value);
}

static inline struct gpunvme_doorbell dev_rig_doorbell(struct dev_rig *r, uint32_t index)
{
    struct gpunvme_doorbell db;

    memset(&db, 0, sizeof(db));
    db.offset = 0x1000 + 4 * index;
    if (r->doorbells.nbytes)
        db.mmio = (volatile uint32_t *)dev_rig_at(&r->doorbells) + index;
    return db;
}

static inline gpunvme_err_t dev_rig_send(const struct gpunvme_buf *to, const void *from)
{
    return gpunvme_mem_copy(to->gpu, GPUNVME_MEM_GPU, from, GPUNVME_MEM_HOST, to->nbytes);
}

static inline gpunvme_err_t dev_rig_alloc(struct dev_rig *r, uint32_t i)
{
    size_t n = r->opts.entries;
    gpunvme_err_t err = gpunvme_ctrl_alloc(r->ctrl, GPUNVME_QPAIR_SQ_NBYTES(n), r->mem, &r->sq[i]);

    if (!err)
        err = gpunvme_ctrl_alloc(r->ctrl, GPUNVME_QPAIR_CQ_NBYTES(n), r->mem, &r->cq[i]);
    if (!err && r->opts.list_nbytes)
        err = gpunvme_ctrl_alloc(r->ctrl, n * r->opts.list_nbytes, r->mem, &r->lists[i]);
    if (!err && r->opts.bounce_nbytes)
        err = gpunvme_ctrl_alloc(r->ctrl, n * r->opts.bounce_nbytes, r->mem, &r->bounces[i]);
    if (!err)
        err = gpunvme_mem_alloc(GPUNVME_DEV_QUEUE_SLOTS_NBYTES(n), GPUNVME_MEM_GPU, &r->slots[i]);
    if (!err)
        err = gpunvme_mem_alloc(GPUNVME_QPAIR_READY_NBYTES(n), GPUNVME_MEM_GPU, &r->ready[i]);
    if (!err && r->opts.reaper == GPUNVME_REAPER_CPU)
        err = gpunvme_mem_alloc(GPUNVME_QPAIR_SLOTS_NBYTES(n), GPUNVME_MEM_PINNED, &r->mirror[i]);
    return err;
}

/* Initialised with memory of the CPU's, then sent to where the threads find it. */
static inline gpunvme_err_t dev_rig_init(struct dev_rig *r, uint32_t i, struct gpunvme_dev_queue *q)
{
    struct gpunvme_slot *slots = (struct gpunvme_slot *)malloc(r->slots[i].nbytes);
    uint32_t *ready = (uint32_t *)malloc(r->ready[i].nbytes), *cpu_ready;
    struct gpunvme_qpair_config c;
    gpunvme_err_t err;

    cpu_ready = (uint32_t *)malloc(r->ready[i].nbytes); /* not used: the CPU only reaps */
    memset(&c, 0, sizeof(c));
    c.qid = DEV_RIG_QID(i);
    c.entries = r->opts.entries;
    c.sq = dev_rig_at(&r->sq[i]);
    c.cq = dev_rig_at(&r->cq[i]);
    c.slots = slots;
    c.ready = ready;
    c.sq_doorbell = dev_rig_doorbell(r, 2 * c.qid);
    c.cq_doorbell = dev_rig_doorbell(r, 2 * c.qid + 1);
    c.ring = dev_rig_ring;
    c.ring_arg = gpunvme_ctrl_transport(r->ctrl);
    c.first_position = r->opts.first_position;
    c.first_generation = r->opts.first_generation;
    memset(q, 0, sizeof(*q));
    err = gpunvme_dev_queue_init(q, &c);
    if (!err && r->opts.reaper == GPUNVME_REAPER_CPU) {
        q->mirror = (struct gpunvme_slot *)r->mirror[i].gpu;
        c.cq = r->cq[i].cpu;
        c.slots = (struct gpunvme_slot *)r->mirror[i].cpu;
        c.ready = cpu_ready;
        c.cq_doorbell.mmio = gpunvme_ctrl_transport(r->ctrl)->doorbells + 2 * (size_t)c.qid + 1;
        err = gpunvme_qpair_init(&r->cpu[i], &c);
    }
    q->home = (struct gpunvme_dev_queue *)r->queues.gpu + i;
    q->slots = (struct gpunvme_slot *)r->slots[i].gpu;
    q->ready = (uint32_t *)r->ready[i].gpu;
    q->reaper = r->opts.reaper;
    q->lists = (uint64_t *)dev_rig_at(&r->lists[i]);
    q->lists_bus = r->lists[i].bus;
    q->list_nbytes = r->opts.list_nbytes;
    q->bounces = (uint8_t *)dev_rig_at(&r->bounces[i]);
    q->bounces_bus = r->bounces[i].bus;
    q->bounce_nbytes = r->opts.bounce_nbytes;
    if (!err)
        err = dev_rig_send(&r->slots[i], slots);
    if (!err)
        err = dev_rig_send(&r->ready[i], ready);
    free(slots);
    free(ready);
    free(cpu_ready);
    return err;
}

static inline gpunvme_err_t dev_rig_open(struct dev_rig *r, struct gpunvme_ctrl *ctrl,
                                         const struct dev_rig_opts *opts)
{
    static struct gpunvme_dev_queue queues[DEV_RIG_MAX_QUEUES];
    struct gpunvme_transport *t = gpunvme_ctrl_transport(ctrl);
    gpunvme_err_t err;

    memset(r, 0, sizeof(*r));
    r->ctrl = ctrl;
    r->opts = *opts;
    r->mem = gpunvme_mem_gpu_is_host() ? GPUNVME_MEM_HOST : GPUNVME_MEM_PINNED;
    err = gpunvme_mem_alloc(opts->nqueues * sizeof(queues[0]), GPUNVME_MEM_GPU, &r->queues);
    if (!err)
        err = gpunvme_mem_alloc(64, GPUNVME_MEM_PINNED, &r->alarm);
    if (!err && t->doorbells)
        err = gpunvme_mem_register((void *)t->doorbells, t->doorbells_nbytes, GPUNVME_MEM_PINNED,
                                   &r->doorbells);
    for (uint32_t i = 0; i < opts->nqueues && !err; i++) {
        err = dev_rig_alloc(r, i);
        if (!err)
            err = dev_rig_init(r, i, &queues[i]);
        if (!err)
            err = dev_rig_admin(r, GPUNVME_ADMIN_CREATE_CQ, i, r->cq[i].bus, GPUNVME_QUEUE_PC);
        if (!err)
            err = dev_rig_admin(r, GPUNVME_ADMIN_CREATE_SQ, i, r->sq[i].bus,
                                DEV_RIG_QID(i) << 16 | GPUNVME_QUEUE_PC);
        r->nqueues += !err;
    }
    return err ? err : dev_rig_send(&r->queues, queues);
}

static inline gpunvme_err_t dev_rig_close(struct dev_rig *r)
{
    gpunvme_err_t err = GPUNVME_OK;

    for (uint32_t i = 0; i < r->nqueues && !err; i++) {
        err = dev_rig_admin(r, GPUNVME_ADMIN_DELETE_SQ, i, 0, 0);
        if (!err)
            err = dev_rig_admin(r, GPUNVME_ADMIN_DELETE_CQ, i, 0, 0);
    }
    for (uint32_t i = 0; i < r->opts.nqueues; i++) {
        gpunvme_ctrl_free(r->ctrl, &r->sq[i]);
        gpunvme_ctrl_free(r->ctrl, &r->cq[i]);
        gpunvme_ctrl_free(r->ctrl, &r->lists[i]);
        gpunvme_ctrl_free(r->ctrl, &r->bounces[i]);
        gpunvme_mem_free(&r->slots[i]);
        gpunvme_mem_free(&r->ready[i]);
        gpunvme_mem_free(&r->mirror[i]);
    }
    gpunvme_mem_free(&r->queues);
    gpunvme_mem_free(&r->alarm);
    if (r->doorbells.nbytes)
        gpunvme_mem_unregister(&r->doorbells);
    return err;
}

/* The handles that kernels take. */
static inline struct gpunvme_dev_ns dev_rig_ns(const struct dev_rig *r, const struct gpunvme_ns *ns)
{
    struct gpunvme_ctrl_info info;
    struct gpunvme_dev_ns out;

    gpunvme_ctrl_get_info(r->ctrl, &info);
    memset(&out, 0, sizeof(out));
    out.nblocks = ns->nblocks;
    out.block_size = ns->block_size;
    out.max_blocks = ns->max_blocks;
    out.boundary_blocks = ns->boundary_blocks;
    out.nsid = ns->nsid;
    out.block_shift = (uint8_t)ns->block_shift;
    for (out.page_shift = 12; info.page_size >> out.page_shift != 1; out.page_shift++)
        ;
    out.readonly = ns->readonly;
    out.nqueues = r->opts.nqueues;
    out.queues = (struct gpunvme_dev_queue *)r->queues.gpu;
    out.timeout_ns = r->opts.timeout_ns;
    out.alarm = (uint32_t *)dev_rig_at(&r->alarm);
    return out;
}

static inline struct gpunvme_dev_buf dev_rig_buf(const struct gpunvme_buf *buf)
{
    struct gpunvme_dev_buf out;

    memset(&out, 0, sizeof(out));
    out.data = (uint8_t *)dev_rig_at(buf);
    out.nbytes = buf->nbytes;
    out.bus = buf->bus;
    out.bus_pages = buf->bus_pages;
    out.bus_page_shift = buf->bus_page_shift;
    return out;
}

/* Slots that a command has; for tests on the CPU. The first is never anybody's. */
static inline uint32_t dev_rig_taken(const struct dev_rig *r, uint32_t i)
{
    const struct gpunvme_slot *slots = (const struct gpunvme_slot *)r->slots[i].cpu;
    uint32_t n = 0;

    for (uint32_t slot = 1; slot < r->opts.entries; slot++)
        n += (gpunvme_load_acquire64(&slots[slot].word) & GPUNVME_DEV_SLOT_TAKEN) != 0;
    return n;
}

static inline int dev_rig_alarmed(const struct dev_rig *r)
{
    return gpunvme_load_acquire32((const uint32_t *)r->alarm.cpu) != 0;
}

#endif
