/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Normalization forward, in three ways. What is fastest reads a row once: each of its threads keeps
 * two times eight elements in registers, adds the residual, and meets the others only for one sum
 * (RMSNorm) or two (LayerNorm: the mean first, so that nothing cancels in the variance).
 */
#include "ops/cuda/rows.cuh"
#include "ops/norm/kernels.h"

/* Element j of row i of h, rounded as it is stored. What was stored is read again from there. */
static __device__ __forceinline__ float input(const gpunvme_norm &p, int64_t i, int64_t j)
{
    float h = load_element(p.x, i * p.ldx + j, p.dtype);

    if (!p.residual)
        return h;
    h += load_element(p.residual, i * p.ld_residual + j, p.dtype);
    return p.dtype == GPUNVME_OPS_F32 ? h : from_bits(to_bits(h, p.dtype), p.dtype);
}

static __device__ __forceinline__ float weight_of(const void *weight, int64_t j, int dtype)
{
    return weight ? load_element(weight, j, dtype) : 1;
}

static __device__ __forceinline__ void keep(const gpunvme_norm &p, int64_t i, float mean,
                                            float rstd)
{
    if (p.mean && p.kind == GPUNVME_NORM_LAYER)
        p.mean[i] = mean;
    if (p.rstd)
        p.rstd[i] = rstd;
}

static __device__ __forceinline__ float rstd_of(const gpunvme_norm &p, float squares)
{
    return 1 / sqrtf(squares / (float)p.cols + p.eps);
}

/* The result, and then the sum, which may replace what the result is made of. */
static __device__ __forceinline__ void finish(const gpunvme_norm &p, int64_t i, int64_t j,
                                              float mean, float rstd)
{
    float h = input(p, i, j), y = (h - mean) * rstd * weight_of(p.weight, j, p.weight_dtype);

    if (p.bias)
        y += load_element(p.bias, j, p.weight_dtype);
    store_element(p.y, i * p.ldy + j, p.dtype, y);
    if (p.sum)
        store_element(p.sum, i * p.ld_sum + j, p.dtype, h);
}

static __global__ void __launch_bounds__(ROWS_THREADS) naive(const gpunvme_norm p)
{
    int64_t step = (int64_t)gridDim.x * ROWS_THREADS;

    for (int64_t i = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x; i < p.rows; i += step) {
        float mean = 0, squares = 0, rstd;

        if (p.kind == GPUNVME_NORM_LAYER) {
            for (int64_t j = 0; j < p.cols; j++)
                mean += input(p, i, j);
            mean /= (float)p.cols;
        }
        for (int64_t j = 0; j < p.cols; j++) {
            float d = input(p, i, j) - mean;

            squares += d * d;
        }
        rstd = rstd_of(p, squares);
        for (int64_t j = 0; j < p.cols; j++)
            finish(p, i, j, mean, rstd);
        keep(p, i, mean, rstd);
    }
}

static __global__ void __launch_bounds__(ROWS_THREADS) block(const gpunvme_norm p)
{
    __shared__ float shared[2][32];

    for (int64_t i = blockIdx.x; i < p.rows; i += gridDim.x) {
        float mean[1] = {0}, squares[1] = {0}, rstd;

        if (p.kind == GPUNVME_NORM_LAYER)
            for (int64_t j = threadIdx.x; j < p.cols; j += ROWS_THREADS)
                mean[0] += input(p, i, j);
        sum_over_row(mean, ROWS_THREADS, shared[0]);
        mean[0] /= (float)p.cols;
        for (int64_t j = threadIdx.x; j < p.cols; j += ROWS_THREADS) {
            float d = input(p, i, j) - mean[0];

            squares[0] += d * d;
        }
        sum_over_row(squares, ROWS_THREADS, shared[1]);
        rstd = rstd_of(p, squares[0]);
        for (int64_t j = threadIdx.x; j < p.cols; j += ROWS_THREADS)
            finish(p, i, j, mean[0], rstd);
        if (!threadIdx.x)
            keep(p, i, mean[0], rstd);
    }
}

/* A thread's share of a row: vectors of eight, `threads` of them apart. */
#define VECTORS 2

template <int DTYPE>
static __device__ __forceinline__ void load_row(const gpunvme_norm &p, int64_t i, int64_t first,
                                                int64_t step, float (&h)[VECTORS][8])
{
    eight<DTYPE> x[VECTORS], residual[VECTORS];

#pragma unroll
    for (int v = 0; v < VECTORS; v++)
        if (first + v * step < p.cols) {
            load_eight<DTYPE>(p.x, i * p.ldx + first + v * step, x[v]);
            if (p.residual)
                load_eight<DTYPE>(p.residual, i * p.ld_residual + first + v * step, residual[v]);
        }
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        float more[8];

#pragma unroll
        for (int e = 0; e < 8; e++)
            h[v][e] = 0;
        if (first + v * step >= p.cols)
            continue;
        unpack_eight<DTYPE>(x[v], h[v]);
        if (p.residual) {
            unpack_eight<DTYPE>(residual[v], more);
#pragma unroll
            for (int e = 0; e < 8; e++)
                h[v][e] = rounded<DTYPE>(h[v][e] + more[e]);
        }
        if (p.sum)
            store_values<DTYPE>(p.sum, i * p.ld_sum + first + v * step, h[v]);
    }
}

