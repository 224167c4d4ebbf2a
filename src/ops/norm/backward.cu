/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Normalization backward, in three ways. Blocks of the fastest stay and take row after row: each
 * thread has the same columns of all of them, so that it adds up the parameters' gradients in
 * registers; the next row is on its way while the sums over this one are made.
 */
#include "ops/cuda/rows.cuh"
#include "ops/norm/kernels.h"

static __device__ __forceinline__ float mean_of(const gpunvme_norm_grad &p, int64_t i)
{
    return p.kind == GPUNVME_NORM_LAYER ? p.mean[i] : 0;
}

static __device__ __forceinline__ float normalized(const gpunvme_norm_grad &p, int64_t i, int64_t j)
{
    return (load_element(p.x, i * p.ldx + j, p.dtype) - mean_of(p, i)) * p.rstd[i];
}

static __device__ __forceinline__ float grad_y_of(const gpunvme_norm_grad &p, int64_t i, int64_t j)
{
    return load_element(p.grad_y, i * p.ld_grad_y + j, p.dtype);
}

static __device__ __forceinline__ float grad_n_of(const gpunvme_norm_grad &p, int64_t i, int64_t j)
{
    float g = grad_y_of(p, i, j);

    return p.weight ? g * load_element(p.weight, j, p.weight_dtype) : g;
}

static __device__ __forceinline__ void finish_x(const gpunvme_norm_grad &p, int64_t i, int64_t j,
                                                float sum, float product)
{
    float g = (grad_n_of(p, i, j) - sum - normalized(p, i, j) * product) * p.rstd[i];

    if (p.grad_sum)
        g += load_element(p.grad_sum, i * p.ld_grad_sum + j, p.dtype);
    store_element(p.grad_x, i * p.ld_grad_x + j, p.dtype, g);
}

/* Of a row, or then of a column, a thread each. */
static __global__ void __launch_bounds__(ROWS_THREADS) naive_x(const gpunvme_norm_grad p)
{
    int64_t step = (int64_t)gridDim.x * ROWS_THREADS;

    for (int64_t i = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x; i < p.rows; i += step) {
        float sum = 0, product = 0;

        for (int64_t j = 0; j < p.cols; j++) {
            if (p.kind == GPUNVME_NORM_LAYER)
                sum += grad_n_of(p, i, j);
            product += grad_n_of(p, i, j) * normalized(p, i, j);
        }
        for (int64_t j = 0; j < p.cols; j++)
            finish_x(p, i, j, sum / (float)p.cols, product / (float)p.cols);
    }
}

static __global__ void __launch_bounds__(ROWS_THREADS) naive_sums(const gpunvme_norm_grad p)
{
    int64_t step = (int64_t)gridDim.x * ROWS_THREADS;

    for (int64_t j = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x; j < p.cols; j += step) {
        float weight = 0, bias = 0;

        if (p.accumulate && p.grad_weight)
            weight = load_element(p.grad_weight, j, p.grad_dtype);
        if (p.accumulate && p.grad_bias)
            bias = load_element(p.grad_bias, j, p.grad_dtype);
        for (int64_t i = 0; i < p.rows; i++) {
            float g = grad_y_of(p, i, j);

            if (p.grad_weight)
                weight += g * normalized(p, i, j);
            bias += g;
        }
        if (p.grad_weight)
            store_element(p.grad_weight, j, p.grad_dtype, weight);
        if (p.grad_bias)
            store_element(p.grad_bias, j, p.grad_dtype, bias);
    }
}

