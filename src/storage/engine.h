/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What an engine is inside.
 */
#ifndef STORAGE_ENGINE_H
#define STORAGE_ENGINE_H

#include "storage/internal.h"

struct posix_engine;

struct gpunvme_engine {
    struct gpunvme_engine_config config;
    bool is_process; /* the process's own: it is never destroyed */
    unsigned nforks; /* of this process's forebears when it was made */
    _Atomic size_t nstores;
    struct store_regions regions;
    pthread_mutex_t lock;
    struct posix_engine *posix; /* under the lock; NULL: no file was opened yet */
};

#endif
