/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the rungs of attention backwards by mma share: tiles in shared memory, their products, and
 * the weights of a tile. A block has 64 keys, and 64 queries at a time.
 *
 * Tiles are columns of 64 channels, rows of 128 bytes, swizzled as ops/hopper/tile.h has it.
 */
#ifndef OPS_ATTENTION_CUDA_MMA_BACKWARD_CUH
#define OPS_ATTENTION_CUDA_MMA_BACKWARD_CUH

#include "ops/attention/cuda/backward.cuh"
#include "ops/hopper/tile.h"

#define KEYS    64
#define QUERIES 64

/* Addresses in shared memory; `p` only where there are two tiles of weights. */
struct tiles {
    uint32_t k, v, q, grad_out, ds, p, lse2, delta;
};

template <int WIDTH, int WEIGHTS> static __host__ __device__ constexpr int tiles_nbytes()
{
    return 4 * 64 * WIDTH * 2 + WEIGHTS * KEYS * QUERIES * 2 + 2 * QUERIES * 4 + 128;
}

template <int WIDTH, int WEIGHTS> static __device__ __forceinline__ tiles lay_out(void)
{
    const int nbytes = 64 * WIDTH * 2;
    tiles t;

    t.k = (shared_address(dynamic_shared()) + 127) & ~127u;
    t.v = t.k + nbytes;
    t.q = t.v + nbytes;
    t.grad_out = t.q + nbytes;
    t.ds = t.grad_out + nbytes;
    t.p = t.ds + KEYS * QUERIES * 2;
    t.lse2 = t.ds + WEIGHTS * KEYS * QUERIES * 2;
    t.delta = t.lse2 + QUERIES * 4;
    return t;
}

/* Where 16 bytes number `chunk` of a row of 64 are. */
static __device__ __forceinline__ uint32_t place(uint32_t tile, int row, int chunk)
{
    return tile + chunk / 8 * HOPPER_BLOCK + hopper_swizzle(row, chunk % 8 * 16);
}

/* 64 rows from row `first` on; zeros for rows and channels that are not there. */
template <int WIDTH, int THREADS>
static __device__ __forceinline__ void bring(uint32_t to, const uint16_t *rows, int64_t ld,
                                             int first, int len, int channels)
{
    const int chunks = WIDTH / 8, at_once = THREADS / chunks;
    int chunk = threadIdx.x % chunks, valid = (channels - chunk * 8) * 2;

    valid = valid < 0 ? 0 : valid < 16 ? valid : 16;
#pragma unroll
    for (int row = 0; row < 64; row += at_once) {
        int i = first + row + (int)threadIdx.x / chunks;
        bool there = i < len && valid;

        cp_async16(place(to, row + threadIdx.x / chunks, chunk),
                   there ? rows + i * ld + chunk * 8 : rows, there ? valid : 0);
    }
}

template <int DTYPE>
static __device__ __forceinline__ void mma(float *sums, const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1)
{
    float(&d)[4] = *(float(*)[4])sums;

    if (DTYPE == GPUNVME_OPS_F16)
        mma_f16(d, a, b0, b1);
    else
        mma_bf16(d, a, b0, b1);
}

/* sums = X Y^T: 16 rows of X from `row` on by 64 of Y, both WIDTH channels wide. */
template <int DTYPE, int WIDTH>
static __device__ __forceinline__ void multiply_rows(float (&sums)[32], uint32_t x, int row,
                                                     uint32_t y)
{
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < 32; i++)
        sums[i] = 0;
