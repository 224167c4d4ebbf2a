/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Normalization on the GPU: the ladders.
 */
#include "ops/cuda/sums.h"
#include "ops/norm/kernels.h"
#include "ops/norm/norm.h"

#define BLOCKS_OF_UNIT 2 /* that stay on a multiprocessor backwards */

typedef gpunvme_ops_status_t forward_kernel(const struct gpunvme_norm *p, void *stream);
typedef gpunvme_ops_status_t backward_kernel(const struct norm_backward *x, void *stream);

struct rung {
    forward_kernel *forward;
    backward_kernel *backward;
    int naive, by_eight;
};

static const struct rung rungs[3] = {
    {norm_forward_naive, norm_backward_naive, 1, 0},
    {norm_forward_block, norm_backward_block, 0, 0},
    {norm_forward_registers, norm_backward_registers, 0, 1},
};

static int rank(const struct ops_variant *variant, const struct ops_call *call)
{
    (void)call;
    return 1 + (int)((const struct rung *)variant->data - rungs);
}

/* Parameters are read by 16 bytes as well. */
static int parameter_by_eight(const void *p, int dtype)
{
    return !p || rows_by_eight(p, 0, dtype);
}

static gpunvme_ops_status_t misaligned(const struct ops_variant *variant)
{
    return ops_fail(GPUNVME_OPS_ERR_ALIGN, "variant '%s' needs rows that begin at multiples of 16",
                    variant->name);
}

static gpunvme_ops_status_t check_cols(const struct ops_variant *variant, int64_t cols,
                                       int64_t most)
{
    if (cols % 8 || cols > most)
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes a multiple of 8 columns, up to %d", variant->name,
                        (int)most);
    return GPUNVME_OPS_OK;
}

static gpunvme_ops_status_t forward_suits(const struct ops_variant *variant,
                                          const struct ops_call *call)
{
    const struct gpunvme_norm *p = call->descriptor;
    const struct {
        const void *data;
        int64_t ld;
    } rows[] = {{p->x, p->ldx}, {p->residual, p->ld_residual}, {p->y, p->ldy}, {p->sum, p->ld_sum}};
    gpunvme_ops_status_t status;

    if (!((const struct rung *)variant->data)->by_eight)
        return GPUNVME_OPS_OK;
    status = check_cols(variant, p->cols, NORM_FORWARD_COLS);
    if (status || call->any_pointers)
        return status;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].data && !rows_by_eight(rows[i].data, rows_ld(p->rows, rows[i].ld), p->dtype))
            return misaligned(variant);
    return parameter_by_eight(p->weight, p->weight_dtype) &&
                   parameter_by_eight(p->bias, p->weight_dtype)
               ? GPUNVME_OPS_OK
               : misaligned(variant);
}

static gpunvme_ops_status_t forward_run(const struct ops_variant *variant,
                                        const struct ops_call *call)
{
    return ((const struct rung *)variant->data)->forward(call->descriptor, call->exec->stream);
}

static gpunvme_ops_status_t backward_suits(const struct ops_variant *variant,
                                           const struct ops_call *call)
{
    const struct gpunvme_norm_grad *p = call->descriptor;
    const struct {
        const void *data;
        int64_t ld;
    } rows[] = {{p->grad_y, p->ld_grad_y},
                {p->x, p->ldx},
                {p->grad_x, p->ld_grad_x},
                {p->grad_x ? p->grad_sum : NULL, p->ld_grad_sum}};
    gpunvme_ops_status_t status;

    if (!((const struct rung *)variant->data)->by_eight)
        return GPUNVME_OPS_OK;
    status = check_cols(variant, p->cols, NORM_BACKWARD_COLS);
    if (!status && !p->grad_x && !p->grad_weight)
        status = ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                          "variant '%s' computes grad_x or grad_weight", variant->name);
    if (status || call->any_pointers)
        return status;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].data && !rows_by_eight(rows[i].data, rows_ld(p->rows, rows[i].ld), p->dtype))
            return misaligned(variant);
    return parameter_by_eight(p->weight, p->weight_dtype) ? GPUNVME_OPS_OK : misaligned(variant);
}

