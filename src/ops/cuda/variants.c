/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The GPU's ladders.
 */
#include <limits.h>

#include "ops/cuda/linear.h"

const struct cuda_engine cuda_engines[CUDA_NENGINES] = {
    {.multiply = cuda_multiply_naive},
    {.multiply = cuda_multiply_tiled},
    {.multiply = cuda_multiply_vectorized},
    {.multiply = cuda_multiply_coarsened},
    {.multiply = cuda_multiply_tensorcore},
    {.multiply = cuda_multiply_hopper,
     .workspace = cuda_workspace_hopper,
     .suits = cuda_suits_hopper,
     .misaligned = cuda_misaligned_hopper},
    {.multiply = cuda_multiply_skinny, .suits = cuda_suits_skinny},
    {.multiply = cuda_multiply_shaped,
     .workspace = cuda_workspace_shaped,
     .suits = cuda_suits_shaped,
     .misaligned = cuda_misaligned_shaped},
};

/*
 * The best one's is the highest. Those after it follow, for it may not be there; the last three
 * are for shapes that want them.
 */
static int rank_of(const struct cuda_engine *engine, const struct cuda_product *product)
{
    int index = (int)(engine - cuda_engines);

    if (engine == cuda_best_engine(product, cuda_level()))
        return 1 + CUDA_NENGINES;
    return index < CUDA_HOPPER ? 1 + index : 0;
}

static int rank(const struct ops_variant *variant, const struct ops_problem *problem,
                const struct gpunvme_ops_exec *exec)
{
    struct cuda_product product = cuda_matmul_product(problem->u.matmul);

    (void)exec;
    return rank_of(variant->data, &product);
}

static gpunvme_ops_status_t suits(const struct ops_variant *variant,
                                  const struct ops_problem *problem)
{
    struct cuda_product product = cuda_matmul_product(problem->u.matmul);
    const struct cuda_engine *engine = variant->data;

    if (engine == &cuda_engines[CUDA_SKINNY] && !engine->suits(&product))
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes up to 16 rows or 16 columns, and less than 2^31 blocks",
                        variant->name);
    if (engine->suits && !engine->suits(&product))
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes sizes up to 2^30 and less than 2^31 tiles of C",
                        variant->name);
    return GPUNVME_OPS_OK;
}

#define F32     (1u << GPUNVME_OPS_F32)
#define HALVES  (1u << GPUNVME_OPS_F16 | 1u << GPUNVME_OPS_BF16)
#define BY_F32  (1u << GPUNVME_OPS_COMPUTE_F32)
#define BY_TF32 (1u << GPUNVME_OPS_COMPUTE_TF32)
#ifdef OPS_HAVE_SM90A
#define SM90A 90
#else
#define SM90A INT_MAX /* which no GPU is */
#endif
#define ANY_CUDA   "a GPU of sm_80 or later"
#define ANY_SM90   "a GPU of sm_90 or later"
#define ONLY_SM90A "a GPU of sm_90a, and a build for it"

#define VARIANT(op_, name_, needs_, min_sm_, max_sm_, dtypes_, computes_, changes_)                \
    .name = name_, .needs = needs_, .changes = changes_, .op = op_, .device = GPUNVME_OPS_CUDA,    \
    .dtypes = dtypes_, .computes = computes_, .min_sm = min_sm_, .max_sm = max_sm_,                \
    .deterministic = 1, .rank = rank

#define MATMUL(index, name, needs, min_sm, max_sm, dtypes, computes, changes)                      \
    {                                                                                              \
        VARIANT(GPUNVME_OPS_MATMUL, name, needs, min_sm, max_sm, dtypes, computes, changes),       \
            .suits = suits, .workspace = cuda_matmul_workspace, .run = cuda_matmul_run,            \
            .analyze = cuda_matmul_analyze, .data = &cuda_engines[index]                           \
    }

static const struct ops_variant matmul[] = {
    MATMUL(0, "naive", ANY_CUDA, 80, 0, OPS_ALL_DTYPES, OPS_ALL_COMPUTES,
           "a thread for each element of C, which reads its row and column from global memory"),
    MATMUL(1, "tiled", ANY_CUDA, 80, 0, OPS_ALL_DTYPES, OPS_ALL_COMPUTES,
           "tiles of 32 x 32 in shared memory, each element read from there 32 times"),
    MATMUL(2, "vectorized", ANY_CUDA, 80, 0, F32, OPS_ALL_COMPUTES,
           "vectors of four from and to memory, four elements of C a thread"),
    MATMUL(3, "coarsened", ANY_CUDA, 80, 0, F32, OPS_ALL_COMPUTES,
           "a tile of 16 x 8 (or 8 x 8) elements of C in each thread's registers, asynchronous "
           "copies three stages deep"),
    MATMUL(4, "tensorcore", ANY_CUDA, 80, 0, OPS_ALL_DTYPES, BY_TF32,
           "matrices of 16 x 8 multiplied by a warp in one instruction (mma), four stages deep"),
    MATMUL(5, "hopper", ONLY_SM90A, SM90A, SM90A, OPS_ALL_DTYPES, BY_TF32,
           "64 x 256 multiplied by four warps from shared memory (wgmma), loads by the copy engine "
           "(TMA) and a warp group of their own, clusters of two, blocks that stay"),
    MATMUL(6, "skinny", ANY_SM90, 90, 0, OPS_ALL_DTYPES, OPS_ALL_COMPUTES,
           "up to 16 rows or columns at the speed of memory: the large operand is read once, 16 "
           "bytes a lane, and k is shared by warps and the blocks of a cluster"),
    MATMUL(7, "shaped", ANY_SM90, 90, 0, OPS_ALL_DTYPES, OPS_ALL_COMPUTES,
           "narrower tiles and k in pieces, as a model of time chooses, so that few results fill "
           "the GPU; sums of pieces in f32, added in order"),
};

