/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The rung "online": a block for each query and head, one pass over the keys, and no scores in
 * memory. A warp takes 32 keys at a time: a lane multiplies the row of one of them by Q, then lanes
 * have channels, and add up the rows of V by their weights. Sums are relative to the warp's largest
 * score so far. It takes every type, size, layout and feature.
 */
#include "ops/attention/cuda/online.h"
#include "ops/attention/cuda/problem.cuh"
#include "ops/cuda/warp.cuh"

#define WARPS   4
#define THREADS (WARPS * 32)

/* A block's memory: Q, turned; and of each warp its sums, its keys' weights and rows of V. */
struct room {
    int64_t *rows;
    float *q, *sums, *weights, *most, *total;
};

static __device__ __forceinline__ room room_of(const cuda_attention &x)
{
    room r;

    r.rows = (int64_t *)dynamic_shared();
    r.weights = (float *)(r.rows + THREADS);
    r.most = r.weights + THREADS;
    r.total = r.most + WARPS;
    r.q = r.total + WARPS;
    r.sums = r.q + x.dim;
    return r;
}

/* Score of key j, by one lane; `descale` is the factor of numbers of E4M3. */
template <bool FP8>
static __device__ __forceinline__ float multiply_row(const cuda_attention &x,
                                                     const cuda_sequence &s, int j, int kv_head,
                                                     const float *q, float descale)
{
    int64_t at = key_at(x, x.k, s, j, kv_head);
    float sum = 0;

#pragma unroll 8
    for (int c = 0; c < x.dim; c++)
        sum += q[c] * load_k<FP8>(x, j, at, c);
    return score_of(x, FP8 ? sum * descale : sum);
}

/* `count` keys, of which each lane has one's score or -infinity, by the whole warp. */
template <bool FP8>
static __device__ __forceinline__ void add_keys(const cuda_attention &x, const float *weights,
                                                const int64_t *rows, int count, float scale,
                                                float *sums)
{
    for (int c = threadIdx.x % 32; c < x.dim_v; c += 32) {
        float sum = sums[c] * scale;

#pragma unroll 8
        for (int l = 0; l < count; l++)
            sum += weights[l] * load_number<FP8>(x.v.data, rows[l] + c, FP8 ? x.kv_dtype : x.dtype);
        sums[c] = sum;
    }
}

/* A warp's keys. */
template <bool FP8>
static __device__ __forceinline__ void attend_keys(const cuda_attention &x, const cuda_sequence &s,
                                                   const cuda_range &keys, int kv_head,
                                                   const room &r, float descale)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float *sums = r.sums + warp * x.dim_v, most = -INFINITY, total = 0;

    for (int c = lane; c < x.dim_v; c += 32)
        sums[c] = 0;
    for (int first = keys.first + warp * 32; first < keys.end; first += THREADS) {
        int j = first + lane, count = keys.end - first < 32 ? keys.end - first : 32;
        float score = -INFINITY, now, shift, scale, weight;

        if (j < keys.end) {
            score = multiply_row<FP8>(x, s, j, kv_head, r.q, descale);
            r.rows[threadIdx.x] = key_at(x, x.v, s, j, kv_head);
        }
        now = max_or_nan(most, warp_max(score));
        shift = now == -INFINITY ? 0 : now;
        scale = expf(most - shift);
        weight = expf(score - shift);
        most = now;
        total = total * scale + weight;
        r.weights[threadIdx.x] = weight;
        __syncwarp();
        add_keys<FP8>(x, r.weights + warp * 32, r.rows + warp * 32, count, scale, sums);
        __syncwarp();
    }
    total = warp_sum(total);
    if (!lane) {
        r.most[warp] = most;
        r.total[warp] = total;
    }
}

/* What the warps have becomes the result. */
static __device__ __forceinline__ void finish(const cuda_attention &x, const cuda_sequence &s,
                                              int i, int head, const room &r, float descale)
{
    float most = sink_of(x, head), shift, scale[WARPS], total;
    int64_t at = query_at(x.out, s, i, head);

    for (int w = 0; w < WARPS; w++)
        most = max_or_nan(most, r.most[w]);
    shift = most == -INFINITY ? 0 : most;
    total = expf(sink_of(x, head) - shift);
    for (int w = 0; w < WARPS; w++) {
        scale[w] = expf(r.most[w] - shift);
        total += r.total[w] * scale[w];
    }
    for (int c = threadIdx.x; c < x.dim_v; c += THREADS) {
        float sum = 0;

        for (int w = 0; w < WARPS; w++)
            sum += r.sums[w * x.dim_v + c] * scale[w];
        store_element(x.out.data, at + c, x.out_dtype,
                      most == -INFINITY ? 0 : sum / total * descale);
    }
    if (x.lse.data && !threadIdx.x)
        ((float *)x.lse.data)[query_at(x.lse, s, i, head)] = shift + logf(total);
}

template <bool FP8> static __global__ void __launch_bounds__(THREADS) attend(const cuda_attention x)
{
    int64_t rows = (int64_t)x.batch * x.q_len * x.heads;
    room r = room_of(x);

    wait_for_kernels_before();
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        int64_t query = row / x.heads;
        int b = (int)(query / x.q_len), i = (int)(query % x.q_len);
        cuda_sequence s = sequence_of(x, b);
        int head = (int)(row % x.heads), kv_head = head / x.group;

        if (i >= s.q_len)
            continue;
        for (int c = threadIdx.x; c < x.dim; c += THREADS)
            r.q[c] = load_q(x, s, i, query_at(x.q, s, i, head), c);
        __syncthreads();
        attend_keys<FP8>(x, s, keys_of(x, s, i), kv_head, r,
                         FP8 ? descale_of(x, x.k_descale, b, kv_head) : 1);
        __syncthreads();
        finish(x, s, i, head, r, FP8 ? descale_of(x, x.v_descale, b, kv_head) : 1);
        __syncthreads();
    }
}

size_t online_shared_nbytes(const struct cuda_attention *x)
{
    return THREADS * (sizeof(int64_t) + sizeof(float)) +
           (2 * WARPS + (size_t)x->dim + WARPS * (size_t)x->dim_v) * sizeof(float);
}

template <bool FP8> static gpunvme_ops_status_t launch(const struct cuda_attention *x, void *stream)
{
    size_t nbytes = online_shared_nbytes(x);
    gpunvme_ops_status_t status = cuda_allow_shared((const void *)attend<FP8>, nbytes);

    if (status)
        return status;
    LAUNCH_CLUSTERS(attend<FP8>, cuda_attention_blocks((int64_t)x->batch * x->q_len * x->heads, 1),
                    1, THREADS, nbytes, stream, *x);
    return cuda_attention_launched();
}

gpunvme_ops_status_t online_run(const struct cuda_attention *x, void *workspace, void *stream)
{
    (void)workspace;
    return x->kv_dtype == GPUNVME_OPS_E4M3 ? launch<true>(x, stream) : launch<false>(x, stream);
}
