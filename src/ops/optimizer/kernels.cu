/* SPDX-License-Identifier: BSD-3-Clause
 *
 * AdamW and sums of squares for lists of tensors. A block finds its chunk's tensor in the kernel's
 * parameters, so that small tensors share a launch with large ones.
 */
#include "ops/core/philox.h"
#include "ops/cuda/rows.cuh"
#include "ops/optimizer/kernels.h"

#define THREADS 256

/* The tensor whose chunks this one is among: those of number k begin at first[k]. */
static __device__ __forceinline__ int tensor_of(const int64_t *first, int count, int64_t chunk)
{
    int low = 0, high = count;

    while (high - low > 1) {
        int middle = (low + high) / 2;

        if (first[middle] <= chunk)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* What all elements share, of the launch's parameters or (NOW) of memory. */
struct adamw_numbers {
    struct adamw_step step;
    int64_t steps;
    float grad_scale;
};

/* 1 / (1 - beta^step), without the cancellation. */
static __device__ __forceinline__ float correction(float log_beta, int64_t step)
{
    return -1 / expm1f((float)step * log_beta);
}

template <int NOW> static __device__ __forceinline__ adamw_numbers numbers_of(const adamw_work &x)
{
    adamw_numbers n = {x.step, x.steps, x.grad_scale ? *x.grad_scale : 1};

    if (NOW) {
        n.steps = x.now->step;
        n.step.lr = n.steps >= 1 && x.now->lr >= 0 && x.now->lr < INFINITY ? x.now->lr : NAN;
        n.step.keep = 1 - n.step.lr * x.weight_decay;
        n.step.to_m = correction(x.log_beta1, n.steps);
        n.step.to_v = correction(x.log_beta2, n.steps);
    }
    return n;
}

/* One element: moments and weight become the next ones. */
static __device__ __forceinline__ void update(const adamw_step &s, float grad, float &w, float &m,
                                              float &v)
{
    m = s.beta1 * m + (1 - s.beta1) * grad;
    v = s.beta2 * v + (1 - s.beta2) * grad * grad;
    w = w * s.keep - s.lr * (m * s.to_m) / (sqrtf(v * s.to_v) + s.eps);
}

static __device__ __forceinline__ struct philox random_of(const adamw_work &x, int64_t steps, int k,
                                                          int64_t i)
{
    return philox_of((uint64_t)i / 8, (uint64_t)steps << 32 | (uint32_t)(x.number + k), x.seed);
}

static __device__ __forceinline__ void update_element(const adamw_work &x, const adamw_numbers &n,
                                                      int k, int64_t i)
{
    const gpunvme_adamw_tensor &t = x.tensors[k];
    float w = t.master ? t.master[i] : load_element(t.weight, i, x.dtype);

    update(n.step, load_element(t.grad, i, x.grad_dtype) * n.grad_scale, w, t.m[i], t.v[i]);
    if (t.master)
        t.master[i] = w;
    if (!t.weight)
        return;
    if (x.stochastic) {
        struct philox random = random_of(x, n.steps, k, i);

        ((uint16_t *)t.weight)[i] = philox_round_bf16(w, philox_half(&random, (int)(i % 8)));
    } else {
        store_element(t.weight, i, x.dtype, w);
    }
}

/* The only tensor of the launch is number 0. */
template <int NOW>
static __global__ void __launch_bounds__(THREADS) elements(const __grid_constant__ adamw_work x)
{
    int64_t step = (int64_t)gridDim.x * THREADS;
    adamw_numbers n = numbers_of<NOW>(x);

    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < x.tensors[0].count; i += step)
        update_element(x, n, 0, i);
}

static __device__ __forceinline__ void store_any(void *p, int64_t i, int dtype,
                                                 const float (&values)[8])
{
    store4(p, i, dtype, values);
    store4(p, i + 4, dtype, values + 4);
}

static __device__ __forceinline__ void store_stochastic(const adamw_work &x, int64_t steps, int k,
                                                        int64_t i, const float (&w)[8])
{
    struct philox random = random_of(x, steps, k, i);
    uint32_t words[4];

#pragma unroll
    for (int e = 0; e < 4; e++)
        words[e] = philox_round_bf16(w[2 * e], random.words[e] & 0xffff) |
                   (uint32_t)philox_round_bf16(w[2 * e + 1], random.words[e] >> 16) << 16;
    __stwb((uint4 *)((uint16_t *)x.tensors[k].weight + i),
           make_uint4(words[0], words[1], words[2], words[3]));
}

template <int GRAD>
static __device__ __forceinline__ void update_eight(const adamw_work &x, const adamw_numbers &n,
                                                    int k, int64_t i)
{
    const gpunvme_adamw_tensor &t = x.tensors[k];
    float grad[8], w[8], m[8], v[8];

    load_values<GRAD>(t.grad, i, grad);
    if (t.master)
        load_values<GPUNVME_OPS_F32>(t.master, i, w);
    else
        load_any(t.weight, i, x.dtype, w);
    load_values<GPUNVME_OPS_F32>(t.m, i, m);
    load_values<GPUNVME_OPS_F32>(t.v, i, v);
#pragma unroll
    for (int e = 0; e < 8; e++)
        update(n.step, grad[e] * n.grad_scale, w[e], m[e], v[e]);
    if (t.master)
        store_values<GPUNVME_OPS_F32>(t.master, i, w);
    store_values<GPUNVME_OPS_F32>(t.m, i, m);
    store_values<GPUNVME_OPS_F32>(t.v, i, v);
    if (t.weight && x.stochastic)
        store_stochastic(x, n.steps, k, i, w);
    else if (t.weight)
        store_any(t.weight, i, x.dtype, w);
}

template <int GRAD, int NOW>
static __global__ void __launch_bounds__(THREADS) vectors(const __grid_constant__ adamw_work x)
{
    int k = tensor_of(x.first, x.count, blockIdx.x);
    int64_t first = (blockIdx.x - x.first[k]) * ADAMW_CHUNK, end = first + ADAMW_CHUNK;
    adamw_numbers n = numbers_of<NOW>(x);

    end = end < x.tensors[k].count ? end : x.tensors[k].count;
    if (!x.by_eight) {
        for (int64_t i = first + threadIdx.x; i < end; i += THREADS)
            update_element(x, n, k, i);
        return;
    }
    for (int64_t i = first + threadIdx.x * 8; i < end; i += THREADS * 8)
        if (i + 8 <= end)
            update_eight<GRAD>(x, n, k, i);
        else
            for (int64_t e = i; e < end; e++)
                update_element(x, n, k, e);
}

gpunvme_ops_status_t adamw_elements(const struct adamw_work *x, void *stream)
{
    unsigned blocks = rows_blocks((x->tensors[0].count + THREADS - 1) / THREADS);

    if (x->now)
        LAUNCH((elements<1>), blocks, THREADS, stream, *x);
    else
        LAUNCH((elements<0>), blocks, THREADS, stream, *x);
    return cuda_status(cudaGetLastError(), "launching AdamW");
}

template <int GRAD> static void launch_vectors(const struct adamw_work *x, void *stream)
{
    unsigned blocks = (unsigned)x->first[x->count];

    if (x->now)
        LAUNCH((vectors<GRAD, 1>), blocks, THREADS, stream, *x);
    else
        LAUNCH((vectors<GRAD, 0>), blocks, THREADS, stream, *x);
}

gpunvme_ops_status_t adamw_vectors(const struct adamw_work *x, void *stream)
{
    if (x->grad_dtype == GPUNVME_OPS_F32)
        launch_vectors<GPUNVME_OPS_F32>(x, stream);
    else if (x->grad_dtype == GPUNVME_OPS_F16)
        launch_vectors<GPUNVME_OPS_F16>(x, stream);
    else
        launch_vectors<GPUNVME_OPS_BF16>(x, stream);
    return cuda_status(cudaGetLastError(), "launching AdamW");
}

#define AT_ONCE 4

/* A thread's elements of a chunk: eight at a time, four of them on their way. */
template <int DTYPE>
static __device__ __forceinline__ float squares_by_eight(const void *grad, int64_t first,
                                                         int64_t end)
{
    float sum = 0, values[8];

    for (int64_t i = first + threadIdx.x * 8; i < end; i += AT_ONCE * THREADS * 8) {
        eight<DTYPE> x[AT_ONCE];

#pragma unroll
        for (int a = 0; a < AT_ONCE; a++)
            if (i + a * THREADS * 8 + 8 <= end)
                load_eight<DTYPE>(grad, i + a * THREADS * 8, x[a]);
#pragma unroll
        for (int a = 0; a < AT_ONCE; a++) {
            if (i + a * THREADS * 8 + 8 > end)
                continue;
            unpack_eight<DTYPE>(x[a], values);
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum += values[e] * values[e];
        }
    }
    /* What is left of a tensor. */
    for (int64_t i = end - end % 8 + threadIdx.x; i < end; i += THREADS) {
        float x = load_element(grad, i, DTYPE);

        sum += x * x;
    }
    return sum;
}

template <int DTYPE, int BY_EIGHT>
static __global__ void __launch_bounds__(THREADS)
    square_chunks(const __grid_constant__ grad_norm_work x)
{
    __shared__ __align__(16) float shared[32];
    int64_t chunk = x.first[0] + blockIdx.x;
    int k = tensor_of(x.first, x.count, chunk);
    int64_t first = (chunk - x.first[k]) * GRAD_NORM_CHUNK, end = first + GRAD_NORM_CHUNK;
    float sum[1] = {0};

    /* What adds up the sums may wait for them where it will run. */
    let_next_kernel_start();
    wait_for_kernels_before();
    end = end < x.tensors[k].count ? end : x.tensors[k].count;
    if (BY_EIGHT)
        sum[0] = squares_by_eight<DTYPE>(x.tensors[k].grad, first, end);
    else
        for (int64_t i = first + threadIdx.x; i < end; i += THREADS) {
            float value = load_element(x.tensors[k].grad, i, DTYPE);

            sum[0] += value * value;
        }
    sum_over_row(sum, THREADS, shared);
    if (!threadIdx.x)
        x.sums[chunk] = sum[0];
}

static __global__ void __launch_bounds__(1024)
    finish(const float *sums, int64_t chunks, float max_norm, float *norm, float *scale)
{
    __shared__ __align__(16) float shared[32];
    float sum[1] = {0}, most;

    let_next_kernel_start();
    wait_for_kernels_before();
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < chunks; i += 1024)
        sum[0] += sums[i];
    sum_over_row(sum, 1024, shared);
    most = max_norm / (sqrtf(sum[0]) + 1e-6f);
    if (!threadIdx.x && norm)
        *norm = sqrtf(sum[0]);
    if (!threadIdx.x && scale)
        *scale = most > 1 ? 1 : most; /* a NaN stays one */
}

