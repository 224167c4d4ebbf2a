/* SPDX-License-Identifier: BSD-3-Clause
 *
 * CUDA calls that want a context for themselves, and transfers that a stream waits for.
 *
 * To pin memory or let go of it, to make a stream, to load a kernel: such a call waits until no
 * other thread is in a call on the context. But a thread of the program may be in one until a
 * stream goes on (a launch that loads its kernel, a copy of memory that is not pinned), and the
 * stream until a transfer ends. Who serves the transfer must not wait for them then. So a store
 * makes such calls only while none of its transfers is expected in a stream, and has made those
 * that serving will take before it expects one. (Other stores of the process are not asked: a call
 * of one may still hold up a transfer in a stream of another, until its time is up.)
 */
#ifndef STORAGE_ALONE_H
#define STORAGE_ALONE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "gpunvme/memory.h"

struct gpunvme_store;
struct gpunvme_io;
struct alone_spare;

struct store_alone {
    pthread_mutex_t lock;
    pthread_cond_t idle;
    unsigned calls;             /* under way */
    _Atomic size_t expected;    /* transfers; raised under the lock */
    struct alone_spare *spares; /* streams made before they are needed */
    pthread_mutex_t making;     /* of them: never held by who serves */
};

void store_alone_init(struct store_alone *alone);
void store_alone_destroy(struct store_alone *alone); /* and the streams that nobody took */

/* Around such a call, of who serves: false, and nothing to leave, while a transfer is expected. */
bool store_alone_enter(struct gpunvme_store *store);
void store_alone_leave(struct gpunvme_store *store);

/*
 * A transfer will be put into a stream, or has ended or not come to it: called in pairs. The
 * backend is asked (store_backend.expect), whose refusal is the error; TIMEOUT: a call does not
 * end.
 */
gpunvme_err_t store_expect(struct gpunvme_store *store, const struct gpunvme_io *io);
void store_unexpect(struct gpunvme_store *store);

/* For backends, in expect: sees to it that `n` streams were made for copies near this memory. */
gpunvme_err_t store_keep_streams(struct gpunvme_store *store, const void *gpu_memory, unsigned n);

/* One of them, or one that is made now; AGAIN, without a detail, while neither can be. */
gpunvme_err_t store_take_stream(struct gpunvme_store *store, const void *gpu_memory,
                                struct gpunvme_mem_stream **out);

#endif
