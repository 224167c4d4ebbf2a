/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What attention's kernels share: which rows a sequence has, which keys a query sees, and single
 * elements of Q, K and V, rotated. So rungs need not know of layouts, offsets, lengths and pages.
 */
#ifndef OPS_ATTENTION_CUDA_PROBLEM_CUH
#define OPS_ATTENTION_CUDA_PROBLEM_CUH

#include <math.h>

#include "ops/attention/cuda/problem.h"
#include "ops/cuda/element.cuh"

/* A sequence: its lengths, where its rows begin in Q (out, lse) and in K (V), and its pages. */
struct cuda_sequence {
    int q_len, k_len;
    int q_batch, k_batch;
    int64_t q_row, k_row;
    const int32_t *pages; /* NULL: rows of K and V follow each other */
};

static __device__ __forceinline__ cuda_sequence sequence_of(const cuda_attention &x, int b)
{
    cuda_sequence s = {x.q_len, x.k_len, b, b, 0, 0, NULL};

    if (x.q_offsets) {
        s.q_batch = 0;
        s.q_row = x.q_offsets[b];
        s.q_len = x.q_offsets[b + 1] - x.q_offsets[b];
    }
    if (x.k_offsets) {
        s.k_batch = 0;
        s.k_row = x.k_offsets[b];
        s.k_len = x.k_offsets[b + 1] - x.k_offsets[b];
    }
    if (x.q_lengths)
        s.q_len = x.q_lengths[b];
    if (x.k_lengths)
        s.k_len = x.k_lengths[b];
    if (x.page_size)
        s.pages = x.table + b * x.ld_table;
    return s;
}

/* The number of row i's first element, in Q, out, lse and what has the same rows; and in K and V.
 */
static __device__ __forceinline__ int64_t query_at(const cuda_rows &rows, const cuda_sequence &s,
                                                   int i, int head)
{
    return s.q_batch * rows.batch + (s.q_row + i) * rows.row + head * rows.head;
}

static __device__ __forceinline__ int64_t key_at(const cuda_attention &x, const cuda_rows &rows,
                                                 const cuda_sequence &s, int j, int kv_head)
{
    if (!s.pages)
        return s.k_batch * rows.batch + (s.k_row + j) * rows.row + kv_head * rows.head;
    return s.pages[j / x.page_size] * rows.batch + j % x.page_size * rows.row + kv_head * rows.head;
}

/* The key to which query i is aligned; it may be negative. */
static __device__ __forceinline__ int position_of(const cuda_sequence &s, int i)
{
    return i + s.k_len - s.q_len;
}

/*
 * The position at which query i is turned. A query of a sequence without keys sees nothing, and
 * tables of angles may not have its own.
 */
static __device__ __forceinline__ int turned_position(const cuda_sequence &s, int i)
{
    return s.k_len ? position_of(s, i) : 0;
}

/* Of keys, or of queries: first … end - 1, none if end <= first. */
struct cuda_range {
    int first, end;
};

/*
 * The keys that query i sees. Both ends grow with i, so queries i … l together see what is between
 * i's first and l's end.
 */
static __device__ __forceinline__ cuda_range keys_of(const cuda_attention &x,
                                                     const cuda_sequence &s, int i)
{
    int t = position_of(s, i), first = t - x.left, end = t + x.right + 1;

    return {first > 0 ? first : 0, end < s.k_len ? end : s.k_len};
}

/* The queries that see key j. Both ends grow with j. */
static __device__ __forceinline__ cuda_range queries_of(const cuda_attention &x,
                                                        const cuda_sequence &s, int j)
{
    int i = j - (s.k_len - s.q_len), first = i - x.right, end = i + x.left + 1;

    return {first > 0 ? first : 0, end < s.q_len ? end : s.q_len};
}

static __device__ __forceinline__ bool sees(const cuda_range &keys, int j)
{
    return j >= keys.first && j < keys.end;
}

/* -infinity without sinks. */
static __device__ __forceinline__ float sink_of(const cuda_attention &x, int head)
{
    return x.sinks ? x.sinks[head] : -INFINITY;
}

/* What a number of E4M3 is multiplied by, in sequence b and that head of K. */
static __device__ __forceinline__ float descale_of(const cuda_attention &x, const float *factors,
                                                   int b, int kv_head)
{
    return factors ? factors[b * x.descale_stride + kv_head] : 1;
}

