/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Admin commands: which is which, and those that are about queues and commands: create, delete,
 * Abort, Keep Alive, Doorbell Buffer Config. All run on thread 0 under its lock.
 *
 * Source: NVM Express Base 1.4, sections 5.1, 5.3 to 5.7 and 5.24.
 */
#include "sim/engine/host.h"
#include "sim/sim_internal.h"

static void pause_others(struct gpunvme_sim *sim)
{
    for (unsigned i = 1; i < sim->nthreads; i++)
        sim_lock(&sim->threads[i]);
}

static void resume_others(struct gpunvme_sim *sim)
{
    for (unsigned i = sim->nthreads; i-- > 1;)
        sim_unlock(&sim->threads[i]);
}

static uint16_t out_of_order(struct sim_cmd *cmd, const char *what, uint32_t qid, uint16_t status)
{
    sim_violate(cmd->thread->sim, GPUNVME_SIM_VIOLATION_QUEUE_ORDER, "command id %u: %s %u",
                cmd->sqe.cid, what, qid);
    return status;
}

/* What both kinds of queue must fulfil; `granted` is 0's based. */
static uint16_t check_create(struct sim_cmd *cmd, uint32_t granted, bool sizes_set)
{
    const struct gpunvme_sim *sim = cmd->thread->sim;
    uint32_t qid = (uint32_t)GPUNVME_GET(cmd->sqe.cdw10, QUEUE_QID);
    uint32_t qsize = (uint32_t)GPUNVME_GET(cmd->sqe.cdw10, QUEUE_QSIZE);

    if (!qid || qid > granted + 1)
        return GPUNVME_SC_QID_INVALID;
    if (!qsize || qsize > sim->config.mqes || !sizes_set)
        return GPUNVME_SC_QUEUE_SIZE_INVALID;
    if (!(cmd->sqe.cdw11 & GPUNVME_QUEUE_PC))
        return GPUNVME_SC_INVALID_FIELD;
    if (cmd->sqe.prp1 & (sim->page - 1)) {
        sim_violate(cmd->thread->sim, GPUNVME_SIM_VIOLATION_PRP_OFFSET,
                    "queue %u is at %llxh, not at a page's begin", qid,
                    (unsigned long long)cmd->sqe.prp1);
        return GPUNVME_SC_PRP_OFFSET_INVALID;
    }
    if (cmd->sqe.prp2)
        sim_violate(cmd->thread->sim, GPUNVME_SIM_VIOLATION_RESERVED_BITS,
                    "command id %u, creating queue %u: PRP2 is %llxh", cmd->sqe.cid, qid,
                    (unsigned long long)cmd->sqe.prp2);
    return GPUNVME_SC_SUCCESS;
}

static uint16_t create_cq(struct sim_cmd *cmd)
{
    struct gpunvme_sim *sim = cmd->thread->sim;
    uint16_t qid = (uint16_t)GPUNVME_GET(cmd->sqe.cdw10, QUEUE_QID);
    uint32_t size = (uint32_t)GPUNVME_GET(cmd->sqe.cdw10, QUEUE_QSIZE) + 1;
    uint32_t granted = (uint32_t)GPUNVME_GET(sim->features.nqueues, NUM_QUEUES_NCQ);
    bool sizes_set = GPUNVME_GET(sim->cc, CC_IOCQES) == GPUNVME_CQE_SHIFT;
    uint16_t status = check_create(cmd, granted, sizes_set);

    if (status)
        return status;
    if (sim->cqs[qid])
        return out_of_order(cmd, "creates again completion queue", qid, GPUNVME_SC_QID_INVALID);
    if (cmd->sqe.cdw11 & GPUNVME_CQ_IEN &&
        GPUNVME_GET(cmd->sqe.cdw11, CREATE_CQ_IV) > sim->config.max_queues)
        return GPUNVME_SC_INVALID_VECTOR;
    pause_others(sim);
    status = sim_cq_create(sim, qid, cmd->sqe.prp1, size);
    if (!status && cmd->sqe.cdw11 & GPUNVME_CQ_IEN) {
        sim->cqs[qid]->irq = true;
        sim->cqs[qid]->vector = (uint16_t)GPUNVME_GET(cmd->sqe.cdw11, CREATE_CQ_IV);
    }
    resume_others(sim);
    return status;
}

