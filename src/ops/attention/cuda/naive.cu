/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Rung 1, naive: S of all queries and keys in memory, by a thread for each; its softmax in place,
 * by a warp for each row; then the products with V, by a thread for each element of the result.
 */
#include "ops/attention/cuda/problem.cuh"
#include "ops/cuda/warp.cuh"

#define THREADS 256
#define WARPS   (THREADS / 32)

/* A row of S: row i of `head` in a sequence. Rows there are for the longest sequence. */
struct score_row {
    cuda_sequence s;
    int b, head, i;
};

static __device__ __forceinline__ int64_t rows_of(const cuda_attention &x)
{
    return (int64_t)x.batch * x.heads * x.q_len;
}

static __device__ __forceinline__ score_row row_of(const cuda_attention &x, int64_t row)
{
    int64_t head = row / x.q_len;
    int b = (int)(head / x.heads);
    score_row r = {sequence_of(x, b), b, (int)(head % x.heads), (int)(row % x.q_len)};

    return r;
}

static __global__ void __launch_bounds__(THREADS) multiply_k(const cuda_attention x, float *scores)
{
    int64_t count = rows_of(x) * x.k_len;

    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < count;
         at += (int64_t)gridDim.x * THREADS) {
        score_row r = row_of(x, at / x.k_len);
        int j = (int)(at % x.k_len), kv_head = r.head / x.group;
        int64_t q, k;
        float sum = 0;

        if (r.i >= r.s.q_len || !sees(keys_of(x, r.s, r.i), j))
            continue;
        q = query_at(x.q, r.s, r.i, r.head);
        k = key_at(x, x.k, r.s, j, kv_head);
        for (int c = 0; c < x.dim; c++)
            sum += load_q<true>(x, r.s, r.i, q, c) * load_k<true>(x, j, k, c);
        sum *= descale_of(x, x.q_descale, r.b, kv_head) * descale_of(x, x.k_descale, r.b, kv_head);
        scores[at] = score_of(x, sum);
    }
}

/* What the query does not see is neither written nor read. */
static __device__ __forceinline__ void softmax_row(const cuda_attention &x, const score_row &r,
                                                   float *scores)
{
    cuda_range keys = keys_of(x, r.s, r.i);
    float most = sink_of(x, r.head), sum = 0, shift;
    int lane = threadIdx.x % 32;

    for (int j = keys.first + lane; j < keys.end; j += 32)
        most = max_or_nan(most, scores[j]);
    most = warp_max(most);
    shift = most == -INFINITY ? 0 : most; /* of infinities there is no difference */
    for (int j = keys.first + lane; j < keys.end; j += 32) {
        scores[j] = expf(scores[j] - shift);
        sum += scores[j];
    }
    sum = warp_sum(sum) + expf(sink_of(x, r.head) - shift);
    for (int j = keys.first + lane; j < keys.end; j += 32)
        scores[j] /= sum;
    if (x.lse.data && !lane)
        ((float *)x.lse.data)[query_at(x.lse, r.s, r.i, r.head)] = shift + logf(sum);
}

static __global__ void __launch_bounds__(THREADS) softmax(const cuda_attention x, float *scores)
{
    int64_t rows = rows_of(x);

    for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; row < rows;
         row += (int64_t)gridDim.x * WARPS) {
        score_row r = row_of(x, row);

        if (r.i < r.s.q_len)
            softmax_row(x, r, scores + row * x.k_len);
    }
}

static __global__ void __launch_bounds__(THREADS)
    multiply_v(const cuda_attention x, const float *weights)
{
    int64_t count = rows_of(x) * x.dim_v;

    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < count;
         at += (int64_t)gridDim.x * THREADS) {
        int64_t row = at / x.dim_v;
        score_row r = row_of(x, row);
        int c = (int)(at % x.dim_v), kv_head = r.head / x.group;
        cuda_range keys = keys_of(x, r.s, r.i);
        float sum = 0;

        if (r.i >= r.s.q_len)
            continue;
        for (int j = keys.first; j < keys.end; j++)
            sum += weights[row * x.k_len + j] *
                   load_number<true>(x.v.data, key_at(x, x.v, r.s, j, kv_head) + c, x.kv_dtype);
        store_element(x.out.data, query_at(x.out, r.s, r.i, r.head) + c, x.out_dtype,
                      sum * descale_of(x, x.v_descale, r.b, kv_head));
    }
}

size_t cuda_attention_naive_nbytes(const struct cuda_attention *x)
{
    return ops_workspace_part((int64_t)x->batch * x->heads, x->q_len, x->k_len, sizeof(float));
}

gpunvme_ops_status_t cuda_attention_naive(const struct cuda_attention *x, void *workspace,
                                          void *stream)
{
    int64_t rows = (int64_t)x->batch * x->heads * x->q_len;
    float *scores = (float *)workspace;

    if (x->k_len)
        LAUNCH(multiply_k, cuda_attention_blocks(rows * x->k_len, THREADS), THREADS, stream, *x,
               scores);
    LAUNCH(softmax, cuda_attention_blocks(rows, WARPS), THREADS, stream, *x, scores);
    LAUNCH(multiply_v, cuda_attention_blocks(rows * x->dim_v, THREADS), THREADS, stream, *x,
           scores);
    return cuda_attention_launched();
}
