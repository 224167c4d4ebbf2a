/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What all files of an engine share: a crew with a lane in each worker, and slots of pinned memory.
 * Made when the first file is opened.
 */
#ifndef STORAGE_POSIX_ENGINE_H
#define STORAGE_POSIX_ENGINE_H

#include "storage/posix/posix.h"

struct posix_engine {
    struct crew *crew;
    struct pool *pool;
    int uring_errno;         /* why this process may have no io_uring; 0: it may */
    _Atomic unsigned nblind; /* lanes that got none all the same */
    struct posix_ring ring;
};

/* The engine's, made now if there is none. */
gpunvme_err_t posix_engine_take(struct gpunvme_engine *of, struct posix_engine **out);

/* No file is open. NULL is fine. */
void posix_engine_destroy(struct posix_engine *engine);

/* How much memory is pinned. */
size_t posix_engine_pinned(const struct posix_engine *engine);

#endif
