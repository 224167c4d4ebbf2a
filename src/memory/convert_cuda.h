/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What cuda.c knows of convert.cu.
 */
#ifndef MEMORY_CONVERT_CUDA_H
#define MEMORY_CONVERT_CUDA_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "memory/convert.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Starts the kernel on `stream`, whose device must be the current one. 0 < n. */
cudaError_t mem_convert_launch(struct mem_convert *pieces, size_t n, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
