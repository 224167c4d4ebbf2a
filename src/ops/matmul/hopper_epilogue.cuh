/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How sums of the rung "hopper" become elements of C.
 */
#ifndef OPS_MATMUL_HOPPER_EPILOGUE_CUH
#define OPS_MATMUL_HOPPER_EPILOGUE_CUH

#include "ops/hopper/loop.cuh"
#include "ops/matmul/finish.cuh"
#include "ops/matmul/hopper.h"

#ifdef HAVE_HOPPER
/*
 * Bits of two neighbours of the bias for each eight columns, asked for while others multiply; zeros
 * if sums do not begin with it.
 */
template <int TILE_N> struct hopper_bias {
    uint32_t pairs[TILE_N / 8];
};

template <int TILE_N>
static __device__ __forceinline__ void ask_for_bias(hopper_bias<TILE_N> &bias,
                                                    const hopper_work &work, int64_t col)
{
    const uint16_t *from = (const uint16_t *)work.product.bias;
    int64_t first = col + threadIdx.x % 4 * 2;

#pragma unroll
    for (int i = 0; i < TILE_N / 8; i++)
        bias.pairs[i] = work.begins_with_bias && first + i * 8 < work.product.n
                            ? *(const uint32_t *)(from + first + i * 8)
                            : 0;
}

/* Sums begin with the bias: it costs no addition. */
template <int DTYPE, int TILE_N>
static __device__ __forceinline__ void begin_with_bias(float (&sums)[TILE_N / 2],
                                                       const hopper_bias<TILE_N> &bias)
{
#pragma unroll
    for (int i = 0; i < TILE_N / 8; i++) {
        sums[4 * i] = sums[4 * i + 2] = from_bits((uint16_t)bias.pairs[i], DTYPE);
        sums[4 * i + 1] = sums[4 * i + 3] = from_bits((uint16_t)(bias.pairs[i] >> 16), DTYPE);
    }
}

/*
 * The copy engine takes 64 x 64 results of 16 bits from one of two buffers, while the other is
 * filled. Lane l names row l % 16 of its warp's, and the left or right of two 16 bytes.
 */
static __device__ __forceinline__ void send_block(const CUtensorMap &map, uint32_t buffer,
                                                  const uint32_t (&pairs)[16], int group, int x,
                                                  int y, int z)
{
    int thread = threadIdx.x % 128, lane = thread % 32;
    uint32_t line = thread / 32 * 16 + lane % 16;

    if (!thread)
        tensor_store_wait_read<1>();
    barrier_128(1 + group);
#pragma unroll
    for (int i = 0; i < 4; i++)
        store_matrices(buffer + hopper_swizzle(line, (uint32_t)(2 * i + lane / 16) * 16),
                       {pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2], pairs[4 * i + 3]});
    fence_async_proxy();
    barrier_128(1 + group);
    if (!thread) {
        tensor_store(&map, buffer, x, y, z);
        tensor_store_commit();
    }
}

/*
 * 64 rows go out by the copy engine, with what a linear layer wants of them on the way; alpha is 1
 * there.
 */
template <int DTYPE, int ACTIVATION, int COUNT>
static __device__ __forceinline__ void copy_out(const hopper_work &work, uint32_t out,
                                                const float (&sums)[COUNT], int64_t batch, int row,
                                                int col, int group)
{
    float alpha = ACTIVATION == GPUNVME_OPS_ACT_NONE ? work.product.alpha : 1;
    int sent = 0;

#pragma unroll
    for (int part = 0; part < COUNT / 32; part++) {
        const float *x = &sums[part * 32];
        int at = col + part * 64;
        uint32_t pairs[16];

        if (work.product.preact) {
#pragma unroll
            for (int i = 0; i < 16; i++)
                pairs[i] = to_pair(alpha * x[2 * i], alpha * x[2 * i + 1], DTYPE);
            send_block(work.preact, out + sent++ % 2 * HOPPER_BLOCK, pairs, group, at, row, 0);
        }
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float y[2] = {alpha * x[2 * i], alpha * x[2 * i + 1]};

            activate_pair<ACTIVATION>(y);
            pairs[i] = to_pair(y[0], y[1], DTYPE);
        }
        send_block(work.c, out + sent++ % 2 * HOPPER_BLOCK, pairs, group, at, row, (int)batch);
    }
}

