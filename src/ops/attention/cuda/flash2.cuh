/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rung 4, flash2: the work is split over queries (Dao, "FlashAttention-2", 2023). A warp has rows
 * of its own, 32 of them, or 16 where there are more than 128 channels, and needs nothing of the
 * other warps but the tiles that all copy. Tiles of K and V come in turn into a ring in shared
 * memory while others are multiplied. Sums are scaled only when a score exceeds the largest so far
 * by so much that weights might become too large. K is turned once for all queries, where there is
 * RoPE.
 * A file for each width of tiles compiles this: flash2_*.cu.
 */
#ifndef OPS_ATTENTION_CUDA_FLASH2_CUH
#define OPS_ATTENTION_CUDA_FLASH2_CUH

#include "ops/attention/cuda/flash2.h"
#include "ops/attention/cuda/mma.cuh"

#define ROWS   FLASH2_ROWS
#define GROWTH 8 /* log 2 of the largest weight */

template <int D> struct shape {
    static const int warps = D == 256 ? 8 : 4;
    static const int threads = warps * 32;
    static const int parts = ROWS / warps / 16; /* of 16 rows that a warp has */
    static const int ring = FLASH2_RING(D);
    static const int blocks = D == 256 ? 1 : 2;
    static const uint32_t q_nbytes = ROWS * D * 2, tile_nbytes = MMA_KEYS * D * 2;
    static const uint32_t nbytes = FLASH2_NBYTES(D);
};

/* What a block makes. */
struct work {
    cuda_sequence s;
    int head, kv_head, first; /* of the queries */
};

/* A warp's rows: sums, and of each the largest score and the weights of this thread's columns. */
template <int D> struct sums {
    float out[shape<D>::parts][D / 8][4];
    float most[shape<D>::parts][2], weight[shape<D>::parts][2];
};

template <int D> using score_rows = float[shape<D>::parts][MMA_KEYS / 8][4];

static __host__ __device__ __forceinline__ int64_t tiles_of(const cuda_attention &x)
{
    return ((int64_t)x.q_len + ROWS - 1) / ROWS;
}

/*
 * Heads that follow each other are made together, `section` of them, so that their K and V stay in
 * the cache; and of those the last queries first, which with a causal mask see the most keys.
 */
static __device__ __forceinline__ work work_of(const cuda_attention &x, int64_t item, int section)
{
    int64_t tiles = tiles_of(x), heads = (int64_t)x.batch * x.heads;
    int64_t first = item / (section * tiles) * section, rest = item - first * tiles;
    int64_t here = heads - first < section ? heads - first : section;
    int64_t head = first + rest % here;
    work w = {sequence_of(x, (int)(head / x.heads)), (int)(head % x.heads), 0,
              (int)(tiles - 1 - rest / here) * ROWS};

    w.kv_head = w.head / x.group;
    return w;
}

/* Tiles 2 n and 2 n + 1 of the ring's order are K and V of the block's n-th 64 keys. */
template <int D> struct ring {
    uint32_t base, slot; /* slot: of the next tile to be brought */
    int next, count, j;  /* the tile's number; how many there are; its first key */

    __device__ __forceinline__ void bring(const cuda_attention &x, const work &w)
    {
        typedef shape<D> t;

        if (next < count) {
            bool v = next % 2;
            const cuda_rows &rows = v ? x.v : x.k;
            int dim = v ? x.dim_v : x.dim;
            uint32_t tile = base + slot * t::tile_nbytes;

            if (w.s.pages)
                bring_pages<D, MMA_KEYS, t::threads>(tile, x, rows, dim, w.s, j, w.kv_head);
            else
                bring_tile<D, MMA_KEYS, t::threads>(tile,
                                                    keys_from(x, rows, dim, w.s, j, w.kv_head));
            j += v ? MMA_KEYS : 0;
        }
        next++;
        slot = slot + 1 == t::ring ? 0 : slot + 1;
        cp_async_commit();
    }

    /* The tile that has been waiting for longest is there, and its place in the ring; then the next
     * is brought to where the one before it was, which nobody reads any more. */
    __device__ __forceinline__ uint32_t take(const cuda_attention &x, const work &w)
    {
        typedef shape<D> t;
        uint32_t place = slot + 1 == t::ring ? 0 : slot + 1;

        cp_async_wait<t::ring - 2>();
        __syncthreads();
        bring(x, w);
        return base + place * t::tile_nbytes;
    }
};

