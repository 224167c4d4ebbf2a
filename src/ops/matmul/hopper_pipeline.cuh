/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Stages of shared memory between those that load and those that multiply, for kernels of sm_90a.
 * HAVE_HOPPER says that code for it is being compiled.
 */
#ifndef OPS_MATMUL_HOPPER_PIPELINE_CUH
#define OPS_MATMUL_HOPPER_PIPELINE_CUH

#include "ops/cuda/dz.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/matmul/finish.cuh"
#include "ops/matmul/hopper_kernel.h"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAVE_HOPPER 1
#endif

#ifdef HAVE_HOPPER
/* The stage in turn, and how often all have been used, as its barriers count it. */
struct turn {
    int stage;
    uint32_t parity;
};

static __device__ __forceinline__ void advance(turn &t, int width)
{
    if (++t.stage == hopper_stages(width)) {
        t.stage = 0;
        t.parity ^= 1;
    }
}

/* Addresses in shared memory. */
struct memory {
    uint32_t stages, out, full, empty;
};

static __device__ __forceinline__ memory lay_out(const void *dynamic)
{
    memory x;

    x.stages = (shared_address(dynamic) + HOPPER_ALIGN - 1) & ~(uint32_t)(HOPPER_ALIGN - 1);
    x.out = x.stages + HOPPER_STAGES * HOPPER_STAGE_NBYTES;
    x.full = x.out + 2 * HOPPER_OUT_NBYTES;
    x.empty = x.full + HOPPER_MOST_STAGES * 8;
    return x;
}

/* This warp has read the stage: both blocks may write there again. */
static __device__ __forceinline__ void release(const memory &mem, int stage, uint32_t size)
{
    if (threadIdx.x % 32 < size)
        mbarrier_arrive_at(mem.empty + stage * 8, threadIdx.x % 32);
}

/*
 * Nobody uses a barrier before all blocks of the cluster know of it, nor memory before the kernels
 * before have ended.
 */
static __device__ __forceinline__ void start(const hopper_work &work, const memory &mem)
{
    if (threadIdx.x == 0) {
        tensor_prefetch(&work.a);
        tensor_prefetch(&work.b);
        for (int i = 0; i < HOPPER_MOST_STAGES; i++) {
            mbarrier_init(mem.full + i * 8, 1);
            mbarrier_init(mem.empty + i * 8, 8 * (int)cluster_size()); /* warps that multiply */
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    cluster_sync();
    let_next_kernel_start();
    wait_for_kernels_before();
}

/*
 * The loads of one stage for tiles at (row, col), elements k and on, of SIZE bytes each: all of the
 * first operand, and of the second what is this block's part. What lies along m or n is read in
 * boxes of as many lines of k as there are elements in a box's row.
 */
template <int SIZE, int MN_A, int MN_B, int TILE_N>
static __device__ __forceinline__ void load_stage(const hopper_work &work, uint32_t a,
                                                  uint32_t full, const hopper_place &at, int row,
                                                  int k, uint32_t rank, uint32_t size)
{
    const int width = HOPPER_WIDTH / SIZE, box_nbytes = width * HOPPER_WIDTH;
    int z = (int)at.batch, col = (int)at.col;
    int za = z * work.a_batch, zb = z * work.b_batch;
    const int parts = TILE_N > 64 ? 2 : 1, load = TILE_N / parts;

    if (MN_A)
        for (int box = 0; box < HOPPER_TILE_M / width; box++)
            tensor_load(a + box * box_nbytes, &work.a, row + box * width, k, za, full);
    else
        tensor_load(a, &work.a, k, row, za, full);
    for (uint32_t part = rank; part < parts; part += size) {
        uint32_t to = a + HOPPER_A_NBYTES + part * (load * HOPPER_WIDTH);
        int x = col + (int)part * load;
        uint16_t ranks = (uint16_t)((1 << size) - 1);
        const int boxes = MN_B ? load / width : 1;

        for (int box = 0; box < boxes; box++, x += width, to += box_nbytes)
            if (size > 1)
                tensor_load_multicast(to, &work.b, MN_B ? x : k, MN_B ? k : x, zb, full, ranks);
            else
                tensor_load(to, &work.b, MN_B ? x : k, MN_B ? k : x, zb, full);
    }
}

/* The steps of k that matrix `batch` of C is the sum of; `batch` becomes that of A and B. */
struct span {
    int first, count;
};

static __device__ __forceinline__ span span_of(const hopper_work &work, int64_t &batch)
{
    span x = {0, work.steps};

    if (work.pieces > 1) {
        uint32_t all = (uint32_t)batch, matrix = all / (uint32_t)work.pieces;

        x.first = (int)(all - matrix * (uint32_t)work.pieces) * work.steps;
        if (x.count > work.all_steps - x.first)
            x.count = work.all_steps - x.first;
        batch = matrix;
    }
    return x;
}

/* One thread: all loads of all tiles. */
template <int SIZE, int MN_A, int MN_B, int MAKES_DZ, int TILE_N>
static __device__ __forceinline__ void produce(const hopper_work &work, const memory &mem)
{
    const int width = HOPPER_WIDTH / SIZE;
    uint32_t rank = cluster_rank(), size = cluster_size();
    uint32_t pairs = hopper_grid_size(&work.grid);
    turn t = {0, 0};

    for (uint32_t i = blockIdx.x / size; i < pairs; i += gridDim.x / size) {
        hopper_place at = hopper_place_of(&work.grid, i);
        int row = (int)at.row + (int)rank * HOPPER_TILE_M;
        span steps = span_of(work, at.batch);

        for (int step = steps.first; step < steps.first + steps.count; step++) {
            uint32_t full = mem.full + t.stage * 8;

            if (MAKES_DZ)
                dz_wait(work.dz, row, step * width);
            mbarrier_wait(mem.empty + t.stage * 8, t.parity ^ 1);
            mbarrier_arrive_expecting(full, hopper_stage_nbytes(TILE_N));
            load_stage<SIZE, MN_A, MN_B, TILE_N>(work,
                                                 mem.stages + t.stage * hopper_stage_nbytes(TILE_N),
                                                 full, at, row, step * width, rank, size);
            advance(t, TILE_N);
        }
    }
}
#endif

#endif
