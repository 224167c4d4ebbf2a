/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How the engine is started and waited for: as a kernel on a GPU, or on a thread where GPU memory
 * is host memory. One run at a time; knows nothing of what runs.
 */
#ifndef SIM_ENGINE_LAUNCH_H
#define SIM_ENGINE_LAUNCH_H

#include <stdbool.h>

#include "sim/engine/engine.h"

struct sim_launcher {
    void (*close)(struct sim_launcher *launcher); /* nothing runs */
    /* `engine` is where the GPU finds it; host->stop and host->left are 0. */
    gpunvme_err_t (*start)(struct sim_launcher *launcher, struct sim_engine *engine,
                           unsigned nqueues);
    gpunvme_err_t (*poll)(struct sim_launcher *launcher, bool *running);
    gpunvme_err_t (*wait)(struct sim_launcher *launcher, uint64_t deadline_ns);
};

gpunvme_err_t sim_launcher_thread(struct sim_launcher **out);
gpunvme_err_t sim_launcher_gpu(unsigned device, struct sim_launcher **out);

#endif
