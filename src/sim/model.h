/* SPDX-License-Identifier: BSD-3-Clause
 *
 * When a real device would have finished: latency, IOPS, bandwidth and parallelism.
 * Pure arithmetic on times that the caller gives; may be called by several threads at once.
 */
#ifndef SIM_MODEL_H
#define SIM_MODEL_H

#include "gpunvme/sim.h"

enum sim_model_op { SIM_MODEL_READ, SIM_MODEL_WRITE, SIM_MODEL_FLUSH, SIM_MODEL_OTHER };

struct sim_model;
struct sim_engine_model;

gpunvme_err_t sim_model_create(const struct gpunvme_sim_model *config, uint64_t seed,
                               struct sim_model **out);
void sim_model_destroy(struct sim_model *model);

/* True when nothing is limited: then every command is due at once and need not be asked for. */
bool sim_model_is_unlimited(const struct sim_model *model);

/*
 * The same device as the engine models it, but for the addresses that are the engine's. Returns
 * the factors of the latency, SIM_ENGINE_SPREAD of them; NULL: all 1.
 */
const float *sim_model_export(const struct sim_model *model, struct sim_engine_model *out);

/* The time at which a command fetched at now_ns may complete, and books its share of the device. */
uint64_t sim_model_due_ns(struct sim_model *model, enum sim_model_op op, uint64_t nbytes,
                          uint64_t now_ns);

#endif
