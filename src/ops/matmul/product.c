/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Products on the GPU: the table of rungs, and how one of them is run.
 */
#include <cuda_runtime_api.h>
#include <limits.h>

#include "ops/matmul/product.h"

/* Rungs that read operands by the copy engine. */
#define HOPPER(multiply_)                                                                          \
    {                                                                                              \
        .multiply = multiply_, .workspace = cuda_workspace_hopper, .suits = cuda_suits_hopper,     \
        .misaligned = cuda_misaligned_hopper                                                       \
    }

const struct cuda_engine cuda_engines[CUDA_NENGINES] = {
    {.multiply = cuda_multiply_naive},
    {.multiply = cuda_multiply_tiled},
    {.multiply = cuda_multiply_vectorized},
    {.multiply = cuda_multiply_coarsened},
    {.multiply = cuda_multiply_tensorcore},
    HOPPER(cuda_multiply_wgmma),
    HOPPER(cuda_multiply_specialized),
    HOPPER(cuda_multiply_cluster),
    HOPPER(cuda_multiply_hopper),
    {.multiply = cuda_multiply_skinny, .suits = cuda_suits_skinny},
    {.multiply = cuda_multiply_shaped,
     .workspace = cuda_workspace_shaped,
     .suits = cuda_suits_shaped,
     .misaligned = cuda_misaligned_shaped},
};

static int multiple(int64_t value, int64_t of)
{
    return value % of == 0;
}

/* (Both steps may be 1; then ld is that of the other direction, or of the only line.) */
static void set_operand_vectors(struct cuda_operand *x, int64_t nbytes)
{
    int64_t n = 16 / nbytes, ld = x->rs == 1 ? x->cs : x->rs;

    x->pitched = multiple(ld, n) && multiple(x->stride, n);
    x->vectors = x->pitched && multiple((int64_t)(uintptr_t)x->data, 16);
}

void cuda_set_vectors(struct cuda_product *p)
{
    int64_t in = (int64_t)gpunvme_ops_dtype_nbytes(p->dtype);
    int64_t out = (int64_t)gpunvme_ops_dtype_nbytes(p->out_dtype);

    set_operand_vectors(&p->a, in);
    set_operand_vectors(&p->b, in);
    p->vectors = multiple((int64_t)(uintptr_t)p->c, 4 * out) && multiple(p->ldc, 4) &&
                 multiple(p->stride_c, 4);
    if (p->bias)
        p->vectors = p->vectors && multiple((int64_t)(uintptr_t)p->bias, 4 * in);
    if (p->preact)
        p->vectors = p->vectors && multiple((int64_t)(uintptr_t)p->preact, 4 * in) &&
                     multiple(p->ld_preact, 4);
}

gpunvme_ops_status_t cuda_launch_tiles(const void *kernel, const struct cuda_product *product,
                                       const struct cuda_tiling *tiling, void *stream,
                                       struct cuda_launch *launch)
{
    int64_t tiles = cuda_tiles(product, tiling->tile_m, tiling->tile_n);
    struct cuda_product copy = *product;
    void *args[] = {&copy};
    dim3 grid = {(unsigned)(tiles < INT_MAX ? tiles : INT_MAX), 1, 1};
    dim3 block = {(unsigned)tiling->threads, 1, 1};
    gpunvme_ops_status_t status = cuda_allow_shared(kernel, tiling->shared_nbytes);

    if (status)
        return status;
    if (launch)
        return cuda_describe(kernel, tiling, grid.x, launch);
    return cuda_status(cudaLaunchKernel(kernel, grid, block, args, tiling->shared_nbytes, stream),
                       "launching a kernel");
}

gpunvme_ops_status_t cuda_run_product(const struct cuda_engine *engine,
                                      const struct cuda_product *product, void *workspace,
                                      void *stream)
{
    if (!product->k)
        return cuda_multiply_naive(product, NULL, stream, NULL);
    if (engine->misaligned && engine->misaligned(product))
        engine = cuda_best_engine(product, CUDA_PLAIN);
    return engine->multiply(product, workspace, stream, NULL);
}

size_t cuda_product_workspace(const struct cuda_engine *engine, const struct cuda_product *product)
{
    return engine->workspace && product->k ? engine->workspace(product) : 0;
}

gpunvme_ops_status_t cuda_check_aligned(const char *variant, const struct cuda_engine *engine,
                                        const struct cuda_product *x)
{
    if (!x->k || !engine->misaligned || !engine->misaligned(x))
        return GPUNVME_OPS_OK;
    return ops_fail(GPUNVME_OPS_ERR_ALIGN,
                    "variant '%s' needs both operands at multiples of 16 bytes: they are at %p and "
                    "%p",
                    variant, x->a.data, x->b.data);
}
