/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Embedding, forward and backward. Backwards, rows are sorted by id first: each block of the sort
 * owns 1024 ids, looks at all of the rows' ids twice, and so knows without asking another block how
 * many rows have smaller ids, and puts its own in order. Then each row of the gradient has one
 * warp, or one block, which adds up its rows in an order that depends on the ids alone.
 */
#include "ops/cuda/rows.cuh"
#include "ops/embedding/kernels.h"

#define IDS   1024 /* of a block, and its threads */
#define COLS  256  /* of a warp: eight a lane */
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

/* Sums of all counts before each, in place: of IDS of them, by as many threads. */
static __device__ __forceinline__ void scan(unsigned (&counts)[IDS])
{
    for (int step = 1; step < IDS; step *= 2) {
        unsigned more = (int)threadIdx.x >= step ? counts[threadIdx.x - step] : 0;

        __syncthreads();
        counts[threadIdx.x] += more;
        __syncthreads();
    }
    unsigned before = threadIdx.x ? counts[threadIdx.x - 1] : 0;

    __syncthreads();
    counts[threadIdx.x] = before;
    __syncthreads();
}

/* A list of rows of this block's ids, in order; warp after warp puts its behind those before. */
static __device__ __forceinline__ void place_list(const embedding_sort &x, int64_t first,
                                                  const int32_t *list, unsigned count,
                                                  unsigned (&next)[IDS])
{
    unsigned lane = threadIdx.x % 32, mine = threadIdx.x < count;
    int32_t i = mine ? list[threadIdx.x] : 0;
    unsigned id = mine ? (unsigned)(x.p.ids[i] - first) : IDS + lane;
    unsigned same = __match_any_sync(0xffffffffu, id);

    for (unsigned warp = 0; warp * 32 < count; warp++) {
        if (threadIdx.x / 32 == warp && mine)
            x.order[next[id] + __popc(same & ((1u << lane) - 1))] = i;
        __syncthreads();
        if (threadIdx.x / 32 == warp && mine && same >> lane == 1)
            next[id] += __popc(same);
        __syncthreads();
    }
}

/* Of IDS rows at a time few are this block's: those are gathered first. */
static __device__ __forceinline__ void place_rows(const embedding_sort &x, int64_t first,
                                                  unsigned (&next)[IDS])
{
    __shared__ int32_t list[2 * IDS];
    __shared__ unsigned of_warp[IDS / 32];
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = 0;

    for (int64_t i0 = 0; i0 < x.p.rows; i0 += IDS) {
        int64_t i = i0 + threadIdx.x, id = i < x.p.rows ? x.p.ids[i] - first : -1;
        bool mine = id >= 0 && id < IDS && id + first < x.p.vocab;
        unsigned found = __ballot_sync(0xffffffffu, mine), at = count;

        if (!lane)
            of_warp[warp] = __popc(found);
        __syncthreads();
        for (unsigned w = 0; w < IDS / 32; w++) {
            at += w < warp ? of_warp[w] : 0;
            count += of_warp[w];
        }
        if (mine)
            list[at + __popc(found & ((1u << lane) - 1))] = (int32_t)i;
        __syncthreads();
        if (count < IDS)
            continue;
        place_list(x, first, list, IDS, next);
        count -= IDS;
        if (threadIdx.x < count)
            list[threadIdx.x] = list[IDS + threadIdx.x];
        __syncthreads();
    }
    place_list(x, first, list, count, next);
}

static __global__ void __launch_bounds__(IDS) order_rows(const embedding_sort x)
{
    __shared__ unsigned counts[IDS], before;
    int64_t first = (int64_t)blockIdx.x * IDS, id = first + threadIdx.x;
    unsigned mine, below = 0;

    counts[threadIdx.x] = 0;
    if (!threadIdx.x)
        before = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < x.p.rows; i += IDS) {
        int64_t its = x.p.ids[i];

        below += its >= 0 && its < first;
        if (its >= first && its < first + IDS && its < x.p.vocab)
            atomicAdd(&counts[its - first], 1u);
    }
    atomicAdd(&before, below);
    __syncthreads();
    mine = counts[threadIdx.x];
    scan(counts);
    counts[threadIdx.x] += before;
    if (id < x.p.vocab)
        x.starts[id] = (int32_t)counts[threadIdx.x];
    if (id == x.p.vocab - 1)
        x.starts[id + 1] = (int32_t)(counts[threadIdx.x] + mine);
    if (mine > EMBEDDING_HOT)
        x.hot[atomicAdd(x.nhot, 1u)] = (int32_t)id;
    __syncthreads();
    place_rows(x, first, counts);
}

static __device__ __forceinline__ int left_of(int64_t dim, int64_t col)
{
    return dim - col < 8 ? (int)(dim - col) : 8;
}

