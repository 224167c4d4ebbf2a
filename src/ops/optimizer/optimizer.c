/* SPDX-License-Identifier: BSD-3-Clause
 *
 * AdamW and the norm of gradients: their tables, and what their arguments must be. cpu.c and cuda.c
 * have the ladders.
 */
#include <inttypes.h>
#include <math.h>

#include "ops/optimizer/optimizer.h"

OPS_ABI_SIZE(gpunvme_adamw_tensor, 48);
OPS_ABI_SIZE(gpunvme_adamw_now, 16);
OPS_ABI_SIZE(gpunvme_adamw, 80);
OPS_ABI_SIZE(gpunvme_grad_tensor, 16);
OPS_ABI_SIZE(gpunvme_grad_norm, 48);

struct adamw_step adamw_step_of(const struct gpunvme_adamw *p)
{
    return (struct adamw_step){
        .lr = p->lr,
        .beta1 = p->beta1,
        .beta2 = p->beta2,
        .eps = p->eps,
        .keep = (float)(1 - (double)p->lr * (double)p->weight_decay),
        .to_m = (float)(1 / (1 - pow((double)p->beta1, (double)p->step))),
        .to_v = (float)(1 / (1 - pow((double)p->beta2, (double)p->step))),
    };
}

static gpunvme_ops_status_t check_list(const void *tensors, int64_t ntensors)
{
    gpunvme_ops_status_t status = ops_check_size("ntensors", ntensors);

    if (!status && ntensors && !tensors)
        status =
            ops_fail(GPUNVME_OPS_ERR_INVALID, "tensors is NULL, but there are %" PRId64, ntensors);
    return status;
}

static gpunvme_ops_status_t check_count(int64_t k, int64_t count)
{
    if (count < 0 || count > INT64_MAX / 4)
        return ops_fail(GPUNVME_OPS_ERR_SHAPE,
                        "tensor %" PRId64 " has a count of %" PRId64 ": it must not be negative, "
                        "nor more than memory",
                        k, count);
    return GPUNVME_OPS_OK;
}

/* The first tensor with a fault is named, beside what ops_check_memory() says. */
static gpunvme_ops_status_t in_tensor(int64_t k, gpunvme_ops_status_t status)
{
    return status ? ops_fail(status, "tensor %" PRId64 ": %s", k, gpunvme_ops_detail()) : status;
}

static gpunvme_ops_status_t check_numbers(const struct gpunvme_adamw *p)
{
    const struct {
        const char *name;
        float value;
        float below; /* 0: anything finite that is not negative */
    } numbers[] = {{"lr", p->now ? 0 : p->lr, 0},
                   {"beta1", p->beta1, 1},
                   {"beta2", p->beta2, 1},
                   {"eps", p->eps, 0},
                   {"weight_decay", p->weight_decay, 0}};

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (!(numbers[i].value >= 0 && isfinite(numbers[i].value)) ||
            (numbers[i].below > 0 && !(numbers[i].value < numbers[i].below)))
            return ops_fail(GPUNVME_OPS_ERR_INVALID, "%s is %g: it must not be negative%s",
                            numbers[i].name, (double)numbers[i].value,
                            numbers[i].below > 0 ? ", and below 1" : ", and finite");
    if (p->step < 1 && !p->now)
        return ops_fail(GPUNVME_OPS_ERR_INVALID, "step is %" PRId64 ": the first is 1", p->step);
    return GPUNVME_OPS_OK;
}

static gpunvme_ops_status_t check_tensors(const struct ops_call *call)
{
    const struct gpunvme_adamw *p = call->descriptor;

    for (int64_t k = 0; k < p->ntensors; k++) {
        const struct gpunvme_adamw_tensor *t = &p->tensors[k];
        struct ops_spans spans = {.count = 0};
        gpunvme_ops_status_t status;

        ops_add_matrix(&spans, "grad", t->grad, 1, t->count, 0, p->grad_dtype, 0);
        if (t->master)
            ops_add_matrix(&spans, "master", t->master, 1, t->count, 0, GPUNVME_OPS_F32, 1);
        if (t->weight || !t->master)
            ops_add_matrix(&spans, "weight", t->weight, 1, t->count, 0, p->dtype, 1);
        ops_add_matrix(&spans, "m", t->m, 1, t->count, 0, GPUNVME_OPS_F32, 1);
        ops_add_matrix(&spans, "v", t->v, 1, t->count, 0, GPUNVME_OPS_F32, 1);
        status = in_tensor(k, ops_check_memory(&spans));
        if (status)
            return status;
    }
    return GPUNVME_OPS_OK;
}

