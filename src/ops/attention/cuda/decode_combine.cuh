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
#define ARRIVAL_BITS 16

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

static __device__ __forceinline__ void finish_row(const cuda_attention &x, const cursor &at, int r,
                                                  int c, const addition &all)
{
    row_end end = end_row(x, head_of(x, at.head, r), all.most, all.total);
    int64_t to = out_at(x, at.e.s, at.head, r) + c;
    float z[4];

#pragma unroll
    for (int i = 0; i < 4; i++)
        z[i] = all.z[i] * end.factor;
    if (x.out.vectors)
        store4(x.out.data, to, x.out_dtype, z);
    else
#pragma unroll
        for (int i = 0; i < 4; i++)
            store_element(x.out.data, to + i, x.out_dtype, z[i]);
    if (!c)
        store_lse(x, at.e.s, at.head, r, end.lse);
}

/* ROWS rows from r on, `step` apart, channels from c on: PARTS of each are loaded together. */
template <int ROWS, int PARTS>
static __device__ __forceinline__ void combine_rows(const decode_work &w, const cursor &at,
                                                    const sharers &h, int r, int step, int c)
{
    addition all[ROWS];

#pragma unroll
    for (int k = 0; k < ROWS; k++)
        all[k] = {{0, 0, 0, 0}, -INFINITY, 0};
#pragma unroll 1
    for (int b = h.first; b <= h.last; b += PARTS) {
        addition y[ROWS][PARTS];

#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            part p = part_of(w, b + i, b + i == h.first);

#pragma unroll
            for (int k = 0; k < ROWS; k++) {
                int row = r + k * step;

                y[k][i] = {{0, 0, 0, 0}, -INFINITY, 0};
                if (b + i > h.last || row >= at.e.rows)
                    continue;
                y[k][i].most = p.most[row];
                y[k][i].total = p.total[row];
                load4(p.sums, row * w.x.dim_v + c, GPUNVME_OPS_F32, y[k][i].z);
            }
        }
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            float most = all[k].most;

#pragma unroll
            for (int i = 0; i < PARTS; i++)
                most = max_or_nan(most, y[k][i].most);
            scale_to(all[k], most);
#pragma unroll
            for (int i = 0; i < PARTS; i++)
                add(all[k], y[k][i]);
        }
    }
#pragma unroll 1
    for (int k = 0; k < ROWS && r + k * step < at.e.rows; k++) {
        finish_row(w.x, at, r + k * step, c, all[0]);
#pragma unroll
        for (int i = 0; i < ROWS - 1; i++)
            all[i] = all[i + 1];
    }
}

/*
 * A head's parts become its results: a warp takes rows, a lane four channels. Few parts of several
 * rows or many of one are on their way at a time.
 */
template <int WARPS>
static __device__ __forceinline__ void combine(const decode_work &w, const cursor &at,
                                               const sharers &h)
{
    int warp = threadIdx.x / 32;

#pragma unroll 1
    for (int c = (int)threadIdx.x % 32 * 4; c < w.x.dim_v; c += 128)
        if (h.last - h.first < 4 && at.e.rows > WARPS)
#pragma unroll 1
            for (int r = warp; r < at.e.rows; r += 4 * WARPS)
                combine_rows<4, 4>(w, at, h, r, WARPS, c);
        else
#pragma unroll 1
            for (int r = warp; r < at.e.rows; r += WARPS)
                combine_rows<1, 17>(w, at, h, r, WARPS, c);
}

#endif
