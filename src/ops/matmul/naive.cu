/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rung 1, naive: a thread for each element of C, which reads its row of A and column of B from
 * global memory. Neighbouring threads have neighbouring columns. It also does what has no product
 * in it (k = 0) for all other rungs.
 */
#include "ops/matmul/finish.cuh"

#define ROWS 8
#define COLS 32

static __global__ void __launch_bounds__(ROWS *COLS) multiply(const cuda_product p)
{
    int64_t tiles = (p.n + COLS - 1) / COLS * ((p.m + ROWS - 1) / ROWS) * p.batch;

    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        tile_place at = place_of(p, tile, ROWS, COLS);
        int64_t i = at.row + threadIdx.x / COLS, j = at.col + threadIdx.x % COLS;
        float sum = 0;

        if (i >= p.m || j >= p.n)
            continue;
        for (int64_t k = 0; k < p.k; k++)
            sum += load_operand(p.a, at.batch, i, k, p.dtype) *
                   load_operand(p.b, at.batch, k, j, p.dtype);
        finish(p, at.batch, i, j, sum);
    }
}

gpunvme_ops_status_t cuda_multiply_naive(const struct cuda_product *p, void *workspace,
                                         void *stream, struct cuda_launch *launch)
{
    static const cuda_tiling tiling = {ROWS, COLS, 0, 0, ROWS * COLS, 0};

    (void)workspace;
    return cuda_launch_tiles((const void *)multiply, p, &tiling, stream, launch);
}
