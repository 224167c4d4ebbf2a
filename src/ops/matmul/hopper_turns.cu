/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rung "hopper" where k is small, so that a tile's results take as long to leave as its
 * products to be made: two teams of two warp groups take turns with tiles 128 wide. While one
 * multiplies, the other writes. Stages come in the order of tiles; each team leaves out those of
 * the other.
 */
#include "ops/hopper/loop.cuh"
#include "ops/hopper/wgmma_narrow.cuh"
#include "ops/matmul/hopper_epilogue.cuh"
#include "ops/matmul/hopper_turns.h"

#ifdef HAVE_HOPPER
enum { FEW = 32, MANY = 112 }; /* registers of threads that load, and that multiply */

static __device__ __forceinline__ ring lay_out_turns(const void *dynamic)
{
    ring x;

    x.stages = (shared_address(dynamic) + HOPPER_ALIGN - 1) & ~(uint32_t)(HOPPER_ALIGN - 1);
    x.out = x.stages + TURNS_STAGES * TURNS_STAGE_NBYTES;
    x.full = x.out + TURNS_TEAMS * 2 * HOPPER_OUT_NBYTES;
    x.empty = x.full + HOPPER_MOST_STAGES * 8;
    x.first = 0;
    return x;
}

static __device__ __forceinline__ void advance_by(turn &t, int steps)
{
    int stage = t.stage + steps;

    t.stage = stage % TURNS_STAGES;
    t.parity ^= (uint32_t)(stage / TURNS_STAGES) & 1;
}

static __device__ __forceinline__ void advance_one(turn &t)
{
    if (++t.stage == TURNS_STAGES) {
        t.stage = 0;
        t.parity ^= 1;
    }
}

/*
 * A team multiplies when the other has come to the last step of the tile before: a barrier of a
 * stage tells neighbouring rounds apart, but not those after the next.
 */
static __device__ __forceinline__ void wait_for_turn(int team)
{
    barrier_wait(6 + team, 256 * TURNS_TEAMS);
}

static __device__ __forceinline__ void give_turn(int team)
{
    barrier_arrive(6 + (team ^ 1), 256 * TURNS_TEAMS);
}

/* One thread: all loads of all tiles. */
static __device__ __forceinline__ void load_tiles(const hopper_work &work, const ring &mem)
{
    typedef tensor_source<2, 0, 0, TURNS_TILE_N> source;
    uint32_t rank = cluster_rank(), size = cluster_size();
    turn t = {0, 0};

    for (hopper_raster tiles(work.schedule, size); tiles.more(); tiles.advance()) {
        hopper_place at = tiles.place();
        int row = (int)at.row + (int)rank * HOPPER_TILE_M;

        for (int step = 0; step < work.schedule.steps; step++) {
            uint32_t full = mem.full + t.stage * 8;

            mbarrier_wait(mem.empty + t.stage * 8, t.parity ^ 1);
            mbarrier_arrive_expecting(full, TURNS_STAGE_NBYTES);
            source::load(work.operands, mem.stages + t.stage * TURNS_STAGE_NBYTES, full, at, row,
                         step * source::K, rank, size);
            advance_one(t);
        }
    }
}

template <int DTYPE>
static __device__ __forceinline__ void multiply_tile(const ring &mem, turn &t, int steps,
                                                     float (&sums)[TURNS_TILE_N / 2], int group,
                                                     bool last, uint32_t size)
{
    int before = 0;

    for (int step = 0; step < steps; step++) {
        uint32_t a = mem.stages + t.stage * TURNS_STAGE_NBYTES;

        mbarrier_wait(mem.full + t.stage * 8, t.parity);
        if (step == steps - 1 && !last)
            give_turn(group / 2);
        multiply_stage<DTYPE, 0, 0>(sums, a + group % 2 * HOPPER_BLOCK, a + HOPPER_A_NBYTES, false);
        if (step) {
            wgmma_wait<1>();
            release(mem, before, size);
        }
        before = t.stage;
        advance_one(t);
    }
    wgmma_wait_for(sums);
    release(mem, before, size);
}

/* A warp group of a team: 64 rows of each second tile. `group` counts those of both teams. */
template <int DTYPE>
static __device__ __forceinline__ void take_turns(const hopper_work &work, const ring &mem,
                                                  int group)
{
    uint32_t rank = cluster_rank(), size = cluster_size();
    uint32_t out = mem.out + group * HOPPER_OUT_NBYTES;
    int steps = work.schedule.steps, team = group / 2;
    bool first = team == 0;
    hopper_raster tiles(work.schedule, size);
    turn t = {0, 0};

    if (team) {
        tiles.advance();
        advance_by(t, steps);
    }
    while (tiles.more()) {
        hopper_place at = tiles.place();
        float sums[TURNS_TILE_N / 2];
        hopper_bias<TURNS_TILE_N> bias;

        ask_for_bias(bias, work, at.col);
        begin_with_bias<DTYPE, TURNS_TILE_N>(sums, bias);
        if (!first)
            wait_for_turn(team);
        first = false;
        tiles.advance();
        multiply_tile<DTYPE>(mem, t, steps, sums, group, !tiles.more(), size);
        copy_out_any<DTYPE, 0>(work, out, sums, at.batch,
                               (int)(at.row + rank * HOPPER_TILE_M + group % 2 * 64), (int)at.col,
                               group);
        advance_by(t, steps);
        tiles.advance();
    }
    if (threadIdx.x % 128 == 0)
        tensor_store_wait_read<0>();
}
#endif

template <int DTYPE>
static __global__ void __launch_bounds__(TURNS_THREADS, 1)
    multiply(const __grid_constant__ hopper_work work)
{
#ifdef HAVE_HOPPER
    ring mem = lay_out_turns(dynamic_shared());

    if (threadIdx.x == 0) {
        tensor_prefetch(&work.operands.a);
        tensor_prefetch(&work.operands.b);
        make_barriers(mem, cluster_size());
    }
    __syncthreads();
    cluster_sync();
    let_next_kernel_start();
    wait_for_kernels_before();
    if (threadIdx.x < 128) {
        registers_give_back<FEW>();
        if (threadIdx.x == 0)
            load_tiles(work, mem);
    } else {
        registers_take<MANY>();
        take_turns<DTYPE>(work, mem, __shfl_sync(0xffffffffu, (int)threadIdx.x / 128 - 1, 0));
    }
    __syncwarp();
    cluster_sync();
#endif
}

const void *hopper_turns_kernel(int dtype)
{
    return dtype == GPUNVME_OPS_F16 ? (const void *)multiply<GPUNVME_OPS_F16>
                                    : (const void *)multiply<GPUNVME_OPS_BF16>;
}
