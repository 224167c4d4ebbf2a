/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Mixture of experts: the choice, what passes over rows, and products with a thread for each
 * element. Sums are in the same order in every run.
 */
#include "ops/cuda/rows.cuh"
#include "ops/cuda/warp.cuh"
#include "ops/moe/kernels.h"
#include "ops/moe/route.h"

#define WARPS (ROWS_THREADS / 32)

/* Number of the first row, token or slot of this warp, and of all warps. */
static __device__ __forceinline__ int64_t first_of_warp(void)
{
    return (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
}

static __device__ __forceinline__ int64_t all_warps(void)
{
    return (int64_t)gridDim.x * WARPS;
}

static __device__ __forceinline__ bool is_expert(const moe_slots &x, int32_t expert)
{
    return expert >= 0 && expert < x.experts;
}

static __device__ __forceinline__ uint64_t warp_max_key(uint64_t x)
{
#pragma unroll
    for (int step = 16; step; step /= 2) {
        uint32_t high = __shfl_xor_sync(0xffffffffu, (uint32_t)(x >> 32), step);
        uint32_t low = __shfl_xor_sync(0xffffffffu, (uint32_t)x, step);
        uint64_t other = (uint64_t)high << 32 | low;

        x = other > x ? other : x;
    }
    return x;
}

/* The largest key of a token's experts below `last`. */
static __device__ __forceinline__ uint64_t next_key(const gpunvme_moe &p, int64_t row,
                                                    uint64_t last)
{
    uint64_t best = 0;

    for (int64_t e = threadIdx.x % 32; e < p.experts; e += 32) {
        float logit = load_element(p.logits, row + e, p.logits_dtype);
        uint64_t key = moe_key(logit, (uint32_t)e);

        if (key < last && key > best)
            best = key;
    }
    return warp_max_key(best);
}

/* A warp a token. */
static __global__ void __launch_bounds__(ROWS_THREADS)
    route_tokens(const gpunvme_moe p, int32_t *chosen, float *weights)
{
    int lane = threadIdx.x % 32;

    for (int64_t t = first_of_warp(); t < p.tokens; t += all_warps()) {
        int64_t row = t * p.ld_logits;
        uint64_t last = UINT64_MAX;
        float most = 0, sum = 0;

        for (int64_t i = 0; i < p.top_k; i++) {
            float logit, share;

            last = next_key(p, row, last);
            logit = load_element(p.logits, row + moe_expert_of(last), p.logits_dtype);
            most = i ? most : logit;
            share = expf(logit - most);
            sum += share;
            if (!lane) {
                chosen[t * p.top_k + i] = moe_expert_of(last);
                weights[t * p.top_k + i] = share;
            }
        }
        if (p.weighting == GPUNVME_MOE_ALL) {
            sum = 0;
            for (int64_t e = lane; e < p.experts; e += 32)
                sum += expf(load_element(p.logits, row + e, p.logits_dtype) - most);
            sum = warp_sum(sum);
        }
        for (int64_t i = 0; i < p.top_k && !lane; i++)
            weights[t * p.top_k + i] /= sum;
    }
}

static __device__ __forceinline__ float operand(const moe_operand &x, int64_t slot, int64_t j,
                                                int dtype)
{
    return load_element(x.data, slot / x.per_token * x.ld + j, dtype);
}

static __global__ void __launch_bounds__(ROWS_THREADS) multiply_elements(const moe_product x)
{
    int64_t step = (int64_t)gridDim.x * ROWS_THREADS, all = x.slots.slots * x.n;

    for (int64_t at = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x; at < all; at += step) {
        int64_t slot = at / x.n, j = at % x.n, expert = x.slots.chosen[slot];
        int64_t b = expert * x.stride_b + (x.transposed ? j * x.ld_b : j);
        float sum = 0;

        if (!is_expert(x.slots, (int32_t)expert))
            continue;
        for (int64_t k = 0; k < x.k; k++)
            sum += operand(x.a, slot, k, x.dtype) *
                   load_element(x.b, b + (x.transposed ? k : k * x.ld_b), x.dtype);
        if (x.accumulate)
            sum += load_element(x.c, at, x.c_dtype);
        store_element(x.c, at, x.c_dtype, sum);
    }
}

static __global__ void __launch_bounds__(ROWS_THREADS) differentiate_elements(const moe_gradient x)
{
    int64_t step = (int64_t)gridDim.x * ROWS_THREADS, all = x.slots.experts * x.m * x.n;

    for (int64_t at = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x; at < all; at += step) {
        int64_t expert = at / (x.m * x.n), i = at / x.n % x.m, j = at % x.n;
        int64_t c = expert * x.stride_c + i * x.ldc + j;
        float sum = x.accumulate ? load_element(x.c, c, x.c_dtype) : 0;

        for (int32_t s = x.slots.starts[expert]; s < x.slots.starts[expert + 1]; s++) {
            int64_t slot = x.slots.order[s];

            sum += operand(x.a, slot, i, x.dtype) * operand(x.b, slot, j, x.dtype);
        }
        store_element(x.c, c, x.c_dtype, sum);
    }
}

static __global__ void __launch_bounds__(ROWS_THREADS) add_slots(const moe_sum x)
{
    int64_t step = (int64_t)gridDim.x * ROWS_THREADS, all = x.tokens * x.cols;

    for (int64_t at = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x; at < all; at += step) {
        int64_t t = at / x.cols, j = at % x.cols;
        float sum = 0;

        for (int64_t slot = t * x.top_k; slot < (t + 1) * x.top_k; slot++)
            if (is_expert(x.slots, x.slots.chosen[slot]))
                sum += (x.weights ? x.weights[slot] : 1) * x.from[slot * x.cols + j];
        store_element(x.y, t * x.ldy + j, x.dtype, sum);
    }
}

/* A warp a slot. */
static __global__ void __launch_bounds__(ROWS_THREADS) find_slopes(const moe_slopes x)
{
    int lane = threadIdx.x % 32;

    for (int64_t slot = first_of_warp(); slot < x.slots.slots; slot += all_warps()) {
        bool chosen = is_expert(x.slots, x.slots.chosen[slot]);
        float weight = x.weights[slot], sum = 0;

        for (int64_t j = lane; j < x.hidden && chosen; j += 32) {
            int64_t at = slot * x.hidden + j;
            float gate = load_element(x.gate, at, x.dtype), up = load_element(x.up, at, x.dtype);
            float q = x.q[at], grad = weight * q;
            float activated = activate(GPUNVME_OPS_ACT_SILU, x.dtype, gate);

            sum += q * activated * up;
            store_element(x.grad_gate, at, x.dtype,
                          grad * up * activate_grad(GPUNVME_OPS_ACT_SILU, x.dtype, gate));
            store_element(x.grad_up, at, x.dtype, grad * activated);
            store_element(x.weighted, at, x.dtype, weight * activated * up);
        }
        sum = warp_sum(sum);
        if (!lane)
            x.grad_weights[slot] = sum;
    }
}

/*
 * A thread a token. With dot = sum of p dp over the chosen, a logit's gradient is p dp - p dot, dp
 * 0 if it is not chosen.
 */
static __global__ void __launch_bounds__(ROWS_THREADS)
    differentiate_logits(const gpunvme_moe_grad p, const float *grad_weights)
{
    int64_t step = (int64_t)gridDim.x * ROWS_THREADS;

    for (int64_t t = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x; t < p.tokens; t += step) {
        const int32_t *chosen = p.chosen + t * p.top_k;
        const float *weights = p.weights + t * p.top_k, *grads = grad_weights + t * p.top_k;
        int64_t row = t * p.ld_logits, to = t * p.ld_grad_logits;
        float dot = 0, most = -INFINITY, sum = 0;

        for (int64_t i = 0; i < p.top_k; i++)
            dot += weights[i] * grads[i];
        for (int64_t e = 0; e < p.experts && p.weighting == GPUNVME_MOE_ALL; e++)
            most = max_or_nan(most, load_element(p.logits, row + e, p.logits_dtype));
        for (int64_t e = 0; e < p.experts && p.weighting == GPUNVME_MOE_ALL; e++)
            sum += expf(load_element(p.logits, row + e, p.logits_dtype) - most);
        for (int64_t e = 0; e < p.experts; e++)
            store_element(p.grad_logits, to + e, p.logits_dtype,
                          p.weighting == GPUNVME_MOE_ALL
                              ? -expf(load_element(p.logits, row + e, p.logits_dtype) - most) /
                                    sum * dot
                              : 0);
        for (int64_t i = 0; i < p.top_k; i++)
            if (chosen[i] >= 0 && chosen[i] < p.experts)
                store_element(p.grad_logits, to + chosen[i], p.logits_dtype,
                              weights[i] * (grads[i] - dot));
    }
}

/* A warp: a lane has the number of an expert's rows, of 32 experts at a time. */
static __global__ void pad_experts(const moe_slots x, int32_t *padded)
{
    int lane = threadIdx.x, before = 0;

    for (int64_t first = 0; first < x.experts; first += 32) {
        int64_t e = first + lane;
        int count = e < x.experts ? x.starts[e + 1] - x.starts[e] : 0, rows, at;

        rows = count ? (count + MOE_STEP - 1) / MOE_STEP * MOE_STEP : MOE_STEP;
        at = rows;
        for (int step = 1; step < 32; step *= 2) {
            int more = __shfl_up_sync(0xffffffffu, at, step);

            at += lane >= step ? more : 0;
        }
        if (e < x.experts)
            padded[e] = before + at - rows;
        if (e == x.experts - 1)
            padded[e + 1] = before + at;
        before += __shfl_sync(0xffffffffu, at, 31);
    }
}

/* The expert that has a copied row. */
static __device__ __forceinline__ int64_t expert_of_row(const moe_slots &x, int64_t row)
{
    int64_t low = 0, high = x.experts - 1;

    while (low < high) {
        int64_t middle = (low + high + 1) / 2;

        if (x.padded[middle] <= row)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* A warp a row, 16 bytes a lane if they are aligned. */
static __global__ void __launch_bounds__(ROWS_THREADS) copy_rows(const moe_rows x, int vectors)
{
    int64_t pitch = moe_pitch(x.cols);

    for (int64_t row = first_of_warp(); row < x.slots.padded[x.slots.experts]; row += all_warps()) {
        int64_t e = expert_of_row(x.slots, row), at = x.slots.starts[e] + row - x.slots.padded[e];
        bool there = at < x.slots.starts[e + 1];
        int64_t from = there ? x.slots.order[at] / x.from.per_token * x.from.ld : 0;
        const uint16_t *elements = (const uint16_t *)x.from.data + from;
        uint16_t *to = (uint16_t *)x.to + row * pitch;

        for (int64_t j = threadIdx.x % 32; vectors && j < x.cols / 8; j += 32)
            ((uint4 *)to)[j] = there ? ((const uint4 *)elements)[j] : make_uint4(0, 0, 0, 0);
        for (int64_t j = threadIdx.x % 32; !vectors && j < x.cols; j += 32)
            to[j] = there ? elements[j] : 0;
    }
}

static unsigned blocks_for(int64_t threads)
{
    return rows_blocks((threads + ROWS_THREADS - 1) / ROWS_THREADS);
}

gpunvme_ops_status_t moe_route(const struct gpunvme_moe *p, int32_t *chosen, float *weights,
                               void *stream)
{
    LAUNCH(route_tokens, blocks_for(p->tokens * 32), ROWS_THREADS, stream, *p, chosen, weights);
    return cuda_status(cudaGetLastError(), "launching a choice of experts");
}

gpunvme_ops_status_t moe_multiply_naive(const struct moe_product *x, void *copies, void *stream)
{
    (void)copies;
    LAUNCH(multiply_elements, blocks_for(x->slots.slots * x->n), ROWS_THREADS, stream, *x);
    return cuda_status(cudaGetLastError(), "launching experts' products");
}

gpunvme_ops_status_t moe_differentiate_naive(const struct moe_gradient *x, void *copies,
                                             void *stream)
{
    (void)copies;
    LAUNCH(differentiate_elements, blocks_for(x->slots.experts * x->m * x->n), ROWS_THREADS, stream,
           *x);
    return cuda_status(cudaGetLastError(), "launching experts' gradients");
}

gpunvme_ops_status_t moe_add_up(const struct moe_sum *x, void *stream)
{
    LAUNCH(add_slots, blocks_for(x->tokens * x->cols), ROWS_THREADS, stream, *x);
    return cuda_status(cudaGetLastError(), "launching sums of experts");
}

gpunvme_ops_status_t moe_find_slopes(const struct moe_slopes *x, void *stream)
{
    LAUNCH(find_slopes, blocks_for(x->slots.slots * 32), ROWS_THREADS, stream, *x);
    return cuda_status(cudaGetLastError(), "launching experts' SwiGLU backward");
}

gpunvme_ops_status_t moe_logits(const struct gpunvme_moe_grad *p, const float *grad_weights,
                                void *stream)
{
    LAUNCH(differentiate_logits, blocks_for(p->tokens), ROWS_THREADS, stream, *p, grad_weights);
    return cuda_status(cudaGetLastError(), "launching gradients of logits");
}

gpunvme_ops_status_t moe_pad(const struct moe_slots *x, int32_t *padded, void *stream)
{
    LAUNCH(pad_experts, 1, 32, stream, *x, padded);
    return cuda_status(cudaGetLastError(), "launching starts of experts");
}

gpunvme_ops_status_t moe_copy(const struct moe_rows *x, void *stream)
{
    int vectors = x->cols % 8 == 0 && rows_by_eight(x->from.data, x->from.ld, GPUNVME_OPS_BF16);

    LAUNCH(copy_rows, blocks_for(moe_padded_rows(&x->slots) * 32), ROWS_THREADS, stream, *x,
           vectors);
    return cuda_status(cudaGetLastError(), "launching a copy of rows");
}
