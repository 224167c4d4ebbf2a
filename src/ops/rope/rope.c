/* SPDX-License-Identifier: BSD-3-Clause
 *
 * RoPE by itself: its table, and what its arguments must be. cpu.c and cuda.c have the ladders.
 */
#include <inttypes.h>

#include "ops/attention/attention.h"
#include "ops/rope/rope.h"

OPS_ABI_SIZE(gpunvme_rotate, 144);

/* A row has heads * dim elements. */
static gpunvme_ops_status_t check_sizes(const struct gpunvme_rotate *p)
{
    gpunvme_ops_status_t status = ops_check_size("rows", p->rows);

    if (!status)
        status = ops_check_size("heads", p->heads);
    if (!status)
        status = ops_check_size("dim", p->dim);
    if (!status && (p->heads > INT32_MAX || p->dim > INT32_MAX))
        status = ops_fail(GPUNVME_OPS_ERR_SHAPE,
                          "there are %" PRId64 " heads of %" PRId64 ": at most 2^31 - 1 each",
                          p->heads, p->dim);
    return status;
}

static void describe(const struct gpunvme_rotate *p, struct ops_spans *spans)
{
    int64_t cols = p->heads * p->dim;

    /* A result that replaces an operand is that operand. */
    if (p->y != p->x || p->ldy != p->ldx)
        ops_add_matrix(spans, "x", p->x, p->rows, cols, p->ldx, p->dtype, 0);
    if (p->positions)
        ops_add_integers(spans, "positions", p->positions, p->rows);
    attention_describe_rope(spans, &p->rope, false);
    ops_add_matrix(spans, "y", p->y, p->rows, cols, p->ldy, p->dtype, 1);
}

static gpunvme_ops_status_t check(struct ops_call *call)
{
    const struct gpunvme_rotate *p = call->descriptor;
    gpunvme_ops_status_t status = ops_check_enum("dtype", p->dtype, GPUNVME_OPS_NDTYPES);

    if (!status)
        status = check_sizes(p);
    if (!status)
        status = ops_check_enum("backward", p->backward, 2);
    if (!status)
        status = attention_check_rope(&p->rope, p->dim, p->positions ? 0 : p->rows);
    if (!status && (p->rope.queries_only || p->reserved[0] || p->reserved[1]))
        status = ops_fail(GPUNVME_OPS_ERR_INVALID,
                          "rope.queries_only or reserved is not 0: set it to 0");
    if (status)
        return status;
    call->dtype = p->dtype;
    call->empty = !p->rows || !p->heads || !p->dim;
    call->flops = 3 * (double)p->rows * (double)p->heads * p->rope.dim;
    if (!call->empty)
        describe(p, &call->spans);
    return GPUNVME_OPS_OK;
}

const struct ops_operator ops_rope = {"rope", check, {&rope_cpu, OPS_CUDA(&rope_cuda)}};

OPS_FUNCTIONS(ops_rope, gpunvme_rotate, struct gpunvme_rotate)
