/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Softmax cross entropy: its table, and what its arguments must be. cpu.c and cuda.c have the
 * ladders.
 */
#include <inttypes.h>

#include "ops/cross_entropy/cross_entropy.h"

OPS_ABI_SIZE(gpunvme_cross_entropy, 104);

static gpunvme_ops_status_t check_numbers(const struct gpunvme_cross_entropy *p)
{
    gpunvme_ops_status_t status = ops_check_enum("reduction", p->reduction, GPUNVME_NREDUCTIONS);

    if (!status)
        status = ops_check_enum("dtype", p->dtype, GPUNVME_OPS_NDTYPES);
    if (!status)
        status = ops_check_enum("ignore", p->ignore, 2);
    if (!status)
        status = ops_check_size("rows", p->rows);
    if (!status)
        status = ops_check_size("vocab", p->vocab);
    if (!status && (p->reserved[0] || p->reserved[1]))
        status = ops_fail(GPUNVME_OPS_ERR_INVALID, "reserved is not 0: set it to 0");
    if (!status && p->rows && !p->vocab)
        status =
            ops_fail(GPUNVME_OPS_ERR_SHAPE, "vocab is 0, but there are %" PRId64 " rows", p->rows);
    return status;
}

static gpunvme_ops_status_t check(struct ops_call *call)
{
    const struct gpunvme_cross_entropy *p = call->descriptor;
    struct ops_spans *spans = &call->spans;
    int64_t losses = p->reduction == GPUNVME_REDUCTION_NONE ? p->rows : 1;
    gpunvme_ops_status_t status = check_numbers(p);

    if (status)
        return status;
    call->dtype = p->dtype;
    call->empty = !p->rows && !cross_entropy_wants_total(p);
    call->flops = 4 * (double)p->rows * (double)p->vocab;
    if (!(p->grad == p->logits && p->ld_grad == p->ld_logits))
        ops_add_matrix(spans, "logits", p->logits, p->rows, p->vocab, p->ld_logits, p->dtype, 0);
    ops_add_integers(spans, "targets", p->targets, p->rows);
    if (p->grad_loss && p->grad)
        ops_add_matrix(spans, "grad_loss", p->grad_loss, p->rows ? 1 : 0, losses, 0,
                       GPUNVME_OPS_F32, 0);
    if (p->loss)
        ops_add_matrix(spans, "loss", p->loss, 1, losses, 0, GPUNVME_OPS_F32, 1);
    if (p->lse)
        ops_add_matrix(spans, "lse", p->lse, 1, p->rows, 0, GPUNVME_OPS_F32, 1);
    if (p->grad)
        ops_add_matrix(spans, "grad", p->grad, p->rows, p->vocab, p->ld_grad, p->dtype, 1);
    return GPUNVME_OPS_OK;
}

const struct ops_operator ops_cross_entropy = {
    "cross_entropy", check, {&cross_entropy_cpu, OPS_CUDA(&cross_entropy_cuda)}};

OPS_FUNCTIONS(ops_cross_entropy, gpunvme_cross_entropy, struct gpunvme_cross_entropy)
