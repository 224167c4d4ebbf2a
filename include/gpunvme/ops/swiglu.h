/* SPDX-License-Identifier: BSD-3-Clause
 *
 * SwiGLU (Shazeer, "GLU variants improve Transformer", 2020) by itself, forward and backward. The
 * rules of ops/core.h apply.
 */
#ifndef GPUNVME_OPS_SWIGLU_H
#define GPUNVME_OPS_SWIGLU_H

#include "gpunvme/ops/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * y = silu(gate) * up, element by element; silu(z) = z / (1 + exp(-z)). All three are rows x cols,
 * with leading dimensions of at least cols, of type `dtype`. gate and up may be columns of one
 * matrix.
 */
struct gpunvme_swiglu {
    int64_t rows, cols;
    const void *gate, *up;
    void *y;
    int64_t ld_gate, ld_up, ldy;
    int32_t dtype;
    int32_t reserved; /* 0 */
};

/* The functions of both are matmul's: see gpunvme_matmul(), …_workspace() and …_choose(). */
gpunvme_ops_status_t gpunvme_swiglu_forward(const struct gpunvme_swiglu *swiglu,
                                            const struct gpunvme_ops_exec *exec);
gpunvme_ops_status_t gpunvme_swiglu_forward_workspace(const struct gpunvme_swiglu *swiglu,
                                                      const struct gpunvme_ops_exec *exec,
                                                      size_t *nbytes);
gpunvme_ops_status_t gpunvme_swiglu_forward_choose(const struct gpunvme_swiglu *swiglu,
                                                   const struct gpunvme_ops_exec *exec,
                                                   const char **name);

/*
 * Backwards: grad_gate = grad_y * up * silu'(gate), grad_up = grad_y * silu(gate), all rows x cols
 * of type `dtype`. grad_gate may be `gate` itself and grad_up `up`, with the same leading
 * dimensions.
 */
struct gpunvme_swiglu_grad {
    int64_t rows, cols;
    const void *grad_y, *gate, *up;
    void *grad_gate, *grad_up;
    int64_t ld_grad_y, ld_gate, ld_up, ld_grad_gate, ld_grad_up;
    int32_t dtype;
    int32_t reserved; /* 0 */
};

gpunvme_ops_status_t gpunvme_swiglu_backward(const struct gpunvme_swiglu_grad *grad,
                                             const struct gpunvme_ops_exec *exec);
gpunvme_ops_status_t gpunvme_swiglu_backward_workspace(const struct gpunvme_swiglu_grad *grad,
                                                       const struct gpunvme_ops_exec *exec,
                                                       size_t *nbytes);
gpunvme_ops_status_t gpunvme_swiglu_backward_choose(const struct gpunvme_swiglu_grad *grad,
                                                    const struct gpunvme_ops_exec *exec,
                                                    const char **name);

#ifdef __cplusplus
}
#endif
#endif