/* A lane's eight columns of a row. */
static __device__ __forceinline__ void load_some(const embedding_sort &x, const void *p, int64_t at,
                                                 int dtype, int left, float (&values)[8])
{
    if (x.by_eight && left >= 8) {
        load_any(p, at, dtype, values);
        return;
    }
#pragma unroll
    for (int e = 0; e < 8; e++)
        values[e] = e < left ? load_element(p, at + e, dtype) : 0;
}

/* The rows of an id from `from` on, every `step`'th, added to the sums of COUNT times COLS. */
template <int DTYPE, int COUNT>
static __device__ __forceinline__ void add_rows(const embedding_sort &x, int from, int end,
                                                int step, int64_t col, float (&sums)[COUNT][8])
{
    bool whole = x.by_eight && x.p.dim % 8 == 0;
#pragma unroll 2
    for (int k = from; k < end; k += step) {
        int64_t at = x.order[k] * x.p.ld_grad_y + col;
        eight<DTYPE> raw[COUNT] = {};
        float values[8];

#pragma unroll
        for (int c = 0; c < COUNT; c++)
            if (whole && col + c * COLS < x.p.dim)
                load_eight<DTYPE>(x.p.grad_y, at + c * COLS, raw[c]);
#pragma unroll
        for (int c = 0; c < COUNT; c++) {
            if (whole)
                unpack_eight<DTYPE>(raw[c], values);
            else
                load_some(x, x.p.grad_y, at + c * COLS, DTYPE, left_of(x.p.dim, col + c * COLS),
                          values);
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

        load_some(x, x.p.grad_weight, at, x.p.grad_dtype, left, values);
#pragma unroll
        for (int e = 0; e < 8; e++)
            sums[e] += values[e];
    }
    if (x.by_eight && left >= 8) {
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

template <int DTYPE>
static __global__ void __launch_bounds__(ROWS_THREADS, 4) sum_ids(const embedding_sort x)
{
    int64_t across = (x.p.dim + CHUNKS * COLS - 1) / (CHUNKS * COLS), all = x.p.vocab * across;
    int64_t step = (int64_t)gridDim.x * WARPS;

    for (int64_t at = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; at < all; at += step) {
        int64_t id = at / across, col = at % across * CHUNKS * COLS + threadIdx.x % 32 * 8;
        int start = x.starts[id], end = x.starts[id + 1];
        float sums[CHUNKS][8] = {};

        if (end - start > EMBEDDING_HOT || (x.p.accumulate && start == end))
            continue;
        add_rows<DTYPE, CHUNKS>(x, start, end, 1, col, sums);
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            if (col + c * COLS < x.p.dim)
                store_some(x, id * x.p.ld_grad_weight + col + c * COLS,
                           left_of(x.p.dim, col + c * COLS), sums[c]);
    }
}

/* The warps share an id's rows; the first one adds up their sums. */
template <int DTYPE>
static __global__ void __launch_bounds__(ROWS_THREADS) sum_hot(const embedding_sort x)
{
    __shared__ float shared[WARPS][COLS];
    int64_t across = (x.p.dim + COLS - 1) / COLS, all = *x.nhot * across;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    for (int64_t at = blockIdx.x; at < all; at += gridDim.x) {
        int64_t id = x.hot[at / across], col = at % across * COLS + lane * 8;
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
    LAUNCH(order_rows, (unsigned)((x->p.vocab + IDS - 1) / IDS), IDS, stream, *x);
    return cuda_status(cudaGetLastError(), "launching a sort of rows");
}

gpunvme_ops_status_t embedding_sum(const struct embedding_sort *x, void *stream)
{
    int64_t warps = x->p.vocab * ((x->p.dim + CHUNKS * COLS - 1) / (CHUNKS * COLS));
    unsigned blocks = rows_blocks((warps + WARPS - 1) / WARPS);

    if (x->p.dtype == GPUNVME_OPS_F32)
        LAUNCH(sum_ids<GPUNVME_OPS_F32>, blocks, ROWS_THREADS, stream, *x);
    else if (x->p.dtype == GPUNVME_OPS_F16)
        LAUNCH(sum_ids<GPUNVME_OPS_F16>, blocks, ROWS_THREADS, stream, *x);
    else
        LAUNCH(sum_ids<GPUNVME_OPS_BF16>, blocks, ROWS_THREADS, stream, *x);
    return cuda_status(cudaGetLastError(), "launching sums of rows");
}

gpunvme_ops_status_t embedding_sum_hot(const struct embedding_sort *x, int blocks, void *stream)
{
    if (x->p.dtype == GPUNVME_OPS_F32)
        LAUNCH(sum_hot<GPUNVME_OPS_F32>, (unsigned)blocks, ROWS_THREADS, stream, *x);
    else if (x->p.dtype == GPUNVME_OPS_F16)
        LAUNCH(sum_hot<GPUNVME_OPS_F16>, (unsigned)blocks, ROWS_THREADS, stream, *x);
    else
        LAUNCH(sum_hot<GPUNVME_OPS_BF16>, (unsigned)blocks, ROWS_THREADS, stream, *x);
    return cuda_status(cudaGetLastError(), "launching sums of many rows");
}
