/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Starts the kernel of mmio.cu.
 */
#ifndef MEMORY_MMIO_CUDA_H
#define MEMORY_MMIO_CUDA_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Has the current device load 32 bits from `address` and store them to *value, both of its own. */
cudaError_t mem_mmio_launch(const void *address, uint64_t *value, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
