/* SPDX-License-Identifier: BSD-3-Clause
 *
 * One thread of gpunvme bench with its queue and its buffers.
 */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include <stdatomic.h>

#include "base/fail.h"
#include "device.h"
#include "progress.h"
#include "pump.h"

/* What all threads do. A command moves `command_blocks` and begins at a multiple of them. */
struct bench_plan {
    bool sequential;
    bool verify;
    unsigned read_percent;
    uint32_t depth;
    enum gpunvme_mem mem;
    uint64_t seed;
    uint64_t count; /* commands of all threads together; 0: until told to finish */
    uint64_t slba;  /* the region */
    uint32_t command_blocks;
    uint64_t ncommands; /* that it holds side by side */
    uint64_t timeout_ns;
};

struct bench_shared {
    atomic_bool finish;
    atomic_uint nended;
};

/* Commands that failed while the measurement went on. */
struct bench_errors {
    uint64_t count;
    struct base_failure first;
};

struct bench_worker;

/*
 * Number `index` of `nworkers`, with a queue of its own. The plan must stay; `shared` too. One
 * that failed to be made leaves nothing behind.
 */
gpunvme_err_t bench_worker_create(struct cli_device *device, const struct gpunvme_ns *ns,
                                  const struct bench_plan *plan, uint32_t index, uint32_t nworkers,
                                  struct bench_shared *shared, struct bench_worker **out);

/* Deletes its queue; all is freed whatever that gives. */
gpunvme_err_t bench_worker_destroy(struct bench_worker *worker);

/* Writes the whole region, each block with its stamp, in the calling thread. */
gpunvme_err_t bench_worker_fill(struct bench_worker *worker, struct cli_progress *progress);

gpunvme_err_t bench_worker_start(struct bench_worker *worker);

/* Waits for the thread. The error is its first one, with its detail. */
gpunvme_err_t bench_worker_join(struct bench_worker *worker);

/* Commands that have ended, well or badly; may be asked while it runs. */
uint64_t bench_worker_done(struct bench_worker *worker);

/* Its results, when it has ended. */
const struct cli_pump *bench_worker_pump(const struct bench_worker *worker);
const struct bench_errors *bench_worker_errors(const struct bench_worker *worker);

#endif
