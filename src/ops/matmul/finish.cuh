/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How the sums of a product become elements of C.
 */
#ifndef OPS_MATMUL_FINISH_CUH
#define OPS_MATMUL_FINISH_CUH

#include "ops/cuda/element.cuh"
#include "ops/matmul/product.h"

static __device__ __forceinline__ float load_operand(const cuda_operand &x, int64_t batch,
                                                     int64_t i, int64_t j, int dtype)
{
    return load_element(x.data, batch * x.stride + i * x.rs + j * x.cs, dtype);
}

/* alpha sum + beta C + bias: what the activation is applied to. */
static __device__ __forceinline__ float pre_activation(const cuda_product &p, int64_t at, int64_t j,
                                                       float sum)
{
    float z = p.alpha * sum;

    if (p.beta != 0)
        z += p.beta * load_element(p.c, at, p.out_dtype);
    if (p.bias)
        z += load_element(p.bias, j, p.dtype);
    return z;
}

/* The sum of element (i, j) becomes an element of C. */
static __device__ __forceinline__ void finish(const cuda_product &p, int64_t batch, int64_t i,
                                              int64_t j, float sum)
{
    int64_t at = batch * p.stride_c + i * p.ldc + j;
    float z = pre_activation(p, at, j, sum);

    if (p.preact)
        store_element(p.preact, i * p.ld_preact + j, p.dtype, z);
    store_element(p.c, at, p.out_dtype, activate(p.activation, p.out_dtype, z));
}

/*
 * Elements j … j + 3 of a row, all of which there are and whose vectors are aligned. The sum of
 * element j + x is sums[x ^ SWAP].
 */
template <int SWAP = 0>
static __device__ __forceinline__ void finish_vector(const cuda_product &p, int64_t batch,
                                                     int64_t i, int64_t j, const float *sums)
{
    int64_t at = batch * p.stride_c + i * p.ldc + j;
    float z[4], more[4];

#pragma unroll
    for (int x = 0; x < 4; x++)
        z[x] = p.alpha * sums[x ^ SWAP];
    if (p.beta != 0) {
        load4(p.c, at, p.out_dtype, more);
#pragma unroll
        for (int x = 0; x < 4; x++)
            z[x] += p.beta * more[x];
    }
    if (p.bias) {
        load4(p.bias, j, p.dtype, more);
#pragma unroll
        for (int x = 0; x < 4; x++)
            z[x] += more[x];
    }
    if (p.preact)
        store4(p.preact, i * p.ld_preact + j, p.dtype, z);
    if (p.activation != GPUNVME_OPS_ACT_NONE)
#pragma unroll
        for (int x = 0; x < 4; x++)
            z[x] = activate(p.activation, p.out_dtype, z[x]);
    store4(p.c, at, p.out_dtype, z);
}

/* Elements j … j + 3, as far as there are. j is a multiple of 4. */
template <int SWAP = 0>
static __device__ __forceinline__ void finish4(const cuda_product &p, int64_t batch, int64_t i,
                                               int64_t j, const float *sums)
{
    if (p.vectors && j + 4 <= p.n) {
        finish_vector<SWAP>(p, batch, i, j, sums);
        return;
    }
#pragma unroll 1
    for (int x = 0; x < 4; x++)
        if (j + x < p.n)
            finish(p, batch, i, j + x, sums[x ^ SWAP]);
}

/* The same of sums that are aligned to 16 bytes: read at once, and so by a warp from all banks. */
static __device__ __forceinline__ void finish4_aligned(const cuda_product &p, int64_t batch,
                                                       int64_t i, int64_t j, const float *sums)
{
    if (p.vectors && j + 4 <= p.n) {
        float4 x = *(const float4 *)sums;
        const float z[4] = {x.x, x.y, x.z, x.w};

        finish_vector(p, batch, i, j, z);
    } else {
        finish4(p, batch, i, j, sums);
    }
}

/*
 * All threads of a block make elements of C of the sums of ROWS x COLS, which lie in shared memory
 * with LD floats from row to row; column j at j ^ SWAP. The caller has seen to it that they are
 * there.
 */
template <int ROWS, int COLS, int LD, int THREADS, int SWAP = 0>
static __device__ __forceinline__ void finish_tile(const cuda_product &p, const float *sums,
                                                   int64_t batch, int64_t row, int64_t col)
{
#pragma unroll 1
    for (int v = threadIdx.x; v < ROWS * COLS / 4; v += THREADS) {
        int i = v / (COLS / 4), j = v % (COLS / 4) * 4;

        if (row + i < p.m && col + j < p.n)
            finish4<SWAP>(p, batch, row + i, col + j, sums + i * LD + j);
    }
}

/* Where tile number `tile` lies, row by row within each matrix of the batch. */
struct tile_place {
    int64_t batch, row, col;
};

static __device__ __forceinline__ tile_place place_of(const cuda_product &p, int64_t tile, int m,
                                                      int n)
{
    int64_t across = (p.n + n - 1) / n, down = (p.m + m - 1) / m;
    tile_place x;

    x.col = tile % across * n;
    x.row = tile / across % down * m;
    x.batch = tile / across / down;
    return x;
}

#endif
