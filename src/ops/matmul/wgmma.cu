/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rung 6, wgmma: the copy engine and the instruction that sm_90a brought, and nothing else. A block
 * makes 128 x 128 elements of C, in steps of 64 of k:
 *
 *  - One thread asks the copy engine (TMA) for the next 128 x 64 of A and 64 x 128 of B. They go to
 *    shared memory without passing registers, swizzled as wgmma reads them, with zeros beyond the
 *    edges. A barrier (mbarrier) counts their bytes, and all threads wait there.
 *  - Each of two warp groups, of 128 threads, multiplies 64 rows: one wgmma reads both operands
 *    from shared memory and adds the products of 16 of k to 64 x 128 sums in registers.
 *
 * Within a block nothing overlaps: the tensor cores wait for the copy engine, and it for them. Only
 * the multiprocessor's other blocks fill the gaps. The next rung is specialized.cu.
 */
#include "ops/matmul/hopper_rungs.cuh"

enum {
    TILE_N = 128,
    THREADS = 2 * 128,
    STAGE_NBYTES = HOPPER_A_NBYTES + TILE_N * HOPPER_WIDTH,
    SUMS_NBYTES = HOPPER_TILE_M * TILE_N * sizeof(float), /* which are where tiles were, at last */
    NBYTES = HOPPER_ALIGN + SUMS_NBYTES + 8,              /* with the barrier */
};

template <int DTYPE, int MN_A, int MN_B>
static __global__ void __launch_bounds__(THREADS, 2)
    multiply(const __grid_constant__ hopper_work work)
{
#ifdef HAVE_HOPPER
    const hopper_operands &x = work.operands;
    hopper_place at = hopper_place_of(&work.schedule.grid, blockIdx.x);
    int row = (int)at.row, col = (int)at.col, group = warp_group();
    int of_a = (int)at.batch * x.a_batch, of_b = (int)at.batch * x.b_batch;
    unsigned char *dynamic = dynamic_shared();
    uint32_t before = (0u - shared_address(dynamic)) % HOPPER_ALIGN;
    uint32_t a = shared_address(dynamic) + before, b = a + HOPPER_A_NBYTES;
    uint32_t full = a + SUMS_NBYTES;
    float sums[TILE_N / 2];

    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    let_next_kernel_start();
    wait_for_kernels_before();
    for (int step = 0; step < work.schedule.steps; step++) {
        if (threadIdx.x == 0) {
            mbarrier_arrive_expecting(full, STAGE_NBYTES);
            load_lines<MN_A>(a, x.a, row, HOPPER_TILE_M, step * STEP_K, of_a, full);
            load_lines<MN_B>(b, x.b, col, TILE_N, step * STEP_K, of_b, full);
        }
        __syncwarp(); /* wgmma takes warps whose threads come together */
        mbarrier_wait(full, step % 2);
        multiply_stage<DTYPE, MN_A, MN_B>(sums, a + group * HOPPER_BLOCK, b, step == 0);
        wgmma_wait_for(sums);
        __syncthreads(); /* both groups have read the tiles, which the next ones replace */
    }
    write_rows<TILE_N>(work, (float *)(dynamic + before) + group * 64 * TILE_N, sums, at.batch,
                       row + group * 64, col, group);
#endif
}

gpunvme_ops_status_t cuda_multiply_wgmma(const struct cuda_product *p, void *workspace,
                                         void *stream, struct cuda_launch *launch)
{
    static const hopper_rung rung = {HOPPER_KERNELS(multiply), TILE_N, THREADS, NBYTES, 0};

    return hopper_multiply(&rung, p, workspace, stream, launch);
}
