/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The bus: which addresses are memory, and where. Knows no commands.
 *
 * The table changes only while every thread stands still, so whoever holds any thread lock may
 * look it up, and a pointer into it stays valid until that lock is given back.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "sim/engine/host.h"
#include "sim/sim_internal.h"

/* Index of the first range that ends behind `bus`. */
static size_t lower_bound(const struct gpunvme_sim *sim, uint64_t bus)
{
    size_t low = 0, high = sim->nranges;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (sim->ranges[middle].bus + (sim->ranges[middle].nbytes - 1) < bus)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct sim_range *sim_dma_find(const struct gpunvme_sim *sim, const struct sim_range **last,
                                     uint64_t bus)
{
    const struct sim_range *range = *last;
    size_t at;

    if (range && bus - range->bus < range->nbytes)
        return range;
    at = lower_bound(sim, bus);
    if (at == sim->nranges || sim->ranges[at].bus > bus)
        return NULL;
    *last = &sim->ranges[at];
    return *last;
}

/* The CPU address of nbytes that lie in one range; NULL where there is no such. */
void *sim_dma_cpu(const struct gpunvme_sim *sim, uint64_t bus, uint64_t nbytes)
{
    const struct sim_range *last = NULL, *range = sim_dma_find(sim, &last, bus);

    if (!range || !range->cpu || range->nbytes - (bus - range->bus) < nbytes)
        return NULL;
    return range->cpu + (bus - range->bus);
}

bool sim_dma_mapped(const struct gpunvme_sim *sim, uint64_t bus, uint64_t nbytes)
{
    const struct sim_range *last = NULL;

    while (nbytes) {
        const struct sim_range *range = sim_dma_find(sim, &last, bus);
        uint64_t here;

        if (!range)
            return false;
        here = range->nbytes - (bus - range->bus);
        if (here >= nbytes)
            return true;
        nbytes -= here;
        bus += here;
    }
    return true;
}

static bool move(struct sim_thread *t, uint64_t bus, uint8_t *memory, size_t nbytes, bool to_bus)
{
    while (nbytes) {
        const struct sim_range *range = sim_dma_find(t->sim, &t->last_list, bus);
        uint64_t at = range ? bus - range->bus : 0;
        size_t here = range && range->nbytes - at < nbytes ? range->nbytes - at : nbytes;

        if (!range)
            return false;
        if (range->move) {
            if (!range->move(range->move_arg, bus, memory, here, to_bus))
                return false;
        } else if (range->cpu) {
            memcpy(to_bus ? range->cpu + at : memory, to_bus ? memory : range->cpu + at, here);
        } else if (to_bus) {
            if (!sim_mover_copy(t, range->gpu + at, range->mem, memory, GPUNVME_MEM_HOST, here))
                return false;
        } else if (!sim_mover_copy(t, memory, GPUNVME_MEM_HOST, range->gpu + at, range->mem,
                                   here)) {
            return false;
        }
        memory += here;
        bus += here;
        nbytes -= here;
    }
    return true;
}

bool sim_dma_read(struct sim_thread *t, uint64_t bus, void *to, size_t nbytes)
{
    return move(t, bus, to, nbytes, false);
}

bool sim_dma_write(struct sim_thread *t, uint64_t bus, const void *from, size_t nbytes)
{
    return move(t, bus, (uint8_t *)(uintptr_t)from, nbytes, true);
}

/* What threads remember of the table is void now. */
static void forget_lookups(struct gpunvme_sim *sim)
{
    for (unsigned i = 0; i < sim->nthreads; i++)
        sim->threads[i].last_data = sim->threads[i].last_list = NULL;
}

static gpunvme_err_t insert(struct gpunvme_sim *sim, const struct sim_range *range)
{
    size_t at = lower_bound(sim, range->bus);

    if (at < sim->nranges && sim->ranges[at].bus - range->bus < range->nbytes)
        return base_fail(GPUNVME_ERR_INVALID, "bus address %llxh is mapped already",
                         (unsigned long long)sim->ranges[at].bus);
    if (at < sim->nranges && sim->ranges[at].bus <= range->bus)
        return base_fail(GPUNVME_ERR_INVALID, "bus address %llxh is mapped already",
                         (unsigned long long)range->bus);
    if (sim->nranges == sim->ranges_room) {
        size_t room = sim->ranges_room ? sim->ranges_room * 2 : 64;
        struct sim_range *ranges = realloc(sim->ranges, room * sizeof(*ranges));

        if (!ranges)
            return base_fail(GPUNVME_ERR_NOMEM, "a table of %zu mappings", room);
        sim->ranges = ranges;
        sim->ranges_room = room;
    }
    memmove(&sim->ranges[at + 1], &sim->ranges[at], (sim->nranges - at) * sizeof(*range));
    sim->ranges[at] = *range;
    sim->nranges++;
    return GPUNVME_OK;
}

/* Queues whose memory went away and is back. */
static void mend_queues(struct gpunvme_sim *sim)
{
    for (unsigned qid = 0; qid <= sim->config.max_queues; qid++) {
        struct sim_sq *sq = sim->sqs[qid];
        struct sim_cq *cq = sim->cqs[qid];
        uint64_t sq_nbytes = sq ? sq->size * sizeof(struct gpunvme_sqe) : 0;
        uint64_t cq_nbytes = cq ? cq->size * sizeof(struct gpunvme_cqe) : 0;

        if (sq && sq->broken && sim_dma_mapped(sim, sq->bus, sq_nbytes)) {
            sq->cpu = sim_dma_cpu(sim, sq->bus, sq_nbytes);
            sq->broken = false;
        }
        if (cq && cq->broken && sim_dma_mapped(sim, cq->bus, cq_nbytes)) {
            cq->cpu = sim_dma_cpu(sim, cq->bus, cq_nbytes);
            cq->broken = false;
        }
    }
}

gpunvme_err_t gpunvme_sim_dma_map(struct gpunvme_sim *sim, uint64_t bus, uint64_t nbytes,
                                  const struct gpunvme_buf *buf)
{
    struct sim_range range = {.bus = bus, .nbytes = nbytes};
    gpunvme_err_t err;

    if (!buf || !nbytes || bus + (nbytes - 1) < bus || nbytes > buf->nbytes)
        return base_fail(GPUNVME_ERR_INVALID, "%llu bytes at bus address %llxh",
                         (unsigned long long)nbytes, (unsigned long long)bus);
    if (!buf->cpu && !buf->gpu)
        return base_fail(GPUNVME_ERR_INVALID, "the buffer has no address");
    range.cpu = buf->cpu;
    range.gpu = buf->gpu;
    range.mem = buf->mem;
    err = sim_keeper_reach(sim, &range);
    if (!err && !range.cpu)
        err = sim_movers_open(sim, buf, &range);
    if (err)
        return err;
    sim_pause_all(sim);
    err = sim_keeper_room(sim, &range);
    if (!err)
        err = insert(sim, &range);
    forget_lookups(sim);
    mend_queues(sim);
    if (!err)
        sim_keeper_remap(sim, &range);
    sim_resume_all(sim);
    return err;
}

/* Maps bytes that only the function reaches. It is called under a thread's lock. */
gpunvme_err_t sim_dma_map_far(struct gpunvme_sim *sim, uint64_t bus, uint64_t nbytes,
                              sim_move_fn *move_, void *arg)
{
    struct sim_range range = {
        .bus = bus, .nbytes = nbytes, .mem = GPUNVME_MEM_HOST, .move = move_, .move_arg = arg};
    gpunvme_err_t err;

    sim_pause_all(sim);
    err = insert(sim, &range);
    forget_lookups(sim);
    mend_queues(sim);
    sim_resume_all(sim);
    return err;
}

static bool overlap(uint64_t a, uint64_t na, uint64_t b, uint64_t nb)
{
    return a - b < nb || b - a < na;
}

/* Does a store move bytes to or from the range just now? */
static bool range_is_busy(struct gpunvme_sim *sim, const struct sim_range *range)
{
    for (unsigned i = 0; range->cpu && i < sim->nthreads; i++) {
        struct sim_thread *t = &sim->threads[i];

        for (unsigned c = 0; t->nactive && c < SIM_COMMANDS; c++) {
            const struct sim_store_io *io = &t->commands[c].io;

            for (unsigned v = 0; t->commands[c].in_store && v < io->niov; v++)
                if (overlap((uintptr_t)io->iov[v].iov_base, io->iov[v].iov_len,
                            (uintptr_t)range->cpu, range->nbytes))
                    return true;
        }
    }
    return false;
}

/*
 * May the host take memory from under the queues? After a shutdown it may, with CC.EN still 1. And
 * a virtual machine's moves about as its firmware works: that is wrong only if it is missed.
 */
static bool may_take_memory(struct gpunvme_sim *sim)
{
    uint32_t csts = atomic_load(&sim->csts);

    return atomic_load(&sim->remaps) ||
           atomic_load(&sim->halt) & (SIM_HALT_FATAL | SIM_HALT_REMOVED | SIM_HALT_RESET) ||
           GPUNVME_GET(csts, CSTS_SHST) == GPUNVME_CSTS_SHST_COMPLETE;
}

/* Queues in memory that goes away: nothing touches them again. */
static void break_queues(struct gpunvme_sim *sim, const struct sim_range *range)
{
    bool excused = may_take_memory(sim);

    for (unsigned qid = 0; qid <= sim->config.max_queues; qid++) {
        struct sim_sq *sq = sim->sqs[qid];
        struct sim_cq *cq = sim->cqs[qid];
        bool sq_hit = sq && overlap(sq->bus, sq->size * sizeof(struct gpunvme_sqe), range->bus,
                                    range->nbytes);
        bool cq_hit = cq && overlap(cq->bus, cq->size * sizeof(struct gpunvme_cqe), range->bus,
                                    range->nbytes);

        if (sq_hit)
            sq->broken = true;
        if (cq_hit)
            cq->broken = true;
        if ((sq_hit || cq_hit) && !excused)
            sim_violate(sim, GPUNVME_SIM_VIOLATION_QUEUE_MEMORY,
                        "memory of %s queue %u unmapped under it",
                        sq_hit ? "submission" : "completion", qid);
    }
    if (sim->shadow && (overlap(sim->shadow_bus, sim->page, range->bus, range->nbytes) ||
                        overlap(sim->eventidx_bus, sim->page, range->bus, range->nbytes))) {
        if (!excused)
            sim_violate(sim, GPUNVME_SIM_VIOLATION_QUEUE_MEMORY,
                        "the shadow doorbells were unmapped under the controller");
        sim_shadow_forget(sim);
    }
}

/* Under all thread locks: removes the range, AGAIN while a store uses it. */
static gpunvme_err_t try_unmap(struct gpunvme_sim *sim, uint64_t bus, uint64_t nbytes)
{
    size_t at = lower_bound(sim, bus);
    struct sim_range range;

    if (at == sim->nranges || sim->ranges[at].bus != bus || sim->ranges[at].nbytes != nbytes)
        return base_fail(GPUNVME_ERR_INVALID, "%llu bytes at bus address %llxh are not a mapping",
                         (unsigned long long)nbytes, (unsigned long long)bus);
    if (range_is_busy(sim, &sim->ranges[at]))
        return GPUNVME_ERR_AGAIN;
    range = sim->ranges[at];
    break_queues(sim, &range);
    sim->nranges--;
    memmove(&sim->ranges[at], &sim->ranges[at + 1], (sim->nranges - at) * sizeof(sim->ranges[0]));
    forget_lookups(sim);
    sim_keeper_remap(sim, &range);
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_sim_dma_unmap(struct gpunvme_sim *sim, uint64_t bus, uint64_t nbytes)
{
    uint64_t end_ns = sim_now_ns() + SIM_FUSE_NS;

    for (;;) {
        gpunvme_err_t err;

        sim_pause_all(sim);
        err = try_unmap(sim, bus, nbytes);
        sim_resume_all(sim);
        if (err != GPUNVME_ERR_AGAIN)
            return err;
        if (sim_now_ns() > end_ns)
            return base_fail(GPUNVME_ERR_TIMEOUT, "transfers to bus address %llxh do not end",
                             (unsigned long long)bus);
        sim_pause_ns(20000);
    }
}
