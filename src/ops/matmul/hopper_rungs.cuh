/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the rungs between "tensorcore" and "hopper" share, of which each shows one idea: wgmma.cu,
 * specialized.cu, cluster.cu. They multiply f16 and bf16.
 */
#ifndef OPS_MATMUL_HOPPER_RUNGS_CUH
#define OPS_MATMUL_HOPPER_RUNGS_CUH

#include "ops/hopper/loop.cuh"
#include "ops/matmul/finish.cuh"
#include "ops/matmul/hopper.h"

enum {
    STEP_K = HOPPER_WIDTH / 2, /* a step is 128 bytes of k */
    FEW_REGISTERS = 40,        /* that the warp group that loads keeps, and */
    MANY_REGISTERS = 232,      /* that those that multiply have then */
};

#define HOPPER_KERNELS_OF(kernel, dtype)                                                           \
    {                                                                                              \
        {(const void *)kernel<dtype, 0, 0>, (const void *)kernel<dtype, 0, 1>},                    \
        {                                                                                          \
            (const void *)kernel<dtype, 1, 0>, (const void *)kernel<dtype, 1, 1>                   \
        }                                                                                          \
    }
/* All that a rung has: kernel<DTYPE, MN_A, MN_B>, as hopper_rung wants them. */
#define HOPPER_KERNELS(kernel)                                                                     \
    {                                                                                              \
        HOPPER_KERNELS_OF(kernel, GPUNVME_OPS_F16), HOPPER_KERNELS_OF(kernel, GPUNVME_OPS_BF16)    \
    }

#ifdef HAVE_HOPPER
/*
 * The copy engine brings `lines` rows of A or columns of B, 64 of k each, to shared memory, and
 * `full` hears of their bytes. They come in blocks of 64 lines, 8 KiB each (tile.h). MN: they lie
 * along m or n, not k, in memory and in the block, too; wgmma reads both.
 */
template <int MN>
static __device__ __forceinline__ void load_lines(uint32_t to, const CUtensorMap &map, int line,
                                                  int lines, int k, int batch, uint32_t full)
{
#pragma unroll
    for (int i = 0; i < lines; i += 64)
        tensor_load(to + i * HOPPER_WIDTH, &map, MN ? line + i : k, MN ? k : line + i, batch, full);
}

/* Of this thread: one number for the warp, so that descriptors are in uniform registers. */
static __device__ __forceinline__ int warp_group(void)
{
    return __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
}

/*
 * A warp group's sums of 64 rows become elements of C, through shared memory, 64 x 64 floats behind
 * each other: there each thread finds four neighbours. (What only linear layers have is left out.)
 */
template <int TILE_N>
static __device__ __forceinline__ void write_rows(const hopper_work &work, float *out,
                                                  const float (&sums)[TILE_N / 2], int64_t batch,
                                                  int64_t row, int64_t col, int group)
{
    int thread = threadIdx.x % 128, lane = thread % 32, line = thread / 32 * 16 + lane / 4;
    cuda_product p = work.product;

    p.bias = p.preact = NULL;
    p.activation = GPUNVME_OPS_ACT_NONE;
#pragma unroll
    for (int i = 0; i < TILE_N / 4; i++) {
        uint32_t r = line + i % 2 * 8, c = i / 2 * 2 + lane % 4 / 2;

        *(float2 *)(out + c / 16 * 64 * 64 + hopper_result_place(r, c % 16) + lane % 2 * 2) =
            make_float2(sums[2 * i], sums[2 * i + 1]);
    }
    barrier_128(1 + group);
#pragma unroll 1
    for (int v = thread; v < 64 * TILE_N / 4; v += 128) {
        uint32_t r = v / (TILE_N / 4), c = v % (TILE_N / 4);

        if (row + r < p.m && col + c * 4 < p.n)
            finish4_aligned(p, batch, row + r, col + c * 4,
                            out + c / 16 * 64 * 64 + hopper_result_place(r, c % 16));
    }
}
#endif

#endif
