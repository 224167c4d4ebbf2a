/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What cuda.c knows of batch.cu.
 */
#ifndef MEMORY_BATCH_CUDA_H
#define MEMORY_BATCH_CUDA_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "memory/batch.h"

/*
 * Blocks of the kernel at most, of 8 warps each. All of them together have 2 MiB in flight, many
 * times what PCIe needs, and leave most of a large GPU's multiprocessors to others.
 */
#define MEM_BATCH_MAX_BLOCKS 64u

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Starts the kernel on `stream`, whose device must be the current one. The table and all that its
 * units name must be addresses of that device. 0 < nunits; max_blocks 0: MEM_BATCH_MAX_BLOCKS.
 */
/* Loads the kernel, which else the first launch does. */
cudaError_t mem_batch_preload(void);

cudaError_t mem_batch_launch(const struct mem_batch_unit *units, size_t nunits, unsigned max_blocks,
                             cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
