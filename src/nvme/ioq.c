/* SPDX-License-Identifier: BSD-3-Clause
 *
 * I/O queue pairs: their memory, their creation and deletion on the controller, and the shadow
 * doorbells that they ring.
 *
 * Source: Base 1.4, sections 5.3 to 5.6 (create and delete), 5.7 (Doorbell Buffer Config).
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "nvme/ctrl.h"

#define DEFAULT_ENTRIES 256

static void ring(void *arg, uint32_t offset, uint32_t value)
{
    struct gpunvme_transport *t = arg;

    /* A doorbell that can't be written belongs to a controller that can't be reached: the wait
     * for the command finds that out. */
    (void)t->ops->write32(t, offset, value);
}

/*
 * The doorbell at `offset` of BAR0, of an I/O queue with its shadow where that is in use. The
 * shadow begins at 0, whatever a queue of the same id has left there.
 */
static struct gpunvme_doorbell doorbell(struct gpunvme_ctrl *ctrl, uint32_t qid, uint32_t offset)
{
    size_t at = offset - GPUNVME_REG_DOORBELLS;
    struct gpunvme_doorbell db = {.offset = offset};

    if (ctrl->transport->doorbells && at + 4 <= ctrl->transport->doorbells_nbytes)
        db.mmio = ctrl->transport->doorbells + at / 4;
    if (qid && ctrl->shadow.nbytes) {
        volatile uint32_t *event_index = (volatile uint32_t *)((char *)ctrl->event_index.cpu + at);

        db.shadow = (volatile uint32_t *)((char *)ctrl->shadow.cpu + at);
        gpunvme_store_seq_cst32(db.shadow, 0);
        gpunvme_store_seq_cst32(event_index, 0);
        db.event_index = event_index;
    }
    return db;
}

static gpunvme_err_t init_qpair(struct gpunvme_ioq *ioq, uint32_t qid, uint32_t entries,
                                struct gpunvme_slot *slots, uint32_t *ready)
{
    struct gpunvme_ctrl *ctrl = ioq->ctrl;
    uint32_t dstrd = (uint32_t)GPUNVME_GET(ctrl->cap, CAP_DSTRD);
    struct gpunvme_qpair_config config = {
        .qid = qid,
        .entries = entries,
        .sq = ioq->sq_mem.cpu,
        .cq = ioq->cq_mem.cpu,
        .slots = slots,
        .ready = ready,
        .sq_doorbell = doorbell(ctrl, qid, gpunvme_sq_doorbell((uint16_t)qid, dstrd)),
        .cq_doorbell = doorbell(ctrl, qid, gpunvme_cq_doorbell((uint16_t)qid, dstrd)),
        .ring = ring,
        .ring_arg = ctrl->transport,
    };

    return gpunvme_qpair_init(&ioq->qpair, &config);
}

static void *alloc_lines(size_t nbytes)
{
    return aligned_alloc(64, (nbytes + 63) & ~(size_t)63);
}

/* In the controller memory buffer where that is in use: its fetches then stay inside. */
static gpunvme_err_t alloc_sq(struct gpunvme_ioq *ioq, uint32_t qid, size_t nbytes)
{
    ioq->sq_is_in_cmb = qid && ioq->ctrl->cmb.nbytes;
    return ioq->sq_is_in_cmb ? nvme_cmb_alloc(ioq->ctrl, nbytes, &ioq->sq_mem)
                             : nvme_alloc(ioq->ctrl, nbytes, &ioq->sq_mem);
}

gpunvme_err_t nvme_ioq_alloc(struct gpunvme_ctrl *ctrl, uint32_t qid, uint32_t entries,
                             struct gpunvme_ioq **out)
{
    struct gpunvme_ioq *ioq = alloc_lines(sizeof(*ioq));
    struct gpunvme_slot *slots = alloc_lines(GPUNVME_QPAIR_SLOTS_NBYTES(entries));
    uint32_t *ready = alloc_lines(GPUNVME_QPAIR_READY_NBYTES(entries));
    gpunvme_err_t err = GPUNVME_OK;

