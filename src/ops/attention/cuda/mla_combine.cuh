/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rung "mla": combines the parts of heads whose keys several clusters share, in the kernel that
 * makes them. Blocks of one rank in their clusters have the same rows, so they share a head, and
 * those of the other rank do not concern them.
 *
 * Blocks that share a head meet at a word in the workspace. When a block's part is written, the
 * block counts itself there, and the last one to come combines all. Where there is much to combine,
 * the others wait a while for the last one, and then take shares of the work. They do not wait
 * forever, for the last one may not run before they have left. The shares do not depend on which
 * block takes them, and so neither do the results.
 *
 * The word may hold anything before the call. So each block opens the meeting before it counts
 * itself: it makes the word the tag of this call with a count of 0, unless the word has that tag.
 * The last block to come makes it 0: a graph that is replayed has the same tag in each launch.
 */
#ifndef OPS_ATTENTION_CUDA_MLA_COMBINE_CUH
#define OPS_ATTENTION_CUDA_MLA_COMBINE_CUH

#include "ops/attention/cuda/decode.cuh"
#include "ops/attention/cuda/mla.h"
#include "ops/cuda/warp.cuh"

enum {
    COMBINE_BARRIER = 2,
    COMBINE_WARPS = 8, /* of each block */
    COMBINE_THREADS = COMBINE_WARPS * 32,
    COMBINE_VECTORS = MLA_DIM_V / 128,       /* of 4 channels that a lane has of a row */
    COMBINE_PITCH = 4 * COMBINE_VECTORS + 1, /* floats of a lane in shared memory, and one more */
    COMBINE_AT_ONCE = 4,                     /* parts whose loads are in flight */
    COMBINE_HELPED = 128 << 10, /* bytes of a block's rows in all parts: with more, others help */
    COMBINE_TRIES = 100,        /* so often others look whether the last one has come */
    MEETING_BITS = 16,
};

/* Where blocks meet, in the workspace. */
struct meeting {
    uint64_t arrived; /* the call's tag, and in the last MEETING_BITS the count */
    unsigned round;   /* another one as soon as all have come */
    unsigned taken;   /* shares of the work */
};

/* A head whose tiles clusters `first` to `last` share, and of which each leaves a part. */
struct shared_head {
    int b; /* -1: there is none */
    int kv_head, first, last;
    unsigned round; /* of the meeting, before all have come */
};

/* In shared memory, while a block combines. */
struct combine_memory {
    float sums[COMBINE_THREADS * COMBINE_PITCH];
    float most[COMBINE_WARPS], total[COMBINE_WARPS];
    int all_there[2], told; /* of each of a block's two heads; what one thread tells the others */
};

/* By a thread of each block, before its part is counted. */
static __device__ __forceinline__ void open_meeting(meeting *m, uint64_t tag, shared_head &h)
{
    uint64_t known = 0, found;

    h.round = *(volatile unsigned *)&m->round;
    for (;;) {
        found = exchange_if(&m->arrived, known, tag);
        if (found == known || (found ^ tag) >> MEETING_BITS == 0)
            break;
        known = found;
    }
}

/*
 * By a thread, behind a barrier with those that wrote the block's part: true if all parts are
 * there. The count releases this part and acquires those that were counted before. `round` tells
 * the others, if they wait.
 */
static __device__ __forceinline__ bool meet(meeting *m, const shared_head &h, bool helped)
{
    uint64_t before = count_and_get(&m->arrived);

    if ((int)(before & ((1 << MEETING_BITS) - 1)) != h.last - h.first)
        return false;
    *(volatile uint64_t *)&m->arrived = 0;
    if (helped) {
        *(volatile unsigned *)&m->taken = 0;
        __threadfence();
        *(volatile unsigned *)&m->round = h.round + 1;
    }
    return true;
}

/* By a thread of a block that was not the last: true if now all parts are there. */
static __device__ __forceinline__ bool meet_later(meeting *m, const shared_head &h)
{
    for (int i = 0; i < COMBINE_TRIES; i++) {
        if (*(volatile unsigned *)&m->round != h.round) {
            __threadfence();
            return true;
        }
        __nanosleep(100);
    }
    return false;
}

/* Rows of a head that are combined together, and how. */
struct combination {
    extent e;
    shared_head h;
    int row, rows; /* the first one, and how many */
    int warps;     /* that share the parts of a row */
    int steps;     /* of as many rows as the warps have at once */
    bool helped;   /* blocks share them */
};

