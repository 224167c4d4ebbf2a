/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention backwards: the passes over rows that all rungs need.
 */
#include "ops/attention/cuda/backward.cuh"

#define THREADS 256
#define WARPS   (THREADS / 32)
#define TILE    CUDA_BACKWARD_PIECE

/* The sum of a warp's values, in its first lane. */
static __device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int offset = 16; offset; offset /= 2)
        x += __shfl_down_sync(0xffffffffu, x, offset, 32);
    return x;
}

/* 64 rows of a head in the workspace, which a block takes. */
struct row_tile {
    int b, head, first;
    cuda_sequence s;
    int64_t row; /* of `first` */
};

static __device__ __forceinline__ row_tile row_tile_of(const cuda_backward &x, int64_t item)
{
    int tiles = padded(x.f.q_len) / TILE;
    int64_t head = item / tiles;
    row_tile t;

    t.first = (int)(item % tiles) * TILE;
    t.b = (int)(head / x.f.heads);
    t.head = (int)(head % x.f.heads);
    t.s = sequence_of(x.f, t.b);
    t.row = t.head * x.q_room + query_room(x, t.b) + t.first;
    return t;
}

/* Of grad_out as products have it, so that dP - D is 0 where it should be. */
static __device__ __forceinline__ float grad_out_of(const cuda_backward &x, float y)
{
    return x.operands[BACKWARD_GRAD_OUT].copied ? from_bits(to_bits(y, x.f.dtype), x.f.dtype) : y;
}

static __device__ __forceinline__ float delta_of(const cuda_backward &x, int64_t out, int64_t grad,
                                                 bool vectors)
{
    float sum = 0;

    if (vectors)
        for (int c = (int)threadIdx.x % 32 * 4; c < x.f.dim_v; c += 128) {
            float y[4], z[4];

            load4(x.f.out.data, out + c, x.f.out_dtype, y);
            load4(x.grad_out.data, grad + c, x.f.out_dtype, z);
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum += y[i] * grad_out_of(x, z[i]);
        }
    else
        for (int c = (int)threadIdx.x % 32; c < x.f.dim_v; c += 32)
            sum += load_element(x.f.out.data, out + c, x.f.out_dtype) *
                   grad_out_of(x, load_element(x.grad_out.data, grad + c, x.f.out_dtype));
    return warp_sum(sum);
}

/* A warp takes every eighth row of a tile, padding too: there D and the weights are 0. */
static __global__ void __launch_bounds__(THREADS) deltas(const cuda_backward x)
{
    int64_t items = (int64_t)x.f.batch * x.f.heads * (padded(x.f.q_len) / TILE);
    bool vectors = x.f.out.vectors && x.grad_out.vectors && x.f.dim_v % 4 == 0;

    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        row_tile t = row_tile_of(x, item);

        if (t.first >= padded(t.s.q_len))
            continue;
#pragma unroll 4
        for (int r = (int)threadIdx.x / 32; r < TILE; r += WARPS) {
            int i = t.first + r;
            float delta = 0, lse = INFINITY;

            if (i < t.s.q_len) {
                delta = delta_of(x, query_at(x.f.out, t.s, i, t.head),
                                 query_at(x.grad_out, t.s, i, t.head), vectors);
                lse = ((const float *)x.f.lse.data)[query_at(x.f.lse, t.s, i, t.head)];
                lse = lse == -INFINITY ? INFINITY : lse * LOG2_E;
            }
            if (threadIdx.x % 32 == 0) {
                x.delta[t.row + r] = delta;
                x.lse2[t.row + r] = lse;
            }
        }
    }
}

