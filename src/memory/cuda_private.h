/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the files behind the wall of cuda.h share. Only they include it.
 */
#ifndef MEMORY_CUDA_PRIVATE_H
#define MEMORY_CUDA_PRIVATE_H

#include <cuda_runtime_api.h>

#include "memory/cuda.h"

/* GPUNVME_ERR_GPU; the detail is the text given and CUDA's own. */
gpunvme_err_t mem_cuda_fail(cudaError_t err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* What a query of a stream or an event answered: done, not yet, or an error. */
gpunvme_err_t mem_cuda_answer(cudaError_t err, bool *done);

/* A function of the driver, libcuda.so.1; NULL where it has none of that name. */
void *mem_cuda_driver_symbol(const char *symbol);

uint64_t mem_cuda_now_ns(void); /* of a clock that only goes forward */

/*
 * How far a stream has come: its word gets the numbers of the marks that it has passed, which go up
 * (and around). One that was used by a stream before goes on from there. UNSUPPORTED: the driver
 * can't; then a stream has none.
 */
struct mem_cuda_word {
    uint32_t *cpu, *gpu;
    uint32_t last; /* number that was given to a mark */
    struct mem_cuda_word *next;
};
gpunvme_err_t mem_cuda_word_take(struct mem_cuda_word **out);
gpunvme_err_t mem_cuda_word_mark(struct mem_cuda_word *word, cudaStream_t stream, uint32_t *mark);

static inline bool mem_cuda_word_passed(const struct mem_cuda_word *word, uint32_t mark)
{
    return (int32_t)(__atomic_load_n(word->cpu, __ATOMIC_ACQUIRE) - mark) >= 0;
}

/* Batches on one stream, by one thread at a time, with the stream's device as the current one. */
struct mem_cuda_batch;
gpunvme_err_t mem_cuda_batch_create(struct mem_cuda_batch **out);
void mem_cuda_batch_destroy(struct mem_cuda_batch *batch); /* NULL is fine */
gpunvme_err_t mem_cuda_batch_copy(struct mem_cuda_batch *batch,
                                  const struct gpunvme_mem_piece *pieces, size_t n,
                                  enum mem_batch_way way, unsigned max_blocks, cudaStream_t stream);

#endif
