/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What the kernels of attention backwards share: where rows are in the workspace.
 */
#ifndef OPS_ATTENTION_CUDA_BACKWARD_CUH
#define OPS_ATTENTION_CUDA_BACKWARD_CUH

#include "ops/attention/cuda/backward.h"
#include "ops/attention/cuda/problem.cuh"

/* So many rows, and those that fill up its last tile. */
static __device__ __forceinline__ int padded(int rows)
{
    return (rows + CUDA_BACKWARD_ALIGN - 1) / CUDA_BACKWARD_ALIGN * CUDA_BACKWARD_ALIGN;
}

/* Where sequence b's rows begin among those of a head in the workspace. */
static __device__ __forceinline__ int64_t room_of(const int32_t *offsets, int most, int b)
{
    if (offsets)
        return ((int64_t)offsets[b] / CUDA_BACKWARD_ALIGN + b) * CUDA_BACKWARD_ALIGN;
    return (int64_t)padded(most) * b;
}

static __device__ __forceinline__ int64_t query_room(const cuda_backward &x, int b)
{
    return room_of(x.f.q_offsets, x.f.q_len, b);
}

static __device__ __forceinline__ int64_t key_room(const cuda_backward &x, int b)
{
    return room_of(x.f.k_offsets, x.f.k_len, b);
}

/*
 * Where the sum of a row (of a head's in the workspace) and a channel is: pieces of 64 x 64, in
 * which each thread of four warps that made them by mma or wgmma has four floats after another:
 * rows r and r + 8, channels c and c + 1.
 */
static __device__ __forceinline__ int64_t sum_place(int width, int64_t row, int c)
{
    int64_t piece =
        row / CUDA_BACKWARD_PIECE * (width / CUDA_BACKWARD_PIECE) + c / CUDA_BACKWARD_PIECE;
    int r = (int)(row % CUDA_BACKWARD_PIECE), eight = c % CUDA_BACKWARD_PIECE / 8;
    int thread = r / 16 * 32 + r % 8 * 4 + c % 8 / 2;

    return piece * CUDA_BACKWARD_PIECE * CUDA_BACKWARD_PIECE + (eight * 128 + thread) * 4 +
           r % 16 / 8 * 2 + c % 2;
}

/* Row 0 of a sequence and head. */
static __device__ __forceinline__ const uint16_t *tile_rows(const cuda_backward &x, int which,
                                                            const cuda_sequence &s, int b, int head)
{
    const cuda_backward_rows &from = x.operands[which];
    bool keys = which == BACKWARD_K || which == BACKWARD_V;
    int64_t at;

    if (from.copied)
        at = head * from.rows.head + (keys ? key_room(x, b) : query_room(x, b)) * from.rows.row;
    else
        at = keys ? key_at(x.f, from.rows, s, 0, head) : query_at(from.rows, s, 0, head);
    return (const uint16_t *)from.rows.data + at;
}

/* Channels of an operand's rows as they are loaded. */
static __device__ __forceinline__ int tile_channels(const cuda_backward &x, int which)
{
    if (x.operands[which].copied)
        return x.width;
    return which == BACKWARD_Q || which == BACKWARD_K ? x.f.dim : x.f.dim_v;
}

/* Element c of row i of an operand, as products see it. */
static __device__ __forceinline__ float operand_at(const cuda_backward &x, int which,
                                                   const cuda_sequence &s, int i, int head, int c)
{
    switch (which) {
    case BACKWARD_Q:
        return load_q(x.f, s, i, query_at(x.f.q, s, i, head), c);
    case BACKWARD_K:
        return load_k(x.f, i, key_at(x.f, x.f.k, s, i, head), c);
    case BACKWARD_V:
        return load_element(x.f.v.data, key_at(x.f, x.f.v, s, i, head) + c, x.f.dtype);
    default:
        return load_element(x.grad_out.data, query_at(x.grad_out, s, i, head) + c, x.f.out_dtype);
    }
}

/* Tiles of queries, each with a tile of keys that some of them see: first … end - 1. */
static __device__ __forceinline__ cuda_range tiles_of(const cuda_backward &x,
                                                      const cuda_sequence &s, int key, int keys,
                                                      int queries)
{
    int first = queries_of(x.f, s, key).first, end = queries_of(x.f, s, key + keys - 1).end;

    return first < end ? cuda_range{first / queries, (end + queries - 1) / queries}
                       : cuda_range{0, 0};
}

