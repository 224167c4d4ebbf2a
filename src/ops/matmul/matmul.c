/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Matrix multiplication: its table, and what its arguments must be. cpu.c and cuda.c have the
 * ladders.
 */
#include "ops/matmul/matmul.h"

OPS_ABI_SIZE(gpunvme_matmul, 168);
OPS_ABI_SIZE(gpunvme_matmul_metrics, 96);

static double flops(const struct gpunvme_matmul *p)
{
    return 2 * (double)p->m * (double)p->n * (double)p->k * (double)p->batch;
}

static int is_fp8(const struct gpunvme_matmul *p)
{
    return p->dtype == GPUNVME_OPS_E4M3 || p->dtype == GPUNVME_OPS_E5M2;
}

int matmul_dtype_b(const struct gpunvme_matmul *p)
{
    return p->dtype_b ? p->dtype_b : p->dtype;
}

/* Of an operand with so many lines, `block` of which share a scale by block. */
static struct ops_scales scales_of(const struct gpunvme_matmul *p, const float *data, int64_t lines,
                                   int64_t stride, int block)
{
    int64_t blocks = p->k / OPS_SCALE_K + (p->k % OPS_SCALE_K > 0);
    struct ops_scales x = {.data = data};

    if (p->scaling == GPUNVME_MATMUL_SCALE_TENSOR)
        return x;
    x.step_line = 1;
    if (p->scaling == GPUNVME_MATMUL_SCALE_BLOCK) {
        x.by_block = block;
        x.step_k = 1;
        x.step_line = blocks;
        lines = block ? lines / OPS_SCALE_K + (lines % OPS_SCALE_K > 0) : lines;
    }
    /* (More than 63 bits are refused as the operand's own size.) */
    x.stride = stride ? (int64_t)((uint64_t)lines * (uint64_t)x.step_line) : 0;
    return x;
}

struct ops_scales matmul_scales_a(const struct gpunvme_matmul *p)
{
    return scales_of(p, p->scale_a, p->m, p->batch > 1 ? p->stride_a : 0, 0);
}

struct ops_scales matmul_scales_b(const struct gpunvme_matmul *p)
{
    return scales_of(p, p->scale_b, p->n, p->batch > 1 ? p->stride_b : 0, 1);
}

static void add_scales(struct ops_spans *spans, const char *name, const struct gpunvme_matmul *p,
                       const struct ops_scales *x, int64_t lines, int unused)
{
    if (!x->data)
        return;
    if (x->by_block)
        lines = lines / OPS_SCALE_K + (lines % OPS_SCALE_K > 0);
    ops_add_matrix(spans, name, x->data, x->step_line ? lines : 1, x->step_k ? x->step_line : 1,
                   x->step_line, GPUNVME_OPS_F32, 0);
    spans->matrix[spans->count - 1].batch = x->stride ? p->batch : 1;
    spans->matrix[spans->count - 1].stride = x->stride;
    spans->matrix[spans->count - 1].unused = unused;
}

/* The three operands as they lie in memory, and their scales. */
static void describe(const struct gpunvme_matmul *p, struct ops_spans *spans)
{
    int nothing = !p->m || !p->n || !p->batch;
    int no_product = nothing || !p->k || p->alpha == 0;
    struct ops_scales a = matmul_scales_a(p), b = matmul_scales_b(p);

    *spans = (struct ops_spans){
        .count = 3,
        .matrix = {
            {"A", p->a, p->transpose_a ? p->k : p->m, p->transpose_a ? p->m : p->k, p->lda,
             p->batch, p->stride_a, p->dtype, 0, no_product},
            {"B", p->b, p->transpose_b ? p->n : p->k, p->transpose_b ? p->k : p->n, p->ldb,
             p->batch, p->stride_b, matmul_dtype_b(p), 0, no_product},
            {"C", p->c, p->transpose_c ? p->n : p->m, p->transpose_c ? p->m : p->n, p->ldc,
             p->batch, p->stride_c, p->out_dtype, 1, nothing},
        }};
    add_scales(spans, "the scales of A", p, &a, p->m, no_product);
    add_scales(spans, "the scales of B", p, &b, p->n, no_product);
}

