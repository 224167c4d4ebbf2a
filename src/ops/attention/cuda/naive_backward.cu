/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention backwards, naive: a block makes one row of a gradient. Its threads take a key (or a
 * query) each and make P and dS of it, and then a channel each and add up those of all rows.
 */
#include "ops/attention/cuda/backward.cuh"

#define THREADS 128

/* A query and a key: where their rows begin. */
struct places {
    int64_t q, k, v, grad_out;
};

/* P, dS */
struct weights {
    float p, ds;
};

static __device__ __forceinline__ places places_of(const cuda_backward &x, const cuda_sequence &s,
                                                   int i, int head, int j)
{
    int kv_head = head / x.f.group;

    return {query_at(x.f.q, s, i, head), key_at(x.f, x.f.k, s, j, kv_head),
            key_at(x.f, x.f.v, s, j, kv_head), query_at(x.grad_out, s, i, head)};
}

static __device__ weights weights_of(const cuda_backward &x, const cuda_sequence &s, int b, int i,
                                     int head, int j)
{
    places at = places_of(x, s, i, head, j);
    float product = 0, grad = 0, score, p, ds;

    for (int c = 0; c < x.f.dim; c++)
        product += load_q(x.f, s, i, at.q, c) * load_k(x.f, j, at.k, c);
    for (int c = 0; c < x.f.dim_v; c++)
        grad += load_element(x.grad_out.data, at.grad_out + c, x.f.out_dtype) *
                load_element(x.f.v.data, at.v + c, x.f.dtype);
    score = score_of(x.f, product);
    p = expf(score - ((const float *)x.f.lse.data)[query_at(x.f.lse, s, i, head)]);
    ds = p * (grad - x.delta[head * x.q_room + query_room(x, b) + i]);
    if (x.f.softcap > 0)
        ds *= 1 - score / x.f.softcap * (score / x.f.softcap);
    return {p, ds};
}

static __device__ void grad_of_query(const cuda_backward &x, const cuda_sequence &s, int b, int i,
                                     int head, float *ds)
{
    cuda_range keys = keys_of(x.f, s, i);
    int kv_head = head / x.f.group;

    for (int first = 0; first < x.f.dim; first += THREADS) {
        int c = first + (int)threadIdx.x;
        cuda_pair pair = pair_if(x.f.rope, true, c);
        float sum = 0, partner = 0;

        for (int from = keys.first; from < keys.end; from += THREADS) {
            int j = from + (int)threadIdx.x;

            ds[threadIdx.x] = j < keys.end ? weights_of(x, s, b, i, head, j).ds : 0;
            __syncthreads();
            for (j = from; c < x.f.dim && j < keys.end && j < from + THREADS; j++) {
                int64_t at = key_at(x.f, x.f.k, s, j, kv_head);

                sum += ds[j - from] * load_k(x.f, j, at, c);
                if (pair.pair >= 0)
                    partner += ds[j - from] * load_k(x.f, j, at, pair.partner);
            }
            __syncthreads();
        }
        if (c < x.f.dim)
            store_element(x.grad_q.data, query_at(x.grad_q, s, i, head) + c, x.f.dtype,
                          x.f.scale *
                              turned_back(x.f.rope, pair, turned_position(s, i), sum, partner));
    }
}

static __global__ void __launch_bounds__(THREADS) grad_queries(const cuda_backward x)
{
    __shared__ float ds[THREADS];
    int64_t items = (int64_t)x.f.batch * x.f.q_len * x.f.heads;

    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        int head = (int)(item % x.f.heads), i = (int)(item / x.f.heads % x.f.q_len);
        int b = (int)(item / x.f.heads / x.f.q_len);
        cuda_sequence s = sequence_of(x.f, b);

        if (i < s.q_len)
            grad_of_query(x, s, b, i, head, ds);
    }
}

/* A channel's sums for K and V. */
struct sums {
    float k, partner, v;
};

static __device__ void add_queries(const cuda_backward &x, const cuda_sequence &s, int b, int head,
                                   int j, int c, const cuda_pair &pair, weights *shown, sums &sum)
{
    cuda_range queries = queries_of(x.f, s, j);

    for (int from = queries.first; from < queries.end; from += THREADS) {
        int i = from + (int)threadIdx.x;

        if (i < queries.end)
            shown[threadIdx.x] = weights_of(x, s, b, i, head, j);
        __syncthreads();
        for (i = from; i < queries.end && i < from + THREADS; i++) {
            int64_t q = query_at(x.f.q, s, i, head), grad = query_at(x.grad_out, s, i, head);
            weights w = shown[i - from];

            if (c < x.f.dim)
                sum.k += w.ds * load_q(x.f, s, i, q, c);
            if (c < x.f.dim && pair.pair >= 0)
                sum.partner += w.ds * load_q(x.f, s, i, q, pair.partner);
            if (c < x.f.dim_v)
                sum.v += w.p * load_element(x.grad_out.data, grad + c, x.f.out_dtype);
        }
        __syncthreads();
    }
}

static __device__ void grad_of_key(const cuda_backward &x, const cuda_sequence &s, int b, int j,
                                   int kv_head, weights *shown)
{
    int most = x.f.dim > x.f.dim_v ? x.f.dim : x.f.dim_v;

    for (int first = 0; first < most; first += THREADS) {
        int c = first + (int)threadIdx.x;
        cuda_pair pair = pair_if(x.f.rope, !x.f.rope.queries_only, c);
        sums sum = {0, 0, 0};

        for (int head = kv_head * x.f.group; head < (kv_head + 1) * x.f.group; head++)
            add_queries(x, s, b, head, j, c, pair, shown, sum);
        if (x.grad_k.data && c < x.f.dim)
            store_element(x.grad_k.data, key_at(x.f, x.grad_k, s, j, kv_head) + c, x.f.dtype,
                          x.f.scale * turned_back(x.f.rope, pair, j, sum.k, sum.partner));
        if (x.grad_v.data && c < x.f.dim_v)
            store_element(x.grad_v.data, key_at(x.f, x.grad_v, s, j, kv_head) + c, x.f.dtype,
                          sum.v);
    }
}

static __global__ void __launch_bounds__(THREADS) grad_keys(const cuda_backward x)
{
    __shared__ weights shown[THREADS];
    int64_t items = (int64_t)x.f.batch * x.f.k_len * x.f.kv_heads;

    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        int kv_head = (int)(item % x.f.kv_heads), j = (int)(item / x.f.kv_heads % x.f.k_len);
        int b = (int)(item / x.f.kv_heads / x.f.k_len);
        cuda_sequence s = sequence_of(x.f, b);

        if (j < s.k_len)
            grad_of_key(x, s, b, j, kv_head, shown);
    }
}

gpunvme_ops_status_t cuda_backward_naive(const struct cuda_backward *x, void *stream)
{
    int64_t queries = (int64_t)x->f.batch * x->f.q_len * x->f.heads;
    int64_t keys = (int64_t)x->f.batch * x->f.k_len * x->f.kv_heads;

    if (x->grad_q.data && queries)
        LAUNCH(grad_queries, cuda_attention_blocks(queries, 1), THREADS, stream, *x);
    if ((x->grad_k.data || x->grad_v.data) && keys)
        LAUNCH(grad_keys, cuda_attention_blocks(keys, 1), THREADS, stream, *x);
    return cuda_attention_launched();
}
