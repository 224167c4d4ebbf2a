/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The short way: a read or write of at most one memory page, nothing unusual about it, between
 * mapped host memory and a store in memory. Whatever is not so goes the long way (queue.c), which
 * does the same and tells what is wrong; nothing here may report anything.
 */
#include <string.h>

#include "sim/sim_internal.h"

/* Bits that must be 0 here: reserved ones, and those that ask for more than to move bytes. */
#define CDW12_PLAIN (GPUNVME_RW_NLB_MASK | GPUNVME_RW_FUA | GPUNVME_RW_LR)
#define CDW13_PLAIN GPUNVME_RW_DSM_MASK

static struct sim_ns *plain_ns(struct gpunvme_sim *sim, uint32_t nsid)
{
    for (uint32_t i = 0; i < sim->nns; i++)
        if (sim->ns[i].nsid == nsid)
            return &sim->ns[i];
    return NULL;
}

static bool is_plain(const struct gpunvme_sqe *sqe)
{
    return (sqe->opc == GPUNVME_CMD_READ || sqe->opc == GPUNVME_CMD_WRITE) &&
           !(sqe->flags | sqe->cdw2 | sqe->cdw3 | sqe->prp2 | (sqe->cdw12 & ~CDW12_PLAIN) |
             (sqe->cdw13 & ~CDW13_PLAIN) | (sqe->prp1 & 3));
}

/*
 * True when the command was done. Its completion is the caller's to post, with those of the rest
 * of the batch: entries written one after the other cost far fewer moves of their cache lines
 * between this thread and the one that polls them.
 */
bool sim_fast_rw(struct sim_thread *t, struct sim_sq *sq, const struct gpunvme_sqe *sqe)
{
    uint64_t *word = &sq->cids[sqe->cid / 64], bit = 1ull << sqe->cid % 64;
    uint32_t nlb = (sqe->cdw12 & GPUNVME_RW_NLB_MASK) + 1;
    uint64_t slba = sqe->cdw10 | (uint64_t)sqe->cdw11 << 32, nbytes;
    bool write = sqe->opc == GPUNVME_CMD_WRITE;
    const struct sim_range *range;
    const struct sim_ns *ns;
    uint8_t *memory;

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
    if (!range || !range->cpu || range->nbytes - (sqe->prp1 - range->bus) < nbytes)
        return false;
    memory = range->cpu + (sqe->prp1 - range->bus);
    *word |= bit;
    t->batch_cids[t->nbatch++] = sqe->cid;
    if (write)
        memcpy(ns->direct + (slba << ns->shift), memory, nbytes);
    else
        memcpy(memory, ns->direct + (slba << ns->shift), nbytes);
    sim_count(write ? &t->counters.bytes_written : &t->counters.bytes_read, nbytes);
    sim_count(write ? &t->counters.host_writes : &t->counters.host_reads, 1);
    return true;
}
