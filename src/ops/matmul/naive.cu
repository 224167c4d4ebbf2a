/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rung 1, naive: a thread for each element of C, which reads its row of A and column of B from
 * global memory. Neighbouring threads have neighbouring columns. It also does what has no product
 * in it (k = 0) for all other rungs.
 */
#include "ops/matmul/finish.cuh"

#define ROWS 8
#define COLS 32

/* Number k of line `line` of an operand, times its scale. */
static __device__ __forceinline__ float scaled(const cuda_operand &x, const ops_scales &scales,
                                               int64_t batch, int64_t i, int64_t j, int64_t line,
                                               int64_t k, int dtype)
{
    const uint8_t *data = (const uint8_t *)x.data + batch * x.stride + i * x.rs + j * x.cs;
    ops_scales of = scales;

    if (of.data)
        of.data += batch * of.stride;
    return ops_scale_at(&of, line, k) * from_fp8(*data, dtype);
}

static __device__ __forceinline__ float multiply_fp8(const cuda_product &p, int64_t batch,
                                                     int64_t i, int64_t j)
{
    float sum = 0;

    for (int64_t k = 0; k < p.k; k++)
        sum += scaled(p.a, p.scale_a, batch, i, k, i, k, p.dtype) *
               scaled(p.b, p.scale_b, batch, k, j, j, k, p.dtype_b);
    return sum;
}

static __global__ void __launch_bounds__(ROWS *COLS) multiply(const cuda_product p)
{
    int64_t tiles = (p.n + COLS - 1) / COLS * ((p.m + ROWS - 1) / ROWS) * p.batch;

    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        tile_place at = place_of(p, tile, ROWS, COLS);
        int64_t i = at.row + threadIdx.x / COLS, j = at.col + threadIdx.x % COLS;
        float sum = 0;

        if (i >= p.m || j >= p.n)
            continue;
        if (cuda_is_fp8(p.dtype))
            sum = multiply_fp8(p, at.batch, i, j);
        for (int64_t k = 0; k < p.k && !cuda_is_fp8(p.dtype); k++)
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