template <int DTYPE>
static void launch_squares(const struct grad_norm_work *x, int by_eight, void *stream)
{
    unsigned blocks = (unsigned)(x->first[x->count] - x->first[0]);

    if (by_eight)
        LAUNCH_CLUSTERS((square_chunks<DTYPE, 1>), blocks, 1u, (unsigned)THREADS, 0, stream, *x);
    else
        LAUNCH_CLUSTERS((square_chunks<DTYPE, 0>), blocks, 1u, (unsigned)THREADS, 0, stream, *x);
}

gpunvme_ops_status_t grad_norm_sums(const struct grad_norm_work *x, int by_eight, void *stream)
{
    if (x->dtype == GPUNVME_OPS_F32)
        launch_squares<GPUNVME_OPS_F32>(x, by_eight, stream);
    else if (x->dtype == GPUNVME_OPS_F16)
        launch_squares<GPUNVME_OPS_F16>(x, by_eight, stream);
    else
        launch_squares<GPUNVME_OPS_BF16>(x, by_eight, stream);
    return cuda_status(cudaGetLastError(), "launching sums of squares");
}

gpunvme_ops_status_t grad_norm_finish(const float *sums, int64_t chunks, float max_norm,
                                      float *norm, float *scale, void *stream)
{
    LAUNCH_CLUSTERS(finish, 1u, 1u, 1024u, 0, stream, sums, chunks, max_norm, norm, scale);
    return cuda_status(cudaGetLastError(), "launching a norm");
}
