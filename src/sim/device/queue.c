/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Queues: made, freed, fetched from and posted to. Knows entries, not what commands mean.
 *
 * Source: NVM Express Base 1.4, sections 4.1, 4.2 and 4.6.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/engine/host.h"
#include "sim/sim_internal.h"

#define CQE_WORDS (sizeof(struct gpunvme_cqe) / 4)

static bool memory_mapped(struct gpunvme_sim *sim, const char *kind, uint16_t qid, uint64_t bus,
                          uint64_t nbytes)
{
    if (bus + nbytes > bus && sim_dma_mapped(sim, bus, nbytes))
        return true;
    sim_violate(sim, GPUNVME_SIM_VIOLATION_DMA_UNMAPPED,
                "%s queue %u: %llu bytes at bus address %llxh are not all mapped", kind, qid,
                (unsigned long long)nbytes, (unsigned long long)bus);
    return false;
}

/* The phase tags of a new completion queue should be 0: the first entries posted have 1. */
static void check_phases(struct gpunvme_sim *sim, const struct sim_cq *cq)
{
    struct gpunvme_cqe entries[64];

    for (uint32_t at = 0; at < cq->size; at += 64) {
        uint32_t n = cq->size - at < 64 ? cq->size - at : 64;

        if (!sim_dma_read(&sim->threads[0], cq->bus + at * sizeof(entries[0]), entries,
                          n * sizeof(entries[0])))
            return;
        for (uint32_t i = 0; i < n; i++) {
            if (!(entries[i].status & GPUNVME_CQE_PHASE))
                continue;
            sim_warn(sim, GPUNVME_SIM_WARNING_PHASE,
                     "completion queue %u: entry %u has its phase tag set at creation", cq->qid,
                     at + i);
            return;
        }
    }
}

/* Under all thread locks. */
uint16_t sim_cq_create(struct gpunvme_sim *sim, uint16_t qid, uint64_t bus, uint32_t size)
{
    uint64_t nbytes = size * sizeof(struct gpunvme_cqe);
    struct sim_cq *cq;

    if (!memory_mapped(sim, "completion", qid, bus, nbytes))
        return GPUNVME_SC_DATA_TRANSFER_ERROR;
    cq = calloc(1, sizeof(*cq));
    if (!cq)
        return GPUNVME_SC_INTERNAL;
    cq->thread = &sim->threads[qid % sim->nthreads];
    cq->qid = qid;
    cq->bus = bus;
    cq->size = size;
    cq->phase = true;
    cq->cpu = sim_dma_cpu(sim, bus, nbytes);
    sim_doorbell_init(sim, &cq->doorbell, 2u * qid + 1);
    check_phases(sim, cq);
    sim->cqs[qid] = cq;
    sim->nio_queues += qid != 0;
    return GPUNVME_SC_SUCCESS;
}

static bool reserve_heap(struct sim_thread *t, uint32_t size)
{
    unsigned room = t->heap_room ? t->heap_room + size : size + SIM_AERS;
    struct sim_pending *heap = realloc(t->heap, room * sizeof(*heap));

    if (!heap)
        return false;
    t->heap = heap;
    t->heap_room = room;
    return true;
}

/*
 * Who serves the pair: the engine, where both queues are in GPU memory. It has one submission
 * queue for each completion queue, which must be new, and no interrupts.
 */
static uint16_t choose_server(struct gpunvme_sim *sim, struct sim_sq *sq)
{
    struct sim_cq *cq = sq->cq;
    uint16_t status;

    if (cq->engine)
        return GPUNVME_SC_INVALID_FIELD;
    if (!sq->qid || !sim_keeper_suits(sim, sq->bus, sq->size * sizeof(struct gpunvme_sqe)) ||
        !sim_keeper_suits(sim, cq->bus, cq->size * sizeof(struct gpunvme_cqe)))
        return GPUNVME_SC_SUCCESS;
    if (cq->nsqs || cq->irq || cq->tail || !cq->phase)
        return GPUNVME_SC_INVALID_FIELD;
    sim_doorbell_unshadow(&cq->doorbell);
    sim_doorbell_unshadow(&sq->doorbell);
    status = sim_keeper_add(sim, sq);
    sq->engine = cq->engine = !status;
    return status;
}