/* Blocks, and so the sums' order and the workspace, are those of sizes and device alone. */
static int64_t blocks_of(const struct gpunvme_norm_grad *p)
{
    int64_t blocks = (int64_t)cuda_units() * BLOCKS_OF_UNIT;

    return p->rows < blocks ? p->rows : blocks;
}

/* A block's sums: those of the weight's gradient, then those of the bias's. */
static int64_t sums_of_block(const struct gpunvme_norm_grad *p)
{
    return ((p->grad_weight != NULL) + (p->grad_bias != NULL)) * p->cols;
}

static size_t backward_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_norm_grad *p = call->descriptor;

    return ((const struct rung *)variant->data)->naive
               ? 0
               : ops_workspace_part(1, blocks_of(p), sums_of_block(p), sizeof(float));
}

static gpunvme_ops_status_t finish_sums(const struct norm_backward *x, void *stream)
{
    const struct gpunvme_norm_grad *p = &x->p;
    struct cuda_sums sums = {.sums = p->grad_weight ? x->weight_sums : x->bias_sums,
                             .parts = x->blocks,
                             .out = x->ld_sums,
                             .first = p->grad_weight ? p->cols : 0,
                             .total = {p->grad_weight, p->grad_bias},
                             .dtype = p->grad_dtype,
                             .accumulate = p->accumulate};

    return cuda_finish_sums(&sums, stream);
}

static gpunvme_ops_status_t backward_run(const struct ops_variant *variant,
                                         const struct ops_call *call)
{
    const struct gpunvme_norm_grad *p = call->descriptor;
    const struct rung *rung = variant->data;
    struct norm_backward x = {.p = *p, .blocks = blocks_of(p), .ld_sums = sums_of_block(p)};
    void *stream = call->exec->stream;
    gpunvme_ops_status_t status = GPUNVME_OPS_OK;

    if (rung->naive)
        return rung->backward(&x, stream);
    if (p->grad_weight)
        x.weight_sums = call->exec->workspace;
    if (p->grad_bias)
        x.bias_sums = (float *)call->exec->workspace + (p->grad_weight ? p->cols : 0);
    if (p->rows)
        status = rung->backward(&x, stream);
    return status || !x.ld_sums ? status : finish_sums(&x, stream);
}

#define VARIANT(index, name_, changes_, suits_, workspace_, run_)                                  \
    {                                                                                              \
        .name = name_, .needs = CUDA_SM80, .changes = changes_, .dtypes = OPS_ALL_DTYPES,          \
        .computes = OPS_ALL_COMPUTES, .deterministic = 1, .min_sm = 80, .suits = suits_,           \
        .rank = rank, .workspace = workspace_, .run = run_, .data = &rungs[index]                  \
    }

static const struct ops_variant forward[] = {
    VARIANT(0, "naive", "a thread for each row, which reads it two or three times", forward_suits,
            NULL, forward_run),
    VARIANT(1, "block", "a block for each row: neighbours read neighbouring columns", forward_suits,
            NULL, forward_run),
    VARIANT(2, "registers",
            "16 bytes a load, and a row is read once: it stays in its threads' registers",
            forward_suits, NULL, forward_run),
};

static const struct ops_variant backward[] = {
    VARIANT(0, "naive", "a thread for each row, and for each column of the parameters' gradients",
            backward_suits, backward_workspace, backward_run),
    VARIANT(1, "block",
            "a block for each row; it adds up the parameters' gradients of its rows in memory, a "
            "second kernel those of all blocks",
            backward_suits, backward_workspace, backward_run),
    VARIANT(2, "registers",
            "16 bytes a load, rows are read once, sums of columns stay in registers; the next rows "
            "are on their way",
            backward_suits, backward_workspace, backward_run),
};

const struct ops_ladder norm_forward_cuda = OPS_LADDER(forward);
const struct ops_ladder norm_backward_cuda = OPS_LADDER(backward);
