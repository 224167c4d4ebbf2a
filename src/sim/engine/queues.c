/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The queues that the engine serves, and the memory that it reaches: how they are written to where
 * it finds them, and how a queue is taken back.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "memory/cuda.h"
#include "sim/engine/keeper.h"

static gpunvme_err_t keeper_zero(const struct sim_keeper *k, size_t offset, size_t nbytes)
{
    return gpunvme_mem_fill(keeper_at(k, offset), GPUNVME_MEM_GPU, 0, nbytes);
}

/* Where the engine finds a range; NULL: nowhere. */
static uint8_t *keeper_range_at(const struct sim_keeper *k, const struct sim_range *range)
{
    if (range->move)
        return NULL;
    if (k->on_thread)
        return range->cpu;
    return range->mem == GPUNVME_MEM_HOST ? NULL : range->gpu;
}

gpunvme_err_t keeper_write_ranges(struct sim_keeper *k)
{
    struct sim_engine_range *ranges = calloc(SIM_ENGINE_MAX_RANGES, sizeof(*ranges));
    gpunvme_err_t err = GPUNVME_OK;
    uint32_t n = 0;

    if (!ranges)
        return base_fail(GPUNVME_ERR_NOMEM, "the engine's table of mappings");
    for (size_t i = 0; i < k->sim->nranges && n < SIM_ENGINE_MAX_RANGES; i++) {
        const struct sim_range *range = &k->sim->ranges[i];
        uint8_t *at = keeper_range_at(k, range);

        if (at)
            ranges[n++] = (struct sim_engine_range){range->bus, range->nbytes, at};
    }
    if (n)
        err = keeper_put(k, k->at.ranges, ranges, n * sizeof(*ranges));
    k->mirror.nranges = n;
    free(ranges);
    return err;
}

static uint8_t *reach(const struct sim_keeper *k, uint64_t bus, uint64_t nbytes)
{
    const struct sim_range *last = NULL, *range = sim_dma_find(k->sim, &last, bus);

    if (!range || range->mem != GPUNVME_MEM_GPU || range->nbytes - (bus - range->bus) < nbytes ||
        !keeper_range_at(k, range))
        return NULL;
    return keeper_range_at(k, range) + (bus - range->bus);
}

bool sim_keeper_suits(const struct gpunvme_sim *sim, uint64_t bus, uint64_t nbytes)
{
    return sim->keeper && reach(sim->keeper, bus, nbytes);
}

/* Where a queue's memory is now; a queue without is passed over until it is back. */
static void locate(const struct sim_keeper *k, const struct sim_sq *sq,
                   struct sim_engine_queue *queue)
{
    const struct sim_cq *cq = sq->cq;

    queue->sq =
        (const struct gpunvme_sqe *)(const void *)reach(k, sq->bus, sq->size * sizeof(*queue->sq));
    queue->cq = (struct gpunvme_cqe *)(void *)reach(k, cq->bus, cq->size * sizeof(*queue->cq));
    queue->active = queue->sq && queue->cq && !sq->broken && !cq->broken;
}

static gpunvme_err_t write_queue(const struct sim_keeper *k, unsigned i)
{
    return keeper_put(k, k->at.queues + i * sizeof(*k->queues), &k->queues[i], sizeof(*k->queues));
}

static struct sim_engine_counters *published(const struct sim_keeper *k, unsigned i, bool gpu)
{
    uint8_t *base = gpu ? k->pinned.gpu : k->pinned.cpu;

    return (struct sim_engine_counters *)(void *)(base + sizeof(struct sim_engine_host)) + i;
}

