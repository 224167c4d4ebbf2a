/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Short names over the API of storage.h, request.h and onecall.h, for programs and bindings that
 * want few calls. All are inline, so the library does not contain these names; they add nothing to
 * what those headers say. A gpunvme_err_t is 0 or a negative error; a number of bytes or transfers
 * is negative on error. Memory is always GPU memory.
 *
 *     nvme_gpu_init(&g, "nvme:0000:01:00.0/1");           a store, read into GPU memory
 *     nvme_gpu_create_request(&g, buffer, nbytes, &id);   requests by kind on it
 *     read_nvme_to_gpu("/data/x", 0, nbytes, buffer);     a file, in one call
 *     init_spdk_nvme(&q, "spdk:0000:01:00.0", 128);       submission and polling by blocks
 */
#ifndef GPUNVME_NVME_GPU_H
#define GPUNVME_NVME_GPU_H

#include <stdlib.h>
#include <string.h>

#include "gpunvme/onecall.h"
#include "gpunvme/request.h"
#include "gpunvme/storage.h"

/* ---- A store and its requests ------------------------------------------------------------------
 */

struct nvme_gpu {
    struct gpunvme_store *store;
    struct gpunvme_requests *requests;
};

/* Opens a store for reading. nvme_gpu_cleanup() closes it, and is allowed after a failure. */
static inline gpunvme_err_t nvme_gpu_init(struct nvme_gpu *g, const char *uri)
{
    gpunvme_err_t err;

    g->store = NULL;
    g->requests = NULL;
    err = gpunvme_open(uri, 0, &g->store);
    if (!err)
        err = gpunvme_requests_create(g->store, &g->requests);
    if (err && g->store) {
        gpunvme_close(g->store);
        g->store = NULL;
    }
    return err;
}

static inline gpunvme_err_t nvme_gpu_cleanup(struct nvme_gpu *g)
{
    gpunvme_err_t err = gpunvme_requests_destroy(g->requests);

    if (err)
        return err;
    g->requests = NULL;
    err = gpunvme_close(g->store);
    if (err != GPUNVME_ERR_TIMEOUT)
        g->store = NULL;
    return err;
}

/* Bytes read: fewer than `nbytes` at the end of the store. */
static inline int64_t nvme_gpu_read(struct nvme_gpu *g, uint64_t offset, size_t nbytes,
                                    void *gpu_buffer)
{
    size_t done;
    gpunvme_err_t err =
        gpunvme_store_read(g->store, offset, gpu_buffer, GPUNVME_MEM_GPU, nbytes, &done);

    return err ? err : (int64_t)done;
}

/* Begins a read; *io stays where it is until gpunvme_io_wait() or gpunvme_io_test() has ended it.
 */
static inline gpunvme_err_t nvme_gpu_read_async(struct nvme_gpu *g, uint64_t offset, size_t nbytes,
                                                void *gpu_buffer, struct gpunvme_io *io)
{
    memset(io, 0, sizeof(*io));
    io->store = g->store;
    io->op = GPUNVME_OP_READ;
    io->mem = GPUNVME_MEM_GPU;
    io->offset = offset;
    io->ptr = gpu_buffer;
    io->nbytes = nbytes;
    return gpunvme_io_submit(io, 1, NULL);
}

static inline gpunvme_err_t nvme_gpu_create_request(struct nvme_gpu *g, void *gpu_buffer,
                                                    size_t nbytes, uint64_t *request)
{
    return gpunvme_request_create(g->requests, gpu_buffer, nbytes, GPUNVME_MEM_GPU, request);
}

static inline gpunvme_err_t nvme_gpu_add_kind(struct nvme_gpu *g, uint64_t request,
                                              const char *kind, uint64_t start_lba, uint64_t length,
                                              uint32_t sector_size)
{
    return gpunvme_request_add_kind(g->requests, request, kind, start_lba, length, sector_size);
}

static inline gpunvme_err_t read_nvme_kind(struct nvme_gpu *g, uint64_t request, const char *kind,
                                           uint64_t idx, uint64_t length, void *gpu_ptr)
{
    return gpunvme_request_read(g->requests, request, kind, idx, length, gpu_ptr);
}