template <int DTYPE>
static __device__ __forceinline__ void store_row(const gpunvme_norm &p, int64_t i, int64_t first,
                                                 int64_t step, float mean, float rstd,
                                                 float (&h)[VECTORS][8])
{
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        int64_t j = first + v * step;
        float more[8];

        if (j >= p.cols)
            continue;
#pragma unroll
        for (int e = 0; e < 8; e++)
            h[v][e] = (h[v][e] - mean) * rstd;
        if (p.weight) {
            load_any(p.weight, j, p.weight_dtype, more);
#pragma unroll
            for (int e = 0; e < 8; e++)
                h[v][e] *= more[e];
        }
        if (p.bias) {
            load_any(p.bias, j, p.weight_dtype, more);
#pragma unroll
            for (int e = 0; e < 8; e++)
                h[v][e] += more[e];
        }
        store_values<DTYPE>(p.y, i * p.ldy + j, h[v]);
    }
}

/* The sum of all elements less `mean`, or of its square. */
static __device__ __forceinline__ float sum_of(const float (&h)[VECTORS][8], int64_t first,
                                               int64_t step, int64_t cols, float mean, bool square)
{
    float sum = 0;

#pragma unroll
    for (int v = 0; v < VECTORS; v++)
        if (first + v * step < cols)
#pragma unroll
            for (int e = 0; e < 8; e++) {
                float d = h[v][e] - mean;

                sum += square ? d * d : d;
            }
    return sum;
}

template <int DTYPE>
static __global__ void __launch_bounds__(1024)
    registers(const gpunvme_norm p, int threads, int rows_at_once)
{
    __shared__ float shared[2][32];
    int64_t first = threadIdx.x % threads * 8, step = threads * 8;
    int64_t mine = threadIdx.x / threads, at_once = (int64_t)gridDim.x * rows_at_once;

    /* All threads come to the sums, also those whose row is beyond the last. */
    for (int64_t i0 = (int64_t)blockIdx.x * rows_at_once; i0 < p.rows; i0 += at_once) {
        int64_t i = i0 + mine, cols = i < p.rows ? p.cols : 0;
        float h[VECTORS][8], mean[1] = {0}, squares[1], rstd;

        if (cols)
            load_row<DTYPE>(p, i, first, step, h);
        if (p.kind == GPUNVME_NORM_LAYER) {
            mean[0] = sum_of(h, first, step, cols, 0, false);
            sum_over_row(mean, threads, shared[0]);
            mean[0] /= (float)p.cols;
        }
        squares[0] = sum_of(h, first, step, cols, mean[0], true);
        sum_over_row(squares, threads, shared[1]);
        rstd = rstd_of(p, squares[0]);
        if (cols)
            store_row<DTYPE>(p, i, first, step, mean[0], rstd, h);
        if (cols && !first)
            keep(p, i, mean[0], rstd);
        if (p.kind == GPUNVME_NORM_RMS)
            __syncthreads(); /* there is but one sum, whose memory the next row uses again */
    }
}

template <int DTYPE> static void launch_registers(const struct gpunvme_norm *p, void *stream)
{
    int threads = rows_threads_of(p->cols), rows = rows_of_block(threads);

    LAUNCH((registers<DTYPE>), rows_blocks((p->rows + rows - 1) / rows), threads * rows, stream, *p,
           threads, rows);
}

gpunvme_ops_status_t norm_forward_naive(const struct gpunvme_norm *p, void *stream)
{
    LAUNCH(naive, rows_blocks((p->rows + ROWS_THREADS - 1) / ROWS_THREADS), ROWS_THREADS, stream,
           *p);
    return cuda_status(cudaGetLastError(), "launching a normalization");
}

gpunvme_ops_status_t norm_forward_block(const struct gpunvme_norm *p, void *stream)
{
    LAUNCH(block, rows_blocks(p->rows), ROWS_THREADS, stream, *p);
    return cuda_status(cudaGetLastError(), "launching a normalization");
}

gpunvme_ops_status_t norm_forward_registers(const struct gpunvme_norm *p, void *stream)
{
    if (p->dtype == GPUNVME_OPS_F32)
        launch_registers<GPUNVME_OPS_F32>(p, stream);
    else if (p->dtype == GPUNVME_OPS_F16)
        launch_registers<GPUNVME_OPS_F16>(p, stream);
    else
        launch_registers<GPUNVME_OPS_BF16>(p, stream);
    return cuda_status(cudaGetLastError(), "launching a normalization");
}
