/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Mixture of experts, forward and backward: their tables, and what their arguments must be. cpu*.c
 * and cuda*.c have the ladders.
 */
#include "ops/moe/moe.h"

#include <inttypes.h>

OPS_ABI_SIZE(gpunvme_moe, 208);
OPS_ABI_SIZE(gpunvme_moe_grad, 320);

void *moe_part(struct moe_workspace *workspace, int64_t rows, int64_t cols, size_t size)
{
    const size_t most = SIZE_MAX / 4; /* as ops_workspace_part() */
    void *part = workspace->base ? workspace->base + workspace->nbytes : NULL;
    size_t nbytes = ops_workspace_part(1, rows, cols, size);

    workspace->nbytes = nbytes > most - workspace->nbytes ? most : workspace->nbytes + nbytes;
    return part;
}

/* Sizes and types that both directions have. */
struct common {
    int64_t tokens, experts, top_k, dim, hidden;
    int dtype, logits_dtype, compute, weighting;
};

static gpunvme_ops_status_t check_sizes(const struct common *x)
{
    const struct {
        const char *name;
        int64_t value, least, most;
    } sizes[] = {
        {"tokens", x->tokens, 0, INT32_MAX}, {"experts", x->experts, 1, INT32_MAX},
        {"top_k", x->top_k, 1, x->experts},  {"dim", x->dim, 1, INT32_MAX},
        {"hidden", x->hidden, 1, INT32_MAX},
    };

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (sizes[i].value < sizes[i].least || sizes[i].value > sizes[i].most)
            return ops_fail(GPUNVME_OPS_ERR_SHAPE,
                            "%s is %" PRId64 ": it must be from %" PRId64 " to %" PRId64,
                            sizes[i].name, sizes[i].value, sizes[i].least, sizes[i].most);
    if (x->tokens * x->top_k > INT32_MAX)
        return ops_fail(GPUNVME_OPS_ERR_SHAPE,
                        "%" PRId64 " tokens of %" PRId64 " experts each: at most 2^31 - 1 together",
                        x->tokens, x->top_k);
    return GPUNVME_OPS_OK;
}

static gpunvme_ops_status_t check_common(struct ops_call *call, const struct common *x)
{
    gpunvme_ops_status_t status = ops_check_enum("dtype", x->dtype, GPUNVME_OPS_NDTYPES);

    if (!status)
        status = ops_check_enum("logits_dtype", x->logits_dtype, GPUNVME_OPS_NDTYPES);
    if (!status)
        status = ops_check_enum("compute", x->compute, GPUNVME_OPS_NCOMPUTES);
    if (!status)
        status = ops_check_enum("weighting", x->weighting, GPUNVME_MOE_NWEIGHTINGS);
    if (!status)
        status = check_sizes(x);
    if (!status && x->logits_dtype != x->dtype && x->logits_dtype != GPUNVME_OPS_F32)
        status =
            ops_fail(GPUNVME_OPS_ERR_DTYPE, "logits are %s: with %s they can be that, or f32",
                     gpunvme_ops_dtype_name(x->logits_dtype), gpunvme_ops_dtype_name(x->dtype));
    call->dtype = x->dtype;
    call->compute = x->compute;
    call->flops = 6 * (double)x->tokens * (double)x->top_k * (double)x->dim * (double)x->hidden;
    return status;
}

/* The matrices of all experts; without tokens they may be NULL, unless they are results. */
static void add_experts(const struct common *x, struct ops_spans *spans, const char *name,
                        const void *data, int64_t rows, int64_t cols, int64_t ld, int64_t stride,
                        int dtype, int result)
{
    struct ops_matrix *m = &spans->matrix[spans->count];

    ops_add_matrix(spans, name, data, rows, cols, ld, dtype, result);
    m->batch = x->experts;
    m->stride = stride;
    m->unused = !result && !x->tokens;
}

static void add_results(struct ops_spans *spans, const char *name, const void *data, int64_t rows,
                        int64_t cols, int64_t ld, int dtype)
{
    if (data)
        ops_add_matrix(spans, name, data, rows, cols, ld, dtype, 1);
}

static gpunvme_ops_status_t check_forward(struct ops_call *call)
{
    const struct gpunvme_moe *p = call->descriptor;
    const struct common x = {p->tokens, p->experts,      p->top_k,   p->dim,      p->hidden,
                             p->dtype,  p->logits_dtype, p->compute, p->weighting};
    struct ops_spans *spans = &call->spans;
    int64_t slots = p->tokens * p->top_k;
    gpunvme_ops_status_t status = check_common(call, &x);

    if (status)
        return status;
    call->empty = !p->tokens;
    ops_add_matrix(spans, "x", p->x, p->tokens, p->dim, p->ldx, p->dtype, 0);
    ops_add_matrix(spans, "logits", p->logits, p->tokens, p->experts, p->ld_logits, p->logits_dtype,
                   0);
    add_experts(&x, spans, "w_gate", p->w_gate, p->hidden, p->dim, p->ld_w_gate, p->stride_w_gate,
                p->dtype, 0);
    add_experts(&x, spans, "w_up", p->w_up, p->hidden, p->dim, p->ld_w_up, p->stride_w_up, p->dtype,
                0);
    add_experts(&x, spans, "w_down", p->w_down, p->dim, p->hidden, p->ld_w_down, p->stride_w_down,
                p->dtype, 0);
    ops_add_matrix(spans, "y", p->y, p->tokens, p->dim, p->ldy, p->dtype, 1);
    add_results(spans, "weights", p->weights, 1, slots, slots, GPUNVME_OPS_F32);
    add_results(spans, "gate", p->gate, slots, p->hidden, p->hidden, p->dtype);
    add_results(spans, "up", p->up, slots, p->hidden, p->hidden, p->dtype);
    if (p->chosen) {
        ops_add_integers(spans, "chosen", p->chosen, slots);
        spans->matrix[spans->count - 1].result = 1;
    }
    return GPUNVME_OPS_OK;
}

