/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The pass that a linear layer makes over sums where its product did not do it in passing.
 */
#include "ops/linear/passes.h"
#include "ops/matmul/finish.cuh"

#define THREADS 256

static __global__ void __launch_bounds__(THREADS)
    finish_sums(const cuda_product p, const float *sums, int64_t ld)
{
    int64_t across = (p.n + 3) / 4, step = (int64_t)gridDim.x * THREADS;

    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < across * p.m; i += step) {
        int64_t row = i / across, col = i % across * 4;

        finish4(p, 0, row, col, sums + row * ld + col);
    }
}

gpunvme_ops_status_t linear_finish(const struct cuda_product *p, const float *sums, int64_t ld,
                                   void *stream)
{
    int64_t blocks = ((p->n + 3) / 4 * p->m + THREADS - 1) / THREADS;

    LAUNCH(finish_sums, (unsigned)(blocks < 1 << 20 ? blocks : 1 << 20), THREADS, stream, *p, sums,
           ld);
    return cuda_status(cudaGetLastError(), "launching the activation");
}
