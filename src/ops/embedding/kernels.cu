/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Embedding, forward and backward. Backwards, rows are sorted by id first: each block of the sort
 * owns 512 ids, looks at all of the rows' ids, and so knows without asking another block how many
 * rows have smaller ids, and puts its own in order. Then each row of the gradient has one
 * warp, or one block, which adds up its rows in an order that depends on the ids alone.
 */
#include <limits.h>

#include "ops/cuda/rows.cuh"
#include "ops/embedding/kernels.h"

#define IDS   512 /* of a block of the sort, and its threads */
#define NOTED 480 /* rows that a warp notes at most: all is less than 64 KiB of shared memory */
#define BATCH 8
#define COLS  256 /* of a warp: eight a lane */
#define WARPS (ROWS_THREADS / 32)

static __global__ void __launch_bounds__(ROWS_THREADS) copy_elements(const gpunvme_embedding p)
{
    int64_t step = (int64_t)gridDim.x * ROWS_THREADS, all = p.rows * p.dim;

    for (int64_t at = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x; at < all; at += step) {
        int64_t i = at / p.dim, j = at % p.dim, id = p.ids[i];
        bool known = id >= 0 && id < p.vocab;

        store_element(p.y, i * p.ldy + j, p.dtype,
                      known ? load_element(p.weight, id * p.ld_weight + j, p.dtype) : NAN);
    }
}

/* Sizes are in words of 16 bytes; all bits set are a NaN in each type. */
static __global__ void __launch_bounds__(ROWS_THREADS)
    copy_words(const gpunvme_embedding p, int64_t words, int64_t ld_weight, int64_t ldy)
{
    int64_t step = (int64_t)gridDim.x * ROWS_THREADS, all = p.rows * words;

    for (int64_t at = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x; at < all; at += step) {
        int64_t i = at / words, j = at % words, id = p.ids[i];
        uint4 x = make_uint4(~0u, ~0u, ~0u, ~0u);

        if (id >= 0 && id < p.vocab)
            x = ((const uint4 *)p.weight)[id * ld_weight + j];
        __stwb((uint4 *)p.y + i * ldy + j, x);
    }
}

static __global__ void __launch_bounds__(ROWS_THREADS) clear(const gpunvme_embedding_grad p)
{
    int64_t step = (int64_t)gridDim.x * ROWS_THREADS, all = p.vocab * p.dim;

    for (int64_t at = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x; at < all; at += step)
        ((float *)p.grad_weight)[at / p.dim * p.ld_grad_weight + at % p.dim] = 0;
}

static __global__ void __launch_bounds__(ROWS_THREADS) add_atomic(const gpunvme_embedding_grad p)
{
    int64_t step = (int64_t)gridDim.x * ROWS_THREADS, all = p.rows * p.dim;

    for (int64_t at = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x; at < all; at += step) {
        int64_t i = at / p.dim, j = at % p.dim, id = p.ids[i];

        if (id >= 0 && id < p.vocab)
            atomicAdd((float *)p.grad_weight + id * p.ld_grad_weight + j,
                      load_element(p.grad_y, i * p.ld_grad_y + j, p.dtype));
    }
}

/* The ids of BATCH times 32 rows of a warp, all under way at once; -1 beyond the last. */
template <typename VISIT>
static __device__ __forceinline__ void visit_ids(const embedding_sort &x, int64_t begin,
                                                 int64_t end, VISIT visit)
{
    int lane = threadIdx.x % 32;

    for (int64_t i0 = begin + lane; i0 - lane < end; i0 += BATCH * 32) {
        int32_t ids[BATCH];

#pragma unroll
        for (int b = 0; b < BATCH; b++)
            ids[b] = i0 + b * 32 < end ? x.p.ids[i0 + b * 32] : -1;
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            visit(i0 + b * 32, ids[b]);
    }
}

/*
 * Each warp has a share of the rows. It counts those of the block's ids, which it notes if they are
 * few, and those of smaller ids; the sums over the ids and warps before say where its own go, which
 * it then puts there.
 */
