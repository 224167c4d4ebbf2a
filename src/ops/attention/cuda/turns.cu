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

/* Rows that are turned lie behind each other, each at a multiple of 16 bytes. */
static int64_t turned_ld(const struct cuda_attention *x)
{
    return ((int64_t)x->dim + 7) / 8 * 8;
}

static struct cuda_rows turned_rows(const struct cuda_attention *x, void *data, int heads,
                                    int64_t rows)
{
    int64_t ld = turned_ld(x);

    return (struct cuda_rows){
        .data = data, .batch = rows * heads * ld, .row = heads * ld, .head = ld, .vectors = 1};
}

/* KEYS: rows of K, else of Q. A thread turns a channel of all heads, for computing an angle may
 * take long. */
template <bool KEYS>
static __global__ void __launch_bounds__(THREADS)
    turn(const cuda_attention x, const cuda_rows from, const cuda_rows to, int64_t count)
{
    int most = KEYS ? x.k_len : x.q_len, heads = KEYS ? x.kv_heads : x.heads;

    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < count;
         e += (int64_t)gridDim.x * THREADS) {
        int64_t row = e / x.dim;
        int c = (int)(e % x.dim), i = (int)(row % most);
        cuda_sequence s = sequence_of(x, (int)(row / most));
        cuda_pair pair = pair_of(x.rope, c);
        cuda_turn turn = {1, 0};

        if (i >= (KEYS ? s.k_len : s.q_len))
            continue;
        if (pair.pair >= 0)
            turn = turn_of(x.rope, KEYS ? i : turned_position(s, i), pair.pair);
        if (!pair.second)
            turn.sine = -turn.sine;
        for (int h = 0; h < heads; h++) {
            int64_t at = KEYS ? key_at(x, from, s, i, h) : query_at(from, s, i, h);
            float z = load_element(from.data, at + c, x.dtype);

            if (pair.pair >= 0)
                z = z * turn.cosine +
                    load_element(from.data, at + pair.partner, x.dtype) * turn.sine;
            at = KEYS ? key_at(x, to, s, i, h) : query_at(to, s, i, h);
            store_element(to.data, at + c, x.dtype, z);
        }
    }
}

size_t cuda_attention_turned_keys_nbytes(const struct cuda_attention *x)
{
    int64_t rows = (x->k_offsets ? 1 : (int64_t)x->batch) * x->k_rows;

    return x->rope.dim && !x->rope.queries_only
               ? ops_workspace_part(rows, x->kv_heads, turned_ld(x),
                                    gpunvme_ops_dtype_nbytes(x->dtype))
               : 0;
}

gpunvme_ops_status_t cuda_attention_turn_keys(struct cuda_attention *x, void *workspace,
                                              void *stream)
{
    int64_t count = (int64_t)x->batch * x->k_len * x->dim;
    struct cuda_rows to = turned_rows(x, workspace, x->kv_heads, x->k_rows);

    if (!cuda_attention_turned_keys_nbytes(x))
        return GPUNVME_OPS_OK;
    LAUNCH(turn<true>, cuda_attention_blocks(count, THREADS), THREADS, stream, *x, x->k, to, count);
    x->k = to;
    x->rope.queries_only = 1;
    return cuda_attention_launched();
}

size_t cuda_attention_turned_queries_nbytes(const struct cuda_attention *x)
{
    int64_t rows = (x->q_offsets ? 1 : (int64_t)x->batch) * x->q_rows;

    return x->rope.dim ? ops_workspace_part(rows, x->heads, turned_ld(x),
                                            gpunvme_ops_dtype_nbytes(x->dtype))
                       : 0;
}

gpunvme_ops_status_t cuda_attention_turn_queries(struct cuda_attention *x, void *workspace,
                                                 void *stream)
{
    int64_t count = (int64_t)x->batch * x->q_len * x->dim;
    struct cuda_rows to = turned_rows(x, workspace, x->heads, x->q_rows);

    if (!cuda_attention_turned_queries_nbytes(x))
        return GPUNVME_OPS_OK;
    LAUNCH(turn<false>, cuda_attention_blocks(count, THREADS), THREADS, stream, *x, x->q, to,
           count);
    x->q = to;
    x->rope.dim = 0;
    return cuda_attention_launched();
}
