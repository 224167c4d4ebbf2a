/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The second stage of sums over rows: partial sums of each column are added up in one order.
 */
#include "ops/cuda/element.cuh"
#include "ops/cuda/sums.h"

#define THREADS 256
#define WARPS   (THREADS / 32)

/* A block has 32 columns, each of its warps an eighth of the parts. */
static __global__ void __launch_bounds__(THREADS)
    finish_sums(const float *sums, int64_t parts, int64_t out, void *total, int dtype,
                int accumulate)
{
    __shared__ float all[WARPS][32];
    int64_t share = (parts + WARPS - 1) / WARPS;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    for (int64_t col = (int64_t)blockIdx.x * 32; col < out; col += (int64_t)gridDim.x * 32) {
        int64_t j = col + lane, last = (warp + 1) * share;
        float sum = 0;

        last = last < parts ? last : parts;
        if (j < out)
#pragma unroll 8
            for (int64_t part = warp * share; part < last; part++)
                sum += sums[part * out + j];
        all[warp][lane] = sum;
        __syncthreads();
        if (!warp && j < out) {
            sum = accumulate ? load_element(total, j, dtype) : 0;
            for (int w = 0; w < WARPS; w++)
                sum += all[w][lane];
            store_element(total, j, dtype, sum);
        }
        __syncthreads();
    }
}

gpunvme_ops_status_t cuda_finish_sums(const float *sums, int64_t parts, int64_t out, void *total,
                                      int dtype, int accumulate, void *stream)
{
    int64_t blocks = (out + 31) / 32;

    LAUNCH(finish_sums, (unsigned)(blocks < 1 << 20 ? blocks : 1 << 20), THREADS, stream, sums,
           parts, out, total, dtype, accumulate);
    return cuda_status(cudaGetLastError(), "launching sums of columns");
}
