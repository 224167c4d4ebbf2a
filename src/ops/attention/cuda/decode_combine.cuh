/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The end of a head that several blocks of the rung "decode" share: the last one to come combines
 * the parts of all. Parts are added up in the order of the blocks, whichever comes last.
 */
#ifndef OPS_ATTENTION_CUDA_DECODE_COMBINE_CUH
#define OPS_ATTENTION_CUDA_DECODE_COMBINE_CUH

#include "ops/attention/cuda/decode.cuh"

/* Blocks that have parts of a head, by number: the first has the one that begins. */
struct sharers {
    int first, last;
};

/* Those of a head with so many tiles, of which `begin` is the first. */
static __device__ __forceinline__ sharers sharers_of(const shares &s, int64_t begin, int tiles)
{
    return {share_of(s, begin), share_of(s, begin + tiles - 1)};
}

/*
 * Those that have come are counted in a word of the workspace, which may hold anything before the
 * call. Each block opens the word before it makes its part: the upper bits become the call's tag.
 * The last one to come leaves it as it was when it was opened, for when the call is replayed.
 */
#define ARRIVAL_BITS  16
#define PARTS_AT_ONCE 12 /* that a lane loads together */

static __device__ __forceinline__ void open_arrivals(const decode_work &w, const sharers &all)
{
    uint64_t *word = &w.arrivals[all.first], found = *(volatile uint64_t *)word;

    if (found >> ARRIVAL_BITS != w.tag >> ARRIVAL_BITS)
        exchange_if(word, found, w.tag);
}

/* All threads of a block whose part is written; whether all others' are. */
static __device__ __forceinline__ bool arrive(const decode_work &w, const sharers &all, int *flag)
{
    __syncthreads();
    if (!threadIdx.x) {
        uint64_t before = count_and_get(&w.arrivals[all.first]);

        *flag = (int)(before & ((1 << ARRIVAL_BITS) - 1)) == all.last - all.first;
        if (*flag)
            *(volatile uint64_t *)&w.arrivals[all.first] = w.tag;
    }
    __syncthreads();
    return *flag;
}

/* What some parts add up to: sums of four channels, relative to the largest score. */
struct addition {
    float z[4], most, total;
};

static __device__ __forceinline__ void scale_to(addition &a, float most)
{
    float by = fast_exp2(a.most - shift_of(most));

#pragma unroll
    for (int i = 0; i < 4; i++)
        a.z[i] *= by;
    a.total *= by;
    a.most = most;
}

static __device__ __forceinline__ void add(addition &a, const addition &y)
{
    float by = fast_exp2(y.most - shift_of(a.most));

#pragma unroll
    for (int i = 0; i < 4; i++)
        a.z[i] += y.z[i] * by;
    a.total += y.total * by;
}

/* Of row r, channels from c on. */
static __device__ __forceinline__ addition add_parts(const decode_work &w, const sharers &h, int r,
                                                     int c)
{
    addition all = {{0, 0, 0, 0}, -INFINITY, 0};

#pragma unroll 1
    for (int b = h.first; b <= h.last; b += PARTS_AT_ONCE) {
        addition y[PARTS_AT_ONCE];
        float most = all.most;

#pragma unroll
        for (int i = 0; i < PARTS_AT_ONCE; i++) {
            y[i] = {{0, 0, 0, 0}, -INFINITY, 0};
            if (b + i <= h.last) {
                part p = part_of(w, b + i, b + i == h.first);

                y[i].most = p.most[r];
                y[i].total = p.total[r];
                load4(p.sums, (int64_t)r * w.x.dim_v + c, GPUNVME_OPS_F32, y[i].z);
            }
        }
#pragma unroll
        for (int i = 0; i < PARTS_AT_ONCE; i++)
            most = max_or_nan(most, y[i].most);
        scale_to(all, most);
#pragma unroll
        for (int i = 0; i < PARTS_AT_ONCE; i++)
            add(all, y[i]);
    }
    return all;
}

/* A head's parts become its results; a warp takes rows, a lane four channels. */
template <int WARPS>
static __device__ __forceinline__ void combine(const decode_work &w, const cursor &at,
                                               const sharers &h)
{
    const cuda_attention &x = w.x;

#pragma unroll 1
    for (int r = threadIdx.x / 32; r < at.e.rows; r += WARPS)
#pragma unroll 1
        for (int c = (int)threadIdx.x % 32 * 4; c < x.dim_v; c += 128) {
            addition all = add_parts(w, h, r, c);
            row_end end = end_row(x, head_of(x, at.head, r), all.most, all.total);

#pragma unroll
            for (int i = 0; i < 4; i++)
                store_element(x.out.data, out_at(x, at.e.s, at.head, r) + c + i, x.out_dtype,
                              all.z[i] * end.factor);
            if (!c)
                store_lse(x, at.e.s, at.head, r, end.lse);
        }
}

#endif
