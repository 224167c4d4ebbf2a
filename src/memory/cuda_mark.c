/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Marks on a stream, behind the wall of cuda.h: the GPU writes their numbers into a word in pinned
 * memory, one after the other. To ask the driver instead takes locks that those need who start
 * copies.
 */
#include <cuda.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "memory/cuda_private.h"

#define LINE   64u /* bytes; no two words are in the same */
#define NWORDS 64u /* of an allocation, which is never freed */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mem_cuda_word *unused; /* under the lock */

/* This form came with CUDA 11.7, and needs no setting of the kernel module. */
static __typeof__(cuStreamWriteValue32) *write_value;
static pthread_once_t looked_up = PTHREAD_ONCE_INIT;

static void look_up(void)
{
    void *found = mem_cuda_driver_symbol("cuStreamWriteValue32_v2");

    memcpy(&write_value, &found, sizeof(found));
}

/* Under the lock. */
static gpunvme_err_t make_words(void)
{
    struct mem_cuda_word *words = calloc(NWORDS, sizeof(*words));
    void *cpu = NULL, *gpu = NULL;
    cudaError_t err;

    if (!words)
        return base_fail(GPUNVME_ERR_NOMEM, "marks of streams");
    err = cudaHostAlloc(&cpu, (size_t)NWORDS * LINE, cudaHostAllocPortable | cudaHostAllocMapped);
    if (err == cudaSuccess)
        err = cudaHostGetDevicePointer(&gpu, cpu, 0);
    if (err != cudaSuccess) {
        cudaFreeHost(cpu);
        free(words);
        return mem_cuda_fail(err, "marks of streams");
    }
    memset(cpu, 0, (size_t)NWORDS * LINE);
    for (unsigned i = 0; i < NWORDS; i++) {
        words[i] = (struct mem_cuda_word){.cpu = (uint32_t *)((char *)cpu + (size_t)i * LINE),
                                          .gpu = (uint32_t *)((char *)gpu + (size_t)i * LINE),
                                          .next = unused};
        unused = &words[i];
    }
    return GPUNVME_OK;
}

gpunvme_err_t mem_cuda_word_take(struct mem_cuda_word **out)
{
    gpunvme_err_t err = GPUNVME_OK;

    pthread_mutex_lock(&lock);
    if (!unused)
        err = make_words();
    *out = unused;
    if (unused)
        unused = unused->next;
    pthread_mutex_unlock(&lock);
    return err;
}

void mem_cuda_word_give(struct mem_cuda_word *word)
{
    if (!word)
        return;
    pthread_mutex_lock(&lock);
    word->next = unused;
    unused = word;
    pthread_mutex_unlock(&lock);
}

gpunvme_err_t mem_cuda_word_mark(struct mem_cuda_word *word, cudaStream_t stream, uint32_t *mark)
{
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;

    pthread_once(&looked_up, look_up);
    if (write_value)
        result = write_value(stream, (CUdeviceptr)(uintptr_t)word->gpu, word->last + 1, 0);
    if (result == CUDA_ERROR_NOT_SUPPORTED)
        return base_fail(GPUNVME_ERR_UNSUPPORTED, "the driver has no cuStreamWriteValue32()");
    if (result != CUDA_SUCCESS)
        return base_fail(GPUNVME_ERR_GPU, "cuStreamWriteValue32: CUDA driver error %d",
                         (int)result);
    *mark = ++word->last;
    return GPUNVME_OK;
}