template <int D, int DTYPE>
static __device__ __forceinline__ void multiply_keys(score_rows<D> &s, uint32_t q, uint32_t tile,
                                                     int row)
{
#pragma unroll 4
    for (int c = 0; c < D / 8; c += 2) {
        uint32_t a[shape<D>::parts][4];

#pragma unroll
        for (int m = 0; m < shape<D>::parts; m++)
            take_rows<D>(a[m], q, row + m * 16, c);
#pragma unroll
        for (int n = 0; n < MMA_KEYS / 8; n += 2) {
            uint32_t b[4];

            take_keys<D>(b, tile, n * 8, c);
#pragma unroll
            for (int m = 0; m < shape<D>::parts; m++) {
                mma16<DTYPE>(s[m][n], a[m], b[0], b[1]);
                mma16<DTYPE>(s[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

template <int D, int DTYPE>
static __device__ __forceinline__ void multiply_values(sums<D> &t, const score_rows<D> &s,
                                                       uint32_t tile)
{
#pragma unroll
    for (int n = 0; n < MMA_KEYS / 8; n += 2) {
        uint32_t a[shape<D>::parts][4];

#pragma unroll
        for (int m = 0; m < shape<D>::parts; m++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                a[m][e] =
                    to_pair(s[m][n + e / 2][e % 2 * 2], s[m][n + e / 2][e % 2 * 2 + 1], DTYPE);
#pragma unroll
        for (int c = 0; c < D / 8; c += 2) {
            uint32_t b[4];

            take_values<D>(b, tile, n * 8, c);
#pragma unroll
            for (int m = 0; m < shape<D>::parts; m++) {
                mma16<DTYPE>(t.out[m][c], a[m], b[0], b[1]);
                mma16<DTYPE>(t.out[m][c + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* `i` is this thread's first row; `j` the tile's first key. */
template <int D>
static __device__ __forceinline__ void mask(score_rows<D> &s, const cuda_attention &x,
                                            const work &w, int i, int j)
{
#pragma unroll
    for (int m = 0; m < shape<D>::parts; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            cuda_range keys = keys_of(x, w.s, i + m * 16 + h * 8);

#pragma unroll
            for (int n = 0; n < MMA_KEYS / 8; n++)
                mask_row(s[m][n][2 * h], s[m][n][2 * h + 1], keys, j + n * 8 + threadIdx.x % 4 * 2);
        }
}

template <int D>
static __device__ __forceinline__ void prepare(score_rows<D> &s, const cuda_attention &x)
{
#pragma unroll
    for (int m = 0; m < shape<D>::parts; m++)
#pragma unroll
        for (int n = 0; n < MMA_KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[m][n][e] = prepared(x, s[m][n][e]);
}

/* Of a row's scores in this tile. */
template <int D>
static __device__ __forceinline__ float top_of(const float (&s)[MMA_KEYS / 8][4], int h)
{
    float top = -INFINITY;

#pragma unroll
    for (int n = 0; n < MMA_KEYS / 8; n++)
        top = fmaxf(top, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
    return warp_max<4>(top);
}

/* The warp scales its sums if a row of it needs that. */
template <int D>
static __device__ __forceinline__ void grow(sums<D> &t, const score_rows<D> &s, float unit)
{
    float top[shape<D>::parts][2];
    bool grown = false;

#pragma unroll
    for (int m = 0; m < shape<D>::parts; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            top[m][h] = top_of<D>(s[m], h);
            grown = grown || (top[m][h] - t.most[m][h]) * unit > GROWTH;
        }
    if (!__any_sync(0xffffffff, grown))
        return;
#pragma unroll
    for (int m = 0; m < shape<D>::parts; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float most = fmaxf(t.most[m][h], top[m][h]);
            float scale = fast_exp2((t.most[m][h] - shift_of(most)) * unit);

            t.most[m][h] = most;
            t.weight[m][h] *= scale;
#pragma unroll
            for (int c = 0; c < D / 8; c++) {
                t.out[m][c][2 * h] *= scale;
                t.out[m][c][2 * h + 1] *= scale;
            }
        }
}

/* Scores become weights. */
template <int D>
static __device__ __forceinline__ void weigh(sums<D> &t, score_rows<D> &s, float unit)
{
#pragma unroll
    for (int m = 0; m < shape<D>::parts; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float shift = shift_of(t.most[m][h]) * unit;

#pragma unroll
            for (int n = 0; n < MMA_KEYS / 8; n++)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++) {
                    s[m][n][e] = fast_exp2(s[m][n][e] * unit - shift);
                    t.weight[m][h] += s[m][n][e];
                }
        }
}

/* What a warp's rows see of a tile: nothing, some, or all of it. */
enum sight { NOTHING, SOME, ALL };

static __device__ __forceinline__ sight sight_of(const cuda_range &first, const cuda_range &last,
                                                 int j)
{
    if (j + MMA_KEYS <= first.first || j >= last.end)
        return NOTHING;
    return j >= last.first && j + MMA_KEYS <= first.end ? ALL : SOME;
}

template <int D>
static __device__ __forceinline__ void store(const cuda_attention &x, const work &w, sums<D> &t,
                                             int i, float unit)
{
#pragma unroll
    for (int m = 0; m < shape<D>::parts; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = i + m * 16 + h * 8;
            float weight = warp_sum<4>(t.weight[m][h]);
            row_result r = result_of(x, w.head, t.most[m][h] * unit, weight);
            int64_t at = query_at(x.out, w.s, row, w.head);

            if (row >= w.s.q_len)
                continue;
#pragma unroll
            for (int c = 0; c < D / 8; c++)
                store_two(x, at, c * 8 + threadIdx.x % 4 * 2, t.out[m][c][2 * h] * r.scale,
                          t.out[m][c][2 * h + 1] * r.scale);
            if (x.lse.data && threadIdx.x % 4 == 0)
                ((float *)x.lse.data)[query_at(x.lse, w.s, row, w.head)] = r.lse;
        }
}

template <int D, int DTYPE>
static __device__ __forceinline__ void make(const cuda_attention &x, const work &w, uint32_t memory)
{
    typedef shape<D> t;
    int top = w.first + threadIdx.x / 32 * (16 * t::parts), i = top + threadIdx.x % 32 / 4;
    int last = w.first + ROWS < w.s.q_len ? w.first + ROWS - 1 : w.s.q_len - 1;
    int begin = keys_of(x, w.s, w.first).first, end = keys_of(x, w.s, last).end;
    int tiles = end > begin ? (end - begin + MMA_KEYS - 1) / MMA_KEYS : 0;
    cuda_range first_row = keys_of(x, w.s, top);
    cuda_range last_row = keys_of(x, w.s, top + 16 * t::parts - 1);
    ring<D> r = {memory + t::q_nbytes, 0, 0, 2 * tiles, begin};
    float unit = unit_of(x);
    sums<D> sum = {};

#pragma unroll
    for (int m = 0; m < t::parts; m++)
        sum.most[m][0] = sum.most[m][1] = -INFINITY;
    bring_queries<D, ROWS, t::threads>(memory, x, w.s, w.first, w.head);
#pragma unroll 1
    for (int n = 1; n < t::ring; n++)
        r.bring(x, w);
    for (int j = begin; j < end; j += MMA_KEYS) {
        sight sight = sight_of(first_row, last_row, j);
        score_rows<D> s = {};
        uint32_t tile = r.take(x, w);

        if (sight != NOTHING) {
            multiply_keys<D, DTYPE>(s, memory, tile, top - w.first);
            if (needs_preparing(x))
                prepare<D>(s, x);
            if (sight == SOME)
                mask<D>(s, x, w, i, j);
            grow<D>(sum, s, unit);
            weigh<D>(sum, s, unit);
        }
        tile = r.take(x, w);
        if (sight != NOTHING)
            multiply_values<D, DTYPE>(sum, s, tile);
    }
    store<D>(x, w, sum, i, unit);
}

template <int D, int DTYPE>
static __global__ void __launch_bounds__(shape<D>::threads, shape<D>::blocks)
    attend(const cuda_attention x, int section)
{
    uint32_t memory = shared_address(dynamic_shared());
    int64_t items = x.batch * tiles_of(x) * x.heads;

    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        work w = work_of(x, item, section);

        if (w.first < w.s.q_len)
            make<D, DTYPE>(x, w, memory);
        cp_async_wait<0>();
        __syncthreads(); /* nobody reads this item's tiles any more */
    }
}

template <int D>
static gpunvme_ops_status_t flash2_launch(const struct cuda_attention *x, int section, void *stream)
{
    void (*kernel)(const cuda_attention, int) =
        x->dtype == GPUNVME_OPS_F16 ? attend<D, GPUNVME_OPS_F16> : attend<D, GPUNVME_OPS_BF16>;
    int64_t items = x->batch * tiles_of(*x) * x->heads;
    gpunvme_ops_status_t status = cuda_allow_shared((const void *)kernel, shape<D>::nbytes);

    if (status)
        return status;
    LAUNCH_SHARED(kernel, cuda_attention_blocks(items, 1), shape<D>::threads, shape<D>::nbytes,
                  stream, *x, section);
    return cuda_attention_launched();
}

#endif
