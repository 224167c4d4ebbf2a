/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What kernels that pass over rows are made of: eight elements at a time, 16 bytes a load, and sums
 * over the threads of a row in the same order in every run.
 */
#ifndef OPS_CUDA_ROWS_CUH
#define OPS_CUDA_ROWS_CUH

#include "ops/cuda/element.cuh"
#include "ops/cuda/rows.h"

/* Eight elements as they lie in memory. */
template <int DTYPE> struct eight {
    uint4 words[DTYPE == GPUNVME_OPS_F32 ? 2 : 1];
};

template <int DTYPE>
static __device__ __forceinline__ const uint4 *eight_at(const void *p, int64_t i)
{
    return (const uint4 *)((const char *)p + i * (DTYPE == GPUNVME_OPS_F32 ? 4 : 2));
}

/* Elements i … i + 7, aligned to 16 bytes. They will not be read again soon. */
template <int DTYPE>
static __device__ __forceinline__ void load_eight(const void *p, int64_t i, eight<DTYPE> &x)
{
    const uint4 *from = eight_at<DTYPE>(p, i);

    x.words[0] = __ldcs(from);
    if (DTYPE == GPUNVME_OPS_F32)
        x.words[DTYPE == GPUNVME_OPS_F32] = __ldcs(from + 1);
}

template <int DTYPE>
static __device__ __forceinline__ void unpack_eight(const eight<DTYPE> &x, float (&values)[8])
{
#pragma unroll
    for (int i = 0; i < (DTYPE == GPUNVME_OPS_F32 ? 2 : 1); i++) {
        const uint32_t words[4] = {x.words[i].x, x.words[i].y, x.words[i].z, x.words[i].w};

#pragma unroll
        for (int j = 0; j < 4; j++)
            if (DTYPE == GPUNVME_OPS_F32) {
                values[4 * i + j] = __uint_as_float(words[j]);
            } else {
                values[2 * j] = from_bits((uint16_t)words[j], DTYPE);
                values[2 * j + 1] = from_bits((uint16_t)(words[j] >> 16), DTYPE);
            }
    }
}

template <int DTYPE>
static __device__ __forceinline__ void load_values(const void *p, int64_t i, float (&values)[8])
{
    eight<DTYPE> x;

    load_eight<DTYPE>(p, i, x);
    unpack_eight<DTYPE>(x, values);
}

template <int DTYPE>
static __device__ __forceinline__ void store_values(void *p, int64_t i, const float (&values)[8])
{
    uint4 *to = (uint4 *)eight_at<DTYPE>(p, i);

    if (DTYPE == GPUNVME_OPS_F32) {
        store4(p, i, DTYPE, values);
        store4(p, i + 4, DTYPE, values + 4);
    } else {
        __stwb(to, make_uint4(
                       to_pair(values[0], values[1], DTYPE), to_pair(values[2], values[3], DTYPE),
                       to_pair(values[4], values[5], DTYPE), to_pair(values[6], values[7], DTYPE)));
    }
}

/* Rounded to the type and back, as if they had been stored. */
template <int DTYPE> static __device__ __forceinline__ float rounded(float value)
{
    return DTYPE == GPUNVME_OPS_F32 ? value : from_bits(to_bits(value, DTYPE), DTYPE);
}

/* Eight elements of a type that the kernel is told at run time; all threads' is the same. */
static __device__ __forceinline__ void load_any(const void *p, int64_t i, int dtype,
                                                float (&values)[8])
{
    load4(p, i, dtype, values);
    load4(p, i + 4, dtype, values + 4);
}

/*
 * COUNT sums over a row's threads, of which there are `threads`: a power of two below 32, which
 * share a warp, or a multiple of 32. All of the block's threads come here, and all of a row get its
 * sums. `shared` has COUNT * 32 floats, which the call after the next may use again.
 */
template <int COUNT>
static __device__ __forceinline__ void sum_over_row(float (&x)[COUNT], int threads, float *shared)
{
    int warps = threads / 32, warp = threadIdx.x / 32;

#pragma unroll
    for (int c = 0; c < COUNT; c++)
        for (int offset = (threads < 32 ? threads : 32) / 2; offset; offset /= 2)
            x[c] += __shfl_xor_sync(0xffffffffu, x[c], offset);
    if (warps < 2)
        return;
#pragma unroll
    for (int c = 0; c < COUNT; c++)
        if (threadIdx.x % 32 == 0)
            shared[c * 32 + warp] = x[c];
    __syncthreads();
    warp = warp / warps * warps;
#pragma unroll
    for (int c = 0; c < COUNT; c++) {
        x[c] = 0;
        for (int w = 0; w < warps; w++)
            x[c] += shared[c * 32 + warp + w];
    }
}

#endif