const struct ops_operator ops_moe_forward = {
    "moe_forward", check_forward, {&moe_forward_cpu, OPS_CUDA(&moe_forward_cuda)}};

OPS_FUNCTIONS(ops_moe_forward, gpunvme_moe_forward, struct gpunvme_moe)

static void describe_backward(const struct gpunvme_moe_grad *p, const struct common *x,
                              struct ops_spans *spans)
{
    int64_t slots = p->tokens * p->top_k;

    ops_add_matrix(spans, "grad_y", p->grad_y, p->tokens, p->dim, p->ld_grad_y, p->dtype, 0);
    ops_add_matrix(spans, "x", p->x, p->tokens, p->dim, p->ldx, p->dtype, 0);
    if (p->grad_logits && p->weighting == GPUNVME_MOE_ALL)
        ops_add_matrix(spans, "logits", p->logits, p->tokens, p->experts, p->ld_logits,
                       p->logits_dtype, 0);
    add_experts(x, spans, "w_gate", p->w_gate, p->hidden, p->dim, p->ld_w_gate, p->stride_w_gate,
                p->dtype, 0);
    add_experts(x, spans, "w_up", p->w_up, p->hidden, p->dim, p->ld_w_up, p->stride_w_up, p->dtype,
                0);
    add_experts(x, spans, "w_down", p->w_down, p->dim, p->hidden, p->ld_w_down, p->stride_w_down,
                p->dtype, 0);
    ops_add_integers(spans, "chosen", p->chosen, slots);
    ops_add_matrix(spans, "weights", p->weights, !!slots, slots, slots, GPUNVME_OPS_F32, 0);
    ops_add_matrix(spans, "gate", p->gate, slots, p->hidden, p->hidden, p->dtype, 0);
    ops_add_matrix(spans, "up", p->up, slots, p->hidden, p->hidden, p->dtype, 0);
    add_results(spans, "grad_x", p->grad_x, p->tokens, p->dim, p->ld_grad_x, p->dtype);
    add_results(spans, "grad_logits", p->grad_logits, p->tokens, p->experts, p->ld_grad_logits,
                p->logits_dtype);
    if (p->grad_w_gate)
        add_experts(x, spans, "grad_w_gate", p->grad_w_gate, p->hidden, p->dim, p->ld_grad_w_gate,
                    p->stride_grad_w_gate, p->grad_dtype, 1);
    if (p->grad_w_up)
        add_experts(x, spans, "grad_w_up", p->grad_w_up, p->hidden, p->dim, p->ld_grad_w_up,
                    p->stride_grad_w_up, p->grad_dtype, 1);
    if (p->grad_w_down)
        add_experts(x, spans, "grad_w_down", p->grad_w_down, p->dim, p->hidden, p->ld_grad_w_down,
                    p->stride_grad_w_down, p->grad_dtype, 1);
}

static gpunvme_ops_status_t check_backward(struct ops_call *call)
{
    const struct gpunvme_moe_grad *p = call->descriptor;
    const struct common x = {p->tokens, p->experts,      p->top_k,   p->dim,      p->hidden,
                             p->dtype,  p->logits_dtype, p->compute, p->weighting};
    int of_experts = p->grad_w_gate || p->grad_w_up || p->grad_w_down;
    gpunvme_ops_status_t status = check_common(call, &x);

    if (!status)
        status = ops_check_enum("grad_dtype", p->grad_dtype, GPUNVME_OPS_NDTYPES);
    if (!status)
        status = ops_check_enum("accumulate", p->accumulate, 2);
    if (status)
        return status;
    if (p->grad_dtype != GPUNVME_OPS_F32 && p->grad_dtype != p->dtype)
        return ops_fail(GPUNVME_OPS_ERR_DTYPE, "grad_dtype is %s: with %s it can be that, or f32",
                        gpunvme_ops_dtype_name(p->grad_dtype), gpunvme_ops_dtype_name(p->dtype));
    call->flops *= 2;
    call->empty = !of_experts && (!p->tokens || !(p->grad_x || p->grad_logits));
    describe_backward(p, &x, &call->spans);
    return GPUNVME_OPS_OK;
}

const struct ops_operator ops_moe_backward = {
    "moe_backward", check_backward, {&moe_backward_cpu, OPS_CUDA(&moe_backward_cuda)}};

OPS_FUNCTIONS(ops_moe_backward, gpunvme_moe_backward, struct gpunvme_moe_grad)
