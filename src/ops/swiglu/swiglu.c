/* SPDX-License-Identifier: BSD-3-Clause
 *
 * SwiGLU, forward and backward: their tables, and what their arguments must be. cpu.c and cuda.c
 * have the ladders.
 */
#include "ops/swiglu/swiglu.h"

OPS_ABI_SIZE(gpunvme_swiglu, 72);
OPS_ABI_SIZE(gpunvme_swiglu_grad, 104);

static gpunvme_ops_status_t check_common(struct ops_call *call, int64_t rows, int64_t cols,
                                         int dtype, int reserved)
{
    gpunvme_ops_status_t status = ops_check_enum("dtype", dtype, GPUNVME_OPS_NDTYPES);

    if (!status)
        status = ops_check_size("rows", rows);
    if (!status)
        status = ops_check_size("cols", cols);
    if (!status && reserved)
        status = ops_fail(GPUNVME_OPS_ERR_INVALID, "reserved is %d: set it to 0", reserved);
    call->dtype = dtype;
    call->empty = !rows || !cols;
    call->flops = 8 * (double)rows * (double)cols;
    return status;
}

static gpunvme_ops_status_t check_forward(struct ops_call *call)
{
    const struct gpunvme_swiglu *p = call->descriptor;
    struct ops_spans *spans = &call->spans;
    gpunvme_ops_status_t status = check_common(call, p->rows, p->cols, p->dtype, p->reserved);

    if (status)
        return status;
    ops_add_matrix(spans, "gate", p->gate, p->rows, p->cols, p->ld_gate, p->dtype, 0);
    ops_add_matrix(spans, "up", p->up, p->rows, p->cols, p->ld_up, p->dtype, 0);
    ops_add_matrix(spans, "y", p->y, p->rows, p->cols, p->ldy, p->dtype, 1);
    return GPUNVME_OPS_OK;
}

const struct ops_operator ops_swiglu_forward = {
    "swiglu_forward", check_forward, {&swiglu_forward_cpu, OPS_CUDA(&swiglu_forward_cuda)}};

OPS_FUNCTIONS(ops_swiglu_forward, gpunvme_swiglu_forward, struct gpunvme_swiglu)

static gpunvme_ops_status_t check_backward(struct ops_call *call)
{
    const struct gpunvme_swiglu_grad *p = call->descriptor;
    struct ops_spans *spans = &call->spans;
    gpunvme_ops_status_t status = check_common(call, p->rows, p->cols, p->dtype, p->reserved);

    if (status)
        return status;
    ops_add_matrix(spans, "grad_y", p->grad_y, p->rows, p->cols, p->ld_grad_y, p->dtype, 0);
    /* A result that replaces an operand is that operand. */
    if (p->grad_gate != p->gate || p->ld_grad_gate != p->ld_gate)
        ops_add_matrix(spans, "gate", p->gate, p->rows, p->cols, p->ld_gate, p->dtype, 0);
    if (p->grad_up != p->up || p->ld_grad_up != p->ld_up)
        ops_add_matrix(spans, "up", p->up, p->rows, p->cols, p->ld_up, p->dtype, 0);
    ops_add_matrix(spans, "grad_gate", p->grad_gate, p->rows, p->cols, p->ld_grad_gate, p->dtype,
                   1);
    ops_add_matrix(spans, "grad_up", p->grad_up, p->rows, p->cols, p->ld_grad_up, p->dtype, 1);
    return GPUNVME_OPS_OK;
}

const struct ops_operator ops_swiglu_backward = {
    "swiglu_backward", check_backward, {&swiglu_backward_cpu, OPS_CUDA(&swiglu_backward_cuda)}};

OPS_FUNCTIONS(ops_swiglu_backward, gpunvme_swiglu_backward, struct gpunvme_swiglu_grad)
