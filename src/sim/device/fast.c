/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The short way: a read or write of at most one memory page, nothing unusual about it, between
 * mapped memory and a store in memory. Whatever is not so goes the long way (queue.c), which does
 * the same and tells what is wrong; nothing here may report anything. GPU memory is reached by one
 * copy for the whole batch.
 */
#include <string.h>

#include "sim/sim_internal.h"

#define CACHE_LINE 64

static struct sim_ns *plain_ns(struct gpunvme_sim *sim, uint32_t nsid)
{
    for (uint32_t i = 0; i < sim->nns; i++)
        if (sim->ns[i].nsid == nsid)
            return &sim->ns[i];
    return NULL;
}

static bool is_plain(const struct gpunvme_sqe *sqe)
{
    return sim_command_plain(sqe) && !(sqe->flags | sqe->prp2 | (sqe->prp1 & 3));
}

/* Asks for memory that will be read soon: all of a batch, so that the waits overlap. */
static void prefetch(const uint8_t *memory, uint64_t nbytes)
{
    for (uint64_t at = 0; at < nbytes; at += CACHE_LINE)
        __builtin_prefetch(memory + at);
}

static void prefetch_for_write(const void *memory)
{
#if defined(__x86_64__)
    /* __builtin_prefetch(memory, 1) would get the line for reading only. */
    __asm__ volatile("prefetchw %0" ::"m"(*(const char *)memory));
#else
    __builtin_prefetch(memory, 1);
#endif
}

/*
 * n commands are about to be prepared, out of those that the driver has told of: asks for their
 * entries and for the next ones, and for the entries of their completions.
 */
void sim_fast_expect(const struct sim_sq *sq, const struct gpunvme_sqe *from, uint32_t n)
{
    const struct sim_cq *cq = sq->cq;
    uint32_t end = sq->tail >= sq->head ? sq->tail : sq->size;
    uint32_t nknown = sq->cpu && end - sq->head > n ? end - sq->head : n;

    for (uint32_t i = 0; i < nknown && i < 2 * n; i++)
        __builtin_prefetch(&from[i]);
    for (uint32_t i = 0; cq->cpu && i < n; i += CACHE_LINE / sizeof(struct gpunvme_cqe)) {
        uint32_t at = cq->tail + i < cq->size ? cq->tail + i : cq->tail + i - cq->size;

        prefetch_for_write(cq->cpu + at * sizeof(struct gpunvme_cqe) / sizeof(*cq->cpu));
    }
}

/*
 * True when the command is one for the short way: then *move says what to copy, and the rest is
 * for sim_fast_finish(). A batch is prepared first, then copied, then completed: the memory that
 * it reads is on its way meanwhile, and completions written one after the other cost far fewer
 * moves of their cache lines between this thread and the one that polls them.
 */
bool sim_fast_prepare(struct sim_thread *t, struct sim_sq *sq, const struct gpunvme_sqe *sqe,
                      struct sim_move *move)
{
    uint64_t *word = &sq->cids[sqe->cid / 64], bit = 1ull << sqe->cid % 64;
    uint32_t nlb = (sqe->cdw12 & GPUNVME_RW_NLB_MASK) + 1;
    uint64_t slba = sqe->cdw10 | (uint64_t)sqe->cdw11 << 32, nbytes;
    bool write = sqe->opc == GPUNVME_CMD_WRITE;
    const struct sim_range *range;
    const struct sim_ns *ns;
    uint8_t *memory, *media;

    if (!is_plain(sqe) || *word & bit)
        return false;
    ns = plain_ns(t->sim, sqe->nsid);
    if (!ns || !ns->direct || (write && ns->config->readonly) || ns->config->metadata_size ||
        slba >= ns->nblocks || nlb > ns->nblocks - slba)
        return false;
    nbytes = (uint64_t)nlb << ns->shift;
    if ((sqe->prp1 & (t->sim->page - 1)) + nbytes > t->sim->page)
        return false;
    range = sim_dma_find(t->sim, &t->last_data, sqe->prp1);
    if (!range || range->move || range->nbytes - (sqe->prp1 - range->bus) < nbytes)
        return false;
    if (!range->cpu && (!range->in_batches || nbytes > SIM_MOVE_BYTES))
        return false;
    memory = (range->cpu ? range->cpu : range->gpu) + (sqe->prp1 - range->bus);
    media = ns->direct + (slba << ns->shift);
    *word |= bit;
    t->batch_cids[t->nbatch++] = sqe->cid;
    *move = (struct sim_move){.to = write ? media : memory,
                              .from = write ? memory : media,
                              .nbytes = nbytes,
                              .cid = sqe->cid,
                              .write = write,
                              .by_copy = !range->cpu};
    if (range->cpu || !write)
        prefetch(move->from, nbytes);
    return true;
}

/* Commands whose data could not be moved: seldom, so one by one. */
static void post_failed(struct sim_thread *t, struct sim_sq *sq, const struct sim_move *moves,
                        uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        sim_post(t, &(struct sim_pending){
                        .sq = sq, .cid = moves[i].cid, .status = GPUNVME_SC_DATA_TRANSFER_ERROR});
}

/* Copies and completes what was prepared. */
void sim_fast_finish(struct sim_thread *t, struct sim_sq *sq, const struct sim_move *moves,
                     uint32_t n)
{
    uint64_t nbytes[2] = {0}, nwrites = 0;
    bool by_copy = false;

    for (uint32_t i = 0; i < n; i++)
        by_copy |= moves[i].by_copy;
    if (by_copy && !sim_mover_batch(t, moves, n)) {
        post_failed(t, sq, moves, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!moves[i].by_copy)
            memcpy(moves[i].to, moves[i].from, moves[i].nbytes);
        nbytes[moves[i].write] += moves[i].nbytes;
        nwrites += moves[i].write;
    }
    sim_count(&t->counters.bytes_read, nbytes[0]);
    sim_count(&t->counters.bytes_written, nbytes[1]);
    sim_count(&t->counters.host_reads, n - nwrites);
    sim_count(&t->counters.host_writes, nwrites);
    if (n)
        sim_post_done(t, sq, moves, n);
}
