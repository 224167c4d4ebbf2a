/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What serves stores of the posix backend: threads, their rings of io_uring, and slots of pinned
 * memory. One engine, made when the first store is opened and kept until the process ends, serves
 * all stores that are opened with default options. A store with threads=, depth=, chunk= or uring=
 * has one of its own.
 */
#ifndef STORAGE_POSIX_ENGINE_H
#define STORAGE_POSIX_ENGINE_H

#include "storage/posix/posix.h"

/* Kinds of slots. The kernel reads those of writes into files in memory from a file (fill.c). */
enum { POSIX_SLOTS, POSIX_FILL_SLOTS, POSIX_NRINGS };

struct posix_engine {
    struct crew *crew;
    bool is_shared; /* by all stores; then there is a thread more, in reserve */
    unsigned threads, depth;
    uint32_t chunk;          /* bytes of a piece, at most; a power of two */
    bool uring;              /* workers may have io_uring */
    int uring_errno;         /* why they may not; 0: nobody asked */
    _Atomic unsigned nblind; /* workers that got none all the same */
    struct posix_ring rings[POSIX_NRINGS];
};

/* The engine for a store with these options. `fills`: it writes into a file in memory. */
gpunvme_err_t posix_engine_take(struct gpunvme_engine *of, const struct store_options *o,
                                bool fills, struct posix_engine **out);

/* A store is closed; nothing of it is in flight. NULL is fine. */
void posix_engine_leave(struct posix_engine *engine);

/* NULL is fine. */
void posix_engine_destroy(struct posix_engine *engine);
void posix_engine_info(const struct posix_engine *engine, struct gpunvme_engine_info *info);

/* Which slots serve writes into files in memory, or all else. */
static inline unsigned posix_ring_for(const struct posix_file *file, enum gpunvme_op op)
{
    return file->in_memory && op == GPUNVME_OP_WRITE ? POSIX_FILL_SLOTS : POSIX_SLOTS;
}

#endif