/* Under all thread locks. A queue is served by the thread of its completion queue. */
uint16_t sim_sq_create(struct gpunvme_sim *sim, uint16_t qid, uint64_t bus, uint32_t size,
                       struct sim_cq *cq)
{
    uint64_t nbytes = size * sizeof(struct gpunvme_sqe);
    struct sim_thread *t = cq->thread;
    struct sim_sq *sq;
    uint16_t status;

    if (!memory_mapped(sim, "submission", qid, bus, nbytes))
        return GPUNVME_SC_DATA_TRANSFER_ERROR;
    sq = calloc(1, sizeof(*sq));
    if (!sq)
        return GPUNVME_SC_INTERNAL;
    sq->thread = t;
    sq->cq = cq;
    sq->qid = qid;
    sq->bus = bus;
    sq->size = size;
    sq->cpu = sim_dma_cpu(sim, bus, nbytes);
    sim_doorbell_init(sim, &sq->doorbell, 2u * qid);
    status = choose_server(sim, sq);
    if (!status && !sq->engine && !reserve_heap(t, size))
        status = GPUNVME_SC_INTERNAL;
    if (status) {
        __atomic_store_n(sq->doorbell.reg, 0, __ATOMIC_RELEASE);
        free(sq);
        return status;
    }
    cq->nsqs++;
    if (!sq->engine)
        t->sqs[t->nsqs++] = sq;
    sim->sqs[qid] = sq;
    sim->nio_queues += qid != 0;
    return GPUNVME_SC_SUCCESS;
}

/* Under all thread locks, with nothing in flight. */
void sim_sq_free(struct gpunvme_sim *sim, struct sim_sq *sq)
{
    struct sim_thread *t = sq->thread;

    for (unsigned i = 0; i < t->nsqs; i++)
        if (t->sqs[i] == sq)
            t->sqs[i] = t->sqs[--t->nsqs];
    if (!sq->engine)
        t->heap_room -= sq->size;
    sq->cq->nsqs--;
    sim->sqs[sq->qid] = NULL;
    sim->nio_queues -= sq->qid != 0;
    __atomic_store_n(sq->doorbell.reg, 0, __ATOMIC_RELEASE);
    free(sq);
}

void sim_cq_free(struct gpunvme_sim *sim, struct sim_cq *cq)
{
    sim_irq_forget(cq);
    if (cq->engine)
        sim_keeper_free_cq(sim, cq);
    sim->cqs[cq->qid] = NULL;
    sim->nio_queues -= cq->qid != 0;
    __atomic_store_n(cq->doorbell.reg, 0, __ATOMIC_RELEASE);
    free(cq);
}

/* Frees every queue and forgets every command. Under all thread locks, stores quiet. */
void sim_queues_wipe(struct gpunvme_sim *sim)
{
    sim_keeper_forget(sim);
    for (unsigned i = 0; i < sim->nthreads; i++)
        sim_complete_forget(&sim->threads[i]);
    for (unsigned qid = 0; qid <= sim->config.max_queues; qid++)
        if (sim->sqs[qid])
            sim_sq_free(sim, sim->sqs[qid]);
    for (unsigned qid = 0; qid <= sim->config.max_queues; qid++)
        if (sim->cqs[qid])
            sim_cq_free(sim, sim->cqs[qid]);
    sim->shadow = sim->eventidx = NULL;
    sim->naers = 0;
}

/* Queue memory that is gone is fatal: there is no queue to tell it by. */
static void lost_memory(struct sim_thread *t, const char *kind, uint16_t qid)
{
    sim_violate(t->sim, GPUNVME_SIM_VIOLATION_DMA_UNMAPPED,
                "memory of %s queue %u can't be reached", kind, qid);
    sim_fail(t->sim);
}

static bool write_entry(struct sim_thread *t, struct sim_cq *cq, const uint32_t word[CQE_WORDS])
{
    uint64_t bus = cq->bus + cq->tail * sizeof(struct gpunvme_cqe);
    uint32_t *to = cq->cpu ? cq->cpu + cq->tail * CQE_WORDS : sim_dma_cpu(t->sim, bus, 16);

    if (to) {
        memcpy(to, word, 12);
        /* Whoever sees the phase tag sees the rest, and the data before it. */
        __atomic_store_n(to + 3, word[3], __ATOMIC_RELEASE);
        return true;
    }
    return sim_dma_write(t, bus, word, 12) && sim_dma_write(t, bus + 12, word + 3, 4);
}

