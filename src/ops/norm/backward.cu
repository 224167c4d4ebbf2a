/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Normalization backward, in three ways. Blocks of the fastest stay and take row after row: each
 * thread has the same columns of all of them, so that it adds up the parameters' gradients in
 * registers; the next rows are on their way while the sums over this one are made.
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

#define VECTORS      2
#define MOST_STAGES  4
#define BLOCK_NBYTES (96 * 1024) /* of shared memory: one stage of f32 and 8192 columns at most */

/*
 * Rows that are on their way, in shared memory: each thread copies and reads words of its own, so
 * that no barrier is needed.
 */
template <int DTYPE> struct ring {
    static const int halves = DTYPE == GPUNVME_OPS_F32 ? 2 : 1; /* of 16 bytes */
    int64_t first, step;                                        /* the thread's columns */
    int stages, operands, threads;                              /* of the block */
    const uint4 *words;
};

/* An operand's vector of a stage: its first half; the second is as many words on as threads. */
template <int DTYPE>
static __device__ __forceinline__ const uint4 *at_stage(const ring<DTYPE> &r, int stage,
                                                        int operand, int v)
{
    int i = ((stage * r.operands + operand) * VECTORS + v) * ring<DTYPE>::halves;

    return r.words + i * r.threads + threadIdx.x;
}

template <int DTYPE>
static __device__ __forceinline__ void copy_row(const gpunvme_norm_grad &p, const ring<DTYPE> &r,
                                                int stage, int64_t i)
{
    const void *const rows[3] = {p.grad_y, p.x, p.grad_sum};
    const int64_t ld[3] = {p.ld_grad_y, p.ldx, p.ld_grad_sum};

#pragma unroll
    for (int o = 0; o < 3; o++)
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
            if (i < p.rows && o < r.operands && r.first + v * r.step < p.cols) {
                const uint4 *from = eight_at<DTYPE>(rows[o], i * ld[o] + r.first + v * r.step);

#pragma unroll
                for (int h = 0; h < ring<DTYPE>::halves; h++)
                    cp_async16(shared_address(at_stage(r, stage, o, v) + h * r.threads), from + h,
                               16);
            }
    cp_async_commit();
}

/* Until the oldest row has come. */
static __device__ __forceinline__ void wait_for_row(int stages)
{
    if (stages == MOST_STAGES)
        cp_async_wait<MOST_STAGES - 1>();
    else if (stages > 1)
        cp_async_wait<1>();
    else
        cp_async_wait<0>();
}

template <int DTYPE>
static __device__ __forceinline__ void take(const ring<DTYPE> &r, int stage, int operand, int v,
                                            float (&values)[8])
{
    eight<DTYPE> x;

#pragma unroll
    for (int h = 0; h < ring<DTYPE>::halves; h++)
        x.words[h] = at_stage(r, stage, operand, v)[h * r.threads];
    unpack_eight<DTYPE>(x, values);
}

