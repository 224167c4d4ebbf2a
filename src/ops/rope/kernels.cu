/* SPDX-License-Identifier: BSD-3-Clause
 *
 * RoPE by itself. A thread computes the angles of its pairs once, in f64 as far as whole turns are
 * taken off, and rotates those pairs of several heads.
 */
#include "ops/cuda/rows.cuh"
#include "ops/rope/kernels.h"

#define PER_TURN 0.159154943091895336 /* 1 / 2 pi */

struct turn {
    float cosine, sine;
};

/* -1: there is no such position. */
static __device__ __forceinline__ int64_t position_of(const struct gpunvme_rotate &p, int64_t i)
{
    int64_t position = p.positions ? p.positions[i] : i;

    return position < 0 || (p.rope.cos && position >= p.rope.rows) ? -1 : position;
}

/* Of pair k, which turns by `frequency` a position. */
static __device__ __forceinline__ turn turn_of(const struct gpunvme_rotate &p, int64_t position,
                                               int k, double frequency)
{
    float cosine, sine;

    if (position < 0)
        return {NAN, NAN};
    if (p.rope.cos) {
        cosine = p.rope.cos[position * p.rope.ld + k];
        sine = p.rope.sin[position * p.rope.ld + k];
    } else {
        double turns = (double)position * (frequency * PER_TURN);
        float rest = 2 * (float)(turns - rint(turns)); /* in units of pi */

        cosine = cospif(rest);
        sine = sinpif(rest);
    }
    return {cosine, p.backward ? -sine : sine};
}

static __device__ __forceinline__ void rotate(const turn &t, float &x, float &y)
{
    float before = x;

    x = before * t.cosine - y * t.sine;
    y = before * t.sine + y * t.cosine;
}

/* Threads of a pair's second channel have nothing to do. */
static __global__ void __launch_bounds__(ROWS_THREADS) elements(const rope_work w)
{
    const struct gpunvme_rotate &p = w.p;
    int64_t cols = p.heads * p.dim, step = (int64_t)gridDim.x * ROWS_THREADS;

    for (int64_t at = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x; at < p.rows * cols;
         at += step) {
        int64_t i = at / cols, j = at % cols, from = i * p.ldx + j, to = i * p.ldy + j;
        int c = (int)(j % p.dim) - p.rope.first, half = p.rope.dim / 2;
        int k = p.rope.interleaved ? c / 2 : c, partner = p.rope.interleaved ? 1 : half;
        float x = load_element(p.x, from, p.dtype), y;

        if (c < 0 || c >= p.rope.dim) {
            store_element(p.y, to, p.dtype, x);
            continue;
        }
        if (p.rope.interleaved ? c % 2 : c >= half)
            continue;
        y = load_element(p.x, from + partner, p.dtype);
        rotate(turn_of(p, position_of(p, i), k, exp2(w.rate * k)), x, y);
        store_element(p.y, to, p.dtype, x);
        store_element(p.y, to + partner, p.dtype, y);
    }
}

#define HEADS 8 /* of a thread */

/* The heads of a thread, of which it copies eight channels. */
template <int DTYPE>
static __device__ __forceinline__ void copy_heads(const struct gpunvme_rotate &p, int64_t from,
                                                  int64_t to, int heads)
{
    for (int h = 0; h < heads; h++, from += p.dim, to += p.dim) {
        float values[8];

        load_values<DTYPE>(p.x, from, values);
        store_values<DTYPE>(p.y, to, values);
    }
}

/* Or of which it rotates eight pairs: neighbours, or of two vectors. */
template <int DTYPE, int INTERLEAVED>
static __device__ __forceinline__ void rotate_heads(const struct gpunvme_rotate &p,
                                                    const turn (&turns)[8], int64_t from,
                                                    int64_t to, int heads)
{
    int64_t partner = p.rope.dim / 2;

#pragma unroll 2
    for (int h = 0; h < heads; h++, from += p.dim, to += p.dim) {
        eight<DTYPE> raw, other;
        float x[8], y[8];

        load_eight<DTYPE>(p.x, from, raw);
        if (!INTERLEAVED)
            load_eight<DTYPE>(p.x, from + partner, other);
        unpack_eight<DTYPE>(raw, x);
        if (!INTERLEAVED)
            unpack_eight<DTYPE>(other, y);
#pragma unroll
        for (int e = 0; e < 8; e += 1 + INTERLEAVED)
            if (INTERLEAVED)
                rotate(turns[e / 2], x[e], x[e + 1]);
            else
                rotate(turns[e], x[e], y[e]);
        store_values<DTYPE>(p.y, to, x);
        if (!INTERLEAVED)
            store_values<DTYPE>(p.y, to + partner, y);
    }
}