/* A block for each head; sums in f64, in one order. */
static __global__ void __launch_bounds__(THREADS) sinks(const cuda_backward x)
{
    __shared__ double all[THREADS];

    for (int head = blockIdx.x; head < x.f.heads; head += gridDim.x) {
        double sum = 0;

        for (int b = 0; b < x.f.batch; b++) {
            cuda_sequence s = sequence_of(x.f, b);

            for (int i = threadIdx.x; i < s.q_len; i += THREADS) {
                float lse = ((const float *)x.f.lse.data)[query_at(x.f.lse, s, i, head)];

                sum -= (double)expf(x.f.sinks[head] - lse) *
                       (double)x.delta[head * x.q_room + query_room(x, b) + i];
            }
        }
        all[threadIdx.x] = sum;
        __syncthreads();
        if (!threadIdx.x) {
            for (int i = 1; i < THREADS; i++)
                sum += all[i];
            x.grad_sinks[head] = (float)sum;
        }
        __syncthreads();
    }
}

/* A thread takes eight channels; rows up to a multiple of CUDA_BACKWARD_ALIGN are filled up. */
static __global__ void __launch_bounds__(THREADS) copy(const cuda_backward x, int which)
{
    bool keys = which == BACKWARD_K || which == BACKWARD_V;
    int dim = which == BACKWARD_Q || which == BACKWARD_K ? x.f.dim : x.f.dim_v;
    int heads = keys ? x.f.kv_heads : x.f.heads, rows = padded(keys ? x.f.k_len : x.f.q_len);
    int64_t items = (int64_t)x.f.batch * heads * rows * (x.width / 8);

    for (int64_t item = (int64_t)blockIdx.x * THREADS + threadIdx.x; item < items;
         item += (int64_t)gridDim.x * THREADS) {
        int chunk = (int)(item % (x.width / 8));
        int64_t rest = item / (x.width / 8);
        int i = (int)(rest % rows), head = (int)(rest / rows % heads);
        int b = (int)(rest / rows / heads);
        cuda_sequence s = sequence_of(x.f, b);
        int len = keys ? s.k_len : s.q_len;
        uint16_t *to = (uint16_t *)tile_rows(x, which, s, b, head);
        float values[8];

        if (i >= padded(len))
            continue;
#pragma unroll
        for (int k = 0; k < 8; k++)
            values[k] = i < len && chunk * 8 + k < dim
                            ? operand_at(x, which, s, i, head, chunk * 8 + k)
                            : 0;
        *(uint4 *)(to + (int64_t)i * x.width + chunk * 8) = make_uint4(
            to_pair(values[0], values[1], x.f.dtype), to_pair(values[2], values[3], x.f.dtype),
            to_pair(values[4], values[5], x.f.dtype), to_pair(values[6], values[7], x.f.dtype));
    }
}

/* The sum of channel c of a row, turned back. */
static __device__ __forceinline__ float finished(const cuda_backward &x, const cuda_sequence &s,
                                                 int64_t row, int i, int c)
{
    cuda_pair pair = pair_if(x.f.rope, true, c);
    float sum = x.sums[sum_place(x.width, row, c)];

    if (pair.pair < 0)
        return sum;
    return turned_back(x.f.rope, pair, turned_position(s, i), sum,
                       x.sums[sum_place(x.width, row, pair.partner)]);
}

/* Channels c and c + 1 of rows r and r + 8 of a tile, which lie beside each other. */
static __device__ __forceinline__ float4 finished_four(const cuda_backward &x, const row_tile &t,
                                                       int r, int c)
{
    int64_t row = t.row + r;
    int i = t.first + r;
    float4 sums = *(const float4 *)(x.sums + sum_place(x.width, row, c));

    if (!x.f.rope.dim)
        return sums;
    sums.x = finished(x, t.s, row, i, c);
    sums.y = finished(x, t.s, row, i, c + 1);
    if (i + 8 < t.s.q_len) {
        sums.z = finished(x, t.s, row + 8, i + 8, c);
        sums.w = finished(x, t.s, row + 8, i + 8, c + 1);
    }
    return sums;
}