    if (!ioq || !slots || !ready) {
        free(ioq);
        free(slots);
        free(ready);
        return base_fail(GPUNVME_ERR_NOMEM, "queue %u of %u entries", qid, entries);
    }
    memset(ioq, 0, sizeof(*ioq));
    ioq->ctrl = ctrl;
    ioq->qpair.slots = slots; /* so that nvme_ioq_free finds them */
    ioq->qpair.ready = ready;
    err = alloc_sq(ioq, qid, GPUNVME_QPAIR_SQ_NBYTES(entries));
    if (!err)
        err = nvme_alloc(ctrl, GPUNVME_QPAIR_CQ_NBYTES(entries), &ioq->cq_mem);
    if (!err)
        err = init_qpair(ioq, qid, entries, slots, ready);
    if (err) {
        nvme_ioq_free(ioq);
        return err;
    }
    ioq->host_nbytes = sizeof(*ioq) + GPUNVME_QPAIR_SLOTS_NBYTES(entries) +
                       GPUNVME_QPAIR_READY_NBYTES(entries) + ioq->cq_mem.nbytes +
                       (ioq->sq_is_in_cmb ? 0 : ioq->sq_mem.nbytes);
    *out = ioq;
    return GPUNVME_OK;
}

void nvme_ioq_free(struct gpunvme_ioq *ioq)
{
    if (!ioq)
        return;
    if (!ioq->sq_is_in_cmb)
        nvme_free(ioq->ctrl, &ioq->sq_mem);
    nvme_free(ioq->ctrl, &ioq->cq_mem);
    free(ioq->qpair.slots);
    free(ioq->qpair.ready);
    free(ioq);
}

/* --- on the controller ------------------------------------------------------------------------ */

/* Vector 0 is the admin queue's; the I/O queues share the others, or that one. */
uint32_t nvme_ioq_vector(const struct gpunvme_ioq *ioq)
{
    uint32_t vectors = ioq->ctrl->vectors;

    return vectors < 2 || !ioq->qpair.qid ? 0 : 1 + (ioq->qpair.qid - 1) % (vectors - 1);
}

static gpunvme_err_t create_cq(struct gpunvme_ioq *ioq)
{
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_CREATE_CQ,
                              .prp1 = ioq->cq_mem.bus,
                              .cdw10 = ioq->qpair.mask << 16 | ioq->qpair.qid,
                              .cdw11 = GPUNVME_QUEUE_PC};

    /* Foreign queues are polled by those who use them. */
    if (ioq->ctrl->vectors && !ioq->foreign)
        sqe.cdw11 |= GPUNVME_CQ_IEN | nvme_ioq_vector(ioq) << 16;
    return nvme_admin_locked(ioq->ctrl, &sqe, NULL, 0, false, NULL);
}

static gpunvme_err_t create_sq(struct gpunvme_ioq *ioq)
{
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_CREATE_SQ,
                              .prp1 = ioq->sq_mem.bus,
                              .cdw10 = ioq->qpair.mask << 16 | ioq->qpair.qid,
                              .cdw11 = ioq->qpair.qid << 16 | GPUNVME_QUEUE_PC};

    return nvme_admin_locked(ioq->ctrl, &sqe, NULL, 0, false, NULL);
}

static gpunvme_err_t delete_queue(struct gpunvme_ioq *ioq, uint8_t opcode)
{
    struct gpunvme_sqe sqe = {.opc = opcode, .cdw10 = ioq->qpair.qid};

    return nvme_admin_locked(ioq->ctrl, &sqe, NULL, 0, false, NULL);
}

gpunvme_err_t nvme_ioq_create_on_device(struct gpunvme_ioq *ioq)
{
    gpunvme_err_t err = create_cq(ioq);

    if (err)
        return err;
    err = create_sq(ioq);
    /* Any other error leaves the queues in doubt: only a reset helps. */
    if (gpunvme_err_nvme_status(err) && delete_queue(ioq, GPUNVME_ADMIN_DELETE_CQ))
        return base_fail(GPUNVME_ERR_PROTOCOL,
                         "queue %u: its submission queue could not be created, nor its completion "
                         "queue deleted",
                         ioq->qpair.qid);
    return err;
}

/* The first queue id that is free, in a controller that takes queues. */
static gpunvme_err_t find_free(struct gpunvme_ctrl *ctrl, uint32_t *qid)
{
    uint32_t i = 0;

    if (nvme_state(ctrl) != CTRL_LIVE)
        return nvme_closed_err(ctrl);
    while (i < ctrl->max_io_queues && ctrl->ioqs[i])
        i++;
    if (i == ctrl->max_io_queues)
        return base_fail(GPUNVME_ERR_LIMIT, "all %u I/O queues are in use", i);
    *qid = i + 1;
    return GPUNVME_OK;
}

