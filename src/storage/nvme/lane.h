/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The lanes of a controller: all stores of an engine that are on one controller share them. A lane
 * is a queue pair with bounce buffers and slots. Made when the first of the stores is opened.
 */
#ifndef STORAGE_NVME_LANE_H
#define STORAGE_NVME_LANE_H

#include "storage/engine.h"
#include "storage/nvme/store.h"

struct nvme_lanes {
    struct nvme_lanes *next; /* of other controllers */
    struct nvme_share *share;
    struct crew *crew;
    unsigned users;
    uint32_t depth, entries; /* slots of a lane, entries of its queue */
    size_t chunk;            /* of a bounce buffer */
    uint64_t copy_timeout_ns;
    unsigned first;                               /* worker */
    unsigned n;                                   /* lanes */
    struct gpunvme_ioq *ioqs[ENGINE_MAX_THREADS]; /* by lane; NULL: another driver's queue */
    bool is_left; /* the GPU may reach for memory of it for ever: the controller stays open */
};

/*
 * The lanes for a store that wants `n` of them, of s->depth and s->chunk if it is the first; fewer
 * where there are no more workers or queues. Sets s->lanes. LIMIT: there is not one queue.
 */
gpunvme_err_t nvme_lanes_take(struct gpunvme_engine *engine, struct nvme_store *s, unsigned n);

/* A store is closed. The last one frees them. False: memory is left to the GPU. NULL is fine. */
bool nvme_lanes_leave(struct gpunvme_engine *engine, struct nvme_lanes *lanes);

/* How long a thread that has commands in flight has seen nothing happen. */
struct nvme_lull {
    unsigned turns;
    uint64_t since, looked, seen;
};

/*
 * Nothing has happened: spins or sleeps a little, at most `ns`, also without a queue. True, now and
 * then: it is time to look after the controller.
 */
bool nvme_wait_a_little(struct gpunvme_ioq *ioq, struct nvme_lull *lull, uint64_t ns);

/* Bounce buffers of a lane or a caller: `n` of `chunk` bytes. False: they are left to the GPU. */
gpunvme_err_t nvme_make_bounces(const struct nvme_share *share, struct nvme_bounces *bounces,
                                unsigned n, size_t chunk);
bool nvme_free_bounces(const struct nvme_share *share, struct nvme_bounces *bounces,
                       uint64_t timeout_ns);

#endif