/* Rows of any alignment and length, a block for each; sums of columns stay in memory. */
static __global__ void __launch_bounds__(ROWS_THREADS) block(const norm_backward x)
{
    __shared__ float shared[2][64];
    const gpunvme_norm_grad &p = x.p;
    float *weight = x.weight_sums + blockIdx.x * p.cols, *bias = x.bias_sums + blockIdx.x * p.cols;
    bool wanted = p.grad_x || p.grad_weight;
    int turn = 0;

    for (int64_t j = threadIdx.x; j < p.cols; j += ROWS_THREADS) {
        if (x.weight_sums)
            weight[j] = 0;
        if (x.bias_sums)
            bias[j] = 0;
    }
    for (int64_t i = blockIdx.x; i < p.rows; i += gridDim.x, turn ^= 1) {
        float sums[2] = {0, 0};

        for (int64_t j = threadIdx.x; j < p.cols; j += ROWS_THREADS) {
            float g = grad_y_of(p, i, j), n = wanted ? normalized(p, i, j) : 0;

            if (x.weight_sums)
                weight[j] += g * n;
            if (x.bias_sums)
                bias[j] += g;
            if (p.weight)
                g *= load_element(p.weight, j, p.weight_dtype);
            sums[0] += g;
            sums[1] += g * n;
        }
        if (!p.grad_x)
            continue;
        sum_over_row(sums, ROWS_THREADS, shared[turn]);
        for (int64_t j = threadIdx.x; j < p.cols; j += ROWS_THREADS)
            finish_x(p, i, j, p.kind == GPUNVME_NORM_LAYER ? sums[0] / (float)p.cols : 0,
                     sums[1] / (float)p.cols);
    }
}

#define VECTORS 2

/* A thread's share of a row, as it lies in memory. */
template <int DTYPE> struct share {
    eight<DTYPE> grad[VECTORS], x[VECTORS];
    float mean, rstd;
};

template <int DTYPE>
static __device__ __forceinline__ void load_share(const gpunvme_norm_grad &p, int64_t i,
                                                  int64_t first, int64_t step, share<DTYPE> &s)
{
    if (i >= p.rows)
        return;
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
        if (first + v * step < p.cols) {
            load_eight<DTYPE>(p.grad_y, i * p.ld_grad_y + first + v * step, s.grad[v]);
            load_eight<DTYPE>(p.x, i * p.ldx + first + v * step, s.x[v]);
        }
    s.mean = mean_of(p, i);
    s.rstd = p.rstd[i];
}

/* A vector: n, and g in the place of grad_y; added to the sums. */
template <int DTYPE, int BIAS>
static __device__ __forceinline__ void
add_vector(const gpunvme_norm_grad &p, int64_t j, float mean, float rstd, float (&g)[8],
           float (&n)[8], float (&weight)[8], float (&bias)[8], float (&sums)[2])
{
    float w[8];

    if (p.weight)
        load_any(p.weight, j, p.weight_dtype, w);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        n[e] = (n[e] - mean) * rstd;
        weight[e] += g[e] * n[e];
        if (BIAS)
            bias[e] += g[e];
        if (p.weight)
            g[e] *= w[e];
        sums[0] += g[e];
        sums[1] += g[e] * n[e];
    }
}

template <int DTYPE>
static __device__ __forceinline__ void store_vector(const gpunvme_norm_grad &p, int64_t i,
                                                    int64_t j, float rstd, const float (&sums)[2],
                                                    float (&g)[8], const float (&n)[8])
{
    float more[8];

#pragma unroll
    for (int e = 0; e < 8; e++)
        g[e] = (g[e] - sums[0] - n[e] * sums[1]) * rstd;
    if (p.grad_sum) {
        load_values<DTYPE>(p.grad_sum, i * p.ld_grad_sum + j, more);
#pragma unroll
        for (int e = 0; e < 8; e++)
            g[e] += more[e];
    }
    store_values<DTYPE>(p.grad_x, i * p.ld_grad_x + j, g);
}

/* The block's row of sums: those of its rows at a time, added one after the other. */
static __device__ __forceinline__ void store_sums(float *sums, int64_t cols, int threads,
                                                  int rows_at_once, const float (&mine)[VECTORS][8])
{
    int64_t first = threadIdx.x % threads * 8, step = threads * 8;

    for (int row = 0; row < rows_at_once; row++) {
        if ((int)threadIdx.x / threads == row)
#pragma unroll
            for (int v = 0; v < VECTORS; v++)
                if (first + v * step < cols)
                    for (int e = 0; e < 8; e++) {
                        float *at = sums + blockIdx.x * cols + first + v * step + e;

                        *at = row ? *at + mine[v][e] : mine[v][e];
                    }
        __syncthreads();
    }
}

