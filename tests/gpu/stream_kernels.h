/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Kernels for test_gpu_memory_stream.c, as calls that put them on a stream.
 */
#ifndef TESTS_GPU_STREAM_KERNELS_H
#define TESTS_GPU_STREAM_KERNELS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Stores a word. */
cudaError_t stream_store(uint32_t *word, uint32_t value, cudaStream_t stream);

/* Adds the n words to *sum, in GPU memory. */
cudaError_t stream_add_up(const uint32_t *words, size_t n, uint64_t *sum, cudaStream_t stream);

/* Fills the GPU with `nblocks` blocks of 1,024 threads that take `ns` nanoseconds or more each. */
cudaError_t stream_crowd(unsigned nblocks, unsigned ns, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
