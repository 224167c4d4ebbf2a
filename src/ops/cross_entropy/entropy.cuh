/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the kernels of cross entropy share: sums of exponentials beside their maximum (Milakov and
 * Gimelshein, "Online normalizer calculation for softmax", 2018), and what becomes of a row.
 */
#ifndef OPS_CROSS_ENTROPY_ENTROPY_CUH
#define OPS_CROSS_ENTROPY_ENTROPY_CUH

#include "ops/cross_entropy/kernels.h"
#include "ops/cuda/rows.cuh"

/* The sum of 2^(x - most) of logits times log2(e). */
struct exponentials {
    float most, sum;
};

static __device__ __forceinline__ exponentials no_exponentials(void)
{
    exponentials x = {-INFINITY, 0};

    return x;
}

/* 2^(x - most); where both are -infinity it is 0. */
static __device__ __forceinline__ float part_of(float x, float most)
{
    return fast_exp2(x - (most == -INFINITY ? 0 : most));
}

template <int COUNT>
static __device__ __forceinline__ void add_exponentials(exponentials &all, const float *x)
{
    float most = x[0];

#pragma unroll
    for (int i = 1; i < COUNT; i++)
        most = fmaxf(most, x[i]);
    if (most * LOG2_E > all.most) {
        most *= LOG2_E;
        all.sum *= part_of(all.most, most);
        all.most = most;
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        all.sum += part_of(x[i] * LOG2_E, all.most);
}

/* Both sides of a pair of threads get the same bits. */
static __device__ __forceinline__ exponentials merged(exponentials x, exponentials y)
{
    exponentials z = {fmaxf(x.most, y.most), 0};

    z.sum = x.sum * part_of(x.most, z.most) + y.sum * part_of(y.most, z.most);
    return z;
}

/* Of all threads of a block, in the same order each time; `shared` has two floats for each warp. */
static __device__ __forceinline__ exponentials merge_block(exponentials x, int threads,
                                                           float *shared)
{
    for (int offset = 16; offset; offset /= 2) {
        exponentials y;

        y.most = __shfl_xor_sync(0xffffffffu, x.most, offset);
        y.sum = __shfl_xor_sync(0xffffffffu, x.sum, offset);
        x = merged(x, y);
    }
    if (threadIdx.x % 32 == 0) {
        shared[threadIdx.x / 32 * 2] = x.most;
        shared[threadIdx.x / 32 * 2 + 1] = x.sum;
    }
    __syncthreads();
    x = no_exponentials();
    for (int w = 0; w < threads / 32; w++) {
        exponentials y = {shared[2 * w], shared[2 * w + 1]};

        x = merged(x, y);
    }
    return x;
}

/* A row: its target, and what its gradient is multiplied by. */
struct entropy_row {
    int64_t i, target; /* -1: the row is ignored */
    float scale;       /* NaN: the target makes no sense */
};

/* But for its scale, which is that of its target alone. */
static __device__ __forceinline__ entropy_row row_with(const entropy_work &x, int64_t i,
                                                       int64_t target)
{
    const struct gpunvme_cross_entropy &p = x.p;
    entropy_row row = {i, target, 1};

    if (p.ignore && row.target == p.ignore_index)
        row.target = -1;
    else if (row.target < 0 || row.target >= p.vocab)
        row.target = 0, row.scale = NAN;
    return row;
}

static __device__ __forceinline__ entropy_row row_of(const entropy_work &x, int64_t i)
{
    entropy_row row = row_with(x, i, x.p.targets[i]);

    if (x.scale)
        row.scale *= *x.scale;
    if (x.p.grad_loss)
        row.scale *= x.p.grad_loss[x.p.reduction == GPUNVME_REDUCTION_NONE ? i : 0];
    return row;
}

/* By one thread. `logit` is the target's. */
static __device__ __forceinline__ void finish_row(const entropy_work &x, const entropy_row &row,
                                                  float lse, float logit)
{
    float loss = row.target < 0 ? 0 : lse - logit;
    int64_t target = x.p.targets[row.i];

    if (row.target >= 0 && (target < 0 || target >= x.p.vocab))
        loss = NAN;
    if (x.losses)
        x.losses[row.i] = loss;
    if (x.p.lse)
        x.p.lse[row.i] = lse;
}

static __device__ __forceinline__ float lse_of(const exponentials &x)
{
    return x.most / LOG2_E + logf(x.sum);
}

/* log2 of the sum: what exponents are less by. */
static __device__ __forceinline__ float log2_of(const exponentials &x)
{
    return x.most + logf(x.sum) * LOG2_E;
}

static __device__ __forceinline__ float target_logit(const entropy_work &x, const entropy_row &row)
{
    return row.target < 0 ? 0
                          : load_element(x.p.logits, row.i * x.p.ld_logits + row.target, x.p.dtype);
}

static __device__ __forceinline__ float grad_of(const entropy_row &row, int64_t j, float x,
                                                float log2_sum)
{
    float share = fast_exp2(x * LOG2_E - log2_sum);

    return row.target < 0 ? 0 : (j == row.target ? share - 1 : share) * row.scale;
}

/*
 * 16 bytes of a row, and where those begin in it that are aligned: `head` elements before, `words`
 * of them, and the rest.
 */
template <int DTYPE> struct word {
    static const int count = DTYPE == GPUNVME_OPS_F32 ? 4 : 8;
    static const int size = DTYPE == GPUNVME_OPS_F32 ? 4 : 2;
};

struct row_words {
    int64_t head, words;
};

template <int DTYPE>
static __device__ __forceinline__ row_words words_of(const entropy_work &x, int64_t i)
{
    uintptr_t at = (uintptr_t)x.p.logits + i * x.p.ld_logits * word<DTYPE>::size;
    row_words w = {(int64_t)((16 - at % 16) % 16 / word<DTYPE>::size), 0};

    w.head = w.head < x.p.vocab ? w.head : x.p.vocab;
    w.words = (x.p.vocab - w.head) / word<DTYPE>::count;
    return w;
}

template <int DTYPE>
static __device__ __forceinline__ void unpack_word(const uint4 &x,
                                                   float (&values)[word<DTYPE>::count])
{
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};

#pragma unroll
    for (int j = 0; j < 4; j++)
        if (DTYPE == GPUNVME_OPS_F32) {
            values[j] = __uint_as_float(words[j]);
        } else {
            from_pair(words[j], DTYPE, values[2 * j % word<DTYPE>::count],
                      values[(2 * j + 1) % word<DTYPE>::count]);
        }
}