static uint16_t create_sq(struct sim_cmd *cmd)
{
    struct gpunvme_sim *sim = cmd->thread->sim;
    uint16_t qid = (uint16_t)GPUNVME_GET(cmd->sqe.cdw10, QUEUE_QID);
    uint32_t size = (uint32_t)GPUNVME_GET(cmd->sqe.cdw10, QUEUE_QSIZE) + 1;
    uint32_t cqid = (uint32_t)GPUNVME_GET(cmd->sqe.cdw11, CREATE_SQ_CQID);
    uint32_t granted = (uint32_t)GPUNVME_GET(sim->features.nqueues, NUM_QUEUES_NSQ);
    bool sizes_set = GPUNVME_GET(sim->cc, CC_IOSQES) == GPUNVME_SQE_SHIFT;
    uint16_t status = check_create(cmd, granted, sizes_set);

    if (status)
        return status;
    if (sim->sqs[qid])
        return out_of_order(cmd, "creates again submission queue", qid, GPUNVME_SC_QID_INVALID);
    if (!cqid || cqid > sim->config.max_queues)
        return GPUNVME_SC_QID_INVALID;
    if (!sim->cqs[cqid])
        return out_of_order(cmd, "creates a submission queue for the missing completion queue",
                            cqid, GPUNVME_SC_CQ_INVALID);
    pause_others(sim);
    status = sim_sq_create(sim, qid, cmd->sqe.prp1, size, sim->cqs[cqid]);
    resume_others(sim);
    return status;
}

/*
 * Waits, the other threads paused, until no store works on a command of the queue; others run
 * meanwhile. false: it was too long.
 */
static bool drain(struct gpunvme_sim *sim, struct sim_sq *sq)
{
    uint64_t end_ns = sim_now_ns() + SIM_FUSE_NS;

    while (sq->active) {
        if (sim_now_ns() > end_ns)
            return false;
        if (sq->thread->index == 0) {
            for (uint32_t i = 0; i < sim->nns; i++)
                sim_store_poll(sim->ns[i].store, 0);
            sim_run_ended(sq->thread);
        } else {
            resume_others(sim);
            sim_pause_ns(10000);
            pause_others(sim);
        }
    }
    return true;
}

static uint16_t delete_sq(struct sim_cmd *cmd)
{
    struct gpunvme_sim *sim = cmd->thread->sim;
    uint32_t qid = (uint32_t)GPUNVME_GET(cmd->sqe.cdw10, QUEUE_QID);
    uint16_t status = GPUNVME_SC_INTERNAL;
    struct sim_sq *sq;

    if (!qid || qid > sim->config.max_queues)
        return GPUNVME_SC_QID_INVALID;
    sq = sim->sqs[qid];
    if (!sq)
        return out_of_order(cmd, "deletes the missing submission queue", qid,
                            GPUNVME_SC_QID_INVALID);
    pause_others(sim);
    if (sq->engine) {
        status = sim_keeper_delete(sim, sq);
        if (!status)
            sim_sq_free(sim, sq);
        resume_others(sim);
        return status;
    }
    sq->deleting = true;
    sim_io_abort_waiting(sq->thread, sq, GPUNVME_SC_ABORT_SQ_DELETED);
    if (drain(sim, sq)) {
        sim_complete_abort_all(sq->thread, sq, GPUNVME_SC_ABORT_SQ_DELETED);
        sim_sq_free(sim, sq);
        status = GPUNVME_SC_SUCCESS;
    } else {
        sq->deleting = false;
    }
    resume_others(sim);
    return status;
}

static uint16_t delete_cq(struct sim_cmd *cmd)
{
    struct gpunvme_sim *sim = cmd->thread->sim;
    uint32_t qid = (uint32_t)GPUNVME_GET(cmd->sqe.cdw10, QUEUE_QID);
    struct sim_cq *cq;

    if (!qid || qid > sim->config.max_queues)
        return GPUNVME_SC_QID_INVALID;
    cq = sim->cqs[qid];
    if (!cq)
        return out_of_order(cmd, "deletes the missing completion queue", qid,
                            GPUNVME_SC_QID_INVALID);
    if (cq->nsqs)
        return out_of_order(cmd, "deletes, while submission queues use it, completion queue", qid,
                            GPUNVME_SC_INVALID_QUEUE_DELETION);
    pause_others(sim);
    sim_cq_free(sim, cq);
    resume_others(sim);
    return GPUNVME_SC_SUCCESS;
}