template <int DTYPE, int BIAS>
static __global__ void __launch_bounds__(512)
    registers(const norm_backward x, int threads, int rows_at_once)
{
    __shared__ float shared[2][64];
    const gpunvme_norm_grad &p = x.p;
    int64_t first = threadIdx.x % threads * 8, step = threads * 8;
    int64_t mine = threadIdx.x / threads, at_once = (int64_t)gridDim.x * rows_at_once;
    float weight[VECTORS][8] = {}, bias[VECTORS][8] = {};
    share<DTYPE> next;
    int turn = 0;

    load_share<DTYPE>(p, blockIdx.x * rows_at_once + mine, first, step, next);
    for (int64_t i0 = (int64_t)blockIdx.x * rows_at_once; i0 < p.rows; i0 += at_once, turn ^= 1) {
        int64_t i = i0 + mine, cols = i < p.rows ? p.cols : 0;
        float g[VECTORS][8], n[VECTORS][8], sums[2] = {0, 0}, mean = next.mean, rstd = next.rstd;

#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            unpack_eight<DTYPE>(next.grad[v], g[v]);
            unpack_eight<DTYPE>(next.x[v], n[v]);
        }
        load_share<DTYPE>(p, i + at_once, first, step, next);
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
            if (first + v * step < cols)
                add_vector<DTYPE, BIAS>(p, first + v * step, mean, rstd, g[v], n[v], weight[v],
                                        bias[v], sums);
        if (!p.grad_x)
            continue;
        sum_over_row(sums, threads, shared[turn]);
        sums[0] = p.kind == GPUNVME_NORM_LAYER ? sums[0] / (float)p.cols : 0;
        sums[1] /= (float)p.cols;
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
            if (first + v * step < cols)
                store_vector<DTYPE>(p, i, first + v * step, rstd, sums, g[v], n[v]);
    }
    if (x.weight_sums)
        store_sums(x.weight_sums, p.cols, threads, rows_at_once, weight);
    if (BIAS)
        store_sums(x.bias_sums, p.cols, threads, rows_at_once, bias);
}

template <int DTYPE> static void launch_registers(const struct norm_backward *x, void *stream)
{
    int threads = rows_threads_of(x->p.cols), rows = rows_of_block(threads);

    if (x->bias_sums)
        LAUNCH((registers<DTYPE, 1>), (unsigned)x->blocks, threads * rows, stream, *x, threads,
               rows);
    else
        LAUNCH((registers<DTYPE, 0>), (unsigned)x->blocks, threads * rows, stream, *x, threads,
               rows);
}

gpunvme_ops_status_t norm_backward_naive(const struct norm_backward *x, void *stream)
{
    const struct gpunvme_norm_grad *p = &x->p;

    if (p->grad_x && p->rows)
        LAUNCH(naive_x, rows_blocks((p->rows + ROWS_THREADS - 1) / ROWS_THREADS), ROWS_THREADS,
               stream, *p);
    if (p->grad_weight || p->grad_bias)
        LAUNCH(naive_sums, rows_blocks((p->cols + ROWS_THREADS - 1) / ROWS_THREADS), ROWS_THREADS,
               stream, *p);
    return cuda_status(cudaGetLastError(), "launching a normalization backward");
}

gpunvme_ops_status_t norm_backward_block(const struct norm_backward *x, void *stream)
{
    LAUNCH(block, (unsigned)x->blocks, ROWS_THREADS, stream, *x);
    return cuda_status(cudaGetLastError(), "launching a normalization backward");
}

gpunvme_ops_status_t norm_backward_registers(const struct norm_backward *x, void *stream)
{
    if (x->p.dtype == GPUNVME_OPS_F32)
        launch_registers<GPUNVME_OPS_F32>(x, stream);
    else if (x->p.dtype == GPUNVME_OPS_F16)
        launch_registers<GPUNVME_OPS_F16>(x, stream);
    else
        launch_registers<GPUNVME_OPS_BF16>(x, stream);
    return cuda_status(cudaGetLastError(), "launching a normalization backward");
}
