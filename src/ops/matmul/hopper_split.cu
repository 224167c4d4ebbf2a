/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Products of 65 to 128 rows by the main loop of the rung "hopper", for 16-bit types with both
 * operands contiguous along k. Weights are read at the speed of memory if all multiprocessors have
 * an equal part of them, and there are too few tiles for that. So the two blocks of a cluster share
 * a tile's k. Their sums stay in shared memory, where each block adds and finishes half of the
 * tile.
 */
#include "ops/hopper/wgmma_narrow.cuh"

#include "ops/hopper/loop.cuh"
#include "ops/matmul/finish_cluster.cuh"
#include "ops/matmul/hopper.h"

#ifdef HAVE_HOPPER
/* Each cluster makes one tile. */
struct split_schedule {
    enum { SHARES_LOADS = 0 };
    const hopper_schedule &schedule;
    bool left;

    __device__ __forceinline__ split_schedule(const hopper_schedule &x, uint32_t)
        : schedule(x), left(true)
    {
    }
    __device__ __forceinline__ bool more() const
    {
        return left;
    }
    __device__ __forceinline__ void advance()
    {
        left = false;
    }
    __device__ __forceinline__ hopper_place place() const
    {
        return hopper_place_of(&schedule.grid, blockIdx.x / 2);
    }
    __device__ __forceinline__ hopper_span span(int64_t &) const
    {
        return cluster_rank() ? hopper_span{schedule.steps, schedule.all_steps - schedule.steps}
                              : hopper_span{0, schedule.steps};
    }
};

/* Those who load are there when sums are in shared memory, and leave the rest to the others. */
template <int TILE_N> struct split_source : tensor_source<2, 0, 0, TILE_N> {
    template <typename EXTRA> static __device__ __forceinline__ void beside(const EXTRA &)
    {
        __syncwarp();
        cluster_sync();
    }
};

/* 64 x 64 sums lie together, those of a warp group's columns behind each other. */
template <int TILE_N> struct split_epilogue {
    enum { BEGINS = 0, PARTS = (TILE_N + 63) / 64 };
    const hopper_work &work;
    float *floats; /* where stages were */
    int group;
    hopper_place tile;

    __device__ __forceinline__ split_epilogue(const hopper_work &x, const ring &mem,
                                              unsigned char *dynamic, int of_group)
        : work(x), floats((float *)(dynamic + (mem.stages - shared_address(dynamic)))),
          group(of_group)
    {
    }
    /* The bias is read at the very end: it comes to the L2 cache meanwhile. */
    __device__ __forceinline__ void expect(const hopper_place &at)
    {
        int64_t col = at.col + threadIdx.x % 128 * 64;

        if (work.product.bias && threadIdx.x % 128 < TILE_N / 64 + 1 && col < work.product.n)
            prefetch_line((const uint16_t *)work.product.bias + col);
    }
    __device__ __forceinline__ void begin(float (&)[TILE_N / 2])
    {
    }
    /* All stages have been read when both groups have come. */
    __device__ __forceinline__ void end(const float (&sums)[TILE_N / 2], const hopper_place &at,
                                        int64_t row)
    {
        int lane = threadIdx.x % 32, line = threadIdx.x % 128 / 32 * 16 + lane / 4;

        tile = at;
        barrier_256(3);
#pragma unroll
        for (int i = 0; i < TILE_N / 4; i++) {
            uint32_t r = line + i % 2 * 8, c = i / 2 % 8 * 2 + lane % 4 / 2;
            float *block = floats + (group * PARTS + i / 16) * 64 * 64;

            if (row + r < work.product.m)
                *(float2 *)(block + hopper_result_place(r, c) + lane % 2 * 2) =
                    make_float2(sums[2 * i], sums[2 * i + 1]);
        }
    }
    __device__ __forceinline__ void finish()
    {
        uint32_t from = shared_address(floats);

        __syncwarp();
        cluster_sync();
        finish_share<TILE_N, 256>(
            work.product, (int)threadIdx.x - 128, (int)work.product.m, tile.batch, 0, tile.col,
            [from](int i, int j) {
                return from + 4 * ((uint32_t)((i / 64 * PARTS + j / 64) * 64 * 64) +
                                   hopper_result_place((uint32_t)i % 64, (uint32_t)j % 64 / 4));
            });
    }
};
#endif

template <int DTYPE, int TILE_N>
static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    multiply(const __grid_constant__ hopper_work work)
{
#ifdef HAVE_HOPPER
    hopper_block<split_schedule, split_source<TILE_N>, multiply_from_shared<DTYPE, 0, 0, TILE_N>,
                 split_epilogue<TILE_N>>(work.schedule, work.operands, 0, work);
#endif
}

const void *hopper_split_kernel(int dtype, int width)
{
#define KERNELS(width)                                                                             \
    {                                                                                              \
        (const void *)multiply<GPUNVME_OPS_F16, width>,                                            \
            (const void *)multiply<GPUNVME_OPS_BF16, width>                                        \
    }
    static const void *const kernels[][2] = {KERNELS(64), KERNELS(96), KERNELS(128), KERNELS(160)};

    return kernels[width / 32 - 2][dtype == GPUNVME_OPS_BF16];
}
