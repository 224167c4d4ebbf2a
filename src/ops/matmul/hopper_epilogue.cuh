/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How sums of the rung "hopper" become elements of C.
 */
#ifndef OPS_MATMUL_HOPPER_EPILOGUE_CUH
#define OPS_MATMUL_HOPPER_EPILOGUE_CUH

#include "ops/matmul/hopper_pipeline.cuh"

#ifdef HAVE_HOPPER
/*
 * 64 rows go out by the copy engine, 64 columns at a time, through two buffers. Lane l names row
 * l % 16 of its warp's, and the left or right of two 16 bytes.
 */
template <int DTYPE>
static __device__ __forceinline__ void copy_out(const hopper_work &work, uint32_t out,
                                                const float (&sums)[128], int64_t batch, int row,
                                                int col, int group)
{
    int thread = threadIdx.x % 128, lane = thread % 32;
    uint32_t line = thread / 32 * 16 + lane % 16;
    float alpha = work.product.alpha;

#pragma unroll
    for (int part = 0; part < 4; part++) {
        uint32_t buffer = out + part % 2 * HOPPER_BLOCK;

        if (!thread)
            tensor_store_wait_read<1>();
        barrier_128(1 + group);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *x = &sums[part * 32 + i * 8];
            uint32_t pairs[4];

#pragma unroll
            for (int j = 0; j < 4; j++)
                pairs[j] = to_pair(alpha * x[2 * j], alpha * x[2 * j + 1], DTYPE);
            store_matrices(buffer + hopper_swizzle(line, (uint32_t)(2 * i + lane / 16) * 16),
                           pairs);
        }
        fence_async_proxy();
        barrier_128(1 + group);
        if (!thread) {
            tensor_store(&work.c, buffer, col + part * 64, row, (int)batch);
            tensor_store_commit();
        }
    }
}

/*
 * Likewise by threads, for what the copy engine can't do: other types, beta, a linear layer's
 * epilogue, rows that are not aligned. 64 x 64 sums at a time go through shared memory, so that
 * threads have neighbouring elements.
 */
static __device__ __forceinline__ void write_out(const hopper_work &work, float *out,
                                                 const float (&sums)[128], int64_t batch,
                                                 int64_t row, int64_t col, int group)
{
    const cuda_product &p = work.product;
    int thread = threadIdx.x % 128, lane = thread % 32, line = thread / 32 * 16 + lane / 4;

#pragma unroll
    for (int part = 0; part < 4; part++) {
        barrier_128(1 + group);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            uint32_t r = line + i % 2 * 8, c = i / 2 * 2 + lane % 4 / 2;

            *(float2 *)(out + hopper_result_place(r, c) + lane % 2 * 2) =
                make_float2(sums[part * 32 + 2 * i], sums[part * 32 + 2 * i + 1]);
        }
        barrier_128(1 + group);
#pragma unroll 1
        for (int v = thread; v < 64 * 16; v += 128) {
            int r = v / 16, c = v % 16;

            if (row + r < p.m && col + part * 64 + c * 4 < p.n)
                finish4(p, batch, row + r, col + part * 64 + c * 4,
                        out + hopper_result_place((uint32_t)r, (uint32_t)c));
        }
    }
}
#endif

#endif