/* Fills a slot in. */
static gpunvme_err_t write_new_queue(struct sim_keeper *k, unsigned i, struct sim_sq *sq)
{
    size_t cids = k->at.cids + i * (SIM_ENGINE_CID_WORDS * sizeof(uint32_t));
    size_t pending =
        k->at.pending + i * (SIM_ENGINE_MAX_THREADS * sizeof(struct sim_engine_pending));
    gpunvme_err_t err;

    k->queues[i] = (struct sim_engine_queue){
        .sq_doorbell = keeper_doorbell(k, 2u * sq->qid),
        .cq_doorbell = keeper_doorbell(k, 2u * sq->cq->qid + 1),
        .cids = (uint32_t *)(void *)keeper_at(k, cids),
        .pending = (struct sim_engine_pending *)(void *)keeper_at(k, pending),
        .publish = published(k, i, true),
        .sq_size = sq->size,
        .cq_size = sq->cq->size,
        .sqid = sq->qid,
        .cqid = sq->cq->qid,
    };
    locate(k, sq, &k->queues[i]);
    memset(published(k, i, false), 0, sizeof(struct sim_engine_counters));
    err = keeper_zero(k, cids, SIM_ENGINE_CID_WORDS * sizeof(uint32_t));
    if (!err)
        err = keeper_zero(k, pending, SIM_ENGINE_MAX_THREADS * sizeof(struct sim_engine_pending));
    if (!err)
        err = keeper_clear_doorbell(k, 2u * sq->qid);
    if (!err)
        err = keeper_clear_doorbell(k, 2u * sq->cq->qid + 1);
    return err ? err : write_queue(k, i);
}

/* With the engine stopped. */
static uint16_t add_queue(struct sim_keeper *k, struct sim_sq *sq)
{
    unsigned i = 0;

    while (i < k->room && k->slots[i].sq)
        i++;
    if (i == k->room)
        return GPUNVME_SC_INTERNAL;
    if (k->ranges_changed && keeper_write_ranges(k))
        return GPUNVME_SC_INTERNAL;
    k->ranges_changed = false;
    if (write_new_queue(k, i, sq))
        return GPUNVME_SC_INTERNAL;
    k->slots[i] = (struct keeper_slot){.sq = sq};
    k->cqs[sq->cq->qid] = true;
    if (i >= k->nslots)
        k->nslots = i + 1;
    k->nactive++;
    k->idle = false;
    return GPUNVME_SC_SUCCESS;
}

uint16_t sim_keeper_add(struct gpunvme_sim *sim, struct sim_sq *sq)
{
    struct sim_keeper *k = sim->keeper;
    uint16_t status = GPUNVME_SC_INTERNAL;

    pthread_mutex_lock(&k->lock);
    if (keeper_stop(k)) {
        status = add_queue(k, sq);
        keeper_start(k);
    }
    pthread_mutex_unlock(&k->lock);
    return status;
}

/* What the engine has made of the queues becomes what sim_post() works on. */
static void take_over(struct sim_sq *sq, const struct sim_engine_queue *queue)
{
    struct sim_cq *cq = sq->cq;

    sq->head = queue->sq_head;
    sq->tail = queue->sq_tail;
    cq->head = queue->cq_head;
    cq->tail = (uint32_t)(queue->counters.commands % cq->size);
    cq->phase = !(queue->counters.commands / cq->size & 1);
}

/* Under the lock of the queue's thread. Each has its entry reserved, so there is room for it. */
static void abort_pending(struct sim_keeper *k, unsigned i)
{
    static const size_t nbytes = SIM_ENGINE_MAX_THREADS * sizeof(struct sim_engine_pending);
    struct sim_sq *sq = k->slots[i].sq;
    struct sim_engine_pending *pending = malloc(nbytes);

    if (!pending || keeper_get(k, k->at.pending + i * nbytes, pending, nbytes)) {
        free(pending);
        keeper_give_up(k);
        return;
    }
    take_over(sq, &k->queues[i]);
    for (unsigned at = 0; at < SIM_ENGINE_MAX_THREADS; at++) {
        struct sim_pending ended = {.sq = sq,
                                    .cid = (uint16_t)pending[at].cid_status,
                                    .status = GPUNVME_SC_ABORT_SQ_DELETED};

        if (!(pending[at].flags & SIM_ENGINE_PENDING_USED))
            continue;
        sim_count(&sq->thread->counters.errors, 1);
        if (!sim_post(sq->thread, &ended))
            sim_fail(k->sim);
    }
    free(pending);
}

/* With the engine stopped. */
static gpunvme_err_t free_slot(struct sim_keeper *k, unsigned i)
{
    const struct sim_sq *sq = k->slots[i].sq;
    gpunvme_err_t err;

    k->queues[i].active = 0;
    k->slots[i].sq = NULL;
    k->nactive--;
    err = write_queue(k, i);
    if (!err)
        err = keeper_clear_doorbell(k, 2u * sq->qid);
    while (k->nslots && !k->slots[k->nslots - 1].sq)
        k->nslots--;
    return err;
}

