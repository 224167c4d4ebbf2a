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
    __shared__ __align__(16) float shared[2][64];
    const gpunvme_norm_grad &p = x.p;
    float *weight = x.weight_sums + blockIdx.x * x.ld_sums;
    float *bias = x.bias_sums + blockIdx.x * x.ld_sums;
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
 * A thread's view of the rows that are on their way, in shared memory: it copies and reads words of
 * its own, so that no barrier is needed. OPERANDS are grad_y, x and, with three, grad_sum.
 */
template <int DTYPE, int OPERANDS> struct ring {
    static const int halves = DTYPE == GPUNVME_OPS_F32 ? 2 : 1; /* of 16 bytes: of a vector */
    static const int size = 2 * halves;

    const char *from[OPERANDS]; /* its columns in the row that is copied next */
    int64_t by[OPERANDS];       /* bytes from there to the row after that */
    int left;                   /* rows that are not copied yet */
    int valid[VECTORS];         /* bytes of a word: 16, or 0 where the row has no such columns */
    int second;                 /* bytes from the first vector to the second */
    int plane, stage_nbytes;    /* a plane: a word of each thread of the block */
    uint32_t words;
};

/* Of rows i, i + at_once and so on, of which there are `left`. */
template <int DTYPE, int OPERANDS>
static __device__ __forceinline__ ring<DTYPE, OPERANDS>
ring_of(const gpunvme_norm_grad &p, int64_t i, int64_t at_once, int left, int first, int threads,
        int rows_at_once)
{
    const void *const rows[3] = {p.grad_y, p.x, p.grad_sum};
    const int64_t ld[3] = {p.ld_grad_y, p.ldx, p.ld_grad_sum};
    ring<DTYPE, OPERANDS> r;

    for (int o = 0; o < OPERANDS; o++) {
        r.from[o] = (const char *)rows[o] + (i * ld[o] + first) * r.size;
        r.by[o] = at_once * ld[o] * r.size;
    }
    r.left = left;
    r.second = threads * 8 * r.size;
    for (int v = 0; v < VECTORS; v++)
        r.valid[v] = first + v * threads * 8 < p.cols ? 16 : 0;
    r.plane = threads * rows_at_once * 16;
    r.stage_nbytes = OPERANDS * VECTORS * r.halves * r.plane;
    r.words = shared_address(dynamic_shared()) + threadIdx.x * 16;
    return r;
}