/* S of the product of two rows, exactly. */
static __device__ __forceinline__ float score_of(const cuda_attention &x, float product)
{
    float s = x.scale * product;

    return x.softcap > 0 ? x.softcap * tanhf(s / x.softcap) : s;
}

/* The cosine and sine by which pair p is turned at a position. */
struct cuda_turn {
    float cosine, sine;
};

/* TABLES: there are some. What computes angles in f64 takes many registers. */
template <bool TABLES = false>
static __device__ __forceinline__ cuda_turn turn_of(const cuda_rope &rope, int position, int p)
{
    int t = position < 0 ? -position : position;
    cuda_turn turn;

    if (TABLES || rope.cos) {
        turn.cosine = rope.cos[t * rope.ld + p];
        turn.sine = rope.sin[t * rope.ld + p];
    } else {
        double angle = t * exp2(rope.rate * p);

        turn.cosine = (float)cos(angle);
        turn.sine = (float)sin(angle);
    }
    if (position < 0)
        turn.sine = -turn.sine;
    return turn;
}

/* (x, y) turned, as Q and K are; turned back, as their gradients are. */
static __device__ __forceinline__ void turn_pair(const cuda_turn &turn, float &x, float &y)
{
    float z = x;

    x = z * turn.cosine - y * turn.sine;
    y = z * turn.sine + y * turn.cosine;
}

static __device__ __forceinline__ void turn_pair_back(const cuda_turn &turn, float &x, float &y)
{
    turn_pair({turn.cosine, -turn.sine}, x, y);
}

/* Which pair channel c is in, and its partner; pair -1: it stays as it is. */
struct cuda_pair {
    int pair, partner;
    bool second; /* c is the pair's y */
};

static __device__ __forceinline__ cuda_pair pair_of(const cuda_rope &rope, int c)
{
    int i = c - rope.first, half = rope.dim / 2;

    if (i < 0 || i >= rope.dim)
        return {-1, c, false};
    if (rope.interleaved)
        return {i / 2, i % 2 ? c - 1 : c + 1, i % 2 != 0};
    return {i % half, i < half ? c + half : c - half, i >= half};
}

/* FP8: it may be E4M3, whose number it is then. */
template <bool FP8>
static __device__ __forceinline__ float load_number(const void *data, int64_t i, int dtype)
{
    if (FP8 && dtype == GPUNVME_OPS_E4M3)
        return from_fp8(((const uint8_t *)data)[i], dtype);
    return load_element(data, i, dtype);
}

/* Channel c of the row at `at`, turned as at that position. */
template <bool TABLES = false, bool FP8 = false>
static __device__ __forceinline__ float load_turned(const void *data, int64_t at, int c, int dtype,
                                                    const cuda_rope &rope, int position)
{
    float x = load_number<FP8>(data, at + c, dtype), y;
    cuda_pair pair = pair_of(rope, c);
    cuda_turn turn;

    if (pair.pair < 0)
        return x;
    y = load_number<FP8>(data, at + pair.partner, dtype);
    turn = turn_of<TABLES>(rope, position, pair.pair);
    return pair.second ? y * turn.sine + x * turn.cosine : x * turn.cosine - y * turn.sine;
}

/* Channel c of row i of Q and row j of K, as the products see them; `at` is where the row is. */
template <bool FP8 = false>
static __device__ __forceinline__ float load_q(const cuda_attention &x, const cuda_sequence &s,
                                               int i, int64_t at, int c)
{
    if (!x.rope.dim)
        return load_number<FP8>(x.q.data, at + c, x.dtype);
    return load_turned<false, FP8>(x.q.data, at, c, x.dtype, x.rope, turned_position(s, i));
}

template <bool FP8 = false>
static __device__ __forceinline__ float load_k(const cuda_attention &x, int j, int64_t at, int c)
{
    int dtype = FP8 ? x.kv_dtype : x.dtype;

    if (!x.rope.dim || x.rope.queries_only)
        return load_number<FP8>(x.k.data, at + c, dtype);
    return load_turned<false, FP8>(x.k.data, at, c, dtype, x.rope, j);
}

#endif
