/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dZ, and sums of its columns for the bias, in three ways: by atomic additions, a column a thread,
 * and by warps that read rows and reduce at the end, in the same pass as dZ.
 */
#include "ops/linear/dz.cuh"
#include "ops/linear/passes.h"

#define THREADS 256
#define WARPS   (THREADS / 32)
#define COLS    128 /* of a block: four for each lane */

static __device__ __forceinline__ float dz_at(const linear_dz &x, int64_t i, int64_t j)
{
    float grad = load_element(x.grad_y, i * x.ld_grad_y + j, x.dtype);

    if (x.activation == GPUNVME_OPS_ACT_NONE)
        return grad;
    return grad * activate_grad(x.activation, x.dtype,
                                load_element(x.preact, i * x.ld_preact + j, x.dtype));
}

static __global__ void __launch_bounds__(THREADS) dz_atomic(const linear_dz x)
{
    int64_t count = x.rows * x.out, step = (int64_t)gridDim.x * THREADS;

    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        float z = dz_at(x, i / x.out, i % x.out);

        if (x.dz)
            store_element(x.dz, i / x.out * x.ld_dz + i % x.out, x.dtype, z);
        if (x.sums)
            atomicAdd(x.sums + i % x.out, z);
    }
}

static __global__ void __launch_bounds__(THREADS) sum_columns(const linear_dz x)
{
    int64_t step = (int64_t)gridDim.x * THREADS;

    for (int64_t j = (int64_t)blockIdx.x * THREADS + threadIdx.x; j < x.out; j += step) {
        float sum = 0;

        for (int64_t i = 0; i < x.rows; i++)
            sum += dz_at(x, i, j);
        x.sums[j] = sum;
    }
}

/* Four elements at once, or those before the edge. */
static __device__ __forceinline__ void load_some(const linear_dz &x, const void *data, int64_t at,
                                                 int left, float *values)
{
    if (x.vectors && left >= 4) {
        load4(data, at, x.dtype, values);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        values[i] = i < left ? load_element(data, at + i, x.dtype) : 0;
}

/* Four elements of a row of dZ: stored, if wanted, and added to the lane's sums. */
static __device__ __forceinline__ void do_four(const linear_dz &x, int64_t i, int64_t j, int left,
                                               float (&sums)[4])
{
    float z[4], preact[4];

    load_some(x, x.grad_y, i * x.ld_grad_y + j, left, z);
    if (x.activation != GPUNVME_OPS_ACT_NONE) {
        load_some(x, x.preact, i * x.ld_preact + j, left, preact);
#pragma unroll
        for (int c = 0; c < 4; c++)
            z[c] *= activate_grad(x.activation, x.dtype, preact[c]);
    }
#pragma unroll
    for (int c = 0; c < 4; c++)
        sums[c] += z[c];
    if (!x.dz)
        return;
    if (x.vectors && left >= 4) {
        store4(x.dz, i * x.ld_dz + j, x.dtype, z);
        return;
    }
#pragma unroll
    for (int c = 0; c < 4; c++)
        if (c < left)
            store_element(x.dz, i * x.ld_dz + j + c, x.dtype, z[c]);
}

/* A warp has every eighth row; the eight sums of a column are added up by eight lanes. */
static __global__ void __launch_bounds__(THREADS) dz_rows(const linear_dz x)
{
    __shared__ float all[WARPS][COLS + 1];
    int64_t across = (x.out + COLS - 1) / COLS, parts = (x.rows + LINEAR_ROWS - 1) / LINEAR_ROWS;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    for (int64_t block = blockIdx.x; block < across * parts; block += gridDim.x) {
        int64_t part = block / across, col = block % across * COLS, j = col + lane * 4;
        int64_t last = part * LINEAR_ROWS + LINEAR_ROWS;
        int left = x.out - j < 4 ? (int)(x.out - j) : 4;
        float sums[4] = {0, 0, 0, 0};

        last = last < x.rows ? last : x.rows;
        if (left > 0)
#pragma unroll 4
            for (int64_t i = part * LINEAR_ROWS + warp; i < last; i += WARPS)
                do_four(x, i, j, left, sums);
        if (!x.sums)
            continue;
#pragma unroll
        for (int c = 0; c < 4; c++)
            all[warp][lane * 4 + c] = sums[c];
        __syncthreads();
        for (int c = threadIdx.x / WARPS; c < COLS; c += THREADS / WARPS) {
            float sum = all[threadIdx.x % WARPS][c];

#pragma unroll
            for (int offset = WARPS / 2; offset; offset /= 2)
                sum += __shfl_down_sync(0xffffffffu, sum, offset, WARPS);
            if (threadIdx.x % WARPS == 0 && col + c < x.out)
                x.sums[part * x.out + col + c] = sum;
        }
        __syncthreads();
    }
}

/* Likewise for what suits dz_suits(): a warp reads 512 bytes of a row at once. */
template <int DTYPE, int ACTIVATION>
static __global__ void __launch_bounds__(THREADS, 3) dz_rows_by_eight(const linear_dz x)
{
    __shared__ float all[WARPS][DZ_COLS];
    int64_t across = (x.out + DZ_COLS - 1) / DZ_COLS;
    int64_t parts = (x.rows + LINEAR_ROWS - 1) / LINEAR_ROWS;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    for (int64_t block = blockIdx.x; block < across * parts; block += gridDim.x) {
        int64_t part = block / across, col = block % across * DZ_COLS, j = col + lane * 8;
        int64_t last = part * LINEAR_ROWS + LINEAR_ROWS;
        float sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};

        last = last < x.rows ? last : x.rows;
        dz_rows_of_lane<DTYPE, ACTIVATION, 4>(x, part * LINEAR_ROWS + warp, last, WARPS, j, sums);
        if (!x.sums)
            continue;
#pragma unroll
        for (int c = 0; c < 8; c += 4)
            *(float4 *)&all[warp][lane * 8 + c] =
                make_float4(sums[c], sums[c + 1], sums[c + 2], sums[c + 3]);
        __syncthreads();
        if (col + threadIdx.x < x.out) {
            float sum = 0;

#pragma unroll
            for (int w = 0; w < WARPS; w++)
                sum += all[w][threadIdx.x];
            x.sums[part * x.out + col + threadIdx.x] = sum;
        }
        __syncthreads();
    }
}

