/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The product grad_x = dZ W by the rung "hopper", whose warps that have nothing to load make dZ:
 * see dz.h.
 */
#include "ops/linear/dz.cuh"
#include "ops/linear/dz_product.h"
#include "ops/matmul/hopper_epilogue.cuh"

#ifdef HAVE_HOPPER
/* dZ, which lies along k as it is made, and W along n. */
template <int DTYPE> struct dz_source : tensor_source<2, 0, 1, HOPPER_TILE_N> {
    enum { FEW = 104, MANY = 200 };

    /* While there is nothing to multiply yet. */
    static __device__ __forceinline__ void begin(const dz_plan &plan)
    {
        dz_make_early<DTYPE>(plan);
    }
    static __device__ __forceinline__ void beside(const dz_plan &plan)
    {
        if (threadIdx.x >= 32) {
            dz_make_later<DTYPE>(plan);
            dz_finish_bias(plan);
        }
    }
    static __device__ __forceinline__ void wait(const dz_plan &plan, int row, int k)
    {
        dz_wait(plan, row, k);
    }
};
#endif

template <int DTYPE>
static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    multiply(const __grid_constant__ dz_work work)
{
#ifdef HAVE_HOPPER
    hopper_block<hopper_raster, dz_source<DTYPE>, multiply_from_shared<DTYPE, 0, 1, HOPPER_TILE_N>,
                 hopper_epilogue<DTYPE, 1, HOPPER_TILE_N>>(
        work.product.schedule, work.product.operands, work.dz, work.product);
#endif
}

const void *dz_product_kernel(int dtype)
{
    return dtype == GPUNVME_OPS_F16 ? (const void *)multiply<GPUNVME_OPS_F16>
                                    : (const void *)multiply<GPUNVME_OPS_BF16>;
}

/*
 * Zeros for the kernel after this one, which counts there. cudaMemsetAsync() would break the chain
 * of programmatic dependent launches: it starts when all before it has ended, and what is after it
 * is not launched before it has.
 *
 * Why all of a stream is in order nevertheless, though each kernel waits only for the one before:
 * that one ends only after its own wait, so whoever has waited knows that all before has ended, and
 * sees what it wrote. What counts on it is that each thread waits before it touches memory:
 *
 *  - here, since the product before, a call that is still at work, may use the same workspace;
 *  - in the kernel after this one in start(), which all its threads pass, those that make dZ, those
 *    that count and wait for counts, and those that read by the copy engine;
 *  - in the product after that, which has been launched by then, maybe, there as well.
 *
 * When the next one may be launched says nothing of what it sees: that is its wait's (PTX ISA,
 * "griddepcontrol"). So the earliest moment is right. A kernel without the attribute, before or
 * after, is in order by the stream.
 *
 * A block is one warp without shared memory, for which a multiprocessor has room beside a block of
 * a product (which leaves 1024 registers and 2 KiB, of which 1 is any block's): so it is there
 * before that ends.
 */
static __global__ void __launch_bounds__(DZ_CLEAR_THREADS) clear(uint32_t *words, uint32_t count)
{
#ifdef HAVE_HOPPER
    let_next_kernel_start();
    wait_for_kernels_before();
    for (uint32_t i = blockIdx.x * DZ_CLEAR_THREADS + threadIdx.x; i < count;
         i += gridDim.x * DZ_CLEAR_THREADS)
        words[i] = 0;
#endif
}

const void *dz_clear_kernel(void)
{
    return (const void *)clear;
}
