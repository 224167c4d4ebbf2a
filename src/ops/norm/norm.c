/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Normalization, forward and backward: their tables, and what their arguments must be. cpu.c and
 * cuda.c have the ladders.
 */
#include <math.h>

#include "ops/norm/norm.h"

OPS_ABI_SIZE(gpunvme_norm, 136);
OPS_ABI_SIZE(gpunvme_norm_grad, 144);

static gpunvme_ops_status_t check_common(int64_t rows, int64_t cols, int kind, int dtype,
                                         int weight_dtype)
{
    gpunvme_ops_status_t status = ops_check_enum("kind", kind, GPUNVME_NORM_NKINDS);

    if (!status)
        status = ops_check_enum("dtype", dtype, GPUNVME_OPS_NDTYPES);
    if (!status)
        status = ops_check_enum("weight_dtype", weight_dtype, GPUNVME_OPS_NDTYPES);
    if (!status)
        status = ops_check_size("rows", rows);
    if (!status)
        status = ops_check_size("cols", cols);
    if (!status && weight_dtype != GPUNVME_OPS_F32 && weight_dtype != dtype)
        status =
            ops_fail(GPUNVME_OPS_ERR_DTYPE, "weight_dtype is %s: with %s it can be that, or f32",
                     gpunvme_ops_dtype_name(weight_dtype), gpunvme_ops_dtype_name(dtype));
    return status;
}

/* A result that replaces an operand is that operand. */
static int replaces(const void *result, int64_t ld, const void *operand, int64_t ld_operand)
{
    return result == operand && ld == ld_operand;
}

static void describe_forward(const struct gpunvme_norm *p, struct ops_spans *spans)
{
    int in_residual = p->sum && replaces(p->sum, p->ld_sum, p->residual, p->ld_residual);
    int in_x = p->sum && replaces(p->sum, p->ld_sum, p->x, p->ldx);

    if (!in_x)
        ops_add_matrix(spans, "x", p->x, p->rows, p->cols, p->ldx, p->dtype, 0);
    if (p->residual && !in_residual)
        ops_add_matrix(spans, "residual", p->residual, p->rows, p->cols, p->ld_residual, p->dtype,
                       0);
    if (p->weight)
        ops_add_matrix(spans, "weight", p->weight, 1, p->cols, 0, p->weight_dtype, 0);
    if (p->bias)
        ops_add_matrix(spans, "bias", p->bias, 1, p->cols, 0, p->weight_dtype, 0);
    ops_add_matrix(spans, "y", p->y, p->rows, p->cols, p->ldy, p->dtype, 1);
    if (p->sum)
        ops_add_matrix(spans, "sum", p->sum, p->rows, p->cols, p->ld_sum, p->dtype, 1);
    if (p->mean && p->kind == GPUNVME_NORM_LAYER)
        ops_add_matrix(spans, "mean", p->mean, 1, p->rows, 0, GPUNVME_OPS_F32, 1);
    if (p->rstd)
        ops_add_matrix(spans, "rstd", p->rstd, 1, p->rows, 0, GPUNVME_OPS_F32, 1);
}

static gpunvme_ops_status_t check_forward(struct ops_call *call)
{
    const struct gpunvme_norm *p = call->descriptor;
    gpunvme_ops_status_t status =
        check_common(p->rows, p->cols, p->kind, p->dtype, p->weight_dtype);

    if (!status && (p->reserved[0] || p->reserved[1]))
        status = ops_fail(GPUNVME_OPS_ERR_INVALID, "reserved is not 0: set it to 0");
    if (!status && !(p->eps >= 0 && isfinite(p->eps)))
        status = ops_fail(GPUNVME_OPS_ERR_INVALID, "eps is %g: it must be finite, not negative",
                          (double)p->eps);
    if (status)
        return status;
    call->dtype = p->dtype;
    call->empty = !p->rows || !p->cols;
    call->flops = 5 * (double)p->rows * (double)p->cols;
    if (!call->empty)
        describe_forward(p, &call->spans);
    return GPUNVME_OPS_OK;
}

const struct ops_operator ops_norm_forward = {
    "norm_forward", check_forward, {&norm_forward_cpu, OPS_CUDA(&norm_forward_cuda)}};

OPS_FUNCTIONS(ops_norm_forward, gpunvme_norm_forward, struct gpunvme_norm)

static void describe_backward(const struct gpunvme_norm_grad *p, struct ops_spans *spans)
{
    int normalized = p->grad_x || p->grad_weight;

    ops_add_matrix(spans, "grad_y", p->grad_y, p->rows, p->cols, p->ld_grad_y, p->dtype, 0);
    if (normalized) {
        ops_add_matrix(spans, "x", p->x, p->rows, p->cols, p->ldx, p->dtype, 0);
        ops_add_matrix(spans, "rstd", p->rstd, 1, p->rows, 0, GPUNVME_OPS_F32, 0);
    }
    if (normalized && p->kind == GPUNVME_NORM_LAYER)
        ops_add_matrix(spans, "mean", p->mean, 1, p->rows, 0, GPUNVME_OPS_F32, 0);
    if (p->grad_x && p->weight)
        ops_add_matrix(spans, "weight", p->weight, p->rows ? 1 : 0, p->cols, 0, p->weight_dtype, 0);
    if (p->grad_x && p->grad_sum && !replaces(p->grad_x, p->ld_grad_x, p->grad_sum, p->ld_grad_sum))
        ops_add_matrix(spans, "grad_sum", p->grad_sum, p->rows, p->cols, p->ld_grad_sum, p->dtype,
                       0);
    if (p->grad_x)
        ops_add_matrix(spans, "grad_x", p->grad_x, p->rows, p->cols, p->ld_grad_x, p->dtype, 1);
    if (p->grad_weight)
        ops_add_matrix(spans, "grad_weight", p->grad_weight, 1, p->cols, 0, p->grad_dtype, 1);
    if (p->grad_bias)
        ops_add_matrix(spans, "grad_bias", p->grad_bias, 1, p->cols, 0, p->grad_dtype, 1);
}

static gpunvme_ops_status_t check_backward(struct ops_call *call)
{
    const struct gpunvme_norm_grad *p = call->descriptor;
    gpunvme_ops_status_t status =
        check_common(p->rows, p->cols, p->kind, p->dtype, p->weight_dtype);

    if (!status)
        status = ops_check_enum("grad_dtype", p->grad_dtype, GPUNVME_OPS_NDTYPES);
    if (!status)
        status = ops_check_enum("accumulate", p->accumulate, 2);
    if (!status && p->reserved)
        status = ops_fail(GPUNVME_OPS_ERR_INVALID, "reserved is %d: set it to 0", p->reserved);
    if (status)
        return status;
    if (p->grad_dtype != GPUNVME_OPS_F32 && p->grad_dtype != p->dtype)
        return ops_fail(GPUNVME_OPS_ERR_DTYPE, "grad_dtype is %s: with %s it can be that, or f32",
                        gpunvme_ops_dtype_name(p->grad_dtype), gpunvme_ops_dtype_name(p->dtype));
    call->dtype = p->dtype;
    call->empty = !norm_wants_x(p) && !norm_wants_sums(p);
    call->flops = 12 * (double)p->rows * (double)p->cols;
    if (!call->empty)
        describe_backward(p, &call->spans);
    return GPUNVME_OPS_OK;
}

const struct ops_operator ops_norm_backward = {
    "norm_backward", check_backward, {&norm_backward_cpu, OPS_CUDA(&norm_backward_cuda)}};

OPS_FUNCTIONS(ops_norm_backward, gpunvme_norm_backward, struct gpunvme_norm_grad)
