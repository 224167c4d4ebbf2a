/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the rungs for tensor cores share (mma of 16-bit types): tiles of rows in shared memory,
 * their fragments, the softmax of scores in registers, and how results leave.
 *
 * A fragment of 16 x 8 sums has rows lane / 4 and 8 below, and columns lane % 4 * 2 and one on.
 */
#ifndef OPS_ATTENTION_CUDA_MMA_CUH
#define OPS_ATTENTION_CUDA_MMA_CUH

#include "ops/attention/cuda/problem.cuh"
#include "ops/cuda/warp.cuh"

#define MMA_KEYS 64 /* of a tile of K and V */
#define LN_2     0.69314718055994530942f

/*
 * The byte of a tile's rows of D elements where 16 bytes number `chunk` of a row are. ldmatrix
 * reads eight rows at once, which the exclusive or brings to different banks.
 */
template <int D> static __device__ __forceinline__ uint32_t tile_place(int row, int chunk)
{
    return row * (2 * D) + (chunk ^ (row & 7)) * 16;
}

/* A tile's rows in memory: the first of them, how many there are, and their channels. */
struct tile_rows {
    const uint16_t *data;
    int64_t stride;
    int count, dim;
    int vectors;
};

static __device__ __forceinline__ tile_rows keys_from(const cuda_attention &x,
                                                      const cuda_rows &rows, int dim,
                                                      const cuda_sequence &s, int j, int kv_head)
{
    return {(const uint16_t *)rows.data + key_at(x, rows, s, j, kv_head), rows.row, s.k_len - j,
            dim, rows.vectors};
}

static __device__ __forceinline__ tile_rows queries_from(const cuda_attention &x,
                                                         const cuda_sequence &s, int i, int head)
{
    return {(const uint16_t *)x.q.data + query_at(x.q, s, i, head), x.q.row, s.q_len - i, x.dim,
            x.q.vectors};
}

/* How many elements of 16 bytes number `chunk` of a row there are. */
static __device__ __forceinline__ int chunk_valid(const tile_rows &rows, int row, int chunk)
{
    int left = row < rows.count ? rows.dim - chunk * 8 : 0;

    return left < 0 ? 0 : left < 8 ? left : 8;
}

/*
 * Begins to copy a tile, zeros where there is nothing; the caller commits. Rows that are not
 * aligned are there when it returns.
 */
template <int D, int ROWS, int THREADS>
static __device__ __forceinline__ void bring_tile(uint32_t tile, const tile_rows &rows)
{
    const int chunks = D / 8, step = THREADS / chunks;
    int chunk = threadIdx.x % chunks, row = threadIdx.x / chunks;

    if (rows.vectors) {
        const uint16_t *from = rows.data + row * rows.stride + chunk * 8;
#pragma unroll
        for (int i = 0; i < ROWS / step; i++) {
            int valid = chunk_valid(rows, row + i * step, chunk);

            cp_async16(tile + tile_place<D>(row + i * step, chunk),
                       valid ? from + i * step * rows.stride : rows.data, valid * 2);
        }
        return;
    }
#pragma unroll 1
    for (int i = 0; i < ROWS / step; i++) {
        int valid = chunk_valid(rows, row + i * step, chunk);

        gather16(tile + tile_place<D>(row + i * step, chunk),
                 rows.data + (row + i * step) * rows.stride + chunk * 8, valid);
    }
}

/* The same for keys from j on in pages; their rows are at multiples of 16 bytes. */
template <int D, int ROWS, int THREADS>
static __device__ __forceinline__ void bring_pages(uint32_t tile, const cuda_attention &x,
                                                   const cuda_rows &rows, int dim,
                                                   const cuda_sequence &s, int j, int kv_head)
{
    int chunk = threadIdx.x % (D / 8);
    const uint16_t *data = (const uint16_t *)rows.data;
    tile_rows here = {data, 0, s.k_len - j, dim, true};

#pragma unroll 2
    for (int row = threadIdx.x / (D / 8); row < ROWS; row += THREADS / (D / 8)) {
        int valid = chunk_valid(here, row, chunk);

        cp_async16(tile + tile_place<D>(row, chunk),
                   valid ? data + key_at(x, rows, s, j + row, kv_head) + chunk * 8 : data,
                   valid * 2);
    }
}

/* The same for rows that are turned on their way, by tables: row r as at `position` + r. */
template <int D, int ROWS, int THREADS>
static __device__ __forceinline__ void bring_turned(uint32_t tile, const tile_rows &rows,
                                                    const cuda_rope &rope, int dtype, int position)
{
#pragma unroll 1
    for (int e = threadIdx.x; e < ROWS * (D / 8); e += THREADS) {
        int row = e / (D / 8), chunk = e % (D / 8), valid = chunk_valid(rows, row, chunk);
        uint32_t pairs[4];
        float z[8];

#pragma unroll
        for (int c = 0; c < 8; c++)
            z[c] = c < valid ? load_turned<true>(rows.data, row * rows.stride, chunk * 8 + c, dtype,
                                                 rope, position + row)
                             : 0;
#pragma unroll
        for (int c = 0; c < 4; c++)
            pairs[c] = to_pair(z[2 * c], z[2 * c + 1], dtype);
        store_shared16(tile + tile_place<D>(row, chunk), pairs);
    }
}