/* Posts a completion; false when the queue is full. */
bool sim_post(struct sim_thread *t, const struct sim_pending *pending)
{
    struct sim_sq *sq = pending->sq;
    struct sim_cq *cq = sq->cq;
    uint16_t status = (uint16_t)(pending->status << 1 | cq->phase);
    uint32_t word[CQE_WORDS] = {
        pending->dw0,
        0,
        sq->head | (uint32_t)sq->qid << 16,
        pending->cid | (uint32_t)status << 16,
    };

    if (sim_cq_used(cq) == cq->size - 1) {
        sim_cq_poll(t, cq);
        if (sim_cq_used(cq) == cq->size - 1)
            return false;
    }
    if (cq->broken || !write_entry(t, cq, word)) {
        lost_memory(t, "completion", cq->qid);
        return true;
    }
    sq->reported = sq->head;
    if (++cq->tail == cq->size) {
        cq->tail = 0;
        cq->phase = !cq->phase;
    }
    if (cq->irq)
        sim_irq_post(cq);
    sim_count(sq->qid ? &t->counters.io_commands : &t->counters.admin_commands, 1);
    return true;
}

/* Posts success for n commands of one queue, whose entries were free when they were fetched. */
void sim_post_done(struct sim_thread *t, struct sim_sq *sq, const struct sim_move *moves,
                   uint32_t n)
{
    struct sim_cq *cq = sq->cq;
    uint32_t dw2 = sq->head | (uint32_t)sq->qid << 16;

    if (!cq->cpu || cq->broken) {
        for (uint32_t i = 0; i < n; i++)
            sim_post(t, &(struct sim_pending){.sq = sq, .cid = moves[i].cid});
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t *to = cq->cpu + cq->tail * CQE_WORDS;

        to[0] = to[1] = 0;
        to[2] = dw2;
        __atomic_store_n(to + 3, moves[i].cid | (uint32_t)cq->phase << 16, __ATOMIC_RELEASE);
        if (++cq->tail == cq->size) {
            cq->tail = 0;
            cq->phase = !cq->phase;
        }
    }
    if (cq->irq)
        sim_irq_post(cq);
    sq->reported = sq->head;
    sim_count(&t->counters.io_commands, n);
}

/* A fault that concerns the whole controller; true when it was one. */
static bool apply_drastic_fault(struct gpunvme_sim *sim, const struct sim_fault *fault)
{
    switch (fault->kind) {
    case SIM_FAULT_CFS:
        sim_fail(sim);
        return true;
    case SIM_FAULT_REMOVE:
        sim_control_request(sim, SIM_HALT_REMOVED, SIM_REQUEST_REMOVE);
        return true;
    case SIM_FAULT_POWER_LOSS:
        sim_control_request(sim, SIM_HALT_POWER, SIM_REQUEST_POWER_CYCLE);
        return true;
    default:
        return false;
    }
}

/*
 * Meets the command with a fault, if there is one for it; false when that ended it. Dataset
 * Management is asked about when its ranges are known.
 */
bool sim_pass_faults(struct sim_cmd *cmd, const struct gpunvme_dsm_range *ranges, unsigned nranges)
{
    struct gpunvme_sim *sim = cmd->thread->sim;
    struct sim_fault fault;

    if (!sim_faults_any(sim->faults))
        return true;
    fault = ranges ? sim_faults_match_dsm(sim->faults, cmd->sq->qid, &cmd->sqe, ranges, nranges)
                   : sim_faults_match(sim->faults, cmd->sq->qid, &cmd->sqe);
    if (fault.kind == SIM_FAULT_NONE)
        return true;
    sim_count(&cmd->thread->counters.faults, 1);
    if (apply_drastic_fault(sim, &fault)) {
        sim_cmd_free(cmd);
        return false;
    }
    if (fault.kind == SIM_FAULT_STATUS) {
        sim_cmd_end(cmd, fault.status);
        return false;
    }
    if (fault.kind == SIM_FAULT_DELAY)
        cmd->due_ns = (cmd->due_ns ? cmd->due_ns : sim_now_ns()) + fault.delay_ns;
    cmd->lose = fault.kind == SIM_FAULT_LOSE;
    if (fault.kind == SIM_FAULT_SHUFFLE)
        cmd->shuffle = fault.count;
    return true;
}

