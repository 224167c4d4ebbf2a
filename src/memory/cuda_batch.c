/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Batches of copies on a stream, behind the wall of cuda.h: tables of units in a ring in pinned
 * memory, a launch and an event for each; and the copy engine for what is too large for a kernel.
 */
#include <stdlib.h>
#include <time.h>

#include "base/fail.h"
#include "memory/batch.h"
#include "memory/batch_cuda.h"
#include "memory/cuda_private.h"

/* Four of the largest launches: one being filled while others run. */
#define TABLE_UNITS  ((size_t)8192)
#define RING_UNITS   (4 * TABLE_UNITS)
#define ROOM_WAIT_NS 10000000000u

/* Of one cudaMemcpyBatchAsync(). */
#define API_PIECES 256

struct mem_cuda_batch {
    struct mem_batch_ring ring;
    struct mem_batch_unit *cpu; /* RING_UNITS */
    struct mem_batch_unit *gpu; /* the same for the GPU */
    cudaEvent_t done[MEM_BATCH_RING_TABLES];
    bool lost; /* a table is in use and nothing will tell when it is not */
};

static cudaError_t create_events(struct mem_cuda_batch *batch)
{
    cudaError_t err = cudaSuccess;

    for (unsigned i = 0; i < MEM_BATCH_RING_TABLES && err == cudaSuccess; i++)
        err = cudaEventCreateWithFlags(&batch->done[i], cudaEventDisableTiming);
    return err;
}

gpunvme_err_t mem_cuda_batch_create(struct mem_cuda_batch **out)
{
    struct mem_cuda_batch *batch = calloc(1, sizeof(*batch));
    void *cpu = NULL, *gpu = NULL;
    cudaError_t err;

    *out = NULL;
    if (!batch)
        return base_fail(GPUNVME_ERR_NOMEM, "a ring of batches");
    batch->ring.capacity = RING_UNITS;
    err = cudaHostAlloc(&cpu, RING_UNITS * sizeof(*batch->cpu), cudaHostAllocMapped);
    batch->cpu = cpu;
    if (err == cudaSuccess)
        err = cudaHostGetDevicePointer(&gpu, cpu, 0);
    batch->gpu = gpu;
    if (err == cudaSuccess)
        err = create_events(batch);
    if (err == cudaSuccess)
        err = mem_batch_preload();
    if (err != cudaSuccess) {
        mem_cuda_batch_destroy(batch);
        return mem_cuda_fail(err, "a ring of batches");
    }
    *out = batch;
    return GPUNVME_OK;
}

/* Drops the tables that are done, from the oldest on. */
static gpunvme_err_t retire(struct mem_cuda_batch *batch)
{
    gpunvme_err_t err;
    bool done = true;

    while (batch->ring.ntables) {
        err = mem_cuda_answer(cudaEventQuery(batch->done[batch->ring.first]), &done);
        if (err || !done)
            return err;
        mem_batch_ring_pop(&batch->ring);
    }
    return GPUNVME_OK;
}

/* What a kernel may still read is left to it: freeing pinned memory could wait for ever. */
void mem_cuda_batch_destroy(struct mem_cuda_batch *batch)
{
    if (!batch)
        return;
    if (!batch->lost && retire(batch) == GPUNVME_OK && batch->ring.ntables == 0) {
        for (unsigned i = 0; i < MEM_BATCH_RING_TABLES; i++)
            if (batch->done[i])
                cudaEventDestroy(batch->done[i]);
        if (batch->cpu)
            cudaFreeHost(batch->cpu);
    }
    free(batch);
}

static gpunvme_err_t wait_for_room(struct mem_cuda_batch *batch, size_t n, size_t *begin)
{
    const struct timespec nap = {.tv_nsec = 20000};
    uint64_t start = mem_cuda_now_ns(), waited;
    gpunvme_err_t err;

    for (;;) {
        err = retire(batch);
        if (err || mem_batch_ring_find(&batch->ring, n, begin))
            return err;
        waited = mem_cuda_now_ns() - start;
        if (waited >= ROOM_WAIT_NS)
            return base_fail(GPUNVME_ERR_TIMEOUT,
                             "batches of copies in flight do not end: waited %llu ms",
                             (unsigned long long)(waited / 1000000));
        if (waited > 50000)
            nanosleep(&nap, NULL);
    }
}

static gpunvme_err_t mark_end(struct mem_cuda_batch *batch, size_t begin, size_t nunits,
                              cudaStream_t stream)
{
    unsigned table = mem_batch_ring_push(&batch->ring, begin, nunits);
    cudaError_t err = cudaEventRecord(batch->done[table], stream);

    if (err == cudaSuccess)
        return GPUNVME_OK;
    batch->lost = true;
    return mem_cuda_fail(err, "cudaEventRecord behind a batch of copies");
}

