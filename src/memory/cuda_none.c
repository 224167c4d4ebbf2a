/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The wall of cuda.h in a build without CUDA: there is no GPU, and nothing else is ever called.
 */
#include <string.h>

#include "base/fail.h"
#include "memory/cuda.h"

bool mem_cuda_present(void)
{
    return false;
}

const char *mem_cuda_why_not(void)
{
    return "built without CUDA";
}

unsigned mem_cuda_count(void)
{
    return 0;
}

static gpunvme_err_t fail(void)
{
    return base_fail(GPUNVME_ERR_NO_GPU, "%s", mem_cuda_why_not());
}

gpunvme_err_t mem_cuda_info(unsigned index, struct gpunvme_gpu_info *info)
{
    (void)index;
    memset(info, 0, sizeof(*info));
    return fail();
}

gpunvme_err_t mem_cuda_current(unsigned *index)
{
    *index = 0;
    return fail();
}

struct mem_ordering mem_cuda_ordering(unsigned index)
{
    (void)index;
    return (struct mem_ordering){-1, -1};
}

gpunvme_err_t mem_cuda_enter(unsigned device)
{
    (void)device;
    return fail();
}

void mem_cuda_leave(void)
{
}

gpunvme_err_t mem_cuda_peers(unsigned a, unsigned b)
{
    (void)a;
    (void)b;
    return fail();
}

enum mem_cuda_kind mem_cuda_kind(const void *ptr, int *device)
{
    (void)ptr;
    *device = -1;
    return MEM_CUDA_UNKNOWN;
}

bool mem_cuda_range(const void *ptr, struct mem_range *range)
{
    (void)ptr;
    *range = (struct mem_range){0};
    return false;
}

gpunvme_err_t mem_cuda_alloc(size_t nbytes, void **gpu)
{
    (void)nbytes;
    *gpu = NULL;
    return fail();
}

gpunvme_err_t mem_cuda_free(void *gpu)
{
    (void)gpu;
    return fail();
}

gpunvme_err_t mem_cuda_export(const void *gpu, size_t nbytes, int *fd, uint64_t *offset)
{
    (void)gpu;
    (void)nbytes;
    *fd = -1;
    *offset = 0;
    return fail();
}

gpunvme_err_t mem_cuda_pin(void *cpu, size_t nbytes, void **gpu)
{
    (void)cpu;
    (void)nbytes;
    *gpu = NULL;
    return fail();
}

gpunvme_err_t mem_cuda_unpin(void *cpu)
{
    (void)cpu;
    return fail();
}

gpunvme_err_t mem_cuda_pinned_address(void *cpu, void **gpu)
{
    (void)cpu;
    *gpu = NULL;
    return fail();
}

gpunvme_err_t mem_cuda_copy(void *dst, bool dst_gpu, const void *src, bool src_gpu, size_t nbytes)
{
    (void)dst;
    (void)dst_gpu;
    (void)src;
    (void)src_gpu;
    (void)nbytes;
    return fail();
}

gpunvme_err_t mem_cuda_fill(void *dst, uint8_t value, size_t nbytes)
{
    (void)dst;
    (void)value;
    (void)nbytes;
    return fail();
}

gpunvme_err_t mem_cuda_stream_create(const void *near, struct mem_cuda_stream **out)
{
    (void)near;
    *out = NULL;
    return fail();
}

gpunvme_err_t mem_cuda_stream_destroy(struct mem_cuda_stream *stream)
{
    (void)stream;
    return fail();
}

gpunvme_err_t mem_cuda_stream_copy(struct mem_cuda_stream *stream, void *dst, bool dst_gpu,
                                   const void *src, bool src_gpu, size_t nbytes)
{
    (void)stream;
    (void)dst;
    (void)dst_gpu;
    (void)src;
    (void)src_gpu;
    (void)nbytes;
    return fail();
}

gpunvme_err_t mem_cuda_stream_prepare_batches(struct mem_cuda_stream *stream)
{
    (void)stream;
    return fail();
}

