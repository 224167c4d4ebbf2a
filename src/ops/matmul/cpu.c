/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Matrix multiplication on the CPU, by any engine.
 */
#include "ops/cpu/dtype.h"
#include "ops/cpu/product.h"
#include "ops/matmul/matmul.h"

static struct cpu_operand operand(const void *data, int64_t ld, int transposed, int dtype)
{
    return (struct cpu_operand){data, transposed ? 1 : ld, transposed ? ld : 1, dtype};
}

/* The product number `index` of the batch. */
static struct cpu_product product_of(const struct gpunvme_matmul *p, int64_t index)
{
    struct cpu_product x = {
        .m = p->m,
        .n = p->n,
        .k = p->alpha == 0 ? 0 : p->k,
        .a = operand(p->a, p->lda, p->transpose_a, p->dtype),
        .b = operand(p->b, p->ldb, p->transpose_b, p->dtype_b),
        .c = p->c,
        .ldc = p->ldc,
        .dtype = p->out_dtype,
        .alpha = p->alpha,
        .beta = p->beta,
        .scale_a = matmul_scales_a(p),
        .scale_b = matmul_scales_b(p),
    };

    if (!index)
        return x;
    if (x.k) {
        x.a.data = cpu_at(p->a, index * p->stride_a, p->dtype);
        x.b.data = cpu_at(p->b, index * p->stride_b, p->dtype_b);
        if (x.scale_a.data)
            x.scale_a.data += index * x.scale_a.stride;
        if (x.scale_b.data)
            x.scale_b.data += index * x.scale_b.stride;
    }
    x.c = (void *)cpu_at(p->c, index * p->stride_c, p->out_dtype);
    return x;
}

/* With a product for each thread, they need not be split. */
static bool by_batch(const struct cpu_engine *engine, const struct gpunvme_matmul *p, int threads)
{
    return engine->threads && p->batch >= threads;
}

static size_t workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct cpu_engine *engine = variant->data;
    int threads = cpu_threads_for(engine, call->exec);
    struct gpunvme_matmul p = matmul_normal_form(call->descriptor);
    struct cpu_product x = product_of(&p, 0);

    if (by_batch(engine, &p, threads))
        return cpu_product_workspace(engine, &x, 1) * (size_t)threads;
    return cpu_product_workspace(engine, &x, threads);
}

struct batch {
    const struct cpu_engine *engine;
    const struct gpunvme_matmul *matmul;
    char *workspace;
    size_t nbytes; /* of one thread's */
};

static void run_batch(void *arg, int index, int count)
{
    const struct batch *batch = arg;

    for (int64_t i = index; i < batch->matmul->batch; i += count) {
        struct cpu_product x = product_of(batch->matmul, i);

        cpu_run_product(batch->engine, &x, 1, batch->workspace + batch->nbytes * (size_t)index);
    }
}

static gpunvme_ops_status_t run(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct cpu_engine *engine = variant->data;
    struct gpunvme_matmul normal = matmul_normal_form(call->descriptor);
    const struct gpunvme_matmul *p = &normal;
    int threads = cpu_threads_for(engine, call->exec);

    if (by_batch(engine, p, threads)) {
        struct cpu_product x = product_of(p, 0);
        struct batch batch = {engine, p, call->exec->workspace,
                              cpu_product_workspace(engine, &x, 1)};

        cpu_parallel(threads, run_batch, &batch);
        return GPUNVME_OPS_OK;
    }
    for (int64_t i = 0; i < p->batch; i++) {
        struct cpu_product x = product_of(p, i);

        cpu_run_product(engine, &x, threads, call->exec->workspace);
    }
    return GPUNVME_OPS_OK;
}

static double ceil_div(int64_t n, int64_t d)
{
    return (double)((n + d - 1) / d);
}

/* Copies are made of tiles or panels; each is read by the innermost loop as often as it is used. */
static void analyze_copies(const struct gpunvme_matmul *p, int64_t rows, int64_t cols,
                           double a_passes, double b_passes, double c_passes,
                           struct gpunvme_matmul_metrics *x)
{
    double m = (double)p->m, n = (double)p->n, k = (double)p->k;
    double in = (double)gpunvme_ops_dtype_nbytes(p->dtype);
    double out = (double)gpunvme_ops_dtype_nbytes(p->out_dtype);

    x->global_load_nbytes =
        in * k * (m * a_passes + n * b_passes) + out * m * n * (c_passes - (p->beta == 0));
    x->global_store_nbytes = out * m * n * c_passes;
    x->shared_store_nbytes = 4 * k * (m * a_passes + n * b_passes);
    x->shared_load_nbytes = 4 * k * (m * ceil_div(p->n, cols) + n * ceil_div(p->m, rows));
}

static void analyze(const struct ops_variant *variant, const struct ops_call *call, void *metrics)
{
    const struct cpu_engine *engine = variant->data;
    const struct cpu_kernel *kernel = engine->threads ? cpu_best_kernel() : engine->kernel;
    struct gpunvme_matmul normal = matmul_normal_form(call->descriptor);
    const struct gpunvme_matmul *p = &normal;
    struct gpunvme_matmul_metrics *x = metrics;
    double k_passes = p->k ? ceil_div(p->k, kernel ? kernel->kc : 1) : 1;
    double batch = (double)p->batch;
    struct cpu_product one = product_of(p, 0);

    if (kernel)
        analyze_copies(p, kernel->mr, kernel->nr, ceil_div(p->n, kernel->nc), 1,
                       p->out_dtype == GPUNVME_OPS_F32 ? k_passes : 1, x);
    else if (engine->tile)
        analyze_copies(p, 1, p->n, ceil_div(p->n, engine->tile), ceil_div(p->m, engine->tile), 1,
                       x);
    else
        analyze_copies(p, p->m, p->n, (double)p->n, (double)p->m, 1, x);
    if (!kernel && !engine->tile)
        x->shared_load_nbytes = x->shared_store_nbytes = 0;
    x->global_load_nbytes *= batch;
    x->global_store_nbytes *= batch;
    x->shared_load_nbytes *= batch;
    x->shared_store_nbytes *= batch;
    x->registers = kernel ? kernel->vectors : 0;
    x->shared_nbytes =
        kernel
            ? (int64_t)(cpu_product_workspace(engine, &one, cpu_threads_for(engine, call->exec)) /
                        (size_t)cpu_threads_for(engine, call->exec))
            : (int64_t)engine->tile * engine->tile * 3 * 4;
}

static const struct ops_variant variants[] =
    CPU_LADDER_OF(OPS_ALL_DTYPES | OPS_FP8, workspace, run, analyze);

const struct ops_ladder matmul_cpu = OPS_LADDER(variants);