static __device__ __forceinline__ combination combination_of(const decode_work &w,
                                                             const shared_head &h, int row)
{
    combination x = {extent_of(w.x, h.b), h, row, 0, 1, 0, false};
    int parts = h.last - h.first + 1, rows = x.e.rows - row;

    x.rows = rows < 0 ? 0 : rows < MLA_ROWS ? rows : MLA_ROWS;
    x.helped = (int64_t)parts * x.rows * MLA_DIM_V * (int)sizeof(float) > COMBINE_HELPED;
    while (x.warps < COMBINE_WARPS && x.rows * x.warps < COMBINE_WARPS * (x.helped ? parts : 1))
        x.warps *= 2;
    x.steps = (x.rows * x.warps + COMBINE_WARPS - 1) / COMBINE_WARPS;
    return x;
}

/* A warp's sums of a row, relative to the largest score, and their weight. */
struct row_sums {
    float z[COMBINE_VECTORS][4], most, total;

    /* Of every `step`th part from number j on. */
    __device__ __forceinline__ void add(const decode_work &w, const shared_head &h, int r, int j,
                                        int step)
    {
        int lane = threadIdx.x % 32, parts = h.last - h.first + 1 - j;
        int count = parts > 0 ? (parts + step - 1) / step : 0;

        most = -INFINITY;
        total = 0;
#pragma unroll
        for (int v = 0; v < COMBINE_VECTORS; v++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                z[v][i] = 0;
#pragma unroll 1
        for (int base = 0; base < count; base += 32) {
            int mine = j + (base + lane) * step;
            float top = -INFINITY, weight = 0, sum = 0;

            if (base + lane < count) {
                part p = part_of(w, h.first + mine, !mine);

                top = p.most[r];
                sum = p.total[r];
            }
#pragma unroll 1
            for (int i = 0; i < 32 && base + i < count; i += COMBINE_AT_ONCE) {
                float y[COMBINE_AT_ONCE][COMBINE_VECTORS][4] = {};

#pragma unroll
                for (int k = 0; k < COMBINE_AT_ONCE; k++) {
                    int other = j + (base + i + k) * step;
                    const float *from =
                        part_of(w, h.first + other, !other).sums + r * MLA_DIM_V + lane * 4;

#pragma unroll
                    for (int v = 0; v < COMBINE_VECTORS; v++)
                        if (base + i + k < count)
                            load4(from, v * 128, GPUNVME_OPS_F32, y[k][v]);
                }
                if (!i) {
                    rescale(max_or_nan(most, warp_max(top)));
                    weight = fast_exp2(top - shift_of(most));
                    total += sum * weight;
                }
                add_weighed(y, weight, i);
            }
        }
        total = warp_sum(total);
    }

    __device__ __forceinline__ void rescale(float now)
    {
        float by = fast_exp2(most - shift_of(now));

        most = now;
        total *= by;
#pragma unroll
        for (int v = 0; v < COMBINE_VECTORS; v++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                z[v][i] *= by;
    }

    /* Lane `first` has the weight of the first of them. */
    __device__ __forceinline__ void
    add_weighed(const float (&y)[COMBINE_AT_ONCE][COMBINE_VECTORS][4], float weight, int first)
    {
#pragma unroll
        for (int k = 0; k < COMBINE_AT_ONCE; k++) {
            float by = __uint_as_float(
                (uint32_t)__shfl_sync(ALL_LANES, (int)__float_as_uint(weight), first + k));

#pragma unroll
            for (int v = 0; v < COMBINE_VECTORS; v++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    z[v][i] += y[k][v][i] * by;
        }
    }

    /* To where other warps find them, and from there. */
    __device__ __forceinline__ void put(combine_memory &m, int warp) const
    {
        float *to = m.sums + (warp * 32 + threadIdx.x % 32) * COMBINE_PITCH;

#pragma unroll
        for (int v = 0; v < COMBINE_VECTORS; v++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                to[v * 4 + i] = z[v][i];
        m.most[warp] = most;
        m.total[warp] = total;
    }

    __device__ __forceinline__ void add_put(const combine_memory &m, int warp)
    {
        const float *from = m.sums + (warp * 32 + threadIdx.x % 32) * COMBINE_PITCH;
        float by;

        rescale(max_or_nan(most, m.most[warp]));
        by = fast_exp2(m.most[warp] - shift_of(most));
        total += m.total[warp] * by;
#pragma unroll
        for (int v = 0; v < COMBINE_VECTORS; v++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                z[v][i] += from[v * 4 + i] * by;
    }

    /* The results of the row. */
    __device__ __forceinline__ void write(const decode_work &w, const combination &x, int r)
    {
        row_end end = end_row(w.x, head_of(w.x, x.h.kv_head, r), most, total);
        int64_t at = out_at(w.x, x.e.s, x.h.kv_head, r) + threadIdx.x % 32 * 4;

#pragma unroll
        for (int v = 0; v < COMBINE_VECTORS; v++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                z[v][i] *= end.factor;
            if (w.x.out.vectors)
                store4(w.x.out.data, at + v * 128, w.x.out_dtype, z[v]);
            else
#pragma unroll
                for (int i = 0; i < 4; i++)
                    store_element(w.x.out.data, at + v * 128 + i, w.x.out_dtype, z[v][i]);
        }
        if (threadIdx.x % 32 == 0)
            store_lse(w.x, x.e.s, x.h.kv_head, r, end.lse);
    }
};

static __device__ __forceinline__ void wait_for_combiners(void)
{
    barrier_wait(COMBINE_BARRIER, COMBINE_THREADS);
}

/* By all warps: a step of a combination. */
static __device__ __forceinline__ void combine_step(const decode_work &w, const combination &x,
                                                    int step, combine_memory &m)
{
    int warp = threadIdx.x / 32 % COMBINE_WARPS;
    int number = step * (COMBINE_WARPS / x.warps) + warp / x.warps, r = x.row + number;
    row_sums sums;

    if (number < x.rows)
        sums.add(w, x.h, r, warp % x.warps, x.warps);
    if (x.warps > 1) {
        wait_for_combiners(); /* the step before has read what is there */
        if (number < x.rows)
            sums.put(m, warp);
        wait_for_combiners();
    }
    if (number >= x.rows || warp % x.warps)
        return;
    for (int other = warp + 1; other < warp + x.warps; other++)
        sums.add_put(m, other);
    sums.write(w, x, r);
}

/* All of a combination, or shares of it in turn with other blocks. */
static __device__ __forceinline__ void combine_all(const decode_work &w, meeting *meeting,
                                                   const combination &x, combine_memory &m)
{
    int parts = x.h.last - x.h.first + 1, each = x.helped ? (x.steps + parts - 1) / parts : x.steps;

    for (int begin = 0; begin < x.steps; begin += each) {
        if (x.helped) {
            wait_for_combiners();
            if (threadIdx.x % COMBINE_THREADS == 0)
                m.told = (int)atomicAdd(&meeting->taken, 1u);
            wait_for_combiners();
            begin = m.told * each;
        }
        for (int i = begin; i < x.steps && i < begin + each; i++)
            combine_step(w, x, i, m);
    }
}

/*
 * By all warps, when the block's parts are written: of the two heads that it may share, rows from
 * `row` on. It comes to both meetings before it waits at one: if each block waited at its first
 * one, they would wait for each other in a row. Those of a rank are `ranks` apart.
 */
static __device__ __forceinline__ void combine(const decode_work &w, meeting *meetings, int ranks,
                                               const shared_head *heads, int row, combine_memory &m)
{
    int warp = threadIdx.x / 32 % COMBINE_WARPS;

    wait_for_combiners();
    if (warp < 2 && threadIdx.x % 32 == 0 && heads[warp].b >= 0) {
        shared_head h = heads[warp];

        m.all_there[warp] = meet(meetings + h.first * ranks, h, combination_of(w, h, row).helped);
    }
    wait_for_combiners();
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        const bool later = i >= 2;
        shared_head h = heads[i % 2];

        if (h.b < 0 || m.all_there[i % 2] == later)
            continue;
        combination x = combination_of(w, h, row);
        if (later && !x.helped)
            continue;
        if (later) {
            wait_for_combiners();
            if (threadIdx.x % COMBINE_THREADS == 0)
                m.told = meet_later(meetings + h.first * ranks, h);
            wait_for_combiners();
            if (!m.told)
                continue;
        }
        combine_all(w, meetings + h.first * ranks, x, m);
    }
}

#endif