static __global__ void __launch_bounds__(THREADS) finish_queries(const cuda_backward x)
{
    int64_t items = (int64_t)x.f.batch * x.f.heads * (padded(x.f.q_len) / TILE);
    int pairs = x.width / 2;

    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        row_tile t = row_tile_of(x, item);

        if (t.first >= t.s.q_len)
            continue;
        for (int n = (int)threadIdx.x; n < TILE / 2 * pairs; n += THREADS) {
            int c = n % pairs * 2, r = n / pairs / 8 * 16 + n / pairs % 8, i = t.first + r;
            float4 sums;

            if (i >= t.s.q_len || c >= x.f.dim)
                continue;
            sums = finished_four(x, t, r, c);
            store_two(x.grad_q, query_at(x.grad_q, t.s, i, t.head), c, x.f.dim, x.f.dtype,
                      x.f.scale * sums.x, x.f.scale * sums.y);
            if (i + 8 < t.s.q_len)
                store_two(x.grad_q, query_at(x.grad_q, t.s, i + 8, t.head), c, x.f.dim, x.f.dtype,
                          x.f.scale * sums.z, x.f.scale * sums.w);
        }
    }
}

static __global__ void __launch_bounds__(THREADS) finish_keys(const cuda_backward x)
{
    int64_t items = (int64_t)x.f.batch * x.f.kv_heads * x.f.k_len * x.f.dim;

    for (int64_t item = (int64_t)blockIdx.x * THREADS + threadIdx.x; item < items;
         item += (int64_t)gridDim.x * THREADS) {
        int c = (int)(item % x.f.dim);
        int64_t rest = item / x.f.dim;
        int j = (int)(rest % x.f.k_len), head = (int)(rest / x.f.k_len % x.f.kv_heads);
        int b = (int)(rest / x.f.k_len / x.f.kv_heads);
        cuda_sequence s = sequence_of(x.f, b);
        const float *row = x.grad_turned + (head * x.k_room + key_room(x, b) + j) * x.width;
        cuda_pair pair = pair_of(x.f.rope, c);

        if (j < s.k_len)
            store_element(x.grad_k.data, key_at(x.f, x.grad_k, s, j, head) + c, x.f.dtype,
                          turned_back(x.f.rope, pair, j, row[c], row[pair.partner]));
    }
}

/* Rows with those that may fill up the last tiles. */
static int64_t most_rows(int64_t rows)
{
    return rows + CUDA_BACKWARD_ALIGN - 1;
}

static unsigned row_tiles(const struct cuda_backward *x)
{
    return cuda_attention_blocks(most_rows(x->f.q_len) * x->f.heads * x->f.batch, TILE);
}

gpunvme_ops_status_t cuda_backward_deltas(const struct cuda_backward *x, void *stream)
{
    LAUNCH(deltas, row_tiles(x), THREADS, stream, *x);
    return cuda_attention_launched();
}

gpunvme_ops_status_t cuda_backward_sinks(const struct cuda_backward *x, void *stream)
{
    LAUNCH(sinks, cuda_attention_blocks(x->f.heads, 1), THREADS, stream, *x);
    return cuda_attention_launched();
}

gpunvme_ops_status_t cuda_backward_copy(const struct cuda_backward *x, void *stream)
{
    int64_t q = most_rows(x->f.q_len) * x->f.heads, k = most_rows(x->f.k_len) * x->f.kv_heads;

    for (int i = 0; i < BACKWARD_OPERANDS; i++) {
        int64_t rows = (i == BACKWARD_K || i == BACKWARD_V ? k : q) * x->f.batch;

        if (x->operands[i].copied)
            LAUNCH(copy, cuda_attention_blocks(rows * (x->width / 8), THREADS), THREADS, stream, *x,
                   i);
    }
    return cuda_attention_launched();
}

gpunvme_ops_status_t cuda_backward_finish(const struct cuda_backward *x, void *stream)
{
    int64_t k = (int64_t)x->f.batch * x->f.kv_heads * x->f.k_len * x->f.dim;

    if (x->sums)
        LAUNCH(finish_queries, row_tiles(x), THREADS, stream, *x);
    if (x->grad_turned)
        LAUNCH(finish_keys, cuda_attention_blocks(k, THREADS), THREADS, stream, *x);
    return cuda_attention_launched();
}
