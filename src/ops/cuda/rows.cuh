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
                from_pair(words[j], DTYPE, values[2 * j], values[2 * j + 1]);
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

/* Eight parameters, of type DTYPE or f32, which all rows read again. */
template <int DTYPE>
static __device__ __forceinline__ void load_parameters(const void *p, int64_t i, int dtype,
                                                       float (&values)[8])
{
    eight<DTYPE> x;

    if (dtype != DTYPE) {
        load_any(p, i, GPUNVME_OPS_F32, values);
        return;
    }
    x.words[0] = eight_at<DTYPE>(p, i)[0];
    if (DTYPE == GPUNVME_OPS_F32)
        x.words[DTYPE == GPUNVME_OPS_F32] = eight_at<DTYPE>(p, i)[1];
    unpack_eight<DTYPE>(x, values);
}

/*
 * COUNT sums over a row's threads, of which there are `threads`: a power of two below 32, which
 * share a warp, or a multiple of 32. All of the block's threads come here, and all of a row get its
 * sums. `shared` has COUNT * 32 floats, aligned to 16 bytes, which the call after the next may use
 * again; the row's own begin with the number of its first warp.
 */
template <int COUNT>
static __device__ __forceinline__ void sum_over_row(float (&x)[COUNT], int threads, float *shared,
                                                    int first_warp = 0)
{
    int warps = threads / 32;

    if (threads < 32) {
        for (int offset = threads / 2; offset; offset /= 2)
#pragma unroll
            for (int c = 0; c < COUNT; c++)
                x[c] += __shfl_xor_sync(0xffffffffu, x[c], offset);
        return;
    }
#pragma unroll
    for (int offset = 16; offset; offset /= 2)
#pragma unroll
        for (int c = 0; c < COUNT; c++)
            x[c] += __shfl_xor_sync(0xffffffffu, x[c], offset);
    if (warps == 1)
        return;
#pragma unroll
    for (int c = 0; c < COUNT; c++) {
        if (threadIdx.x % 32 == 0)
            shared[c * 32 + threadIdx.x / 32] = x[c];
        x[c] = 0;
    }
    __syncthreads();
    shared += first_warp;
    if (warps % 4) {
        for (int w = 0; w < warps; w++)
#pragma unroll
            for (int c = 0; c < COUNT; c++)
                x[c] += shared[c * 32 + w];
        return;
    }
#pragma unroll 2
    for (int w = 0; w < warps; w += 4)
#pragma unroll
        for (int c = 0; c < COUNT; c++) {
            float4 parts = *(const float4 *)&shared[c * 32 + w];

            x[c] += (parts.x + parts.y) + (parts.z + parts.w);
        }
}

#endif
