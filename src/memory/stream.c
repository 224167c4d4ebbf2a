/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Copies in the background: a CUDA stream, or without a GPU a copy done at once.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "gpunvme/memory.h"
#include "memory/check.h"
#include "memory/cuda.h"
#include "memory/stream.h"

/* `cuda` is NULL without a GPU. */
struct gpunvme_mem_stream {
    struct mem_cuda_stream *cuda;
};

#define DESTROY_TIMEOUT_NS 10000000000u

gpunvme_err_t gpunvme_mem_stream_create(const struct gpunvme_buf *near,
                                        struct gpunvme_mem_stream **out)
{
    struct gpunvme_mem_stream *stream;
    gpunvme_err_t err = GPUNVME_OK;

    if (!out)
        return base_fail(GPUNVME_ERR_INVALID, "out is NULL");
    *out = NULL;
    stream = calloc(1, sizeof(*stream));
    if (!stream)
        return base_fail(GPUNVME_ERR_NOMEM, "a stream");
    if (mem_cuda_present())
        err = mem_cuda_stream_create(near ? near->gpu : NULL, &stream->cuda);
    if (err) {
        free(stream);
        return err;
    }
    *out = stream;
    return GPUNVME_OK;
}

gpunvme_err_t gpunvme_mem_stream_destroy(struct gpunvme_mem_stream *stream)
{
    gpunvme_err_t waited, err;

    if (!stream)
        return GPUNVME_OK;
    waited = gpunvme_mem_stream_sync(stream, DESTROY_TIMEOUT_NS);
    err = stream->cuda ? mem_cuda_stream_destroy(stream->cuda) : GPUNVME_OK;
    free(stream);
    return waited ? waited : err;
}

gpunvme_err_t gpunvme_mem_copy_async(void *dst, enum gpunvme_mem dst_mem, const void *src,
                                     enum gpunvme_mem src_mem, size_t nbytes,
                                     struct gpunvme_mem_stream *stream)
{
    gpunvme_err_t err = mem_check_copy(dst, dst_mem, src, src_mem, nbytes);

    if (err)
        return err;
    if (!stream)
        return base_fail(GPUNVME_ERR_INVALID, "stream is NULL");
    if (!stream->cuda || nbytes == 0)
        return gpunvme_mem_copy(dst, dst_mem, src, src_mem, nbytes);
    return mem_cuda_stream_copy(stream->cuda, dst, dst_mem == GPUNVME_MEM_GPU, src,
                                src_mem == GPUNVME_MEM_GPU, nbytes);
}

static gpunvme_err_t check_pieces(const struct gpunvme_mem_piece *pieces, size_t n)
{
    if (n && !pieces)
        return base_fail(GPUNVME_ERR_INVALID, "pieces is NULL");
    for (size_t i = 0; i < n; i++)
        if (pieces[i].nbytes && (!pieces[i].dst || !pieces[i].src))
            return base_fail(GPUNVME_ERR_INVALID, "piece %zu: a copy %s NULL", i,
                             pieces[i].dst ? "from" : "to");
    return GPUNVME_OK;
}

gpunvme_err_t mem_copy_batch_checked(const struct gpunvme_mem_piece *pieces, size_t n,
                                     struct gpunvme_mem_stream *stream)
{
    if (stream->cuda)
        return mem_cuda_stream_copy_batch(stream->cuda, pieces, n, MEM_BATCH_AUTO, 0);
    for (size_t i = 0; i < n; i++)
        if (pieces[i].nbytes)
            memcpy(pieces[i].dst, pieces[i].src, pieces[i].nbytes);
    return GPUNVME_OK;
}

gpunvme_err_t mem_stream_prepare_batches(struct gpunvme_mem_stream *stream)
{
    return stream->cuda ? mem_cuda_stream_prepare_batches(stream->cuda) : GPUNVME_OK;
}

gpunvme_err_t gpunvme_mem_copy_batch(const struct gpunvme_mem_piece *pieces, size_t n,
                                     struct gpunvme_mem_stream *stream)
{
    gpunvme_err_t err = check_pieces(pieces, n);
    struct mem_ranges ranges;

    if (err)
        return err;
    if (!stream)
        return base_fail(GPUNVME_ERR_INVALID, "stream is NULL");
    mem_ranges_init(&ranges);
    err = mem_ranges_check_pieces(&ranges, pieces, n);
    return err ? err : mem_copy_batch_checked(pieces, n, stream);
}

gpunvme_err_t gpunvme_mem_stream_sync(struct gpunvme_mem_stream *stream, uint64_t timeout_ns)
{
    if (!stream)
        return base_fail(GPUNVME_ERR_INVALID, "stream is NULL");
    return stream->cuda ? mem_cuda_stream_sync(stream->cuda, timeout_ns) : GPUNVME_OK;
}

gpunvme_err_t gpunvme_mem_stream_query(struct gpunvme_mem_stream *stream, bool *done)
{
    if (!stream || !done)
        return base_fail(GPUNVME_ERR_INVALID, "%s is NULL", stream ? "done" : "stream");
    *done = true;
    return stream->cuda ? mem_cuda_stream_query(stream->cuda, done) : GPUNVME_OK;
}

gpunvme_err_t mem_stream_mark(struct gpunvme_mem_stream *stream, uint32_t *mark)
{
    *mark = 0;
    return stream->cuda ? mem_cuda_stream_mark(stream->cuda, mark) : GPUNVME_OK;
}

gpunvme_err_t mem_stream_passed(struct gpunvme_mem_stream *stream, uint32_t mark, bool *passed)
{
    *passed = true;
    return stream->cuda ? mem_cuda_stream_passed(stream->cuda, mark, passed) : GPUNVME_OK;
}