/* Columns j … of the gradient from the word of logits that was there. */
template <int DTYPE>
static __device__ __forceinline__ void store_grad_word(const entropy_work &x,
                                                       const entropy_row &row, int64_t j,
                                                       const uint4 &logits, float log2_sum)
{
    float values[word<DTYPE>::count];
    int64_t at = row.i * x.p.ld_grad + j;

    unpack_word<DTYPE>(logits, values);
#pragma unroll
    for (int e = 0; e < word<DTYPE>::count; e++)
        values[e] = row.target < 0 ? 0 : fast_exp2(values[e] * LOG2_E - log2_sum) * row.scale;
    /* The target's word is one of thousands: the others compare no column with it. */
    if ((uint64_t)(row.target - j) < word<DTYPE>::count)
#pragma unroll
        for (int e = 0; e < word<DTYPE>::count; e++)
            if (j + e == row.target)
                values[e] -= row.scale;
#pragma unroll
    for (int e = 0; e < word<DTYPE>::count; e += 8)
        if (DTYPE == GPUNVME_OPS_F32)
            store4(x.p.grad, at, DTYPE, values);
        else
            store_values<DTYPE == GPUNVME_OPS_F32 ? GPUNVME_OPS_F16 : DTYPE>(
                x.p.grad, at, *(const float(*)[8])values);
}

#endif
