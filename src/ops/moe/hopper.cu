/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Products of all experts by the main loop of hopper/loop.cuh: schedules that find an expert's
 * tiles by the numbers of slots, which only the device knows, and an epilogue that writes the rows
 * which are the expert's. Operands with rows of slots have been copied by expert. A tile of a
 * product may read rows behind the expert's: their sums are not written. The steps of a gradient
 * are whole, for zeros fill the last one.
 */
#include "ops/hopper/loop.cuh"
#include "ops/moe/hopper.h"
#include "ops/moe/tile.cuh"

#ifdef HAVE_HOPPER
static __device__ __forceinline__ const moe_schedule &schedule_of(const hopper_schedule &x)
{
    return *(const moe_schedule *)&x; /* its first member */
}

/* Tiles of the products of all experts. */
struct product_raster {
    enum { SHARES_LOADS = 1 };
    const moe_schedule &schedule;
    int64_t i;
    moe_tile tile;
    bool found;

    __device__ __forceinline__ product_raster(const hopper_schedule &x, uint32_t)
        : schedule(schedule_of(x)), i(blockIdx.x)
    {
        find();
    }
    __device__ __forceinline__ void find()
    {
        found =
            moe_find_tile(schedule.slots, i, HOPPER_TILE_M, HOPPER_TILE_N, schedule.across, tile);
    }
    __device__ __forceinline__ bool more() const
    {
        return found;
    }
    __device__ __forceinline__ void advance()
    {
        i += gridDim.x;
        find();
    }
    __device__ __forceinline__ hopper_place place() const
    {
        hopper_place x = {0, 0, 0};

        if (found) {
            x.batch = tile.expert;
            x.row = schedule.slots.padded[tile.expert] + tile.row;
            x.col = tile.col;
        }
        return x;
    }
    __device__ __forceinline__ hopper_span span(int64_t &) const
    {
        return {0, schedule.loop.steps};
    }
};

/* Tiles of the gradients of all experts' matrices. */
struct gradient_raster {
    enum { SHARES_LOADS = 1 };
    const moe_schedule &schedule;
    int64_t i, count;

    __device__ __forceinline__ gradient_raster(const hopper_schedule &x, uint32_t)
        : schedule(schedule_of(x)), i(blockIdx.x),
          count(schedule.down * schedule.across * schedule.slots.experts)
    {
    }
    __device__ __forceinline__ bool more() const
    {
        return i < count;
    }
    __device__ __forceinline__ void advance()
    {
        i += gridDim.x;
    }
    __device__ __forceinline__ hopper_place place() const
    {
        hopper_place x;

        x.batch = i / (schedule.down * schedule.across);
        x.row = i % schedule.down * HOPPER_TILE_M;
        x.col = i / schedule.down % schedule.across * HOPPER_TILE_N;
        return x;
    }
    __device__ __forceinline__ hopper_span span(int64_t &batch) const
    {
        const int32_t *padded = schedule.slots.padded + batch;

        return {padded[0] / MOE_STEP, (padded[1] - padded[0]) / MOE_STEP};
    }
};

/* 64 x 64 sums at a time go through shared memory, so that threads have neighbours. */
template <typename BEGIN>
static __device__ __forceinline__ void
write_sums(float *out, const float (&sums)[HOPPER_TILE_N / 2], int group, int64_t rows,
           int64_t cols, void *c, int dtype, int accumulate, bool vectors, BEGIN begin)
{
    int thread = threadIdx.x % 128, lane = thread % 32, line = thread / 32 * 16 + lane / 4;

#pragma unroll
    for (int part = 0; part < HOPPER_TILE_N / 64; part++) {
        barrier_128(1 + group);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            uint32_t r = line + i % 2 * 8, x = i / 2 * 2 + lane % 4 / 2;

            *(float2 *)(out + hopper_result_place(r, x) + lane % 2 * 2) =
                make_float2(sums[part * 32 + 2 * i], sums[part * 32 + 2 * i + 1]);
        }
        barrier_128(1 + group);
#pragma unroll 1
        for (int v = thread; v < 64 * 16; v += 128) {
            int r = v / 16, x = v % 16;
            int64_t left = cols - part * 64 - x * 4;

            if (r < rows && left > 0)
                store_sums(c, begin(r) + part * 64 + x * 4, dtype, accumulate, vectors,
                           left < 4 ? (int)left : 4,
                           out + hopper_result_place((uint32_t)r, (uint32_t)x));
        }
    }
}