static gpunvme_ops_status_t check_adamw(struct ops_call *call)
{
    const struct gpunvme_adamw *p = call->descriptor;
    gpunvme_ops_status_t status = check_list(p->tensors, p->ntensors);

    if (!status)
        status = ops_check_enum("dtype", p->dtype, GPUNVME_OPS_NDTYPES);
    if (!status)
        status = ops_check_enum("grad_dtype", p->grad_dtype, GPUNVME_OPS_NDTYPES);
    if (!status)
        status = ops_check_enum("stochastic", p->stochastic, 2);
    if (!status)
        status = check_numbers(p);
    if (!status && p->stochastic && p->dtype != GPUNVME_OPS_BF16)
        status = ops_fail(GPUNVME_OPS_ERR_DTYPE, "stochastic rounding is to bf16, and dtype is %s",
                          gpunvme_ops_dtype_name(p->dtype));
    call->dtype = p->grad_dtype;
    call->check_memory = check_tensors;
    call->empty = 1;
    for (int64_t k = 0; k < p->ntensors && !status; k++) {
        status = check_count(k, p->tensors[k].count);
        call->flops += 15 * (double)p->tensors[k].count;
        call->empty &= !p->tensors[k].count;
    }
    if (!status && p->grad_scale && !call->empty)
        ops_add_matrix(&call->spans, "grad_scale", p->grad_scale, 1, 1, 1, GPUNVME_OPS_F32, 0);
    if (!status && (uintptr_t)p->now % sizeof(int64_t))
        status = ops_fail(GPUNVME_OPS_ERR_ALIGN, "now is not aligned to 8 bytes");
    return status;
}

const struct ops_operator ops_adamw = {"adamw", check_adamw, {&adamw_cpu, OPS_CUDA(&adamw_cuda)}};

OPS_FUNCTIONS(ops_adamw, gpunvme_adamw, struct gpunvme_adamw)

static gpunvme_ops_status_t check_gradients(const struct ops_call *call)
{
    const struct gpunvme_grad_norm *p = call->descriptor;

    for (int64_t k = 0; k < p->ntensors && !call->empty; k++) {
        struct ops_spans spans = call->spans;
        gpunvme_ops_status_t status;

        ops_add_matrix(&spans, "grad", p->tensors[k].grad, 1, p->tensors[k].count, 0, p->dtype, 0);
        status = in_tensor(k, ops_check_memory(&spans));
        if (status)
            return status;
    }
    return GPUNVME_OPS_OK;
}

static gpunvme_ops_status_t check_norm(struct ops_call *call)
{
    const struct gpunvme_grad_norm *p = call->descriptor;
    gpunvme_ops_status_t status = check_list(p->tensors, p->ntensors);

    if (!status)
        status = ops_check_enum("dtype", p->dtype, GPUNVME_OPS_NDTYPES);
    if (!status && (p->reserved[0] || p->reserved[1]))
        status = ops_fail(GPUNVME_OPS_ERR_INVALID, "reserved is not 0: set it to 0");
    if (!status && p->scale && !(p->max_norm > 0 && isfinite(p->max_norm)))
        status = ops_fail(GPUNVME_OPS_ERR_INVALID, "max_norm is %g: it must be positive",
                          (double)p->max_norm);
    for (int64_t k = 0; k < p->ntensors && !status; k++) {
        status = check_count(k, p->tensors[k].count);
        call->flops += 2 * (double)p->tensors[k].count;
    }
    call->dtype = p->dtype;
    call->check_memory = check_gradients;
    call->empty = !p->norm && !p->scale;
    if (!status && p->norm)
        ops_add_matrix(&call->spans, "norm", p->norm, 1, 1, 1, GPUNVME_OPS_F32, 1);
    if (!status && p->scale)
        ops_add_matrix(&call->spans, "scale", p->scale, 1, 1, 1, GPUNVME_OPS_F32, 1);
    return status;
}

const struct ops_operator ops_grad_norm = {
    "grad_norm", check_norm, {&grad_norm_cpu, OPS_CUDA(&grad_norm_cuda)}};

OPS_FUNCTIONS(ops_grad_norm, gpunvme_grad_norm, struct gpunvme_grad_norm)
