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
    cuda_attention_workspace *shared; /* of a block, in bytes; NULL: what any GPU has */
    gpunvme_ops_status_t (*suits)(const struct ops_variant *variant, const struct cuda_attention *x,
                                  bool any_pointers); /* NULL: all */
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

/* Rungs for tensor cores have all channels of a tile in shared memory. */
#define TENSOR_CHANNELS 256

static gpunvme_ops_status_t suits_shared(const struct ops_variant *variant,
                                         const struct gpunvme_attention *p)
{
    const struct rung *rung = variant->data;
    struct cuda_attention x = cuda_attention_of(p);
    struct gpunvme_ops_capability gpu;
    gpunvme_ops_status_t status;

    if (p->dim > TENSOR_CHANNELS || p->dim_v > TENSOR_CHANNELS)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED, "variant '%s' takes up to %d channels",
                        variant->name, TENSOR_CHANNELS);
    status = ops_cuda_capability(OPS_CURRENT_DEVICE, &gpu);
    if (!status && gpu.shared_nbytes < (int64_t)rung->shared(&x))
        status = ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                          "variant '%s' needs %zu bytes of shared memory a block: this GPU has "
                          "%lld",
                          variant->name, rung->shared(&x), (long long)gpu.shared_nbytes);
    return status;
}

static gpunvme_ops_status_t suits(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct rung *rung = variant->data;
    gpunvme_ops_status_t status = cuda_attention_check(variant, call->descriptor);
    struct cuda_attention x;

    if (!status && rung->shared)
        status = suits_shared(variant, call->descriptor);
    if (status || !rung->suits)
        return status;
    x = cuda_attention_of(call->descriptor);
    return rung->suits(variant, &x, call->any_pointers);
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

#define BY_16_BITS (1u << GPUNVME_OPS_F16 | 1u << GPUNVME_OPS_BF16)
#define E4M3       (1u << GPUNVME_OPS_E4M3)

static const struct ops_variant variants[] = {
    VARIANT("naive", CUDA_SM80, 80, 0, OPS_ALL_DTYPES | E4M3, OPS_ALL_COMPUTES,
            "scores of all queries and keys in memory, by a thread for each; their softmax by a "
            "warp for each row; a thread for each element of the result",
            cuda_attention_naive, cuda_attention_naive_nbytes, 1, NULL, NULL),
    VARIANT(
        "tiled", CUDA_SM80, 80, 0, OPS_ALL_DTYPES, OPS_ALL_COMPUTES,
        "64 queries a block, which has 64 keys and their scores in shared memory at a time: one "
        "pass, sums in registers, scaled when a larger score comes",
        cuda_attention_tiled, NULL, 2, NULL, NULL),
    VARIANT("flash", CUDA_SM80, 80, 0, BY_16_BITS, OPS_ALL_COMPUTES,
            "tensor cores multiply (mma); scores stay in registers, and four warps share a tile's "
            "keys, then the result's channels",
            cuda_attention_flash, NULL, 3, cuda_attention_flash_shared, NULL),
    VARIANT("flash2", CUDA_SM80, 80, 0, BY_16_BITS, OPS_ALL_COMPUTES,
            "warps have queries of their own, tiles of K and V come while others are multiplied, "
            "sums are seldom scaled, K is turned once",
            cuda_attention_flash2, cuda_attention_flash2_nbytes, 4, cuda_attention_flash2_shared,
            NULL),
    VARIANT("hopper", CUDA_SM90A, CUDA_ONLY_90A, CUDA_ONLY_90A, BY_16_BITS | E4M3, OPS_ALL_COMPUTES,
            "tiles by the copy engine, wgmma with P from registers, warp groups that take turns at "
            "products and softmax, blocks that stay",
            cuda_attention_hopper, cuda_attention_hopper_nbytes, 5, NULL,
            cuda_attention_hopper_suits),
};

const struct ops_ladder attention_cuda = OPS_LADDER(variants);
