/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The main loop of kernels for sm_90a. One warp group asks the copy engine for the tiles of all
 * steps, two multiply 64 rows each. A kernel is made of types:
 *
 *   SCHEDULE  which tiles the cluster makes, the steps of each, and whether its blocks share loads
 *   SOURCE    what fills a stage, and what warps do that neither load nor multiply
 *   MULTIPLY  what a warp group does with the stages of a tile: see multiply.cuh
 *   EPILOGUE  what sums begin with, what MULTIPLY asks of a step, and what becomes of sums
 *
 * hopper_raster and tensor_source are the plain ones.
 */
#ifndef OPS_HOPPER_LOOP_CUH
#define OPS_HOPPER_LOOP_CUH

#include "ops/hopper/launch.h"
#include "ops/hopper/multiply.cuh"
#include "ops/hopper/ring.cuh"

#ifdef HAVE_HOPPER
/* Of the blocks that share loads: how many they are, and which one this is. */
template <typename SCHEDULE> static __device__ __forceinline__ uint32_t sharing_size()
{
    return SCHEDULE::SHARES_LOADS ? cluster_size() : 1;
}

template <typename SCHEDULE> static __device__ __forceinline__ uint32_t sharing_rank()
{
    return SCHEDULE::SHARES_LOADS ? cluster_rank() : 0;
}

/* All tiles, the clusters in turn. */
struct hopper_raster {
    enum { SHARES_LOADS = 1 };
    const hopper_schedule &schedule;
    uint32_t i, step, count;

    __device__ __forceinline__ hopper_raster(const hopper_schedule &x, uint32_t size)
        : schedule(x), i(blockIdx.x / size), step(gridDim.x / size),
          count(hopper_grid_size(&x.grid))
    {
    }
    __device__ __forceinline__ bool more() const
    {
        return i < count;
    }
    __device__ __forceinline__ void advance()
    {
        i += step;
    }
    __device__ __forceinline__ hopper_place place() const
    {
        return hopper_place_of(&schedule.grid, i);
    }
    __device__ __forceinline__ hopper_span span(int64_t &batch) const
    {
        return hopper_span_of(&schedule, &batch);
    }
};

/* Two matrices in memory. Elements have SIZE bytes. */
template <int SIZE, int MN_A, int MN_B, int TILE_N> struct tensor_source {
    /* Registers that the group that loads keeps, and that the others have then. */
    enum { COLS = TILE_N, K = HOPPER_WIDTH / SIZE, FEW = 40, MANY = 232 };

    /* By the threads that multiply, before they begin. */
    template <typename EXTRA> static __device__ __forceinline__ void begin(const EXTRA &)
    {
    }
    /* By the warp group that loads, its first warp after that. */
    template <typename EXTRA> static __device__ __forceinline__ void beside(const EXTRA &)
    {
    }
    /* Until elements k and on of rows from `row` on may be loaded. */
    template <typename EXTRA> static __device__ __forceinline__ void wait(const EXTRA &, int, int)
    {
    }
    /*
     * The loads of one stage for tiles at (row, col), elements k and on: all of the first operand,
     * and of the second what is this block's part. What lies along m or n is read in boxes of as
     * many lines of k as there are elements in a box's row.
     */
    static __device__ __forceinline__ void load(const hopper_operands &x, uint32_t a, uint32_t full,
                                                const hopper_place &at, int row, int k,
                                                uint32_t rank, uint32_t size)
    {
        const int width = HOPPER_WIDTH / SIZE, box_nbytes = width * HOPPER_WIDTH;
        int z = (int)at.batch, col = (int)at.col;
        int za = z * x.a_batch, zb = z * x.b_batch;
        const int parts = TILE_N > 64 ? 2 : 1, load = TILE_N / parts;

        if (MN_A)
            for (int box = 0; box < HOPPER_TILE_M / width; box++)
                tensor_load(a + box * box_nbytes, &x.a, row + box * width, k, za, full);
        else
            tensor_load(a, &x.a, k, row, za, full);
        for (uint32_t part = rank; part < parts; part += size) {
            uint32_t to = a + HOPPER_A_NBYTES + part * (load * HOPPER_WIDTH);
            int at_n = col + (int)part * load;
            uint16_t ranks = (uint16_t)((1 << size) - 1);
            const int boxes = MN_B ? load / width : 1;

            for (int box = 0; box < boxes; box++, at_n += width, to += box_nbytes)
                if (size > 1)
                    tensor_load_multicast(to, &x.b, MN_B ? at_n : k, MN_B ? k : at_n, zb, full,
                                          ranks);
                else
                    tensor_load(to, &x.b, MN_B ? at_n : k, MN_B ? k : at_n, zb, full);
        }
    }
};