/* Reads `n` parts in one call; their op is set here. */
static inline gpunvme_err_t nvme_gpu_batch_read(struct nvme_gpu *g, uint64_t request,
                                                struct gpunvme_kind_io *parts, size_t n)
{
    for (size_t i = 0; parts && i < n; i++)
        parts[i].op = GPUNVME_OP_READ;
    return gpunvme_request_run(g->requests, request, parts, n);
}

static inline gpunvme_err_t nvme_gpu_release_request(struct nvme_gpu *g, uint64_t request)
{
    return gpunvme_request_release(g->requests, request);
}

/* ---- Files, by one call ------------------------------------------------------------------------
 */

/*
 * Opens cuFile's driver and makes the functions below use cuFile. Without this, or if it fails,
 * they use the posix backend. Call cleanup_gds() once for each success.
 */
static inline gpunvme_err_t init_gds(void)
{
    gpunvme_err_t err = gpunvme_cufile_open(NULL, 0);

    return err ? err : gpunvme_file_prefer("cufile");
}

static inline gpunvme_err_t cleanup_gds(void)
{
    gpunvme_err_t err = gpunvme_file_close_all();

    if (err)
        return err;
    gpunvme_file_prefer(NULL);
    return gpunvme_cufile_close();
}

static inline int64_t read_nvme_to_gpu(const char *path, uint64_t offset, size_t size,
                                       void *gpu_buffer)
{
    size_t done;
    gpunvme_err_t err = gpunvme_file_read(path, offset, gpu_buffer, GPUNVME_MEM_GPU, size, &done);

    return err ? err : (int64_t)done;
}

static inline int64_t write_gpu_to_nvme(const char *path, uint64_t offset, size_t size,
                                        const void *gpu_buffer)
{
    size_t done;
    gpunvme_err_t err = gpunvme_file_write(path, offset, gpu_buffer, GPUNVME_MEM_GPU, size, &done);

    return err ? err : (int64_t)done;
}

/*
 * Does `n` reads at once. The caller sets offset, ptr, nbytes and mem of each; this sets op, err
 * and done. Returns when all have ended, with the first error.
 */
static inline gpunvme_err_t async_batch_read(const char *path, struct gpunvme_io *requests,
                                             size_t n)
{
    for (size_t i = 0; requests && i < n; i++)
        requests[i].op = GPUNVME_OP_READ;
    return gpunvme_file_transfer(path, requests, n);
}

/* ---- Blocks, submitted and polled --------------------------------------------------------------
 */

/* For one thread. */
struct nvme_gpu_queue {
    struct gpunvme_store *store;
    struct gpunvme_batch *batch;
    struct gpunvme_io *ios;       /* `depth` of them */
    struct gpunvme_io **free_ios; /* those not in flight */
    struct gpunvme_io *failed;    /* a read whose error the next poll tells; NULL: none */
    size_t depth, nfree;
    uint32_t block_size;
};

static inline void nvme_gpu_queue_free(struct nvme_gpu_queue *q)
{
    free(q->ios);
    free(q->free_ios);
    q->ios = NULL;
    q->free_ios = NULL;
    q->depth = q->nfree = 0;
}

/* Makes room for `depth` reads in flight; init_spdk_nvme() comes before it. */
static inline gpunvme_err_t create_io_qpair(struct nvme_gpu_queue *q, size_t depth)
{
    gpunvme_err_t err;

    if (depth > SIZE_MAX / sizeof(*q->ios))
        return gpunvme_err_set(GPUNVME_ERR_NOMEM, "room for %llu reads", (unsigned long long)depth);
    err = gpunvme_batch_create(&q->batch);
    if (err)
        return err;
    q->ios = (struct gpunvme_io *)calloc(depth, sizeof(*q->ios));
    q->free_ios = (struct gpunvme_io **)calloc(depth, sizeof(*q->free_ios));
    if (!q->ios || !q->free_ios) {
        nvme_gpu_queue_free(q);
        gpunvme_batch_destroy(q->batch);
        q->batch = NULL;
        return gpunvme_err_set(GPUNVME_ERR_NOMEM, "room for %llu reads", (unsigned long long)depth);
    }
    for (q->nfree = 0; q->nfree < depth; q->nfree++)
        q->free_ios[q->nfree] = &q->ios[q->nfree];
    q->depth = depth;
    return GPUNVME_OK;
}