static __global__ void __launch_bounds__(IDS) order_rows(const embedding_sort x)
{
    __shared__ unsigned sums[IDS / 32], before;
    unsigned(*counts)[IDS] = (unsigned(*)[IDS])dynamic_shared();
    unsigned(*noted)[NOTED] = (unsigned(*)[NOTED])(counts + IDS / 32);
    int64_t first = (int64_t)blockIdx.x * IDS, id = first + threadIdx.x;
    int64_t share = (x.p.rows + IDS - 1) / IDS * 32, begin = threadIdx.x / 32 * share;
    int64_t end = begin + share < x.p.rows ? begin + share : x.p.rows;
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, below = 0, mine = 0, at, found = 0;
    unsigned of_warps[IDS / 32];
    int64_t last = first + IDS < x.p.vocab ? first + IDS : x.p.vocab;
    /* Row i of the id `key`, all lanes': where it belongs. */
    auto place = [&](int64_t i, bool own, unsigned key) {
        unsigned same = __ballot_sync(0xffffffffu, own), *next = &counts[warp][key];

        /* Those of the same id, bit by bit: match.sync takes longer the more ids there are. */
        if (!same)
            return;
#pragma unroll
        for (unsigned bit = 1; bit < IDS; bit *= 2) {
            unsigned set = __ballot_sync(0xffffffffu, (key & bit) != 0);

            same &= key & bit ? set : ~set;
        }
        if (own)
            x.order[*next + __popc(same & ((1u << lane) - 1))] = (int32_t)i;
        __syncwarp();
        if (own && same >> lane == 1)
            *next += __popc(same);
        __syncwarp();
    };

    let_next_kernel_start();
    for (unsigned w = 0; w < IDS / 32; w++)
        counts[w][threadIdx.x] = 0;
    if (!threadIdx.x)
        before = 0;
    __syncthreads();
    visit_ids(x, begin, end, [&](int64_t i, int32_t its) {
        bool own = its >= first && its < last;
        unsigned all = __ballot_sync(0xffffffffu, own);

        below += its >= 0 && its < first;
        if (own) {
            unsigned to = found + __popc(all & ((1u << lane) - 1));

            atomicAdd(&counts[warp][its - first], 1u);
            if (to < NOTED)
                noted[warp][to] = (unsigned)(i - begin) * IDS + (unsigned)(its - first);
        }
        found += __popc(all);
    });
    for (int step = 16; step; step /= 2)
        below += __shfl_xor_sync(0xffffffffu, below, step);
    if (!lane)
        atomicAdd(&before, below);
    __syncthreads();
#pragma unroll
    for (unsigned w = 0; w < IDS / 32; w++) {
        of_warps[w] = counts[w][threadIdx.x];
        mine += of_warps[w];
    }
    at = mine;
    for (unsigned step = 1; step < 32; step *= 2) {
        unsigned more = (unsigned)__shfl_up_sync(0xffffffffu, (int)at, (int)step);

        at += lane >= step ? more : 0;
    }
    if (lane == 31)
        sums[warp] = at;
    __syncthreads();
    at += before - mine;
    for (unsigned w = 0; w < warp; w++)
        at += sums[w];
    if (id < x.p.vocab)
        x.starts[id] = (int32_t)at;
    if (id == x.p.vocab - 1)
        x.starts[id + 1] = (int32_t)(at + mine);
    if (mine > EMBEDDING_HOT)
        x.hot[atomicAdd(x.nhot, 1u)] = (int32_t)id;
#pragma unroll
    for (unsigned w = 0; w < IDS / 32; w++) {
        counts[w][threadIdx.x] = at;
        at += of_warps[w];
    }
    __syncthreads();
    if (found <= NOTED && share < UINT_MAX / IDS)
        for (unsigned k = lane; k - lane < found; k += 32) {
            unsigned row = k < found ? noted[warp][k] : 0;

            place(begin + row / IDS, k < found, row % IDS);
        }
    else
        visit_ids(x, begin, end, [&](int64_t i, int32_t its) {
            bool own = its >= first && its < last;

            place(i, own, own ? (unsigned)(its - first) : 0);
        });
}

static __device__ __forceinline__ int left_of(int64_t dim, int64_t col)
{
    return dim - col < 8 ? (int)(dim - col) : 8;
}

/* A lane's eight columns of a row of the gradient, as they are before. */
static __device__ __forceinline__ void load_some(const embedding_sort &x, int64_t at, int left,
                                                 float (&values)[8])
{
    if (x.by_eight) {
        load_any(x.p.grad_weight, at, x.p.grad_dtype, values);
        return;
    }
#pragma unroll
    for (int e = 0; e < 8; e++)
        values[e] = e < left ? load_element(x.p.grad_weight, at + e, x.p.grad_dtype) : 0;
}