/* One thread: all loads of all tiles. */
template <typename SCHEDULE, typename SOURCE, typename EXTRA>
static __device__ __forceinline__ void produce(const hopper_schedule &schedule,
                                               const hopper_operands &operands, const EXTRA &extra,
                                               const ring &mem)
{
    uint32_t rank = sharing_rank<SCHEDULE>(), size = sharing_size<SCHEDULE>();
    turn t = {0, 0};

    for (SCHEDULE tiles(schedule, size); tiles.more(); tiles.advance()) {
        hopper_place at = tiles.place();
        int row = (int)at.row + (int)rank * HOPPER_TILE_M;
        hopper_span steps = tiles.span(at.batch);

        for (int step = steps.first; step < steps.first + steps.count; step++) {
            uint32_t full = mem.full + t.stage * 8;

            SOURCE::wait(extra, row, step * SOURCE::K);
            mbarrier_wait(mem.empty + t.stage * 8, t.parity ^ 1);
            mbarrier_arrive_expecting(full, hopper_stage_nbytes(SOURCE::COLS));
            SOURCE::load(operands, mem.stages + t.stage * hopper_stage_nbytes(SOURCE::COLS), full,
                         at, row, step * SOURCE::K, rank, size);
            advance(t, SOURCE::COLS);
        }
    }
}

/* One of two warp groups: multiplies and writes 64 rows of each of the block's tiles. */
template <typename SCHEDULE, typename MULTIPLY, typename EPILOGUE, typename RESULTS>
static __device__ __forceinline__ void consume(const hopper_schedule &schedule,
                                               const RESULTS &results, const ring &mem,
                                               unsigned char *dynamic, int group)
{
    uint32_t rank = sharing_rank<SCHEDULE>(), size = sharing_size<SCHEDULE>();
    SCHEDULE tiles(schedule, size);
    hopper_place at = tiles.place();
    EPILOGUE epilogue(results, mem, dynamic, group);
    turn t = {0, 0};

    epilogue.expect(at);
    while (tiles.more()) {
        hopper_place now = at;
        int64_t batch = now.batch;
        int steps = tiles.span(batch).count;
        float sums[MULTIPLY::COLS / 2];

        epilogue.begin(sums);
        MULTIPLY::tile(steps, mem, t, sums, epilogue, group, size);
        tiles.advance();
        if (tiles.more()) {
            at = tiles.place();
            epilogue.expect(at);
        }
        epilogue.end(sums, now, now.row + rank * HOPPER_TILE_M + group * 64);
    }
    epilogue.finish();
}

/*
 * A kernel's body: blocks of HOPPER_THREADS and HOPPER_SHARED_NBYTES. `extra` is the source's own.
 * Nobody uses a barrier before all blocks of the cluster know of it, nor memory before the kernels
 * before have ended.
 */
template <typename SCHEDULE, typename SOURCE, typename MULTIPLY, typename EPILOGUE, typename EXTRA,
          typename RESULTS>
static __device__ __forceinline__ void hopper_block(const hopper_schedule &schedule,
                                                    const hopper_operands &operands,
                                                    const EXTRA &extra, const RESULTS &results)
{
    unsigned char *dynamic = dynamic_shared();
    ring mem = lay_out(dynamic);

    if (!SCHEDULE::SHARES_LOADS)
        mem.first = cluster_rank();

    /* What is given back must be enough: who takes registers waits until there are as many. */
    static_assert(128 * SOURCE::FEW + 256 * SOURCE::MANY <= HOPPER_THREADS * HOPPER_REGISTERS,
                  "a thread begins with fewer registers");
    if (threadIdx.x == 0) {
        tensor_prefetch(&operands.a);
        tensor_prefetch(&operands.b);
        make_barriers(mem, sharing_size<SCHEDULE>());
    }
    __syncthreads();
    cluster_sync();
    let_next_kernel_start();
    wait_for_kernels_before();
    if (threadIdx.x < 128) {
        registers_give_back<SOURCE::FEW>();
        if (threadIdx.x == 0)
            produce<SCHEDULE, SOURCE>(schedule, operands, extra, mem);
        SOURCE::beside(extra);
    } else {
        SOURCE::begin(extra);
        registers_take<SOURCE::MANY>();
        /* One number for the warp, so that the compiler has descriptors in uniform registers. */
        consume<SCHEDULE, MULTIPLY, EPILOGUE>(
            schedule, results, mem, dynamic,
            __shfl_sync(0xffffffffu, (int)threadIdx.x / 128 - 1, 0));
    }
    __syncwarp();   /* the barrier takes warps whose threads come together */
    cluster_sync(); /* nobody leaves while another may write to it */
}
#endif

#endif
