/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Attention forward on the GPU: the ladder.
 */
#include "ops/attention/attention.h"
#include "ops/attention/cuda/problem.h"

struct rung {
    cuda_attention_run *run;
    cuda_attention_workspace *nbytes; /* beside RoPE's tables; NULL: none */
    int rank;
};

static size_t workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct rung *rung = variant->data;
    struct cuda_attention x = cuda_attention_of(call->descriptor);

    return cuda_attention_turns_nbytes(&x) + (rung->nbytes ? rung->nbytes(&x) : 0);
}

static gpunvme_ops_status_t run(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct rung *rung = variant->data;
    struct cuda_attention x = cuda_attention_of(call->descriptor);
    size_t turns = cuda_attention_turns_nbytes(&x);
    char *rest = turns ? (char *)call->exec->workspace + turns : call->exec->workspace;
    gpunvme_ops_status_t status =
        cuda_attention_turns(&x, call->exec->workspace, call->exec->stream);

    return status ? status : rung->run(&x, rest, call->exec->stream);
}

static gpunvme_ops_status_t suits(const struct ops_variant *variant, const struct ops_call *call)
{
    return cuda_attention_check(variant, call->descriptor);
}

static int rank(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct rung *rung = variant->data;

    (void)call;
    return rung->rank;
}

#define VARIANT(name_, needs_, min_sm_, max_sm_, dtypes_, computes_, changes_, ...)                \
    {                                                                                              \
        .name = name_, .needs = needs_, .changes = changes_, .dtypes = dtypes_,                    \
        .computes = computes_, .deterministic = 1, .min_sm = min_sm_, .max_sm = max_sm_,           \
        .suits = suits, .rank = rank, .workspace = workspace, .run = run,                          \
        .data = &(const struct rung)                                                               \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

static const struct ops_variant variants[] = {
    VARIANT("naive", CUDA_SM80, 80, 0, OPS_ALL_DTYPES, OPS_ALL_COMPUTES,
            "scores of all queries and keys in memory, by a thread for each; their softmax by a "
            "warp for each row; a thread for each element of the result",
            cuda_attention_naive, cuda_attention_naive_nbytes, 1),
};

const struct ops_ladder attention_cuda = OPS_LADDER(variants);