/* How many tiles of keys add to the sums of a tile of queries before the one that begins here. */
static __device__ __forceinline__ uint32_t turn_of_tile(const cuda_backward &x,
                                                        const cuda_sequence &s, int query, int key,
                                                        int keys)
{
    return (uint32_t)(key / keys - keys_of(x.f, s, query).first / keys);
}

/* Do later tiles of keys have less to do? Then their queries are taken from the last one on. */
static __device__ __forceinline__ bool later_is_shorter(const cuda_backward &x)
{
    return x.f.right < CUDA_ATTENTION_MOST;
}

/* The tile of keys that a block has. */
struct key_tile {
    int b, kv_head, key;
};

/*
 * One thread's: the number of its block. Where blocks wait for others they are numbered as they
 * begin, for CUDA does not promise to begin them by their index.
 */
static __device__ __forceinline__ unsigned number_block(const cuda_backward &x)
{
    return x.begun ? atomicAdd(x.begun, 1u) : blockIdx.x;
}

/*
 * Tile after tile of the heads of a section, the longest first: as many heads as have their sums
 * and operands in the second-level cache. The tiles of a head come in order. Heads that whole
 * sections leave come first: at the end there would be a few long tiles and nothing beside them.
 */
static __device__ __forceinline__ key_tile tile_of_block(const cuda_backward &x, unsigned number,
                                                         int keys)
{
    unsigned tiles = (unsigned)(x.f.k_len + keys - 1) / keys, heads = x.f.batch * x.f.kv_heads;
    unsigned first = 0, count = heads % x.section, head;

    if (number >= count * tiles) {
        number -= count * tiles;
        first = count + number / (tiles * x.section) * x.section;
        count = x.section;
        number %= tiles * count;
    }
    head = first + number % count;
    return {(int)head / x.f.kv_heads, (int)head % x.f.kv_heads, (int)(number / count) * keys};
}

/*
 * What a block has, and the tile of queries of a head that it is at: number `step` of `steps`. The
 * heads that share its keys take turns at each tile, so that all blocks' order is the same.
 */
struct walk {
    int b, kv_head, key;
    cuda_sequence s;
    int first, end; /* heads */
    bool down;      /* from the last tile to the first */
    int head, tile, step, steps;
};

static __device__ __forceinline__ walk walk_of(const cuda_backward &x, unsigned number, int keys,
                                               int queries)
{
    key_tile tile = tile_of_block(x, number, keys);
    cuda_range range;
    walk w;

    w.key = tile.key;
    w.kv_head = tile.kv_head;
    w.b = tile.b;
    w.s = sequence_of(x.f, w.b);
    w.first = w.head = w.kv_head * x.f.group;
    w.end = w.first + x.f.group;
    w.down = later_is_shorter(x);
    range = tiles_of(x, w.s, w.key, keys, queries);
    w.tile = w.down ? range.end - 1 : range.first;
    w.step = 0;
    w.steps = w.key < w.s.k_len ? x.f.group * (range.end - range.first) : 0;
    return w;
}

static __device__ __forceinline__ void next(walk &w)
{
    w.step++;
    if (++w.head == w.end) {
        w.head = w.first;
        w.tile += w.down ? -1 : 1;
    }
}

/*
 * A thread's scores of a tile, as mma and wgmma give them: sum 4 j + 2 h + i is of key + 8 h and
 * query + 8 j + i. What is not seen has no weight.
 */
struct tile_place {
    int key, query;
    bool masked;
};

static __device__ __forceinline__ bool tile_masked(const cuda_backward &x, const cuda_sequence &s,
                                                   int key, int keys, int query, int queries)
{
    int t = position_of(s, query);

    return key + keys > s.k_len || key + keys - 1 > t + x.f.right ||
           key < t + queries - 1 - x.f.left;
}

static __device__ __forceinline__ bool unseen(const cuda_backward &x, const cuda_sequence &s,
                                              const tile_place &at, int j, int h, int i)
{
    int key = at.key + 8 * h, behind = position_of(s, at.query + 8 * j + i) - key;

    return key >= s.k_len || behind > x.f.left || -behind > x.f.right;
}

static __device__ __forceinline__ void load_two(float (&x)[2], uint32_t from)
{
    uint32_t low, high;

    load_shared8(low, high, from);
    x[0] = __uint_as_float(low);
    x[1] = __uint_as_float(high);
}