/* The activation is chosen once for a tile. Operands of linear layers are contiguous along k. */
template <int DTYPE, int MN, int COUNT>
static __device__ __forceinline__ void copy_out_any(const hopper_work &work, uint32_t out,
                                                    const float (&sums)[COUNT], int64_t batch,
                                                    int row, int col, int group)
{
    int activation = MN ? GPUNVME_OPS_ACT_NONE : work.product.activation;

    if (activation == GPUNVME_OPS_ACT_NONE)
        copy_out<DTYPE, GPUNVME_OPS_ACT_NONE>(work, out, sums, batch, row, col, group);
    else if (activation == GPUNVME_OPS_ACT_RELU)
        copy_out<DTYPE, GPUNVME_OPS_ACT_RELU>(work, out, sums, batch, row, col, group);
    else if (activation == GPUNVME_OPS_ACT_GELU)
        copy_out<DTYPE, GPUNVME_OPS_ACT_GELU>(work, out, sums, batch, row, col, group);
    else if (activation == GPUNVME_OPS_ACT_GELU_TANH)
        copy_out<DTYPE, GPUNVME_OPS_ACT_GELU_TANH>(work, out, sums, batch, row, col, group);
    else
        copy_out<DTYPE, GPUNVME_OPS_ACT_SILU>(work, out, sums, batch, row, col, group);
}

/*
 * Likewise by threads, for what the copy engine can't do: other types, beta, rows that are not
 * aligned. 64 x 64 sums at a time go through shared memory, so that threads have neighbours.
 */
template <int COUNT>
static __device__ __forceinline__ void write_out(const hopper_work &work, float *out,
                                                 const float (&sums)[COUNT], int64_t batch,
                                                 int64_t row, int64_t col, int group)
{
    const cuda_product &p = work.product;
    int thread = threadIdx.x % 128, lane = thread % 32, line = thread / 32 * 16 + lane / 4;

#pragma unroll
    for (int part = 0; part < COUNT / 32; part++) {
        barrier_128(1 + group);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            uint32_t r = line + i % 2 * 8, c = i / 2 * 2 + lane % 4 / 2;

            *(float2 *)(out + hopper_result_place(r, c) + lane % 2 * 2) =
                make_float2(sums[part * 32 + 2 * i], sums[part * 32 + 2 * i + 1]);
        }
        barrier_128(1 + group);
#pragma unroll 1
        for (int v = thread; v < 64 * 16; v += 128) {
            int r = v / 16, c = v % 16;

            if (row + r < p.m && col + part * 64 + c * 4 < p.n)
                finish4_aligned(p, batch, row + r, col + part * 64 + c * 4,
                                out + hopper_result_place((uint32_t)r, (uint32_t)c));
        }
    }
}

/*
 * What becomes of 16-bit products. MN: an operand lies along m or n. Whether sums begin with the
 * bias is known to the compiler: sums that begin so only sometimes make it serialize wgmma (C7515).
 */
template <int DTYPE, int MN, int TILE_N> struct hopper_epilogue {
    enum { BEGINS = !MN };
    const hopper_work &work;
    uint32_t out;
    float *floats;
    int group;
    hopper_bias<TILE_N> bias;

    __device__ __forceinline__ hopper_epilogue(const hopper_work &x, const ring &mem,
                                               unsigned char *dynamic, int of_group)
        : work(x), out(mem.out + of_group * HOPPER_OUT_NBYTES),
          floats((float *)(dynamic + (out - shared_address(dynamic)))), group(of_group)
    {
    }
    __device__ __forceinline__ void expect(const hopper_place &at)
    {
        if (BEGINS)
            ask_for_bias(bias, work, at.col);
    }
    __device__ __forceinline__ void begin(float (&sums)[TILE_N / 2])
    {
        if (BEGINS)
            begin_with_bias<DTYPE, TILE_N>(sums, bias);
    }
    __device__ __forceinline__ void end(const float (&sums)[TILE_N / 2], const hopper_place &at,
                                        int64_t row)
    {
        if (work.copies_out)
            copy_out_any<DTYPE, MN>(work, out, sums, at.batch, (int)row, (int)at.col, group);
        else
            write_out(work, floats, sums, at.batch, row, at.col, group);
    }
    __device__ __forceinline__ void finish()
    {
        if (work.copies_out && threadIdx.x % 128 == 0)
            tensor_store_wait_read<0>();
    }
};
#endif

#endif