/* Opens a namespace for submit_gpu_read(): "spdk:…", or any other URI of a store. */
static inline gpunvme_err_t init_spdk_nvme(struct nvme_gpu_queue *q, const char *uri)
{
    struct gpunvme_store_info info;
    gpunvme_err_t err;

    q->batch = NULL;
    q->ios = NULL;
    q->free_ios = NULL;
    q->failed = NULL;
    q->depth = q->nfree = 0;
    q->block_size = 0;
    err = gpunvme_open(uri, 0, &q->store);
    if (err)
        return err;
    gpunvme_store_get_info(q->store, &info);
    q->block_size = info.block_size;
    return GPUNVME_OK;
}

/* The same with room for `depth` reads. */
static inline gpunvme_err_t gpu_queue_init(struct nvme_gpu_queue *q, const char *uri, size_t depth)
{
    gpunvme_err_t err = init_spdk_nvme(q, uri);

    if (err)
        return err;
    err = create_io_qpair(q, depth);
    if (err) {
        gpunvme_close(q->store);
        q->store = NULL;
    }
    return err;
}

/* Submits a read of whole blocks: AGAIN while `depth` are in flight. */
static inline gpunvme_err_t submit_gpu_read(struct nvme_gpu_queue *q, uint64_t lba,
                                            uint32_t lba_count, void *gpu_buffer)
{
    struct gpunvme_io *io;
    gpunvme_err_t err;

    if (!q->nfree)
        return GPUNVME_ERR_AGAIN;
    if (lba > (uint64_t)INT64_MAX / q->block_size)
        return gpunvme_err_set(GPUNVME_ERR_RANGE, "no store has a block %llu",
                               (unsigned long long)lba);
    io = q->free_ios[q->nfree - 1];
    io->store = q->store;
    io->op = GPUNVME_OP_READ;
    io->mem = GPUNVME_MEM_GPU;
    io->offset = lba * q->block_size;
    io->nbytes = (size_t)lba_count * q->block_size;
    io->ptr = gpu_buffer;
    err = gpunvme_io_submit(io, 1, q->batch);
    if (!err)
        q->nfree--;
    return err;
}

/* The result of a read, with its detail. */
static inline gpunvme_err_t nvme_gpu_outcome(const struct gpunvme_io *io)
{
    char text[256];

    if (io->err)
        return gpunvme_err_set(io->err, "%s", gpunvme_io_detail(io, text, sizeof(text)));
    if (io->done < io->nbytes)
        return gpunvme_err_set(GPUNVME_ERR_RANGE, "the store ends at byte %llu",
                               (unsigned long long)(io->offset + io->done));
    return GPUNVME_OK;
}

/*
 * Returns how many reads have succeeded since the last call, without waiting. A failed read is
 * reported by a call of its own, which returns its error; a read that met the end of the store is
 * GPUNVME_ERR_RANGE. So every read is counted exactly once.
 */
static inline int64_t poll_completions(struct nvme_gpu_queue *q)
{
    int64_t total = 0;

    for (;; total++) {
        struct gpunvme_io *io = q->failed;
        gpunvme_err_t err = GPUNVME_OK;
        size_t n = 1;

        if (!io)
            err = gpunvme_batch_poll(q->batch, 0, 1, &io, &n, 0);
        if (err || !n)
            return err ? err : total;
        err = nvme_gpu_outcome(io);
        q->failed = err && total ? io : NULL;
        if (q->failed)
            return total;
        q->free_ios[q->nfree++] = io;
        if (err)
            return err;
    }
}

/*
 * Waits for reads in flight and closes the store. TIMEOUT as gpunvme_close(). A queue that was not
 * created, or is closed already, is allowed.
 */
static inline gpunvme_err_t close_gpu_queue(struct nvme_gpu_queue *q)
{
    gpunvme_err_t err = gpunvme_close(q->store);

    if (err == GPUNVME_ERR_TIMEOUT)
        return err;
    if (q->batch) {
        while (gpunvme_batch_pending(q->batch))
            (void)poll_completions(q);
        gpunvme_batch_destroy(q->batch);
    }
    q->store = NULL;
    q->batch = NULL;
    nvme_gpu_queue_free(q);
    return err;
}

#endif