#pragma unroll 4
    for (int k = 0; k < WIDTH / 16; k++) {
        uint32_t a[4], b[4];

        load_matrices(a, place(x, row + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int n = 0; n < 4; n++) {
            load_matrices(b, place(y, 16 * n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
            mma<DTYPE>(sums + 8 * n, a, b[0], b[1]);
            mma<DTYPE>(sums + 8 * n + 4, a, b[2], b[3]);
        }
    }
}

/* 16 of k: sums += A B, B rows 16 k … of a tile, columns from 8 * chunk on. */
template <int DTYPE, int COUNT>
static __device__ __forceinline__ void
multiply_columns(float (&sums)[COUNT], const uint32_t (&a)[4], uint32_t y, int k, int chunk)
{
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int n = 0; n < COUNT / 8; n++) {
        uint32_t b[4];

        load_matrices_transposed(b, place(y, 16 * k + lane % 16, chunk + 2 * n + lane / 16));
        mma<DTYPE>(sums + 8 * n, a, b[0], b[1]);
        mma<DTYPE>(sums + 8 * n + 4, a, b[2], b[3]);
    }
}

/* This warp's dS^T, for all. */
static __device__ __forceinline__ void show(uint32_t ds, int row, const uint32_t (&fragments)[4][4])
{
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            store_shared4(place(ds, row + lane / 4 + k % 2 * 8, 2 * i + k / 2) + lane % 4 * 4,
                          fragments[i][k]);
}

template <int WIDTH, int THREADS>
static __device__ __forceinline__ void bring_queries(const cuda_backward &x, const tiles &t,
                                                     const walk &w)
{
    int query = w.tile * QUERIES;
    int64_t row = w.head * x.q_room + query_room(x, w.b) + query;

    bring<WIDTH, THREADS>(t.q, tile_rows(x, BACKWARD_Q, w.s, w.b, w.head),
                          x.operands[BACKWARD_Q].rows.row, query, w.s.q_len,
                          tile_channels(x, BACKWARD_Q));
    bring<WIDTH, THREADS>(t.grad_out, tile_rows(x, BACKWARD_GRAD_OUT, w.s, w.b, w.head),
                          x.operands[BACKWARD_GRAD_OUT].rows.row, query, w.s.q_len,
                          tile_channels(x, BACKWARD_GRAD_OUT));
    if (threadIdx.x < 32) {
        int four = threadIdx.x % 16 * 4;

        cp_async16((threadIdx.x < 16 ? t.lse2 : t.delta) + four * 4,
                   (threadIdx.x < 16 ? x.lse2 : x.delta) + row + four, 16);
    }
    cp_async_commit();
}

template <int WIDTH, int THREADS>
static __device__ __forceinline__ void bring_keys(const cuda_backward &x, const tiles &t,
                                                  const walk &w)
{
    bring<WIDTH, THREADS>(t.k, tile_rows(x, BACKWARD_K, w.s, w.b, w.kv_head),
                          x.operands[BACKWARD_K].rows.row, w.key, w.s.k_len,
                          tile_channels(x, BACKWARD_K));
    bring<WIDTH, THREADS>(t.v, tile_rows(x, BACKWARD_V, w.s, w.b, w.kv_head),
                          x.operands[BACKWARD_V].rows.row, w.key, w.s.k_len,
                          tile_channels(x, BACKWARD_V));
}

/*
 * A warp's 16 keys from `row` on: the scores of a tile of queries become P^T, and dP^T - D comes to
 * `grads`, with softcap multiplied by its slope.
 */
template <int DTYPE, int WIDTH>
static __device__ __forceinline__ void make_weights(const cuda_backward &x, const tiles &t,
                                                    const walk &w, int row, float (&p)[32],
                                                    float (&grads)[32])
{
    int lane = threadIdx.x % 32, query = w.tile * QUERIES;
    tile_place place = {w.key + row + lane / 4, query + lane % 4 * 2,
                        tile_masked(x, w.s, w.key, KEYS, query, QUERIES)};

    multiply_rows<DTYPE, WIDTH>(p, t.k, row, t.q);
    multiply_rows<DTYPE, WIDTH>(grads, t.v, row, t.grad_out);
    subtract_deltas(grads, t.delta + lane % 4 * 8);
    if (x.f.softcap > 0)
        cap(x, p, grads);
    weigh(x, w.s, p, place, t.lse2 + lane % 4 * 8);
}

#endif
