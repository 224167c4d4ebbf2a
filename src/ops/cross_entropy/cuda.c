/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Softmax cross entropy on the GPU: the ladder.
 */
#include <limits.h>

#include "ops/cross_entropy/cross_entropy.h"
#include "ops/cross_entropy/kernels.h"

struct rung {
    gpunvme_ops_status_t (*launch)(const struct entropy_work *x, void *stream);
    int by_words, in_clusters;
};

static const struct rung rungs[4] = {
    {entropy_naive, 0, 0},
    {entropy_block, 0, 0},
    {entropy_online, 1, 0},
    {entropy_cluster, 1, 1},
};

static int rank(const struct ops_variant *variant, const struct ops_call *call)
{
    (void)call;
    return 1 + (int)((const struct rung *)variant->data - rungs);
}

/* Rows of the gradient begin as those of the logits do, so that both have the same whole words. */
static int words_agree(const struct gpunvme_cross_entropy *p)
{
    int64_t size = (int64_t)gpunvme_ops_dtype_nbytes(p->dtype);

    return !p->grad || (((uintptr_t)p->grad - (uintptr_t)p->logits) % 16 == 0 &&
                        (p->rows < 2 || (p->ld_grad - p->ld_logits) * size % 16 == 0));
}

static gpunvme_ops_status_t suits(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_cross_entropy *p = call->descriptor;
    const struct rung *rung = variant->data;

    if (rung->in_clusters && (entropy_row_nbytes(p) > ENTROPY_MOST_NBYTES || p->rows > INT_MAX / 2))
        return ops_fail(GPUNVME_OPS_ERR_UNSUPPORTED,
                        "variant '%s' takes rows of up to 1 MiB, which a cluster keeps, and up to "
                        "2^30 of them",
                        variant->name);
    if (rung->by_words && !call->any_pointers && !words_agree(p))
        return ops_fail(GPUNVME_OPS_ERR_ALIGN,
                        "variant '%s' needs rows of grad that begin a multiple of 16 bytes from "
                        "those of logits",
                        variant->name);
    return GPUNVME_OPS_OK;
}

static size_t losses_nbytes(const struct gpunvme_cross_entropy *p)
{
    return cross_entropy_wants_total(p) ? ops_workspace_part(1, 1, p->rows, sizeof(float)) : 0;
}

static size_t workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_cross_entropy *p = call->descriptor;

    (void)variant;
    return GPUNVME_OPS_WORKSPACE_ALIGN + losses_nbytes(p);
}

static gpunvme_ops_status_t run(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_cross_entropy *p = call->descriptor;
    const struct rung *rung = variant->data;
    char *at = call->exec->workspace;
    void *stream = call->exec->stream;
    struct entropy_work x = {.p = *p, .losses = p->loss};
    gpunvme_ops_status_t status = GPUNVME_OPS_OK;

    if (p->reduction == GPUNVME_REDUCTION_MEAN)
        x.scale = (float *)(void *)at;
    if (cross_entropy_wants_total(p))
        x.losses = (float *)(void *)(at + GPUNVME_OPS_WORKSPACE_ALIGN);
    if (x.scale)
        status = entropy_count(&x, stream);
    if (!status && p->rows)
        status = rung->launch(&x, stream);
    if (!status && cross_entropy_wants_total(p))
        status = entropy_total(&x, stream);
    return status;
}

#define VARIANT(index, name_, needs_, sm, changes_)                                                \
    {                                                                                              \
        .name = name_, .needs = needs_, .changes = changes_, .dtypes = OPS_ALL_DTYPES,             \
        .computes = OPS_ALL_COMPUTES, .deterministic = 1, .min_sm = sm, .suits = suits,            \
        .rank = rank, .workspace = workspace, .run = run, .data = &rungs[index]                    \
    }

static const struct ops_variant ladder[] = {
    VARIANT(0, "naive", CUDA_SM80, 80,
            "a thread for each row: once for the sum of exponentials, once for the gradient"),
    VARIANT(1, "block", CUDA_SM80, 80,
            "a block for each row: neighbours read neighbouring columns"),
    VARIANT(2, "online", CUDA_SM80, 80,
            "16 bytes a load, four on their way; the second time a row comes from the cache"),
    VARIANT(
        3, "cluster", CUDA_SM90, 90,
        "a row is read once: the blocks of a cluster keep it in registers, and copy the next one"),
};

const struct ops_ladder cross_entropy_cuda = OPS_LADDER(ladder);
