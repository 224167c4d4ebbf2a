/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rung 8, cluster: two blocks read what they share once. They make tiles below each other and so
 * need the same 256 columns of B. As a cluster they run at the same time, and one may write to the
 * other's shared memory:
 *
 *  - Each reads its own rows of A and half of B's columns, which the copy engine writes to the same
 *    place in both (multicast); each block's barrier counts the bytes that come there.
 *  - A stage is empty when the warps of both blocks have read it, for both blocks write there.
 *
 * All else is specialized.cu's. In a step a multiprocessor reads 32 KiB instead of 48 from the L2
 * cache. On an H200 that gains nothing in large products, which do not wait for it
 * (docs/OPERATORS.md). What is left to `hopper`: blocks that stay, results that leave by the copy
 * engine while the next tiles come in, and a wgmma that is always in flight.
 */
#include "ops/matmul/hopper_rungs.cuh"

enum { TILE_N = HOPPER_TILE_N };

#ifdef HAVE_HOPPER
/* This block's part of 256 columns of B, to all blocks of the cluster: each second 64, or all. */
template <int MN>
static __device__ __forceinline__ void share_cols(uint32_t to, const CUtensorMap &map, int col,
                                                  int k, int batch, uint32_t full)
{
    int rank = (int)cluster_rank(), size = (int)cluster_size();

    if (size == 1)
        load_lines<MN>(to, map, col, TILE_N, k, batch, full);
    else
        for (int i = rank * 64; i < TILE_N; i += size * 64)
            tensor_load_multicast(to + i * HOPPER_WIDTH, &map, MN ? col + i : k, MN ? k : col + i,
                                  batch, full, (uint16_t)((1 << size) - 1));
}

template <int MN_A, int MN_B>
static __device__ __forceinline__ void load_all(const hopper_work &work, const hopper_place &at,
                                                int row, const ring &mem)
{
    const hopper_operands &x = work.operands;
    int of_a = (int)at.batch * x.a_batch, of_b = (int)at.batch * x.b_batch;
    turn t = {0, 0};

    for (int step = 0; step < work.schedule.steps; step++) {
        uint32_t a = mem.stages + t.stage * HOPPER_STAGE_NBYTES, full = mem.full + t.stage * 8;

        mbarrier_wait(mem.empty + t.stage * 8, t.parity ^ 1);
        mbarrier_arrive_expecting(full, HOPPER_STAGE_NBYTES);
        load_lines<MN_A>(a, x.a, row, HOPPER_TILE_M, step * STEP_K, of_a, full);
        share_cols<MN_B>(a + HOPPER_A_NBYTES, x.b, (int)at.col, step * STEP_K, of_b, full);
        advance(t, TILE_N);
    }
}

template <int DTYPE, int MN_A, int MN_B>
static __device__ __forceinline__ void
multiply_all(float (&sums)[TILE_N / 2], const hopper_work &work, const ring &mem, int group)
{
    turn t = {0, 0};

    for (int step = 0; step < work.schedule.steps; step++) {
        uint32_t a = mem.stages + t.stage * HOPPER_STAGE_NBYTES;

        mbarrier_wait(mem.full + t.stage * 8, t.parity);
        multiply_stage<DTYPE, MN_A, MN_B>(sums, a + group * HOPPER_BLOCK, a + HOPPER_A_NBYTES,
                                          step == 0);
        wgmma_wait_for(sums);
        release(mem, t.stage, cluster_size()); /* says so to both blocks */
        advance(t, TILE_N);
    }
}
#endif

template <int DTYPE, int MN_A, int MN_B>
static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    multiply(const __grid_constant__ hopper_work work)
{
#ifdef HAVE_HOPPER
    unsigned char *dynamic = dynamic_shared();
    ring mem = lay_out(dynamic);
    hopper_place at = hopper_place_of(&work.schedule.grid, blockIdx.x / cluster_size());
    int row = (int)at.row + (int)cluster_rank() * HOPPER_TILE_M;

    if (threadIdx.x == 0)
        make_barriers(mem, cluster_size());
    __syncwarp();
    cluster_sync(); /* nobody writes where the other's barriers are not there yet */
    let_next_kernel_start();
    wait_for_kernels_before();
    if (threadIdx.x < 128) {
        registers_give_back<FEW_REGISTERS>();
        if (threadIdx.x == 0)
            load_all<MN_A, MN_B>(work, at, row, mem);
    } else {
        int group = warp_group() - 1;
        float *out = (float *)(dynamic + (mem.stages - shared_address(dynamic)));
        float sums[TILE_N / 2];

        registers_take<MANY_REGISTERS>();
        multiply_all<DTYPE, MN_A, MN_B>(sums, work, mem, group);
        barrier_256(3); /* both groups have read all tiles: their memory takes the sums */
        write_rows<TILE_N>(work, out + group * 64 * TILE_N, sums, at.batch, row + group * 64,
                           at.col, group);
    }
    __syncwarp();   /* the barrier takes warps whose threads come together */
    cluster_sync(); /* nobody leaves while the other may write to it */
#endif
}

gpunvme_ops_status_t cuda_multiply_cluster(const struct cuda_product *p, void *workspace,
                                           void *stream, struct cuda_launch *launch)
{
    static const hopper_rung rung = {HOPPER_KERNELS(multiply), TILE_N, HOPPER_THREADS,
                                     HOPPER_SHARED_NBYTES, 1};

    return hopper_multiply(&rung, p, workspace, stream, launch);
}