/* The tile of queries from i on. */
template <int D, int ROWS, int THREADS>
static __device__ __forceinline__ void bring_queries(uint32_t tile, const cuda_attention &x,
                                                     const cuda_sequence &s, int i, int head)
{
    tile_rows rows = queries_from(x, s, i, head);

    if (x.rope.dim)
        bring_turned<D, ROWS, THREADS>(tile, rows, x.rope, x.dtype, turned_position(s, i));
    else
        bring_tile<D, ROWS, THREADS>(tile, rows);
}

/* 16 x 16 of rows from `row` on and of the 16 bytes numbers `chunk` and one on, as mma's A. */
template <int D>
static __device__ __forceinline__ void take_rows(uint32_t (&a)[4], uint32_t tile, int row,
                                                 int chunk)
{
    int lane = threadIdx.x % 32;

    load_matrices(a, tile + tile_place<D>(row + lane % 16, chunk + lane / 16));
}

/* Likewise the transpose of 16 keys, as two of mma's B: b[0], b[1] for the first 8 of them. */
template <int D>
static __device__ __forceinline__ void take_keys(uint32_t (&b)[4], uint32_t tile, int row,
                                                 int chunk)
{
    int lane = threadIdx.x % 32;

    load_matrices(b, tile + tile_place<D>(row + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2));
}

/* 16 values, as two of B: b[0], b[1] for the first 8 channels. */
template <int D>
static __device__ __forceinline__ void take_values(uint32_t (&b)[4], uint32_t tile, int row,
                                                   int chunk)
{
    int lane = threadIdx.x % 32;

    load_matrices_transposed(
        b, tile + tile_place<D>(row + lane % 8 + lane / 8 % 2 * 8, chunk + lane / 16));
}

template <int DTYPE>
static __device__ __forceinline__ void mma16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1)
{
    if (DTYPE == GPUNVME_OPS_F16)
        mma_f16(d, a, b0, b1);
    else
        mma_bf16(d, a, b0, b1);
}

/* What products are multiplied by to be scores in units of log 2, unless prepare() made them so. */
static __device__ __forceinline__ bool needs_preparing(const cuda_attention &x)
{
    return x.softcap > 0 || x.scale < 0;
}

static __device__ __forceinline__ float unit_of(const cuda_attention &x)
{
    return needs_preparing(x) ? 1 : x.scale * LOG2_E;
}

/* tanh y = 1 - 2 / (1 + exp(2 y)); off by 2^-22 of 1. */
static __device__ __forceinline__ float prepared(const cuda_attention &x, float product)
{
    float s = x.scale * product;

    if (x.softcap > 0)
        s = x.softcap * (1 - 2 * fast_reciprocal(1 + fast_exp2(2 * LOG2_E * s / x.softcap)));
    return LOG2_E * s;
}

/* The keys of a row relative to a tile's first; and what of a fragment's it does not see. */
static __device__ __forceinline__ void mask_row(float &s0, float &s1, const cuda_range &keys, int j)
{
    s0 = sees(keys, j) ? s0 : -INFINITY;
    s1 = sees(keys, j + 1) ? s1 : -INFINITY;
}

/* The largest score so far, in products' units, as what is subtracted: of -infinity, nothing. */
static __device__ __forceinline__ float shift_of(float most)
{
    return most == -INFINITY ? 0 : most;
}

/* A row's results: what its sums are multiplied by, and its lse. */
struct row_result {
    float scale, lse;
};

/* `most` in units of log 2; `weight` is relative to it. A sink is a key without a value. */
static __device__ __forceinline__ row_result result_of(const cuda_attention &x, int head,
                                                       float most, float weight)
{
    float sink = sink_of(x, head) * LOG2_E, top = sink > most ? sink : most;
    float shift = shift_of(top), share = exp2f(most - shift);
    float sum = weight * share + exp2f(sink - shift);

    return {sum == 0 ? 0 : share / sum, (shift + log2f(sum)) * LN_2};
}

/* Two neighbouring channels of a row that begins at `at`. */
static __device__ __forceinline__ void store_two(const cuda_attention &x, int64_t at, int col,
                                                 float z0, float z1)
{
    if (col + 1 < x.dim_v && x.out.vectors) {
        if (x.out_dtype == GPUNVME_OPS_F32)
            *(float2 *)((float *)x.out.data + at + col) = make_float2(z0, z1);
        else
            *(uint32_t *)((uint16_t *)x.out.data + at + col) = to_pair(z0, z1, x.out_dtype);
        return;
    }
    if (col < x.dim_v)
        store_element(x.out.data, at + col, x.out_dtype, z0);
    if (col + 1 < x.dim_v)
        store_element(x.out.data, at + col + 1, x.out_dtype, z1);
}

#endif
