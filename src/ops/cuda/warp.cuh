/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the lanes of a warp, or each GROUP of neighbouring ones, make of a number that each has; all
 * of them get it.
 */
#ifndef OPS_CUDA_WARP_CUH
#define OPS_CUDA_WARP_CUH

#include "ops/cuda/ptx.cuh"

/* NaN if one is. */
template <int GROUP = 32> static __device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int step = GROUP / 2; step; step /= 2)
        x = max_or_nan(x, __shfl_xor_sync(0xffffffff, x, step));
    return x;
}

template <int GROUP = 32> static __device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int step = GROUP / 2; step; step /= 2)
        x += __shfl_xor_sync(0xffffffff, x, step);
    return x;
}

#endif