static gpunvme_err_t launch_some(struct mem_cuda_batch *batch, struct mem_batch_cursor *cursor,
                                 size_t max_nbytes, unsigned max_blocks, cudaStream_t stream,
                                 size_t *nunits)
{
    struct mem_batch_cursor counted = *cursor;
    size_t begin;
    cudaError_t cuda_err;
    gpunvme_err_t err;

    *nunits = mem_batch_cut(&counted, max_nbytes, NULL, TABLE_UNITS);
    if (*nunits == 0)
        return GPUNVME_OK;
    err = wait_for_room(batch, *nunits, &begin);
    if (err)
        return err;
    mem_batch_cut(cursor, max_nbytes, batch->cpu + begin, *nunits);
    cuda_err = mem_batch_launch(batch->gpu + begin, *nunits, max_blocks, stream);
    if (cuda_err != cudaSuccess)
        return mem_cuda_fail(cuda_err, "the kernel that copies");
    return mark_end(batch, begin, *nunits, stream);
}

static gpunvme_err_t copy_by_kernel(struct mem_cuda_batch *batch,
                                    const struct gpunvme_mem_piece *pieces, size_t n,
                                    size_t max_nbytes, unsigned max_blocks, cudaStream_t stream)
{
    struct mem_batch_cursor cursor = {.pieces = pieces, .n = n};
    gpunvme_err_t err;
    size_t nunits;

    do
        err = launch_some(batch, &cursor, max_nbytes, max_blocks, stream, &nunits);
    while (!err && nunits);
    return err;
}

/* The pieces of more than `above` bytes. */
static gpunvme_err_t copy_by_engine(const struct gpunvme_mem_piece *pieces, size_t n, size_t above,
                                    cudaStream_t stream)
{
    cudaError_t err = cudaSuccess;

    for (size_t i = 0; i < n; i++) {
        if (pieces[i].nbytes > above)
            err = cudaMemcpyAsync(pieces[i].dst, pieces[i].src, pieces[i].nbytes, cudaMemcpyDefault,
                                  stream);
        if (err != cudaSuccess)
            return mem_cuda_fail(err, "piece %zu of a batch: copy of %zu bytes", i,
                                 pieces[i].nbytes);
    }
    return GPUNVME_OK;
}

/* From CUDA 13 on it has this form; the driver must be as new. */
#if CUDART_VERSION >= 13000
static gpunvme_err_t copy_by_api(const struct gpunvme_mem_piece *pieces, size_t n,
                                 cudaStream_t stream)
{
    struct cudaMemcpyAttributes attributes = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream};
    const void *srcs[API_PIECES];
    void *dsts[API_PIECES];
    size_t sizes[API_PIECES], from_first = 0, some = 0;
    cudaError_t err = cudaSuccess;

    for (size_t i = 0; i < n && err == cudaSuccess; i++) {
        if (pieces[i].nbytes) {
            dsts[some] = pieces[i].dst;
            srcs[some] = pieces[i].src;
            sizes[some++] = pieces[i].nbytes;
        }
        if (some && (some == API_PIECES || i == n - 1)) {
            err =
                cudaMemcpyBatchAsync(dsts, srcs, sizes, some, &attributes, &from_first, 1, stream);
            some = 0;
        }
    }
    if (err == cudaErrorNotSupported || err == cudaErrorCallRequiresNewerDriver) {
        (void)cudaGetLastError();
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "cudaMemcpyBatchAsync: %s",
                         cudaGetErrorString(err));
    }
    return err == cudaSuccess ? GPUNVME_OK : mem_cuda_fail(err, "cudaMemcpyBatchAsync");
}
#else
static gpunvme_err_t copy_by_api(const struct gpunvme_mem_piece *pieces, size_t n,
                                 cudaStream_t stream)
{
    (void)pieces;
    (void)n;
    (void)stream;
    return base_fail(GPUNVME_ERR_UNSUPPORTED,
                     "cudaMemcpyBatchAsync: this build is for a CUDA older than 13.0");
}
#endif

gpunvme_err_t mem_cuda_batch_copy(struct mem_cuda_batch *batch,
                                  const struct gpunvme_mem_piece *pieces, size_t n,
                                  enum mem_batch_way way, unsigned max_blocks, cudaStream_t stream)
{
    gpunvme_err_t err;

    if (way == MEM_BATCH_API)
        return copy_by_api(pieces, n, stream);
    if (batch->lost)
        return base_fail(GPUNVME_ERR_GPU, "an earlier batch of copies on this stream failed");
    if (way == MEM_BATCH_ENGINE)
        return copy_by_engine(pieces, n, 0, stream);
    if (way == MEM_BATCH_KERNEL)
        return copy_by_kernel(batch, pieces, n, SIZE_MAX, max_blocks, stream);
    err = copy_by_kernel(batch, pieces, n, MEM_BATCH_KERNEL_MAX, max_blocks, stream);
    return err ? err : copy_by_engine(pieces, n, MEM_BATCH_KERNEL_MAX, stream);
}