/* A head has so many vectors, or pairs of them, to be rotated; in place the others stay. */
static __host__ __device__ __forceinline__ int rotated_of(const struct gpunvme_rotate &p)
{
    return p.rope.dim / (p.rope.interleaved ? 8 : 16);
}

static __host__ __device__ __forceinline__ int vectors_of(const struct gpunvme_rotate &p)
{
    return rotated_of(p) + (p.x == p.y ? 0 : (int)(p.dim - p.rope.dim) / 8);
}

template <int DTYPE, int INTERLEAVED>
static __global__ void __launch_bounds__(ROWS_THREADS) vectors(const rope_work w)
{
    const struct gpunvme_rotate &p = w.p;
    int of_head = vectors_of(p), rotated = rotated_of(p);
    int64_t groups = (p.heads + HEADS - 1) / HEADS, all = p.rows * groups * of_head;
    int64_t step = (int64_t)gridDim.x * ROWS_THREADS;

    for (int64_t at = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x; at < all; at += step) {
        int v = (int)(at % of_head), c;
        int64_t head = at / of_head % groups * HEADS, i = at / of_head / groups;
        int heads = p.heads - head < HEADS ? (int)(p.heads - head) : HEADS;
        int64_t from = i * p.ldx + head * p.dim, to = i * p.ldy + head * p.dim;
        turn turns[8];

        if (v >= rotated) {
            c = (v - rotated) * 8;
            c += c < p.rope.first ? 0 : p.rope.dim;
            copy_heads<DTYPE>(p, from + c, to + c, heads);
            continue;
        }
        c = p.rope.first + v * 8;
        int first = INTERLEAVED ? v * 4 : v * 8;
        int64_t position = position_of(p, i);
        double frequency = exp2(w.rate * first), ratio = exp2(w.rate);
#pragma unroll
        for (int k = 0; k < (INTERLEAVED ? 4 : 8); k++, frequency *= ratio)
            turns[k] = turn_of(p, position, first + k, frequency);
        rotate_heads<DTYPE, INTERLEAVED>(p, turns, from + c, to + c, heads);
    }
}

template <int DTYPE> static void launch_vectors(const struct rope_work *x, void *stream)
{
    int64_t threads = x->p.rows * ((x->p.heads + HEADS - 1) / HEADS) * vectors_of(x->p);
    unsigned blocks = rows_blocks((threads + ROWS_THREADS - 1) / ROWS_THREADS);

    if (!threads)
        return;
    if (x->p.rope.interleaved)
        LAUNCH((vectors<DTYPE, 1>), blocks, ROWS_THREADS, stream, *x);
    else
        LAUNCH((vectors<DTYPE, 0>), blocks, ROWS_THREADS, stream, *x);
}

gpunvme_ops_status_t rope_rotate(const struct rope_work *x, int by_eight, void *stream)
{
    int64_t threads = x->p.rows * x->p.heads * x->p.dim;

    if (!by_eight)
        LAUNCH(elements, rows_blocks((threads + ROWS_THREADS - 1) / ROWS_THREADS), ROWS_THREADS,
               stream, *x);
    else if (x->p.dtype == GPUNVME_OPS_F32)
        launch_vectors<GPUNVME_OPS_F32>(x, stream);
    else if (x->p.dtype == GPUNVME_OPS_F16)
        launch_vectors<GPUNVME_OPS_F16>(x, stream);
    else
        launch_vectors<GPUNVME_OPS_BF16>(x, stream);
    return cuda_status(cudaGetLastError(), "launching RoPE");
}