/* The rows of an id from `from` on, every `step`'th, added to the sums of COUNT times COLS. */
template <int DTYPE, int COUNT>
static __device__ __forceinline__ void add_rows(const embedding_sort &x, int from, int end,
                                                int step, int64_t col, float (&sums)[COUNT][8])
{
    for (int k = from; k < end && !x.by_eight; k += step)
#pragma unroll
        for (int c = 0; c < COUNT; c++)
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (col + c * COLS + e < x.p.dim)
                    sums[c][e] += load_element(
                        x.p.grad_y, x.order[k] * x.p.ld_grad_y + col + c * COLS + e, DTYPE);
    if (!x.by_eight)
        return;
#pragma unroll 4 / COUNT
    for (int k = from; k < end; k += step) {
        int64_t at = x.order[k] * x.p.ld_grad_y + col;
        eight<DTYPE> raw[COUNT] = {};
        float values[8];

#pragma unroll
        for (int c = 0; c < COUNT; c++)
            if (col + c * COLS < x.p.dim)
                load_eight<DTYPE>(x.p.grad_y, at + c * COLS, raw[c]);
#pragma unroll
        for (int c = 0; c < COUNT; c++) {
            unpack_eight<DTYPE>(raw[c], values);
#pragma unroll
            for (int e = 0; e < 8; e++)
                sums[c][e] += values[e];
        }
    }
}

static __device__ __forceinline__ void store_some(const embedding_sort &x, int64_t at, int left,
                                                  float (&sums)[8])
{
    if (x.p.accumulate) {
        float values[8];

        load_some(x, at, left, values);
#pragma unroll
        for (int e = 0; e < 8; e++)
            sums[e] += values[e];
    }
    if (x.by_eight) {
        if (x.p.grad_dtype == GPUNVME_OPS_F32)
            store_values<GPUNVME_OPS_F32>(x.p.grad_weight, at, sums);
        else if (x.p.grad_dtype == GPUNVME_OPS_F16)
            store_values<GPUNVME_OPS_F16>(x.p.grad_weight, at, sums);
        else
            store_values<GPUNVME_OPS_BF16>(x.p.grad_weight, at, sums);
        return;
    }
#pragma unroll
    for (int e = 0; e < 8; e++)
        if (e < left)
            store_element(x.p.grad_weight, at + e, x.p.grad_dtype, sums[e]);
}

#define CHUNKS 2 /* of COLS: of a warp, so that as many loads and stores are under way */
#define GROUP  4 /* ids of a warp, whose rows' places it asks for at once */

/* A warp's ids, and CHUNKS times COLS columns of them. */
template <int DTYPE>
static __device__ __forceinline__ void sum_ids(const embedding_sort &x, int64_t at, int64_t across)
{
    int lane = threadIdx.x % 32;
    int64_t first = at / across * GROUP, col = at % across * CHUNKS * COLS + lane * 8;
    int start = 0;

    if (lane <= GROUP && first + lane <= x.p.vocab)
        start = x.starts[first + lane];
    for (int64_t id = first; id < first + GROUP && id < x.p.vocab; id++) {
        int from = __shfl_sync(0xffffffffu, start, (int)(id - first));
        int end = __shfl_sync(0xffffffffu, start, (int)(id - first) + 1);
        float sums[CHUNKS][8] = {};

        if (end - from > EMBEDDING_HOT || (x.p.accumulate && from == end))
            continue;
        add_rows<DTYPE, CHUNKS>(x, from, end, 1, col, sums);
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            if (col + c * COLS < x.p.dim)
                store_some(x, id * x.p.ld_grad_weight + col + c * COLS,
                           left_of(x.p.dim, col + c * COLS), sums[c]);
    }
}

/* The block's warps share the rows of a hot id; the first one adds up their sums. */
template <int DTYPE>
static __device__ __forceinline__ void sum_hot(const embedding_sort &x, int64_t id, int64_t col,
                                               float (&shared)[WARPS][COLS])
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int end = x.starts[id + 1], left = left_of(x.p.dim, col);
    float sums[1][8] = {};

    if (left > 0)
        add_rows<DTYPE, 1>(x, x.starts[id] + warp, end, WARPS, col, sums);
#pragma unroll
    for (int e = 0; e < 8; e++)
        shared[warp][lane * 8 + e] = sums[0][e];
    __syncthreads();
    for (int w = 1; w < WARPS && !warp; w++)
