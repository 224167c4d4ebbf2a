/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What kernels of attention for sm_90a share: a warp group's rows of sums (softmax of scores,
 * scaling, 16 bits on their way out), and clearing rows of a tile. A thread has two rows of sums:
 * of its warp's 16, number l / 4 and the one 8 below; of these, columns 8 j + 2 (l % 4) and one on.
 */
#ifndef OPS_ATTENTION_CUDA_HOPPER_ROWS_CUH
#define OPS_ATTENTION_CUDA_HOPPER_ROWS_CUH

#include "ops/attention/cuda/problem.cuh"
#include "ops/hopper/ring.cuh"

#define GROWTH 8.0f /* of the exponent, before sums are scaled anew */

/* A thread's two rows: what exponents are taken relative to, and its part of the sums. */
struct attention_rows {
    float most[2], sum[2];
};

static __device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

static __device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

/*
 * S becomes P: 2^(rate (S - most) + offset), and its part of the sums is added to them. False: no
 * row's `most` has changed. Otherwise sums so far are to be multiplied by `factor`. P is at most
 * 2^(growth + offset).
 */
template <int COUNT>
static __device__ __forceinline__ bool soften(float (&s)[COUNT], attention_rows &rows,
                                              float (&factor)[2], float rate, float growth = GROWTH,
                                              float offset = 0)
{
    bool grew = false;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        float a = fmaxf(s[2 * h], s[4 + 2 * h]), b = fmaxf(s[2 * h + 1], s[4 + 2 * h + 1]);

#pragma unroll
        for (int j = 2; j < COUNT / 4; j++) {
            a = fmaxf(a, s[4 * j + 2 * h]);
            b = fmaxf(b, s[4 * j + 2 * h + 1]);
        }
        a = quad_max(fmaxf(a, b));
        factor[h] = 1;
        if ((a - rows.most[h]) * rate > growth) { /* from -infinity, too */
            factor[h] = fast_exp2((rows.most[h] - a) * rate);
            rows.most[h] = a;
            grew = true;
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float least = rows.most[h] == -INFINITY ? 0 : rows.most[h] * rate - offset, a = 0, b = 0;

#pragma unroll
        for (int j = 0; j < COUNT / 4; j++) {
            float &x = s[4 * j + 2 * h], &y = s[4 * j + 2 * h + 1];

            x = fast_exp2(x * rate - least);
            y = fast_exp2(y * rate - least);
            a += x;
            b += y;
        }
        rows.sum[h] = rows.sum[h] * factor[h] + (a + b);
    }
    return grew;
}

template <int COUNT>
static __device__ __forceinline__ void scale_rows(float (&o)[COUNT], const float (&factor)[2])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        o[i] *= factor[i / 2 % 2];
}

template <int DTYPE, int COUNT>
static __device__ __forceinline__ void pack(uint32_t (&p)[COUNT / 2], const float (&s)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++)
        p[i] = to_pair(s[2 * i], s[2 * i + 1], DTYPE);
}

/*
 * E4M3: four keys a register, as wgmma_e4m3_by_registers() takes them. A lane has keys 2 l and one
 * on of each eight; in 16 keys its four stand behind each other: see hopper_value_place().
 */
template <int COUNT>
static __device__ __forceinline__ void pack_fp8(uint32_t (&p)[COUNT / 4], const float (&s)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT / 4; i++) {
        const float *from = &s[i / 2 * 8 + i % 2 * 2];

        p[i] = pack_e4m3(from[0], from[1], from[4], from[5]);
    }
}

/*
 * Four lanes have four words each, of four vectors of 16 bytes: lane l, word l of each. Then lane l
 * has vector l.
 */
static __device__ __forceinline__ void gather_vectors(uint32_t (&x)[4])
{
    int lane = threadIdx.x % 4;

#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t mine, other;

            if (i & bit)
                continue;
            mine = lane & bit ? x[i] : x[i + bit];
            other = __shfl_xor_sync(0xffffffff, mine, bit);
            if (lane & bit)
                x[i] = other;
            else
                x[i + bit] = other;
        }
}

/* Half of a warp's rows, of 16 bits: each lane of four has every fourth vector. */
template <int DTYPE, int COUNT>
static __device__ __forceinline__ void write_vectors(uint16_t *out, const float (&o)[COUNT], int h,
                                                     int channels, bool wanted)
{
#pragma unroll
    for (int part = 0; part < COUNT / 16; part++) {
        int c = (part * 4 + (int)threadIdx.x % 4) * 8;
        uint32_t x[4];

#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *from = &o[(part * 4 + i) * 4 + 2 * h];

            x[i] = to_pair(from[0], from[1], DTYPE);
        }
        gather_vectors(x);
        if (wanted && c < channels)
            *(uint4 *)(out + c) = make_uint4(x[0], x[1], x[2], x[3]);
    }
}

/* Likewise one by one, of any type. */
template <int DTYPE, int COUNT>
static __device__ __forceinline__ void write_elements(void *out, int64_t at, int channels,
                                                      const float (&o)[COUNT], int h)
{
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++) {
        int c = i / 2 * 8 + (int)threadIdx.x % 4 * 2 + i % 2;

        if (c < channels)
            store_element(out, at + c, DTYPE, o[i / 2 * 4 + 2 * h + i % 2]);
    }
}

/* By a warp: rows from `first` on become zeros, which the tensor cores will see. */
template <int BOXES>
static __device__ __forceinline__ void clear_rows(uint32_t tile, int rows, int first)
{
    const uint32_t zeros[4] = {0, 0, 0, 0};

    for (int box = 0; box < BOXES; box++)
        for (int at = first * HOPPER_WIDTH + (int)threadIdx.x % 32 * 16; at < rows * HOPPER_WIDTH;
             at += 32 * 16)
            store_shared16(tile + box * rows * HOPPER_WIDTH + at, zeros);
    fence_async_proxy();
    __syncwarp();
}

/* This warp has read what the barrier guards. */
static __device__ __forceinline__ void release(uint32_t barrier)
{
    if (threadIdx.x % 32 == 0)
        mbarrier_arrive_at(barrier, 0);
}

#endif
