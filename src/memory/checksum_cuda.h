/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What cuda.c knows of checksum.cu.
 */
#ifndef MEMORY_CHECKSUM_CUDA_H
#define MEMORY_CHECKSUM_CUDA_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#define MEM_CHECKSUM_MAX_BLOCKS 4096

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Starts the kernel on `stream` of `device`, which must be the current one: *nblocks blocks (at
 * most MEM_CHECKSUM_MAX_BLOCKS), of which block i stores its sum to partial[i]. nbytes > 0.
 */
cudaError_t mem_checksum_launch(const void *gpu, size_t nbytes, int device, uint64_t *partial,
                                unsigned *nblocks, cudaStream_t stream);

/* Of many ranges: whole words of one, or its end. */
#define MEM_CHECKSUM_PIECE ((size_t)256 << 10) /* bytes, at most */

struct mem_checksum_piece {
    const void *gpu;
    uint64_t nbytes; /* > 0 */
    uint64_t first;  /* the index of its first word in the range */
    uint64_t range;  /* the caller's */
};

/* The same for n pieces, at most MEM_CHECKSUM_MAX_BLOCKS: partial[i] is the sum of the i-th. */
cudaError_t mem_checksum_launch_pieces(const struct mem_checksum_piece *pieces, unsigned n,
                                       uint64_t *partial, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
