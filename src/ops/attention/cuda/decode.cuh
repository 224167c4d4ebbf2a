/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Decoding from pages: how tiles of keys are shared among blocks, and what softmax leaves to be
 * combined.
 *
 * The tiles of all sequences and heads of K have numbers: sequence after sequence, in those head
 * after head, in those along the keys. Each block takes as many tiles that follow each other, so no
 * length makes one block work longer than others. A head's tiles that several blocks share are a
 * *split* one: each of these leaves a part, which decode_combine.cuh and mla_combine.cuh combine. A
 * block has at most two parts: of the head that the block before began, and of the one that it
 * leaves to the next. Lengths are read by the kernels alone.
 */
#ifndef OPS_ATTENTION_CUDA_DECODE_CUH
#define OPS_ATTENTION_CUDA_DECODE_CUH

#include "ops/attention/cuda/decode.h"
#include "ops/attention/cuda/problem.cuh"

#define LN_2      0.693147180559945309417f
#define ALL_LANES 0xffffffffu

struct decode_work {
    cuda_attention x;
    float *parts;
    uint64_t *arrivals; /* of each block, at the head that it begins: see arrive() */
    int64_t part;       /* floats of one */
    int blocks;
    float scale2; /* scores times log2(e): all that follows is in powers of 2 */
    uint64_t tag; /* of this call, see arrive() */
};

/*
 * Before the kernels before have ended: lengths and the block table, a line a thread, to the L2
 * cache. Looking up the first key takes one trip to memory less then. A kernel that is about to
 * write them does so in that cache.
 */
static __device__ __forceinline__ void prefetch_lookups(const cuda_attention &x)
{
    int64_t line = (int64_t)threadIdx.x * gridDim.x + blockIdx.x;
    int64_t pages = ((int64_t)x.k_len + x.page_size - 1) / x.page_size;
    int64_t tables = ((x.batch - 1) * x.ld_table + pages + 31) / 32, lengths = (x.batch + 31) / 32;

    if (!pages)
        return;
    if (line < lengths)
        prefetch_line(x.k_lengths + line * 32);
    else if (line < lengths + tables)
        prefetch_line(x.table + (line - lengths) * 32);
}

/* What of a sequence its queries see. */
struct extent {
    cuda_sequence s;
    int rows;        /* queries times heads that share one of K */
    cuda_range keys; /* that any query sees */
    int tile, tiles; /* the first, and how many: at least one, to write results without keys */
};

template <int TILE = DECODE_TILE>
static __device__ __forceinline__ extent extent_in(const cuda_attention &x, const cuda_sequence &s)
{
    extent e = {s, 0, {0, 0}, 0, 0};
    int end;

    e.rows = e.s.q_len * x.group;
    if (!e.rows)
        return e;
    e.keys = {keys_of(x, e.s, 0).first, keys_of(x, e.s, e.s.q_len - 1).end};
    e.tile = e.keys.first / TILE;
    end = e.keys.end > 0 ? (e.keys.end + TILE - 1) / TILE : 0;
    e.tiles = end > e.tile ? end - e.tile : 1;
    return e;
}

template <int TILE = DECODE_TILE>
static __device__ __forceinline__ extent extent_of(const cuda_attention &x, int b)
{
    return extent_in<TILE>(x, sequence_of(x, b));
}

/* A sequence, and the number of its first tile. */
struct place {
    int b;
    int64_t first;
};

/* Tiles of a head; its end counts as END of them. */
template <int END> static __device__ __forceinline__ int tiles_of_head(const extent &e)
{
    return e.tiles ? e.tiles + END : 0;
}

/* The one that has a tile. If none has, b is the batch, and `first` how many tiles there are. */
template <int TILE = DECODE_TILE, int END = 0>
static __device__ __noinline__ place place_of(const cuda_attention &x, int64_t tile)
{
    int lane = threadIdx.x % 32;
    int64_t before = 0;

    for (int base = 0; base < x.batch; base += 32) {
        int n = 0, sum;

        if (base + lane < x.batch)
            n = tiles_of_head<END>(extent_of<TILE>(x, base + lane)) * x.kv_heads;
        sum = n;

#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            int other = __shfl_up_sync(ALL_LANES, sum, step);

            sum += lane >= step ? other : 0;
        }
        int all = __shfl_sync(ALL_LANES, sum, 31);
        if (tile < before + all) {
            int found = __popc(__ballot_sync(ALL_LANES, before + sum <= tile));

            return {base + found, before + __shfl_sync(ALL_LANES, sum - n, found)};
        }
        before += all;
    }
    return {x.batch, before};
}

