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
 * Lengths as they are in the L2 cache now; whether any has changed. Before the kernels before have
 * ended they may be any number.
 */
static __device__ __forceinline__ bool read_lengths(const cuda_attention &x,
                                                    int (&lengths)[COUNTED])
{
    bool changed = false;

#pragma unroll
    for (int i = 0; i < COUNTED; i++) {
        int b = i * 32 + (int)threadIdx.x % 32, now = 0;

        if (b < x.batch)
            now = *(const volatile int32_t *)(x.k_lengths + b);
        now = now < 0 ? 0 : now > x.k_len ? x.k_len : now;
        changed |= now != lengths[i];
        lengths[i] = now;
    }
    return __any_sync(ALL_LANES, changed);
}

template <int TILE>
static __device__ __forceinline__ extent extent_by_length(const cuda_attention &x, int b, int k_len)
{
    return extent_in<TILE>(x, {x.q_len, k_len, b, b, 0, 0, x.table + b * x.ld_table});
}

/* A block's share by lengths that its lanes hold. */
template <int TILE>
static __device__ __forceinline__ void make_plan(const decode_work &w,
                                                 const int (&lengths)[COUNTED], plan &p)
{
    const cuda_attention &x = w.x;
    int lane = threadIdx.x % 32, b = 0, k_len = 0;
    int64_t begins[COUNTED], ends[COUNTED], total = 0, first = 0;

#pragma unroll
    for (int i = 0; i < COUNTED; i++) {
        int n = 0, sum;

        begins[i] = ends[i] = total;
        if (i * 32 >= x.batch)
            continue;
        if (i * 32 + lane < x.batch)
            n = extent_by_length<TILE>(x, i * 32 + lane, lengths[i]).tiles * x.kv_heads;
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
    p.all = {total, total < w.blocks ? total : w.blocks};
    p.at = p.end = 0;
    if (blockIdx.x >= p.all.blocks)
        return;
    p.at = share_begin(p.all, blockIdx.x);
    p.end = share_begin(p.all, (int64_t)blockIdx.x + 1);
#pragma unroll
    for (int i = 0; i < COUNTED; i++)
        if (i * 32 < x.batch)
            b += __popc(__ballot_sync(ALL_LANES, i * 32 + lane < x.batch && ends[i] <= p.at));
#pragma unroll
    for (int i = 0; i < COUNTED; i++)
        if (b / 32 == i) {
            first = __shfl_sync(ALL_LANES, begins[i], b % 32);
            k_len = __shfl_sync(ALL_LANES, lengths[i], b % 32);
        }
    p.c = {extent_by_length<TILE>(x, b, k_len), b, 0, 0};
    p.c.head = (int)((p.at - first) / p.c.e.tiles);
    p.c.tile = (int)((p.at - first) % p.c.e.tiles);
}

/* Likewise, of any batch. */
template <int TILE>
static __device__ __forceinline__ void make_any_plan(const decode_work &w, plan &p)
{
    p.all = shares_of<TILE>(w);
    p.at = p.end = 0;
    if (blockIdx.x >= p.all.blocks)
        return;
    p.at = share_begin(p.all, blockIdx.x);
    p.end = share_begin(p.all, (int64_t)blockIdx.x + 1);
    p.c = cursor_at<TILE>(w.x, p.at);
}

/*
 * A block's share. Where lanes hold the lengths, it is made by those that are in memory before the
 * kernels before have ended, and made anew if those have changed then.
 */
template <int TILE> static __device__ __forceinline__ void plan_ahead(const decode_work &w, plan &p)
{
    int lengths[COUNTED] = {0, 0, 0, 0};

    if (!counts_lengths(w.x)) {
        prefetch_lookups(w.x);
        wait_for_kernels_before();
        make_any_plan<TILE>(w, p);
        return;
    }
    read_lengths(w.x, lengths);
    for (bool again = false;; again = true) {
        make_plan<TILE>(w, lengths, p);
        if (again)
            return;
        wait_for_kernels_before();
        if (!read_lengths(w.x, lengths))
            return;
    }
}

#endif
