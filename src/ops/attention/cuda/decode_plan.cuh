/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which tiles a block of the rung "decode" has. It is computed while the kernels before still run,
 * by the lengths that are in memory then, and anew only if those have changed at their end. So one
 * trip to memory is left to wait for.
 */
#ifndef OPS_ATTENTION_CUDA_DECODE_PLAN_CUH
#define OPS_ATTENTION_CUDA_DECODE_PLAN_CUH

#include "ops/attention/cuda/decode.cuh"

/* Lengths that a lane holds, so that a batch of 32 times as many is shared by reading it once. */
#define COUNTED 4

/* The end of a head takes about as long as two tiles, so it counts as that: as its last. */
#define HEAD_END 2

/* How the tiles are shared, and a block's share of them. */
struct plan {
    shares all;
    int64_t at, end;
    cursor c; /* at the first, if there is one */
};

/* Few enough sequences for lengths to be held by lanes; and these are all there is to a sequence.
 */
static __device__ __forceinline__ bool counts_lengths(const cuda_attention &x)
{
    return x.batch <= 32 * COUNTED && x.k_lengths && !x.q_lengths && !x.q_offsets;
}

/*
 * Lengths as they are in the L2 cache now, and whether any has changed. Before the kernels before
 * have ended they may be any number.
 */
static __device__ __forceinline__ void load_lengths(const cuda_attention &x, int (&now)[COUNTED])
{
#pragma unroll
    for (int i = 0; i < COUNTED; i++) {
        int b = i * 32 + (int)threadIdx.x % 32;

        now[i] = 0;
        if (b < x.batch)
            now[i] = *(const volatile int32_t *)(x.k_lengths + b);
    }
}

static __device__ __forceinline__ bool
replace_lengths(const cuda_attention &x, const int (&now)[COUNTED], int (&lengths)[COUNTED])
{
    bool changed = false;

#pragma unroll
    for (int i = 0; i < COUNTED; i++) {
        int length = now[i] < 0 ? 0 : now[i] > x.k_len ? x.k_len : now[i];

        changed |= length != lengths[i];
        lengths[i] = length;
    }
    return __any_sync(ALL_LANES, changed);
}

template <int TILE>
static __device__ __forceinline__ extent extent_by_length(const cuda_attention &x, int b, int k_len)
{
    return extent_in<TILE>(x, {x.q_len, k_len, b, b, 0, 0, x.table + b * x.ld_table});
}

/*
 * How tiles are shared among blocks, of which a multiprocessor has room for ROOM. With few tiles it
 * has but one: combining half as many parts gains more than loading in twice as many blocks.
 */
template <int ROOM>
static __device__ __forceinline__ shares share_tiles(const decode_work &w, int64_t tiles)
{
    int64_t most = ROOM == 2 && 2 * tiles <= 5 * (int64_t)w.blocks ? w.blocks / 2 : w.blocks;

    return {tiles, tiles < most ? tiles : most};
}

/* A block's share by lengths that its lanes hold. */
template <int TILE, int ROOM>
static __device__ __forceinline__ void make_plan(const decode_work &w,
                                                 const int (&lengths)[COUNTED], plan &p)
{
    const cuda_attention &x = w.x;
    int lane = threadIdx.x % 32;
    int64_t begins[COUNTED], ends[COUNTED], total = 0;

#pragma unroll
    for (int i = 0; i < COUNTED; i++) {
        int n = 0, sum;

        begins[i] = ends[i] = total;
        if (i * 32 >= x.batch)
            continue;
        if (i * 32 + lane < x.batch)
            n = tiles_of_head<HEAD_END>(extent_by_length<TILE>(x, i * 32 + lane, lengths[i])) *
                x.kv_heads;
        sum = n;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            int other = __shfl_up_sync(ALL_LANES, sum, step);

            sum += lane >= step ? other : 0;
        }
        begins[i] = total + sum - n;
        ends[i] = total + sum;
        total += __shfl_sync(ALL_LANES, sum, 31);
    }
    p.all = share_tiles<ROOM>(w, total);
    p.at = p.end = 0;
    if (blockIdx.x >= p.all.blocks)
        return;
    p.end = share_begin(p.all, (int64_t)blockIdx.x + 1);
#pragma unroll 1
    for (p.at = share_begin(p.all, blockIdx.x); p.at < p.end; p.at++) {
        int b = 0, k_len = 0, first = 0;

#pragma unroll
        for (int i = 0; i < COUNTED; i++)
            if (i * 32 < x.batch)
                b += __popc(__ballot_sync(ALL_LANES, i * 32 + lane < x.batch && ends[i] <= p.at));
#pragma unroll
        for (int i = 0; i < COUNTED; i++)
            if (b / 32 == i) {
                first = __shfl_sync(ALL_LANES, (int)(p.at - begins[i]), b % 32);
                k_len = __shfl_sync(ALL_LANES, lengths[i], b % 32);
            }
        p.c = {extent_by_length<TILE>(x, b, k_len), b, 0, 0};
        p.c.head = first / (p.c.e.tiles + HEAD_END);
        p.c.tile = first % (p.c.e.tiles + HEAD_END);
        if (p.c.tile < p.c.e.tiles)
            return;
    }
}

/* Likewise, of any batch. */
template <int TILE, int ROOM>
static __device__ __forceinline__ void make_any_plan(const decode_work &w, plan &p)
{
    p.all = share_tiles<ROOM>(w, place_of<TILE, HEAD_END>(w.x, INT64_MAX).first);
    p.at = p.end = 0;
    if (blockIdx.x >= p.all.blocks)
        return;
    p.end = share_begin(p.all, (int64_t)blockIdx.x + 1);
#pragma unroll 1
    for (p.at = share_begin(p.all, blockIdx.x); p.at < p.end; p.at++) {
        p.c = cursor_at<TILE, HEAD_END>(w.x, p.at);
        if (p.c.tile < p.c.e.tiles)
            return;
    }
}

/*
 * A block's share. Where lanes hold the lengths, it is made by those that are in memory before the
 * kernels before have ended, and made anew if those have changed then. begin() asks for what the
 * share needs first: on the same trip to memory as the lengths.
 */
template <int TILE, int ROOM, typename BEGIN>
static __device__ __forceinline__ void plan_ahead(const decode_work &w, plan &p, BEGIN begin)
{
    int lengths[COUNTED] = {0, 0, 0, 0}, now[COUNTED];
    bool ahead = counts_lengths(w.x);

    if (ahead) {
        load_lengths(w.x, now);
        replace_lengths(w.x, now, lengths);
        make_plan<TILE, ROOM>(w, lengths, p);
    } else {
        prefetch_lookups(w.x);
    }
    wait_for_kernels_before();
    if (ahead)
        load_lengths(w.x, now);
    else
        make_any_plan<TILE, ROOM>(w, p);
#pragma unroll 1
    for (bool again = false;; again = true) {
        begin();
        if (!ahead || again || !replace_lengths(w.x, now, lengths))
            return;
        make_plan<TILE, ROOM>(w, lengths, p);
    }
}

#endif
