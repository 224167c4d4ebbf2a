/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Softmax cross entropy of rows of logits, and its gradient in the same pass. The rules of
 * ops/core.h apply.
 */
#ifndef GPUNVME_OPS_CROSS_ENTROPY_H
#define GPUNVME_OPS_CROSS_ENTROPY_H

#include "gpunvme/ops/core.h"

#ifdef __cplusplus
extern "C" {
#endif

enum gpunvme_reduction {
    GPUNVME_REDUCTION_MEAN = 0, /* over the rows that are not ignored; of none it is NaN */
    GPUNVME_REDUCTION_SUM = 1,
    GPUNVME_REDUCTION_NONE = 2, /* a loss for each row */
    GPUNVME_NREDUCTIONS
};

/*
 * The loss of row i with target t is lse_i - logits[i, t], where lse_i = log(sum exp(logits[i,
 * :])).
 *
 *   logits     rows x vocab, ld_logits >= vocab, of type `dtype`
 *   targets    rows numbers from 0 to vocab - 1. With `ignore` a row whose target is ignore_index
 *              has the loss 0 and a gradient of zeros, and a mean does not count it
 *   grad_loss  the gradient of `loss`: rows elements for NONE, otherwise one. NULL: ones
 *   loss       rows elements for NONE, otherwise one; NULL if not wanted
 *   lse        rows elements; NULL if not wanted
 *   grad       rows x vocab, ld_grad >= vocab, of type `dtype`: the gradient of the logits,
 *              (softmax(logits[i, :]) - [j = t]) * grad_loss, for MEAN divided by the number of
 *              rows that are not ignored. NULL if not wanted. It may be `logits` itself, with the
 *              same leading dimension, and overwrites them then
 *
 * Sums are in f32. Another target is refused on the CPU (GPUNVME_OPS_ERR_INVALID, nothing is
 * written); on a GPU, which checks targets only as it reads them, the row's loss and gradient are
 * NaN.
 */
struct gpunvme_cross_entropy {
    int64_t rows, vocab;
    const void *logits;
    const int32_t *targets;
    const float *grad_loss;
    float *loss, *lse;
    void *grad;
    int64_t ld_logits, ld_grad;
    int32_t reduction; /* enum gpunvme_reduction */
    int32_t dtype;
    int32_t ignore; /* 0 or 1 */
    int32_t ignore_index;
    int32_t reserved[2]; /* 0 */
};

/* These are matmul's functions: see gpunvme_matmul(), …_workspace() and …_choose(). */
gpunvme_ops_status_t gpunvme_cross_entropy(const struct gpunvme_cross_entropy *entropy,
                                           const struct gpunvme_ops_exec *exec);
gpunvme_ops_status_t gpunvme_cross_entropy_workspace(const struct gpunvme_cross_entropy *entropy,
                                                     const struct gpunvme_ops_exec *exec,
                                                     size_t *nbytes);
gpunvme_ops_status_t gpunvme_cross_entropy_choose(const struct gpunvme_cross_entropy *entropy,
                                                  const struct gpunvme_ops_exec *exec,
                                                  const char **name);

#ifdef __cplusplus
}
#endif
#endif
