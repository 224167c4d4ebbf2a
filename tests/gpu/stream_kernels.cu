/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The kernels of test_gpu_memory_stream.c.
 */
#include "stream_kernels.h"

static __global__ void store(uint32_t *word, uint32_t value)
{
    *word = value;
}

static __global__ void add_up(const uint32_t *words, size_t n, unsigned long long *sum)
{
    for (size_t i = threadIdx.x; i < n; i += blockDim.x)
        atomicAdd(sum, (unsigned long long)words[i]);
}

/* Each block takes a while, and most wait for their turn. */
static __global__ void crowd(unsigned ns)
{
    for (unsigned i = 0; i < ns; i += 1000)
        __nanosleep(1000);
}

extern "C" cudaError_t stream_store(uint32_t *word, uint32_t value, cudaStream_t stream)
{
    store<<<1, 1, 0, stream>>>(word, value);
    return cudaGetLastError();
}

extern "C" cudaError_t stream_add_up(const uint32_t *words, size_t n, uint64_t *sum,
                                     cudaStream_t stream)
{
    add_up<<<1, 256, 0, stream>>>(words, n, (unsigned long long *)sum);
    return cudaGetLastError();
}

extern "C" cudaError_t stream_crowd(unsigned nblocks, unsigned ns, cudaStream_t stream)
{
    crowd<<<nblocks, 1024, 0, stream>>>(ns);
    return cudaGetLastError();
}
