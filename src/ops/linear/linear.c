/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The linear layer, forward and backward: their tables, and what their arguments must be. cpu.c and
 * cuda_*.c have the ladders.
 */
#include "ops/linear/linear.h"

OPS_ABI_SIZE(gpunvme_linear, 112);
OPS_ABI_SIZE(gpunvme_linear_grad, 152);

static gpunvme_ops_status_t check_common(const int64_t size[3], int activation, int dtype,
                                         int compute, int reserved)
{
    static const char *const names[] = {"rows", "in", "out"};
    gpunvme_ops_status_t status = ops_check_enum("activation", activation, GPUNVME_OPS_NACTS);

    if (!status)
        status = ops_check_enum("dtype", dtype, GPUNVME_OPS_NDTYPES);
    if (!status)
        status = ops_check_enum("compute", compute, GPUNVME_OPS_NCOMPUTES);
    for (int i = 0; i < 3 && !status; i++)
        status = ops_check_size(names[i], size[i]);
    if (!status && reserved)
        status = ops_fail(GPUNVME_OPS_ERR_INVALID, "reserved is %d: set it to 0", reserved);
    return status;
}

static void describe_forward(const struct gpunvme_linear *p, struct ops_spans *spans)
{
    ops_add_matrix(spans, "x", p->x, p->out ? p->rows : 0, p->in, p->ldx, p->dtype, 0);
    ops_add_matrix(spans, "weight", p->weight, p->rows ? p->out : 0, p->in, p->ldw, p->dtype, 0);
    ops_add_matrix(spans, "y", p->y, p->rows, p->out, p->ldy, p->dtype, 1);
    if (p->bias)
        ops_add_matrix(spans, "bias", p->bias, p->rows ? 1 : 0, p->out, p->out, p->dtype, 0);
    if (p->preact)
        ops_add_matrix(spans, "preact", p->preact, p->rows, p->out, p->ld_preact, p->dtype, 1);
}

static double flops(int64_t rows, int64_t in, int64_t out)
{
    return 2 * (double)rows * (double)in * (double)out;
}

static gpunvme_ops_status_t check_forward(struct ops_call *call)
{
    const struct gpunvme_linear *p = call->descriptor;
    gpunvme_ops_status_t status = check_common((int64_t[]){p->rows, p->in, p->out}, p->activation,
                                               p->dtype, p->compute, p->reserved);

    if (status)
        return status;
    call->dtype = p->dtype;
    call->compute = p->compute;
    call->empty = !p->rows || !p->out;
    call->flops = flops(p->rows, p->in, p->out);
    describe_forward(p, &call->spans);
    return GPUNVME_OPS_OK;
}

const struct ops_operator ops_linear_forward = {
    "linear_forward", check_forward, {&linear_forward_cpu, OPS_CUDA(&linear_forward_cuda)}};

OPS_FUNCTIONS(ops_linear_forward, gpunvme_linear_forward, struct gpunvme_linear)

/* Is there an element of a gradient to compute? With rows = 0 gradients of parameters become 0. */
static int nothing_to_do(const struct gpunvme_linear_grad *p)
{
    return !linear_wants_x(p) && !linear_wants_weight(p) && !(p->grad_bias && p->out);
}

static void describe_backward(const struct gpunvme_linear_grad *p, struct ops_spans *spans)
{
    int64_t rows = nothing_to_do(p) ? 0 : p->rows;

    ops_add_matrix(spans, "grad_y", p->grad_y, rows, p->out, p->ld_grad_y, p->dtype, 0);
    if (p->activation != GPUNVME_OPS_ACT_NONE)
        ops_add_matrix(spans, "preact", p->preact, rows, p->out, p->ld_preact, p->dtype, 0);
    if (p->grad_x) {
        ops_add_matrix(spans, "weight", p->weight, rows ? p->out : 0, p->in, p->ldw, p->dtype, 0);
        ops_add_matrix(spans, "grad_x", p->grad_x, p->rows, p->in, p->ld_grad_x, p->dtype, 1);
    }
    if (p->grad_weight) {
        ops_add_matrix(spans, "x", p->x, p->out ? rows : 0, p->in, p->ldx, p->dtype, 0);
        ops_add_matrix(spans, "grad_weight", p->grad_weight, p->out, p->in, p->ld_grad_weight,
                       p->grad_dtype, 1);
    }
    if (p->grad_bias)
        ops_add_matrix(spans, "grad_bias", p->grad_bias, 1, p->out, p->out, p->grad_dtype, 1);
}

static gpunvme_ops_status_t check_backward(struct ops_call *call)
{
    const struct gpunvme_linear_grad *p = call->descriptor;
    gpunvme_ops_status_t status = check_common((int64_t[]){p->rows, p->in, p->out}, p->activation,
                                               p->dtype, p->compute, p->reserved);

    if (!status)
        status = ops_check_enum("grad_dtype", p->grad_dtype, GPUNVME_OPS_NDTYPES);
    if (!status)
        status = ops_check_enum("accumulate", p->accumulate, 2);
    if (status)
        return status;
    if (p->grad_dtype != GPUNVME_OPS_F32 && p->grad_dtype != p->dtype)
        return ops_fail(GPUNVME_OPS_ERR_DTYPE, "grad_dtype is %s: with %s it can be that, or f32",
                        gpunvme_ops_dtype_name(p->grad_dtype), gpunvme_ops_dtype_name(p->dtype));
    call->dtype = p->dtype;
    call->compute = p->compute;
    call->empty = nothing_to_do(p);
    call->flops = 2 * flops(p->rows, p->in, p->out);
    describe_backward(p, &call->spans);
    return GPUNVME_OPS_OK;
}

const struct ops_operator ops_linear_backward = {
    "linear_backward", check_backward, {&linear_backward_cpu, OPS_CUDA(&linear_backward_cuda)}};

OPS_FUNCTIONS(ops_linear_backward, gpunvme_linear_backward, struct gpunvme_linear_grad)