/* How tiles are shared among at most as many blocks as there are tiles. */
struct shares {
    int64_t tiles, blocks;
};

template <int TILE = DECODE_TILE>
static __device__ __forceinline__ shares shares_of(const decode_work &w)
{
    int64_t tiles = place_of<TILE>(w.x, INT64_MAX).first;

    return {tiles, tiles < w.blocks ? tiles : w.blocks};
}

/* The first tile of a block, and the block of a tile. */
static __device__ __forceinline__ int64_t share_begin(const shares &s, int64_t block)
{
    return s.tiles * block / s.blocks;
}

static __device__ __forceinline__ int share_of(const shares &s, int64_t tile)
{
    return (int)(((tile + 1) * s.blocks + s.tiles - 1) / s.tiles - 1);
}

/* A tile that a block walks to, of its head and sequence. */
struct cursor {
    extent e;
    int b, head, tile;
};

template <int TILE = DECODE_TILE, int END = 0>
static __device__ __forceinline__ cursor cursor_at(const cuda_attention &x, int64_t tile)
{
    place p = place_of<TILE, END>(x, tile);
    cursor c = {extent_of<TILE>(x, p.b), p.b, 0, 0};

    c.head = (int)((tile - p.first) / (c.e.tiles + END));
    c.tile = (int)((tile - p.first) % (c.e.tiles + END));
    return c;
}

/* By no more tiles than the head has; to the batch's end if there is nothing more. */
template <int TILE = DECODE_TILE>
static __device__ __forceinline__ void advance(const cuda_attention &x, cursor &c, int tiles)
{
    c.tile += tiles;
    if (c.tile < c.e.tiles)
        return;
    c.tile = 0;
    if (++c.head < x.kv_heads)
        return;
    c.head = 0;
    do {
        if (++c.b >= x.batch)
            return;
        c.e = extent_of<TILE>(x, c.b);
    } while (!c.e.tiles);
}

/* A part: the sums of rows, relative to each row's largest score, which follow; and their weight.
 */
struct part {
    float *sums, *most, *total;
};

static __device__ __forceinline__ part part_of(const decode_work &w, int block, bool begins)
{
    int64_t rows = (int64_t)w.x.q_len * w.x.group;
    float *sums = w.parts + ((int64_t)block * 2 + begins) * w.part;

    return {sums, sums + rows * w.x.dim_v, sums + rows * (w.x.dim_v + 1)};
}

/* Row r of a head of K: which query and head of Q that is. */
static __device__ __forceinline__ int query_of(const cuda_attention &x, int r)
{
    return r / x.group;
}

static __device__ __forceinline__ int head_of(const cuda_attention &x, int kv_head, int r)
{
    return kv_head * x.group + r % x.group;
}

/* Largest scores may be -infinity; of two of those there is no difference. */
static __device__ __forceinline__ float shift_of(float most)
{
    return most == -INFINITY ? 0 : most;
}

/* What a row's sums are multiplied by in the end, and its lse. */
struct row_end {
    float factor, lse;
};

static __device__ __forceinline__ row_end end_row(const cuda_attention &x, int head, float most,
                                                  float total)
{
    float sink = sink_of(x, head) * LOG2_E, top = max_or_nan(most, sink), shift = shift_of(top);
    float sum = total * fast_exp2(most - shift) + fast_exp2(sink - shift);

    if (top == -INFINITY)
        return {0, -INFINITY};
    return {fast_exp2(most - shift) / sum, shift * LN_2 + logf(sum)};
}

/* Where a row of the result begins. */
static __device__ __forceinline__ int64_t out_at(const cuda_attention &x, const cuda_sequence &s,
                                                 int kv_head, int r)
{
    return query_at(x.out, s, query_of(x, r), head_of(x, kv_head, r));
}

static __device__ __forceinline__ void store_lse(const cuda_attention &x, const cuda_sequence &s,
                                                 int kv_head, int r, float lse)
{
    if (x.lse.data)
        ((float *)x.lse.data)[query_at(x.lse, s, query_of(x, r), head_of(x, kv_head, r))] = lse;
}

#endif
