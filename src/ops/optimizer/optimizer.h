/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Optimizers: what their files share. It knows no device.
 */
#ifndef OPS_OPTIMIZER_OPTIMIZER_H
#define OPS_OPTIMIZER_OPTIMIZER_H

#include "gpunvme/ops/optimizer.h"
#include "ops/core/operator.h"

extern const struct ops_operator ops_adamw, ops_grad_norm;
extern const struct ops_ladder adamw_cpu, grad_norm_cpu, adamw_cuda, grad_norm_cuda;

/* Gradients are summed by so many elements of a tensor at first. */
#define GRAD_NORM_CHUNK 16384

static inline int64_t grad_norm_chunks(const struct gpunvme_grad_tensor *t)
{
    return (t->count + GRAD_NORM_CHUNK - 1) / GRAD_NORM_CHUNK;
}

static inline int64_t grad_norm_all_chunks(const struct gpunvme_grad_norm *p)
{
    int64_t chunks = 0;

    for (int64_t k = 0; k < p->ntensors; k++)
        chunks += grad_norm_chunks(&p->tensors[k]);
    return chunks;
}

/* What all elements of a step share. */
struct adamw_step {
    float lr, beta1, beta2, eps;
    float keep;       /* 1 - lr * weight_decay */
    float to_m, to_v; /* 1 / (1 - beta^step) */
};

struct adamw_step adamw_step_of(const struct gpunvme_adamw *p);

#endif
