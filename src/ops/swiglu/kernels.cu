/* SPDX-License-Identifier: BSD-3-Clause
 *
 * SwiGLU, forward and backward: a thread has an element, or eight of a row. Both gradients are made
 * in one pass, of operands that they may replace.
 */
#include "ops/cuda/rows.cuh"
#include "ops/swiglu/kernels.h"

static __device__ __forceinline__ float silu(int dtype, float z)
{
    return activate(GPUNVME_OPS_ACT_SILU, dtype, z);
}

static __global__ void __launch_bounds__(ROWS_THREADS) forward_elements(const gpunvme_swiglu p)
{
    int64_t step = (int64_t)gridDim.x * ROWS_THREADS, all = p.rows * p.cols;

    for (int64_t at = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x; at < all; at += step) {
        int64_t i = at / p.cols, j = at % p.cols;

        store_element(p.y, i * p.ldy + j, p.dtype,
                      silu(p.dtype, load_element(p.gate, i * p.ld_gate + j, p.dtype)) *
                          load_element(p.up, i * p.ld_up + j, p.dtype));
    }
}

static __global__ void __launch_bounds__(ROWS_THREADS)
    backward_elements(const gpunvme_swiglu_grad p)
{
    int64_t step = (int64_t)gridDim.x * ROWS_THREADS, all = p.rows * p.cols;

    for (int64_t at = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x; at < all; at += step) {
        int64_t i = at / p.cols, j = at % p.cols;
        float grad = load_element(p.grad_y, i * p.ld_grad_y + j, p.dtype);
        float gate = load_element(p.gate, i * p.ld_gate + j, p.dtype);
        float up = load_element(p.up, i * p.ld_up + j, p.dtype);

        store_element(p.grad_gate, i * p.ld_grad_gate + j, p.dtype,
                      grad * up * activate_grad(GPUNVME_OPS_ACT_SILU, p.dtype, gate));
        store_element(p.grad_up, i * p.ld_grad_up + j, p.dtype, grad * silu(p.dtype, gate));
    }
}

template <int DTYPE>
static __global__ void __launch_bounds__(ROWS_THREADS) forward_vectors(const gpunvme_swiglu p)
{
    int64_t step = (int64_t)gridDim.x * ROWS_THREADS, across = p.cols / 8, all = p.rows * across;

    for (int64_t at = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x; at < all; at += step) {
        int64_t i = at / across, j = at % across * 8;
        eight<DTYPE> first, second;
        float gate[8], up[8];

        load_eight<DTYPE>(p.gate, i * p.ld_gate + j, first);
        load_eight<DTYPE>(p.up, i * p.ld_up + j, second);
        unpack_eight<DTYPE>(first, gate);
        unpack_eight<DTYPE>(second, up);
#pragma unroll
        for (int e = 0; e < 8; e++)
            up[e] *= silu(DTYPE, gate[e]);
        store_values<DTYPE>(p.y, i * p.ldy + j, up);
    }
}

template <int DTYPE>
static __global__ void __launch_bounds__(ROWS_THREADS) backward_vectors(const gpunvme_swiglu_grad p)
{
    int64_t step = (int64_t)gridDim.x * ROWS_THREADS, across = p.cols / 8, all = p.rows * across;

    for (int64_t at = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x; at < all; at += step) {
        int64_t i = at / across, j = at % across * 8;
        eight<DTYPE> first, second, third;
        float grad[8], gate[8], up[8];

        load_eight<DTYPE>(p.grad_y, i * p.ld_grad_y + j, first);
        load_eight<DTYPE>(p.gate, i * p.ld_gate + j, second);
        load_eight<DTYPE>(p.up, i * p.ld_up + j, third);
        unpack_eight<DTYPE>(first, grad);
        unpack_eight<DTYPE>(second, gate);
        unpack_eight<DTYPE>(third, up);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            up[e] *= grad[e] * activate_grad(GPUNVME_OPS_ACT_SILU, DTYPE, gate[e]);
            grad[e] *= silu(DTYPE, gate[e]);
        }
        store_values<DTYPE>(p.grad_gate, i * p.ld_grad_gate + j, up);
        store_values<DTYPE>(p.grad_up, i * p.ld_grad_up + j, grad);
    }
}

gpunvme_ops_status_t swiglu_forward(const struct gpunvme_swiglu *p, int by_eight, void *stream)
{
    int64_t threads = p->rows * (by_eight ? p->cols / 8 : p->cols);
    unsigned blocks = rows_blocks((threads + ROWS_THREADS - 1) / ROWS_THREADS);

    if (!by_eight)
        LAUNCH(forward_elements, blocks, ROWS_THREADS, stream, *p);
    else if (p->dtype == GPUNVME_OPS_F32)
        LAUNCH((forward_vectors<GPUNVME_OPS_F32>), blocks, ROWS_THREADS, stream, *p);
    else if (p->dtype == GPUNVME_OPS_F16)
        LAUNCH((forward_vectors<GPUNVME_OPS_F16>), blocks, ROWS_THREADS, stream, *p);
    else
        LAUNCH((forward_vectors<GPUNVME_OPS_BF16>), blocks, ROWS_THREADS, stream, *p);
    return cuda_status(cudaGetLastError(), "launching SwiGLU");
}

gpunvme_ops_status_t swiglu_backward(const struct gpunvme_swiglu_grad *p, int by_eight,
                                     void *stream)
{
    int64_t threads = p->rows * (by_eight ? p->cols / 8 : p->cols);
    unsigned blocks = rows_blocks((threads + ROWS_THREADS - 1) / ROWS_THREADS);

    if (!by_eight)
        LAUNCH(backward_elements, blocks, ROWS_THREADS, stream, *p);
    else if (p->dtype == GPUNVME_OPS_F32)
        LAUNCH((backward_vectors<GPUNVME_OPS_F32>), blocks, ROWS_THREADS, stream, *p);
    else if (p->dtype == GPUNVME_OPS_F16)
        LAUNCH((backward_vectors<GPUNVME_OPS_F16>), blocks, ROWS_THREADS, stream, *p);
    else
        LAUNCH((backward_vectors<GPUNVME_OPS_BF16>), blocks, ROWS_THREADS, stream, *p);
    return cuda_status(cudaGetLastError(), "launching SwiGLU backward");
}
