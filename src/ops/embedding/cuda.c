/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Embedding on the GPU: the ladders.
 */
#include <cuda_runtime_api.h>

#include "ops/embedding/embedding.h"
#include "ops/embedding/kernels.h"

static int number(const struct ops_variant *variant)
{
    return *(const int *)variant->data;
}

static int rank(const struct ops_variant *variant, const struct ops_call *call)
{
    (void)call;
    return 1 + number(variant);
}

static gpunvme_ops_status_t forward_suits(const struct ops_variant *variant,
                                          const struct ops_call *call)
{
    const struct gpunvme_embedding *p = call->descriptor;

    if (!number(variant))
        return GPUNVME_OPS_OK;
    if (p->dim % (p->dtype == GPUNVME_OPS_F32 ? 4 : 8))
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes rows of a multiple of 16 bytes", variant->name);
    if (!call->any_pointers &&
        (!rows_by_eight(p->weight, rows_ld(p->vocab, p->ld_weight), p->dtype) ||
         !rows_by_eight(p->y, rows_ld(p->rows, p->ldy), p->dtype)))
        return ops_fail(GPUNVME_OPS_ERR_ALIGN,
                        "variant '%s' needs rows that begin at multiples of 16 bytes",
                        variant->name);
    return GPUNVME_OPS_OK;
}

static gpunvme_ops_status_t forward_run(const struct ops_variant *variant,
                                        const struct ops_call *call)
{
    return embedding_copy(call->descriptor, number(variant), call->exec->stream);
}

static gpunvme_ops_status_t backward_suits(const struct ops_variant *variant,
                                           const struct ops_call *call)
{
    const struct gpunvme_embedding_grad *p = call->descriptor;

    return number(variant) || p->grad_dtype == GPUNVME_OPS_F32
               ? GPUNVME_OPS_OK
               : ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED, "variant '%s' adds to gradients in f32",
                          variant->name);
}

static size_t integers(int64_t count)
{
    return ops_workspace_part(1, 1, count, sizeof(int32_t));
}

static size_t backward_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_embedding_grad *p = call->descriptor;

    if (!number(variant))
        return 0;
    return integers(p->vocab + 1) + integers(p->rows) + integers(p->rows / EMBEDDING_HOT + 1) +
           integers(1);
}

static gpunvme_ops_status_t backward_run(const struct ops_variant *variant,
                                         const struct ops_call *call)
{
    const struct gpunvme_embedding_grad *p = call->descriptor;
    char *at = call->exec->workspace;
    void *stream = call->exec->stream;
    struct embedding_sort x = {.p = *p};
    gpunvme_ops_status_t status;

    if (!number(variant))
        return embedding_atomic(p, stream);
    x.starts = (int32_t *)(void *)at;
    x.order = (int32_t *)(void *)(at + integers(p->vocab + 1));
    x.hot = (int32_t *)(void *)((char *)x.order + integers(p->rows));
    x.nhot = (uint32_t *)(void *)((char *)x.hot + integers(p->rows / EMBEDDING_HOT + 1));
    x.by_eight = p->dim % 8 == 0 &&
                 rows_by_eight(p->grad_y, rows_ld(p->rows, p->ld_grad_y), p->dtype) &&
                 rows_by_eight(p->grad_weight, rows_ld(p->vocab, p->ld_grad_weight), p->grad_dtype);
    status = cuda_status(cudaMemsetAsync(x.nhot, 0, sizeof(*x.nhot), stream), "clearing a count");
    if (!status)
        status = embedding_order(&x, stream);
    if (!status)
        status =
            embedding_sum(&x, p->rows > EMBEDDING_HOT ? 4 * (unsigned)cuda_units() : 0, stream);
    return status;
}

static const int numbers[2] = {0, 1};

#define VARIANT(index, name_, deterministic_, changes_, suits_, workspace_, run_)                  \
    {                                                                                              \
        .name = name_, .needs = CUDA_SM80, .changes = changes_, .dtypes = OPS_ALL_DTYPES,          \
        .computes = OPS_ALL_COMPUTES, .deterministic = deterministic_, .min_sm = 80,               \
        .suits = suits_, .rank = rank, .workspace = workspace_, .run = run_,                       \
        .data = &numbers[index]                                                                    \
    }

static const struct ops_variant forward[] = {
    VARIANT(0, "naive", 1, "a thread for each element", forward_suits, NULL, forward_run),
    VARIANT(1, "vectors", 1, "a thread for 16 bytes", forward_suits, NULL, forward_run),
};

static const struct ops_variant backward[] = {
    VARIANT(0, "atomic", 0,
            "a thread for each element of grad_y, and atomic additions, in another order each run",
            backward_suits, backward_workspace, backward_run),
    VARIANT(1, "sorted", 1,
            "rows are sorted by id; a warp adds up those of an id, a block those of a frequent one",
            backward_suits, backward_workspace, backward_run),
};

const struct ops_ladder embedding_forward_cuda = OPS_LADDER(forward);
const struct ops_ladder embedding_backward_cuda = OPS_LADDER(backward);
