/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The inside of the engine's keeper (host.h): its structure, and what its files say to each
 * other. What the engine works on is one block of GPU memory, laid out by struct keeper_layout. The
 * host has a mirror of the parts that both write; it is right while the engine does not run.
 */
#ifndef SIM_ENGINE_KEEPER_H
#define SIM_ENGINE_KEEPER_H

#include <pthread.h>

#include "sim/engine/host.h"
#include "sim/engine/launch.h"

/* Offsets into the block of GPU memory. */
struct keeper_layout {
    size_t queues, cids, pending, ranges, spread, channels, nbytes;
};

/* One element of the engine's array of queues. */
struct keeper_slot {
    struct sim_sq *sq;                   /* NULL: free */
    struct sim_engine_counters absorbed; /* of its counters, what is in the totals */
};

struct sim_keeper {
    struct gpunvme_sim *sim;
    struct sim_launcher *launcher;
    bool on_thread; /* GPU memory is host memory */
    unsigned device;
    struct gpunvme_buf memory, pinned, doorbells;
    struct sim_engine_host *host; /* in pinned; queues' published counters lie behind it */
    struct keeper_layout at;
    unsigned room; /* slots */
    bool started;  /* the thread is */

    pthread_mutex_t lock; /* guards all below, and the memory while the engine does not run */
    pthread_cond_t wake;  /* the engine may run now, or the thread is to end */
    pthread_t pthread;
    bool stop;
    bool running;
    bool broken;         /* CUDA failed, or the kernel does not end: it is never started again */
    bool ranges_changed; /* since they were written */
    bool idle;           /* it had nothing to do */
    unsigned nslots;     /* up to the last one in use */
    unsigned nactive;    /* in use */
    uint64_t peers;      /* a bit for each GPU that is reached */
    struct sim_engine mirror;
    struct sim_engine_queue *queues; /* mirror, `room` of them */
    struct keeper_slot *slots;
    bool *cqs; /* by id: a completion queue of the engine's, whose doorbell is here until it goes */
    struct sim_counters totals;
};

/*
 * host.c; under the lock. give_up tells the driver by CSTS.CFS. stop is false where what the
 * engine uses may not be touched any more. start does nothing where there is nothing to do.
 */
gpunvme_err_t keeper_put(const struct sim_keeper *k, size_t offset, const void *from,
                         size_t nbytes);
gpunvme_err_t keeper_get(const struct sim_keeper *k, size_t offset, void *to, size_t nbytes);
void keeper_give_up(struct sim_keeper *k);
bool keeper_stop(struct sim_keeper *k);
void keeper_start(struct sim_keeper *k);

static inline uint8_t *keeper_at(const struct sim_keeper *k, size_t offset)
{
    return (uint8_t *)k->memory.gpu + offset;
}

/* queues.c */
gpunvme_err_t keeper_write_ranges(struct sim_keeper *k);

/* tell.c: doorbells, by 2 x queue id, + 1 for a completion queue; and what was counted */
uint32_t *keeper_doorbell(const struct sim_keeper *k, unsigned index);
gpunvme_err_t keeper_clear_doorbell(const struct sim_keeper *k, unsigned index);
gpunvme_err_t keeper_clear_doorbells(const struct sim_keeper *k);
void keeper_find_strays(struct sim_keeper *k);
void keeper_absorb(struct sim_keeper *k, struct keeper_slot *slot,
                   const struct sim_engine_queue *queue);

#endif
