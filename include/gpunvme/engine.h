/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Engines: the threads, rings of io_uring, queues and pinned memory that serve stores.
 *
 * A process has one engine that is made when it is first needed and stays until the process ends.
 * It serves all stores that gpunvme_open() opens, however many. Most programs need no other.
 * A program makes engines of its own to say how many threads or how much pinned memory it can
 * spare, or to have one engine for each of several GPUs, near that GPU.
 *
 *     struct gpunvme_engine_config config = {.gpu = 1, .threads = 8};
 *
 *     gpunvme_engine_create(&config, &engine);
 *     gpunvme_open_on(engine, "file:/data/weights.bin", 0, &store);
 *
 * Wherever a function takes an engine, NULL is the process's own.
 *
 * Threads: all functions may be called from several threads at once, except destroy. After fork(2)
 * the child's process-wide engine is a new one; engines that the parent made can't be used.
 */
#ifndef GPUNVME_ENGINE_H
#define GPUNVME_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "gpunvme/buf.h"
#include "gpunvme/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpunvme_engine;

#define GPUNVME_ANY_GPU (-1)

struct gpunvme_engine_config {
    /*
     * The GPU (CUDA's index) that most transfers are for. Threads and pinned memory are placed on
     * its NUMA node, and CUDA contexts are made on it. ANY_GPU: the first GPU whose memory is used.
     * Memory of other GPUs can be used all the same.
     */
    int gpu;
    unsigned threads;     /* 0: one for each CPU that the process may use, from 2 to 12 */
    size_t pinned_nbytes; /* at most, for bytes between files and GPU memory; 0: 128 MiB */
    const char *cpus;     /* that threads may run on, "0-7,16"; NULL: as `gpu` says */
};

/*
 * Makes an engine with `config`; NULL is {.gpu = GPUNVME_ANY_GPU}. It pins nothing before it is
 * used for GPU memory. *out is the caller's, to be given to destroy. Errors: INVALID (no such GPU,
 * a list of CPUs that is none), LIMIT (more than 256 threads), NOMEM.
 */
gpunvme_err_t gpunvme_engine_create(const struct gpunvme_engine_config *config,
                                    struct gpunvme_engine **out);

/*
 * Ends its threads and frees it. BUSY while a store is open on it: nothing was done. NULL is fine.
 * Memory that is registered with it is let go of. INVALID: it is the process's own.
 */
gpunvme_err_t gpunvme_engine_destroy(struct gpunvme_engine *engine);

struct gpunvme_engine_info {
    int gpu;              /* as configured, or ANY_GPU */
    unsigned threads;     /* that serve transfers */
    unsigned blocked;     /* threads beside them that calls which may block have now */
    size_t stores;        /* open */
    size_t pinned_nbytes; /* now */
    size_t registered;    /* ranges of memory */
};

/* Facts; all zeroes for a process's engine that is not there yet. */
void gpunvme_engine_get_info(struct gpunvme_engine *engine, struct gpunvme_engine_info *info);

/*
 * Registers memory that is used again and again, for all stores of the engine, those that are
 * opened later too: transfers into any part of it then go the fastest way without setting anything
 * up (mapped for a controller, known to cuFile, …). Stores that gain nothing by it ignore it.
 *
 * `ptr` is a multiple of 4, of the kind `mem`, as gpunvme_mem_register() has it. The memory must
 * outlive the registration. A range inside a registered one counts as another registration of
 * that, which holds until each has been undone; a range that overlaps one in part is INVALID.
 * LIMIT: the table of a controller or of cuFile is full, and nothing was registered.
 */
gpunvme_err_t gpunvme_register(struct gpunvme_engine *engine, void *ptr, size_t nbytes,
                               enum gpunvme_mem mem);

/*
 * Undoes one registration of the range that `ptr` lies in. NOT_FOUND: there is none. BUSY: a
 * transfer uses it.
 */
gpunvme_err_t gpunvme_unregister(struct gpunvme_engine *engine, void *ptr);

#ifdef __cplusplus
}
#endif
#endif
