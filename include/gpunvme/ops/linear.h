/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The linear layer, forward and backward. The rules of ops/core.h apply.
 */
#ifndef GPUNVME_OPS_LINEAR_H
#define GPUNVME_OPS_LINEAR_H

#include "gpunvme/ops/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The linear layer: Y = act(Z), Z = X W^T + bias.
 *
 *   x           rows x in, ldx >= in
 *   weight      out x in, ldw >= in
 *   bias        out elements, or NULL for none
 *   y           rows x out, ldy >= out
 *   preact      rows x out, ld_preact >= out: Z as backward wants it; NULL if not wanted
 *
 * All have the type `dtype`. With in = 0, Z is the bias.
 */
struct gpunvme_linear {
    int64_t rows, in, out;
    const void *x, *weight, *bias;
    void *y, *preact;
    int64_t ldx, ldw, ldy, ld_preact;
    int32_t activation; /* enum gpunvme_ops_activation */
    int32_t dtype;
    int32_t compute;
    int32_t reserved; /* 0 */
};

/* The functions of both are matmul's: see gpunvme_matmul(), …_workspace() and …_choose(). */
gpunvme_ops_status_t gpunvme_linear_forward(const struct gpunvme_linear *linear,
                                            const struct gpunvme_ops_exec *exec);
gpunvme_ops_status_t gpunvme_linear_forward_workspace(const struct gpunvme_linear *linear,
                                                      const struct gpunvme_ops_exec *exec,
                                                      size_t *nbytes);
gpunvme_ops_status_t gpunvme_linear_forward_choose(const struct gpunvme_linear *linear,
                                                   const struct gpunvme_ops_exec *exec,
                                                   const char **name);

/*
 * The linear layer backwards. With dZ = grad_y * act'(preact), elementwise:
 *
 *   grad_x      rows x in,  ld_grad_x >= in:       dZ W
 *   grad_weight out x in,   ld_grad_weight >= in:  dZ^T X, or with `accumulate` added to
 *   grad_bias   out elements:                      the sum of dZ over the rows, likewise
 *
 * Each of the three may be NULL, and is then not computed. What only it needs (weight for grad_x, x
 * for grad_weight) may be NULL too. preact is read unless the activation is none. The derivative of
 * relu at 0 is 0. grad_weight and grad_bias have the type grad_dtype (`dtype`, or F32 to accumulate
 * in); everything else has `dtype`. dZ is kept in f32 or in `dtype`, as the variant's text says.
 */
struct gpunvme_linear_grad {
    int64_t rows, in, out;
    const void *x, *weight, *grad_y, *preact;
    void *grad_x, *grad_weight, *grad_bias;
    int64_t ldx, ldw, ld_grad_y, ld_preact, ld_grad_x, ld_grad_weight;
    int32_t activation;
    int32_t dtype;
    int32_t grad_dtype;
    int32_t compute;
    int32_t accumulate; /* 0 or 1 */
    int32_t reserved;   /* 0 */
};

gpunvme_ops_status_t gpunvme_linear_backward(const struct gpunvme_linear_grad *grad,
                                             const struct gpunvme_ops_exec *exec);
gpunvme_ops_status_t gpunvme_linear_backward_workspace(const struct gpunvme_linear_grad *grad,
                                                       const struct gpunvme_ops_exec *exec,
                                                       size_t *nbytes);
gpunvme_ops_status_t gpunvme_linear_backward_choose(const struct gpunvme_linear_grad *grad,
                                                    const struct gpunvme_ops_exec *exec,
                                                    const char **name);

#ifdef __cplusplus
}
#endif
#endif
