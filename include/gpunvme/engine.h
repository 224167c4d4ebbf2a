/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Engines. An engine has the threads, io_uring rings, queues and pinned memory that serve stores.
 *
 * Each process has one engine, which is created on first use and stays until the process ends. It
 * serves all stores that gpunvme_open() opens. Most programs need no other. Create an engine to
 * limit threads or pinned memory, or to have one near each of several GPUs.
 *
 *     struct gpunvme_engine_config config = {.gpu = 1, .threads = 8};
 *
 *     gpunvme_engine_create(&config, &engine);
 *     gpunvme_open_on(engine, "file:/data/weights.bin", 0, &store);
 *
 * In all functions that take an engine, NULL is the process's engine.
 *
 * Threads: all functions may be called from several threads at once, except
 * gpunvme_engine_destroy(). After fork(2) the child gets a process's engine of its own; it can't
 * use engines that the parent created.
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
     * its NUMA node, and CUDA contexts are created on it. ANY_GPU: the first GPU whose memory is
     * used. Transfers can use memory of other GPUs too. Without a GPU, 0 is accepted.
     */
    int gpu;
    unsigned threads;     /* 0: one for each CPU that the process may use, from 2 to 12 */
    size_t pinned_nbytes; /* limit of pinned memory between files and GPUs; 0: 128 MiB */
    const char *cpus;     /* CPUs for the threads, "0-7,16"; NULL: those of the GPU's node */
};

/*
 * Creates an engine; `config` NULL is {.gpu = GPUNVME_ANY_GPU}. It pins no memory before its first
 * transfer with GPU memory. The caller owns *out and destroys it with gpunvme_engine_destroy().
 * Errors: INVALID (no such GPU, or `cpus` is malformed), LIMIT (more than 256 threads), NOMEM.
 */
gpunvme_err_t gpunvme_engine_create(const struct gpunvme_engine_config *config,
                                    struct gpunvme_engine **out);

/*
 * Undoes all registrations, ends the threads and frees the engine. NULL is allowed. BUSY: a store
 * is open on it, and nothing was done. INVALID: it is the process's engine.
 */
gpunvme_err_t gpunvme_engine_destroy(struct gpunvme_engine *engine);

struct gpunvme_engine_info {
    int gpu;              /* as configured, or ANY_GPU */
    unsigned threads;     /* that serve transfers */
    unsigned blocked;     /* further threads that exist now, for calls that may block */
    size_t stores;        /* open stores */
    size_t pinned_nbytes; /* pinned now */
    size_t registered;    /* registered ranges of memory */
};

/* Describes an engine; all zeroes if it is the process's and does not exist yet. */
void gpunvme_engine_get_info(struct gpunvme_engine *engine, struct gpunvme_engine_info *info);

/*
 * Registers memory that many transfers use, for all stores of the engine, also those that are
 * opened later. It is set up once (mapped for a controller, registered with cuFile), and transfers
 * with any part of it take the fastest route. If a backend can't use the memory directly,
 * registration still succeeds and transfers use a bounce buffer.
 *
 * `ptr` is a multiple of 4, of the kind `mem` (see gpunvme_mem_register()). The memory must outlive
 * the registration. Registering a range inside a registered one counts one more use of that one,
 * which stays registered until all uses are undone. A range that partly overlaps a registered one
 * is INVALID. LIMIT: the table of a controller or of cuFile is full; nothing was registered.
 */
gpunvme_err_t gpunvme_register(struct gpunvme_engine *engine, void *ptr, size_t nbytes,
                               enum gpunvme_mem mem);

/*
 * Undoes one registration of the range that contains `ptr`. NOT_FOUND: no range contains it. BUSY:
 * a transfer uses it.
 */
gpunvme_err_t gpunvme_unregister(struct gpunvme_engine *engine, void *ptr);

#ifdef __cplusplus
}
#endif
#endif
