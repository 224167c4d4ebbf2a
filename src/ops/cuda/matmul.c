/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Matrix multiplication on the GPU: from the caller's descriptor to a rung's product, and the
 * metrics.
 */
#include <string.h>

#include "ops/cuda/cuda.h"

size_t cuda_workspace_part(int64_t rows, int64_t row_nbytes)
{
    const size_t most = SIZE_MAX / 4, align = GPUNVME_OPS_WORKSPACE_ALIGN;
    size_t nbytes;

    if (__builtin_mul_overflow((size_t)rows, (size_t)row_nbytes, &nbytes) || nbytes > most - align)
        return most;
    return (nbytes + align - 1) / align * align;
}

/* Leading dimensions of one row and strides of one matrix may be anything: here they are not. */
static struct cuda_operand operand(const void *data, int64_t rows, int64_t cols, int transposed,
                                   int64_t ld, int64_t stride, int64_t batch)
{
    struct cuda_operand x = {.data = data, .stride = batch > 1 ? stride : 0};
    int64_t lines = transposed ? cols : rows, width = transposed ? rows : cols;

    if (lines < 2)
        ld = (width + 15) / 16 * 16;
    x.rs = transposed ? 1 : ld;
    x.cs = transposed ? ld : 1;
    return x;
}

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

struct cuda_product cuda_matmul_product(const struct gpunvme_matmul *p)
{
    struct cuda_product x = {
        .m = p->m,
        .n = p->n,
        .k = p->alpha == 0 ? 0 : p->k,
        .batch = p->batch,
        .a = operand(p->a, p->m, p->k, p->transpose_a, p->lda, p->stride_a, p->batch),
        .b = operand(p->b, p->k, p->n, p->transpose_b, p->ldb, p->stride_b, p->batch),
        .c = p->c,
        .ldc = p->m > 1 ? p->ldc : (p->n + 15) / 16 * 16,
        .stride_c = p->batch > 1 ? p->stride_c : 0,
        .alpha = p->alpha,
        .beta = p->beta,
        .dtype = p->dtype,
        .compute = p->compute,
        .out_dtype = p->out_dtype,
    };

    cuda_set_vectors(&x);
    return x;
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

size_t cuda_matmul_workspace(const struct ops_variant *variant, const struct ops_problem *problem,
                             const struct gpunvme_ops_exec *exec)
{
    struct cuda_product x = cuda_matmul_product(problem->u.matmul);

    (void)exec;
    return cuda_product_workspace(variant->data, &x);
}

gpunvme_ops_status_t cuda_refuse_misaligned(const struct ops_variant *variant,
                                            const struct gpunvme_ops_exec *exec,
                                            const struct cuda_engine *engine,
                                            const struct cuda_product *x)
{
    /* "auto" goes on to another rung. */
    if (!exec->variant || !strcmp(exec->variant, "auto") || !x->k || !engine->misaligned ||
        !engine->misaligned(x))
        return GPUNVME_OPS_OK;
    return ops_fail(GPUNVME_OPS_ERR_ALIGN,
                    "variant '%s' needs both operands at multiples of 16 bytes: they are at %p and "
                    "%p",
                    variant->name, x->a.data, x->b.data);
}

gpunvme_ops_status_t cuda_matmul_run(const struct ops_variant *variant,
                                     const struct ops_problem *problem,
                                     const struct gpunvme_ops_exec *exec)
{
    struct cuda_product x = cuda_matmul_product(problem->u.matmul);
    const struct cuda_engine *engine = variant->data;
    gpunvme_ops_status_t status = cuda_refuse_misaligned(variant, exec, engine, &x);

    if (status)
        return status;
    return cuda_run_product(variant->data, &x, exec->workspace, exec->stream);
}

static double tiles(int64_t n, int tile)
{
    return (double)((n + tile - 1) / tile);
}

static int several(int blocks)
{
    return blocks > 1 ? blocks : 1;
}

/*
 * A block reads its rows of A and columns of B once (the naive rung, too: its blocks are small
 * enough for what they share to come from the multiprocessor's own cache). Blocks of a cluster
 * that are beside or below each other read once for all what they share.
 */
void cuda_matmul_analyze(const struct ops_variant *variant, const struct ops_problem *problem,
                         const struct gpunvme_ops_exec *exec, struct gpunvme_matmul_metrics *x)
{
    const struct cuda_engine *engine = variant->data;
    const struct gpunvme_matmul *p = problem->u.matmul;
    struct cuda_product product = cuda_matmul_product(p);
    double m = (double)p->m, n = (double)p->n, k = (double)product.k, batch = (double)p->batch;
    double in = (double)gpunvme_ops_dtype_nbytes(p->dtype);
    double out = (double)gpunvme_ops_dtype_nbytes(p->out_dtype);
    struct cuda_launch launch;
    const struct cuda_tiling *t = &launch.tiling;
    double operands;

    if (engine->multiply(&product, exec->workspace, exec->stream, &launch))
        return;
    operands = batch * in * k *
               (m * tiles(p->n, t->tile_n * several(t->pair_n)) +
                n * tiles(p->m, t->tile_m * several(t->pair_m)));
    x->global_load_nbytes = operands + (p->beta == 0 ? 0 : batch * out * m * n);
    x->global_store_nbytes = batch * out * m * n;
    if (t->part_m) {
        x->shared_store_nbytes = operands;
        x->shared_load_nbytes =
            batch * in * k * (m * tiles(p->n, t->part_n) + n * tiles(p->m, t->part_m));
    }
    x->registers = launch.registers;
    x->threads_per_block = t->threads;
    x->blocks = launch.blocks;
    x->shared_nbytes = launch.shared_nbytes;
    x->occupancy = launch.occupancy;
}