gpunvme_err_t mem_cuda_stream_copy_batch(struct mem_cuda_stream *stream,
                                         const struct gpunvme_mem_piece *pieces, size_t n,
                                         enum mem_batch_way way, unsigned max_blocks)
{
    (void)stream;
    (void)pieces;
    (void)n;
    (void)way;
    (void)max_blocks;
    return fail();
}

gpunvme_err_t mem_cuda_stream_query(struct mem_cuda_stream *stream, bool *done)
{
    (void)stream;
    *done = false;
    return fail();
}

gpunvme_err_t mem_cuda_stream_mark(struct mem_cuda_stream *stream, uint32_t *mark)
{
    (void)stream;
    *mark = 0;
    return fail();
}

gpunvme_err_t mem_cuda_stream_passed(struct mem_cuda_stream *stream, uint32_t mark, bool *passed)
{
    (void)stream;
    (void)mark;
    *passed = false;
    return fail();
}

gpunvme_err_t mem_cuda_stream_sync(struct mem_cuda_stream *stream, uint64_t timeout_ns)
{
    (void)stream;
    (void)timeout_ns;
    return fail();
}

gpunvme_err_t mem_cuda_keep_ready(unsigned device)
{
    (void)device;
    return fail();
}

gpunvme_err_t mem_cuda_checksums(const struct mem_checksum_range *ranges, size_t n, uint64_t *sums)
{
    (void)ranges;
    (void)n;
    (void)sums;
    return fail();
}

gpunvme_err_t mem_cuda_convert(struct mem_convert *pieces, size_t n, size_t nbytes,
                               const void *near)
{
    (void)pieces;
    (void)n;
    (void)nbytes;
    (void)near;
    return fail();
}

gpunvme_err_t mem_cuda_checksum(const void *gpu, size_t nbytes, uint64_t *sum)
{
    (void)gpu;
    (void)nbytes;
    *sum = 0;
    return fail();
}

gpunvme_err_t mem_cuda_map_io(void *cpu, size_t nbytes, void **gpu)
{
    (void)cpu;
    (void)nbytes;
    *gpu = NULL;
    return fail();
}

gpunvme_err_t mem_cuda_unmap_io(void *cpu)
{
    (void)cpu;
    return fail();
}

gpunvme_err_t mem_cuda_load32(const void *gpu, uint32_t *value)
{
    (void)gpu;
    *value = 0;
    return fail();
}

gpunvme_err_t mem_cuda_user_stream_device(void *stream, unsigned *device)
{
    (void)stream;
    *device = 0;
    return fail();
}

gpunvme_err_t mem_cuda_user_stream_capturing(void *stream, bool *capturing)
{
    (void)stream;
    *capturing = false;
    return fail();
}

gpunvme_err_t mem_cuda_user_stream_call(void *stream, void (*fn)(void *), void *arg)
{
    (void)stream;
    (void)fn;
    (void)arg;
    return fail();
}

gpunvme_err_t mem_cuda_user_stream_wait(void *stream, const uint32_t *gpu_word, uint32_t value)
{
    (void)stream;
    (void)gpu_word;
    (void)value;
    return fail();
}

gpunvme_err_t mem_cuda_user_stream_wait_event(void *stream, void *event)
{
    (void)stream;
    (void)event;
    return fail();
}

gpunvme_err_t mem_cuda_user_stream_record(void *stream, void *event)
{
    (void)stream;
    (void)event;
    return fail();
}

gpunvme_err_t mem_cuda_user_stream_mark(void *stream, struct mem_cuda_word **word, uint32_t *mark)
{
    (void)stream;
    (void)word;
    *mark = 0;
    return fail();
}

bool mem_cuda_user_stream_passed(const struct mem_cuda_word *word, uint32_t mark)
{
    (void)word;
    (void)mark;
    return true;
}

void mem_cuda_word_give(struct mem_cuda_word *word)
{
    (void)word;
}

gpunvme_err_t mem_cuda_user_stream_convert(void *stream, const struct mem_samples *s)
{
    (void)stream;
    (void)s;
    return fail();
}

gpunvme_err_t mem_cuda_user_stream_create(void **stream)
{
    *stream = NULL;
    return fail();
}
