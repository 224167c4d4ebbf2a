/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rules that say which command meets which fault. See gpunvme_sim_fault() for their language.
 * May be called by several threads at once.
 */
#ifndef SIM_FAULT_H
#define SIM_FAULT_H

#include "gpunvme/nvme.h"
#include "gpunvme/sim.h"
#include "sim/engine/engine.h"

enum sim_fault_kind {
    SIM_FAULT_NONE,
    SIM_FAULT_STATUS,     /* complete with `status`, move no data */
    SIM_FAULT_DELAY,      /* complete `delay_ns` late */
    SIM_FAULT_LOSE,       /* do the work, never complete */
    SIM_FAULT_SHUFFLE,    /* hold back until `count` completions are held, post them shuffled */
    SIM_FAULT_CFS,        /* the controller fails when it fetches this command */
    SIM_FAULT_REMOVE,     /* the drive disappears when it fetches this command */
    SIM_FAULT_POWER_LOSS, /* the power is cut and comes back when it fetches this command */
};

struct sim_fault {
    enum sim_fault_kind kind;
    uint16_t status; /* 15 bits, as CQE status >> 1 */
    uint64_t delay_ns;
    uint32_t count;
};

struct sim_faults;

gpunvme_err_t sim_faults_create(uint64_t seed, struct sim_faults **out);
/* From now on rules for I/O commands that the engine can't follow are refused. */
void sim_faults_for_engine(struct sim_faults *faults);
void sim_faults_destroy(struct sim_faults *faults);
gpunvme_err_t sim_faults_add(struct sim_faults *faults, const char *rule); /* or ERR_INVALID */
void sim_faults_clear(struct sim_faults *faults);
bool sim_faults_any(const struct sim_faults *faults); /* cheap: asked for every command */

/*
 * The rules as the engine follows them, with what they have counted; returns how many. absorb
 * takes back what it has counted: once for each export.
 */
unsigned sim_faults_export(struct sim_faults *faults,
                           struct sim_engine_rule rules[SIM_ENGINE_MAX_RULES]);
void sim_faults_absorb(struct sim_faults *faults, const struct sim_engine_rule *rules, unsigned n);

/*
 * The fault that the command just fetched from submission queue `sqid` meets. The rules are asked
 * in the order in which they were added; the first that fires hides the command from the others.
 */
struct sim_fault sim_faults_match(struct sim_faults *faults, uint16_t sqid,
                                  const struct gpunvme_sqe *sqe);

/*
 * The same for a Dataset Management command, to be asked instead once its ranges were fetched:
 * rules with lba= look at them. (sim_faults_match() takes it to touch no block.)
 */
struct sim_fault sim_faults_match_dsm(struct sim_faults *faults, uint16_t sqid,
                                      const struct gpunvme_sqe *sqe,
                                      const struct gpunvme_dsm_range *ranges, unsigned nranges);

#endif