uint16_t sim_keeper_delete(struct gpunvme_sim *sim, struct sim_sq *sq)
{
    struct sim_keeper *k = sim->keeper;
    uint16_t status = GPUNVME_SC_INTERNAL;

    pthread_mutex_lock(&k->lock);
    if (keeper_stop(k)) {
        for (unsigned i = 0; i < k->nslots; i++) {
            if (k->slots[i].sq != sq)
                continue;
            abort_pending(k, i);
            status = free_slot(k, i) ? GPUNVME_SC_INTERNAL : GPUNVME_SC_SUCCESS;
            break;
        }
        keeper_start(k);
    }
    pthread_mutex_unlock(&k->lock);
    return status;
}

void sim_keeper_free_cq(struct gpunvme_sim *sim, const struct sim_cq *cq)
{
    struct sim_keeper *k = sim->keeper;

    pthread_mutex_lock(&k->lock);
    k->cqs[cq->qid] = false;
    if (!k->broken && keeper_clear_doorbell(k, 2u * cq->qid + 1))
        keeper_give_up(k);
    pthread_mutex_unlock(&k->lock);
}

void sim_keeper_forget(struct gpunvme_sim *sim)
{
    struct sim_keeper *k = sim->keeper;

    if (!k)
        return;
    pthread_mutex_lock(&k->lock);
    keeper_stop(k);
    for (unsigned i = 0; i < k->nslots; i++)
        k->slots[i].sq = NULL;
    memset(k->cqs, 0, (k->sim->config.max_queues + 1u) * sizeof(*k->cqs));
    k->nslots = k->nactive = 0;
    if (!k->broken && keeper_clear_doorbells(k))
        keeper_give_up(k);
    pthread_mutex_unlock(&k->lock);
}

/*
 * ---- Memory -----------------------------------------------------------------------------------
 */

gpunvme_err_t sim_keeper_reach(struct gpunvme_sim *sim, const struct sim_range *range)
{
    struct sim_keeper *k = sim->keeper;
    gpunvme_err_t err = GPUNVME_OK;
    int device = -1;

    if (!k || k->on_thread || range->mem != GPUNVME_MEM_GPU || !range->gpu ||
        mem_cuda_kind(range->gpu, &device) != MEM_CUDA_DEVICE || device < 0 || device >= 64)
        return GPUNVME_OK;
    pthread_mutex_lock(&k->lock);
    if (!(k->peers >> device & 1))
        err = mem_cuda_peers(k->device, (unsigned)device);
    if (!err)
        k->peers |= 1ull << device;
    pthread_mutex_unlock(&k->lock);
    return err;
}

gpunvme_err_t sim_keeper_room(struct gpunvme_sim *sim, const struct sim_range *range)
{
    struct sim_keeper *k = sim->keeper;
    size_t n = 0;

    if (!k || !keeper_range_at(k, range))
        return GPUNVME_OK;
    for (size_t i = 0; i < sim->nranges; i++)
        n += keeper_range_at(k, &sim->ranges[i]) != NULL;
    if (n >= SIM_ENGINE_MAX_RANGES)
        return base_fail(GPUNVME_ERR_LIMIT,
                         "engine=gpu reaches %d buffers at a time: take fewer, larger ones",
                         SIM_ENGINE_MAX_RANGES);
    return GPUNVME_OK;
}

/* With the engine stopped: queues whose memory came or went. */
static gpunvme_err_t locate_queues(struct sim_keeper *k)
{
    gpunvme_err_t err = GPUNVME_OK;

    for (unsigned i = 0; !err && i < k->nslots; i++) {
        if (!k->slots[i].sq)
            continue;
        locate(k, k->slots[i].sq, &k->queues[i]);
        err = write_queue(k, i);
    }
    return err;
}

void sim_keeper_remap(struct gpunvme_sim *sim, const struct sim_range *range)
{
    struct sim_keeper *k = sim->keeper;

    if (!k || !keeper_range_at(k, range))
        return;
    pthread_mutex_lock(&k->lock);
    k->ranges_changed = true;
    if (k->nactive && keeper_stop(k)) {
        if (keeper_write_ranges(k) || locate_queues(k))
            keeper_give_up(k);
        k->ranges_changed = false;
        keeper_start(k);
    }
    pthread_mutex_unlock(&k->lock);
}