/* A vector: n, and g in the place of grad_y; added to the sums. */
template <int BIAS>
static __device__ __forceinline__ void add_vector(const float (&w)[8], float mean, float rstd,
                                                  float (&g)[8], float (&n)[8], float (&weight)[8],
                                                  float (&bias)[8], float (&sums)[2])
{
#pragma unroll
    for (int e = 0; e < 8; e++) {
        n[e] = (n[e] - mean) * rstd;
        weight[e] += g[e] * n[e];
        if (BIAS)
            bias[e] += g[e];
        g[e] *= w[e];
        sums[0] += g[e];
        sums[1] += g[e] * n[e];
    }
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

static __host__ __device__ __forceinline__ int operands_of(const gpunvme_norm_grad &p)
{
    return p.grad_x && p.grad_sum ? 3 : 2;
}

static __device__ __forceinline__ void load_moments(const gpunvme_norm_grad &p, int64_t i,
                                                    float &mean, float &rstd)
{
    if (i < p.rows) {
        mean = mean_of(p, i);
        rstd = p.rstd[i];
    }
}

template <int DTYPE, int BIAS>
static __global__ void __launch_bounds__(512)
    registers(const norm_backward x, int threads, int rows_at_once, int stages)
{
    __shared__ float shared[2][64];
    const gpunvme_norm_grad &p = x.p;
    const ring<DTYPE> r = {
        threadIdx.x % threads * 8,      threads * 8, stages, operands_of(p), threads * rows_at_once,
        (const uint4 *)dynamic_shared()};
    int64_t mine = threadIdx.x / threads, at_once = (int64_t)gridDim.x * rows_at_once;
    int64_t i = blockIdx.x * rows_at_once + mine;
    float weight[VECTORS][8] = {}, bias[VECTORS][8] = {}, w[VECTORS][8];
    float mean = 0, rstd = 0, next_mean = 0, next_rstd = 0;
    int turn = 0, stage = 0;

#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
#pragma unroll
        for (int e = 0; e < 8; e++)
            w[v][e] = 1;
        if (p.weight && r.first + v * r.step < p.cols)
            load_any(p.weight, r.first + v * r.step, p.weight_dtype, w[v]);
    }
    for (int s = 0; s < stages; s++)
        copy_row(p, r, s, i + s * at_once);
    load_moments(p, i, next_mean, next_rstd);
    for (int64_t i0 = i - mine; i0 < p.rows; i0 += at_once, i += at_once, turn ^= 1) {
        int64_t cols = i < p.rows ? p.cols : 0;
        float g[VECTORS][8], n[VECTORS][8], sums[2] = {0, 0};

        mean = next_mean;
        rstd = next_rstd;
        load_moments(p, i + at_once, next_mean, next_rstd);
        wait_for_row(stages);
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
            if (r.first + v * r.step < cols) {
                take(r, stage, 0, v, g[v]);
                take(r, stage, 1, v, n[v]);
                add_vector<BIAS>(w[v], mean, rstd, g[v], n[v], weight[v], bias[v], sums);
            }
        if (p.grad_x) {
            sum_over_row(sums, threads, shared[turn]);
            sums[0] = p.kind == GPUNVME_NORM_LAYER ? sums[0] / (float)p.cols : 0;
            sums[1] /= (float)p.cols;
#pragma unroll
            for (int v = 0; v < VECTORS; v++)
                if (r.first + v * r.step < cols) {
                    float more[8] = {0, 0, 0, 0, 0, 0, 0, 0};

                    if (p.grad_sum)
                        take(r, stage, 2, v, more);
#pragma unroll
                    for (int e = 0; e < 8; e++)
                        more[e] += (g[v][e] - sums[0] - n[v][e] * sums[1]) * rstd;
                    store_values<DTYPE>(p.grad_x, i * p.ld_grad_x + r.first + v * r.step, more);
                }
        }
        copy_row(p, r, stage, i + stages * at_once);
        stage = stage + 1 < stages ? stage + 1 : 0;
    }
    if (x.weight_sums)
        store_sums(x.weight_sums, p.cols, threads, rows_at_once, weight);
    if (BIAS)
        store_sums(x.bias_sums, p.cols, threads, rows_at_once, bias);
}

/* As many stages as the blocks that stay on a multiprocessor have room for; one always fits. */
template <int DTYPE, int BIAS>
static gpunvme_ops_status_t launch_registers(const struct norm_backward *x, void *stream)
{
    int threads = rows_threads_of(x->p.cols), rows = rows_of_block(threads), stages = MOST_STAGES;
    size_t stage = (size_t)(threads * rows * operands_of(x->p) * VECTORS * ring<DTYPE>::halves) *
                   sizeof(uint4);
    gpunvme_ops_status_t status;

    while (stages > 1 && stages * stage > BLOCK_NBYTES)
        stages /= 2;
    status = cuda_allow_shared((const void *)registers<DTYPE, BIAS>, stages * stage);
    if (status)
        return status;
    LAUNCH_SHARED((registers<DTYPE, BIAS>), (unsigned)x->blocks, threads * rows, stages * stage,
                  stream, *x, threads, rows, stages);
    return cuda_status(cudaGetLastError(), "launching a normalization backward");
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

template <int DTYPE>
static gpunvme_ops_status_t launch_registers(const struct norm_backward *x, void *stream)
{
    return x->bias_sums ? launch_registers<DTYPE, 1>(x, stream)
                        : launch_registers<DTYPE, 0>(x, stream);
}

gpunvme_ops_status_t norm_backward_registers(const struct norm_backward *x, void *stream)
{
    if (x->p.dtype == GPUNVME_OPS_F32)
        return launch_registers<GPUNVME_OPS_F32>(x, stream);
    return x->p.dtype == GPUNVME_OPS_F16 ? launch_registers<GPUNVME_OPS_F16>(x, stream)
                                         : launch_registers<GPUNVME_OPS_BF16>(x, stream);
}
