/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Calls that want a CUDA context for themselves are made while no stream waits. See alone.h.
 */
#include "storage/alone.h"

#include <stdlib.h>

#include "base/cond.h"
#include "base/fail.h"
#include "storage/futex.h"
#include "storage/internal.h"

/* Streams that nobody has taken, on one GPU. */
struct alone_spare {
    struct alone_spare *next;
    int gpu;
    unsigned made, n;
    struct gpunvme_mem_stream **streams; /* room for `made`; the first n are here */
};

void store_alone_init(struct store_alone *alone)
{
    pthread_mutex_init(&alone->lock, NULL);
    pthread_mutex_init(&alone->making, NULL);
    base_cond_init(&alone->idle);
}

void store_alone_destroy(struct store_alone *alone)
{
    while (alone->spares) {
        struct alone_spare *spare = alone->spares;

        alone->spares = spare->next;
        while (spare->n)
            gpunvme_mem_stream_destroy(spare->streams[--spare->n]);
        free(spare->streams);
        free(spare);
    }
    pthread_cond_destroy(&alone->idle);
    pthread_mutex_destroy(&alone->making);
    pthread_mutex_destroy(&alone->lock);
}

bool store_alone_enter(struct gpunvme_store *store)
{
    struct store_alone *alone = &store->alone;
    bool may;

    pthread_mutex_lock(&alone->lock);
    may = !atomic_load(&alone->expected);
    alone->calls += may;
    pthread_mutex_unlock(&alone->lock);
    return may;
}

void store_alone_leave(struct gpunvme_store *store)
{
    struct store_alone *alone = &store->alone;

    pthread_mutex_lock(&alone->lock);
    if (!--alone->calls)
        pthread_cond_broadcast(&alone->idle);
    pthread_mutex_unlock(&alone->lock);
}

/* From now on no call begins, and none is under way. */
static gpunvme_err_t expect_one(struct gpunvme_store *store)
{
    struct store_alone *alone = &store->alone;
    uint64_t deadline = futex_deadline(store->uri.options.timeout_ns);
    gpunvme_err_t err = GPUNVME_OK;

    pthread_mutex_lock(&alone->lock);
    atomic_fetch_add(&alone->expected, 1);
    while (alone->calls && !err)
        if (!base_cond_wait(&alone->idle, &alone->lock, deadline) && alone->calls)
            err = base_fail(GPUNVME_ERR_TIMEOUT, "a thread of the store is in a call of CUDA that "
                                                 "does not end");
    if (err)
        atomic_fetch_sub(&alone->expected, 1);
    pthread_mutex_unlock(&alone->lock);
    return err;
}

gpunvme_err_t store_expect(struct gpunvme_store *store, const struct gpunvme_io *io)
{
    gpunvme_err_t err = expect_one(store);

    if (err || !store->backend->expect)
        return err;
    err = store->backend->expect(store, io);
    if (err)
        atomic_fetch_sub(&store->alone.expected, 1);
    return err;
}

void store_unexpect(struct gpunvme_store *store)
{
    if (store->backend->unexpect)
        store->backend->unexpect(store);
    atomic_fetch_sub(&store->alone.expected, 1);
}

/* ---- Streams ----------------------------------------------------------------------------------
 */

/* The GPU that the memory is on; the current one for other memory. */
static int gpu_of(const void *memory)
{
    enum gpunvme_mem mem;
    unsigned current = 0;
    int gpu = -1;

    if (gpunvme_mem_gpu_is_host())
        return 0;
    if ((memory && !gpunvme_mem_kind_of(memory, &mem, &gpu) && gpu >= 0) ||
        gpunvme_mem_gpu_current(&current))
        return gpu > 0 ? gpu : 0;
    return (int)current;
}

/* Under the lock. */
static struct alone_spare *find(const struct store_alone *alone, int gpu)
{
    struct alone_spare *spare = alone->spares;

    while (spare && spare->gpu != gpu)
        spare = spare->next;
    return spare;
}

/* Under `making`: room for n streams in all. NULL: no memory. */
static struct alone_spare *make_room(struct store_alone *alone, int gpu, unsigned n)
{
    struct alone_spare *spare;
    struct gpunvme_mem_stream **streams;

    pthread_mutex_lock(&alone->lock);
    spare = find(alone, gpu);
    if (!spare) {
        spare = calloc(1, sizeof(*spare));
        if (spare) {
            spare->gpu = gpu;
            spare->next = alone->spares;
            alone->spares = spare;
        }
    }
    if (spare && spare->made < n) {
        streams = realloc(spare->streams, n * sizeof(struct gpunvme_mem_stream *));
        if (streams)
            spare->streams = streams;
        else
            spare = NULL;
    }
    pthread_mutex_unlock(&alone->lock);
    return spare;
}

gpunvme_err_t store_keep_streams(struct gpunvme_store *store, const void *gpu_memory, unsigned n)
{
    const struct gpunvme_buf near = {.mem = GPUNVME_MEM_GPU, .gpu = (void *)(uintptr_t)gpu_memory};
    struct store_alone *alone = &store->alone;
    gpunvme_err_t err = GPUNVME_OK;
    struct alone_spare *spare;

    pthread_mutex_lock(&alone->making);
    spare = make_room(alone, gpu_of(gpu_memory), n);
    if (!spare)
        err = base_fail(GPUNVME_ERR_NOMEM, "%u streams", n);
    while (!err && spare->made < n) {
        struct gpunvme_mem_stream *stream;

        err = gpunvme_mem_stream_create(gpu_memory ? &near : NULL, &stream);
        if (err)
            break;
        pthread_mutex_lock(&alone->lock);
        spare->streams[spare->n++] = stream;
        spare->made++;
        pthread_mutex_unlock(&alone->lock);
    }
    pthread_mutex_unlock(&alone->making);
    return err;
}

gpunvme_err_t store_take_stream(struct gpunvme_store *store, const void *gpu_memory,
                                struct gpunvme_mem_stream **out)
{
    const struct gpunvme_buf near = {.mem = GPUNVME_MEM_GPU, .gpu = (void *)(uintptr_t)gpu_memory};
    struct store_alone *alone = &store->alone;
    int gpu = gpu_of(gpu_memory);
    struct alone_spare *spare;
    gpunvme_err_t err;

    *out = NULL;
    pthread_mutex_lock(&alone->lock);
    spare = find(alone, gpu);
    if (spare && spare->n)
        *out = spare->streams[--spare->n];
    pthread_mutex_unlock(&alone->lock);
    if (*out)
        return GPUNVME_OK;
    if (!store_alone_enter(store))
        return GPUNVME_ERR_AGAIN;
    err = gpunvme_mem_stream_create(&near, out);
    store_alone_leave(store);
    return err;
}
