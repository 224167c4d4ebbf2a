/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where k was cut into pieces: their sums, in f32 and below each other in the workspace, are added
 * in order and become elements of C.
 */
#include "ops/matmul/finish.cuh"

#define THREADS 64 /* of few results many multiprocessors take a part */

/* Four columns of a row at a time; sixteen pieces are loaded before they are added. */
static __global__ void __launch_bounds__(THREADS)
    add_pieces(const cuda_product p, const float *sums, int64_t ld, int pieces)
{
    int64_t across = ld / 4, count = across * p.m, step = (int64_t)gridDim.x * THREADS;

    let_next_kernel_start();
    wait_for_kernels_before();
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count * p.batch; i += step) {
        int64_t batch = i / count, at = i - batch * count, row = at / across;
        int64_t col = (at - row * across) * 4;
        const float4 *from = (const float4 *)sums + batch * pieces * count + at;
        float sum[4] = {0, 0, 0, 0};

#pragma unroll 16
        for (int piece = 0; piece < pieces; piece++) {
            float4 x = from[piece * count];

            sum[0] += x.x;
            sum[1] += x.y;
            sum[2] += x.z;
            sum[3] += x.w;
        }
        finish4(p, batch, row, col, sum);
    }
}

gpunvme_ops_status_t cuda_add_pieces(const struct cuda_product *p, const float *sums, int64_t ld,
                                     int pieces, void *stream)
{
    int64_t blocks = (ld / 4 * p->m * p->batch + THREADS - 1) / THREADS;
    cuda_product product = *p;

    LAUNCH_CLUSTERS(add_pieces, (unsigned)(blocks < 1 << 20 ? blocks : 1 << 20), 1u, THREADS, 0,
                    stream, product, sums, ld, pieces);
    return cuda_status(cudaGetLastError(), "launching the sums of pieces");
}