static unsigned blocks_for(int64_t blocks)
{
    return (unsigned)(blocks < 1 << 20 ? blocks : 1 << 20);
}

template <int DTYPE> static void launch_by_eight_of(const struct linear_dz *x, void *stream)
{
    unsigned blocks = blocks_for((x->out + DZ_COLS - 1) / DZ_COLS * linear_parts(x->rows));

    switch (x->activation) {
    case GPUNVME_OPS_ACT_RELU:
        LAUNCH((dz_rows_by_eight<DTYPE, GPUNVME_OPS_ACT_RELU>), blocks, THREADS, stream, *x);
        break;
    case GPUNVME_OPS_ACT_GELU:
        LAUNCH((dz_rows_by_eight<DTYPE, GPUNVME_OPS_ACT_GELU>), blocks, THREADS, stream, *x);
        break;
    case GPUNVME_OPS_ACT_GELU_TANH:
        LAUNCH((dz_rows_by_eight<DTYPE, GPUNVME_OPS_ACT_GELU_TANH>), blocks, THREADS, stream, *x);
        break;
    case GPUNVME_OPS_ACT_SILU:
        LAUNCH((dz_rows_by_eight<DTYPE, GPUNVME_OPS_ACT_SILU>), blocks, THREADS, stream, *x);
        break;
    default:
        LAUNCH((dz_rows_by_eight<DTYPE, GPUNVME_OPS_ACT_NONE>), blocks, THREADS, stream, *x);
    }
}

static void launch_by_eight(const struct linear_dz *x, void *stream)
{
    if (x->dtype == GPUNVME_OPS_F16)
        launch_by_eight_of<GPUNVME_OPS_F16>(x, stream);
    else
        launch_by_eight_of<GPUNVME_OPS_BF16>(x, stream);
}

gpunvme_ops_status_t linear_dz_atomic(const struct linear_dz *x, void *stream)
{
    LAUNCH(dz_atomic, blocks_for((x->rows * x->out + THREADS - 1) / THREADS), THREADS, stream, *x);
    return cuda_status(cudaGetLastError(), "launching dZ");
}

gpunvme_ops_status_t linear_dz_rows(const struct linear_dz *x, void *stream)
{
    if (dz_suits(x)) {
        launch_by_eight(x, stream);
        return cuda_status(cudaGetLastError(), "launching dZ");
    }
    LAUNCH(dz_rows, blocks_for((x->out + COLS - 1) / COLS * linear_parts(x->rows)), THREADS, stream,
           *x);
    return cuda_status(cudaGetLastError(), "launching dZ");
}

gpunvme_ops_status_t linear_sum_columns(const struct linear_dz *x, void *stream)
{
    LAUNCH(sum_columns, blocks_for((x->out + THREADS - 1) / THREADS), THREADS, stream, *x);
    return cuda_status(cudaGetLastError(), "launching sums of columns");
}