static gpunvme_ops_status_t check_fp8(const struct gpunvme_matmul *p)
{
    if (matmul_dtype_b(p) < GPUNVME_OPS_E4M3)
        return ops_fail(GPUNVME_OPS_ERR_DTYPE, "A is %s and B %s: B can be e4m3 or e5m2",
                        gpunvme_ops_dtype_name(p->dtype), gpunvme_ops_dtype_name(p->dtype_b));
    if (p->scaling != GPUNVME_MATMUL_SCALE_BLOCK)
        return GPUNVME_OPS_OK;
    if (p->transpose_c)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "scales by block are by row of A and by block of B: transpose_c would "
                        "exchange them");
    if (p->fast_sums)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "with scales by block sums are scaled each 128 of k: fast_sums must be 0");
    return GPUNVME_OPS_OK;
}

static gpunvme_ops_status_t check_enums(const struct gpunvme_matmul *p)
{
    const struct {
        const char *name;
        int value, count;
    } enums[] = {
        {"dtype", p->dtype, GPUNVME_OPS_NALLDTYPES},
        {"out_dtype", p->out_dtype, GPUNVME_OPS_NDTYPES},
        {"compute", p->compute, GPUNVME_OPS_NCOMPUTES},
        {"transpose_a", p->transpose_a, 2},
        {"transpose_b", p->transpose_b, 2},
        {"transpose_c", p->transpose_c, 2},
        {"scaling", p->scaling, GPUNVME_MATMUL_NSCALINGS},
        {"fast_sums", p->fast_sums, 2},
        {"dtype_b", p->dtype_b, GPUNVME_OPS_NALLDTYPES},
        {"reserved", p->reserved, 1},
    };

    for (size_t i = 0; i < sizeof(enums) / sizeof(enums[0]); i++) {
        gpunvme_ops_status_t status = ops_check_enum(enums[i].name, enums[i].value, enums[i].count);

        if (status)
            return status;
    }
    if (is_fp8(p))
        return check_fp8(p);
    if (p->scale_a || p->scale_b || p->scaling || p->fast_sums)
        return ops_fail(GPUNVME_OPS_ERR_INVALID,
                        "scale_a, scale_b, scaling and fast_sums are for e4m3 and e5m2, not %s",
                        gpunvme_ops_dtype_name(p->dtype));
    if (matmul_dtype_b(p) != p->dtype)
        return ops_fail(GPUNVME_OPS_ERR_DTYPE, "A is %s and B %s: of these types both are the same",
                        gpunvme_ops_dtype_name(p->dtype), gpunvme_ops_dtype_name(p->dtype_b));
    if (p->out_dtype != GPUNVME_OPS_F32 && p->out_dtype != p->dtype)
        return ops_fail(GPUNVME_OPS_ERR_DTYPE, "C is %s: from %s it can be that, or f32",
                        gpunvme_ops_dtype_name(p->out_dtype), gpunvme_ops_dtype_name(p->dtype));
    return GPUNVME_OPS_OK;
}

/* C^T = B^T A^T: a transposed result is the product of the swapped operands. */
struct gpunvme_matmul matmul_normal_form(const struct gpunvme_matmul *p)
{
    struct gpunvme_matmul q = *p;

    q.dtype_b = matmul_dtype_b(p);
    if (!p->transpose_c)
        return q;
    q.transpose_c = 0;
    q.dtype = q.dtype_b;
    q.dtype_b = p->dtype;
    q.m = p->n;
    q.n = p->m;
    q.a = p->b;
    q.lda = p->ldb;
    q.stride_a = p->stride_b;
    q.transpose_a = !p->transpose_b;
    q.scale_a = p->scale_b;
    q.scale_b = p->scale_a;
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