static int rank_forward(const struct ops_variant *variant, const struct ops_problem *problem,
                        const struct gpunvme_ops_exec *exec)
{
    struct cuda_product product = cuda_forward_product(problem->u.forward);
    const struct cuda_forward_rung *rung = variant->data;
    int best = (int)(cuda_best_engine(&product, cuda_level()) - cuda_engines);

    (void)exec;
    if ((rung->needs_hopper && best != CUDA_HOPPER) || (rung->shaped && best <= CUDA_HOPPER))
        return 0;
    return 1 + (int)(rung - cuda_forward_rungs);
}

static gpunvme_ops_status_t suits_forward(const struct ops_variant *variant,
                                          const struct ops_problem *problem)
{
    struct cuda_product product = cuda_forward_product(problem->u.forward);
    const struct cuda_forward_rung *rung = variant->data;

    if (rung->needs_hopper && !cuda_suits_hopper(&product))
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes sizes up to 2^30 and less than 2^31 tiles of C",
                        variant->name);
    return GPUNVME_OPS_OK;
}

static int rank_backward(const struct ops_variant *variant, const struct ops_problem *problem,
                         const struct gpunvme_ops_exec *exec)
{
    (void)problem;
    (void)exec;
    return 1 + (int)((const struct cuda_backward_rung *)variant->data - cuda_backward_rungs);
}

#define FORWARD(index, name_, needs_, sm_, max_sm_, computes_, changes_)                           \
    {                                                                                              \
        .name = name_, .needs = needs_, .changes = changes_, .op = GPUNVME_OPS_LINEAR_FORWARD,     \
        .device = GPUNVME_OPS_CUDA, .dtypes = OPS_ALL_DTYPES, .computes = computes_,               \
        .deterministic = 1, .min_sm = sm_, .max_sm = max_sm_, .suits = suits_forward,              \
        .rank = rank_forward, .workspace = cuda_forward_workspace, .run = cuda_forward_run,        \
        .data = &cuda_forward_rungs[index]                                                         \
    }

static const struct ops_variant forward[] = {
    FORWARD(0, "naive", ANY_CUDA, 80, 0, OPS_ALL_COMPUTES,
            "the naive product, whose threads add the bias and apply the activation"),
    FORWARD(1, "unfused", ANY_CUDA, 80, 0, OPS_ALL_COMPUTES,
            "the best product into f32, then a pass for bias and activation"),
    FORWARD(2, "fused", ANY_CUDA, 80, 0, OPS_ALL_COMPUTES,
            "bias and activation before sums leave the coarsened or tensor cores' product"),
    FORWARD(3, "persistent", ONLY_SM90A, SM90A, SM90A, BY_TF32,
            "the same in Hopper's product: blocks stay, and results of a tile leave while the next "
            "one's operands come"),
    FORWARD(4, "shaped", ANY_SM90, 90, 0, OPS_ALL_COMPUTES,
            "the product that the shape wants: few rows at the speed of memory, narrower tiles, k "
            "in pieces"),
};

#define BACKWARD(index, name_, deterministic_, changes_)                                           \
    {                                                                                              \
        .name = name_, .needs = ANY_CUDA, .changes = changes_, .op = GPUNVME_OPS_LINEAR_BACKWARD,  \
        .device = GPUNVME_OPS_CUDA, .dtypes = OPS_ALL_DTYPES, .computes = OPS_ALL_COMPUTES,        \
        .deterministic = deterministic_, .min_sm = 80, .rank = rank_backward,                      \
        .workspace = cuda_backward_workspace, .run = cuda_backward_run,                            \
        .data = &cuda_backward_rungs[index]                                                        \
    }

/* dZ has the type of the matrices in all of them. */
static const struct ops_variant backward[] = {
    BACKWARD(0, "naive", 0,
             "naive products; the bias's gradient by atomic additions, in another order each run; "
             "dZ is rounded to the matrices' type"),
    BACKWARD(1, "atomic_free", 1,
             "tiled products; a thread for each column sums the bias's gradient over all rows"),
    BACKWARD(2, "warp_reduced", 1,
             "the best products but Hopper's; warps sum rows of vectors and reduce in shared "
             "memory"),
    BACKWARD(3, "fused", 1,
             "dZ and its sums in one pass over grad_y and preact, Hopper's products where they "
             "are"),
};

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

const struct ops_ladder ops_cuda_matmul = {matmul, COUNT(matmul)};
const struct ops_ladder ops_cuda_linear_forward = {forward, COUNT(forward)};
const struct ops_ladder ops_cuda_linear_backward = {backward, COUNT(backward)};
