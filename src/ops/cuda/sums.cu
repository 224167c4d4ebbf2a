/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The second stage of sums over rows: partial sums of each column are added up in one order.
 */
#include "ops/cuda/element.cuh"
#include "ops/cuda/sums.h"

#define THREADS 512
#define WARPS   (THREADS / 32)

/* A block has 32 columns, each of its warps a share of the parts. */
static __global__ void __launch_bounds__(THREADS) finish_sums(const cuda_sums x)
{
    __shared__ float all[WARPS][32];
    int64_t share = (x.parts + WARPS - 1) / WARPS;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    wait_for_kernels_before();
    for (int64_t col = (int64_t)blockIdx.x * 32; col < x.out; col += (int64_t)gridDim.x * 32) {
        int64_t j = col + lane, last = (warp + 1) * share;
        float sum = 0;

        last = last < x.parts ? last : x.parts;
        if (j < x.out)
#pragma unroll 16
            for (int64_t part = warp * share; part < last; part++)
                sum += x.sums[part * x.out + j];
        all[warp][lane] = sum;
        __syncthreads();
        if (!warp && j < x.out) {
            void *total = j < x.first ? x.total[0] : x.total[1];

            j -= j >= x.first ? x.first : 0;
            sum = x.accumulate ? load_element(total, j, x.dtype) : 0;
            for (int w = 0; w < WARPS; w++)
                sum += all[w][lane];
            store_element(total, j, x.dtype, sum);
        }
        __syncthreads();
    }
}

gpunvme_ops_status_t cuda_finish_sums(const struct cuda_sums *x, void *stream)
{
    int64_t blocks = (x->out + 31) / 32;

    LAUNCH_CLUSTERS(finish_sums, (unsigned)(blocks < 1 << 20 ? blocks : 1 << 20), 1u,
                    (unsigned)THREADS, 0, stream, *x);
    return cuda_status(cudaGetLastError(), "launching sums of columns");
}