static void begin(struct sim_thread *t, struct sim_sq *sq, const struct gpunvme_sqe *sqe)
{
    uint64_t *word = &sq->cids[sqe->cid / 64], bit = 1ull << sqe->cid % 64;
    struct sim_cmd *cmd = sim_cmd_alloc(t);
    uint16_t status;

    cmd->sqe = *sqe;
    cmd->sq = sq;
    sq->inflight++;
    sq->cq->inflight++;
    if (*word & bit) {
        sim_violate(t->sim, GPUNVME_SIM_VIOLATION_CID_IN_USE,
                    "queue %u: command id %u (opcode %02xh) is in use", sq->qid, sqe->cid,
                    sqe->opc);
        cmd->keep_cid = true;
        sim_cmd_end(cmd, GPUNVME_SC_CID_CONFLICT);
        return;
    }
    *word |= bit;
    if (sq->qid && !t->sim->unlimited) {
        uint64_t nbytes;
        enum sim_model_op op = sim_io_model(cmd, &nbytes);
        uint64_t due_ns = sim_model_due_ns(t->sim->model, op, nbytes, t->now_ns);

        cmd->due_ns = due_ns > t->now_ns ? due_ns : 0;
    }
    if (!(sq->qid && sqe->opc == GPUNVME_CMD_DSM) && !sim_pass_faults(cmd, NULL, 0))
        return;
    status = sim_check_command(cmd);
    if (status)
        sim_cmd_end(cmd, status);
    else if (sq->qid)
        sim_io(cmd);
    else
        sim_admin(cmd);
}

/* How many entries may be fetched now, all in one piece of the ring. */
static uint32_t fetchable(const struct sim_sq *sq)
{
    uint32_t n = (sq->tail >= sq->head ? sq->tail : sq->size) - sq->head;
    uint32_t room = sim_cq_room(sq->cq), own = sq->size - sq->inflight;

    if (n > room)
        n = room;
    if (n > own)
        n = own;
    return n < SIM_BATCH ? n : SIM_BATCH;
}

/*
 * An id is free again when its completion is posted, but two entries with one id that came by one
 * doorbell are a conflict all the same: so ids are kept until the batch is through.
 */
static void free_batch_cids(struct sim_thread *t)
{
    struct sim_sq *sq = t->batch_sq;

    for (unsigned i = 0; i < t->nbatch; i++)
        sq->cids[t->batch_cids[i] / 64] &= ~(1ull << t->batch_cids[i] % 64);
    t->batch_sq = NULL;
    t->nbatch = 0;
}

static void fetch_batch(struct sim_thread *t, struct sim_sq *sq, const struct gpunvme_sqe *from,
                        uint32_t n, bool fast)
{
    struct sim_move moves[SIM_BATCH]; /* by the short way */
    uint32_t nmoves = 0;

    t->batch_sq = sq;
    sim_fast_expect(sq, from, n);
    for (uint32_t i = 0; i < n && t->free; i++) {
        struct gpunvme_sqe sqe = from[i];

        /* The driver could change its memory meanwhile: all is decided on this one copy. */
        __asm__ volatile("" : "+m"(sqe));
        if (++sq->head == sq->size)
            sq->head = 0;
        if (fast && sim_fast_prepare(t, sq, &sqe, &moves[nmoves])) {
            nmoves++;
            continue;
        }
        sim_fast_finish(t, sq, moves, nmoves); /* completions in the order of their commands */
        nmoves = 0;
        begin(t, sq, &sqe);
        if (atomic_load(&t->sim->halt))
            break;
    }
    sim_fast_finish(t, sq, moves, nmoves);
    free_batch_cids(t);
}

bool sim_fetch(struct sim_thread *t, struct sim_sq *sq)
{
    struct gpunvme_sqe entries[SIM_BATCH];
    const struct gpunvme_sqe *from = entries;
    bool any;
    uint32_t n;

    if (sq->deleting)
        return false;
    any = sim_sq_poll(t, sq);
    sim_cq_poll(t, sq->cq);
    n = fetchable(sq);
    if (!n || !t->free)
        return any;
    if (sq->broken) {
        lost_memory(t, "submission", sq->qid);
        return true;
    }
    if (sq->cpu) {
        from = &sq->cpu[sq->head];
    } else if (!sim_dma_read(t, sq->bus + sq->head * sizeof(*from), entries, n * sizeof(*from))) {
        lost_memory(t, "submission", sq->qid);
        return true;
    }
    if (!t->sim->unlimited)
        t->now_ns = sim_now_ns();
    /* Asked after the doorbell was seen: it may be a fault that was set before it was rung. */
    fetch_batch(t, sq, from, n, t->sim->unlimited && !sim_faults_any(t->sim->faults));
    return true;
}
