/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What all files of an engine share: a crew with a lane in each worker, and slots of pinned memory.
 * Made when the first file is opened.
 */
#ifndef STORAGE_POSIX_ENGINE_H
#define STORAGE_POSIX_ENGINE_H

#include "storage/posix/posix.h"

/* Kinds of slots. The kernel reads those of writes into files in memory from a file (fill.c). */
enum { POSIX_SLOTS, POSIX_FILL_SLOTS, POSIX_NRINGS };

struct posix_engine {
    struct crew *crew;
    struct pool *pool;
    int uring_errno;         /* why this process may have no io_uring; 0: it may */
    _Atomic unsigned nblind; /* lanes that got none all the same */
    struct posix_budget budget;
    struct posix_ring rings[POSIX_NRINGS];
};

/* The engine's, made now if there is none. */
gpunvme_err_t posix_engine_take(struct gpunvme_engine *of, struct posix_engine **out);

/* No file is open. NULL is fine. */
void posix_engine_destroy(struct posix_engine *engine);

/* store_engine_prepare()'s part. */
gpunvme_err_t posix_engine_prepare(struct posix_engine *engine, unsigned gpu);

/* How much memory is pinned. */
size_t posix_engine_pinned(const struct posix_engine *engine);

/* Which slots serve writes into files in memory, or all else. */
static inline unsigned posix_ring_for(const struct posix_file *file, enum gpunvme_op op)
{
    return file->in_memory && op == GPUNVME_OP_WRITE ? POSIX_FILL_SLOTS : POSIX_SLOTS;
}

#endif
