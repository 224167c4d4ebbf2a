/* SPDX-License-Identifier: BSD-3-Clause
 *
 * RoPE's cosines and sines for every position and pair, once for all rows that are turned.
 */
#include "ops/attention/cuda/problem.cuh"

#define THREADS 256

static __global__ void __launch_bounds__(THREADS)
    fill(const cuda_rope rope, float *cosines, float *sines, int64_t count)
{
    int half = rope.dim / 2;

    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * THREADS) {
        cuda_turn turn = turn_of(rope, (int)(i / half), (int)(i % half));

        cosines[i] = turn.cosine;
        sines[i] = turn.sine;
    }
}

static int positions_of(const struct cuda_attention *x)
{
    return x->q_len > x->k_len ? x->q_len : x->k_len;
}

static size_t table_nbytes(const struct cuda_attention *x)
{
    return ops_workspace_part(1, positions_of(x), x->rope.dim / 2, sizeof(float));
}

size_t cuda_attention_turns_nbytes(const struct cuda_attention *x)
{
    return x->rope.dim && !x->rope.cos ? 2 * table_nbytes(x) : 0;
}

gpunvme_ops_status_t cuda_attention_turns(struct cuda_attention *x, void *workspace, void *stream)
{
    float *cosines = (float *)workspace;
    float *sines = (float *)((char *)workspace + table_nbytes(x));
    int64_t count = (int64_t)positions_of(x) * (x->rope.dim / 2);

    if (!cuda_attention_turns_nbytes(x))
        return GPUNVME_OPS_OK;
    LAUNCH(fill, cuda_attention_blocks(count, THREADS), THREADS, stream, x->rope, cosines, sines,
           count);
    x->rope.cos = cosines;
    x->rope.sin = sines;
    x->rope.ld = x->rope.dim / 2;
    return cuda_attention_launched();
}

/* Rows of K that are turned lie behind each other, each at a multiple of 16 bytes. */
static __host__ __device__ __forceinline__ int64_t turned_ld(const cuda_attention &x)
{
    return ((int64_t)x.dim + 7) / 8 * 8;
}

static __global__ void __launch_bounds__(THREADS)
    turn(const cuda_attention x, const cuda_rows to, int64_t count)
{
    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < count;
         e += (int64_t)gridDim.x * THREADS) {
        int64_t row = e / x.dim / x.kv_heads;
        int c = (int)(e % x.dim), head = (int)(e / x.dim % x.kv_heads), j = (int)(row % x.k_len);
        cuda_sequence s = sequence_of(x, (int)(row / x.k_len));

        if (j < s.k_len)
            store_element(to.data, key_at(x, to, s, j, head) + c, x.dtype,
                          load_k(x, j, key_at(x, x.k, s, j, head), c));
    }
}

size_t cuda_attention_turned_nbytes(const struct cuda_attention *x)
{
    int64_t rows = (x->k_offsets ? 1 : (int64_t)x->batch) * x->k_rows;

    return x->rope.dim && !x->rope.queries_only
               ? ops_workspace_part(rows, x->kv_heads, turned_ld(*x),
                                    gpunvme_ops_dtype_nbytes(x->dtype))
               : 0;
}

gpunvme_ops_status_t cuda_attention_turn_keys(struct cuda_attention *x, void *workspace,
                                              void *stream)
{
    int64_t count = (int64_t)x->batch * x->k_len * x->kv_heads * x->dim;
    struct cuda_rows to = {};

    if (!cuda_attention_turned_nbytes(x))
        return GPUNVME_OPS_OK;
    to.data = workspace;
    to.head = turned_ld(*x);
    to.row = x->kv_heads * to.head;
    to.batch = x->k_rows * to.row;
    to.vectors = 1;
    LAUNCH(turn, cuda_attention_blocks(count, THREADS), THREADS, stream, *x, to, count);
    x->k = to;
    x->rope.queries_only = 1;
    return cuda_attention_launched();
}
