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
#include "ops/matmul/hopper_epilogue.cuh"

template <int DTYPE, int MN_A, int MN_B, int TILE_N>
static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    multiply(const __grid_constant__ hopper_work work)
{
#ifdef HAVE_HOPPER
    hopper_block<hopper_raster, tensor_source<2, MN_A, MN_B, TILE_N>,
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
            (const void *)multiply<dtype, mn_a, mn_b, 256>                                         \
    }
#define KERNELS(dtype)                                                                             \
    {                                                                                              \
        {WIDTHS(dtype, 0, 0), WIDTHS(dtype, 0, 1)},                                                \
        {                                                                                          \
            WIDTHS(dtype, 1, 0), WIDTHS(dtype, 1, 1)                                               \
        }                                                                                          \
    }
    static const void *const kernels[2][2][2][3] = {KERNELS(GPUNVME_OPS_F16),
                                                    KERNELS(GPUNVME_OPS_BF16)};

    if (dtype == GPUNVME_OPS_F32)
        return hopper_tf32_kernel(mn_a, mn_b);
    return kernels[dtype - GPUNVME_OPS_F16][mn_a][mn_b][width / 128];
}