/* Zeros where there is nothing. */
template <int DTYPE, int OPERANDS>
static __device__ __forceinline__ void copy_row(ring<DTYPE, OPERANDS> &r, int stage)
{
    uint32_t to = r.words + stage * r.stage_nbytes;

#pragma unroll
    for (int o = 0; o < OPERANDS; o++) {
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
#pragma unroll
            for (int h = 0; h < r.halves; h++)
                cp_async16(to + ((o * VECTORS + v) * r.halves + h) * r.plane,
                           r.from[o] + v * r.second + h * 16, r.left > 0 ? r.valid[v] : 0);
        r.from[o] += r.by[o];
    }
    r.left--;
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

template <int DTYPE, int OPERANDS>
static __device__ __forceinline__ void take(const ring<DTYPE, OPERANDS> &r, int stage, int operand,
                                            eight<DTYPE> (&x)[VECTORS])
{
    uint32_t from = r.words + stage * r.stage_nbytes;

#pragma unroll
    for (int v = 0; v < VECTORS; v++)
#pragma unroll
        for (int h = 0; h < r.halves; h++)
            x[v].words[h] =
                load_shared16(from + ((operand * VECTORS + v) * r.halves + h) * r.plane);
}

/*
 * A vector: n = x * rstd + shift, and g in the place of grad_y; added to the sums. With MEANS the
 * means of g count as well (LayerNorm), and the bias's gradient.
 */
template <int MEANS>
static __device__ __forceinline__ void add_vector(const float (&w)[8], float rstd, float shift,
                                                  float (&g)[8], float (&n)[8], float (&weight)[8],
                                                  float (&bias)[8], float (&sums)[1 + MEANS])
{
#pragma unroll
    for (int e = 0; e < 8; e++) {
        n[e] = n[e] * rstd + shift;
        weight[e] += g[e] * n[e];
        if (MEANS)
            bias[e] += g[e];
        g[e] *= w[e];
        sums[0] += g[e] * n[e];
        if (MEANS)
            sums[MEANS] += g[e];
    }
}

/* The block's row of sums: those of its rows at a time, added one after the other. */
static __device__ __forceinline__ void store_sums(float *sums, int64_t ld, int64_t cols,
                                                  int threads, int rows_at_once,
                                                  float (&mine)[VECTORS][8])
{
    int64_t first = threadIdx.x % threads * 8, step = threads * 8;

    for (int row = 0; row < rows_at_once; row++) {
        if ((int)threadIdx.x / threads == row)
#pragma unroll
            for (int v = 0; v < VECTORS; v++)
                if (first + v * step < cols) {
                    int64_t at = blockIdx.x * ld + first + v * step;
                    float before[8] = {};

                    if (row)
                        load_any(sums, at, GPUNVME_OPS_F32, before);
                    for (int e = 0; e < 8; e++)
                        before[e] += mine[v][e];
                    store_values<GPUNVME_OPS_F32>(sums, at, before);
                }
        __syncthreads();
    }
}

/* Zeros beyond the last row, so that n is 0 there. */
static __device__ __forceinline__ void load_moments(const gpunvme_norm_grad &p, int64_t i,
                                                    float &mean, float &rstd)
{
    mean = i < p.rows ? mean_of(p, i) : 0;
    rstd = i < p.rows ? p.rstd[i] : 0;
}

/* Of rows i, i + step and so on: how many there are. */
static __device__ __forceinline__ int rows_from(int64_t i, int64_t step, int64_t rows)
{
    return i < rows ? (int)((rows - 1 - i) / step) + 1 : 0;
}

template <int DTYPE, int MEANS, int OPERANDS>
static __global__ void __launch_bounds__(512)
    registers(const norm_backward x, int threads, int rows_at_once, int stages, float of_cols)
{
    __shared__ __align__(16) float shared[2][64];
    const gpunvme_norm_grad &p = x.p;
    int mine = threadIdx.x / threads, first = (threadIdx.x - mine * threads) * 8;
    int first_warp = mine * (threads / 32), turn = 0, stage = 0;
    int64_t i = (int64_t)blockIdx.x * rows_at_once + mine;
    int64_t at_once = (int64_t)gridDim.x * rows_at_once;
    int rounds = rows_from(i - mine, at_once, p.rows), here = rows_from(i, at_once, p.rows);
    char *to = (char *)p.grad_x + (i * p.ld_grad_x + first) * ring<DTYPE, OPERANDS>::size;
    ring<DTYPE, OPERANDS> r =
        ring_of<DTYPE, OPERANDS>(p, i, at_once, here, first, threads, rows_at_once);
    float weight[VECTORS][8] = {}, bias[VECTORS][8] = {}, w[VECTORS][8];
    float mean, rstd, next_mean, next_rstd;

    wait_for_kernels_before();
    for (int s = 0; s < stages; s++)
        copy_row(r, s);
    load_moments(p, i, next_mean, next_rstd);
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
#pragma unroll
        for (int e = 0; e < 8; e++)
            w[v][e] = 1;
        if (p.weight && r.valid[v])
            load_parameters<DTYPE>(p.weight, first + v * threads * 8, p.weight_dtype, w[v]);
    }
    /* All threads come to the sums, also those whose row is beyond the last. */
    for (int round = 0; round < rounds; round++, turn ^= 1) {
        eight<DTYPE> raw_g[VECTORS], raw_x[VECTORS];
        float g[VECTORS][8], n[VECTORS][8], sums[1 + MEANS] = {};

        mean = next_mean;
        rstd = next_rstd;
        i += at_once;
        load_moments(p, i, next_mean, next_rstd);
        wait_for_row(stages);
        take(r, stage, 0, raw_g);
        take(r, stage, 1, raw_x);
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            unpack_eight<DTYPE>(raw_g[v], g[v]);
            unpack_eight<DTYPE>(raw_x[v], n[v]);
            add_vector<MEANS>(w[v], rstd, -mean * rstd, g[v], n[v], weight[v], bias[v], sums);
        }
        if (p.grad_x) {
            float shift = 0;

            sum_over_row(sums, threads, shared[turn], first_warp);
            if (MEANS && p.kind == GPUNVME_NORM_LAYER)
                shift = -sums[MEANS] * of_cols * rstd;
            sums[0] *= -of_cols * rstd;
            if (OPERANDS == 3)
                take(r, stage, 2, raw_g);
#pragma unroll
            for (int v = 0; v < VECTORS; v++) {
                float more[8] = {};

                if (OPERANDS == 3)
                    unpack_eight<DTYPE>(raw_g[v], more);
#pragma unroll
                for (int e = 0; e < 8; e++)
                    more[e] += g[v][e] * rstd + (n[v][e] * sums[0] + shift);
                if (round < here && r.valid[v])
                    store_values<DTYPE>(to + v * r.second, 0, more);
            }
            to += at_once * p.ld_grad_x * r.size;
        }
        copy_row(r, stage);
        stage = stage + 1 < stages ? stage + 1 : 0;
    }
    let_next_kernel_start();
    if (x.weight_sums)
        store_sums(x.weight_sums, x.ld_sums, p.cols, threads, rows_at_once, weight);
    if (MEANS && x.bias_sums)
        store_sums(x.bias_sums, x.ld_sums, p.cols, threads, rows_at_once, bias);
}

