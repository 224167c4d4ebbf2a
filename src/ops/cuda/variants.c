/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The GPU's ladders.
 */
#include "ops/cuda/cuda.h"

const struct cuda_engine cuda_engines[6] = {
    {.multiply = cuda_multiply_naive},
    {.multiply = cuda_multiply_tiled},
    {.multiply = cuda_multiply_vectorized},
    {.multiply = cuda_multiply_coarsened},
};

/* The order of the ladder is the order of speed. */
static int rank(const struct ops_variant *variant, const struct ops_problem *problem,
                const struct gpunvme_ops_exec *exec)
{
    (void)problem;
    (void)exec;
    return 1 + (int)((const struct cuda_engine *)variant->data - cuda_engines);
}

#define F32        (1u << GPUNVME_OPS_F32)
#define HALVES     (1u << GPUNVME_OPS_F16 | 1u << GPUNVME_OPS_BF16)
#define BY_F32     (1u << GPUNVME_OPS_COMPUTE_F32)
#define BY_TF32    (1u << GPUNVME_OPS_COMPUTE_TF32)
#define ANY_CUDA   "a GPU of sm_80 or later"
#define ONLY_SM90A "a GPU of sm_90a, and a build for it"

#define VARIANT(op_, name_, needs_, min_sm_, max_sm_, dtypes_, computes_, changes_)                \
    .name = name_, .needs = needs_, .changes = changes_, .op = op_, .device = GPUNVME_OPS_CUDA,    \
    .dtypes = dtypes_, .computes = computes_, .min_sm = min_sm_, .max_sm = max_sm_,                \
    .deterministic = 1, .rank = rank

#define MATMUL(index, name, needs, min_sm, max_sm, dtypes, computes, changes)                      \
    {                                                                                              \
        VARIANT(GPUNVME_OPS_MATMUL, name, needs, min_sm, max_sm, dtypes, computes, changes),       \
            .workspace = cuda_matmul_workspace, .run = cuda_matmul_run,                            \
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
};

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

const struct ops_ladder ops_cuda_matmul = {matmul, COUNT(matmul)};
const struct ops_ladder ops_cuda_linear_forward, ops_cuda_linear_backward;
