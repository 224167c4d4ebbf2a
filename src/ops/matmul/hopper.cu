/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rung 9, hopper: all that sm_90a has for this and nothing before it had, by the main loop of
 * hopper/loop.cuh. (f32: hopper_tf32.cu.) Three rungs before it show the first four of these, one
 * after the other: wgmma.cu, specialized.cu, cluster.cu.
 *
 *  - The copy engine (TMA) brings tiles to shared memory, four stages ahead: one thread asks for
 *    them, no registers, no addresses, zeros beyond the edges.
 *  - wgmma multiplies 64 x 256 elements of C at once from shared memory, by 128 threads.
 *  - Roles: a warp group that only loads gives its registers to the two that multiply (setmaxnreg).
 *  - Two blocks of a cluster work below each other and read each column of B once for both, each
 *    its half (multicast).
 *  - Blocks stay (a persistent grid): while results of one tile go out, tiles of the next come in.
 */
#include "ops/hopper/wgmma_narrow.cuh"

#include "ops/matmul/hopper_epilogue.cuh"

#ifdef HAVE_HOPPER
/* 192 columns that lie along n are three boxes: two by one block of a pair, and one by the other.
 */
template <int MN_A> struct source_of_three : tensor_source<2, MN_A, 1, 192> {
    static __device__ __forceinline__ void load(const hopper_operands &x, uint32_t a, uint32_t full,
                                                const hopper_place &at, int row, int k,
                                                uint32_t rank, uint32_t size)
    {
        int za = (int)at.batch * x.a_batch, zb = (int)at.batch * x.b_batch;

        if (MN_A)
            for (int box = 0; box < HOPPER_TILE_M / 64; box++)
                tensor_load(a + box * HOPPER_BLOCK, &x.a, row + box * 64, k, za, full);
        else
            tensor_load(a, &x.a, k, row, za, full);
        for (uint32_t box = rank; box < 3; box += size) {
            uint32_t to = a + HOPPER_A_NBYTES + box * HOPPER_BLOCK;
            int col = (int)at.col + (int)box * 64;

            if (size > 1)
                tensor_load_multicast(to, &x.b, col, k, zb, full, (uint16_t)((1 << size) - 1));
            else
                tensor_load(to, &x.b, col, k, zb, full);
        }
    }
};

template <int MN_A, int MN_B, int TILE_N> struct source_of {
    typedef tensor_source<2, MN_A, MN_B, TILE_N> type;
};
template <int MN_A> struct source_of<MN_A, 1, 192> {
    typedef source_of_three<MN_A> type;
};
#endif

template <int DTYPE, int MN_A, int MN_B, int TILE_N>
static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    multiply(const __grid_constant__ hopper_work work)
{
#ifdef HAVE_HOPPER
    hopper_block<hopper_raster, typename source_of<MN_A, MN_B, TILE_N>::type,
                 multiply_from_shared<DTYPE, MN_A, MN_B, TILE_N>,
                 hopper_epilogue<DTYPE, MN_A || MN_B, TILE_N>>(work.schedule, work.operands, 0,
                                                               work);
#endif
}

const void *hopper_kernel(int dtype, int mn_a, int mn_b, int width)
{
#define WIDTHS(dtype, mn_a, mn_b)                                                                  \
    {                                                                                              \
        (const void *)multiply<dtype, mn_a, mn_b, 64>,                                             \
            (const void *)multiply<dtype, mn_a, mn_b, 128>,                                        \
            (const void *)multiply<dtype, mn_a, mn_b, 192>,                                        \
            (const void *)multiply<dtype, mn_a, mn_b, 256>                                         \
    }
#define KERNELS(dtype)                                                                             \
    {                                                                                              \
        {WIDTHS(dtype, 0, 0), WIDTHS(dtype, 0, 1)},                                                \
        {                                                                                          \
            WIDTHS(dtype, 1, 0), WIDTHS(dtype, 1, 1)                                               \
        }                                                                                          \
    }
    static const void *const kernels[2][2][2][4] = {KERNELS(GPUNVME_OPS_F16),
                                                    KERNELS(GPUNVME_OPS_BF16)};

    if (dtype == GPUNVME_OPS_F32)
        return hopper_tf32_kernel(mn_a, mn_b);
    return kernels[dtype - GPUNVME_OPS_F16][mn_a][mn_b][width / 64 - 1];
}
