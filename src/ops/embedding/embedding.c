/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Embedding, forward and backward: their tables, and what their arguments must be. cpu.c and cuda.c
 * have the ladders.
 */
#include <inttypes.h>

#include "ops/embedding/embedding.h"

OPS_ABI_SIZE(gpunvme_embedding, 72);
OPS_ABI_SIZE(gpunvme_embedding_grad, 80);

/* Ids are numbers of 31 bits, and so are places in lists of rows. */
#define MOST INT32_MAX

static gpunvme_ops_status_t check_common(struct ops_call *call, const int64_t size[3], int dtype,
                                         int reserved)
{
    static const char *const names[] = {"rows", "vocab", "dim"};
    gpunvme_ops_status_t status = ops_check_enum("dtype", dtype, GPUNVME_OPS_NDTYPES);

    for (int i = 0; i < 3 && !status; i++)
        status = ops_check_size(names[i], size[i]);
    for (int i = 0; i < 2 && !status; i++)
        if (size[i] > MOST)
            status = ops_fail(GPUNVME_OPS_ERR_SHAPE, "%s is %" PRId64 ": at most 2^31 - 1",
                              names[i], size[i]);
    if (!status && reserved)
        status = ops_fail(GPUNVME_OPS_ERR_INVALID, "reserved is %d: set it to 0", reserved);
    call->dtype = dtype;
    call->flops = (double)size[0] * (double)size[2];
    return status;
}

static gpunvme_ops_status_t check_forward(struct ops_call *call)
{
    const struct gpunvme_embedding *p = call->descriptor;
    gpunvme_ops_status_t status =
        check_common(call, (int64_t[]){p->rows, p->vocab, p->dim}, p->dtype, p->reserved);

    if (status)
        return status;
    call->empty = !p->rows || !p->dim;
    ops_add_matrix(&call->spans, "weight", p->weight, p->rows ? p->vocab : 0, p->dim, p->ld_weight,
                   p->dtype, 0);
    ops_add_integers(&call->spans, "ids", p->ids, p->dim ? p->rows : 0);
    ops_add_matrix(&call->spans, "y", p->y, p->rows, p->dim, p->ldy, p->dtype, 1);
    return GPUNVME_OPS_OK;
}

const struct ops_operator ops_embedding_forward = {
    "embedding_forward",
    check_forward,
    {&embedding_forward_cpu, OPS_CUDA(&embedding_forward_cuda)}};

OPS_FUNCTIONS(ops_embedding_forward, gpunvme_embedding_forward, struct gpunvme_embedding)

static gpunvme_ops_status_t check_backward(struct ops_call *call)
{
    const struct gpunvme_embedding_grad *p = call->descriptor;
    gpunvme_ops_status_t status =
        check_common(call, (int64_t[]){p->rows, p->vocab, p->dim}, p->dtype, p->reserved);

    if (!status)
        status = ops_check_enum("grad_dtype", p->grad_dtype, GPUNVME_OPS_NDTYPES);
    if (!status)
        status = ops_check_enum("accumulate", p->accumulate, 2);
    if (status)
        return status;
    if (p->grad_dtype != GPUNVME_OPS_F32 && p->grad_dtype != p->dtype)
        return ops_fail(GPUNVME_OPS_ERR_DTYPE, "grad_dtype is %s: with %s it can be that, or f32",
                        gpunvme_ops_dtype_name(p->grad_dtype), gpunvme_ops_dtype_name(p->dtype));
    call->empty = !p->vocab || !p->dim;
    ops_add_matrix(&call->spans, "grad_y", p->grad_y, call->empty ? 0 : p->rows, p->dim,
                   p->ld_grad_y, p->dtype, 0);
    ops_add_integers(&call->spans, "ids", p->ids, call->empty ? 0 : p->rows);
    ops_add_matrix(&call->spans, "grad_weight", p->grad_weight, p->vocab, p->dim, p->ld_grad_weight,
                   p->grad_dtype, 1);
    return GPUNVME_OPS_OK;
}

const struct ops_operator ops_embedding_backward = {
    "embedding_backward",
    check_backward,
    {&embedding_backward_cpu, OPS_CUDA(&embedding_backward_cuda)}};

OPS_FUNCTIONS(ops_embedding_backward, gpunvme_embedding_backward, struct gpunvme_embedding_grad)