#pragma unroll
        for (int e = 0; e < 8; e++)
            sums[0][e] += shared[w][lane * 8 + e];
    if (!warp && left > 0)
        store_some(x, id * x.p.ld_grad_weight + col, left, sums[0]);
    __syncthreads();
}

/* The first blocks have the hot ids, which take longest; each warp of the others has its own. */
template <int DTYPE>
static __global__ void __launch_bounds__(ROWS_THREADS, 4)
    sum_rows(const embedding_sort x, unsigned hot_blocks)
{
    __shared__ float shared[WARPS][COLS];
    int64_t lane = threadIdx.x % 32, step = (int64_t)(gridDim.x - hot_blocks) * WARPS;
    int64_t across = (x.p.dim + COLS - 1) / COLS;

    wait_for_kernels_before();
    if (blockIdx.x < hot_blocks) {
        for (int64_t at = blockIdx.x; at < *x.nhot * across; at += hot_blocks)
            sum_hot<DTYPE>(x, x.hot[at / across], at % across * COLS + lane * 8, shared);
        return;
    }
    across = (across + CHUNKS - 1) / CHUNKS;
    for (int64_t at = (int64_t)(blockIdx.x - hot_blocks) * WARPS + threadIdx.x / 32;
         at < (x.p.vocab + GROUP - 1) / GROUP * across; at += step)
        sum_ids<DTYPE>(x, at, across);
}

gpunvme_ops_status_t embedding_copy(const struct gpunvme_embedding *p, int by_words, void *stream)
{
    int64_t count = p->dtype == GPUNVME_OPS_F32 ? 4 : 8;
    int64_t threads = p->rows * (by_words ? p->dim / count : p->dim);
    unsigned blocks = rows_blocks((threads + ROWS_THREADS - 1) / ROWS_THREADS);

    if (by_words)
        LAUNCH(copy_words, blocks, ROWS_THREADS, stream, *p, p->dim / count, p->ld_weight / count,
               p->ldy / count);
    else
        LAUNCH(copy_elements, blocks, ROWS_THREADS, stream, *p);
    return cuda_status(cudaGetLastError(), "launching an embedding");
}

gpunvme_ops_status_t embedding_atomic(const struct gpunvme_embedding_grad *p, void *stream)
{
    if (!p->accumulate)
        LAUNCH(clear, rows_blocks((p->vocab * p->dim + ROWS_THREADS - 1) / ROWS_THREADS),
               ROWS_THREADS, stream, *p);
    if (p->rows)
        LAUNCH(add_atomic, rows_blocks((p->rows * p->dim + ROWS_THREADS - 1) / ROWS_THREADS),
               ROWS_THREADS, stream, *p);
    return cuda_status(cudaGetLastError(), "launching an embedding backward");
}

gpunvme_ops_status_t embedding_order(const struct embedding_sort *x, void *stream)
{
    const size_t nbytes = IDS / 32 * (IDS + NOTED) * sizeof(unsigned);
    gpunvme_ops_status_t status = cuda_allow_shared((const void *)order_rows, nbytes);

    if (status)
        return status;
    LAUNCH_SHARED(order_rows, (unsigned)((x->p.vocab + IDS - 1) / IDS), IDS, nbytes, stream, *x);
    return cuda_status(cudaGetLastError(), "launching a sort of rows");
}

gpunvme_ops_status_t embedding_sum(const struct embedding_sort *x, unsigned hot_blocks,
                                   void *stream)
{
    int64_t across = (x->p.dim + CHUNKS * COLS - 1) / (CHUNKS * COLS);
    int64_t warps = (x->p.vocab + GROUP - 1) / GROUP * across;
    unsigned blocks = hot_blocks + rows_blocks((warps + WARPS - 1) / WARPS);

    if (x->p.dtype == GPUNVME_OPS_F32)
        LAUNCH_CLUSTERS((sum_rows<GPUNVME_OPS_F32>), blocks, 1u, (unsigned)ROWS_THREADS, 0, stream,
                        *x, hot_blocks);
    else if (x->p.dtype == GPUNVME_OPS_F16)
        LAUNCH_CLUSTERS((sum_rows<GPUNVME_OPS_F16>), blocks, 1u, (unsigned)ROWS_THREADS, 0, stream,
                        *x, hot_blocks);
    else
        LAUNCH_CLUSTERS((sum_rows<GPUNVME_OPS_BF16>), blocks, 1u, (unsigned)ROWS_THREADS, 0, stream,
                        *x, hot_blocks);
    return cuda_status(cudaGetLastError(), "launching sums of rows");
}
