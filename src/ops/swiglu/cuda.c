/* SPDX-License-Identifier: BSD-3-Clause
 *
 * SwiGLU on the GPU: the ladders.
 */
#include "ops/swiglu/kernels.h"
#include "ops/swiglu/swiglu.h"

static int by_eight(const struct ops_variant *variant)
{
    return *(const int *)variant->data;
}

static int rank(const struct ops_variant *variant, const struct ops_call *call)
{
    (void)call;
    return 1 + by_eight(variant);
}

/* All matrices of both directions are in the call, which says where their rows begin. */
static gpunvme_ops_status_t suits(const struct ops_variant *variant, const struct ops_call *call)
{
    if (!by_eight(variant))
        return GPUNVME_OPS_OK;
    for (unsigned i = 0; i < call->spans.count; i++) {
        const struct ops_matrix *x = &call->spans.matrix[i];

        if (x->cols % 8)
            return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                            "variant '%s' takes a multiple of 8 columns", variant->name);
        if (!call->any_pointers && !rows_by_eight(x->data, rows_ld(x->rows, x->ld), x->dtype))
            return ops_fail(GPUNVME_OPS_ERR_ALIGN,
                            "variant '%s' needs rows of %s that begin at multiples of 16 bytes",
                            variant->name, x->name);
    }
    return GPUNVME_OPS_OK;
}

static gpunvme_ops_status_t forward_run(const struct ops_variant *variant,
                                        const struct ops_call *call)
{
    return swiglu_forward(call->descriptor, by_eight(variant), call->exec->stream);
}

static gpunvme_ops_status_t backward_run(const struct ops_variant *variant,
                                         const struct ops_call *call)
{
    return swiglu_backward(call->descriptor, by_eight(variant), call->exec->stream);
}

static const int no = 0, yes = 1;

#define VARIANT(name_, data_, changes_, run_)                                                      \
    {                                                                                              \
        .name = name_, .needs = CUDA_SM80, .changes = changes_, .dtypes = OPS_ALL_DTYPES,          \
        .computes = OPS_ALL_COMPUTES, .deterministic = 1, .min_sm = 80, .suits = suits,            \
        .rank = rank, .run = run_, .data = data_                                                   \
    }

#define LADDER(run)                                                                                \
    {                                                                                              \
        VARIANT("naive", &no, "a thread for each element", run),                                   \
            VARIANT("vectors", &yes, "a thread for eight elements, 16 bytes a load", run)          \
    }

static const struct ops_variant forward[] = LADDER(forward_run);
static const struct ops_variant backward[] = LADDER(backward_run);

const struct ops_ladder swiglu_forward_cuda = OPS_LADDER(forward);
const struct ops_ladder swiglu_backward_cuda = OPS_LADDER(backward);
