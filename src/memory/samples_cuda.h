/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What cuda_user_stream.c knows of samples.cu.
 */
#ifndef MEMORY_SAMPLES_CUDA_H
#define MEMORY_SAMPLES_CUDA_H

#include <cuda_runtime_api.h>

#include "memory/samples.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Starts the kernel on `stream`, whose device must be the current one. There is something to do. */
cudaError_t mem_samples_launch(const struct mem_samples *s, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
