/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rung 2, tiled: a block brings tiles of A and B to shared memory, from where each element is read
 * 32 times. Whichever way an operand lies, neighbouring threads read neighbouring elements.
 */
#include "ops/matmul/finish.cuh"

#define TILE 32

/* Columns are one apart for reading by rows, and rows by columns, without two in a bank. */
typedef float tile_t[TILE][TILE + 1];

/* tile[i][j] = x(row + i, col + j), zeros beyond rows x cols. */
static __device__ void bring(tile_t tile, const cuda_operand &x, int64_t batch, int64_t row,
                             int64_t col, int64_t rows, int64_t cols, int dtype)
{
    int slow = threadIdx.x / TILE, fast = threadIdx.x % TILE;
    int i = x.cs == 1 ? slow : fast, j = x.cs == 1 ? fast : slow;
    bool inside = row + i < rows && col + j < cols;

    tile[i][j] = inside ? load_operand(x, batch, row + i, col + j, dtype) : 0;
}

static __global__ void __launch_bounds__(TILE *TILE) multiply(const cuda_product p)
{
    __shared__ tile_t a, b;
    int64_t tiles = (p.n + TILE - 1) / TILE * ((p.m + TILE - 1) / TILE) * p.batch;
    int i = threadIdx.x / TILE, j = threadIdx.x % TILE;

    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        tile_place at = place_of(p, tile, TILE, TILE);
        float sum = 0;

        for (int64_t k = 0; k < p.k; k += TILE) {
            bring(a, p.a, at.batch, at.row, k, p.m, p.k, p.dtype);
            bring(b, p.b, at.batch, k, at.col, p.k, p.n, p.dtype);
            __syncthreads();
#pragma unroll
            for (int x = 0; x < TILE; x++)
                sum += a[i][x] * b[x][j];
            __syncthreads();
        }
        if (at.row + i < p.m && at.col + j < p.n)
            finish(p, at.batch, at.row + i, at.col + j, sum);
    }
}

gpunvme_ops_status_t cuda_multiply_tiled(const struct cuda_product *p, void *workspace,
                                         void *stream, struct cuda_launch *launch)
{
    static const cuda_tiling tiling = {TILE, TILE, 1, 1, TILE * TILE, 0};

    (void)workspace;
    return cuda_launch_tiles((const void *)multiply, p, &tiling, stream, launch);
}
