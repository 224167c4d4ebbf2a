/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Normalization forward, in three ways. What is fastest reads a row once: each of its threads keeps
 * two times eight elements in registers, adds the residual, and meets the others only for one sum
 * (RMSNorm) or two (LayerNorm: the mean first, so that nothing cancels in the variance). At
 * least 64 bytes are on their way for each thread.
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
    __shared__ __align__(16) float shared[2][32];

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

#define VECTORS 2

/* A thread's share of the rows: where its vectors of eight columns begin, and where they are. */
struct columns {
    int64_t first, step;
    bool valid[VECTORS];
};

template <int DTYPE> struct raw_row {
    eight<DTYPE> x[VECTORS], residual[VECTORS];
};

template <int DTYPE, int RESIDUAL>
static __device__ __forceinline__ void load_row(const gpunvme_norm &p, const columns &c, int64_t i,
                                                raw_row<DTYPE> &row)
{
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
        if (i < p.rows && c.valid[v]) {
            load_eight<DTYPE>(p.x, i * p.ldx + c.first + v * c.step, row.x[v]);
            if (RESIDUAL)
                load_eight<DTYPE>(p.residual, i * p.ld_residual + c.first + v * c.step,
                                  row.residual[v]);
        }
}

/* What is normalized: x, or x + residual rounded, which is stored if wanted. */
template <int DTYPE, int RESIDUAL>
static __device__ __forceinline__ void unpack_row(const gpunvme_norm &p, const columns &c,
                                                  int64_t i, const raw_row<DTYPE> &row,
                                                  float (&h)[VECTORS][8])
{
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        float more[8];

        unpack_eight<DTYPE>(row.x[v], h[v]);
        if (RESIDUAL) {
            unpack_eight<DTYPE>(row.residual[v], more);
#pragma unroll
            for (int e = 0; e < 8; e++)
                h[v][e] = rounded<DTYPE>(h[v][e] + more[e]);
        }
        if (p.sum && i < p.rows && c.valid[v])
            store_values<DTYPE>(p.sum, i * p.ld_sum + c.first + v * c.step, h[v]);
    }
}

/* n * w + b, n = h * rstd + shift; the parameters come from the L1 cache. */
template <int DTYPE>
static __device__ __forceinline__ void store_row(const gpunvme_norm &p, const columns &c, int64_t i,
                                                 float rstd, float shift, float (&h)[VECTORS][8])
{
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        int64_t j = c.first + v * c.step;
        float more[8];

        if (!c.valid[v])
            continue;
#pragma unroll
        for (int e = 0; e < 8; e++)
            h[v][e] = h[v][e] * rstd + shift;
        if (p.weight) {
            load_parameters<DTYPE>(p.weight, j, p.weight_dtype, more);
#pragma unroll
            for (int e = 0; e < 8; e++)
                h[v][e] *= more[e];
        }
        if (p.bias) {
            load_parameters<DTYPE>(p.bias, j, p.weight_dtype, more);
#pragma unroll
            for (int e = 0; e < 8; e++)
                h[v][e] += more[e];
        }
        store_values<DTYPE>(p.y, i * p.ldy + j, h[v]);
    }
}

/* The sum of a thread's elements less `mean`, or of its square. */
static __device__ __forceinline__ float sum_of(const columns &c, const float (&h)[VECTORS][8],
                                               float mean, bool square)
{
    float sum = 0;

#pragma unroll
    for (int v = 0; v < VECTORS; v++)
        if (c.valid[v])
#pragma unroll
            for (int e = 0; e < 8; e++) {
                float d = h[v][e] - mean;

                sum += square ? d * d : d;
            }
    return sum;
}

/*
 * A thread that has only 32 bytes of a row to wait for asks for the next row's as well before it
 * normalizes this one: its block stays. With f32 or a residual it has 64.
 */
#define AHEAD (DTYPE != GPUNVME_OPS_F32 && !RESIDUAL)

template <int DTYPE, int KIND, int RESIDUAL>
static __global__ void __launch_bounds__(1024)
    registers(const gpunvme_norm p, int threads, int rows_at_once, float of_cols)
{
    __shared__ __align__(16) float shared[2][32];
    int mine = threadIdx.x / threads, first_warp = mine * (threads / 32), turn = 0;
    columns c = {(threadIdx.x - mine * threads) * 8, threads * 8};
    int64_t i = (int64_t)blockIdx.x * rows_at_once + mine;
    int64_t at_once = (int64_t)gridDim.x * rows_at_once;
    raw_row<DTYPE> row = {};

    for (int v = 0; v < VECTORS; v++)
        c.valid[v] = c.first + v * c.step < p.cols;
    wait_for_kernels_before();
    if (AHEAD)
        load_row<DTYPE, RESIDUAL>(p, c, i, row);
    /* All threads come to the sums, also those whose row is beyond the last. */
    for (; i - mine < p.rows; i += at_once) {
        float h[VECTORS][8], mean[1] = {0}, squares[1], rstd;

        if (!AHEAD)
            load_row<DTYPE, RESIDUAL>(p, c, i, row);
        unpack_row<DTYPE, RESIDUAL>(p, c, i, row, h);
        if (AHEAD)
            load_row<DTYPE, RESIDUAL>(p, c, i + at_once, row);
        if (KIND == GPUNVME_NORM_LAYER) {
            mean[0] = sum_of(c, h, 0, false);
            sum_over_row(mean, threads, shared[turn ^= 1], first_warp);
            mean[0] *= of_cols;
        }
        squares[0] = sum_of(c, h, mean[0], true);
        sum_over_row(squares, threads, shared[turn ^= 1], first_warp);
        rstd = rsqrtf(squares[0] * of_cols + p.eps);
        if (i < p.rows)
            store_row<DTYPE>(p, c, i, rstd, -mean[0] * rstd, h);
        if (i < p.rows && !c.first)
            keep(p, i, mean[0], rstd);
    }
    let_next_kernel_start();
}

#define UNIT_THREADS 1024 /* that stay on a multiprocessor */

template <int DTYPE, int KIND, int RESIDUAL>
static void launch_registers(const struct gpunvme_norm *p, void *stream)
{
    int threads = rows_threads_of(p->cols), rows = rows_of_block(threads);
    int64_t blocks = (p->rows + rows - 1) / rows, stay = UNIT_THREADS / (threads * rows);

    stay = cuda_units() * (stay ? stay : 1);
    LAUNCH_CLUSTERS((registers<DTYPE, KIND, RESIDUAL>),
                    rows_blocks(AHEAD && stay < blocks ? stay : blocks), 1u,
                    (unsigned)(threads * rows), 0, stream, *p, threads, rows, 1 / (float)p->cols);
}

template <int DTYPE, int KIND>
static void launch_registers(const struct gpunvme_norm *p, void *stream)
{
    if (p->residual)
        launch_registers<DTYPE, KIND, 1>(p, stream);
    else
        launch_registers<DTYPE, KIND, 0>(p, stream);
}

template <int DTYPE> static void launch_registers(const struct gpunvme_norm *p, void *stream)
{
    if (p->kind == GPUNVME_NORM_LAYER)
        launch_registers<DTYPE, GPUNVME_NORM_LAYER>(p, stream);
    else
        launch_registers<DTYPE, GPUNVME_NORM_RMS>(p, stream);
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
