/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Matrix multiplication: its table, and what its arguments must be. cpu.c and cuda.c have the
 * ladders.
 */
#include "ops/matmul/matmul.h"

OPS_ABI_SIZE(gpunvme_matmul, 136);
OPS_ABI_SIZE(gpunvme_matmul_metrics, 96);

static double flops(const struct gpunvme_matmul *p)
{
    return 2 * (double)p->m * (double)p->n * (double)p->k * (double)p->batch;
}

/* The three operands as they lie in memory. */
static void describe(const struct gpunvme_matmul *p, struct ops_spans *spans)
{
    int nothing = !p->m || !p->n || !p->batch;
    int no_product = nothing || !p->k || p->alpha == 0;

    *spans = (struct ops_spans){
        .count = 3,
        .matrix = {
            {"A", p->a, p->transpose_a ? p->k : p->m, p->transpose_a ? p->m : p->k, p->lda,
             p->batch, p->stride_a, p->dtype, 0, no_product},
            {"B", p->b, p->transpose_b ? p->n : p->k, p->transpose_b ? p->k : p->n, p->ldb,
             p->batch, p->stride_b, p->dtype, 0, no_product},
            {"C", p->c, p->transpose_c ? p->n : p->m, p->transpose_c ? p->m : p->n, p->ldc,
             p->batch, p->stride_c, p->out_dtype, 1, nothing},
        }};
}

static gpunvme_ops_status_t check_enums(const struct gpunvme_matmul *p)
{
    const struct {
        const char *name;
        int value, count;
    } enums[] = {
        {"dtype", p->dtype, GPUNVME_OPS_NDTYPES},
        {"out_dtype", p->out_dtype, GPUNVME_OPS_NDTYPES},
        {"compute", p->compute, GPUNVME_OPS_NCOMPUTES},
        {"transpose_a", p->transpose_a, 2},
        {"transpose_b", p->transpose_b, 2},
        {"transpose_c", p->transpose_c, 2},
    };

    for (size_t i = 0; i < sizeof(enums) / sizeof(enums[0]); i++) {
        gpunvme_ops_status_t status = ops_check_enum(enums[i].name, enums[i].value, enums[i].count);

        if (status)
            return status;
    }
    if (p->out_dtype != GPUNVME_OPS_F32 && p->out_dtype != p->dtype)
        return ops_fail(GPUNVME_OPS_ERR_DTYPE, "C is %s: from %s it can be that, or f32",
                        gpunvme_ops_dtype_name(p->out_dtype), gpunvme_ops_dtype_name(p->dtype));
    return GPUNVME_OPS_OK;
}

/* C^T = B^T A^T: a transposed result is the product of the swapped operands. */
struct gpunvme_matmul matmul_normal_form(const struct gpunvme_matmul *p)
{
    struct gpunvme_matmul q = *p;

    if (!p->transpose_c)
        return q;
    q.transpose_c = 0;
    q.m = p->n;
    q.n = p->m;
    q.a = p->b;
    q.lda = p->ldb;
    q.stride_a = p->stride_b;
    q.transpose_a = !p->transpose_b;
    q.b = p->a;
    q.ldb = p->lda;
    q.stride_b = p->stride_a;
    q.transpose_b = !p->transpose_a;
    return q;
}

static gpunvme_ops_status_t check(struct ops_call *call)
{
    const struct gpunvme_matmul *p = call->descriptor;
    gpunvme_ops_status_t status = check_enums(p);

    if (!status)
        status = ops_check_size("m", p->m);
    if (!status)
        status = ops_check_size("n", p->n);
    if (!status)
        status = ops_check_size("k", p->k);
    if (!status)
        status = ops_check_size("batch", p->batch);
    if (status)
        return status;
    call->dtype = p->dtype;
    call->compute = p->compute;
    call->empty = !p->m || !p->n || !p->batch;
    call->flops = flops(p);
    describe(p, &call->spans);
    return GPUNVME_OPS_OK;
}

const struct ops_operator ops_matmul = {"matmul", check, {&matmul_cpu, OPS_CUDA(&matmul_cuda)}};

OPS_FUNCTIONS(ops_matmul, gpunvme_matmul, struct gpunvme_matmul)

/* What follows from the counts that the variant gave. */
static void derive(const struct gpunvme_matmul *p, struct gpunvme_matmul_metrics *x)
{
    double m = (double)p->m, n = (double)p->n, k = (double)p->k, batch = (double)p->batch;
    double traffic = x->global_load_nbytes + x->global_store_nbytes;
    double in = (double)gpunvme_ops_dtype_nbytes(p->dtype);
    double out = (double)gpunvme_ops_dtype_nbytes(p->out_dtype);

    x->flops = flops(p);
    x->ideal_nbytes = in * k * (m * (p->stride_a ? batch : 1) + n * (p->stride_b ? batch : 1)) +
                      out * m * n * batch * (p->beta == 0 ? 1 : 2);
    x->arithmetic_intensity = traffic > 0 ? x->flops / traffic : 0;
    x->memory_efficiency = traffic > 0 ? x->ideal_nbytes / traffic : 0;
    if (x->memory_efficiency > 1)
        x->memory_efficiency = 1;
}

gpunvme_ops_status_t gpunvme_matmul_analyze(const struct gpunvme_matmul *matmul,
                                            const struct gpunvme_ops_exec *exec,
                                            struct gpunvme_matmul_metrics *metrics)
{
    struct gpunvme_matmul_metrics x = {0};
    gpunvme_ops_status_t status = ops_analyze(&ops_matmul, matmul, exec, &x);

    if (!status && !metrics)
        status = ops_fail(GPUNVME_OPS_ERR_INVALID, "metrics is NULL");
    if (status)
        return status;
    derive(matmul, &x);
    *metrics = x;
    return GPUNVME_OPS_OK;
}
