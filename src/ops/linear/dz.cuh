/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dZ of matrices of 16 bits, eight elements of a row for each lane, as fast as memory is. It knows
 * nothing of who calls: a kernel of its own, or a product's kernel beside it.
 */
#ifndef OPS_LINEAR_DZ_CUH
#define OPS_LINEAR_DZ_CUH

#include "ops/cuda/element.cuh"
#include "ops/linear/dz.h"

/*
 * Rows that a warp beside the product has on their way: enough to be ahead of it, but not so many
 * that the product's own loads wait for memory.
 */
#ifndef DZ_LATER_AT_ONCE
#define DZ_LATER_AT_ONCE 2
#endif

/* Two elements, and the two of the pre-activation: their dZ, which is added to sums, too. */
template <int DTYPE, int ACTIVATION>
static __device__ __forceinline__ uint32_t dz_pair(uint32_t grad, uint32_t preact, float *sums)
{
    float low = from_bits((uint16_t)grad, DTYPE), high = from_bits((uint16_t)(grad >> 16), DTYPE);

    if (ACTIVATION != GPUNVME_OPS_ACT_NONE) {
        low *= fast_activate_grad(ACTIVATION, from_bits((uint16_t)preact, DTYPE));
        high *= fast_activate_grad(ACTIVATION, from_bits((uint16_t)(preact >> 16), DTYPE));
    }
    sums[0] += low;
    sums[1] += high;
    return to_pair(low, high, DTYPE);
}

template <int DTYPE, int ACTIVATION>
static __device__ __forceinline__ uint4 dz_eight(uint4 grad, uint4 preact, float (&sums)[8])
{
    uint4 z;

    z.x = dz_pair<DTYPE, ACTIVATION>(grad.x, preact.x, sums);
    z.y = dz_pair<DTYPE, ACTIVATION>(grad.y, preact.y, sums + 2);
    z.z = dz_pair<DTYPE, ACTIVATION>(grad.z, preact.z, sums + 4);
    z.w = dz_pair<DTYPE, ACTIVATION>(grad.w, preact.w, sums + 6);
    return z;
}

/* Where a lane is in rows of dZ, and how many bytes further the next row is. */
struct dz_place {
    const char *grad, *preact;
    char *dz;
    int64_t grad_step, preact_step, dz_step;
    bool inside; /* else it is beyond the edge: it reads what another lane does, and writes nothing
                  */
};

/* The lane's elements of the next row. What is read here is read only once. */
template <int ACTIVATION>
static __device__ __forceinline__ void dz_load_row(dz_place &at, uint4 &grad, uint4 &preact)
{
    grad = __ldcs((const uint4 *)at.grad);
    at.grad += at.grad_step;
    if (ACTIVATION == GPUNVME_OPS_ACT_NONE)
        return;
    preact = __ldcs((const uint4 *)at.preact);
    at.preact += at.preact_step;
}

template <int DTYPE, int ACTIVATION>
static __device__ __forceinline__ void dz_make_row(dz_place &at, const uint4 &grad,
                                                   const uint4 &preact, float (&sums)[8])
{
    uint4 z = dz_eight<DTYPE, ACTIVATION>(grad, preact, sums);

    if (ACTIVATION == GPUNVME_OPS_ACT_NONE)
        return;
    if (at.inside)
        __stwb((uint4 *)at.dz, z);
    at.dz += at.dz_step;
}

/*
 * A lane's columns j … j + 7 of rows i, i + step, … before `last`: dZ is stored, unless
 * there is no activation and it is grad_y, and added to sums. AT_ONCE rows are on their way: where
 * one has been used, the one so much further is asked for. All lanes of the warp
 * come here, with the same rows.
 */
template <int DTYPE, int ACTIVATION, int AT_ONCE>
static __device__ __forceinline__ void dz_rows_of_lane(const linear_dz &x, int64_t i, int64_t last,
                                                       int step, int64_t j, float (&sums)[8])
{
    uint4 grad[AT_ONCE], preact[AT_ONCE];
    dz_place at;
    int left = (int)((last - i + step - 1) / step);

    at.inside = j < x.out;
    j = at.inside ? j : x.out - 8;
    at.grad = (const char *)x.grad_y + (i * x.ld_grad_y + j) * 2;
    at.preact = (const char *)x.preact + (i * x.ld_preact + j) * 2;
    at.dz = (char *)x.dz + (i * x.ld_dz + j) * 2;
    at.grad_step = step * x.ld_grad_y * 2;
    at.preact_step = step * x.ld_preact * 2;
    at.dz_step = step * x.ld_dz * 2;
    if (left >= AT_ONCE)
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++)
            dz_load_row<ACTIVATION>(at, grad[r], preact[r]);
#pragma unroll 1
    for (; left >= AT_ONCE; left -= AT_ONCE)
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) {
            dz_make_row<DTYPE, ACTIVATION>(at, grad[r], preact[r], sums);
            if (left >= 2 * AT_ONCE)
                dz_load_row<ACTIVATION>(at, grad[r], preact[r]);
        }
#pragma unroll 1
    for (; left > 0; left--) {
        dz_load_row<ACTIVATION>(at, grad[0], preact[0]);
        dz_make_row<DTYPE, ACTIVATION>(at, grad[0], preact[0], sums);
    }
}

