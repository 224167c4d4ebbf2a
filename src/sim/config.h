/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a configuration of the software controller must fulfil, however it was made.
 */
#ifndef SIM_CONFIG_H
#define SIM_CONFIG_H

#include "gpunvme/sim.h"

#define SIM_CONFIG_MAX_THREADS 64

/*
 * Fills in what zeroes stand for in the namespaces (nsid, block size, and the size of those
 * without an image) and checks all limits. GPUNVME_ERR_INVALID names the field as its detail.
 */
gpunvme_err_t sim_config_complete(struct gpunvme_sim_config *config);

#endif
