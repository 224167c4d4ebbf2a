/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What an engine is inside.
 */
#ifndef STORAGE_ENGINE_H
#define STORAGE_ENGINE_H

#include "storage/internal.h"
#include "storage/place.h"

#define ENGINE_MAX_THREADS 256u

struct crew;
struct nvme_lanes;
struct pool;
struct posix_engine;
struct workers;

struct gpunvme_engine {
    struct gpunvme_engine_config config;
    bool is_process; /* the process's own: it is never destroyed */
    unsigned nforks; /* of this process's forebears when it was made */
    _Atomic size_t nstores;
    struct store_regions regions;
    struct place place;
    pthread_mutex_t lock;
    _Atomic uint64_t ready_gpus; /* a bit for each that is prepared for; set under the lock */
    /* Made when the first store is opened; NULL before. */
    struct workers *workers;
    struct pool *pool;
    /* Made under the lock, when the first store of the kind is opened. */
    struct posix_engine *posix;
    pthread_mutex_t nvme_lock;
    struct nvme_lanes *nvme; /* under nvme_lock: a list of controllers' */
    unsigned ncontrollers;   /* likewise: that there were */
};

#endif