/* S becomes P. lse2 is where that of the thread's first query is in shared memory. */
template <int COUNT>
static __device__ __forceinline__ void weigh(const cuda_backward &x, const cuda_sequence &s,
                                             float (&p)[COUNT], const tile_place &at, uint32_t lse2)
{
    float scale = x.f.scale * LOG2_E, lse[2];

#pragma unroll
    for (int j = 0; j < COUNT / 4; j++) {
        load_two(lse, lse2 + j * 32);
#pragma unroll
        for (int e = 0; e < 4; e++)
            p[4 * j + e] = fast_exp2(p[4 * j + e] * scale - lse[e % 2]);
    }
    if (!at.masked)
        return;
#pragma unroll
    for (int e = 0; e < COUNT; e++)
        if (unseen(x, s, at, e / 4, e % 4 / 2, e % 2))
            p[e] = 0;
}

/* dP becomes dP - D. */
template <int COUNT>
static __device__ __forceinline__ void subtract_deltas(float (&grads)[COUNT], uint32_t delta)
{
    float d[2];

#pragma unroll
    for (int j = 0; j < COUNT / 4; j++) {
        load_two(d, delta + j * 32);
#pragma unroll
        for (int e = 0; e < 4; e++)
            grads[4 * j + e] -= d[e % 2];
    }
}

/* With softcap: S becomes what weigh() takes, and dP - D is multiplied by the cap's slope. */
template <int COUNT>
static __device__ __forceinline__ void cap(const cuda_backward &x, float (&scores)[COUNT],
                                           float (&grads)[COUNT])
{
    float in = 2 * LOG2_E * x.f.scale / x.f.softcap, out = x.f.softcap / x.f.scale;

#pragma unroll
    for (int e = 0; e < COUNT; e++) {
        float t = 1 - 2 * fast_reciprocal(1 + fast_exp2(scores[e] * in)); /* tanh */

        scores[e] = t * out;
        grads[e] *= 1 - t * t;
    }
}

/* A thread's sums as operand A of the next product: element k of fragment i is sum 8 i + 2 k. */
template <int DTYPE, int COUNT>
static __device__ __forceinline__ void to_fragments(const float (&sums)[COUNT],
                                                    uint32_t (&fragments)[COUNT / 8][4])
{
#pragma unroll
    for (int i = 0; i < COUNT / 8; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            fragments[i][k] = to_pair(sums[8 * i + 2 * k], sums[8 * i + 2 * k + 1], DTYPE);
}

/* Two neighbouring channels c and c + 1 of a row of a gradient, those that there are. */
static __device__ __forceinline__ void store_two(const cuda_rows &rows, int64_t at, int c, int dim,
                                                 int dtype, float one, float two)
{
    if (c + 1 < dim && rows.vectors && dtype != GPUNVME_OPS_F32) {
        *(uint32_t *)((uint16_t *)rows.data + at + c) = to_pair(one, two, dtype);
        return;
    }
    if (c < dim)
        store_element(rows.data, at + c, dtype, one);
    if (c + 1 < dim)
        store_element(rows.data, at + c + 1, dtype, two);
}

/*
 * A thread's sums for keys key and key + 8, channels c + 8 j and one on, which are those of grad_k
 * or, if `turned`, of what it is made of, or those of grad_v.
 */
template <int COUNT>
static __device__ __forceinline__ void
store_keys(const cuda_backward &x, const cuda_sequence &s, int b, int kv_head, int key, int c,
           const cuda_rows &rows, int dim, float scale, float *turned, const float (&sums)[COUNT])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int j = key + 8 * h;
        int64_t at, room = (kv_head * x.k_room + key_room(x, b) + j) * x.width;

        if (j >= s.k_len || !rows.data)
            continue;
        at = key_at(x.f, rows, s, j, kv_head);
#pragma unroll
        for (int n = 0; n < COUNT / 4; n++) {
            float one = scale * sums[4 * n + 2 * h], two = scale * sums[4 * n + 2 * h + 1];

            if (turned)
                *(float2 *)(turned + room + c + 8 * n) = make_float2(one, two);
            else
                store_two(rows, at, c + 8 * n, dim, x.f.dtype, one, two);
        }
    }
}

/* A channel's sum, and that of the channel it is turned with: back as they were before RoPE. */
static __device__ __forceinline__ float turned_back(const cuda_rope &rope, const cuda_pair &pair,
                                                    int position, float sum, float partner)
{
    float one = pair.second ? partner : sum, two = pair.second ? sum : partner;

    if (pair.pair < 0)
        return sum;
    turn_pair_back(turn_of(rope, position, pair.pair), one, two);
    return pair.second ? two : one;
}

static __device__ __forceinline__ cuda_pair pair_if(const cuda_rope &rope, bool turned, int c)
{
    return turned && rope.dim ? pair_of(rope, c) : cuda_pair{-1, c, false};
}

#endif
