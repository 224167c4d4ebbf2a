/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rung 7, specialized: warps have roles, so that loads and multiplications overlap. A block has
 * three warp groups and makes 128 x 256 elements of C:
 *
 *  - One thread of the first group asks for the tiles of all steps, as early as there is room in a
 *    ring of four stages (hopper/ring.cuh). It waits until a stage is empty.
 *  - The two other groups multiply 64 x 256 each. They wait until a stage is full, and say when
 *    they have read it.
 *  - Registers go where they are needed (setmaxnreg): a thread that multiplies holds 128 sums.
 *
 * A stage has a barrier for each direction, and no thread waits for all others. In a step a
 * multiprocessor reads 48 KiB of tiles, with which wgmma is busy for 1024 clocks; `wgmma` reads 64
 * KiB for as much. The next rung is cluster.cu.
 */
#include "ops/matmul/hopper_rungs.cuh"

enum { TILE_N = HOPPER_TILE_N };

#ifdef HAVE_HOPPER
template <int MN_A, int MN_B>
static __device__ __forceinline__ void load_all(const hopper_work &work, const hopper_place &at,
                                                const ring &mem)
{
    const hopper_operands &x = work.operands;
    int of_a = (int)at.batch * x.a_batch, of_b = (int)at.batch * x.b_batch;
    turn t = {0, 0};

    for (int step = 0; step < work.schedule.steps; step++) {
        uint32_t a = mem.stages + t.stage * HOPPER_STAGE_NBYTES, full = mem.full + t.stage * 8;

        mbarrier_wait(mem.empty + t.stage * 8, t.parity ^ 1);
        mbarrier_arrive_expecting(full, HOPPER_STAGE_NBYTES);
        load_lines<MN_A>(a, x.a, (int)at.row, HOPPER_TILE_M, step * STEP_K, of_a, full);
        load_lines<MN_B>(a + HOPPER_A_NBYTES, x.b, (int)at.col, TILE_N, step * STEP_K, of_b, full);
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
        release(mem, t.stage, 1);
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
    hopper_place at = hopper_place_of(&work.schedule.grid, blockIdx.x);

    if (threadIdx.x == 0)
        make_barriers(mem, 1);
    __syncthreads();
    let_next_kernel_start();
    wait_for_kernels_before();
    if (threadIdx.x < 128) {
        registers_give_back<FEW_REGISTERS>();
        if (threadIdx.x == 0)
            load_all<MN_A, MN_B>(work, at, mem);
    } else {
        int group = warp_group() - 1;
        float *out = (float *)(dynamic + (mem.stages - shared_address(dynamic)));
        float sums[TILE_N / 2];

        registers_take<MANY_REGISTERS>();
        multiply_all<DTYPE, MN_A, MN_B>(sums, work, mem, group);
        barrier_256(3); /* both groups have read all tiles: their memory takes the sums */
        write_rows<TILE_N>(work, out + group * 64 * TILE_N, sums, at.batch, at.row + group * 64,
                           at.col, group);
    }
#endif
}

gpunvme_ops_status_t cuda_multiply_specialized(const struct cuda_product *p, void *workspace,
                                               void *stream, struct cuda_launch *launch)
{
    static const hopper_rung rung = {HOPPER_KERNELS(multiply), TILE_N, HOPPER_THREADS,
                                     HOPPER_SHARED_NBYTES, 0};

    return hopper_multiply(&rung, p, workspace, stream, launch);
}