/* Creates a new queue on the controller and enters it, or frees it. */
static gpunvme_err_t enter_locked(struct gpunvme_ioq *ioq, struct gpunvme_ioq **out)
{
    struct gpunvme_ctrl *ctrl = ioq->ctrl;
    gpunvme_err_t err = nvme_ioq_create_on_device(ioq);

    if (err) {
        struct base_failure failure;

        base_keep(&failure, err);
        if (!gpunvme_err_nvme_status(err)) /* it may have the queue: it must not find it freed */
            nvme_recover_locked(ctrl);
        nvme_ioq_free(ioq);
        return base_restore(&failure);
    }
    ctrl->ioqs[ioq->qpair.qid - 1] = *out = ioq;
    return GPUNVME_OK;
}

static gpunvme_err_t create_locked(struct gpunvme_ctrl *ctrl, uint32_t entries,
                                   struct gpunvme_ioq **out)
{
    struct gpunvme_ioq *ioq;
    uint32_t qid = 0;
    gpunvme_err_t err = find_free(ctrl, &qid);

    if (!err)
        err = nvme_ioq_alloc(ctrl, qid, entries, &ioq);
    return err ? err : enter_locked(ioq, out);
}

gpunvme_err_t gpunvme_ioq_create(struct gpunvme_ctrl *ctrl, uint32_t entries,
                                 struct gpunvme_ioq **out)
{
    gpunvme_err_t err;

    if (!ctrl || !out)
        return base_fail(GPUNVME_ERR_INVALID, "NULL argument");
    if (!entries)
        entries = ctrl->max_entries < DEFAULT_ENTRIES ? ctrl->max_entries : DEFAULT_ENTRIES;
    if (entries > ctrl->max_entries)
        return base_fail(GPUNVME_ERR_LIMIT, "%u entries: this controller's queues have at most %u",
                         entries, ctrl->max_entries);
    pthread_mutex_lock(&ctrl->lifecycle);
    err = create_locked(ctrl, entries, out);
    pthread_mutex_unlock(&ctrl->lifecycle);
    return err;
}

/* Under ctrl->lifecycle: neither the controller nor a reset knows it any more. */
static gpunvme_err_t delete_locked(struct gpunvme_ioq *ioq)
{
    struct gpunvme_ctrl *ctrl = ioq->ctrl;
    gpunvme_err_t err = GPUNVME_OK;

    ctrl->ioqs[ioq->qpair.qid - 1] = NULL;
    if (nvme_state(ctrl) == CTRL_LIVE && !ioq->is_left_out) {
        err = delete_queue(ioq, GPUNVME_ADMIN_DELETE_SQ);
        if (!err)
            err = delete_queue(ioq, GPUNVME_ADMIN_DELETE_CQ);
        /* A controller that does not let go of the queue must not find its memory freed. */
        if (err) {
            struct base_failure failure;

            base_keep(&failure, err);
            err = nvme_recover_locked(ctrl) ? base_restore(&failure) : GPUNVME_OK;
        }
    }
    return err;
}

gpunvme_err_t gpunvme_ioq_delete(struct gpunvme_ioq *ioq)
{
    struct gpunvme_ctrl *ctrl;
    gpunvme_err_t err;

    if (!ioq)
        return GPUNVME_OK;
    ctrl = ioq->ctrl;
    pthread_mutex_lock(&ctrl->lifecycle);
    err = delete_locked(ioq);
    pthread_mutex_unlock(&ctrl->lifecycle);
    nvme_ioq_free(ioq);
    return err;
}

struct gpunvme_qpair *gpunvme_ioq_qpair(struct gpunvme_ioq *ioq)
{
    return &ioq->qpair;
}

/* --- queues whose words are not the CPU's ----------------------------------------------------- */

static gpunvme_err_t create_foreign_locked(struct gpunvme_ctrl *ctrl,
                                           const struct nvme_foreign_config *config,
                                           struct gpunvme_ioq **out)
{
    struct gpunvme_transport *t = ctrl->transport;
    uint32_t dstrd = (uint32_t)GPUNVME_GET(ctrl->cap, CAP_DSTRD), qid = 0;
    struct nvme_foreign_bells bells = {.ring = ring, .ring_arg = t};
    struct gpunvme_ioq *ioq;
    gpunvme_err_t err = find_free(ctrl, &qid);

    if (err)
        return err;
    ioq = alloc_lines(sizeof(*ioq));
    if (!ioq)
        return base_fail(GPUNVME_ERR_NOMEM, "queue %u", qid);
    memset(ioq, 0, sizeof(*ioq));
    ioq->ctrl = ctrl;
    ioq->foreign = config->ops;
    ioq->foreign_arg = config->arg;
    ioq->qpair.qid = qid;
    ioq->qpair.mask = config->entries - 1;
    ioq->sq_mem.bus = config->sq_bus; /* without nbytes: not ours to free */
    ioq->cq_mem.bus = config->cq_bus;
    bells.sq = doorbell(ctrl, qid, gpunvme_sq_doorbell((uint16_t)qid, dstrd));
    bells.cq = doorbell(ctrl, qid, gpunvme_cq_doorbell((uint16_t)qid, dstrd));
    err = config->ops->init(config->arg, qid, &bells);
    if (err) {
        nvme_ioq_free(ioq);
        return err;
    }
    return enter_locked(ioq, out);
}