/* What all epilogues here have. */
struct plain_epilogue {
    enum { BEGINS = 0 };
    const moe_work &work;
    float *out;
    int group;

    __device__ __forceinline__ plain_epilogue(const moe_work &x, const ring &mem,
                                              unsigned char *dynamic, int of_group)
        : work(x), out((float *)(dynamic + (mem.out + of_group * HOPPER_OUT_NBYTES -
                                            shared_address(dynamic)))),
          group(of_group)
    {
    }
    __device__ __forceinline__ void expect(const hopper_place &)
    {
    }
    __device__ __forceinline__ void begin(float (&)[HOPPER_TILE_N / 2])
    {
    }
    __device__ __forceinline__ void finish()
    {
    }
};

/* Rows of slots. */
struct product_epilogue : plain_epilogue {
    using plain_epilogue::plain_epilogue;

    __device__ __forceinline__ void end(const float (&sums)[HOPPER_TILE_N / 2],
                                        const hopper_place &at, int64_t row)
    {
        const moe_product &x = work.product;
        int64_t first = row - x.slots.padded[at.batch] + x.slots.starts[at.batch];

        write_sums(out, sums, group, x.slots.starts[at.batch + 1] - first, x.n - at.col, x.c,
                   x.c_dtype, x.accumulate, work.vectors,
                   [&](int line) { return x.slots.order[first + line] * x.n + at.col; });
    }
};

/* An expert's matrix. */
struct gradient_epilogue : plain_epilogue {
    using plain_epilogue::plain_epilogue;

    __device__ __forceinline__ void end(const float (&sums)[HOPPER_TILE_N / 2],
                                        const hopper_place &at, int64_t row)
    {
        const moe_gradient &x = work.gradient;

        write_sums(out, sums, group, x.m - row, x.n - at.col, x.c, x.c_dtype, x.accumulate,
                   work.vectors,
                   [&](int line) { return at.batch * x.stride_c + (row + line) * x.ldc + at.col; });
    }
};
#endif

template <int DTYPE, int MN>
static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    multiply_experts(const __grid_constant__ moe_work work)
{
#ifdef HAVE_HOPPER
    hopper_block<product_raster, tensor_source<2, 0, MN, HOPPER_TILE_N>,
                 multiply_from_shared<DTYPE, 0, MN, HOPPER_TILE_N>, product_epilogue>(
        work.schedule.loop, work.operands, 0, work);
#endif
}

template <int DTYPE>
static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    differentiate_experts(const __grid_constant__ moe_work work)
{
#ifdef HAVE_HOPPER
    hopper_block<gradient_raster, tensor_source<2, 1, 1, HOPPER_TILE_N>,
                 multiply_from_shared<DTYPE, 1, 1, HOPPER_TILE_N>, gradient_epilogue>(
        work.schedule.loop, work.operands, 0, work);
#endif
}

const void *moe_hopper_product(int dtype, int mn)
{
    static const void *const kernels[2][2] = {
        {(const void *)multiply_experts<GPUNVME_OPS_F16, 0>,
         (const void *)multiply_experts<GPUNVME_OPS_F16, 1>},
        {(const void *)multiply_experts<GPUNVME_OPS_BF16, 0>,
         (const void *)multiply_experts<GPUNVME_OPS_BF16, 1>},
    };

    return kernels[dtype - GPUNVME_OPS_F16][mn];
}

const void *moe_hopper_gradient(int dtype)
{
    return dtype == GPUNVME_OPS_F16 ? (const void *)differentiate_experts<GPUNVME_OPS_F16>
                                    : (const void *)differentiate_experts<GPUNVME_OPS_BF16>;
}