static uint16_t abort_command(struct sim_cmd *cmd)
{
    struct gpunvme_sim *sim = cmd->thread->sim;
    uint32_t sqid = (uint32_t)GPUNVME_GET(cmd->sqe.cdw10, ABORT_SQID);
    uint16_t cid = (uint16_t)GPUNVME_GET(cmd->sqe.cdw10, ABORT_CID);
    struct sim_sq *sq = sqid <= sim->config.max_queues ? sim->sqs[sqid] : NULL;
    struct sim_thread *t;
    bool aborted;

    cmd->dw0 = GPUNVME_ABORT_NOT_ABORTED;
    if (!sq)
        return GPUNVME_SC_SUCCESS;
    t = sq->thread;
    if (t->index)
        sim_lock(t);
    aborted = sim_complete_abort(t, sq, cid) || (!sqid && sim_event_abort(t, cid));
    if (t->index)
        sim_unlock(t);
    if (aborted)
        cmd->dw0 = 0;
    return GPUNVME_SC_SUCCESS;
}

static uint16_t keep_alive(struct sim_cmd *cmd)
{
    struct gpunvme_sim *sim = cmd->thread->sim;

    if (sim->features.kato_ms)
        sim->keep_alive_ns = sim_now_ns();
    return GPUNVME_SC_SUCCESS;
}

static uint16_t doorbell_buffer_config(struct sim_cmd *cmd)
{
    struct gpunvme_sim *sim = cmd->thread->sim;
    uint64_t shadow_bus = cmd->sqe.prp1, eventidx_bus = cmd->sqe.prp2;
    uint32_t *shadow, *eventidx;

    if (!shadow_bus || !eventidx_bus || (shadow_bus | eventidx_bus) & (sim->page - 1))
        return GPUNVME_SC_INVALID_FIELD;
    shadow = sim_dma_cpu(sim, shadow_bus, sim->page);
    eventidx = sim_dma_cpu(sim, eventidx_bus, sim->page);
    if (!shadow || !eventidx) {
        /* Memory that only messages or a GPU reach is no fault of the driver's. */
        if (!sim_dma_mapped(sim, shadow_bus, sim->page) ||
            !sim_dma_mapped(sim, eventidx_bus, sim->page))
            sim_violate(sim, GPUNVME_SIM_VIOLATION_DMA_UNMAPPED,
                        "shadow doorbells at %llxh and %llxh are not mapped",
                        (unsigned long long)shadow_bus, (unsigned long long)eventidx_bus);
        return GPUNVME_SC_DATA_TRANSFER_ERROR;
    }
    pause_others(sim);
    sim_shadow_forget(sim);
    sim->shadow_bus = shadow_bus;
    sim->eventidx_bus = eventidx_bus;
    sim->shadow = shadow;
    sim->eventidx = eventidx;
    sim_shadow_attach(sim);
    resume_others(sim);
    return GPUNVME_SC_SUCCESS;
}

static uint16_t execute(struct sim_cmd *cmd)
{
    switch (cmd->sqe.opc) {
    case GPUNVME_ADMIN_DELETE_SQ:
        return delete_sq(cmd);
    case GPUNVME_ADMIN_CREATE_SQ:
        return create_sq(cmd);
    case GPUNVME_ADMIN_GET_LOG_PAGE:
        return sim_get_log(cmd);
    case GPUNVME_ADMIN_DELETE_CQ:
        return delete_cq(cmd);
    case GPUNVME_ADMIN_CREATE_CQ:
        return create_cq(cmd);
    case GPUNVME_ADMIN_IDENTIFY:
        return sim_identify(cmd);
    case GPUNVME_ADMIN_ABORT:
        return abort_command(cmd);
    case GPUNVME_ADMIN_SET_FEATURES:
        return sim_set_features(cmd);
    case GPUNVME_ADMIN_GET_FEATURES:
        return sim_get_features(cmd);
    case GPUNVME_ADMIN_KEEP_ALIVE:
        return keep_alive(cmd);
    case GPUNVME_ADMIN_DOORBELL_BUFFER_CONFIG:
        return doorbell_buffer_config(cmd);
    default:
        return GPUNVME_SC_INVALID_OPCODE;
    }
}

void sim_admin(struct sim_cmd *cmd)
{
    if (cmd->sqe.opc == GPUNVME_ADMIN_ASYNC_EVENT)
        sim_event_request(cmd);
    else
        sim_cmd_end(cmd, execute(cmd));
}