gpunvme_err_t nvme_ioq_create_foreign(struct gpunvme_ctrl *ctrl,
                                      const struct nvme_foreign_config *config,
                                      struct gpunvme_ioq **out)
{
    gpunvme_err_t err;

    if (config->entries > ctrl->max_entries)
        return base_fail(GPUNVME_ERR_LIMIT, "%u entries: this controller's queues have at most %u",
                         config->entries, ctrl->max_entries);
    pthread_mutex_lock(&ctrl->lifecycle);
    err = create_foreign_locked(ctrl, config, out);
    pthread_mutex_unlock(&ctrl->lifecycle);
    return err;
}

/* --- shadow doorbells ------------------------------------------------------------------------- */

/* A page each. */
static gpunvme_err_t alloc_shadow(struct gpunvme_ctrl *ctrl)
{
    gpunvme_err_t err = nvme_alloc(ctrl, 1, &ctrl->shadow);

    return err ? err : nvme_alloc(ctrl, 1, &ctrl->event_index);
}

/* One page holds the doorbells of so many queues: those behind it have none to shadow. */
static bool fits_page(const struct gpunvme_ctrl *ctrl)
{
    uint32_t dstrd = (uint32_t)GPUNVME_GET(ctrl->cap, CAP_DSTRD);
    uint32_t last = gpunvme_cq_doorbell((uint16_t)ctrl->max_io_queues, dstrd);

    return last + 4 - GPUNVME_REG_DOORBELLS <= 1u << ctrl->page_shift;
}

gpunvme_err_t nvme_shadow_start(struct gpunvme_ctrl *ctrl)
{
    struct gpunvme_sqe sqe = {.opc = GPUNVME_ADMIN_DOORBELL_BUFFER_CONFIG};
    gpunvme_err_t err = GPUNVME_OK;

    if (ctrl->opts.no_shadow_doorbells)
        nvme_shadow_free(ctrl); /* the reset has made the controller forget them */
    if (ctrl->opts.no_shadow_doorbells || !(ctrl->id.oacs & GPUNVME_OACS_DBBUF) || !fits_page(ctrl))
        return GPUNVME_OK;
    if (!ctrl->shadow.nbytes)
        err = alloc_shadow(ctrl);
    if (err)
        return err;
    memset(ctrl->shadow.cpu, 0, ctrl->shadow.nbytes);
    memset(ctrl->event_index.cpu, 0, ctrl->event_index.nbytes);
    sqe.prp1 = ctrl->shadow.bus;
    sqe.prp2 = ctrl->event_index.bus;
    err = nvme_admin_locked(ctrl, &sqe, NULL, 0, false, NULL);
    /* It said that it has this and then refuses: do without, unless queues rely on it already,
     * as they may once bring-up is done. */
    if (gpunvme_err_nvme_status(err) && !ctrl->identified) {
        nvme_shadow_free(ctrl);
        return GPUNVME_OK;
    }
    return err;
}

static gpunvme_err_t stop_locked(struct gpunvme_ctrl *ctrl)
{
    if (!ctrl->shadow.nbytes)
        return GPUNVME_OK;
    for (uint32_t i = 0; i < ctrl->max_io_queues; i++)
        if (ctrl->ioqs[i])
            return base_fail(GPUNVME_ERR_UNSUPPORTED,
                             "%s: I/O queues of the CPU rely on shadow doorbells, which queues of "
                             "a GPU can't have: open the controller with no_shadow_doorbells",
                             ctrl->transport->address);
    ctrl->opts.no_shadow_doorbells = true;
    return nvme_reset_locked(ctrl);
}

gpunvme_err_t nvme_shadow_stop(struct gpunvme_ctrl *ctrl)
{
    gpunvme_err_t err;

    pthread_mutex_lock(&ctrl->lifecycle);
    err = stop_locked(ctrl);
    pthread_mutex_unlock(&ctrl->lifecycle);
    return err;
}

void nvme_shadow_free(struct gpunvme_ctrl *ctrl)
{
    nvme_free(ctrl, &ctrl->shadow);
    nvme_free(ctrl, &ctrl->event_index);
    ctrl->shadow = ctrl->event_index = (struct gpunvme_buf){0};
}
