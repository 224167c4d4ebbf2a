/* SPDX-License-Identifier: BSD-3-Clause
 *
 * AdamW and the norm of gradients on the GPU: the ladders, and lists of tensors cut into launches.
 */
#include <math.h>

#include "ops/optimizer/kernels.h"

static int rank(const struct ops_variant *variant, const struct ops_call *call)
{
    (void)call;
    return 1 + *(const int *)variant->data;
}

static int aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

static int tensor_by_eight(const struct gpunvme_adamw_tensor *t)
{
    return aligned(t->grad) && aligned(t->master) && aligned(t->weight) && aligned(t->m) &&
           aligned(t->v);
}

static void clear(struct adamw_work *x, const struct gpunvme_adamw *p)
{
    x->count = 0;
    x->first[0] = 0;
    x->step = adamw_step_of(p);
    x->grad_scale = p->grad_scale;
    x->steps = p->step;
    x->now = p->now;
    x->weight_decay = p->weight_decay;
    x->log_beta1 = (float)log((double)p->beta1);
    x->log_beta2 = (float)log((double)p->beta2);
    x->seed = p->seed;
    x->dtype = p->dtype;
    x->grad_dtype = p->grad_dtype;
    x->stochastic = p->stochastic;
    x->by_eight = 1;
}

static void add(struct adamw_work *x, const struct gpunvme_adamw_tensor *t)
{
    x->tensors[x->count] = *t;
    x->first[x->count + 1] = x->first[x->count] + (t->count + ADAMW_CHUNK - 1) / ADAMW_CHUNK;
    x->count++;
    x->by_eight &= tensor_by_eight(t);
}

/* Tensors are numbered through the list, and those of a launch from its first. */
static gpunvme_ops_status_t adamw_run(const struct ops_variant *variant,
                                      const struct ops_call *call)
{
    const struct gpunvme_adamw *p = call->descriptor;
    const int64_t most_chunks = 1 << 30;
    int each_alone = !*(const int *)variant->data;
    gpunvme_ops_status_t status = GPUNVME_OPS_OK;
    struct adamw_work x;

    clear(&x, p);
    for (int64_t k = 0; k < p->ntensors && !status; k++) {
        if (!x.count)
            x.number = k;
        add(&x, &p->tensors[k]);
        if (!each_alone && k + 1 < p->ntensors && x.count < ADAMW_TENSORS &&
            x.first[x.count] < most_chunks)
            continue;
        if (x.first[x.count])
            status = each_alone ? adamw_elements(&x, call->exec->stream)
                                : adamw_vectors(&x, call->exec->stream);
        x.count = 0;
        x.by_eight = 1;
    }
    return status;
}

static int norm_by_eight(const struct gpunvme_grad_norm *p)
{
    int all = 1;

    for (int64_t k = 0; k < p->ntensors; k++)
        all &= aligned(p->tensors[k].grad);
    return all;
}

static size_t norm_workspace(const struct ops_variant *variant, const struct ops_call *call)
{
    (void)variant;
    return ops_workspace_part(1, 1, grad_norm_all_chunks(call->descriptor), sizeof(float));
}

static gpunvme_ops_status_t norm_run(const struct ops_variant *variant, const struct ops_call *call)
{
    const struct gpunvme_grad_norm *p = call->descriptor;
    int by_eight = *(const int *)variant->data && norm_by_eight(p);
    struct grad_norm_work x = {.dtype = p->dtype, .sums = call->exec->workspace};
    gpunvme_ops_status_t status = GPUNVME_OPS_OK;

    for (int64_t k = 0; k < p->ntensors && !status; k++) {
        x.tensors[x.count] = p->tensors[k];
        x.first[x.count + 1] = x.first[x.count] + grad_norm_chunks(&p->tensors[k]);
        x.count++;
        if (k + 1 < p->ntensors && x.count < ADAMW_TENSORS)
            continue;
        if (x.first[x.count] > x.first[0])
            status = grad_norm_sums(&x, by_eight, call->exec->stream);
        x.first[0] = x.first[x.count];
        x.count = 0;
    }
    return status ? status
                  : grad_norm_finish(x.sums, x.first[0], p->max_norm, p->norm, p->scale,
                                     call->exec->stream);
}

static const int numbers[2] = {0, 1};

#define VARIANT(index, name_, changes_, workspace_, run_)                                          \
    {                                                                                              \
        .name = name_, .needs = CUDA_SM80, .changes = changes_, .dtypes = OPS_ALL_DTYPES,          \
        .computes = OPS_ALL_COMPUTES, .deterministic = 1, .min_sm = 80, .rank = rank,              \
        .workspace = workspace_, .run = run_, .data = &numbers[index]                              \
    }

static const struct ops_variant adamw[] = {
    VARIANT(0, "naive", "a launch for each tensor, a thread for each element", NULL, adamw_run),
    VARIANT(1, "list", "all tensors in one launch (up to 256), 16 bytes a load", NULL, adamw_run),
};

static const struct ops_variant norm[] = {
    VARIANT(0, "naive",
            "a block sums 16384 elements, one a load; another block adds up all blocks' sums",
            norm_workspace, norm_run),
    VARIANT(1, "vectors", "16 bytes a load, four of them on their way", norm_workspace, norm_run),
};

const struct ops_ladder adamw_cuda = OPS_LADDER(adamw);
const struct ops_ladder grad_norm_cuda = OPS_LADDER(norm);
