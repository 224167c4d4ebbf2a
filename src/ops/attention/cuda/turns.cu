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