/* As many stages as the blocks that stay on a multiprocessor have room for; one always fits. */
template <int DTYPE, int MEANS, int OPERANDS>
static gpunvme_ops_status_t launch_registers(const struct norm_backward *x, void *stream)
{
    int threads = rows_threads_of(x->p.cols), rows = rows_of_block(threads), stages = MOST_STAGES;
    size_t stage = (size_t)(threads * rows * OPERANDS * VECTORS * ring<DTYPE, OPERANDS>::halves) *
                   sizeof(uint4);
    gpunvme_ops_status_t status;

    while (stages > 1 && stages * stage > BLOCK_NBYTES)
        stages /= 2;
    status = cuda_allow_shared((const void *)registers<DTYPE, MEANS, OPERANDS>, stages * stage);
    if (status)
        return status;
    LAUNCH_CLUSTERS((registers<DTYPE, MEANS, OPERANDS>), (unsigned)x->blocks, 1u,
                    (unsigned)(threads * rows), stages * stage, stream, *x, threads, rows, stages,
                    1 / (float)x->p.cols);
    return cuda_status(cudaGetLastError(), "launching a normalization backward");
}

template <int DTYPE, int MEANS>
static gpunvme_ops_status_t launch_registers(const struct norm_backward *x, void *stream)
{
    return x->p.grad_x && x->p.grad_sum ? launch_registers<DTYPE, MEANS, 3>(x, stream)
                                        : launch_registers<DTYPE, MEANS, 2>(x, stream);
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
    return x->bias_sums || x->p.kind == GPUNVME_NORM_LAYER ? launch_registers<DTYPE, 1>(x, stream)
                                                           : launch_registers<DTYPE, 0>(x, stream);
}

gpunvme_ops_status_t norm_backward_registers(const struct norm_backward *x, void *stream)
{
    if (x->p.dtype == GPUNVME_OPS_F32)
        return launch_registers<GPUNVME_OPS_F32>(x, stream);
    return x->p.dtype == GPUNVME_OPS_F16 ? launch_registers<GPUNVME_OPS_F16>(x, stream)
                                         : launch_registers<GPUNVME_OPS_BF16>(x, stream);
}
