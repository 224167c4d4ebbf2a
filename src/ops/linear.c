/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The linear layer, forward and backward: the arguments are checked, then a variant is chosen. What
 * variants do is in cpu/ and linear/.
 */
#include "ops/call.h"

static struct ops_matrix matrix(const char *name, const void *data, int64_t rows, int64_t cols,
                                int64_t ld, int dtype, int result)
{
    return (struct ops_matrix){.name = name,
                               .data = data,
                               .rows = rows,
                               .cols = cols,
                               .ld = ld,
                               .batch = 1,
                               .dtype = dtype,
                               .result = result,
                               .unused = !rows || !cols};
}

static void add(struct ops_spans *spans, struct ops_matrix x)
{
    spans->matrix[spans->count++] = x;
}

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
    add(spans, matrix("x", p->x, p->out ? p->rows : 0, p->in, p->ldx, p->dtype, 0));
    add(spans, matrix("weight", p->weight, p->rows ? p->out : 0, p->in, p->ldw, p->dtype, 0));
    add(spans, matrix("y", p->y, p->rows, p->out, p->ldy, p->dtype, 1));
    if (p->bias)
        add(spans, matrix("bias", p->bias, p->rows ? 1 : 0, p->out, p->out, p->dtype, 0));
    if (p->preact)
        add(spans, matrix("preact", p->preact, p->rows, p->out, p->ld_preact, p->dtype, 1));
}

static gpunvme_ops_status_t begin_forward(const struct gpunvme_linear *p,
                                          const struct gpunvme_ops_exec *exec,
                                          struct ops_call *call)
{
    gpunvme_ops_status_t status = ops_call_begin(call, GPUNVME_OPS_LINEAR_FORWARD, p, exec);

    if (!status)
        status = check_common((int64_t[]){p->rows, p->in, p->out}, p->activation, p->dtype,
                              p->compute, p->reserved);
    if (status)
        return status;
    call->problem.u.forward = p;
    call->empty = !p->rows || !p->out;
    describe_forward(p, &call->spans);
    return ops_check_shapes(&call->spans);
}

gpunvme_ops_status_t gpunvme_linear_forward(const struct gpunvme_linear *linear,
                                            const struct gpunvme_ops_exec *exec)
{
    struct ops_call call;
    gpunvme_ops_status_t status = begin_forward(linear, exec, &call);

    return status ? status : ops_call_run(&call);
}

gpunvme_ops_status_t gpunvme_linear_forward_workspace(const struct gpunvme_linear *linear,
                                                      const struct gpunvme_ops_exec *exec,
                                                      size_t *nbytes)
{
    struct ops_call call;
    gpunvme_ops_status_t status = begin_forward(linear, exec, &call);

    return status ? status : ops_call_workspace(&call, nbytes);
}

gpunvme_ops_status_t gpunvme_linear_forward_choose(const struct gpunvme_linear *linear,
                                                   const struct gpunvme_ops_exec *exec,
                                                   const char **name)
{
    struct ops_call call;
    gpunvme_ops_status_t status = begin_forward(linear, exec, &call);

    return status ? status : ops_call_choose(&call, name);
}

/* Is there an element of a gradient to compute? With rows = 0 gradients of parameters become 0. */
static int nothing_to_do(const struct gpunvme_linear_grad *p)
{
    return !(p->grad_x && p->rows && p->in) && !(p->grad_weight && p->out && p->in) &&
           !(p->grad_bias && p->out);
}

static void describe_backward(const struct gpunvme_linear_grad *p, struct ops_spans *spans)
{
    int64_t rows = nothing_to_do(p) ? 0 : p->rows;

    add(spans, matrix("grad_y", p->grad_y, rows, p->out, p->ld_grad_y, p->dtype, 0));
    if (p->activation != GPUNVME_OPS_ACT_NONE)
        add(spans, matrix("preact", p->preact, rows, p->out, p->ld_preact, p->dtype, 0));
    if (p->grad_x) {
        add(spans, matrix("weight", p->weight, rows ? p->out : 0, p->in, p->ldw, p->dtype, 0));
        add(spans, matrix("grad_x", p->grad_x, p->rows, p->in, p->ld_grad_x, p->dtype, 1));
    }
    if (p->grad_weight) {
        add(spans, matrix("x", p->x, p->out ? rows : 0, p->in, p->ldx, p->dtype, 0));
        add(spans, matrix("grad_weight", p->grad_weight, p->out, p->in, p->ld_grad_weight,
                          p->grad_dtype, 1));
    }
    if (p->grad_bias)
        add(spans, matrix("grad_bias", p->grad_bias, 1, p->out, p->out, p->grad_dtype, 1));
}

static gpunvme_ops_status_t begin_backward(const struct gpunvme_linear_grad *p,
                                           const struct gpunvme_ops_exec *exec,
                                           struct ops_call *call)
{
    gpunvme_ops_status_t status = ops_call_begin(call, GPUNVME_OPS_LINEAR_BACKWARD, p, exec);

    if (!status)
        status = check_common((int64_t[]){p->rows, p->in, p->out}, p->activation, p->dtype,
                              p->compute, p->reserved);
    if (!status)
        status = ops_check_enum("grad_dtype", p->grad_dtype, GPUNVME_OPS_NDTYPES);
    if (!status)
        status = ops_check_enum("accumulate", p->accumulate, 2);
    if (status)
        return status;
    if (p->grad_dtype != GPUNVME_OPS_F32 && p->grad_dtype != p->dtype)
        return ops_fail(GPUNVME_OPS_ERR_DTYPE, "grad_dtype is %s: with %s it can be that, or f32",
                        gpunvme_ops_dtype_name(p->grad_dtype), gpunvme_ops_dtype_name(p->dtype));
    call->problem.u.backward = p;
    call->empty = nothing_to_do(p);
    describe_backward(p, &call->spans);
    return ops_check_shapes(&call->spans);
}

gpunvme_ops_status_t gpunvme_linear_backward(const struct gpunvme_linear_grad *grad,
                                             const struct gpunvme_ops_exec *exec)
{
    struct ops_call call;
    gpunvme_ops_status_t status = begin_backward(grad, exec, &call);

    return status ? status : ops_call_run(&call);
}

gpunvme_ops_status_t gpunvme_linear_backward_workspace(const struct gpunvme_linear_grad *grad,
                                                       const struct gpunvme_ops_exec *exec,
                                                       size_t *nbytes)
{
    struct ops_call call;
    gpunvme_ops_status_t status = begin_backward(grad, exec, &call);

    return status ? status : ops_call_workspace(&call, nbytes);
}

gpunvme_ops_status_t gpunvme_linear_backward_choose(const struct gpunvme_linear_grad *grad,
                                                    const struct gpunvme_ops_exec *exec,
                                                    const char **name)
{
    struct ops_call call;
    gpunvme_ops_status_t status = begin_backward(grad, exec, &call);

    return status ? status : ops_call_choose(&call, name);
}