/* Likewise, of a warp: a piece of dZ and its sums. */
template <int DTYPE, int AT_ONCE>
static __device__ __forceinline__ void dz_make_piece(const linear_dz &x, const dz_piece &at)
{
    int64_t j = at.col + threadIdx.x % 32 * 8;
    int64_t last = at.row + DZ_PIECE_ROWS < x.rows ? at.row + DZ_PIECE_ROWS : x.rows;
    float sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};

    if (at.col >= x.out || at.row >= last)
        return;
    switch (x.activation) {
    case GPUNVME_OPS_ACT_RELU:
        dz_rows_of_lane<DTYPE, GPUNVME_OPS_ACT_RELU, AT_ONCE>(x, at.row, last, 1, j, sums);
        break;
    case GPUNVME_OPS_ACT_GELU:
        dz_rows_of_lane<DTYPE, GPUNVME_OPS_ACT_GELU, AT_ONCE>(x, at.row, last, 1, j, sums);
        break;
    case GPUNVME_OPS_ACT_GELU_TANH:
        dz_rows_of_lane<DTYPE, GPUNVME_OPS_ACT_GELU_TANH, AT_ONCE>(x, at.row, last, 1, j, sums);
        break;
    default:
        dz_rows_of_lane<DTYPE, GPUNVME_OPS_ACT_SILU, AT_ONCE>(x, at.row, last, 1, j, sums);
    }
    if (x.sums && j < x.out) {
        float *to = x.sums + at.row / DZ_PIECE_ROWS * x.out + j;

        store4(to, 0, GPUNVME_OPS_F32, sums);
        store4(to, 4, GPUNVME_OPS_F32, sums + 4);
    }
}

/*
 * A warp makes pieces, from number `begin` on, until all before `end` are claimed. Each lane has
 * its part of dZ known to the copy engine, and then, when all have, one adds to the flag and
 * releases with it what they wrote.
 */
template <int DTYPE, int AT_ONCE>
static __device__ __forceinline__ void dz_make_pieces(const dz_plan &plan, uint32_t *claimed,
                                                      uint32_t begin, uint32_t end)
{
    int lane = threadIdx.x % 32;

    for (;;) {
        uint32_t mine = lane ? 0 : atomicAdd(claimed, 1u);
        uint32_t index = begin + (uint32_t)__shfl_sync(0xffffffffu, (int)mine, 0);

        if (index >= end)
            return;
        dz_piece at = dz_piece_of(&plan.order, index);

        dz_make_piece<DTYPE, AT_ONCE>(plan.dz, at);
        fence_async_proxy_global();
        __syncwarp();
        if (!lane)
            count_up(plan.counters + DZ_FLAGS + at.flag);
    }
}

/* By warps that will multiply, before they can. */
template <int DTYPE> static __device__ __forceinline__ void dz_make_early(const dz_plan &plan)
{
    dz_make_pieces<DTYPE, 4>(plan, plan.counters + DZ_EARLY, 0, dz_early_pieces(&plan.order));
}

/* By warps that have nothing else to do, from the beginning on. */
template <int DTYPE> static __device__ __forceinline__ void dz_make_later(const dz_plan &plan)
{
    dz_make_pieces<DTYPE, DZ_LATER_AT_ONCE>(plan, plan.counters + DZ_LATER,
                                            dz_early_pieces(&plan.order), dz_pieces(&plan.order));
}

/*
 * A warp that has found no piece left makes the bias's gradient, four columns a lane, as others do:
 * sums are added up from the first rows to the last, whoever does it.
 */
static __device__ __forceinline__ void dz_finish_bias(const dz_plan &plan)
{
    uint32_t lane = threadIdx.x % 32, flags = plan.order.panels * plan.order.chunks;
    int64_t out = plan.dz.out, parts = (plan.dz.rows + DZ_PIECE_ROWS - 1) / DZ_PIECE_ROWS;

    if (!plan.bias.grad)
        return;
    for (uint32_t i = lane; i < flags; i += 32)
        wait_for_count(plan.counters + DZ_FLAGS + i, DZ_PIECES);
    __syncwarp();
    for (;;) {
        uint32_t mine = lane ? 0 : atomicAdd(plan.counters + DZ_BIAS, 1u);
        int64_t col = (int64_t)__shfl_sync(0xffffffffu, (int)mine, 0) * 128, j = col + lane * 4;
        float sum[4] = {0, 0, 0, 0}, more[4];

        if (col >= out)
            return;
        if (j >= out)
            continue;
        if (plan.bias.accumulate)
            for (int c = 0; c < 4; c++)
                sum[c] = load_element(plan.bias.grad, j + c, plan.bias.dtype);
#pragma unroll 8
        for (int64_t part = 0; part < parts; part++) {
            load4(plan.dz.sums, part * out + j, GPUNVME_OPS_F32, more);
            for (int c = 0; c < 4; c++)
                sum[c] += more[c];
        }
        for (int c = 0; c < 4; c++)
            store_element(plan.bias.grad, j + c, plan.bias.dtype, sum[c]);
    }
}

/* Until the copy engine, asked by this thread, may read columns k … of a tile's rows. */
static __device__ __forceinline__ void dz_wait(const dz_plan &plan, int row, int k)
{
    if (k % DZ_CHUNK || row >= plan.dz.rows)
        return;
    wait_for_count(plan.counters + DZ_FLAGS + row / DZ_PANEL * (int)plan.order.chunks +
                       k / DZ_CHUNK,
                   DZ_PIECES);
    fence_async_proxy_global();
}

#endif
