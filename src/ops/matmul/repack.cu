/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Copies of operands that the copy engine can't read as they lie.
 */
#include "ops/cuda/element.cuh"
#include "ops/matmul/hopper.h"

#define TILE 32

/* Tiles of 32 x 32, read along whichever direction is contiguous and written along k. */
template <typename ELEMENT>
static __global__ void __launch_bounds__(TILE * 8)
    repack(const ELEMENT *from, int64_t stride, int64_t step_line, int64_t step_k, int64_t lines,
           int64_t k, int64_t batch, int64_t pitch, ELEMENT *to)
{
    __shared__ ELEMENT tile[TILE][TILE + 1];
    int64_t across = (k + TILE - 1) / TILE, down = (lines + TILE - 1) / TILE;
    int fast = threadIdx.x % TILE, slow = threadIdx.x / TILE;

    for (int64_t i = blockIdx.x; i < across * down * batch; i += gridDim.x) {
        int64_t col = i % across * TILE, row = i / across % down * TILE, b = i / across / down;

        for (int j = slow; j < TILE; j += 8) {
            int r = step_k == 1 ? j : fast, c = step_k == 1 ? fast : j;

            if (row + r < lines && col + c < k)
                tile[r][c] = from[b * stride + (row + r) * step_line + (col + c) * step_k];
        }
        __syncthreads();
        for (int j = slow; j < TILE; j += 8)
            if (row + j < lines && col + fast < k)
                to[(b * lines + row + j) * pitch + col + fast] = tile[j][fast];
        __syncthreads();
    }
}

gpunvme_ops_status_t hopper_repack(const struct cuda_operand *x, int64_t step_line, int64_t step_k,
                                   int64_t lines, int64_t k, int64_t batch, int64_t pitch, int size,
                                   void *to, void *stream)
{
    int64_t tiles = (lines + TILE - 1) / TILE * ((k + TILE - 1) / TILE) * batch;
    unsigned blocks = (unsigned)(tiles < 1 << 20 ? tiles : 1 << 20);

    if (size == 4)
        LAUNCH(repack<float>, blocks, TILE * 8, stream, (const float *)x->data, x->stride,
               step_line, step_k, lines, k, batch, pitch, (float *)to);
    else if (size == 1)
        LAUNCH(repack<uint8_t>, blocks, TILE * 8, stream, (const uint8_t *)x->data, x->stride,
               step_line, step_k, lines, k, batch, pitch, (uint8_t *)to);
    else
        LAUNCH(repack<uint16_t>, blocks, TILE * 8, stream, (const uint16_t *)x->data, x->stride,
               step_line, step_k, lines, k, batch, pitch, (uint16_t *)to);
    return cuda_status(cudaGetLastError(), "launching a copy");
}
