/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The engine's keeper: gives it the queues that are in GPU memory, keeps it running while there are
 * any, and brings what it counted and found wrong into the controller's own report. Every change
 * (a queue, a DMA mapping, a fault rule) stops the engine, is made, and starts it again; nothing is
 * restarted where nothing of the engine's changes.
 *
 * Without engine=gpu there is no keeper, and every function here does nothing.
 *
 * The keeper's lock comes behind the thread locks and before the leaf locks.
 */
#ifndef SIM_ENGINE_HOST_H
#define SIM_ENGINE_HOST_H

#include "sim/sim_internal.h"

gpunvme_err_t sim_keeper_create(struct gpunvme_sim *sim);
void sim_keeper_destroy(struct gpunvme_sim *sim);

/* Whether this is memory for the engine's queues: GPU memory, in one piece. */
bool sim_keeper_suits(const struct gpunvme_sim *sim, uint64_t bus, uint64_t nbytes);

/*
 * Hands a queue pair over; the status is why that can't be. delete takes it back and ends what is
 * in flight with Command Aborted due to SQ Deletion. Both under all thread locks.
 */
uint16_t sim_keeper_add(struct gpunvme_sim *sim, struct sim_sq *sq);
uint16_t sim_keeper_delete(struct gpunvme_sim *sim, struct sim_sq *sq);

/* A completion queue of the engine's, whose submission queue is deleted, is, too. */
void sim_keeper_free_cq(struct gpunvme_sim *sim, const struct sim_cq *cq);

/* All queues are gone, as if they had never been: under all thread locks. */
void sim_keeper_forget(struct gpunvme_sim *sim);

/* gpunvme_sim.halt was set: from any thread, any lock. The engine stops soon. */
void sim_keeper_signal(struct gpunvme_sim *sim);

/* Waits for that; false: it was too long. */
bool sim_keeper_quiesce(struct gpunvme_sim *sim);

/* Before memory is mapped: whether the engine can reach it, if it is the engine's to reach. */
gpunvme_err_t sim_keeper_reach(struct gpunvme_sim *sim, const struct sim_range *range);

/* Whether the engine's own table takes another range: under a thread lock. */
gpunvme_err_t sim_keeper_room(struct gpunvme_sim *sim, const struct sim_range *range);

/* The table of DMA ranges changed by this range: under all thread locks. */
void sim_keeper_remap(struct gpunvme_sim *sim, const struct sim_range *range);

/* The fault rules changed. */
void sim_keeper_refault(struct gpunvme_sim *sim);

/* Brings all counts up to date; sum is of the member of struct sim_counters at `offset`. */
void sim_keeper_sync(struct gpunvme_sim *sim);
uint64_t sim_keeper_sum(struct gpunvme_sim *sim, size_t offset);

#endif
